"""A round, slender body in equal segments: the elements and springs of the chain that stands for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, truth, whole_number
from torchdismech.model.reduced import values_of
from torchdismech.robot.body import Sections
from torchdismech.robot.materials import Number, positive
from torchdismech.values import Given, numbers

__all__ = ["in_segments"]


def in_segments(
    segments: int,
    length: Number,
    diameter: Given,
    density: Given,
    youngs: Given,
    viscosity: Given,
    shear: Given | None,
    space: bool,
) -> tuple[tuple[Any, ...], Sections]:
    """Return the first arguments of `RigidChain`, length to damping, for a cylinder, and its sections for figures.

    Parameters are those of `RigidChain.cylinder`.
    """
    segments, space = whole_number(segments, "segments"), truth(space, "space")
    properties = {"length": length, "diameter": diameter, "density": density, "youngs": youngs}
    _refuse_parameters(properties | {"viscosity": viscosity, "shear": shear})
    _refuse_other_shear(shear, space)
    count, step = segments + 1, _whole_length(length) / segments
    d, rho = (values_of(x, name, count, True) for x, name in ((diameter, "diameter"), (density, "density")))
    moduli = {"youngs": values_of(youngs, "youngs", count, True)}
    if space:
        moduli["shear"] = values_of(shear, "shear", count, True)  # type: ignore[arg-type]
    eta = values_of(viscosity, "viscosity", count, from_zero=True)
    _refuse_unlike_batches(step, d, rho, eta, *moduli.values())
    share = torch.ones(count, dtype=d.dtype, device="cpu")
    share[0] = share[-1] = 0.5
    lengths = step * share
    mass = rho * (math.pi / 4) * d.square() * lengths
    bend = mass * (3 * d.square() + 4 * lengths.square()) / 48
    second = (math.pi / 64) * d**4
    k = {name: _in_series(modulus * second, step) for name, modulus in moduli.items()}
    damper = _in_series(eta * second, step)
    about_axes: tuple[Any, ...] = bend, k["youngs"], damper
    if space:  # about x, y and z
        about_axes = (
            (mass * d.square() / 8, bend, bend),
            (2 * k["shear"], k["youngs"], k["youngs"]),
            (2 * damper, damper, damper),
        )
    diameters = d.detach().cpu().double().expand(*d.shape[:-1], count).clone().numpy()
    return (lengths, mass, lengths / 2, *about_axes), Sections(diameters, diameters, np.ones(count, dtype=bool))


def _whole_length(length: Number) -> Tensor:
    """Return the length of the whole body, () or (B, 1) [m]."""
    total = numbers(length, "length")
    positive(total.detach(), "length")
    if total.dim() and total.shape[1:] != (1,):
        raise InputError(f"length: expected that of the whole, a number or (B, 1), got shape {tuple(total.shape)}")
    return total


def _refuse_other_shear(shear: Given | None, space: bool) -> None:
    """Refuse a chain in space without a shear modulus, and one in the plane with it."""
    if space and shear is None:
        raise InputError("shear: a chain in space needs the shear modulus [Pa], by which its springs twist")
    if not space and shear is not None:
        raise InputError("shear: a chain in the plane does not twist; leave it out, or set space=True")


def _refuse_unlike_batches(*values: Tensor) -> None:
    """Refuse properties of a cylinder that are given for different numbers of robots."""
    robots = {x.shape[0] for x in values if x.dim() == 2} - {1}
    if len(robots) > 1:
        raise InputError(
            "length, diameter, density, youngs, viscosity, shear: given for different numbers of robots: "
            f"{sorted(robots)}"
        )


def _refuse_parameters(properties: Mapping[str, Any]) -> None:
    """Refuse an `nn.Parameter` among the properties: the chain's constants are computed from them only once."""
    for name, value in properties.items():
        if isinstance(value, nn.Parameter):
            raise InputError(
                f"RigidChain.cylinder: {name}: got an nn.Parameter; the chain's constants are made of it once, so an "
                "optimiser would change it without changing the chain. Give it detached, and train what the chain "
                'holds: trainable.scaled(chain, ["stiffness_z"]) or shifted(...); see docs/rigid_elements.md'
            )


def _in_series(rigidity: Tensor, step: Tensor) -> Tensor:
    """Return the stiffness (.., elements - 1) of springs that each stand for half a segment of both neighbours.

    Angles add up: 1/k = (step/2)/(E I) of one + (step/2)/(E I) of the other.
    """
    if rigidity.dim() == 0 or rigidity.shape[-1] == 1:
        return rigidity / step
    left, right = rigidity[..., :-1], rigidity[..., 1:]
    total = left + right
    return torch.where(total > 0, 2 * left * right / torch.where(total > 0, total, 1.0), 0.0) / step

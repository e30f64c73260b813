"""Sections and materials, from which the stiffness and mass of rods and shells follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_trained
from torchdismech.values import numbers, refuse_no_robots

__all__ = ["Circle", "Material", "Number", "Rectangle", "positive", "refuse_unlike_shapes"]

Number = float | Tensor


def positive(value: Number, name: str) -> Tensor:
    """Return a finite value above 0 as a new tensor (numbers in float64); refuse others, and tensors with gradients."""
    refuse_trained(value, name)
    tensor = numbers(value, name)
    refuse_no_robots(tensor, name)
    if not (torch.isfinite(tensor).all() and (tensor > 0).all()):
        raise InputError(f"{name}: expected a finite number above 0, got {value}")
    return tensor.clone()


@dataclass(frozen=True)
class Circle:
    """A round section; `radius` [m] broadcasts against (B, E)."""

    radius: Number

    def constants(self) -> dict[str, Tensor]:
        """Return area, I1, I2, J, polar moment [m^2, m^4], drag radius and sizes [m] of the section, by name."""
        r = positive(self.radius, "Circle.radius")
        second = math.pi * r**4 / 4
        sizes = {"radius": r, "height": 2 * r, "width": 2 * r}
        return {"area": math.pi * r**2, "I1": second, "I2": second, "J": 2 * second, "polar": 2 * second, **sizes}


@dataclass(frozen=True)
class Rectangle:
    """A rectangular section: `width` along d2, `height` along d1 [m]; each broadcasts against (B, E)."""

    width: Number
    height: Number

    def constants(self) -> dict[str, Tensor]:
        """Return area, I1, I2, J, polar moment [m^2, m^4], drag radius and sizes [m] of the section, by name."""
        w, h = positive(self.width, "Rectangle.width"), positive(self.height, "Rectangle.height")
        long, short = torch.maximum(w, h), torch.minimum(w, h)
        ratio = short / long
        torsion = long * short**3 * (1 / 3 - 0.21 * ratio * (1 - ratio**4 / 12))
        i1, i2 = w * h**3 / 12, h * w**3 / 12
        sizes = {"radius": short / 2, "height": h, "width": w}
        return {"area": w * h, "I1": i1, "I2": i2, "J": torsion, "polar": i1 + i2, **sizes}


@dataclass(frozen=True)
class Material:
    """Young's modulus [Pa], density [kg/m^3], Poisson's ratio and relaxation time [s]; each broadcasts against (B, E).

    Poisson's ratio decides how stiff rods are in twisting, and shells in stretching and bending. It has no effect on
    planar robots, which do not twist, on rods whose GJ is given, and on springs and hinges of shells.

    With a relaxation time the material damps its own deformation (Kelvin-Voigt): stress = modulus * (strain +
    relaxation_time * rate of strain), alike in stretching, bending and twisting.
    """

    youngs: Number
    density: Number
    poisson: Number = 0.5
    relaxation_time: Number = 0.0

    def constants(self) -> dict[str, Tensor]:
        """Return Young's and shear modulus [Pa], density, relaxation time [s] and Poisson's ratio, by name."""
        youngs, density = positive(self.youngs, "Material.youngs"), positive(self.density, "Material.density")
        for name in ("poisson", "relaxation_time"):
            refuse_trained(getattr(self, name), f"Material.{name}")
        poisson = numbers(self.poisson, "Material.poisson").to(youngs.dtype, copy=True)
        if not ((poisson > -1) & (poisson <= 0.5)).all():
            raise InputError(f"Material.poisson: expected a number above -1 and up to 0.5, got {self.poisson}")
        relaxation = numbers(self.relaxation_time, "Material.relaxation_time").to(youngs.dtype, copy=True)
        for name, value in (("poisson", poisson), ("relaxation_time", relaxation)):
            refuse_no_robots(value, f"Material.{name}")
        if not (torch.isfinite(relaxation).all() and (relaxation >= 0).all()):
            raise InputError(
                f"Material.relaxation_time: expected a finite number from 0 up, got {self.relaxation_time}"
            )
        shear = youngs / (2 * (1 + poisson))
        constants = {"youngs": youngs, "shear": shear, "density": density, "relaxation": relaxation}
        return {**constants, "poisson": poisson}


def refuse_unlike_shapes(
    parts: Sequence[Circle | Rectangle | Material], stiffness: Mapping[str, Number], **more: Number | None
) -> None:
    """Refuse sections, materials and other constants that are for different numbers of robots or elements."""
    values: dict[str, Number | None] = {**{f"stiffness.{name}": value for name, value in stiffness.items()}, **more}
    for part in parts:
        values |= {f"{type(part).__name__}.{field.name}": getattr(part, field.name) for field in fields(part)}
    shapes = {name: tuple(np.shape(value)) for name, value in values.items() if value is not None}
    try:
        np.broadcast_shapes(*shapes.values())  # torch's imports sympy, which takes a third of a second
    except ValueError:
        texts = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if math.prod(shape) > 1)
        raise InputError(
            f"{texts}: these shapes do not go together; expected one number each, (elements,), (robots, 1) or "
            "(robots, elements), of the same robots and elements"
        ) from None

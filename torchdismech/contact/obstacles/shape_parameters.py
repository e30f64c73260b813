"""The parameters of shapes: how they are kept, and which ones are refused."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchdismech.contact.obstacles.directions import identity
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.errors import InputError
from torchdismech.values import batch_sizes

__all__ = ["parameter", "refuse_matrix", "refuse_mixed", "refuse_nonpositive", "refuse_zero"]


def parameter(kind, value, what: str) -> nn.Parameter:
    """Return a parameter, checked by `kind` (`scalar` or `vector`); a copy, so that no two shapes share one."""
    return nn.Parameter(kind(value, what).clone(), requires_grad=False)


def refuse_nonpositive(parameter: Tensor, what: str, value) -> None:
    """Refuse lengths of which some are not above zero."""
    if not (parameter > 0).all():
        raise InputError(f"{what}: expected lengths above 0, got {value}")


def refuse_zero(vectors: Tensor, message: str, value) -> None:
    """Refuse vectors (..., 3) of which some are too short to have a direction."""
    # Squares are summed: below this length they are no normal floating-point numbers.
    if not (vectors.norm(dim=-1) > math.sqrt(torch.finfo(vectors.dtype).tiny)).all():
        raise InputError(f"{message}, got {value}")


def refuse_matrix(rotation: Tensor, where: str) -> None:
    """Refuse a rotation matrix, which would read as the rotation vectors of three robots."""
    if rotation.shape == (3, 3) and torch.allclose(rotation @ rotation.mT, identity(rotation), atol=1e-6):
        raise InputError(
            f"{where}: expected a rotation vector (axis times angle), (3,) or (B, 3), got what looks like a "
            "rotation matrix: convert it, for instance by scipy.spatial.transform.Rotation.as_rotvec"
        )


def refuse_mixed(shape: Shape) -> None:
    """Refuse parameters that are given for different numbers of robots."""
    numbers = batch_sizes(shape)
    if len(numbers) > 1:
        shapes = ", ".join(f"{name} {tuple(getattr(shape, name).shape)}" for name in shape.per_robot)
        raise InputError(
            f"{type(shape).__name__}: expected parameters for one number of robots, got {sorted(numbers)}: {shapes}"
        )

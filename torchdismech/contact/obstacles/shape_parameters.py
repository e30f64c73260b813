"""Checks of the parameters of shapes, which refuse wrong ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.contact.obstacles.directions import identity
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.errors import InputError
from torchdismech.geometry.curves import WHOLE_TURN
from torchdismech.values import batch_sizes

__all__ = ["refuse_mixed", "refuse_nonpositive", "refuse_other_rotation", "refuse_zero"]


def refuse_nonpositive(parameter: Tensor, what: str, value) -> None:
    """Refuse lengths unless all are above zero."""
    if not (parameter > 0).all():
        raise InputError(f"{what}: expected lengths above 0, got {value}")


def refuse_zero(vectors: Tensor, message: str, value) -> None:
    """Refuse vectors (..., 3) of which some are too short to have a direction."""
    # below this length the sum of squares is no normal floating-point number
    if not (vectors.norm(dim=-1) > math.sqrt(torch.finfo(vectors.dtype).tiny)).all():
        raise InputError(f"{message}, got {value}")


def refuse_other_rotation(rotation: Tensor, where: str) -> None:
    """Refuse a rotation matrix (3, 3), which would be taken for vectors of three robots, and angles that are no rad."""
    if rotation.shape == (3, 3) and torch.allclose(rotation @ rotation.mT, identity(rotation), atol=1e-6):
        raise InputError(
            f"{where}: expected a rotation vector (axis times angle), (3,) or (B, 3), got what looks like a "
            "rotation matrix: convert it, for instance by scipy.spatial.transform.Rotation.as_rotvec"
        )
    angle = float(rotation.norm(dim=-1).max())
    if angle > WHOLE_TURN:
        raise InputError(f"{where}: expected a turn or less, up to 2 pi [rad], got {angle:g}: see math.radians")


def refuse_mixed(shape: Shape) -> None:
    """Refuse parameters that are given for different numbers of robots."""
    numbers = batch_sizes(shape)
    if len(numbers) > 1:
        shapes = ", ".join(f"{name} {tuple(getattr(shape, name).shape)}" for name in shape.per_robot)
        raise InputError(
            f"{type(shape).__name__}: expected parameters for one number of robots, got {sorted(numbers)}: {shapes}"
        )

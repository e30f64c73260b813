"""How a robot's surface stands to an obstacle."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Surface"]


class Surface(NamedTuple):
    """How a robot's surface stands to an obstacle at P points, and moves against it.

    Attributes
    ----------
    gap : (B, P) [m]; normal : (B, P, 3) towards the robot; curvature : (B, P, 3, 3) its derivative by the points [1/m].
    velocity : (B, P, 3) of the surface against the obstacle [m/s].
    axis : (B, P, 3) of rods as a step begins, where friction needs them, see `RodTangents`; else None.
    lever : (B, P, 3) by which spin moves the surface of rods that roll [m]; None where they do not.
    """

    gap: Tensor
    normal: Tensor
    curvature: Tensor
    velocity: Tensor
    axis: Tensor | None
    lever: Tensor | None

"""Gaps, normals and relative velocities of a robot's surface at an obstacle, which `Obstacle` hands to its law."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Surface"]


class Surface(NamedTuple):
    """Position and motion of a robot's surface relative to an obstacle, at its P points.

    Attributes
    ----------
    gap : (B, P) [m].
    normal : (B, P, 3) unit vectors towards the robot.
    curvature : (B, P, 3, 3) derivative of the normal by the points' positions [1/m].
    velocity : (B, P, 3) of the robot's surface relative to the obstacle [m/s].
    axis : (B, P, 3) axes of rods at the start of the step, see `RodTangents`; None where friction does not need them.
    lever : (B, P, 3) derivative of the surface's velocity by the rod's spin [m]; None where rods do not roll.
    """

    gap: Tensor
    normal: Tensor
    curvature: Tensor
    velocity: Tensor
    axis: Tensor | None
    lever: Tensor | None

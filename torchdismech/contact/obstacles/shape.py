"""Obstacles' signed distances, with their first and second derivatives.

A shape is fixed in its own frame; where the obstacle moves, the caller subtracts the motion from the points first. The
distance d is negative inside, its gradient is the unit normal n (outwards), its Hessian the curvature. Everything is
torch code that autograd follows, by the points and by the shape's sizes; autograd of d is n, of n the curvature.

A distance has kinks: the centre of a sphere, the axis of a capsule, inside a box or a cylinder the points with two
nearest faces. There the values are those of one side, so nothing is infinite or NaN: at a centre or an axis d is
replaced, within rounding, by the plane through it with a fixed normal and no curvature. A box's curvature jumps where
the nearest feature changes (face, edge, corner); a capsule's where its caps begin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Shape"]


class Shape(nn.Module):
    """A region of space that bodies cannot enter, by its signed distance.

    Attributes
    ----------
    records : whether recordings of steps may hold a shape of one's own: its methods read nothing that changes but their
        arguments, parameters and registered tensors, and no number of a tensor; see `forces.Force`.
    """

    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of those that a step refuses below zero
    positive: tuple[str, ...] = ()  # and at zero
    endless = False  # whether it has no other side, so that nothing gets through it
    walled = False  # whether some places are much thinner than `depth` says; then `passed` looks at what gets through

    def distance(self, points: Tensor) -> Tensor:
        """Return the signed distances (B, N) [m] of the points (B, N, 3), negative inside."""
        return self.distance_and_derivatives(points)[0]

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the signed distances with their derivatives by the points.

        Parameters
        ----------
        points : (B, N, 3) in the frame of the obstacle [m].

        Returns
        -------
        distance : (B, N) [m], negative inside.
        normal : (B, N, 3) gradient of the distance, a unit vector.
        curvature : (B, N, 3, 3) Hessian of the distance [1/m].
        """
        raise TypeError(f"{type(self).__name__} has to define distance_and_derivatives(points)")

    def passed(self, start: Tensor, end: Tensor, distances: tuple[Tensor, Tensor]) -> Tensor:
        """Return which points (K,) get through, going straight from `start` to `end` (K, 3), at distances (K,) [m].

        For shapes that are `walled`: points whose way is longer than both distances together.
        """
        raise TypeError(f"{type(self).__name__} is walled, so it has to define passed(start, end, distances)")

    @property
    def depth(self) -> Tensor:
        """Largest depth that a point can have inside, () or (B, 1) [m]."""
        raise TypeError(f"{type(self).__name__} has to define depth")

    @property
    def width(self) -> Tensor:
        """Second smallest of its three sizes, () or (B, 1) [m]: what is farther apart than that may pass it by."""
        return 2 * self.depth

    @property
    def sharpest(self) -> Tensor:
        """Radius [m] of its surface where that is the most curved, () or (B, 1); zero where there may be edges."""
        return torch.zeros((), device="cpu")

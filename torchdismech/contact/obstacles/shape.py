"""Shape: signed distances of obstacles, with their first and second derivatives.

A shape is fixed in its own frame; if the obstacle moves, the caller subtracts its motion from the points first. The
distance d is negative inside, its gradient is the outward unit normal n, its Hessian the curvature. Everything is torch
code that autograd can differentiate by the points and by the shape's sizes; autograd of d gives n, of n the curvature.

A distance has kinks: at the centre of a sphere, on the axis of a capsule, and inside a box or a cylinder where two
faces are equally near. There the values are those of one side, so that nothing is infinite or NaN. At a centre or an
axis, within rounding, d is replaced by the distance from a plane through it, with a fixed normal and no curvature. A
box's curvature jumps where the nearest feature changes (face, edge, corner); a capsule's where its caps begin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.values import constants_in_words

__all__ = ["Shape"]


class Shape(nn.Module):
    """A region of space that robots cannot enter, given by its signed distance.

    For a shape of your own, write `distance_and_derivatives` and `depth`, and `passed` if it is `walled`.

    Attributes
    ----------
    records : whether recordings of steps may hold a shape of your own. True promises that its methods read nothing that
        changes except their arguments, parameters and registered tensors, and no number of a tensor on the host; see
        `forces.Force`.
    """

    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of parameters that a step refuses below zero
    positive: tuple[str, ...] = ()  # names of those that it refuses at zero, too
    endless = False  # whether it has no far side, so that nothing can pass through it
    walled = False  # whether some places are much thinner than `depth` says: `passed` then judges paths across the wall

    def extra_repr(self) -> str:
        """Return the constants for print."""
        return constants_in_words(self)

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
        """Return which points (K,) pass through a wall as they move straight from `start` to `end` (K, 3).

        Only asked of shapes that are `walled`, for points whose path is at least as long as both distances together.

        Parameters
        ----------
        distances : (K,) each, signed, of start and end [m].
        """
        raise TypeError(f"{type(self).__name__} is walled, so it has to define passed(start, end, distances)")

    @property
    def depth(self) -> Tensor:
        """Largest distance that a point inside can have from the surface, () or (B, 1) [m]."""
        raise TypeError(f"{type(self).__name__} has to define depth")

    @property
    def width(self) -> Tensor:
        """Second smallest of its three dimensions, () or (B, 1) [m]: it fits between points that are farther apart."""
        return 2 * self.depth

    @property
    def sharpest(self) -> Tensor:
        """Smallest radius of curvature of its surface, () or (B, 1) [m]; zero for shapes that may have edges."""
        return torch.zeros((), device="cpu")

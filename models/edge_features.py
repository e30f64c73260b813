"""Features of edges that networks see: numbers that do not change when the robot is moved or turned about gravity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["COUNT", "EdgeFeatures", "edge_features", "features_between"]

COUNT = 8  # features of an edge
STRETCH = 50.0  # scale of stretch: 2 % counts as one


@dataclass(frozen=True)
class EdgeFeatures:
    """Invariant features of each edge, and axes that turn with it.

    Attributes
    ----------
    numbers : (B, E, COUNT) slope; stretch; mean and relative velocity of the two nodes along the three axes.
    axes : (B, E, 3) each: tangent t, n = (t x z) x t (upward across the edge), b = t x z (sideways). n and b have the
        length of the tangent's horizontal part, so nothing jumps where an edge is upright.
    """

    numbers: Tensor
    axes: tuple[Tensor, Tensor, Tensor]

    def vectors(self, components: Tensor) -> Tensor:
        """Return the vectors (B, E, 3) that have these components (B, E, 3) along the axes."""
        first, second, third = components.split(1, dim=-1)
        t, n, b = self.axes
        return first * t + second * n + third * b  # products of small matrices are slow, on a GPU above all


def edge_features(x: Tensor, u: Tensor, edges: Tensor, rest_length: Tensor, speed: float) -> EdgeFeatures:
    """Return the features of edges at positions x and velocities u (B, N, 3); z is up.

    Parameters
    ----------
    edges : (E, 2) node indices; rest_length : (..., E) [m].
    speed : speed that counts as one [m/s].
    """
    i, j = edges[:, 0], edges[:, 1]
    return features_between((x[:, i], x[:, j]), (u[:, i], u[:, j]), rest_length, speed)


def features_between(
    x: tuple[Tensor, Tensor], u: tuple[Tensor, Tensor], rest_length: Tensor, speed: float
) -> EdgeFeatures:
    """Return the features of edges from the positions x and velocities u (B, E, 3) of their first and second nodes.

    Reversing an edge changes the signs of the slope, of t and b, of mean velocities along t and b, and of the relative
    velocity along n. A network that is to be independent of the direction of edges has to see both.
    """
    e = x[1] - x[0]
    length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
    t = e / length
    up = torch.zeros_like(t)
    up[..., 2] = 1
    b = torch.linalg.cross(t, up)
    axes = (t, torch.linalg.cross(b, t), b)
    mean, relative = 0.5 * (u[0] + u[1]) / speed, (u[1] - u[0]) / speed
    stretch = STRETCH * (length / rest_length.unsqueeze(-1) - 1)
    along = [(axis * v).sum(-1, keepdim=True) for v in (mean, relative) for axis in axes]
    return EdgeFeatures(torch.cat([t[..., 2:], stretch, *along], dim=-1), axes)

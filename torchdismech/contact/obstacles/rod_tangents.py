"""The tangents of rods at the points that touch an obstacle, for friction that is another along them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.obstacles.touch_points import TouchPoints
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body

__all__ = ["RodTangents"]


class RodTangents(nn.Module):
    """The tangents at the points of an obstacle, where these lie on rods.

    At a node between two edges that is the mean of both, at an end and on an edge that of the edge. Where two rods meet
    head to head, or tail to tail, they have an axis in common, that of the first, and no direction. Elsewhere there is
    none: where more edges meet, and on shells.

    Parameters
    ----------
    body : of the robot.
    points : that touch.

    Attributes
    ----------
    edges : (P, 2) rod edges of each point, twice the same where there is one.
    signs : (P, 2) 1, or -1 where the second edge goes against the first.
    on_rods : (P,) bool, which points have an axis.
    """

    edges: Tensor
    signs: Tensor
    on_rods: Tensor

    def __init__(self, body: Body, points: TouchPoints):
        super().__init__()
        found = _edges_of_points(body, points)
        edges, on_rods = [(0, 0) if both is None else both[:2] for both in found], [both is not None for both in found]
        second = [1.0 if both is None else both[2] for both in found]
        self.register_buffer("edges", torch.tensor(edges, device="cpu"), persistent=False)
        self.register_buffer("on_rods", torch.tensor(on_rods, device="cpu"), persistent=False)
        signs = torch.tensor([(1.0, sign) for sign in second], dtype=torch.float64, device="cpu")
        self.register_buffer("signs", signs, persistent=False)

    def axes(self, tangent: Tensor) -> Tensor:
        """Return the axes (B, P, 3) at the points, unit vectors, or zero, from the tangents of edges (B, A, 3)."""
        ends = (tangent[:, self.edges[:, k]].permute(2, 1, 0) for k in range(2))
        there = self.on_rods.to(tangent.dtype)[:, None]
        return _MEAN_DIRECTION(len(self.edges), *ends, self.signs[:, 1:], there).permute(2, 1, 0)

    def directions(self, axes: Tensor) -> Tensor:
        """Return the axes (B, P, 3) where rods have a direction, else zero."""
        return torch.where((self.signs[:, 1] > 0)[:, None], axes, 0.0)


def _mean_direction(first: Tensor, second: Tensor, sign: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """Return the mean directions of unit vectors, by components, and zero where `there` is 0 or they cancel out.

    `sign` is -1 where the second one counts the other way round.
    """
    both = Vec3(*first.unbind(0)) + Vec3(*second.unbind(0)).times(sign)
    square = both.dot(both)
    some = (there > 0) & (square > 0)
    return both.times(torch.where(some, 1 / torch.sqrt(torch.where(some, square, 1.0)), 0.0)).components()


_MEAN_DIRECTION = Fused(_mean_direction, "tangents of rods that touch")


def _edges_of_points(body: Body, points: TouchPoints) -> list[tuple[int, int, float] | None]:
    """Return the two rod edges of each point that give it an axis, or twice its only one, and a sign; None without.

    The sign is -1 where the second edge goes against the first.
    """
    of_nodes = _edges_of_nodes(body.rod_edges, body.n_nodes)
    of_links = {frozenset(link): (edge, edge, 1.0) for edge, link in enumerate(body.rod_edges.tolist())}
    found = []
    for nodes, weights in zip(points.nodes.tolist(), points.weights.tolist(), strict=True):
        between = [node for node, weight in zip(nodes, weights, strict=True) if weight > 0]
        found.append(of_nodes[between[0]] if len(between) == 1 else of_links.get(frozenset(between)))
    return found


def _edges_of_nodes(rod_edges: np.ndarray, n_nodes: int) -> list[tuple[int, int, float] | None]:
    """Return both edges of each node with their sign, or its only one; None where there are none, or more."""
    meeting: list[list[tuple[int, float]]] = [[] for _ in range(n_nodes)]
    for edge, (start, end) in enumerate(rod_edges.tolist()):
        meeting[start].append((edge, -1.0))
        meeting[end].append((edge, 1.0))
    found: list[tuple[int, int, float] | None] = []
    for edges in meeting:
        (first, into), (second, out) = (edges[0], edges[-1]) if edges else ((0, 0.0), (0, 0.0))
        sign = 1.0 if len(edges) == 1 else -into * out
        found.append((first, second, sign) if len(edges) in (1, 2) else None)
    return found

"""The tangents of rods at the points that touch an obstacle, for friction along rods and for rolling."""

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
    """The axes and directions of rods at the points of an obstacle.

    A point on an edge, or at a rod's end, has the edge's tangent as its *axis*, a node between two edges the mean
    direction of both. Where both edges point the same way, the axis is a *direction*, too, in which forward and
    backward differ. Where two rods meet head to head or tail to tail, there is an axis, oriented as the first edge, but
    no direction. Nodes where more edges meet, and points on shells, have neither.

    Parameters
    ----------
    body : of the robot.
    points : the points that touch.

    Attributes
    ----------
    edges : (P, 2) rod edges of each point, the same one twice where there is only one.
    signs : (P, 2) 1, or for the second edge -1 where it points against the first.
    on_rods : (P,) bool, which points have an axis.
    """

    edges: Tensor
    signs: Tensor
    on_rods: Tensor

    def __init__(self, body: Body, points: TouchPoints):
        super().__init__()
        found = _edges_of_points(body, points)
        on_rods = [edges is not None for edges in found]
        first, second, signs = zip(*((0, 0, 1.0) if edges is None else edges for edges in found), strict=True)
        self.register_buffer("edges", torch.tensor([first, second], device="cpu").t().contiguous(), persistent=False)
        self.register_buffer("on_rods", torch.tensor(on_rods, device="cpu"), persistent=False)
        of_both = torch.tensor([[1.0, sign] for sign in signs], dtype=torch.float64, device="cpu")
        self.register_buffer("signs", of_both, persistent=False)

    def axes(self, tangent: Tensor) -> Tensor:
        """Return the axes (B, P, 3) at the points, unit vectors or zero, from the tangents (B, A, 3) of edges."""
        ends = (tangent[:, self.edges[:, k]].permute(2, 1, 0) for k in range(2))
        on_rods = self.on_rods.to(tangent.dtype)[:, None]
        return _MEAN_DIRECTION(len(self.edges), *ends, self.signs[:, 1:], on_rods).permute(2, 1, 0)

    def directions(self, axes: Tensor) -> Tensor:
        """Return the axes (B, P, 3) with zero where a rod has no direction."""
        return torch.where((self.signs[:, 1] > 0)[:, None], axes, 0.0)


def _mean_direction(first: Tensor, second: Tensor, sign: Tensor, on_rods: Tensor) -> tuple[Tensor, ...]:
    """Return the mean directions of two unit vectors, by components; zero where `on_rods` is 0 or they cancel out.

    `sign` is -1 where the second vector is to be reversed.
    """
    both = Vec3(*first.unbind(0)) + Vec3(*second.unbind(0)).times(sign)
    square = both.dot(both)
    has_direction = (on_rods > 0) & (square > 0)
    return both.times(
        torch.where(has_direction, 1 / torch.sqrt(torch.where(has_direction, square, 1.0)), 0.0)
    ).components()


_MEAN_DIRECTION = Fused(_mean_direction, "tangents of rods that touch")


def _edges_of_points(body: Body, points: TouchPoints) -> list[tuple[int, int, float] | None]:
    """Return for each point its two rod edges, or its only one twice, and a sign; None for points without an axis.

    The sign is -1 where the second edge points against the first.
    """
    of_nodes = _edges_of_nodes(body.rod_edges, body.n_nodes)
    of_links = {frozenset(link): (edge, edge, 1.0) for edge, link in enumerate(body.rod_edges.tolist())}
    edges = []
    for nodes, weights in zip(points.nodes.tolist(), points.weights.tolist(), strict=True):
        between = [node for node, weight in zip(nodes, weights, strict=True) if weight > 0]
        edges.append(of_nodes[between[0]] if len(between) == 1 else of_links.get(frozenset(between)))
    return edges


def _edges_of_nodes(rod_edges: np.ndarray, n_nodes: int) -> list[tuple[int, int, float] | None]:
    """Return for each node its two rod edges, or its only one twice, and the sign as in `_edges_of_points`.

    None for nodes with no rod edge, or more than two.
    """
    meeting: list[list[tuple[int, float]]] = [[] for _ in range(n_nodes)]
    for edge, (start, end) in enumerate(rod_edges.tolist()):
        meeting[start].append((edge, -1.0))
        meeting[end].append((edge, 1.0))
    edges_of_nodes: list[tuple[int, int, float] | None] = []
    for edges in meeting:
        (first, into), (second, out) = (edges[0], edges[-1]) if edges else ((0, 0.0), (0, 0.0))
        sign = 1.0 if len(edges) == 1 else -into * out
        edges_of_nodes.append((first, second, sign) if len(edges) in (1, 2) else None)
    return edges_of_nodes

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

    At a node between two edges, of which one goes on where the other ends, that is the mean direction of both; at an
    end and on an edge it is that of the edge. Elsewhere there is none: where rods meet in another way, and on shells.

    Parameters
    ----------
    body : of the robot.
    points : that touch.

    Attributes
    ----------
    edges : (P, 2) rod edges of each point, twice the same where there is one.
    on_rods : (P,) bool, which points have a tangent.
    """

    edges: Tensor
    on_rods: Tensor

    def __init__(self, body: Body, points: TouchPoints):
        super().__init__()
        found = _edges_of_points(body, points)
        edges, on_rods = [both or (0, 0) for both in found], [both is not None for both in found]
        self.register_buffer("edges", torch.tensor(edges, device="cpu"), persistent=False)
        self.register_buffer("on_rods", torch.tensor(on_rods, device="cpu"), persistent=False)

    def of(self, tangent: Tensor) -> Tensor:
        """Return the unit tangents (B, P, 3) of the points, zero where there is none, from those of edges (B, A, 3)."""
        ends = (tangent[:, self.edges[:, k]].permute(2, 1, 0) for k in range(2))
        there = self.on_rods.to(tangent.dtype)[:, None]
        return _MEAN_DIRECTION(len(self.edges), *ends, there).permute(2, 1, 0)


def _mean_direction(first: Tensor, second: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """Return the mean directions of unit vectors, by components, and zero where `there` is 0 or they cancel out."""
    both = Vec3(*first.unbind(0)) + Vec3(*second.unbind(0))
    square = both.dot(both)
    some = (there > 0) & (square > 0)
    return both.times(torch.where(some, 1 / torch.sqrt(torch.where(some, square, 1.0)), 0.0)).components()


_MEAN_DIRECTION = Fused(_mean_direction, "tangents of rods that touch")


def _edges_of_points(body: Body, points: TouchPoints) -> list[tuple[int, int] | None]:
    """Return the two rod edges of each point that give it a direction, or twice its only one; None without."""
    of_nodes = _edges_of_nodes(body.rod_edges, body.n_nodes)
    of_links = {frozenset(link): (edge, edge) for edge, link in enumerate(body.rod_edges.tolist())}
    found = []
    for nodes, weights in zip(points.nodes.tolist(), points.weights.tolist(), strict=True):
        between = [node for node, weight in zip(nodes, weights, strict=True) if weight > 0]
        found.append(of_nodes[between[0]] if len(between) == 1 else of_links.get(frozenset(between)))
    return found


def _edges_of_nodes(rod_edges: np.ndarray, n_nodes: int) -> list[tuple[int, int] | None]:
    """Return the edge that ends at each node and the one that begins there, or twice the only one; None for others."""
    into: list[list[int]] = [[] for _ in range(n_nodes)]
    out: list[list[int]] = [[] for _ in range(n_nodes)]
    for edge, (start, end) in enumerate(rod_edges.tolist()):
        out[start].append(edge)
        into[end].append(edge)
    found: list[tuple[int, int] | None] = []
    for before, after in zip(into, out, strict=True):
        one_way = max(len(before), len(after)) == 1
        found.append(((before or after)[0], (after or before)[0]) if one_way else None)
    return found

"""Points, edges and triangles of a robot, and which of them may touch in a step: by their boxes, then by distances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.pairs.broad_phase import overlapping
from torchdismech.contact.pairs.neighbours import Neighbours
from torchdismech.contact.pairs.pair_calls import pair_values
from torchdismech.contact.pairs.pair_loops import FIRST, STRAIGHT, Kernel, vectors
from torchdismech.contact.pairs.pairs import Listed
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3

__all__ = ["BoxPairs", "NearPairs", "Primitives", "box_pairs", "moving", "near_pairs", "spare_distance"]


class Primitives(nn.Module):
    """Points, edges or triangles of a robot that a contact is for, with the radii of their surfaces.

    Parameters
    ----------
    nodes : (L, k) of all that the robot has.
    radius : (L,), (1, L) or (B, L) [m].
    kind : (L,) their kinds among the pairs that the contact rules (see `scopes`).
    chosen : (M,) those that the contact is for.
    """

    per_robot = ("radius",)
    nodes: Tensor
    corners: Tensor
    radius: Tensor
    kind: Tensor

    def __init__(self, nodes: np.ndarray, radius: Tensor, kind: np.ndarray, chosen: np.ndarray):
        super().__init__()
        self.register_buffer("nodes", torch.as_tensor(nodes[chosen], device="cpu"), persistent=False)  # (M, k)
        self.register_buffer("corners", self.nodes.t().flatten(), persistent=False)  # (k M,), the first of each first
        self.register_buffer("radius", radius[..., chosen], persistent=False)  # (M,), (1, M) or (B, M)
        self.register_buffer("kind", torch.as_tensor(kind[chosen], device="cpu"), persistent=False)  # (M,)

    def boxes(self, low: Tensor, high: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes (B, M, 3) about the surfaces, grown by `more`, while the nodes stay in boxes (B, N, 3)."""
        grown = (self.radius + more).unsqueeze(-1)
        return self._of_corners(torch.minimum, low) - grown, self._of_corners(torch.maximum, high) + grown

    def _of_corners(self, function: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the least or largest numbers (B, M, 3) of each primitive's nodes, which are at x (B, N, 3)."""
        count, corners = self.nodes.shape
        return reduce(function, x.index_select(1, self.corners).unflatten(1, (corners, count)).unbind(1))

    def radii(self, robot: Tensor, index: Tensor) -> Tensor:
        """Return the radii (K,) of primitives of robots."""
        if self.radius.dim() == 1:
            return self.radius.index_select(0, index)
        return self.radius[robot % len(self.radius), index]


class BoxPairs(NamedTuple):
    """Pairs of primitives whose boxes overlap, by robot: (K,) each.

    Attributes
    ----------
    robot : number of the robot.
    first, second : numbers of the primitives.
    reach : the sum of the two radii [m].
    """

    robot: Tensor
    first: Tensor
    second: Tensor
    reach: Tensor


class NearPairs(NamedTuple):
    """Pairs that may touch in a step.

    Attributes
    ----------
    listed : robots and nodes.
    reach : (K,) the sum of the two radii [m].
    goes_on : (4, K) where smooth lines go on, see `geometry.crossing`; None of other pairs.
    """

    listed: Listed
    reach: Tensor
    goes_on: Tensor | None = None

    def chosen(self, which: Tensor) -> NearPairs:
        """Return those that `which` (K,) is true of."""
        numbers = which.nonzero().squeeze(1)  # once: several times as fast as indexing each by `which`
        robot, nodes, reach = (of.index_select(0, numbers) for of in (*self.listed, self.reach))
        goes_on = None if self.goes_on is None else self.goes_on.index_select(1, numbers)
        return NearPairs(Listed(robot, nodes), reach, goes_on)


def box_pairs(
    first: Primitives,
    second: Primitives,
    low: Tensor,
    high: Tensor,
    more: tuple[Tensor, Tensor],
    excluded: Neighbours,
    kind_pairs: Tensor,
) -> BoxPairs:
    """Return the pairs whose boxes overlap while the nodes stay in boxes (B, N, 3).

    Parameters
    ----------
    more : by how much boxes of the first and of the second set are larger than what is in them [m].
    excluded : pairs that never touch.
    kind_pairs : (K, K) whether pairs of two kinds of primitives count.
    """
    boxes = first.boxes(low, high, more[0])
    others: tuple = (None, None) if second is first else second.boxes(low, high, more[1])
    robot, i, j = overlapping(*boxes, others[0], others[1], excluded.keys)
    if (apart := excluded.touching(robot, i * len(second.nodes) + j)) is not None:
        robot, i, j = (of[apart] for of in (robot, i, j))
    if len(kind_pairs) > 1:
        kept = kind_pairs[first.kind[i], second.kind[j]].nonzero().squeeze(1)
        robot, i, j = (of.index_select(0, kept) for of in (robot, i, j))
    return BoxPairs(robot, i, j, first.radii(robot, i) + second.radii(robot, j))


def near_pairs(kernel: Kernel, nodes: Tensor, found: BoxPairs, low: Tensor, high: Tensor, limit: Tensor) -> NearPairs:
    """Return which pairs can get as close as a `limit` (K,): boxes say little of long edges that lie askew.

    Parameters
    ----------
    nodes : (K, 4) of the pairs, two edges or a point and a triangle.
    low, high : (B, N, 3) the boxes that nodes stay in.
    """
    listed = Listed(found.robot, nodes)
    gap = pair_values(_SPARE_DISTANCE[kernel], listed, low.flatten(1), high.flatten(1), [limit])[0]
    return NearPairs(listed, found.reach).chosen(gap <= 0)


def moving(low: Tensor, high: Tensor) -> tuple[tuple[Vec3, ...], list[Tensor]]:
    """Return the middles of nodes' boxes (3 n, C), and how far each node may get from there."""
    ends = tuple(zip(vectors(low), vectors(high), strict=True))
    ways = [b - a for a, b in ends]
    return tuple((a + b).times(0.5) for a, b in ends), [0.5 * torch.sqrt(way.dot(way)) for way in ways]


def spare_distance(kernel: Kernel, middles: tuple[Vec3, ...], rooms: list[Tensor], limit: Tensor) -> Tensor:
    """Return by how much pairs of four nodes stay beyond a limit while each node is as near to a middle as its room.

    A distance changes by no more than the nodes move, so it is enough to know it in the middle.
    """
    first = len(FIRST[kernel])
    distance = torch.sqrt(kernel(*middles).squared_distance(middles))
    return distance - reduce(torch.maximum, rooms[:first]) - reduce(torch.maximum, rooms[first:]) - limit


def _spare_distance(kernel: Kernel, low: Tensor, high: Tensor, limit: Tensor) -> list:
    return [spare_distance(kernel, *moving(low, high), limit)]


_SPARE_DISTANCE = {k: Fused(partial(_spare_distance, k), "distances of pairs") for k in STRAIGHT}

"""Smooth centre lines of rods, and which pairs of edges touch as such lines: those that cross.

Where two lines cross, they have a unique pair of closest points, which moves smoothly as they do. Where they lie along
each other, or bend around each other, there may be several such pairs, or no unique one; there the straight edges
touch, pair by pair. Which pairs cross is decided where a step begins, so that the forces within a step are smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.pairs.pair_calls import pair_values
from torchdismech.contact.pairs.pairs import Listed
from torchdismech.contact.pairs.primitives import BoxPairs, NearPairs, moving, spare_distance
from torchdismech.fused import Fused
from torchdismech.geometry.distances import closest_segments
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body

__all__ = ["STILL_CROSSING", "CentreLines", "node_numbers"]

CROSSING = 0.25  # sin^2 of the least angle between two edges that count as crossing: 30 degrees
ROOM = 2.0  # safety factor of the bound on sin^2 of that angle below which lines may have several closest pairs
FIRST_LINE, SECOND_LINE = (0, 1, 4, 5), (2, 3, 6, 7)  # places of their nodes in the order of `closest_crossing`


class CentreLines(nn.Module):
    """The smooth centre lines of links, one cubic for each; see `geometry.crossing`.

    Parameters
    ----------
    body : of the robot.
    chosen : (M,) numbers of the links to which the contact applies.

    Attributes
    ----------
    nodes : (M, 4) start and end of each link, then the nodes before and after it along the rod; where the line ends
        there, start or end itself.
    """

    nodes: Tensor

    def __init__(self, body: Body, chosen: np.ndarray):
        super().__init__()
        around, links = _nodes_around(body)[chosen], body.links[chosen]
        nodes = np.concatenate([links, np.where(around >= 0, around, links)], axis=1)
        self.register_buffer("nodes", torch.as_tensor(nodes, device="cpu"), persistent=False)
        self._edges: tuple[Listed, Sequence[Tensor]] | None = None

    def bulges(self, low: Tensor, high: Tensor) -> Tensor:
        """Return upper bounds (B, M) [m] of lines' distances from their edges while nodes stay in boxes (B, N, 3)."""
        batch, count = len(low), len(self.nodes)
        edges = self._edges
        if edges is None or not self._is_of(edges, low):
            robot = torch.arange(batch, device=low.device).repeat_interleave(count)
            nodes = self.nodes.repeat(batch, 1)
            edges = self._edges = Listed(robot, nodes), node_numbers(nodes, low)
        listed, numbers = edges
        return pair_values(_BULGES, listed, low.flatten(1), high.flatten(1), numbers)[0].view(batch, count)

    def _is_of(self, edges: tuple[Listed, Sequence[Tensor]], low: Tensor) -> bool:
        """Return whether the kept list of edges is for as many robots as `low` has, and of its dtype and device."""
        listed, (number, *_) = edges
        return len(listed.robot) == len(low) * len(self.nodes) and (number.dtype, number.device) == (
            low.dtype,
            low.device,
        )

    def near_pairs(
        self, overlapping_pairs: BoxPairs, low: Tensor, high: Tensor, tolerance: Tensor, q: Tensor
    ) -> tuple[NearPairs, NearPairs]:
        """Return the pairs of edges whose gap can get down to a tolerance, () or (K,), while nodes stay in boxes.

        First the pairs that touch as straight edges, then those that cross as smooth lines at q. Crossing lines without
        neighbouring edges, which are straight, are among the first.

        Parameters
        ----------
        overlapping_pairs : the pairs whose boxes overlap.
        low, high : (B, N, 3) corners of the nodes' boxes [m].
        q : (B, n) at the start of the step.
        """
        robot, first, second, reach = overlapping_pairs
        listed = Listed(robot, self._of_both(first, second))
        inputs = [reach + tolerance, *node_numbers(listed.nodes, low)]
        gap = pair_values(_SPARE_DISTANCE, listed, low.flatten(1), high.flatten(1), inputs)[0]
        near = NearPairs(listed, reach).chosen(gap <= 0)
        crossing, *_ = rows = pair_values(
            _CROSSING, near.listed, q, q, [near.reach, *node_numbers(near.listed.nodes, low)]
        )
        straight = NearPairs(Listed(near.listed.robot, near.listed.nodes[:, :4]), near.reach).chosen(crossing < 0)
        return straight, NearPairs(near.listed, near.reach, rows[1:]).chosen(crossing > 0)

    def of_pairs(self, listed: Listed) -> tuple[Listed, Tensor, Tensor]:
        """Return pairs of edges as pairs of lines, with 8 nodes, and the numbers (C,) of both lines among these.

        Parameters
        ----------
        listed : pairs of 4 nodes, or already of 8.
        """
        count = 1 + self.nodes.amax()
        keys, order = (self.nodes[:, 0] * count + self.nodes[:, 1]).sort()
        ends = (listed.nodes[:, k] * count + listed.nodes[:, k + 1] for k in (0, 2))
        first, second = (order[torch.searchsorted(keys, key)] for key in ends)
        return Listed(listed.robot, self._of_both(first, second)), first, second

    def _of_both(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the nodes (C, 8) of pairs of lines with these numbers, in the order of `closest_crossing`."""
        a, b = self.nodes.index_select(0, first), self.nodes.index_select(0, second)
        return torch.cat([a[:, :2], b[:, :2], a[:, 2:], b[:, 2:]], dim=1)


def node_numbers(nodes: Tensor, like: Tensor) -> Sequence[Tensor]:
    """Return the node numbers (C, n) as n tensors (C,) of the dtype of `like`, which represents them exactly."""
    return nodes.t().contiguous().to(like.dtype).unbind()


@dataclass(frozen=True)
class _Line:
    """Smooth lines whose nodes are at the centres of their boxes, by components.

    Attributes
    ----------
    edge : from start to end [m].
    bends : second differences of the nodes' positions at both ends [m]; zero where a line ends.
    continues : 1 where the line continues beyond start and beyond end, else 0.
    room : how far any of its nodes may be from the centre of its box [m].
    """

    edge: Vec3
    bends: tuple[Vec3, Vec3]
    continues: tuple[Tensor, Tensor]
    room: Tensor

    @classmethod
    def of(cls, x: Sequence[Vec3], rooms: Sequence[Tensor], numbers: Sequence[Tensor]) -> _Line:
        """Return lines from centres, radii and numbers of their four nodes: start, end, before, after."""
        start, end, before, after = x
        ends = zip(numbers[:2], numbers[2:], strict=True)
        enters, leaves = (torch.where(a == b, torch.zeros_like(a), torch.ones_like(a)) for a, b in ends)
        bends = (before - start.times(2) + end).times(enters), (start - end.times(2) + after).times(leaves)
        return cls(end - start, bends, (enters, leaves), reduce(torch.maximum, rooms))

    @property
    def bulge(self) -> Tensor:
        """An upper bound of the distance between a line and its edge [m].

        It is a twelfth of the larger second difference, which changes by up to four times what the nodes move.
        """
        longest = reduce(torch.maximum, [torch.sqrt(bend.dot(bend)) for bend in self.bends])
        return (longest + 4 * self.room) / 12

    @property
    def curvature(self) -> Tensor:
        """The larger of the curvatures at both ends [1/m]."""
        squared = self.edge.dot(self.edge)
        across = [self.edge.cross(bend) for bend in self.bends]
        return reduce(torch.maximum, [torch.sqrt(by.dot(by)) for by in across]) / (squared * torch.sqrt(squared))


def _bulge(low: Tensor, high: Tensor, *numbers: Tensor) -> list:
    return [_Line.of(*moving(low, high), numbers).bulge]


def _both(low: Tensor, high: Tensor, numbers: Sequence[Tensor]) -> tuple[_Line, _Line]:
    """Return both lines of pairs whose nodes are in boxes (24, C) and have 8 numbers (C,)."""
    middles, rooms = moving(low, high)
    first, second = (
        _Line.of([middles[k] for k in places], [rooms[k] for k in places], [numbers[k] for k in places])
        for places in (FIRST_LINE, SECOND_LINE)
    )
    return first, second


def _spare_distance(low: Tensor, high: Tensor, limit: Tensor, *numbers: Tensor) -> list:
    """Return a lower bound of the distance of two lines less a limit (C,), while nodes stay in boxes (24, C) [m]."""
    middles, rooms = moving(low, high)
    a, b = _both(low, high, numbers)
    return [spare_distance(closest_segments, middles[:4], rooms[:4], limit + a.bulge + b.bulge)]


def _crossing(x: Tensor, _: Tensor, reach: Tensor, *numbers: Tensor) -> list:
    """Return whether pairs of lines cross, 1 or -1, and four `continues`.

    They cross if the angle theta between them is above 30 degrees and large enough for a unique closest pair, and at
    least one continues beyond its edge, as two lines that do not are straight. The closest pair is unique where
    sin^2 theta is larger than their distance, here the `reach`, times the sum of their curvatures; `ROOM` times as much
    is asked for. Lines that share a node do not cross.

    Parameters
    ----------
    x : (24, C) nodes in the order of `closest_crossing`.
    numbers : 8 (C,) numbers of the nodes.
    """
    a, b = _both(x, x, numbers)
    across = a.edge.cross(b.edge)
    turned = across.dot(across) / (a.edge.dot(a.edge) * b.edge.dot(b.edge))
    bound = ROOM * reach * (a.curvature + b.curvature)
    apart = (turned > bound) & (turned > CROSSING)
    for i in FIRST_LINE:
        for j in SECOND_LINE:
            apart = apart & ~(numbers[i] == numbers[j])
    curved = apart & (a.continues[0] + a.continues[1] + b.continues[0] + b.continues[1] > 0)
    one = torch.ones_like(turned)
    return [torch.where(curved, one, -one), *a.continues, *b.continues]


def _still_crossing(x: Tensor, _: Tensor, reach: Tensor, crossed: Tensor, *numbers: Tensor) -> list:
    """Return 1 for pairs that cross at x if `crossed` (C,) is 1, and do not if it is -1; else -1."""
    return [crossed * _crossing(x, x, reach, *numbers)[0]]


_BULGES = Fused(_bulge, "bulges of lines")
_SPARE_DISTANCE = Fused(_spare_distance, "distances of lines")
_CROSSING = Fused(_crossing, "lines that cross")
STILL_CROSSING = Fused(_still_crossing, "lines that still cross")


def _nodes_around(body: Body) -> np.ndarray:
    """Return the nodes (L, 2) before and after each link along its rod; -1 where it ends, and for triangles' sides."""
    around = np.full((len(body.links), 2), -1)
    for rod in body.rods:
        count = len(rod.edges)
        before, after = np.full(count, -1), np.full(count, -1)
        before[1:], after[:-1] = rod.nodes[:-2], rod.nodes[2:]
        if rod.closed:
            before[0], after[-1] = rod.nodes[-2], rod.nodes[1]
        forward = (rod.signs > 0)[:, None]
        is_rod_edge = rod.edges < body.n_edges
        both = np.where(forward, np.stack([before, after], 1), np.stack([after, before], 1))
        around[rod.edges[is_rod_edge]] = both[is_rod_edge]
    return around

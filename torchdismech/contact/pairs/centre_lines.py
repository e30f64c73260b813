"""Which rod edges are smooth centre lines, and which pairs of edges touch as such: those that cross.

Where two lines cross, one pair of points is closest, and where it is changes smoothly as they move. Where they lie
along each other, or bend around each other, there may be several or none that is unique; there the straight edges
touch, pair by pair. Which pairs cross is decided before a step, so that the forces within a step are smooth.
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

__all__ = ["CentreLines"]

CROSSING = 0.25  # sin^2 of the angle between two edges above which they may cross: 30 degrees
ROOM = 2.0  # how many times as far as in the limit edges have to be from having several closest pairs


class CentreLines(nn.Module):
    """The smooth lines of rods, edge by edge; see `geometry.crossing`.

    Parameters
    ----------
    body : of the robot.
    chosen : (M,) numbers of the links that are meant.
    """

    nodes: Tensor

    def __init__(self, body: Body, chosen: np.ndarray):
        super().__init__()
        around, links = _nodes_around(body)[chosen], body.links[chosen]
        # before and after where a line ends stands the end itself
        nodes = np.concatenate([links, np.where(around >= 0, around, links)], axis=1)
        # (M, 4) start, end, before, after
        self.register_buffer("nodes", torch.as_tensor(nodes, device="cpu"), persistent=False)
        self._edges: tuple[Listed, Sequence[Tensor]] | None = None

    def bulges(self, low: Tensor, high: Tensor) -> Tensor:
        """Return how far (B, M) lines may be from their edges while nodes stay in boxes (B, N, 3) [m]."""
        batch, count = len(low), len(self.nodes)
        if self._edges is None or not self._is_of(self._edges, low):
            robot = torch.arange(batch, device=low.device).repeat_interleave(count)
            nodes = self.nodes.repeat(batch, 1)
            self._edges = Listed(robot, nodes), _as_numbers(nodes, low)
        listed, numbers = self._edges
        return pair_values(_BULGES, listed, low.flatten(1), high.flatten(1), numbers)[0].view(batch, count)

    def _is_of(self, edges: tuple[Listed, Sequence[Tensor]], low: Tensor) -> bool:
        """Return whether edges are listed for as many robots, with numbers of the same kind."""
        listed, (number, *_) = edges
        return len(listed.robot) == len(low) * len(self.nodes) and (number.dtype, number.device) == (
            low.dtype,
            low.device,
        )

    def near_pairs(self, found: BoxPairs, low: Tensor, high: Tensor, tolerance: Tensor) -> tuple[NearPairs, NearPairs]:
        """Return which pairs of edges can get as close as a tolerance, () or (K,), while nodes stay in boxes (B, N, 3).

        Those that touch as straight edges, then those that cross as lines of which one at least is curved.
        """
        a, b = self.nodes.index_select(0, found.first), self.nodes.index_select(0, found.second)
        nodes = torch.cat([a[:, :2], b[:, :2], a[:, 2:], b[:, 2:]], dim=1)
        given = [found.reach, found.reach + tolerance, *_as_numbers(nodes, low)]
        listed = Listed(found.robot, nodes)
        gap, crossing, *_ = rows = pair_values(_CROSSING, listed, low.flatten(1), high.flatten(1), given)
        near, crosses = gap <= 0, crossing > 0
        straight = NearPairs(Listed(found.robot, nodes[:, :4]), found.reach).chosen(near & ~crosses)
        return straight, NearPairs(listed, found.reach, rows[2:]).chosen(near & crosses)


def _as_numbers(nodes: Tensor, like: Tensor) -> Sequence[Tensor]:
    """Return the numbers of nodes (C, n) as n columns of real numbers, which they are exactly."""
    return nodes.t().contiguous().to(like.dtype).unbind()


@dataclass(frozen=True)
class _Line:
    """Lines in the middle of the boxes of their nodes, by components.

    Attributes
    ----------
    edge : from start to end [m].
    bends : second differences at both ends [m]; zero where a line ends.
    goes_on : 1 where it goes on beyond start and end, else 0.
    room : how far any of the nodes may get from there [m].
    """

    edge: Vec3
    bends: tuple[Vec3, Vec3]
    goes_on: tuple[Tensor, Tensor]
    room: Tensor

    @classmethod
    def of(cls, x: Sequence[Vec3], rooms: Sequence[Tensor], numbers: Sequence[Tensor]) -> _Line:
        """Return lines of their nodes' places, rooms and numbers: start, end, before, after."""
        start, end, before, after = x
        ends = zip(numbers[:2], numbers[2:], strict=True)
        enters, leaves = (torch.where(a == b, torch.zeros_like(a), torch.ones_like(a)) for a, b in ends)
        bends = (before - start.times(2) + end).times(enters), (start - end.times(2) + after).times(leaves)
        return cls(end - start, bends, (enters, leaves), reduce(torch.maximum, rooms))

    @property
    def bulge(self) -> Tensor:
        """How far they may be from their edges [m].

        That is a twelfth of a second difference, which changes by four times what nodes move.
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


def _crossing(low: Tensor, high: Tensor, reach: Tensor, limit: Tensor, *numbers: Tensor) -> list:
    """Return by how much pairs of lines stay beyond a limit, 1 where they cross, else 0, and where both go on.

    Two lines at the angle theta have one closest pair where sin^2 theta is larger than their distance, about the
    `reach`, times the sum of their curvatures.

    Parameters
    ----------
    low, high : (24, C) boxes of the nodes in the order of `closest_crossing`.
    numbers : 8 (C,), which nodes they are.
    """
    middles, rooms = moving(low, high)
    first, second = (0, 1, 4, 5), (2, 3, 6, 7)
    a, b = (
        _Line.of([middles[k] for k in own], [rooms[k] for k in own], [numbers[k] for k in own])
        for own in (first, second)
    )
    gap = spare_distance(closest_segments, middles[:4], rooms[:4], limit + a.bulge + b.bulge)
    across = a.edge.cross(b.edge)
    turned = across.dot(across) / (a.edge.dot(a.edge) * b.edge.dot(b.edge))
    bound = ROOM * reach * (a.curvature + b.curvature)
    apart = (turned > bound) & (turned > CROSSING)
    for i in first:
        for j in second:
            apart = apart & ~(numbers[i] == numbers[j])
    curved = apart & (a.goes_on[0] + a.goes_on[1] + b.goes_on[0] + b.goes_on[1] > 0)
    return [gap, torch.where(curved, torch.ones_like(gap), torch.zeros_like(gap)), *a.goes_on, *b.goes_on]


_BULGES = Fused(_bulge, "bulges of lines")
_CROSSING = Fused(_crossing, "lines that cross")


def _nodes_around(body: Body) -> np.ndarray:
    """Return the nodes (E + M, 2) before and after each link along its rod; -1 where it ends, and of triangles."""
    around = np.full((len(body.links), 2), -1)
    for rod in body.rods:
        count = len(rod.edges)
        before, after = np.full(count, -1), np.full(count, -1)
        before[1:], after[:-1] = rod.nodes[:-2], rod.nodes[2:]
        if rod.closed:
            before[0], after[-1] = rod.nodes[-2], rod.nodes[1]
        forward = (rod.signs > 0)[:, None]
        own = rod.edges < body.n_edges
        both = np.where(forward, np.stack([before, after], 1), np.stack([after, before], 1))
        around[rod.edges[own]] = both[own]
    return around

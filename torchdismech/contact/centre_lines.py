"""Which rod edges are smooth centre lines, and which pairs of edges touch as such: those that cross.

Where two lines cross, one pair of points is closest, and where it is changes smoothly as they move. Where they lie
along each other, or bend around each other, there may be several or none that is unique; there the straight edges
touch, pair by pair. Which pairs cross is decided before a step, so that the forces within a step are smooth.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body

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
    goes_on: Tensor

    def __init__(self, body: Body, chosen: np.ndarray):
        super().__init__()
        around = _nodes_around(body)[chosen]
        goes_on = around >= 0
        around = np.where(goes_on, around, body.links[chosen])
        nodes = np.concatenate([body.links[chosen], around], axis=1)
        self.register_buffer("nodes", torch.as_tensor(nodes), persistent=False)  # (M, 4) start, end, before, after
        self.register_buffer("goes_on", torch.as_tensor(goes_on), persistent=False)  # (M, 2)

    def bulges(self, middle: Tensor, room: Tensor) -> Tensor:
        """Return how far (B, M) lines may be from their edges while nodes stay within `room` (B, N) of (B, N, 3) [m].

        A twelfth of a second difference, which changes by four times what nodes move.
        """
        bends = torch.linalg.vector_norm(self._bends(middle), dim=-1).amax(2)
        return (bends + 4 * room[:, self.nodes].amax(2)) / 12

    def cross(self, positions: Tensor, robot: Tensor, i: Tensor, j: Tensor, reach: Tensor) -> Tensor:
        """Return which of the pairs (K,) of edges i and j of robots cross, as lines of which one at least is curved.

        Two lines at the angle theta have one closest pair where sin^2 theta is larger than their distance, about the
        `reach` (K,), times the sum of their curvatures.

        Parameters
        ----------
        positions : (B, N, 3) [m].
        """
        edge = positions[:, self.nodes[:, 1]] - positions[:, self.nodes[:, 0]]
        squared = edge.square().sum(-1)
        across = torch.linalg.cross(edge.unsqueeze(2).expand(-1, -1, 2, -1), self._bends(positions))
        curvature = torch.linalg.vector_norm(across, dim=-1).amax(2) / squared**1.5
        e, f = edge[robot, i], edge[robot, j]
        turned = torch.linalg.cross(e, f).square().sum(-1) / (squared[robot, i] * squared[robot, j])
        bound = (ROOM * reach * (curvature[robot, i] + curvature[robot, j])).clamp_min(CROSSING)
        apart = (self.nodes[i].unsqueeze(2) != self.nodes[j].unsqueeze(1)).flatten(1).all(1)
        return (turned > bound) & apart & (self.goes_on[i].any(1) | self.goes_on[j].any(1))

    def _bends(self, positions: Tensor) -> Tensor:
        """Return the second differences (B, M, 2, 3) at both ends of each edge [m], zero where the line ends."""
        start, end, before, after = positions[:, self.nodes].unbind(2)
        differences = torch.stack([before - 2 * start + end, start - 2 * end + after], dim=2)
        return differences * self.goes_on.unsqueeze(-1)

    def of_pairs(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes (K, 8) of pairs of edges, and where their lines go on (K, 4), for `closest_crossing`."""
        a, b = self.nodes[i], self.nodes[j]
        nodes = torch.cat([a[:, :2], b[:, :2], a[:, 2:], b[:, 2:]], dim=1)
        return nodes, torch.cat([self.goes_on[i], self.goes_on[j]], dim=1)


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

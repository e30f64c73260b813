"""Contact of a robot's parts with each other: rods with rods, rods with shells, shells with shells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.contact.broad_phase import adjacent, overlapping, padded
from torchdismech.contact.law import ConstraintLaw, law_of
from torchdismech.contact.pairs import Kernel, PairLoops, PairTable, Touching, distances, touching
from torchdismech.contact.response import Friction, Response, of_robots
from torchdismech.errors import InputError
from torchdismech.geometry.distances import closest_on_triangle, closest_segments

__all__ = ["Pairs", "SelfContact"]

ROUNDING = 0.02  # closest points of parallel edges are told apart well, and distances are 1e-4 of the reach too large
KERNELS: tuple[Kernel, Kernel] = (closest_segments, closest_on_triangle)  # edges with edges, points with triangles


@dataclass(frozen=True)
class Pairs:
    """What may touch in a step: edges with edges, points with triangles.

    Attributes
    ----------
    tables : one of each kind of pairs that the robot has.
    low, high : (B, N, 3) the boxes that the nodes may move in without another pair coming close [m].
    """

    tables: tuple[PairTable, ...]
    low: Tensor
    high: Tensor

    def rows(self, index: Tensor) -> Pairs:
        """Return the pairs of the robots that `index` selects."""
        return Pairs(tuple(table.rows(index) for table in self.tables), self.low[index], self.high[index])

    def cover(self, positions: Tensor) -> Tensor:
        """Return the robots (B,) whose nodes (B, N, 3) are where the pairs are complete."""
        return ((positions >= self.low) & (positions <= self.high)).flatten(1).all(1)


class Primitives(nn.Module):
    """Points, edges or triangles of a robot with the radii of their surfaces."""

    per_robot = ("radius",)
    nodes: Tensor
    radius: Tensor

    def __init__(self, nodes: np.ndarray, radius: Tensor):
        super().__init__()
        self.register_buffer("nodes", torch.as_tensor(nodes), persistent=False)  # (M, k)
        self.register_buffer("radius", radius, persistent=False)  # (M,), (1, M) or (B, M)

    def boxes(self, low: Tensor, high: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes (B, M, 3) about the surfaces, grown by `more`, while the nodes stay in boxes (B, N, 3)."""
        grown = (self.radius + more).unsqueeze(-1)
        return low[:, self.nodes].amin(2) - grown, high[:, self.nodes].amax(2) + grown

    def radii(self, robot: Tensor, index: Tensor) -> Tensor:
        """Return the radii (K,) of primitives of robots."""
        return self.radius[index] if self.radius.dim() == 1 else self.radius[robot % len(self.radius), index]


class SelfContact(nn.Module):
    """Contact between the parts of a robot.

    Every rod edge and every side of a triangle may touch every other, and every node every triangle, but for those
    that are neighbours. Surfaces are those of capsules about the edges and of triangles with half the shell's
    thickness to each side. Each pair has a potential of its own: where two surfaces lie on each other, the stiffness
    adds up over the pairs that are close.

    Parameters
    ----------
    response, friction : the law between two surfaces.
    rounding : how far edges are rounded, in parts of the sum of two radii. Edges that lie side by side have no unique
        closest points, so that the force jumps from end to end, and Newton's method finds no root; rounded ones meet
        in the middle. Distances come out larger by up to rounding^2 / 4 of that sum. 0 for none.
    ring : pairs that are so many edges apart, or less, are neighbours and never touch. By default as many as it takes
        to get out of contact: neighbours on a rod whose edges are shorter than its diameter always overlap.
    """

    body: Body
    _near_edges: Tensor
    _near_triangles: Tensor

    def __init__(
        self,
        response: Response,
        friction: Friction | None = None,
        ring: int | None = None,
        rounding: float = ROUNDING,
    ):
        super().__init__()
        if not 0 <= rounding <= 1:
            raise InputError(f"SelfContact.rounding: expected a number from 0 to 1, got {rounding}")
        self.rounding = float(rounding)
        if ring is not None and ring < 0:
            raise InputError(f"SelfContact.ring: expected 0 or more edges, got {ring}")
        self.law = law_of(response, friction)
        self.ring = ring
        # places for pairs of each kind; kept from step to step, so that shapes change seldom
        self._capacity = dict.fromkeys(KERNELS, 0)
        law = self.law
        self._loops = {} if isinstance(law, ConstraintLaw) else {kernel: PairLoops(kernel, law) for kernel in KERNELS}

    @property
    def symmetric(self) -> bool:
        """Whether the derivative of the forces is a symmetric matrix."""
        return self.constrained or self.law.friction is None

    @property
    def constrained(self) -> bool:
        """Whether it is a constraint, and no force: the integrator finds its loads."""
        return isinstance(self.law, ConstraintLaw)

    def bind(self, body: Body) -> None:
        """Learn the robot; find which of its parts are neighbours."""
        if hasattr(self, "body"):
            raise InputError("SelfContact: belongs to another model already; make a new one for each model")
        self.body = body
        rod, side = body.edge_contact_radius, body.side_contact_radius()
        lead = max(rod.shape[:-1], side.shape[:-1], key=len)
        radius = torch.cat([rod.expand(*lead, -1), side.expand(*lead, -1)], dim=-1)
        self.edges = Primitives(body.links, radius)
        self.points = Primitives(np.arange(body.n_nodes)[:, None], body.node_contact_radius())
        self.triangles = Primitives(body.triangles, body.face_contact_radius)
        ring = self._neighbours() if self.ring is None else self.ring
        self.register_buffer("_near_edges", adjacent(body.links, None, body.links, ring), persistent=False)
        near = adjacent(self.points.nodes.numpy(), body.triangles, body.links, ring)
        self.register_buffer("_near_triangles", near, persistent=False)

    def _neighbours(self) -> int:
        """Return how many edges apart parts have to be, beyond the next, to be out of contact on a straight rod."""
        lengths = torch.cat([self.body.edge_length.flatten(), self.body.shell_edge_length.flatten()])
        reach = 2 * self.points.radius.max() + self.law.response.tolerance.max()
        return int(torch.ceil(reach / lengths.min()).item()) - 1

    # ---- broad phase -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def pairs(self, start: Tensor, end: Tensor, slack: Tensor) -> Pairs:
        """Return what may touch while the nodes move from `start` to `end` (B, N, 3) and up to `slack` (B,) beside."""
        margin = slack.view(-1, 1, 1)
        low, high = torch.minimum(start, end) - margin, torch.maximum(start, end) + margin
        tables = [self._table(closest_segments, low, high, self.edges, self.edges, self._near_edges)]
        if len(self.triangles.nodes):
            near = self._near_triangles
            tables.append(self._table(closest_on_triangle, low, high, self.points, self.triangles, near))
        return Pairs(tuple(tables), low, high)

    def _table(
        self, kernel: Kernel, low: Tensor, high: Tensor, first: Primitives, second: Primitives, near: Tensor
    ) -> PairTable:
        """Return the pairs of primitives that may touch while the nodes stay in their boxes (B, N, 3)."""
        batch, half = low.shape[0], 0.5 * self.law.response.tolerance
        boxes = first.boxes(low, high, half)
        others = (None, None) if second is first else second.boxes(low, high, half)
        robot, i, j = overlapping(*boxes, others[0], others[1], near)
        nodes = torch.cat([first.nodes[i], second.nodes[j]], dim=-1)
        reach = first.radii(robot, i) + second.radii(robot, j)
        close = self._close(kernel, low, high, robot, nodes, reach)
        robot, i, j, nodes, reach = (x[close] for x in (robot, i, j, nodes, reach))
        index, filled = padded(robot, i, j, batch, self._capacity[kernel])
        self._capacity[kernel] = index.shape[1]
        rounding = self.rounding if kernel is closest_segments else 0.0
        table = PairTable(kernel, index.new_zeros(*filled.shape, 4), low.new_zeros(filled.shape), filled, rounding)
        table.nodes[filled], table.reach[filled] = nodes, reach
        return table

    def _close(self, kernel: Kernel, low, high, robot: Tensor, nodes: Tensor, reach: Tensor) -> Tensor:
        """Return which of the pairs (K,) can get into contact: boxes say little of long edges that lie askew.

        A distance changes by no more than the nodes move, so it is enough to know it in the middle of their boxes.
        """
        middle, room = 0.5 * (low + high), 0.5 * torch.linalg.vector_norm(high - low, dim=-1)
        x = middle[robot[:, None], nodes]  # (K, 4, 3)
        rooms, split = room[robot[:, None], nodes], 2 if kernel is closest_segments else 1
        moves = rooms[:, :split].amax(1) + rooms[:, split:].amax(1)
        tolerance = of_robots(self.law.response.tolerance, robot)
        return distances(kernel, x.flatten(1).t()) <= reach + tolerance + moves

    # ---- forces ------------------------------------------------------------------------------------------------

    def touching(self, pairs: Pairs, q: Tensor, velocity: Tensor) -> list[Touching]:
        """Return the pairs that touch at q (B, n) and a velocity (B, n), of each kind of which some may.

        None of a constraint.
        """
        if isinstance(self.law, ConstraintLaw):
            return []
        constants = self.law.constants
        return [
            touching(self._loops[table.kernel], table, q, velocity, constants) for table in pairs.tables if len(table)
        ]

    def force(self, pairs: Pairs, q: Tensor, velocity: Tensor) -> Tensor:
        """Return the force (B, n) [N]; zero of a constraint."""
        total = torch.zeros_like(q)
        for found in self.touching(pairs, q, velocity):
            total = total + summed(found, found.force(), q)
        return total

    def smallest_gap(self, pairs: Pairs, q: Tensor) -> Tensor:
        """Return the smallest gap (B,) between parts at q (B, n) [m], no larger than the tolerance."""
        gap = self.law.response.tolerance.reshape(-1).expand(len(q)).clone()
        for found in self.touching(pairs, q, torch.zeros_like(q)):
            gap = gap.scatter_reduce(0, found.robot, found.gap, "amin")
        return gap

    def energy(self, pairs: Pairs, q: Tensor) -> Tensor:
        """Return the potential (B,) of the normal forces [J]."""
        total = q.new_zeros(q.shape[0])
        if isinstance(self.law, ConstraintLaw):
            return total
        for found in self.touching(pairs, q, torch.zeros_like(q)):
            total = total.index_add(0, found.robot, self.law.energy(found.gap, found.constants))
        return total


def summed(found: Touching, force: Tensor, q: Tensor) -> Tensor:
    """Return the forces (12, A) on the nodes of pairs, summed at the dofs (B, n)."""
    batch, n = q.shape
    index = found.robot * n + found.table.dofs[:, found.chosen]
    # index_put sums in a fixed order on every device; index_add does not
    total = q.new_zeros(batch * n).index_put((index.flatten(),), force.flatten(), accumulate=True)
    return total.view(batch, n)

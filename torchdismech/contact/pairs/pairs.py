"""Pairs of primitives that may touch in a step, and the forces between those that do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.law import LawConstants
from torchdismech.contact.pairs.pair_loops import FIXED, ROW_OF_GAP, ROW_OF_SHARE, Kernel, PairLoops
from torchdismech.geometry.distances import Closest
from torchdismech.geometry.vec3 import Vec3

__all__ = ["Listed", "PairBlocks", "PairTable", "Pairs", "Touching", "numbers_at", "touching"]

# What is known of pairs has at least so many slots for each robot, or its part of `OF_MANY` where robots are many: as
# pairs come and go its shape stays, and with it what is recorded.
FEWEST_SLOTS, OF_MANY = 32, 256


class Listed(NamedTuple):
    """Pairs one after the other: the robot (C,) and the nodes (C, n) of each."""

    robot: Tensor
    nodes: Tensor

    @property
    def dofs(self) -> Tensor:
        """Coordinates (3 n, C) of the nodes of each pair, as numbers in q of one robot."""
        nodes = self.nodes.t()
        return (3 * nodes.unsqueeze(1) + torch.arange(3, device=nodes.device)[:, None]).flatten(0, 1)

    def flat_dofs(self, size: int) -> Tensor:
        """Return where the coordinates (3 n, C) stand in vectors (B, size) of all robots, one after the other."""
        return self.robot * size + self.dofs

    def gathered(self, vector: Tensor) -> Tensor:
        """Return the nodes' coordinates (3 n, C) in a vector (B, size) of all robots."""
        return numbers_at(self.flat_dofs(vector.shape[1]), vector)


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of one kind that may touch within a step, robot by robot. What is known of them has P slots a robot.

    Attributes
    ----------
    kernel : finds closest points of the kind.
    listed : robots, and nodes in the order of the kernel, 4 or 8.
    reaches : (C,) the sum of the two radii of each pair [m].
    slot : (C,) number of each pair among those of its robot.
    shape : number of robots, B, and of slots, P.
    rounding : of edges, in parts of the reach; see `geometry.distances`.
    contact : number of the contact that rules them, among those of the robot's parts.
    goes_on : (4, C) where smooth lines go on, see `geometry.crossing`; None of other kinds.
    sums : the pairs bound to compiled code, by the loops that it calls; see `pair_sums.PairSums`.
    """

    kernel: Kernel
    listed: Listed
    reaches: Tensor
    slot: Tensor
    shape: tuple[int, int]
    rounding: float = 0.0
    contact: int = 0
    goes_on: Tensor | None = None
    sums: dict[PairLoops, Any] = field(default_factory=dict, init=False, repr=False)
    _flat: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        listed: Listed,
        reaches: Tensor,
        batch: int,
        rounding: float = 0.0,
        contact: int = 0,
        goes_on: Tensor | None = None,
    ) -> PairTable:
        """Return the table of pairs of a batch of robots, which come robot by robot."""
        numbers = torch.arange(len(listed.robot), device=reaches.device)
        slot = numbers
        if batch > 1:
            starts = torch.searchsorted(listed.robot, torch.arange(batch, device=reaches.device))
            slot = numbers - starts.index_select(0, listed.robot)
        most = int(slot.amax()) + 1 if len(slot) else 0
        # by doublings: what is recorded for so many slots serves the next steps, too
        slots = max(min(FEWEST_SLOTS, OF_MANY // batch), 1 << max(most - 1, 0).bit_length())
        return cls(kernel, listed, reaches, slot, (batch, slots), rounding, contact, goes_on)

    def __len__(self) -> int:
        return len(self.reaches)

    def rows(self, index: Tensor) -> PairTable:
        """Return the table of the robots that `index` selects; each pair keeps its slot."""
        numbers = torch.full(self.shape, -1, device=self.slot.device)
        numbers[self.slots] = torch.arange(len(self), device=self.slot.device)
        numbers = numbers[index]
        robot, slot = (numbers >= 0).nonzero(as_tuple=True)
        chosen = numbers[robot, slot]
        listed = Listed(robot, self.listed_nodes.index_select(0, chosen))
        goes_on = None if self.goes_on is None else self.goes_on.index_select(1, chosen)
        shape = (len(numbers), self.shape[1])
        reaches = self.reaches.index_select(0, chosen)
        return PairTable(self.kernel, listed, reaches, slot, shape, self.rounding, self.contact, goes_on)

    @property
    def robot(self) -> Tensor:
        """Number (C,) of the robot of each pair."""
        return self.listed.robot

    @property
    def slots(self) -> tuple[Tensor, Tensor]:
        """Robot and slot (C,) of each pair."""
        return self.listed.robot, self.slot

    @property
    def listed_nodes(self) -> Tensor:
        """The nodes (C, n) of each pair."""
        return self.listed.nodes

    @cached_property
    def more(self) -> list[Tensor]:
        """What the kernel takes after the nodes (C,): c^2 [m^2] if edges are rounded, where smooth lines go on."""
        if self.goes_on is not None:
            return list(self.goes_on.unbind())
        return [(self.rounding * self.reaches) ** 2] if self.rounding else []

    def closest(self, nodes: tuple[Vec3, ...]) -> Closest:
        """Return the closest points of all pairs whose nodes are where given."""
        return self.kernel(*nodes, *self.more)

    def gathered(self, vector: Tensor) -> Tensor:
        """Return the nodes' coordinates (3 n, C) in q, or velocities, of all robots."""
        return numbers_at(self.flat_dofs(vector.shape[1]), vector)

    def flat_dofs(self, size: int) -> Tensor:
        """Return where the coordinates (3 n, C) stand in vectors (B, size) of all robots, one after the other."""
        if size not in self._flat:
            self._flat[size] = self.listed.flat_dofs(size)
        return self._flat[size]


@dataclass(frozen=True)
class Pairs:
    """What may touch in a step: edges with edges, points with triangles.

    Attributes
    ----------
    tables : one of each kind of pairs that the robot has, contact by contact.
    low, high : (B, N, 3) the boxes that the nodes may move in without another pair coming close [m].
    """

    tables: tuple[PairTable, ...]
    low: Tensor
    high: Tensor

    def rows(self, index: Tensor) -> Pairs:
        """Return the pairs of the robots that `index` selects."""
        return Pairs(tuple(table.rows(index) for table in self.tables), self.low[index], self.high[index])

    def of_contacts(self, numbers: Collection[int]) -> Pairs:
        """Return the pairs of the contacts with these numbers alone."""
        return Pairs(tuple(table for table in self.tables if table.contact in numbers), self.low, self.high)

    def cover(self, q: Tensor) -> Tensor:
        """Return the robots (B,) whose nodes are, at q (B, n), where the pairs are complete."""
        low, high = self.low.flatten(1), self.high.flatten(1)
        positions = q[:, : low.shape[1]]
        return ((positions >= low) & (positions <= high)).all(1)


def numbers_at(flat_dofs: Tensor, vector: Tensor) -> Tensor:
    """Return the numbers of a vector (B, n) at some dofs, which are numbered through all robots.

    It is three times as fast as `vector.reshape(-1)[flat_dofs]`.
    """
    return vector.reshape(-1).index_select(0, flat_dofs.view(-1)).view(flat_dofs.shape)


@dataclass(frozen=True)
class Touching:
    """The A pairs of a table whose gap is below the tolerance at some q, and how they lie.

    Attributes
    ----------
    table : of the pairs.
    chosen : (A,) their numbers in the list of the table's pairs.
    flat_dofs : (3 n, A) of their nodes' coordinates in vectors of all robots.
    geometry : (17 + 3 n, A) the rows of `Geometry`.
    nodal_velocity : (3 n, A) [m/s].
    constants : of the law, each () or (A,).
    loops : find forces.
    """

    table: PairTable
    chosen: Tensor
    flat_dofs: Tensor
    geometry: Tensor
    nodal_velocity: Tensor
    constants: LawConstants
    loops: PairLoops

    @property
    def gap(self) -> Tensor:
        """The gaps (A,) [m]."""
        return self.geometry[ROW_OF_GAP]

    @property
    def share(self) -> Tensor:
        """How far (A,) the closest points are the pair's own, 0 to 1."""
        return self.geometry[ROW_OF_SHARE]

    @property
    def robot(self) -> Tensor:
        """Number (A,) of the robot that each pair belongs to."""
        return self.table.robot[self.chosen]

    def summed(self, force: Tensor, q: Tensor) -> Tensor:
        """Return forces (3 n, A) on the nodes of the pairs, summed at the dofs (B, n) of q."""
        # index_put sums in a fixed order on every device; index_add does not
        total = q.new_zeros(q.numel()).index_put((self.flat_dofs.flatten(),), force.flatten(), accumulate=True)
        return total.view(q.shape)

    def summary(self) -> Tensor:
        """Return gaps [m], sizes of the forces between two surfaces [N], and how fast they slide [m/s]: (3, A)."""
        return self.loops.summary.of_columns(self.geometry, *self.constants.tensors())

    def force(self) -> Tensor:
        """Return the forces (3 n, A) on the nodes of each pair [N]."""
        return self.loops.force.of_columns(self.geometry, *self.constants.tensors())

    def force_and_blocks(
        self, position_gain: float, velocity_gain: float | Tensor, tractions: Tensor | None = None
    ) -> tuple[Tensor, PairBlocks]:
        """Return `force` and -position_gain dF/dx - velocity_gain dF/du of it.

        Parameters
        ----------
        tractions : (C, 3) that a search expects of the table's pairs; see `LawFormulas.partials`.
        """
        like = self.geometry
        gains = (torch.as_tensor(gain, dtype=like.dtype, device=like.device) for gain in (position_gain, velocity_gain))
        given = (like, self.nodal_velocity, *gains)
        if tractions is None:
            found = self.loops.derivatives.of_columns(*given, *self.constants.tensors())
        else:
            expected = tractions.index_select(0, self.chosen).t()
            found = self.loops.primal_dual_derivatives.of_columns(*given, expected, *self.constants.tensors())
        n = (len(like) - FIXED) // 3
        force, matrix, left, right = found.split([3 * n, 9, 6 * n, 6 * n])
        left, right = left.view(2, n, 3, -1), right.view(2, n, 3, -1)
        return force, PairBlocks(like[FIXED : FIXED + n], matrix.view(3, 3, -1), left, right)


@dataclass(frozen=True)
class PairBlocks:
    """Derivatives of the nodal forces of A pairs by the nodes' coordinates: w_i w_j M_ab + sum_k l_k,ia r_k,jb.

    Attributes
    ----------
    weights : (n, A) w.
    matrix : (3, 3, A) M.
    left, right : (2, n, 3, A) l and r.
    """

    weights: Tensor
    matrix: Tensor
    left: Tensor
    right: Tensor

    def entries(self, part: slice) -> Tensor:
        """Return the entries (9 n^2, ..) of some of the pairs, in the order (a, b, i, j)."""
        weights = self.weights[:, part]
        left, right = (x[..., part].transpose(1, 2) for x in (self.left, self.right))  # (2, 3, n, ..)
        total = self.matrix[:, :, None, None, part] * (weights.unsqueeze(1) * weights)
        for k in range(2):
            total.addcmul_(left[k, :, None, :, None], right[k, None, :, None, :])
        return total.flatten(0, 3)


def touching(
    loops: PairLoops,
    table: PairTable,
    q: Tensor,
    velocity: Tensor,
    constants: LawConstants,
    chosen: Tensor | None = None,
) -> Touching:
    """Return the pairs of a table that touch at q (B, n).

    Parameters
    ----------
    loops : of the table's kernel.
    velocity : (B, n) [m/s].
    constants : of the law, each () or (B, 1).
    chosen : (A,) where they stand in the list of the table's pairs, if that is known.
    """
    robot = table.robot
    if chosen is None:
        with torch.no_grad():
            given = (table.gathered(q), table.reaches, constants.at(robot).tolerance, *table.more)
            chosen = (loops.slack.of_columns(*given)[0] < 0).nonzero().squeeze(1)
    flat_dofs = table.flat_dofs(q.shape[1]).index_select(1, chosen)
    moving = numbers_at(flat_dofs, velocity)
    of_pairs = (of_all.index_select(0, chosen) for of_all in (table.reaches, *table.more))
    known = (numbers_at(flat_dofs, q), moving, *of_pairs)
    # autograd has to follow the closest points, too
    geometry = (
        torch.stack(loops.differentiable_geometry(*known))
        if torch.is_grad_enabled()
        else loops.geometry.of_columns(*known)
    )
    return Touching(table, chosen, flat_dofs, geometry, moving, constants.at(robot[chosen]), loops)

"""Tables of pairs of primitives that may touch in a step, and forces and derivatives of those that do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.law_formulas import LawConstants
from torchdismech.contact.pairs.node_boxes import NodeBoxes
from torchdismech.contact.pairs.pair_loops import FIRST, FIXED, ROW_OF_GAP, ROW_OF_SHARE, Kernel, PairLoops, vectors
from torchdismech.geometry.distances import Closest
from torchdismech.geometry.vec3 import Vec3

__all__ = ["Listed", "PairBlocks", "PairTable", "Pairs", "Summary", "Touching", "numbers_at", "touching"]

# Tensors of the friction of pairs (B, P, KNOWN) have at least `FEWEST_SLOTS` slots P for each robot, in larger batches
# at least `OF_MANY` for all together. So their shape, and recordings that rely on it, last while pairs come and go.
FEWEST_SLOTS, OF_MANY = 32, 256
FAR = -1e3  # m: reach of pairs that fill a table up, whose gap is so large that they never touch


class Listed(NamedTuple):
    """A list of C pairs: the robot (C,) and the nodes (C, n) of each."""

    robot: Tensor
    nodes: Tensor

    @property
    def dofs(self) -> Tensor:
        """Indices (3 n, C), in the q of one robot, of the coordinates of each pair's nodes."""
        nodes = self.nodes.t()
        return (3 * nodes.unsqueeze(1) + torch.arange(3, device=nodes.device)[:, None]).flatten(0, 1)

    def flat_dofs(self, size: int) -> Tensor:
        """Return the indices (3 n, C) of the nodes' coordinates in flattened vectors (B, size) of all robots."""
        return self.robot * size + self.dofs

    def gathered(self, vector: Tensor) -> Tensor:
        """Return the components (3 n, C) of a vector (B, size) at the nodes of each pair."""
        return numbers_at(self.flat_dofs(vector.shape[1]), vector)


@dataclass(frozen=True, eq=False)
class PairTable:
    """C pairs of one kernel and one contact that may touch within a step, sorted by robot.

    What searches know of the friction of these pairs is stored in tensors (B, P, KNOWN) with P *slots* a robot, of
    which some may be empty.

    Attributes
    ----------
    kernel : the function that finds closest points of such pairs.
    listed : robots, and nodes in the order of the kernel: 4 of each pair, or 8 of smooth lines.
    reaches : (C,) the *reach* of each pair, which is the sum of its two radii [m].
    slot : (C,) the slot of each pair among those of its robot.
    shape : numbers of robots B and of slots P.
    rounding : of edges, in parts of the reach; see `geometry.distances`.
    contact : number of the `SelfContact` that rules the pairs, among those of the robot.
    continues : (4, C) whether smooth lines continue beyond their edges' ends, 1 or 0, as `geometry.crossing` takes it;
        None for other kernels.
    lasts : whether recordings hold the sums over the pairs, and take those of other tables later (`LastingPairs`).
    sums : by loops, the `pair_sums.PairSums` that compiled code uses for these pairs.
    """

    kernel: Kernel
    listed: Listed
    reaches: Tensor
    slot: Tensor
    shape: tuple[int, int]
    rounding: float = 0.0
    contact: int = 0
    continues: Tensor | None = None
    lasts: bool = False
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
        continues: Tensor | None = None,
    ) -> PairTable:
        """Return the table of pairs that are listed robot by robot, for a batch of so many robots."""
        numbers = torch.arange(len(listed.robot), device=reaches.device)
        slot = numbers
        if batch > 1:
            starts = torch.searchsorted(listed.robot, torch.arange(batch, device=reaches.device))
            slot = numbers - starts.index_select(0, listed.robot)
        most = int(slot.amax()) + 1 if len(slot) else 0
        # a power of two, so that the number, and recordings for it, often stay the same in the next steps
        slots = max(min(FEWEST_SLOTS, OF_MANY // batch), 1 << max(most - 1, 0).bit_length())
        return cls(kernel, listed, reaches, slot, (batch, slots), rounding, contact, continues)

    def __len__(self) -> int:
        return len(self.reaches)

    def rows(self, index: Tensor) -> PairTable:
        """Return the table of the robots that `index` selects; each pair keeps its slot."""
        numbers = torch.full(self.shape, -1, device=self.slot.device)
        numbers[self.slots] = torch.arange(len(self), device=self.slot.device)
        numbers = numbers[index]
        robot, slot = (numbers >= 0).nonzero(as_tuple=True)
        chosen = numbers[robot, slot]
        listed = Listed(robot, self.listed.nodes.index_select(0, chosen))
        continues = None if self.continues is None else self.continues.index_select(1, chosen)
        shape = (len(numbers), self.shape[1])
        reaches = self.reaches.index_select(0, chosen)
        return PairTable(self.kernel, listed, reaches, slot, shape, self.rounding, self.contact, continues)

    def filled_up(self, count: int) -> PairTable:
        """Return a table of so many pairs, of which those beyond these never touch; it `lasts`."""
        number = torch.arange(count, device=self.slot.device)
        place = number.clamp_max(max(len(self) - 1, 0))
        listed = Listed(*(tensor.index_select(0, place) for tensor in self.listed))
        reaches = torch.where(number < len(self), self.reaches.index_select(0, place), FAR)
        continues = None if self.continues is None else self.continues.index_select(1, place)
        slot = self.slot.index_select(0, place)
        return replace(self, listed=listed, reaches=reaches, slot=slot, continues=continues, lasts=True)

    def become(self, other: PairTable) -> None:
        """Hold the pairs of another table of the same kind from now on, at most as many, in the same memory."""
        count = len(other)
        self.listed.nodes[:count] = other.listed.nodes
        self.reaches[count:] = FAR
        for kept, new in zip(self._by_pair(), other._by_pair(), strict=True):
            kept[:count] = new
        for size, flat in self._flat.items():
            flat.copy_(self.listed.flat_dofs(size))

    def _by_pair(self) -> list[Tensor]:
        """The tensors (C,) that evaluations read."""
        return [self.listed.robot, self.reaches, *self.kernel_arguments]

    @property
    def touchable(self) -> Tensor:
        """The pairs (C,) bool that do not only fill the table up."""
        return self.reaches > 0

    @property
    def robot(self) -> Tensor:
        """Number (C,) of the robot of each pair."""
        return self.listed.robot

    @property
    def slots(self) -> tuple[Tensor, Tensor]:
        """Robot and slot (C,) of each pair, as an index into tensors (B, P, ..)."""
        return self.listed.robot, self.slot

    @cached_property
    def kernel_arguments(self) -> list[Tensor]:
        """The arguments (C,) that the kernel takes after the nodes: c^2 [m^2] of rounded edges, or `continues`."""
        if self.continues is not None:
            return list(self.continues.unbind())
        return [(self.rounding * self.reaches) ** 2] if self.rounding else []

    def closest(self, nodes: tuple[Vec3, ...]) -> Closest:
        """Return the closest points of all pairs for these positions of their nodes."""
        return self.kernel(*nodes, *self.kernel_arguments)

    @torch.no_grad()
    def gaps(self, q: Tensor) -> Tensor:
        """Return the gaps (C,) [m] of the pairs at q (B, n): the distances of their closest points less their reach."""
        nodes = vectors(self.gathered(q))
        return self.closest(nodes).squared_distance(nodes).sqrt() - self.reaches

    def gathered(self, vector: Tensor) -> Tensor:
        """Return the components (3 n, C) of a vector (B, n_dofs), such as q or velocity, at the nodes of each pair."""
        return numbers_at(self.flat_dofs(vector.shape[1]), vector)

    def flat_dofs(self, size: int) -> Tensor:
        """Return the indices (3 n, C) of the nodes' coordinates in flattened vectors (B, size) of all robots."""
        if size not in self._flat:
            self._flat[size] = self.listed.flat_dofs(size)
        return self._flat[size]


@dataclass(frozen=True)
class Pairs:
    """All pairs that may touch in a step: edges with edges, points with triangles.

    Attributes
    ----------
    tables : for each contact, one table for each kind of its pairs, also if it is empty.
    boxes : of the nodes: while these stay inside, no other pairs can touch.
    """

    tables: tuple[PairTable, ...]
    boxes: NodeBoxes

    def rows(self, index: Tensor) -> Pairs:
        """Return the pairs of the robots that `index` selects."""
        return Pairs(tuple(table.rows(index) for table in self.tables), self.boxes.rows(index))

    def lasting(self) -> Pairs:
        """Return the same pairs in tables of their own, which say that they last."""
        return replace(self, tables=tuple(replace(table, lasts=True) for table in self.tables))

    @property
    def none(self) -> bool:
        """Whether there is no pair."""
        return not any(map(len, self.tables))

    def of_contacts(self, numbers: Collection[int]) -> Pairs:
        """Return the pairs of only those contacts that have these numbers."""
        return replace(self, tables=tuple(table for table in self.tables if table.contact in numbers))

    def robots_with_any(self) -> Tensor:
        """Return the robots (B,) bool that have any pair."""
        has_pair = torch.zeros(len(self.boxes.low), dtype=torch.bool, device=self.boxes.low.device)
        for table in self.tables:
            has_pair[table.robot] = True
        return has_pair


def numbers_at(flat_dofs: Tensor, vector: Tensor) -> Tensor:
    """Return `vector.reshape(-1)[flat_dofs]` for a vector (B, n) and any shape of indices, but three times as fast."""
    return vector.reshape(-1).index_select(0, flat_dofs.view(-1)).view(flat_dofs.shape)


class Summary(NamedTuple):
    """The pairs of a table that touch, for contact reports: of each robot their number, loads and forces.

    Attributes
    ----------
    touching, sliding : (B,) numbers of pairs that touch, and of those that slide.
    penetration : (B,) the largest overlap, 0 without one [m].
    load : (B,) the sum of the sizes of the forces between the two surfaces [N].
    on_dofs : (B, n) the sum of the forces of all pairs [N].
    """

    touching: Tensor
    sliding: Tensor
    penetration: Tensor
    load: Tensor
    on_dofs: Tensor


@dataclass(frozen=True)
class Touching:
    """The A pairs of a table that touch (their gap is below the tolerance) at some q and velocity.

    Their forces and derivatives come pair by pair. Where compiled code can be used, `pair_sums.PairSums` sums them over
    pairs instead.

    Attributes
    ----------
    table : the table of the pairs.
    chosen : (A,) numbers of these pairs in the table.
    flat_dofs : (3 n, A) indices of their nodes' coordinates in flattened vectors of all robots.
    geometry : (17 + 3 n, A) the rows of `pair_loops.Geometry`.
    nodal_velocity : (3 n, A) [m/s].
    constants : of the law, each () or (A,).
    loops : the functions that find forces and derivatives.
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
        """The share (A,) of each pair in its contact, 0 to 1: below 1 where neighbouring smooth lines have the rest."""
        return self.geometry[ROW_OF_SHARE]

    @property
    def robot(self) -> Tensor:
        """Number (A,) of the robot that each pair belongs to."""
        return self.table.robot[self.chosen]

    def summed(self, force: Tensor, q: Tensor) -> Tensor:
        """Return forces (3 n, A) on the nodes of the pairs, summed into a vector (B, n) as q is."""
        # index_put sums in a fixed order on every device; index_add does not
        total = q.new_zeros(q.numel()).index_put((self.flat_dofs.flatten(),), force.flatten(), accumulate=True)
        return total.view(q.shape)

    def summary(self, q: Tensor) -> Summary:
        """Return their number, loads and forces; q (B, n) is where they are evaluated."""
        gap, size, slides = self.loops.summary.of_columns(self.geometry, *self.constants.tensors())
        one = torch.ones_like(gap)
        # index_put sums in a fixed order on every device; index_add does not
        count, sliding, load = (
            q.new_zeros(len(q)).index_put((self.robot,), number, accumulate=True) for number in (one, slides, size)
        )
        deepest = q.new_zeros(len(q)).scatter_reduce(0, self.robot, -gap, "amax")
        return Summary(count.long(), sliding.long(), deepest, load, self.summed(self.force(), q))

    def force(self) -> Tensor:
        """Return the forces (3 n, A) on the nodes of each pair [N]."""
        return self.loops.force.of_columns(self.geometry, *self.constants.tensors())

    def motion_of_others(self, motion: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for the nodes (3 n, A) of pairs that overlap, the motion of the other side's closest point [m].

        Zeros for other pairs. Last come ones (3 n, A) for nodes of pairs that overlap something that moves, else zeros.

        Parameters
        ----------
        motion : (B, n_dofs) of all dofs, from where nothing overlaps.
        """
        n = (len(self.geometry) - FIXED) // 3
        shares = (self.geometry[FIXED : FIXED + n] * (self.gap <= 0)).unsqueeze(1)  # below 0 on the second side
        parts = shares * numbers_at(self.flat_dofs, motion).view(n, 3, -1)
        is_first = torch.zeros(n, 1, 1, dtype=torch.bool, device=motion.device)
        is_first[FIRST[self.table.kernel]] = True
        of_first, of_second = (torch.where(side, parts, 0.0).sum(0) for side in (is_first, ~is_first))
        others = torch.where(is_first, -of_second, of_first)
        moved = (others != 0).any(1, keepdim=True).to(others.dtype).expand_as(others)
        return others.flatten(0, 1), moved.flatten(0, 1)

    def force_and_blocks(
        self, position_gain: float, velocity_gain: float | Tensor, tractions: Tensor | None = None
    ) -> tuple[Tensor, PairBlocks]:
        """Return the forces F (3 n, A) on the nodes, and -position_gain dF/dx - velocity_gain dF/dvelocity.

        Parameters
        ----------
        tractions : (C, 3) estimates for all pairs of the table, for the derivatives of primal-dual steps; see
            `LawFormulas.partials`. None: the exact derivatives.
        """
        like = self.geometry
        gains = (torch.as_tensor(gain, dtype=like.dtype, device=like.device) for gain in (position_gain, velocity_gain))
        inputs = (like, self.nodal_velocity, *gains)
        if tractions is None:
            rows = self.loops.derivatives.of_columns(*inputs, *self.constants.tensors())
        else:
            expected = tractions.index_select(0, self.chosen).t()
            rows = self.loops.primal_dual_derivatives.of_columns(*inputs, expected, *self.constants.tensors())
        n = (len(like) - FIXED) // 3
        force, matrix, left, right = rows.split([3 * n, 9, 6 * n, 6 * n])
        left, right = left.view(2, n, 3, -1), right.view(2, n, 3, -1)
        return force, PairBlocks(like[FIXED : FIXED + n], matrix.view(3, 3, -1), left, right)


@dataclass(frozen=True)
class PairBlocks:
    """Blocks -position_gain dF/dx - velocity_gain dF/dvelocity of the matrix for A pairs, in factors.

    F are the forces on the nodes. The entry for component a of the force on node i, and coordinate b of node j, is
    w_i w_j M_ab + sum_k l_k,ia r_k,jb.

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
        """Return the entries (9 n^2, ..) of the blocks of the pairs in a slice, in the order (a, b, i, j)."""
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
    chosen : (A,) the numbers of the touching pairs in the table, if they are known; None: find them.
    """
    robot = table.robot
    if chosen is None:
        with torch.no_grad():
            inputs = (table.gathered(q), table.reaches, constants.at(robot).tolerance, *table.kernel_arguments)
            chosen = (loops.slack.of_columns(*inputs)[0] < 0).nonzero().squeeze(1)
    flat_dofs = table.flat_dofs(q.shape[1]).index_select(1, chosen)
    nodal_velocity = numbers_at(flat_dofs, velocity)
    of_touching = (of_table.index_select(0, chosen) for of_table in (table.reaches, *table.kernel_arguments))
    inputs_of_touching = (numbers_at(flat_dofs, q), nodal_velocity, *of_touching)
    # with gradients, autograd has to follow how the closest points move, which the kernels do without gradients
    geometry = (
        torch.stack(loops.differentiable_geometry(*inputs_of_touching))
        if torch.is_grad_enabled()
        else loops.geometry.of_columns(*inputs_of_touching)
    )
    return Touching(table, chosen, flat_dofs, geometry, nodal_velocity, constants.at(robot[chosen]), loops)

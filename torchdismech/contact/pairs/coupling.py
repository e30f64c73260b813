"""The matrix of a step in which parts of a robot may touch: its sparsity pattern, and where contact blocks go in it.

Contact couples nodes that no element joins, so the pattern depends on the pairs that may touch in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.pairs.node_blocks import NodeBlocks, block_entries, keys_of_pairs
from torchdismech.contact.pairs.pair_calls import Structure
from torchdismech.contact.pairs.pair_sums import PairSums
from torchdismech.contact.pairs.pairs import PairBlocks, Pairs, PairTable, Touching
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.fused import compiled_code_accepts
from torchdismech.geometry.graphs import neighbours
from torchdismech.native import Pool
from torchdismech.robot.slides import SlidingEntries
from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse import Pattern

__all__ = ["CouplingCache", "StepPairs"]

CHUNK = 4096  # pairs whose blocks torch multiplies out at a time, so that they stay in a processor's cache
MAX_EXCESS = 2  # times the needed pairs of nodes: a pattern that joins more is replaced by one for the needed alone
TIGHT = 2.0  # times the needed pairs of nodes: a pattern that joins no more is as good as one for the needed alone
# If a pattern has served fewer than FEW_STEPS steps of at most FEW_ROBOTS robots, the next one also joins nodes that
# may touch soon. To make a pattern takes 8 ms for a bundle of six rods, whatever the number of robots; the larger
# pattern costs .1 to .4 ms a robot and step, in the factorization.
FEW_STEPS, FEW_ROBOTS = 20, 16
LARGE = 1_000_000  # numbers: the memory of larger matrices is kept, as to allocate it takes as long as to fill it


@dataclass(eq=False)
class Coupling:
    """The sparsity pattern of a step with contact, and where the values of pairs and elements go in it.

    The *base* is the matrix without contact between parts.

    Attributes
    ----------
    pattern : of the matrix with contact.
    solvers : its linear solvers, by device and number of robots.
    solvers_before : those of the pattern before this one.
    base_entries : indices, among the nnz values, of the values of the base.
    from_base : (nnz,) int32, for each value the index of the value of the base as which it begins; -1 for zero.
    node_blocks : where the blocks of pairs of nodes stand.
    pair_blocks : for each table, the numbers of the blocks (C, n^2) of each two nodes of a pair, row by row.
    sliding : projects values for nodes that slide (`robot.slides`); None without such nodes.
    memory : for values.
    """

    pattern: Pattern
    solvers: dict
    solvers_before: dict
    base_entries: IndexMap
    from_base: np.ndarray
    node_blocks: NodeBlocks
    pair_blocks: dict[PairTable, Tensor]
    sliding: SlidingEntries | None
    memory: Pool
    _targets: dict[PairTable, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _summed: dict[int, IndexMap] = field(default_factory=dict, init=False)
    _block_places: dict[PairTable, Structure] = field(default_factory=dict, init=False)

    def of_pairs(self, pairs: Pairs) -> Coupling | None:
        """Return the coupling for other pairs, with the same pattern; None if that lacks a block of theirs."""
        pair_blocks = self.node_blocks.of_tables(pairs)
        return None if pair_blocks is None else replace(self, pair_blocks=pair_blocks)

    def widened(self, values: Tensor) -> Tensor:
        """Return values of the base as values (nnz + 1, B) of this pattern, zero where contact adds entries.

        The last row takes what is not in the matrix.
        """
        wide = values.new_zeros(self.pattern.nnz + 1, values.shape[1])
        return wide.index_copy_(0, self.base_entries.on(values.device), values)

    def unfilled(self, values: Tensor) -> Tensor:
        """Return an uninitialized tensor (nnz + 1, B), of the size that `widened` returns."""
        rows, batch = self.pattern.nnz + 1, values.shape[1]
        if rows * batch < LARGE:
            return values.new_empty(rows, batch)
        return self.memory.numbers(rows * batch, values.dtype).view(rows, batch)

    def block_places(self, table: PairTable) -> Structure:
        """Return where compiled code has to add the blocks of a table's pairs: the structure `Blocks` in `pairs.cpp`.

        Its code first sums the blocks of a robot, then adds these sums to the nnz values. Blocks
        that are not summed are left out: those of the other triangle of a symmetric matrix.
        """
        if table not in self._block_places:
            blocks, pair_blocks = self.node_blocks, self.pair_blocks[table]
            members = (self.pattern.nnz, blocks.summed, pair_blocks, blocks.from_sums, self.from_base)
            self._block_places[table] = Structure(*members)
        return self._block_places[table]

    def add(self, values: Tensor, touching: Touching, blocks: PairBlocks) -> None:
        """Add the blocks of pairs that touch to values (nnz + 1, B), as from `widened`, in place."""
        rows = self._entries(len(blocks.weights)).on(values.device)
        target = self._target(touching, values.shape[1])
        for k in range(0, len(touching.chosen), CHUNK):
            entries = blocks.entries(slice(k, k + CHUNK)).index_select(0, rows)
            # index_put sums in a fixed order on every device; index_add does not
            values.view(-1).index_put_((target[:, k : k + CHUNK],), entries, accumulate=True)

    def _entries(self, count: int) -> IndexMap:
        """Return the flat indices of the entries (a, b, i, j) that are added for a pair of `count` nodes.

        All of them, or if the pattern is symmetric those of the lower triangle of the pair's own matrix.
        """
        if count not in self._summed:
            a, b, i, j = np.indices((3, 3, count, count))
            kept = ~((i < j) | ((i == j) & (a < b))) if self.pattern.symmetric else np.ones(a.shape, dtype=bool)
            self._summed[count] = IndexMap(np.flatnonzero(kept))
        return self._summed[count]

    def _target(self, touching: Touching, batch: int) -> Tensor:
        """Return the flat indices (entries, A), in values (nnz + 1, B), of the entries of pairs that touch.

        They are kept, as the same pairs touch in most iterations of a step.
        """
        chosen, table = touching.chosen, touching.table
        if table in self._targets and torch.equal(self._targets[table][0], chosen):
            return self._targets[table][1]
        rank = self.pair_blocks[table].index_select(0, chosen).t()  # (n^2, A)
        target = self.node_blocks.entries.on(chosen.device).index_select(1, rank.flatten()).view(9 * len(rank), -1)
        entries = self._entries(table.listed.nodes.shape[1]).on(chosen.device)
        target = target.index_select(0, entries) * batch + touching.robot
        self._targets[table] = (chosen, target)
        return target


class StepPairs:
    """The pairs that may touch in a step, and the layout of the matrix for them.

    Parameters
    ----------
    listed : the pairs.
    cache : finds the layout.
    """

    def __init__(self, listed: Pairs, cache: CouplingCache):
        self.listed = listed
        self._cache = cache
        self._friction: dict[PairTable, Tensor] = {}

    def rows(self, index: Tensor) -> StepPairs:
        """Return the pairs of the robots that `index` selects."""
        return StepPairs(self.listed.rows(index), self._cache)

    def lasting(self) -> StepPairs:
        """Return the same pairs in tables of their own, over which recordings may sum; see `LastingPairs`."""
        return StepPairs(self.listed.lasting(), self._cache)

    def tighten(self, spare: bool) -> None:
        """Let the matrix have a new pattern, for these pairs alone.

        With `spare` it joins neighbours of their nodes, too, which may touch soon.
        """
        self.coupling = self._cache.tight_coupling(self.listed, spare)

    def joins_many(self, others: StepPairs) -> bool:
        """Return whether the pattern of the matrix joins many more nodes than other pairs need."""
        return len(self.coupling.node_blocks.keys) > TIGHT * len(self._cache.needed(others.listed))

    def become(self, others: Pairs) -> bool:
        """Stand for other pairs from now on, with the same pattern; return False, and stay, if that lacks a block."""
        coupling = self.coupling.of_pairs(others)
        if coupling is None:
            return False
        self.listed, self.coupling = others, coupling
        return True

    @contextmanager
    def with_tractions(self, friction: dict[PairTable, Tensor]) -> Iterator[None]:
        """Within this context, let `force_and_values` return the derivatives of primal-dual steps.

        See `SmoothedFriction.with_tractions`.

        Parameters
        ----------
        friction : by table, the friction (B, P, KNOWN) of its pairs.
        """
        before, self._friction = self._friction, friction
        try:
            yield
        finally:
            self._friction = before

    @cached_property
    def coupling(self) -> Coupling:
        """The layout of the matrix; found at first use."""
        return self._cache.coupling(self.listed)

    def force_and_values(
        self,
        contacts: SelfContacts,
        q: Tensor,
        velocity: Tensor,
        values: Tensor,
        position_gain: float,
        velocity_gain: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the contact force (B, n) [N], and the values (nnz, B) of the matrix with contact.

        Parameters
        ----------
        contacts : of the robot.
        q, velocity : (B, n).
        values : of the matrix without contact, to which -position_gain dF/dx - velocity_gain dF/dvelocity is added.
        position_gain, velocity_gain : the latter may be a tensor ().
        """
        total, gains, tables = torch.zeros_like(q), (position_gain, velocity_gain), contacts.force_tables(self.listed)
        all_sums = {table: contacts[table.contact].sums(table, q, velocity) for table in tables}
        sums = {
            t: of_table for t, of_table in all_sums.items() if of_table is not None and compiled_code_accepts(values)
        }
        at = {table: table_sums.block_places for table, table_sums in sums.items() if table.lasts} or None
        wide = self.values_with_sums(sums, q, velocity, total, values, gains, self._friction, at)
        for table in tables:
            if table not in sums:
                friction = self._friction.get(table)
                touching = contacts[table.contact].touching(table, q, velocity)
                force, blocks = touching.force_and_blocks(
                    *gains, None if friction is None else friction[table.slots][:, :3]
                )
                total = total + touching.summed(force, q)
                self.coupling.add(wide, touching, blocks)
        return total, wide[:-1]

    def values_with_sums(
        self,
        sums: dict[PairTable, PairSums],
        q: Tensor,
        velocity: Tensor,
        total: Tensor,
        values: Tensor,
        gains: Sequence[float | Tensor],
        friction: dict[PairTable, Tensor],
        at: dict[PairTable, Structure] | None = None,
    ) -> Tensor:
        """Return values (nnz + 1, B) of the matrix with contact, with derivatives of pairs summed by compiled code.

        The forces of the pairs are added to `total` (B, n).

        Parameters
        ----------
        sums : by table, the sums over its pairs.
        total, gains : see `PairSums.add`.
        values : of the matrix without contact.
        friction : by table, the friction (B, P, KNOWN) of its pairs; see `PairSums.add`.
        at : by table, a structure that says where its blocks go and whose address lasts; None: those of this step.
        """
        if not sums:
            return self.coupling.widened(values)
        wide, values_before = self.coupling.unfilled(values), values.contiguous()
        for number, (table, table_sums) in enumerate(sums.items()):
            places = self.coupling.block_places(table) if at is None else at[table]
            table_sums.add(
                q, velocity, friction.get(table), total, wide, None if number else values_before, gains, places
            )
        return wide


class CouplingCache:
    """Finds the coupling of a step; keeps the pattern from step to step while it joins all nodes that may touch.

    If a pattern has served only a few steps, the next one also joins the nodes that follow along the rods, which may
    touch soon. Otherwise rods that slide along each other would need a new pattern in most steps, which takes two
    thirds of the time of a single robot. This is only done in small batches, and not along shells, whose nodes have
    many neighbours.

    Parameters
    ----------
    pattern : of the matrix without contact.
    unknown : (3 N,) the numbers of the nodes' unknowns, -1 where clamped.
    sliding : projects values on that pattern for nodes that slide (`robot.slides`); None without such nodes.
    edges : (E, 2) the nodes that each rod edge joins.
    """

    def __init__(self, pattern: Pattern, unknown: np.ndarray, sliding: SlidingEntries | None, edges: np.ndarray):
        self.base, self.sliding = pattern, sliding
        self.unknown = unknown.reshape(-1, 3)
        self._next, self._served = neighbours(len(self.unknown), edges), FEW_STEPS
        node, (start, end) = np.arange(len(self.unknown)), edges.T
        # keys of nodes with themselves and with their neighbours, which the pattern without contact joins already
        self._joined = np.concatenate([node, np.maximum(start, end)]) * len(node)
        self._joined += np.concatenate([node, np.minimum(start, end)])
        self.pattern = pattern
        self.solvers: dict = {}  # of the present pattern
        self._solvers_before: dict = {}  # of the pattern before it
        self._memory = Pool()
        self._base_entries, self._from_base = IndexMap(np.arange(pattern.nnz)), np.arange(pattern.nnz, dtype=np.int32)
        self._blocks = NodeBlocks.of(pattern, np.zeros(0, dtype=np.int64), self.unknown)

    def coupling(self, pairs: Pairs) -> Coupling:
        """Return the coupling for the pairs of a step, with a new pattern if the present one lacks a block."""
        pair_blocks = self._blocks.of_tables(pairs)
        self._served += 1
        if pair_blocks is None:
            needed = self.needed(pairs)
            changes_often = self._served < FEW_STEPS and len(pairs.boxes.low) <= FEW_ROBOTS
            self._extend(self._with_next(needed) if changes_often else needed)
            pair_blocks = self._blocks.of_tables(pairs)
            assert pair_blocks is not None
        layout = (self._base_entries, self._from_base, self._blocks, pair_blocks)
        return Coupling(self.pattern, self.solvers, self._solvers_before, *layout, self.sliding, self._memory)

    def needed(self, pairs: Pairs) -> np.ndarray:
        """Return the increasing keys of the pairs of nodes that pairs need, and of those joined without contact."""
        return np.union1d(keys_of_pairs(pairs.tables, len(self.unknown)), self._joined)

    def tight_coupling(self, pairs: Pairs, spare: bool) -> Coupling:
        """Return the coupling for pairs with a new pattern, for these alone; see `StepPairs.tighten`."""
        needed = self.needed(pairs)
        self._extend(self._with_next(needed) if spare else needed, keep=False)
        return self.coupling(pairs)

    def _extend(self, needed: np.ndarray, keep: bool = True) -> None:
        """Replace the pattern by one for the keys needed, and, to `keep` them, those that it has, if not too many."""
        count, joined = len(self.unknown), self._blocks.keys
        self._served = 0
        joined = np.union1d(joined, needed) if keep and len(joined) <= MAX_EXCESS * len(needed) else needed
        rows, cols = block_entries(self.unknown, joined // count, joined % count)
        unclamped = (rows >= 0) & (cols >= 0)
        rows, cols = rows[unclamped], cols[unclamped]
        self.pattern = Pattern.union(
            self.base.n,
            np.concatenate([self.base.rows, rows, cols]),  # both triangles: a symmetric pattern drops one
            np.concatenate([self.base.cols, cols, rows]),
            self.base.symmetric,
        )
        self._solvers_before, self.solvers, self._memory = self.solvers or self._solvers_before, {}, Pool()
        self._base_entries = IndexMap(self.pattern.position(self.base.rows, self.base.cols))
        self._blocks = NodeBlocks.of(self.pattern, joined, self.unknown)
        self._from_base = np.full(self.pattern.nnz, -1, dtype=np.int32)
        self._from_base[self._base_entries.array] = np.arange(self.base.nnz)
        self.sliding = None if self.sliding is None else self.sliding.on(self.pattern)

    def _with_next(self, keys: np.ndarray) -> np.ndarray:
        """Return the increasing keys of these pairs of nodes, and of pairs with a neighbour in the place of one node.

        Neighbours are the nodes that are joined to a node by a rod edge.
        """
        count, ends = len(self.unknown), (keys // len(self.unknown), keys % len(self.unknown))
        key_arrays = [keys]
        for node, other in (ends, ends[::-1]):
            for beside in self._next[node].T:
                has_neighbour = beside >= 0
                a, b = beside[has_neighbour], other[has_neighbour]
                key_arrays.append(np.maximum(a, b) * count + np.minimum(a, b))
        return np.unique(np.concatenate(key_arrays))

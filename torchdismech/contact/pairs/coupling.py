"""The matrix of a step in which parts that no element joins may touch: its pattern, and the contacts' place in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.pairs.pair_sums import PairSums
from torchdismech.contact.pairs.pairs import PairBlocks, Pairs, PairTable, Touching
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.contact.pairs.structures import BLOCK, BlockPlaces, Structure
from torchdismech.fused import compiled_code_takes
from torchdismech.geometry.graphs import neighbours
from torchdismech.native import Pool, address, function_of
from torchdismech.robot.slides import SlidingEntries
from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse import Pattern

__all__ = ["CouplingCache", "StepPairs"]

CHUNK = 4096  # pairs whose blocks torch multiplies out at a time: they stay in a processor's cache
MAX_EXCESS = 4  # the pattern is made anew, with what it needs only, when it joins so many times more nodes than needed
# A pattern that serves fewer steps of so few robots is followed by one for what may touch soon, too. A new one takes
# 8 ms for a bundle of six rods, whatever the number of robots; a wider one .1 to .4 ms a robot and step, in the factor.
FEW_STEPS, FEW_ROBOTS = 20, 16
LARGE = 1_000_000  # numbers that are kept for the next matrix: to get so many anew takes as long as to fill them
LISTED = 4_000_000  # pairs of nodes of which a table is kept: 32 MB


@dataclass(frozen=True)
class NodeBlocks:
    """Where the 3 x 3 blocks of all pairs of nodes that a pattern joins stand in its values.

    There are 2 U blocks: of each pair that with the rows of i and the columns of j, then those the other way round.

    Attributes
    ----------
    keys : (U,) increasing keys i * N + j of the pairs of nodes, i >= j.
    entries : (9, 2 U) which of the values the blocks' entries are; one past the values for what is not in the matrix:
        clamped dofs, and one of two equal entries of a symmetric block.
    nodes : N.
    summed : how many of the blocks compiled code sums: of a symmetric pattern not those the other way round.
    from_sums : (nnz,) int32, which number of these sums, of twelve numbers each, is added to a value; -1 for none.
    """

    keys: np.ndarray
    entries: IndexMap
    nodes: int
    summed: int
    from_sums: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, keys: np.ndarray, unknown: np.ndarray) -> NodeBlocks:
        """Find the blocks; `unknown` (N, 3) numbers the unknowns of the nodes, -1 where clamped."""
        i, j = keys // len(unknown), keys % len(unknown)
        rows, cols = _block_entries(unknown, np.concatenate([i, j]), np.concatenate([j, i]))
        kept = (rows >= 0) & (cols >= 0)
        if pattern.symmetric:
            kept &= (rows >= cols) | (np.concatenate([i, j]) != np.concatenate([j, i]))
            rows, cols = np.maximum(rows, cols), np.minimum(rows, cols)
        entries = np.full(rows.shape, pattern.nnz)
        entries[kept] = pattern.position(rows[kept], cols[kept])
        from_sums, blocks = np.full(pattern.nnz + 1, -1), np.arange(2 * len(keys))
        within = 4 * (np.arange(9)[:, None] // 3) + np.arange(9)[:, None] % 3
        # those the other way round first: a node with itself is one of the others
        for half in (blocks[:0] if pattern.symmetric else blocks[len(keys) :], blocks[: len(keys)]):
            from_sums[entries[:, half]] = BLOCK * half + within
        summed = len(keys) if pattern.symmetric else 2 * len(keys)
        return cls(keys, IndexMap(entries), len(unknown), summed, from_sums[:-1].astype(np.int32))

    def numbers_of(self, keys: Tensor) -> Tensor:
        """Return which of the blocks have the rows of a node i and the columns of j, by keys i * N + j; -1 for none."""
        if self._listed is not None:
            return self._listed.on(keys.device)[keys]
        i, j = keys // self.nodes, keys % self.nodes
        key, sorted_keys = torch.maximum(i, j) * self.nodes + torch.minimum(i, j), self._keys.on(keys.device)
        rank = torch.searchsorted(sorted_keys, key).clamp(max=max(len(sorted_keys) - 1, 0))
        there = sorted_keys[rank] == key if len(sorted_keys) else torch.zeros_like(key, dtype=torch.bool)
        return torch.where(there, rank + len(sorted_keys) * (i < j), -1)

    @cached_property
    def _keys(self) -> IndexMap:
        return IndexMap(self.keys)

    @cached_property
    def _listed(self) -> IndexMap | None:
        """What `numbers_of` gives for each possible key; None where these are too many to be listed."""
        if self.nodes**2 > LISTED:
            return None
        listed, count = np.full(self.nodes**2, -1), len(self.keys)
        i, j = self.keys // self.nodes, self.keys % self.nodes
        listed[j * self.nodes + i] = count + np.arange(count)
        listed[self.keys] = np.arange(count)  # also of nodes with themselves
        return IndexMap(listed)

    def numbers_of_pairs(self, nodes: Tensor) -> Tensor | None:
        """Return which of the blocks (C, n^2) the nodes i and j of pairs (C, n) have, row by row; None if one lacks."""
        find, (count, each) = function_of("blocks_of_pairs"), nodes.shape
        if find is None or not nodes.is_cpu:
            blocks = self.numbers_of((nodes[:, :, None] * self.nodes + nodes[:, None, :]).flatten(1))
            return None if bool((blocks < 0).any()) else blocks
        found = nodes.new_empty(count, each * each)
        listed = None if self._listed is None else self._listed.array
        given = (each, count, nodes.contiguous(), self.nodes, listed, self.keys, len(self.keys), found)
        return found if find(*map(address, given)) else None


class Coupling:
    """The pattern of a step with contact, and where everything goes in it.

    Parameters
    ----------
    pattern, solvers : of the matrix with contact; solvers by device and number of robots.
    before : solvers of the pattern before this one.
    base_entries : which of the values are those of the matrix without contact.
    from_base : (nnz,) int32, the other way round: as which of these a value begins, -1 for none.
    blocks : where the blocks of pairs of nodes stand.
    pair_blocks : for each table of pairs, which of the blocks (C, n^2) the nodes i and j of each pair have, row by row.
    sliding : what nodes that slide make of the values; None without any.
    memory : for values.
    """

    def __init__(
        self,
        pattern: Pattern,
        solvers: dict,
        before: dict,
        base_entries: IndexMap,
        from_base: np.ndarray,
        blocks: NodeBlocks,
        pair_blocks: dict[PairTable, Tensor],
        sliding: SlidingEntries | None,
        memory: Pool,
    ):
        self.pattern = pattern
        self.solvers, self.before = solvers, before
        self.base_entries, self.from_base = base_entries, from_base
        self.node_blocks = blocks
        self.pair_blocks = pair_blocks
        self.sliding = sliding
        self._memory = memory
        self._targets: dict[PairTable, tuple[Tensor, Tensor]] = {}
        self._summed: dict[int, IndexMap] = {}
        self._block_places: dict[PairTable, BlockPlaces] = {}

    def widened(self, values: Tensor) -> Tensor:
        """Return values of the pattern without contact on the one with it (nnz + 1, B); the last row is spare."""
        wide = values.new_zeros(self.pattern.nnz + 1, values.shape[1])
        return wide.index_copy_(0, self.base_entries.on(values.device), values)

    def unfilled(self, values: Tensor) -> Tensor:
        """Return memory for what `widened` returns; the last row holds anything."""
        rows, batch = self.pattern.nnz + 1, values.shape[1]
        if rows * batch < LARGE:
            return values.new_empty(rows, batch)
        return self._memory.numbers(rows * batch, values.dtype).view(rows, batch)

    def block_places(self, table: PairTable) -> BlockPlaces:
        """Return where the blocks of a table's pairs go, for compiled code."""
        if table not in self._block_places:
            where = (self.pair_blocks[table], self.node_blocks.from_sums, self.from_base)
            self._block_places[table] = BlockPlaces(self.node_blocks.summed, *where)
        return self._block_places[table]

    def add(self, values: Tensor, found: Touching, blocks: PairBlocks) -> None:
        """Add the blocks of pairs that touch to the widened values, in place."""
        rows = self._entries(len(blocks.weights)).on(values.device)
        target = self._target(found, values.shape[1])
        for k in range(0, len(found.chosen), CHUNK):
            entries = blocks.entries(slice(k, k + CHUNK)).index_select(0, rows)
            # index_put sums in a fixed order on every device; index_add does not
            values.view(-1).index_put_((target[:, k : k + CHUNK],), entries, accumulate=True)

    def _entries(self, count: int) -> IndexMap:
        """Return which entries (a, b, i, j) of a block of so many nodes are summed, flat: half of symmetric ones."""
        if count not in self._summed:
            a, b, i, j = np.indices((3, 3, count, count))
            kept = ~((i < j) | ((i == j) & (a < b))) if self.pattern.symmetric else np.ones(a.shape, dtype=bool)
            self._summed[count] = IndexMap(np.flatnonzero(kept))
        return self._summed[count]

    def _target(self, found: Touching, batch: int) -> Tensor:
        """Return where the summed entries of pairs that touch go, (entries, A) as numbers in (nnz + 1, B).

        The same pairs touch in most iterations of a step: so it is kept.
        """
        chosen, table = found.chosen, found.table
        if table in self._targets and torch.equal(self._targets[table][0], chosen):
            return self._targets[table][1]
        rank = self.pair_blocks[table].index_select(0, chosen).t()  # (n^2, A)
        target = self.node_blocks.entries.on(chosen.device).index_select(1, rank.flatten()).view(9 * len(rank), -1)
        entries = self._entries(table.listed_nodes.shape[1]).on(chosen.device)
        target = target.index_select(0, entries) * batch + found.robot
        self._targets[table] = (chosen, target)
        return target


class StepPairs:
    """What may touch in a step, with the matrix that it needs.

    Parameters
    ----------
    listed : the pairs that may touch.
    cache : finds the matrix's layout.
    """

    def __init__(self, listed: Pairs, cache: CouplingCache):
        self.listed = listed
        self._cache = cache
        self._known: dict[PairTable, Tensor] = {}

    def rows(self, index: Tensor) -> StepPairs:
        """Return the pairs of the robots that `index` selects."""
        return StepPairs(self.listed.rows(index), self._cache)

    @contextmanager
    def with_tractions(self, known: dict[PairTable, Tensor]) -> Iterator[None]:
        """Meanwhile, let `force_and_values` find the derivatives of primal-dual steps; see `Rubbing.with_tractions`.

        Parameters
        ----------
        known : by table, what a search knows (B, P, KNOWN) of the friction of its pairs.
        """
        before, self._known = self._known, known
        try:
            yield
        finally:
            self._known = before

    @cached_property
    def coupling(self) -> Coupling:
        """The matrix's layout; found when it is first needed."""
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
        """Return the contact force (B, n), and values on the pattern without contact widened by its derivatives."""
        total, gains, tables = torch.zeros_like(q), (position_gain, velocity_gain), contacts.pushing(self.listed)
        all_sums = {table: contacts[table.contact].sums(table, q, velocity) for table in tables}
        sums = {table: found for table, found in all_sums.items() if found is not None and compiled_code_takes(values)}
        wide = self.values_with_sums(sums, q, velocity, total, values, gains, self._known)
        for table in tables:
            if table not in sums:
                known = self._known.get(table)
                found = contacts[table.contact].touching(table, q, velocity)
                force, blocks = found.force_and_blocks(*gains, None if known is None else known[table.slots][:, :3])
                total = total + found.summed(force, q)
                self.coupling.add(wide, found, blocks)
        return total, wide[:-1]

    def values_with_sums(
        self,
        sums: dict[PairTable, PairSums],
        q: Tensor,
        velocity: Tensor,
        total: Tensor,
        values: Tensor,
        gains: Sequence[float | Tensor],
        known: dict[PairTable, Tensor],
        at: dict[PairTable, Structure] | None = None,
    ) -> Tensor:
        """Return what `Coupling.widened` does with derivatives of the pairs of some tables, summed by compiled code.

        It adds their forces to `total` (B, n).

        Parameters
        ----------
        known : what a search knows of the pairs of tables; see `PairSums.add`, also for the other parameters.
        at : where the blocks of tables go, in structures that are kept; None: in those of this step.
        """
        if not sums:
            return self.coupling.widened(values)
        wide, before = self.coupling.unfilled(values), values.contiguous()
        for number, (table, of_table) in enumerate(sums.items()):
            places = self.coupling.block_places(table).bound if at is None else at[table]
            of_table.add(q, velocity, known.get(table), total, wide, None if number else before, gains, places)
        return wide


class CouplingCache:
    """Finds the coupling of a step; keeps the pattern from step to step while it holds all that may touch.

    When a pattern lasts only a few steps, the next one also joins neighbouring nodes along the rods, which may touch
    soon. Otherwise rods that slide along each other would need a new pattern in most steps, which takes a robot alone
    two thirds of its time. This is done for few robots alone, and not for shells, whose nodes have many neighbours.

    Parameters
    ----------
    pattern : of the matrix without contact.
    unknown : (3 N,) the numbers of the nodes' unknowns, -1 where clamped.
    sliding : what nodes that slide make of values on the pattern; None without any.
    edges : (E, 2) nodes that are next to each other along rods.
    """

    def __init__(self, pattern: Pattern, unknown: np.ndarray, sliding: SlidingEntries | None, edges: np.ndarray):
        self.base, self.sliding = pattern, sliding
        self.unknown = unknown.reshape(-1, 3)
        self._next, self._served = neighbours(len(self.unknown), edges), FEW_STEPS
        node, (start, end) = np.arange(len(self.unknown)), edges.T
        # of nodes with themselves and next to each other, which the pattern without contact joins already
        self._joined = np.concatenate([node, np.maximum(start, end)]) * len(node)
        self._joined += np.concatenate([node, np.minimum(start, end)])
        self.pattern = pattern
        self.solvers: dict = {}  # of the pattern
        self._before: dict = {}  # of the pattern before
        self._memory = Pool()
        self._base_entries, self._from_base = IndexMap(np.arange(pattern.nnz)), np.arange(pattern.nnz, dtype=np.int32)
        self._blocks = NodeBlocks.of(pattern, np.zeros(0, dtype=np.int64), self.unknown)

    def coupling(self, pairs: Pairs) -> Coupling:
        """Return the coupling for these pairs."""
        pair_blocks = self._pair_blocks(pairs)
        self._served += 1
        if pair_blocks is None:
            needed = np.union1d(self._distinct(pairs.tables), self._joined)
            changes_often = self._served < FEW_STEPS and len(pairs.low) <= FEW_ROBOTS
            self._extend(self._with_next(needed) if changes_often else needed)
            pair_blocks = self._pair_blocks(pairs)
            assert pair_blocks is not None
        layout = (self._base_entries, self._from_base, self._blocks, pair_blocks)
        return Coupling(self.pattern, self.solvers, self._before, *layout, self.sliding, self._memory)

    def _pair_blocks(self, pairs: Pairs) -> dict[PairTable, Tensor] | None:
        """Return what `NodeBlocks.numbers_of_pairs` does of each table; None where the pattern lacks a block."""
        found = {}
        for table in pairs.tables:
            blocks = self._blocks.numbers_of_pairs(table.listed_nodes)
            if blocks is None:
                return None
            found[table] = blocks
        return found

    def _keys(self, table: PairTable) -> Iterator[Tensor]:
        """Yield the keys i * N + j, i >= j, of two nodes of each pair of a table (C,): two at a time, any with any."""
        columns = table.listed_nodes.t().contiguous()
        for first, second in combinations_with_replacement(columns, 2):
            yield torch.maximum(first, second) * len(self.unknown) + torch.minimum(first, second)

    def _distinct(self, tables: tuple[PairTable, ...]) -> np.ndarray:
        """Return the distinct keys of all pairs of nodes that tables join, increasing."""
        count, keys = len(self.unknown), chain.from_iterable(self._keys(table) for table in tables)
        if count**2 > LISTED:
            return torch.cat(list(keys)).unique().cpu().numpy()
        met = torch.zeros(count**2, dtype=torch.bool, device=tables[0].listed_nodes.device)
        for key in keys:  # to sort them would take ten times as long
            met[key] = True
        return met.nonzero().squeeze(1).cpu().numpy()

    def _extend(self, needed: np.ndarray) -> None:
        """Make a pattern that joins these pairs of nodes, and those that it joined before if they are not too many."""
        count, joined = len(self.unknown), self._blocks.keys
        self._served = 0
        joined = needed if len(joined) > MAX_EXCESS * len(needed) else np.union1d(joined, needed)
        rows, cols = _block_entries(self.unknown, joined // count, joined % count)
        keep = (rows >= 0) & (cols >= 0)
        rows, cols = rows[keep], cols[keep]
        self.pattern = Pattern.union(
            self.base.n,
            np.concatenate([self.base.rows, rows, cols]),  # both triangles: a symmetric pattern drops one
            np.concatenate([self.base.cols, cols, rows]),
            self.base.symmetric,
        )
        self._before, self.solvers, self._memory = self.solvers or self._before, {}, Pool()
        self._base_entries = IndexMap(self.pattern.position(self.base.rows, self.base.cols))
        self._blocks = NodeBlocks.of(self.pattern, joined, self.unknown)
        self._from_base = np.full(self.pattern.nnz, -1, dtype=np.int32)
        self._from_base[self._base_entries.array] = np.arange(self.base.nnz)
        self.sliding = None if self.sliding is None else self.sliding.on(self.pattern)

    def _with_next(self, keys: np.ndarray) -> np.ndarray:
        """Return increasing keys of these pairs of nodes, and of those of which one node is next to one of them."""
        count, ends = len(self.unknown), (keys // len(self.unknown), keys % len(self.unknown))
        found = [keys]
        for node, other in (ends, ends[::-1]):
            for beside in self._next[node].T:
                there = beside >= 0
                a, b = beside[there], other[there]
                found.append(np.maximum(a, b) * count + np.minimum(a, b))
        return np.unique(np.concatenate(found))


def _block_entries(unknown: np.ndarray, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the unknowns (9, U) at the rows and columns of blocks of the nodes i and j (U,), row by row."""
    rows, cols = unknown[i].T, unknown[j].T
    return np.repeat(rows, 3, axis=0), np.tile(cols, (3, 1))

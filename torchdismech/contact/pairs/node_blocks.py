"""Where the 3 x 3 blocks of pairs of nodes stand among the values of a matrix in which parts of a robot may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.pairs.pairs import Pairs, PairTable
from torchdismech.native import address, function_of
from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse import Pattern

__all__ = ["NodeBlocks", "block_entries", "keys_of_pairs"]

BLOCK = 12  # numbers for the sum of a 3 x 3 block in compiled code: three rows of four, so that a row is a vector
LISTED = 4_000_000  # pairs of nodes up to which a table of all of them is kept: 32 MB


@dataclass(frozen=True)
class NodeBlocks:
    """Where the 3 x 3 blocks of all pairs of nodes that a pattern joins stand among its nnz values.

    There are 2 U blocks for U pairs of nodes (i, j): first those with the rows of i and the columns of j, then the
    *transposed* ones with the rows of j and the columns of i.

    Attributes
    ----------
    keys : (U,) increasing keys i * N + j of the pairs of nodes, i >= j.
    entries : (9, 2 U) indices of the blocks' entries among the values; nnz for entries that are not in the matrix:
        those of clamped dofs, and of a symmetric pattern one of each two equal entries of a diagonal block.
    nodes : number of nodes N.
    summed : how many of the blocks compiled code sums: all, or without the transposed ones if the pattern is symmetric.
    from_sums : (nnz,) int32, for each value the index among these sums, of `BLOCK` numbers each, of the one that is
        added to it; -1 for none.
    """

    keys: np.ndarray
    entries: IndexMap
    nodes: int
    summed: int
    from_sums: np.ndarray

    @classmethod
    def of(cls, pattern: Pattern, keys: np.ndarray, unknown: np.ndarray) -> NodeBlocks:
        """Return the blocks for keys of pairs; `unknown` (N, 3) numbers the nodes' unknowns, -1 where clamped."""
        i, j = keys // len(unknown), keys % len(unknown)
        rows, cols = block_entries(unknown, np.concatenate([i, j]), np.concatenate([j, i]))
        kept = (rows >= 0) & (cols >= 0)
        if pattern.symmetric:
            kept &= (rows >= cols) | (np.concatenate([i, j]) != np.concatenate([j, i]))
            rows, cols = np.maximum(rows, cols), np.minimum(rows, cols)
        entries = np.full(rows.shape, pattern.nnz)
        entries[kept] = pattern.position(rows[kept], cols[kept])
        from_sums, blocks = np.full(pattern.nnz + 1, -1), np.arange(2 * len(keys))
        within = 4 * (np.arange(9)[:, None] // 3) + np.arange(9)[:, None] % 3
        # transposed blocks first: of a node with itself, the untransposed block is to stay
        for half in (blocks[:0] if pattern.symmetric else blocks[len(keys) :], blocks[: len(keys)]):
            from_sums[entries[:, half]] = BLOCK * half + within
        summed = len(keys) if pattern.symmetric else 2 * len(keys)
        return cls(keys, IndexMap(entries), len(unknown), summed, from_sums[:-1].astype(np.int32))

    def numbers_of(self, keys: Tensor) -> Tensor:
        """Return the numbers of the blocks with the rows of node i and the columns of j, for any keys i * N + j.

        -1 for pairs of nodes that the pattern does not join.
        """
        if self._listed is not None:
            return self._listed.on(keys.device)[keys]
        i, j = keys // self.nodes, keys % self.nodes
        key, sorted_keys = torch.maximum(i, j) * self.nodes + torch.minimum(i, j), self._keys.on(keys.device)
        rank = torch.searchsorted(sorted_keys, key).clamp(max=max(len(sorted_keys) - 1, 0))
        is_joined = sorted_keys[rank] == key if len(sorted_keys) else torch.zeros_like(key, dtype=torch.bool)
        return torch.where(is_joined, rank + len(sorted_keys) * (i < j), -1)

    @cached_property
    def _keys(self) -> IndexMap:
        return IndexMap(self.keys)

    @cached_property
    def _listed(self) -> IndexMap | None:
        """The results (N^2,) of `numbers_of` for all keys; None where these are too many to be listed."""
        if self.nodes**2 > LISTED:
            return None
        listed, count = np.full(self.nodes**2, -1), len(self.keys)
        i, j = self.keys // self.nodes, self.keys % self.nodes
        listed[j * self.nodes + i] = count + np.arange(count)
        listed[self.keys] = np.arange(count)  # after the transposed ones, so that it holds for nodes with themselves
        return IndexMap(listed)

    def numbers_of_pairs(self, nodes: Tensor) -> Tensor | None:
        """Return the numbers of the blocks (C, n^2) of each two nodes of pairs (C, n), row by row.

        None if the pattern lacks one of them.
        """
        find, (count, each) = function_of("blocks_of_pairs"), nodes.shape
        if find is None or not nodes.is_cpu:
            blocks = self.numbers_of((nodes[:, :, None] * self.nodes + nodes[:, None, :]).flatten(1))
            return None if bool((blocks < 0).any()) else blocks
        numbers = nodes.new_empty(count, each * each)
        listed = None if self._listed is None else self._listed.array
        arguments = (each, count, nodes.contiguous(), self.nodes, listed, self.keys, len(self.keys), numbers)
        return numbers if find(*map(address, arguments)) else None

    def of_tables(self, pairs: Pairs) -> dict[PairTable, Tensor] | None:
        """Return for each table the numbers (C, n^2) of its pairs' blocks; None if the pattern lacks one of them."""
        pair_blocks = {}
        for table in pairs.tables:
            blocks = self.numbers_of_pairs(table.listed.nodes)
            if blocks is None:
                return None
            pair_blocks[table] = blocks
        return pair_blocks


def block_entries(unknown: np.ndarray, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the unknowns (9, U) that are the rows, and the columns, of the 3 x 3 blocks of nodes i and j (U,).

    Entries of a block are row by row; -1 where a dof is clamped.
    """
    rows, cols = unknown[i].T, unknown[j].T
    return np.repeat(rows, 3, axis=0), np.tile(cols, (3, 1))


def keys_of_pairs(tables: Sequence[PairTable], nodes: int) -> np.ndarray:
    """Return the increasing keys i * N + j, i >= j, of each two of the N nodes that occur in one pair of some table.

    A node with itself is such a choice, too.
    """
    chosen = (two for table in tables for two in combinations_with_replacement(table.listed.nodes.t().contiguous(), 2))
    keys = (torch.maximum(first, second) * nodes + torch.minimum(first, second) for first, second in chosen)
    if nodes**2 > LISTED:
        return torch.cat(list(keys)).unique().cpu().numpy()
    occurs = torch.zeros(nodes**2, dtype=torch.bool, device=tables[0].listed.nodes.device)
    for key in keys:  # marking them takes a tenth of the time of sorting them
        occurs[key] = True
    return occurs.nonzero().squeeze(1).cpu().numpy()

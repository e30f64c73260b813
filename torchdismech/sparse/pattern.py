"""Sparsity pattern of a batch of matrices that differ in their values only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

__all__ = ["Pattern", "sorted_distinct"]


def sorted_distinct(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct numbers in rising order; much faster than `np.unique`, which hashes them first."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the entries of a batch of (n, n) matrices stand.

    The values of a batch of B matrices are one tensor `(nnz, B)`, batch last. A symmetric pattern stores the lower
    triangle only (row >= col). Every diagonal entry is in the pattern.

    Attributes
    ----------
    n : number of unknowns.
    rows, cols : (nnz,) int64 arrays, sorted by row, then column, without repetition.
    symmetric : whether the matrices are symmetric.
    order_hint : (n,) permutation that groups neighbours (a chain walked end to end), or None. `order_hint[k]` is the
        unknown that would come k-th; a banded solver may use it.
    """

    n: int
    rows: np.ndarray
    cols: np.ndarray
    symmetric: bool
    order_hint: np.ndarray | None = None
    diagonal: np.ndarray = field(init=False)  # (n,) position of each diagonal entry in the values
    keys: np.ndarray = field(init=False)  # (nnz,) row * n + col, sorted

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.rows.astype(np.int64) * self.n + self.cols)
        object.__setattr__(self, "diagonal", self.position(np.arange(self.n), np.arange(self.n)))

    @classmethod
    def union(
        cls, n: int, rows: np.ndarray, cols: np.ndarray, symmetric: bool, order_hint: np.ndarray | None = None
    ) -> Pattern:
        """Build the pattern that holds the given entries (repetitions welcome) and the diagonal.

        For a symmetric pattern, entries of the upper triangle are dropped: they mirror the lower ones.
        """
        rows = np.concatenate([np.asarray(rows, dtype=np.int64).ravel(), np.arange(n)])
        cols = np.concatenate([np.asarray(cols, dtype=np.int64).ravel(), np.arange(n)])
        if symmetric:
            lower = rows >= cols
            rows, cols = rows[lower], cols[lower]
        keys = sorted_distinct(rows * n + cols)
        return cls(n, keys // n, keys % n, symmetric, order_hint)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.rows)

    def position(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """Return the indices of the entries (rows, cols) in the values; each must be in the pattern."""
        rows, cols = np.asarray(rows, dtype=np.int64), np.asarray(cols, dtype=np.int64)
        keys = np.where((rows < self.n) & (cols < self.n), rows * self.n + cols, -1)
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        missing = np.flatnonzero(self.keys[position] != keys)
        if len(missing):
            entry = (int(rows[missing[0]]), int(cols[missing[0]]))
            raise IndexError(f"entry {entry} is not in the sparsity pattern of size {self.n}")
        return position

    def to_dense(self, values: torch.Tensor) -> torch.Tensor:
        """Return the (B, n, n) dense matrices of the values (nnz, B)."""
        rows, cols = torch.as_tensor(self.rows, device=values.device), torch.as_tensor(self.cols, device=values.device)
        dense = values.new_zeros(self.n, self.n, values.shape[1])
        dense[rows, cols] = values
        if self.symmetric:
            dense[cols, rows] = values
        return dense.permute(2, 0, 1).contiguous()

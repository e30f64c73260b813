"""Banded factors on a CPU by compiled code.

Many matrices are factored together, one in each lane of a vector (`native/band.cpp`). Few matrices are factored one
after the other, with each line of a band in vectors (`native/single_band.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchdismech.native import in_threads, library
from torchdismech.sparse.ordering import BandedOrder

__all__ = ["Memory", "NativeBand", "band_bytes", "band_profile", "band_sources", "most_one_by_one", "one_by_one"]

# Least count of band numbers for each thread, about 1 ms of factoring, because a thread takes about 0.1 ms to start.
NUMBERS_A_THREAD = 500_000
LINE = 64  # bytes of the widest vector

Memory = Callable[[int, torch.dtype], Tensor]  # returns that many numbers of a dtype, aligned for vectors


class NativeBand:
    """Factors of b banded matrices in the storage of `band.cpp` or `single_band.cpp`, without row exchanges.

    Parameters
    ----------
    order : the order of the unknowns and the bandwidths.
    sources : index of the entry at each place of the storage, from `band_sources`.
    profile : how far pivots reach, from `band_profile`.
    values : (nnz, b) on the CPU.
    memory : function that returns memory for the factors.
    symmetric : whether the matrices are symmetric, with one half stored.
    growth : limit of the terms of the elimination, relative to the largest entry of the matrix. Symmetric matrices need
        not keep it if all their pivots are positive; with 0 only those are `ok`.

    Attributes
    ----------
    ok : (b,) bool, True where the pivots and terms met these conditions.
    definite : (b,) bool, True where all pivots of a symmetric matrix were positive.
    """

    def __init__(
        self,
        order: BandedOrder,
        sources: np.ndarray,
        profile: np.ndarray,
        values: Tensor,
        memory: Memory,
        symmetric: bool,
        growth: float = 0.0,
    ):
        self._library, values = library(), values.contiguous()
        upper = -1 if symmetric else order.upper
        self._order, self._profile = order.order, profile
        self._shape = (values.shape[1], len(order.order), order.lower, upper)
        self._one_by_one = one_by_one(values.shape[1])
        if self._one_by_one:
            self._groups, numbers = values.shape[1], _numbers_alone(order, symmetric, values.dtype)
        else:
            lanes = self._library.lanes(values.dtype)
            self._groups, numbers = -(-values.shape[1] // lanes), lanes * len(sources)
        self._bands = memory(self._groups * numbers, values.dtype)
        good = values.new_empty(2, values.shape[1], dtype=torch.bool)
        factor = self._function("factor", values.dtype)
        given = (*self._shape, profile, values, len(values), sources, np.array([growth]), self._bands, good)
        in_threads(factor, given, self._groups, len(self._bands) // NUMBERS_A_THREAD)
        self.ok, self.definite = good

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions; rows that are not ok may hold anything."""
        rhs = rhs.contiguous()
        x = torch.empty_like(rhs)
        solve = self._function("solve", rhs.dtype)
        given = (*self._shape, self._profile, self._bands, self._order, int(transpose), rhs, x)
        in_threads(solve, given, self._groups, len(self._bands) // NUMBERS_A_THREAD)
        return x

    def _function(self, what: str, dtype: torch.dtype) -> Callable:
        """Return the compiled function for `what` ("factor" or "solve") that fits the dtype and the batch."""
        kind = "single_band" if self._one_by_one else "band"
        return getattr(self._library.code, f"{kind}_{what}_{_name(dtype)}")


def one_by_one(batch: int) -> bool:
    """Return whether `batch` matrices are factored one after the other, and not in the lanes of vectors."""
    return batch <= most_one_by_one()


def most_one_by_one() -> int:
    """Return the largest batch that is factored one by one: half the lanes of a vector."""
    return library().lanes(torch.float64) // 2


def band_sources(rows: np.ndarray, cols: np.ndarray, order: BandedOrder, symmetric: bool) -> np.ndarray:
    """Return, for each number of a matrix's band storage, the index of the entry that it holds; -1 for zero.

    The lower half comes first, by columns from the diagonal down; then, unless symmetric, the upper half by rows, in
    each of which the first place (the diagonal) is unused.

    Parameters
    ----------
    rows, cols : (nnz,) of the entries: the lower triangle of a symmetric pattern, or all.
    order : the order of the unknowns and the bandwidths.
    symmetric : whether only the lower half is stored.
    """
    row, col = order.place[rows], order.place[cols]
    low, high = np.minimum(row, col), np.maximum(row, col)
    lower_half = low * (order.lower + 1) + high - low
    upper_half = len(order.order) * (order.lower + 1) + low * (order.upper + 1) + high - low
    places = lower_half if symmetric else np.where(row >= col, lower_half, upper_half)
    sources = np.full(_numbers(order, symmetric), -1, dtype=np.int64)
    sources[places] = np.arange(len(rows))
    return sources


def band_profile(rows: np.ndarray, cols: np.ndarray, order: BandedOrder) -> np.ndarray:
    """Return the profile of a band (2, n): for each line the first pivot that reaches it, and the last line it reaches.

    A pivot fills all lines up to its last one, so each line reaches at least as far as those before it. The profile
    saves work where a chain touches itself in a few places: most pivots then reach half as far as the widest.

    Parameters
    ----------
    rows, cols : (nnz,) of the entries, of one triangle or both.
    order : the order of the unknowns.
    """
    row, col = order.place[rows], order.place[cols]
    lines = np.arange(len(order.order))
    last = lines.copy()
    np.maximum.at(last, np.minimum(row, col), np.maximum(row, col))
    last = np.maximum.accumulate(last)
    return np.stack([np.searchsorted(last, lines), last])


def band_bytes(order: BandedOrder, symmetric: bool, batch: int) -> int:
    """Return the bytes that factors of `batch` float64 matrices take, with vectors of the widest kind if in lanes."""
    if one_by_one(batch):
        return 8 * batch * _numbers_alone(order, symmetric, torch.float64)
    lanes = LINE // 8
    return -(-batch // lanes) * LINE * _numbers(order, symmetric)


def _numbers(order: BandedOrder, symmetric: bool) -> int:
    return len(order.order) * (order.lower + 1 + (0 if symmetric else order.upper + 1))


def _numbers_alone(order: BandedOrder, symmetric: bool, dtype: torch.dtype) -> int:
    """Return how many numbers the factor of a matrix takes in the storage of `single_band.cpp`."""
    count = getattr(library().code, f"single_band_numbers_{_name(dtype)}")
    return count(len(order.order), order.lower, -1 if symmetric else order.upper)


def _name(dtype: torch.dtype) -> str:
    return "float32" if dtype == torch.float32 else "float64"

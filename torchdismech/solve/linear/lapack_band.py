"""Banded factors by LAPACK, one call per robot.

LAPACK is called from Python on the host, which a tape cannot record: `OnHost` lets every replay call it again.
`WithExchanges` leaves to it the robots for which compiled code, which exchanges no rows, is not accurate enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from torch import Tensor

from torchdismech.native import taped, unless_all
from torchdismech.solve.linear.base import Decomposition
from torchdismech.solve.linear.native_band import Memory, NativeBand
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import BandedOrder

__all__ = [
    "LapackCholesky",
    "LapackLU",
    "OnHost",
    "WithExchanges",
    "cholesky_places",
    "lu_places",
    "numbers_per_column",
]


def numbers_per_column(order: BandedOrder, symmetric: bool) -> int:
    """Return how many numbers LAPACK's band storage has per column (LDAB), including space for row exchanges in LU."""
    return order.lower + 1 if symmetric else 2 * order.lower + order.upper + 1


def cholesky_places(pattern: Pattern, order: BandedOrder) -> np.ndarray:
    """Return the flat indices (nnz,) of the lower triangle in LAPACK's band storage: by columns, diagonal first."""
    row, col = order.place[pattern.rows], order.place[pattern.cols]
    low, high = np.minimum(row, col), np.maximum(row, col)
    return low * numbers_per_column(order, symmetric=True) + high - low


def lu_places(full: Pattern, order: BandedOrder) -> np.ndarray:
    """Return the flat indices (nnz,) of the entries in LAPACK's storage for gbtrf: `lower` spare rows come on top."""
    row, col = order.place[full.rows], order.place[full.cols]
    return col * numbers_per_column(order, symmetric=False) + order.lower + order.upper + row - col


def _numpy_dtype(values: Tensor) -> type:
    return np.float32 if values.dtype == torch.float32 else np.float64


def _bands(values: Tensor, order: BandedOrder, memory: Memory, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return zeroed band storage of b matrices, flat (b, n width) and as a view (b, width, n) of the same memory.

    Each matrix of the view is in Fortran order, so LAPACK overwrites it without a copy. (For the same reason the
    vectors of a solve are selected with `take`, whose rows are contiguous: indexing with `[:, order]` gives strided
    rows, and LAPACK would leave its result in a copy.)
    """
    n, width = len(order.order), numbers_per_column(order, symmetric)
    flat = memory(values.shape[1] * n * width, values.dtype).numpy().reshape(values.shape[1], n * width)
    flat.fill(0)
    return flat, flat.reshape(len(flat), n, width).transpose(0, 2, 1)


class OnHost:
    """A decomposition by code that a tape cannot record, and that each replay of the tape runs again.

    Parameters
    ----------
    decompose : function that returns the decomposition of matrices.
    values : (nnz, b) of the matrices.

    Attributes
    ----------
    parts : the decomposition of the last run.
    """

    def __init__(self, decompose: Callable[[Tensor], Decomposition], values: Tensor):
        self._decompose, self._values = decompose, values
        self.ok = values.new_empty(values.shape[1], dtype=torch.bool)
        taped(partial(self._factor, self.ok), self.ok)

    def _factor(self, ok: Tensor) -> None:
        self.parts = self._decompose(self._values)
        ok.copy_(self.parts.ok)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        solution = torch.empty_like(rhs)
        taped(lambda: solution.copy_(self.parts.solve(rhs, transpose)), solution)
        return solution


class LapackCholesky:
    """Cholesky factors by pbtrf, one call per robot."""

    def __init__(self, order: BandedOrder, places: np.ndarray, memory: Memory, values: Tensor):
        self.order = order
        factor, self._solve_one = scipy.linalg.lapack.get_lapack_funcs(("pbtrf", "pbtrs"), dtype=_numpy_dtype(values))
        flat, self.bands = _bands(values, order, memory, symmetric=True)
        good = np.empty(len(flat), dtype=bool)
        for k, (band, source, matrix) in enumerate(zip(flat, values.t().contiguous().numpy(), self.bands, strict=True)):
            band[places] = source
            good[k] = factor(matrix, lower=1, overwrite_ab=1)[1] == 0
        good &= np.isfinite(self.bands[:, 0]).all(1)  # pbtrf does not notice a NaN pivot
        self.ok = torch.from_numpy(good)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        ordered = rhs.numpy().take(self.order.order, axis=1)
        for matrix, vector, good in zip(self.bands, ordered, self.ok.tolist(), strict=True):
            if good:
                self._solve_one(matrix, vector, lower=1, overwrite_b=1)
        return torch.from_numpy(ordered.take(self.order.place, axis=1))


class LapackLU:
    """LU factors with partial pivoting by gbtrf, one call per robot."""

    def __init__(self, order: BandedOrder, places: np.ndarray, memory: Memory, values: Tensor):
        self.order = order
        below, above = order.lower, order.upper
        factor, self._solve_one = scipy.linalg.lapack.get_lapack_funcs(("gbtrf", "gbtrs"), dtype=_numpy_dtype(values))
        flat, self.bands = _bands(values, order, memory, symmetric=False)
        good = np.empty(len(flat), dtype=bool)
        self.pivots = []
        for k, (band, source, matrix) in enumerate(zip(flat, values.t().contiguous().numpy(), self.bands, strict=True)):
            band[places] = source
            _, pivots, info = factor(matrix, below, above, overwrite_ab=1)
            self.pivots.append(pivots)
            good[k] = info == 0
        good &= np.isfinite(self.bands[:, below + above]).all(1)
        self.ok = torch.from_numpy(good)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        below, above = self.order.lower, self.order.upper
        ordered = rhs.numpy().take(self.order.order, axis=1)
        for matrix, pivots, vector, good in zip(self.bands, self.pivots, ordered, self.ok.tolist(), strict=True):
            if good:
                self._solve_one(matrix, below, above, vector, pivots, trans=int(transpose), overwrite_b=1)
        return torch.from_numpy(ordered.take(self.order.place, axis=1))


class WithExchanges:
    """Factors without row exchanges, and factors by LAPACK for the rows whose terms grow too much for that.

    Compiled code looks for such rows, so a recorded step goes through Python only if there are some.

    Parameters
    ----------
    native : the factors without row exchanges.
    with_exchanges : function that factors matrices with values (nnz, r) by LAPACK.
    values : (nnz, b) of all matrices.

    Attributes
    ----------
    grown : (r,) indices of the rows that LAPACK factors; set only if there are some.
    """

    grown: Tensor
    _pivoted: LapackLU

    def __init__(self, native: NativeBand, with_exchanges: Callable[[Tensor], LapackLU], values: Tensor):
        self.native, self._with_exchanges = native, with_exchanges
        self.ok = native.ok.clone()
        unless_all(native.ok, self._factor_grown, [self.ok], [values])

    def _factor_grown(self, ok: Tensor, values: Tensor) -> None:
        self.grown = (~self.native.ok).nonzero().squeeze(1)
        self._pivoted = self._with_exchanges(values.index_select(1, self.grown))
        ok[self.grown] = self._pivoted.ok

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        x = self.native.solve(rhs, transpose)
        unless_all(self.native.ok, partial(self._solve_grown, transpose), [x], [rhs])
        return x

    def _solve_grown(self, transpose: bool, x: Tensor, rhs: Tensor) -> None:
        x[self.grown] = self._pivoted.solve(rhs.index_select(0, self.grown), transpose)

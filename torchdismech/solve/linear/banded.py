"""Banded Cholesky and LU: for chains, whose unknowns can be numbered so that neighbours come next to each other."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.solve.linear.base import Decomposition, DirectSolver
from torchdismech.solve.linear.blocks import BlockElimination
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import BandedOrder, banded_order

__all__ = ["BandedSolver"]

METHODS = ("auto", "lapack", "blocks")


class BandedSolver(DirectSolver):
    """Factor banded matrices, robot by robot with LAPACK or block by block with torch.

    One CPU core, a rod of 101 nodes (n = 403, half-bandwidth 10), microseconds per robot, factor + solve:

    ==================  =====  ======  =======  ========
    method              B = 1  B = 16  B = 256  B = 1024
    ==================  =====  ======  =======  ========
    lapack, Cholesky       71      46       56        70
    blocks, Cholesky     2500     188      131       154
    lapack, LU            116      83      154       163
    blocks, LU           4090     276      205       283
    ==================  =====  ======  =======  ========

    Parameters
    ----------
    pattern : where the entries of the matrices stand. Its `order_hint` is used where it gives a smaller bandwidth than
        reverse Cuthill-McKee.
    method : "lapack" (CPU only), "blocks" (any device) or "auto": lapack on a CPU, blocks elsewhere.

    Attributes
    ----------
    order : the order of the unknowns and the bandwidths that it gives.
    block_count : number of blocks that "blocks" eliminates one after the other.
    """

    name = "banded"

    def __init__(self, pattern: Pattern, method: str = "auto"):
        super().__init__(pattern)
        if method not in METHODS:
            raise InputError(f"banded: method must be one of {', '.join(METHODS)}, got {method!r}")
        self.method = method
        self.order = banded_order(pattern)
        self._lower_places = _lower_band_places(pattern, self.order)
        self._full_places = _full_band_places(self.full, self.order)
        self._blocks = BlockElimination(pattern, self.full, self.order)
        self.block_count = self._blocks.count

    def describe(self) -> str:
        """Return one line for a person: the method and its sizes."""
        kind, o = ("Cholesky" if self.pattern.symmetric else "LU"), self.order
        return f"banded {kind} ({self.method}), n = {self.pattern.n}, bandwidths {o.lower} below and {o.upper} above"

    def memory(self, batch: int) -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds."""
        if self.method == "blocks":
            return 8 * batch * self._blocks.numbers(self.pattern.symmetric)
        width = self.order.lower + 1 if self.pattern.symmetric else 2 * self.order.lower + self.order.upper + 1
        return 8 * batch * self.pattern.n * width

    def _uses_lapack(self, values: Tensor) -> bool:
        on_cpu = values.device.type == "cpu"
        if self.method == "lapack" and not on_cpu:
            raise InputError(f"banded: method 'lapack' runs on the CPU, got values on {values.device}; use 'blocks'")
        return on_cpu and self.method != "blocks"

    def _cholesky(self, values: Tensor) -> Decomposition:
        if self._uses_lapack(values):
            return _LapackCholesky(self.order, self._lower_places, values)
        return self._blocks.cholesky(values)

    def _lu(self, values: Tensor) -> Decomposition:
        if self._uses_lapack(values):
            return _LapackLU(self.order, self._full_places, values)
        return self._blocks.lu(values)


def _lower_band_places(pattern: Pattern, order: BandedOrder) -> np.ndarray:
    """Return where the lower triangle lies in LAPACK's band storage: column by column, diagonal first."""
    row, col = order.place[pattern.rows], order.place[pattern.cols]
    low, high = np.minimum(row, col), np.maximum(row, col)
    return low * (order.lower + 1) + high - low


def _full_band_places(full: Pattern, order: BandedOrder) -> np.ndarray:
    """Return where the entries lie in LAPACK's storage for gbtrf: `lower` spare rows on top of each column."""
    row, col = order.place[full.rows], order.place[full.cols]
    return col * (2 * order.lower + order.upper + 1) + order.lower + order.upper + row - col


def _numpy_dtype(values: Tensor) -> type:
    return np.float32 if values.dtype == torch.float32 else np.float64


def _bands(values: Tensor, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return zeroed band storage of b matrices, flat (b, n * width) and as (b, width, n) of the same memory.

    A matrix of the latter is in Fortran order, so LAPACK overwrites it and nothing is copied. (Likewise the vectors of
    a solve are taken with `take`, whose rows are contiguous; indexing with `[:, order]` gives strided rows, and LAPACK
    would leave its result in a copy.)
    """
    flat: np.ndarray = np.zeros((values.shape[1], n * width), dtype=_numpy_dtype(values))
    return flat, flat.reshape(len(flat), n, width).transpose(0, 2, 1)


class _LapackCholesky:
    """Cholesky factors by pbtrf, one call per robot."""

    def __init__(self, order: BandedOrder, places: np.ndarray, values: Tensor):
        self.order = order
        factor, self._solve_one = lapack.get_lapack_funcs(("pbtrf", "pbtrs"), dtype=_numpy_dtype(values))
        flat, self.bands = _bands(values, len(order.order), order.lower + 1)
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


class _LapackLU:
    """LU factors with partial pivoting by gbtrf, one call per robot."""

    def __init__(self, order: BandedOrder, places: np.ndarray, values: Tensor):
        self.order = order
        below, above = order.lower, order.upper
        factor, self._solve_one = lapack.get_lapack_funcs(("gbtrf", "gbtrs"), dtype=_numpy_dtype(values))
        flat, self.bands = _bands(values, len(order.order), 2 * below + above + 1)
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

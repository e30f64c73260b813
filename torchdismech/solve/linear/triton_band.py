"""Banded factors on a GPU (`native/triton_kernels.py`): one robot in each lane, and the host waits for nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.native.entries import ONE, ZERO
from torchdismech.native.gpu import LANES, kernels
from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse.ordering import BandedOrder

__all__ = ["WIDEST", "TritonBand", "TritonTables", "triton_bytes"]

LINES = 8  # the number of lines of a half is a multiple of this, as the kernels take up to 8 lines at once
# Numbers of a robot that a lane's registers hold in float64, two registers each, beside addresses and the like.
# Symmetric bands of half-bandwidth 10 take them all: 55 are held, 44 of four lines come in, 11 are the pivot's column.
NUMBERS = 110
REGISTERS = 255  # set explicitly: where not all numbers fit, the compiler would take only 64, and spill more of them
# The widest half-bandwidth. With it LU takes some ten seconds to compile, and nine tenths of the numbers that it holds
# spill from registers to the cache.
WIDEST = 24


class TritonTables:
    """Tables of indices for a pattern: which entry the kernels of `triton_kernels.py` load for each number of a line.

    A *half* is the lower or the upper triangle of the band, a *line* a column of the lower or a row of the upper half.

    Parameters
    ----------
    order : the order of the unknowns and the bandwidths.
    sources : index of the entry at each place of the band storage, from `native_band.band_sources`.
    symmetric : whether the sources are those of the lower half alone.
    """

    def __init__(self, order: BandedOrder, sources: np.ndarray, symmetric: bool):
        n, first = len(order.order), len(order.order) * (order.lower + 1)
        self.lines = _lines(n)
        self.below, self.right = _reaches(order)
        self.lower = self._half(sources[:first].reshape(n, -1), self.below)
        self.upper = self.lower if symmetric else self._half(sources[first:].reshape(n, -1), self.right)
        self.order = IndexMap(np.pad(order.order, (0, self.lines - n), constant_values=-1))

    def _half(self, sources: np.ndarray, reach: int) -> IndexMap:
        """Return the sources (lines, reach + 1) of a half, padded with lines of the identity."""
        half = np.full((self.lines, reach + 1), ZERO)
        half[len(sources) :, 0] = ONE
        half[: len(sources), : sources.shape[1]] = sources
        return IndexMap(half)


class TritonBand:
    """Factors of b banded matrices, without row exchanges.

    Parameters
    ----------
    tables : index tables of the pattern.
    values : (nnz, b) on a GPU; on a CPU where the kernels are interpreted.
    rows : (b,) bool, which matrices to factor; None means all. A warp without any returns at once.
    symmetric : whether the matrices are symmetric, with one half stored.
    growth : limit of the terms of the elimination, relative to the largest entry of the matrix. Symmetric matrices need
        not keep it if all their pivots are positive; with 0 only those are `ok`.

    Attributes
    ----------
    ok : (b,) bool, True where a matrix was asked for and its pivots and terms met these conditions.
    definite : (b,) bool, True where all pivots of a symmetric matrix were positive.
    """

    def __init__(self, tables: TritonTables, values: Tensor, rows: Tensor | None, symmetric: bool, growth: float = 0.0):
        self._tables, values, batch = tables, values.contiguous(), values.shape[1]
        self._pitch = -(-batch // LANES) * LANES
        self.ok = torch.empty(batch, dtype=torch.bool, device=values.device)
        # only the kernel for symmetric matrices fills in which are definite
        self.definite = torch.empty_like(self.ok) if symmetric else torch.zeros_like(self.ok)
        rows = torch.ones_like(self.ok) if rows is None else rows.contiguous()
        self._lower = self._upper = values.new_empty(tables.lines * (tables.below + 1) * self._pitch)
        if symmetric:
            self._factor_symmetric(values, rows, growth)
        else:
            self._upper = values.new_empty(tables.lines * (tables.right + 1) * self._pitch)
            self._factor_unsymmetric(values, rows, growth)

    def _factor_symmetric(self, values: Tensor, rows: Tensor, growth: float) -> None:
        below = self._tables.below
        self._launch(
            kernels().code.factor_symmetric,
            *(values, self._tables.lower.on(values.device), self._lower, self.ok, self.definite, rows, *self._sizes),
            growth,
            ANY_SIGN=growth > 0,
            REACH=below,
            CHUNK=_at_once(below + 1, _held(below, None) + below + 1, most=4),
            LARGEST=torch.finfo(values.dtype).max,
            maxnreg=REGISTERS,
        )

    def _factor_unsymmetric(self, values: Tensor, rows: Tensor, growth: float) -> None:
        below, right = self._tables.below, self._tables.right
        lower, upper = self._tables.lower.on(values.device), self._tables.upper.on(values.device)
        width = below + 1 + right
        self._launch(
            kernels().code.factor_unsymmetric,
            *(values, lower, upper, self._lower, self._upper, self.ok, rows, *self._sizes, growth),
            LOWER=below,
            UPPER=right,
            CHUNK=_at_once(width, _held(below, right) + width, most=4),
            LARGEST=torch.finfo(values.dtype).max,
            maxnreg=REGISTERS,
        )

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions with the strides of rhs; rows that are not ok may hold anything."""
        x, scratch = torch.empty_like(rhs), rhs.new_empty(self._tables.lines * self._pitch)
        halves, reaches = (self._lower, self._upper), (self._tables.below, self._tables.right)
        if transpose:
            halves, reaches = halves[::-1], reaches[::-1]
        order = self._tables.order.on(rhs.device)
        self._launch(
            kernels().code.solve,
            *(*halves, self._lower, order, rhs, scratch, x, self.ok, *self._sizes, *rhs.stride(), *x.stride()),
            LOWER=reaches[0],
            UPPER=reaches[1],
            FIRST=self._tables.below,
            CHUNK=_at_once(max(reaches) + 1, 2 * max(reaches), most=LINES),
        )
        return x

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return len(self.ok), self._pitch, self._tables.lines

    def _launch(self, kernel: Any, *arguments: Any, **constants: Any) -> None:
        """Run a kernel on all robots, with one warp for LANES of them."""
        if len(self.ok):
            with torch.cuda.device_of(self.ok):
                kernel[(self._pitch // LANES,)](*arguments, LANES=LANES, num_warps=1, **constants)


def _held(below: int, right: int | None) -> int:
    """Return how many partial sums for later lines a lane holds in registers; `right` is None if symmetric."""
    if right is None:
        return below * (below + 1) // 2
    return sum(max(below - k, 0) for k in range(right)) + sum(max(right - 1 - k, 0) for k in range(below))


def triton_bytes(order: BandedOrder, symmetric: bool, batch: int) -> int:
    """Return the bytes that factors of `batch` float64 matrices take, including the scratch memory of a solve."""
    below, right = _reaches(order)
    width = below + 1 + (0 if symmetric else right + 1)
    return 8 * _lines(len(order.order)) * (width + 1) * -(-batch // LANES) * LANES


def _lines(n: int) -> int:
    return -(-n // LINES) * LINES


def _reaches(order: BandedOrder) -> tuple[int, int]:
    """Return the bandwidths of the lower and the upper half, at least 1 as the kernels require."""
    return max(order.lower, 1), max(order.upper, 1)


def _at_once(width: int, held: int, most: int) -> int:
    """Return how many lines of `width` numbers fit into registers at once beside `held` numbers: a divisor of LINES."""
    return next(count for count in (8, 4, 2, 1) if count == 1 or (count <= most and count * width + held <= NUMBERS))

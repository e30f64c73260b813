"""Banded Cholesky and LU: for chains, whose unknowns can be numbered so that neighbours are close to each other."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, check_choice
from torchdismech.native import Pool, Unavailable, library
from torchdismech.native.gpu import kernels
from torchdismech.solve.linear.base import Decomposition, DirectSolver, Factor
from torchdismech.solve.linear.blocks import BlockElimination
from torchdismech.solve.linear.lapack_band import (
    LapackCholesky,
    LapackLU,
    OnHost,
    WithExchanges,
    cholesky_places,
    lu_places,
    numbers_per_column,
)
from torchdismech.solve.linear.native_band import (
    NativeBand,
    band_bytes,
    band_profile,
    band_sources,
    most_one_by_one,
    one_by_one,
)
from torchdismech.solve.linear.triton_band import WIDEST, TritonBand, TritonTables, triton_bytes
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import banded_order

__all__ = ["BandedSolver"]

METHODS = ("auto", "native", "lapack", "triton", "blocks")
# A factor without row exchanges is accepted while no term of its elimination exceeds (1/epsilon)**NATIVE_GROWTH times
# the largest entry, so that at most a quarter of the digits is lost. Other matrices are factored again with row
# exchanges, so this need not be generous.
NATIVE_GROWTH = 0.25
# Likewise on a GPU, where the host would have to wait to factor matrices again: half of the digits may be lost, as with
# LU by blocks.
TRITON_GROWTH = 0.5


class BandedSolver(DirectSolver):
    """Factor banded matrices: many robots at once by compiled code, one by one with LAPACK, or by blocks with torch.

    On a CPU an LU uses row exchanges where the matrix needs them. On a GPU the host would have to wait to learn which
    matrices need them: "triton" exchanges no rows and "blocks" only rows within a block, and matrices whose terms grow
    by more than 1/sqrt(machine epsilon) are not `ok`.

    Microseconds per robot, factor + solve, native / LAPACK, on a CPU core with vectors of 64 bytes. Half-bandwidth 10
    is a rod of 101 nodes, 119 a shell of 20 x 20 nodes, the others are full bands:

    ========  ====  ============  ============  ============  ============  ============  ============
    half-bw.  n     Cholesky, B = 8, 64, 256                  LU, B = 8, 64, 256
    ========  ====  ============  ============  ============  ============  ============  ============
    10         403  15 / 64       6.9 / 50      11 / 59       29 / 96       14 / 90       35 / 108
    20         800  29 / 182      31 / 237      52 / 262      71 / 395      113 / 366     133 / 539
    40        1000  70 / 445      138 / 503     142 / 696     226 / 1670    325 / 1610    366 / 1570
    64        1200  186 / 990     302 / 1350    304 / 1350    526 / 2190    737 / 2930    854 / 3090
    119       1200  264 / 1140    370 / 1230    370 / 1340    781 / 2870    783 / 2890    802 / 3040
    232       2600  4250 / 10900  4770 / 10600                9650 / 18100  9750 / 22800
    ========  ====  ============  ============  ============  ============  ============  ============

    A vector with two robots costs as much as one with 8 (16 in float32). So few robots are factored one by one, four
    pivots at a time, with lines of a band in vectors. Times of one robot on the same core, all calls included (the
    compiled code alone takes 9 us for the factor of the rod, and 30 by LU):

    ========  ========  ========  ========  ========  ========  =========  =========  ==========
    half-bw.  10        20        40        64        90        119        160        232
    n         403       800       1000      1200      1200      1200       1600       2600
    ========  ========  ========  ========  ========  ========  =========  =========  ==========
    Cholesky  84/128    114/232   170/457   312/884   452/967   454/1119   1363/2333  4101/6088
    LU        150/197   213/336   349/724   674/1496  978/1813  1003/2097  2779/4677  9812/15170
    ========  ========  ========  ========  ========  ========  =========  =========  ==========

    Both codes skip the zeros beyond the reach of each pivot: a rope that lies on itself has a band of 119 whose pivots
    reach 79 places in the root mean square; a factor of 16 such robots takes 336 us each, 519 with the whole band.
    "blocks" takes 1600 us for the rod at B = 1 and 120 at B = 256.

    Parameters
    ----------
    pattern : where the entries of the matrices stand. Its `order_hint` is used where it gives a smaller bandwidth than
        reverse Cuthill-McKee.
    method : "native" (compiled code for many robots at once; CPU only, needs a C++ compiler), "lapack" (CPU only),
        "triton" (a kernel for GPUs; half-bandwidths up to 24), "blocks" (any device) or "auto". On a CPU that is
        native, and lapack where there is no compiler. On a GPU it is triton; blocks for wider bands and where there is
        no Triton. `describe` says which.
    before : solver of a smaller pattern, whose memory for factors this one takes over where it is large enough.

    Attributes
    ----------
    order : the order of the unknowns and the bandwidths that it gives.
    """

    name = "banded"

    def __init__(self, pattern: Pattern, method: str = "auto", before: BandedSolver | None = None):
        super().__init__(pattern)
        check_choice("banded: method", method, METHODS)
        if method == "native":
            library()  # to raise here, rather than at the first factorisation, if it cannot be had
        self.method = method
        self.order = banded_order(pattern)
        if method == "triton":
            self._check_triton()
        self._cholesky_places = cholesky_places(pattern, self.order)
        self._pool, self._largest = Pool(), 0
        if before is not None:  # contact changes the pattern every few steps, and the system clears fresh memory
            self._pool, self._largest = before._pool, before._largest

    @cached_property
    def _lu_places(self) -> np.ndarray:
        return lu_places(self.full, self.order)

    @cached_property
    def _blocks(self) -> BlockElimination:
        return BlockElimination(self.pattern, self.full, self.order)

    @property
    def block_count(self) -> int:
        """Number of blocks that "blocks" eliminates one after the other."""
        return self._blocks.count

    @cached_property
    def _lower_sources(self) -> np.ndarray:
        return band_sources(self.pattern.rows, self.pattern.cols, self.order, symmetric=True)

    @cached_property
    def _full_sources(self) -> np.ndarray:
        return band_sources(self.full.rows, self.full.cols, self.order, symmetric=False)

    @cached_property
    def _profile(self) -> np.ndarray:
        return band_profile(self.pattern.rows, self.pattern.cols, self.order)

    @cached_property
    def _lower_tables(self) -> TritonTables:
        return TritonTables(self.order, self._lower_sources, symmetric=True)

    @cached_property
    def _full_tables(self) -> TritonTables:
        return TritonTables(self.order, self._full_sources, symmetric=False)

    @cached_property
    def reach(self) -> float:
        """Root mean square of the number of places that pivots reach, to which the work of a factor is related."""
        _, last = self._profile
        return float(np.sqrt(np.square(last - np.arange(len(last))).mean()))

    def describe(self, device: torch.device | str = "cpu") -> str:
        """Return one line for a person: the method, as it is on a device, and its sizes."""
        kind, o = ("Cholesky" if self.pattern.symmetric else "LU"), self.order
        method = self.method
        if method == "native":
            method = f"native, {library().made_by}"
        elif method == "triton":
            method = f"triton {kernels().version}"
        elif method == "auto":
            on_cpu = torch.device(device).type == "cpu"
            method = f"auto: {self._described_on_cpu() if on_cpu else self._described_on_gpu()}"
        return f"banded {kind} ({method}), n = {self.pattern.n}, bandwidths {o.lower} below and {o.upper} above"

    def _described_on_cpu(self) -> str:
        try:
            return f"native, {library().made_by}"
        except Unavailable as missing:
            return f"lapack, as native is not to be had: {missing}"

    def _described_on_gpu(self) -> str:
        try:
            self._check_triton()
            return f"triton {kernels().version}"
        except InputError as reason:
            return f"blocks, as triton is not to be had: {reason}"

    def memory(self, batch: int, device: torch.device | str = "cpu") -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds on a device."""
        method = self._method(torch.device(device))
        if method == "blocks":
            return 8 * batch * self._blocks.numbers(self.pattern.symmetric)
        if method == "triton":
            return triton_bytes(self.order, self.pattern.symmetric, batch)
        if method == "native":
            return band_bytes(self.order, self.pattern.symmetric, batch)
        return 8 * batch * self.pattern.n * numbers_per_column(self.order, self.pattern.symmetric)

    def takes_native(self) -> bool:
        """Return whether matrices on a CPU are factored by compiled code; compiles it if need be."""
        if self.method != "auto":
            return self.method == "native"
        try:
            library()
        except Unavailable:  # `describe` says why
            return False
        return True

    def takes_triton(self) -> bool:
        """Return whether matrices on a GPU are factored by the kernel."""
        if self.method != "auto":
            return self.method == "triton"
        try:
            self._check_triton()
        except InputError:  # `describe` says why
            return False
        return True

    def _check_triton(self) -> None:
        """Refuse bands that are too wide for the kernel; raise `Unavailable` where there is none."""
        widest = max(self.order.lower, self.order.upper)
        if widest > WIDEST:
            raise InputError(
                f"banded: method 'triton' takes half-bandwidths up to {WIDEST}, got {widest}; use 'blocks' or the "
                "multifrontal solver"
            )
        kernels()

    def _method(self, device: torch.device) -> str:
        """Return the name of the method on the device; refuse a method that does not run there."""
        on_cpu = device.type == "cpu"
        if self.method in ("native", "lapack") and not on_cpu:
            raise InputError(f"banded: method {self.method!r} runs on the CPU, got values on {device}; use 'auto'")
        if self.method == "triton" and on_cpu and not kernels().interpreted:
            raise InputError(
                "banded: method 'triton' runs on a GPU, got values on the CPU; use 'auto', or set TRITON_INTERPRET=1 "
                "before Python starts to try it out, very slowly"
            )
        if self.method != "auto":
            return self.method
        if not on_cpu:
            return "triton" if self.takes_triton() else "blocks"
        return "native" if self.takes_native() else "lapack"

    def _fewest_alike(self, batch: int) -> int | None:
        if self.method != "auto":
            return None
        if not self.takes_native() or one_by_one(batch):
            return 1
        return most_one_by_one() + 1  # fewer would be factored one by one, which adds in another order

    def _memory(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return memory of `count` numbers for a factor, from a factor that is no longer in use if there is one."""
        if count > self._largest:  # all blocks have the largest size, so that each fits every factor
            self._pool, self._largest = Pool(), count
        return self._pool.numbers(self._largest, dtype)[:count]

    def factor_any_sign(self, values: Tensor, rows: Tensor | None = None) -> tuple[Factor, Tensor]:
        """Return the factor of the matrices, and the rows (B,) that are `ok` although known to be indefinite."""
        if not self.pattern.symmetric or self._method(values.device) not in ("native", "triton"):
            return super().factor_any_sign(values, rows)
        factor = self._factored(self._any_sign, values, rows)
        assert isinstance(factor.parts, NativeBand | TritonBand)
        return factor, factor.ok & ~factor.of_batch(factor.parts.definite)

    def _any_sign(self, values: Tensor, wanted: Tensor | None) -> NativeBand | TritonBand:
        """Return factors of symmetric matrices without row exchanges, whose pivots may have any sign."""
        if self._method(values.device) == "native":
            return self._native(values, symmetric=True)
        return self._triton(values, wanted, symmetric=True)

    def _cholesky(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        method = self._method(values.device)
        if method == "native":
            return self._native(values, symmetric=True, growth=0.0)
        if method == "lapack":
            return OnHost(partial(LapackCholesky, self.order, self._cholesky_places, self._memory), values)
        if method == "triton":
            return self._triton(values, wanted, symmetric=True, growth=0.0)
        return self._blocks.cholesky(values)

    def _indefinite(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        method = self._method(values.device)
        if method == "triton":
            return self._triton(values, wanted, symmetric=True)
        if method == "native":
            mirror = self._mirror.on(values.device)
            return WithExchanges(
                self._native(values, symmetric=True),
                lambda grown: self._lapack_lu(grown.index_select(0, mirror)),
                values,
            )
        return super()._indefinite(values, wanted)

    def _lu(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        method = self._method(values.device)
        if method == "native":
            return WithExchanges(self._native(values, symmetric=False), self._lapack_lu, values)
        if method == "lapack":
            return OnHost(self._lapack_lu, values)
        if method == "triton":
            return self._triton(values, wanted, symmetric=False)
        return self._blocks.lu(values)

    def _native(self, values: Tensor, symmetric: bool, growth: float | None = None) -> NativeBand:
        """Return factors by compiled code; `growth` is by default what `NATIVE_GROWTH` allows."""
        if growth is None:
            growth = torch.finfo(values.dtype).eps ** -NATIVE_GROWTH
        sources = self._lower_sources if symmetric else self._full_sources
        return NativeBand(self.order, sources, self._profile, values, self._memory, symmetric, growth)

    def _triton(
        self, values: Tensor, wanted: Tensor | None, symmetric: bool, growth: float | None = None
    ) -> TritonBand:
        """Return factors by the Triton kernel; `growth` is by default what `TRITON_GROWTH` allows."""
        if growth is None:
            growth = torch.finfo(values.dtype).eps ** -TRITON_GROWTH
        tables = self._lower_tables if symmetric else self._full_tables
        return TritonBand(tables, values, wanted, symmetric, growth)

    def _lapack_lu(self, values: Tensor) -> LapackLU:
        return LapackLU(self.order, self._lu_places, self._memory, values)

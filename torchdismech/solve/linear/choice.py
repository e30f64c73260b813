"""`choose`: the direct solver that is likely the fastest for a pattern, by times estimated from measured constants.

The measurements are in docs/benchmarks.md, "How a linear solver is chosen".
"""

from __future__ import annotations

import math

import torch

from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.base import Solver
from torchdismech.solve.linear.dense import DenseSolver
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.solve.linear.native_band import one_by_one
from torchdismech.sparse import Pattern

__all__ = ["choose"]

# Times are of factor + solve on one CPU core, in nanoseconds per robot; {True: Cholesky, False: LU}. They are
# proportional to the numbers moved, not to the multiplications.

# Without compiled code, LAPACK's bands beat dense matrices from about this number of unknowns on.
DENSE_UP_TO = 16

# Bands by LAPACK: time per number of the band, up to a half-bandwidth of NARROW_BAND and beyond.
NARROW_BAND = 64
NARROW_BAND_TIME = {True: 4.5, False: 4.3}
WIDE_BAND_TIME = {True: 7.5, False: 6.0}

# Bands by compiled code: time per number that pivots reach, plus this much more per number for each place of the reach.
# NATIVE is for a batch, ALONE for few robots that are factored one by one.
NATIVE_TIME = {True: 1.0, False: 1.2}
NATIVE_PLACE_TIME = {True: 0.028, False: 0.03}
ALONE_TIME, ALONE_PLACE_TIME = 3.0, 0.025

# Fronts: time per number of the fronts, per unknown in their solves, and per bucket of fronts for its calls, the last
# for all robots together.
FRONT_TIME = {True: 6.0, False: 8.5}
UNKNOWN_TIME = 150.0
BUCKET_TIME = {True: 80e3, False: 105e3}
BUCKETS_OF_OVERHEAD = 2  # overhead of one factor + solve, in times of a bucket

# Contact changes the pattern, so the analysis has to pay soon: nested dissection takes 110 to 130 us an unknown, a
# band's analysis 5 to 50, and fronts save no more than half of a band's time.
DISSECTION_TIME = 120e3
MOST_SAVED = 0.5
MUCH_WIDER = 1.5  # growth of a chosen band's width from which the choice is made anew

# Krylov methods are not chosen: in contact they were 1.5 to 16 times slower than a band in all cases but one.

# On a GPU (H100, torch 2.11, 2026-11-27): time of the launches for a block of the block elimination, and for a bucket
# of fronts, which follow one another; and multiplications plus additions a second with many robots, in either method.
BLOCK_LAUNCHES, BUCKET_LAUNCHES = 0.35e-3, 0.55e-3  # s
GPU_FLOPS = 600e9
# On a GPU the kernel for narrow bands walks along a robot in one lane, so a few very long robots are faster as fronts.
# Up to 10,000 unknowns the kernel took at most half as long as fronts for 1 to 512 robots, and a sixth for 2048; the
# length from which fronts win is extrapolated.
LONG_BAND = 20_000
FEW_ROBOTS = 1000


def choose(
    pattern: Pattern,
    batch: int,
    device: torch.device | str = "cpu",
    factorisations: float = math.inf,
    like: Solver | None = None,
) -> Solver:
    """Return the direct solver that is likely the fastest: dense if tiny, banded if narrow, multifrontal for the rest.

    On a CPU it looks for compiled code, which the first call on a machine compiles in about a second; with it, tiny
    matrices are solved as bands, too. On a GPU bands that are narrow enough take the kernel, except for a few very long
    robots.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.
    batch : number of robots.
    device : where the values will be.
    factorisations : number of times that the batch is expected to be factored on this pattern, within which a costly
        analysis has to pay.
    like : solver of a pattern that this one grew from, or of this pattern for another number of robots. If it is a
        banded one, a banded solver is chosen again without further estimates, as long as the band is about as wide;
        on a GPU only for another pattern, not for another number of robots.
    """
    if pattern.n == 0:
        return DenseSolver(pattern)
    on_cpu = torch.device(device).type == "cpu"
    banded = _banded(pattern, like)
    if not on_cpu and banded.takes_triton():
        return MultifrontalSolver(pattern) if pattern.n > LONG_BAND and batch < FEW_ROBOTS else banded
    if pattern.n <= DENSE_UP_TO and not (on_cpu and banded.takes_native()):
        return DenseSolver(pattern)
    has_grown = isinstance(like, BandedSolver) and (on_cpu or like.pattern is not pattern)
    if has_grown and banded.order.lower <= MUCH_WIDER * like.order.lower:  # type: ignore[union-attr]
        return banded
    return _faster_on_cpu(banded, batch, factorisations) if on_cpu else _faster_on_gpu(banded, batch)


def _banded(pattern: Pattern, like: Solver | None) -> BandedSolver:
    """Return `like` if it is a banded solver of this pattern, else a new one, on its memory if it is banded."""
    if not isinstance(like, BandedSolver):
        return BandedSolver(pattern)
    return like if like.pattern is pattern else BandedSolver(pattern, before=like)


def _faster_on_cpu(banded: BandedSolver, batch: int, factorisations: float) -> Solver:
    """Return the banded solver, or a multifrontal one of its pattern if that is likely to be faster on a CPU.

    The pattern is analysed for fronts only where that may pay: if they can save enough time, and if they would be
    faster at least without fill.
    """
    pattern, time = banded.pattern, _banded_time(banded, batch)
    if MOST_SAVED * time * batch * factorisations < DISSECTION_TIME * pattern.n:
        return banded
    if time <= _least_multifrontal_time(pattern):
        return banded
    multifrontal = MultifrontalSolver(pattern)
    return banded if time <= _multifrontal_time(multifrontal, batch) else multifrontal


def _faster_on_gpu(banded: BandedSolver, batch: int) -> Solver:
    """Return the banded solver (by blocks), or a multifrontal one if that is likely to be faster on a GPU."""
    multifrontal = MultifrontalSolver(banded.pattern)
    return banded if _time_of_blocks(banded, batch) <= _time_of_fronts(multifrontal, batch) else multifrontal


def _banded_time(solver: BandedSolver, batch: int) -> float:
    """Return an estimate of the time of a banded factor + solve on a CPU, in nanoseconds per robot."""
    symmetric, reach = solver.pattern.symmetric, solver.reach
    if not solver.takes_native():
        width = solver.order.lower
        per_number = (NARROW_BAND_TIME if width <= NARROW_BAND else WIDE_BAND_TIME)[symmetric]
        numbers = solver.memory(batch) / 8 / max(batch, 1)
    else:
        per_number = NATIVE_TIME[symmetric] + NATIVE_PLACE_TIME[symmetric] * reach
        if one_by_one(batch):
            per_number = ALONE_TIME + ALONE_PLACE_TIME * reach
        numbers = solver.pattern.n * (reach + 1) * (1 if symmetric else 2)
    return per_number * numbers


def _least_multifrontal_time(pattern: Pattern) -> float:
    """Return a lower bound of the time of fronts on this pattern, in nanoseconds per robot: that without any fill."""
    return FRONT_TIME[pattern.symmetric] * pattern.nnz + UNKNOWN_TIME * pattern.n


def _multifrontal_time(solver: MultifrontalSolver, batch: int) -> float:
    """Return an estimate of the time of a multifrontal factor + solve on a CPU, in nanoseconds per robot."""
    symmetric, stats = solver.pattern.symmetric, solver.stats
    calls = BUCKET_TIME[symmetric] * (stats.buckets + BUCKETS_OF_OVERHEAD)
    return FRONT_TIME[symmetric] * stats.front_numbers + UNKNOWN_TIME * solver.pattern.n + calls / max(batch, 1)


def _time_of_blocks(solver: BandedSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve by blocks of a band on a GPU [s]."""
    n, reach = solver.pattern.n, solver.order.lower
    flops = n * reach * (reach + 1) * (1 if solver.pattern.symmetric else 2) + 4 * n * reach
    return max(BLOCK_LAUNCHES * solver.block_count, batch * flops / GPU_FLOPS)


def _time_of_fronts(solver: MultifrontalSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve by fronts on a GPU [s]."""
    stats = solver.stats
    flops = 2 * (1 if solver.pattern.symmetric else 2) * (stats.multiplications + 2 * stats.fill)
    return max(BUCKET_LAUNCHES * stats.buckets, batch * flops / GPU_FLOPS)

"""Solvers for batches of sparse linear systems that share a pattern.

`choose` picks one by the pattern, `make` by name. A solver is symbolic: `factor(values)` gives the matrices, `solve` of
that the solution. See `docs/architecture.md` for the interface.
"""

from __future__ import annotations

import torch

from torchdismech.errors import InputError
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.base import Factor, Solver
from torchdismech.solve.linear.dense import DenseSolver
from torchdismech.solve.linear.krylov import BiCGStabSolver, PCGSolver
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.sparse import Pattern

__all__ = ["SOLVERS", "Factor", "Solver", "choose", "make"]

SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (DenseSolver, BandedSolver, MultifrontalSolver, PCGSolver, BiCGStabSolver)
}

# What follows was measured on one CPU core, factor + solve, microseconds per robot.
# Short rods at B = 256, dense / banded: n = 11 1.1 / 2.3, n = 15 1.8 / 2.9, n = 23 7.1 / 3.9.
DENSE_UP_TO = 16
# Shells and a hybrid (`python -m benchmarks.shell_factor`), banded / multifrontal / a loop of qdldl:
#                              Cholesky, B = 1         B = 16                 B = 64                 LU, B = 64
# hybrid, n = 630              607 / 1750 / 690        516 / 551 / 628        635 / 774 / 626        1440 / 1130
# hinges 20 x 20, n = 1200     1130 / 4880 / 2560      1250 / 2350 / 2400     1180 / 2330 / 2460     2710 / 3480
# hinges 15 x 30, n = 1350     911 / 5230 / 2480       1030 / 2440 / 2390     1030 / 2560 / 2400     2410 / 3830
# mid-edges 15 x 30, n = 2611  1710 / 8960 / 2800      2110 / 3480 / 2730     1950 / 3520 / 2740     7540 / 5330
# hinges 40 x 40, n = 4800     11300 / 26800 / 37900   11100 / 17900 / 37100  24100 / 20600 / 37500  55300 / 28600
# The times follow the numbers that are moved rather than the multiplications. Nanoseconds, for Cholesky (True) and LU
# (False): per number of a band, narrow or wide; per number of the fronts and per unknown that passes through them; and
# for the calls that one bucket of fronts takes for factor + solve, however many robots.
NARROW_BAND = 64
NARROW_BAND_TIME = {True: 4.5, False: 4.3}
WIDE_BAND_TIME = {True: 7.5, False: 6.0}
FRONT_TIME = {True: 6.0, False: 8.5}
UNKNOWN_TIME = 150.0
BUCKET_TIME = {True: 80e3, False: 105e3}
BUCKETS_OF_OVERHEAD = 2  # what one factor + solve takes besides its buckets
# Bands of all robots that take more bytes come at up to twice the time: fresh memory is cleared page by page. 40 x 40
# hinges with 590 MB took 10900 to 27500 us in several runs, with 147 MB mostly 11000.
LARGE_BANDS = 500e6
# Away from the CPU the time of small problems is calls, one after the other. A bucket of fronts takes as many as two
# blocks of the block elimination (counted at B = 1 on the CPU: 73 and 35 us). Not yet measured on a GPU.
BLOCKS_PER_BUCKET = 2


def make(name: str, pattern: Pattern, **options) -> Solver:
    """Return the solver of that name for the pattern; options go to its constructor."""
    if name not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {name!r}")
    return SOLVERS[name](pattern, **options)


def choose(pattern: Pattern, batch: int, device: torch.device | str = "cpu") -> Solver:
    """Return the direct solver that is likely the fastest: dense if tiny, banded if narrow, multifrontal for the rest.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.
    batch : number of robots.
    device : where the values will be.
    """
    if pattern.n <= DENSE_UP_TO:
        return DenseSolver(pattern)
    banded, multifrontal = BandedSolver(pattern), MultifrontalSolver(pattern)
    if torch.device(device).type == "cpu":
        narrow = _banded_time(banded, batch) <= _multifrontal_time(multifrontal, batch)
    else:
        narrow = banded.block_count <= BLOCKS_PER_BUCKET * multifrontal.stats.buckets
    return banded if narrow else multifrontal


def _banded_time(solver: BandedSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve on a CPU, in nanoseconds per robot."""
    per_number = NARROW_BAND_TIME if solver.order.lower <= NARROW_BAND else WIDE_BAND_TIME
    time = per_number[solver.pattern.symmetric] * solver.memory(1) / 8
    return 2 * time if solver.memory(batch) > LARGE_BANDS else time


def _multifrontal_time(solver: MultifrontalSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve on a CPU, in nanoseconds per robot."""
    symmetric, stats = solver.pattern.symmetric, solver.stats
    calls = BUCKET_TIME[symmetric] * (stats.buckets + BUCKETS_OF_OVERHEAD)
    return FRONT_TIME[symmetric] * stats.front_numbers + UNKNOWN_TIME * solver.pattern.n + calls / max(batch, 1)

"""Solvers for batches of sparse linear systems that share a pattern.

`choose` picks one by the pattern, `make` by name. A solver is symbolic: `factor(values)` gives the matrices, `solve` of
that the solution. See `docs/architecture.md` for the interface.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from torchdismech.errors import InputError
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.base import Factor, JoinedFactor, Solver
from torchdismech.solve.linear.dense import DenseSolver
from torchdismech.solve.linear.krylov import BiCGStabSolver, PCGSolver
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.solve.linear.shifted import shifted_factor
from torchdismech.sparse import Pattern

__all__ = ["SOLVERS", "Factor", "JoinedFactor", "Setting", "Solver", "choose", "make", "named", "shifted_factor"]

Setting = str | Mapping[str, Any]  # the name of a solver, or {"name": .., and its options}

SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (DenseSolver, BandedSolver, MultifrontalSolver, PCGSolver, BiCGStabSolver)
}

KINDS = {float: "a number", int: "a whole number", str: "a text"}

# What follows was measured on one CPU core, factor + solve, microseconds per robot.
# Short rods at B = 256, dense / banded by LAPACK / by compiled code: n = 11 1.1 / 2.3 / 0.23, n = 15 1.8 / 2.9 / 0.28,
# n = 23 6.5 / 3.9 / 0.38.
DENSE_UP_TO = 16
# Shells and a hybrid (`python -m benchmarks.shell_factor`), banded / multifrontal; LAPACK at B = 1, else compiled code:
#                              Cholesky, B = 1  B = 16         B = 64         LU, B = 1      B = 16         B = 64
# hybrid, n = 630              660 / 1900       297 / 611      414 / 828      1320 / 2680    726 / 1160     842 / 1270
# hinges 20 x 20, n = 1200     1250 / 5020      658 / 2570     731 / 2600     2800 / 8060    1500 / 4140    1650 / 4600
# hinges 15 x 30, n = 1350     1210 / 6450      515 / 2890     608 / 2930     2300 / 8350    1050 / 4490    1220 / 4350
# mid-edges 15 x 30, n = 2611  2060 / 10300     1080 / 3940    1200 / 3750    4760 / 14000   1980 / 6010    2410 / 5760
# hinges 40 x 40, n = 4800     12600 / 30900    10400 / 18700  13900 / 19100  28100 / 44700  29700 / 29400  63100/31700
# The times follow the numbers that are moved rather than the multiplications. Nanoseconds, for Cholesky (True) and LU
# (False): per number of a band by LAPACK, narrow or wide; per number of a band by compiled code, and more for each
# place of half-bandwidth; the same of a robot alone, per number that pivots reach; per number of the fronts and per
# unknown that passes through them; and for the calls that one bucket of fronts takes for factor + solve, however many
# robots.
NARROW_BAND = 64
NARROW_BAND_TIME = {True: 4.5, False: 4.3}
WIDE_BAND_TIME = {True: 7.5, False: 6.0}
NATIVE_TIME = {True: 1.4, False: 1.6}
NATIVE_PLACE_TIME = {True: 0.03, False: 0.035}
ALONE_TIME, ALONE_PLACE_TIME = 3.0, 0.035
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
# The kernel for narrow bands walks along a robot in one lane of a GPU: estimated from its code, 0.6 us an unknown for
# factor + solve, as long as there are few robots. The fronts of a chain then take 23 buckets of some 75 us for n =
# 4003, and move seven times as many bytes, which weighs the more the more robots there are. Not yet measured either.
LONG_BAND = 3000
FEW_ROBOTS = 500
# Nested dissection takes 110 to 130 us an unknown (42 ms at n = 384, 145 ms at 1189, 620 ms at 4680), a band 5 to 50;
# and in the table above fronts save no more than half of a band's time. Where contact changes the pattern, they have to
# pay soon.
DISSECTION_TIME = 120e3
MUCH_WIDER = 1.5  # times as wide as a band that was taken: the choice is made anew
MOST_SAVED = 0.5
# Solvers for a pattern that contact widened, milliseconds a robot for one factor + solve; in brackets the analysis,
# once a pattern. Krylov: flexible CG, with friction BiCGStab, preconditioned by the direct factor of the matrix without
# contact, to 1e-11 of the right-hand side:
#                                       band           fronts  Krylov (iterations)
# knot, k = 4e3 N/m, B = 1               0.44 [9]       [145]   6.95 (13)
# knot, k = 4e5 N/m, B = 1               0.39 [9]       [145]   6.14 (15)
# knot, k = 4e5 N/m, rough, B = 1        1.37 [6]       [141]   11.0 (15)
# knot, k = 4e5 N/m, rough, B = 64       1.97 [6]       [146]   9.81 (15)
# six rods, k = 50 N/m, B = 1            0.30 [8]       [41]    1.86 (3)
# six rods, k = 1 N/m, B = 64            0.40 [10]      [43]    0.85 (2)
# six rods, k = 2000 N/m, B = 64         0.36 [9]       [42]    1.25 (4)
# six rods, k = 50 N/m, rough, B = 64    1.12 [5]       [40]    0.88 (2)
# two rods, few contacts, B = 64         0.04 [3]       [15]    0.12 (3)
# folded sheet, n = 1140, B = 1          1.42 [22]      [99]    5.27 (4)
# folded sheet, n = 4680, B = 1          19.6 [170]     [560]   30.3 (4)
# Krylov saves little analysis (a new band costs less than ten of its solves) and is 1.5 to 16 times slower but for one
# case: contact takes a direct solver for the widened pattern, a band where the fronts' analysis would not pay.


def named(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Return the name of a solver, or "auto", and its options; refuse what no solver takes.

    Parameters
    ----------
    setting : the name, or a mapping like {"name": "pcg", "tolerance": 1e-10, "product": "torch-sparse"}.
    """
    given = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = given.pop("name", None)
    if name != "auto" and name not in SOLVERS:
        raise InputError(f"solver: expected one of auto, {', '.join(SOLVERS)}, got {name!r}")
    taken = {} if name == "auto" else _options(SOLVERS[name])
    for option, value in given.items():
        if option not in taken:
            raise InputError(f"solver: {name} has no option {option!r}; it takes {', '.join(taken) or 'none'}")
        kind = type(taken[option])
        if not (type(value) is kind or (kind is float and type(value) is int)):
            raise InputError(f"solver: {name}: {option} is {KINDS[kind]}, got {value!r}")
    return name, given


def _options(solver: type[Solver]) -> dict[str, Any]:
    """Return the options that a solver takes, its base classes' included, by name with their defaults."""
    makers = [vars(c)["__init__"] for c in reversed(solver.__mro__) if "__init__" in vars(c)]
    every = (p for maker in makers for p in inspect.signature(maker).parameters.values())
    return {p.name: p.default for p in every if p.default is not p.empty}


def make(name: str, pattern: Pattern, **options) -> Solver:
    """Return the solver of that name for the pattern; options go to its constructor."""
    if name not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {name!r}")
    return SOLVERS[name](pattern, **options)


def choose(
    pattern: Pattern,
    batch: int,
    device: torch.device | str = "cpu",
    factorisations: float = math.inf,
    like: Solver | None = None,
) -> Solver:
    """Return the direct solver that is likely the fastest: dense if tiny, banded if narrow, multifrontal for the rest.

    For a batch on a CPU it looks for compiled code, which a machine's first call compiles in about a second; with it,
    tiny matrices are banded too. On a GPU bands that are narrow enough for the kernel take it, but for a few very long
    robots.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.
    batch : number of robots.
    device : where the values will be.
    factorisations : of all robots that the pattern is expected to serve; a costly analysis has to pay within them.
    like : solver of a pattern that this one grew from, or of this one for another number of robots. A band is taken
        again, without looking at anything else, as long as it is about as wide.
    """
    if pattern.n == 0:
        return DenseSolver(pattern)
    on_cpu = torch.device(device).type == "cpu"
    banded = like if isinstance(like, BandedSolver) and like.pattern is pattern else BandedSolver(pattern)
    if not on_cpu and banded.takes_triton():
        return MultifrontalSolver(pattern) if pattern.n > LONG_BAND and batch < FEW_ROBOTS else banded
    if pattern.n <= DENSE_UP_TO and not (on_cpu and banded.takes_native(batch)):
        return DenseSolver(pattern)
    if isinstance(like, BandedSolver) and banded.order.lower <= MUCH_WIDER * like.order.lower:
        return banded
    if on_cpu:
        time = _banded_time(banded, batch)
        if MOST_SAVED * time * batch * factorisations < DISSECTION_TIME * pattern.n:
            return banded
        if time <= _least_multifrontal_time(pattern):
            return banded
    multifrontal = MultifrontalSolver(pattern)
    if on_cpu:
        narrow = time <= _multifrontal_time(multifrontal, batch)
    else:
        narrow = banded.block_count <= BLOCKS_PER_BUCKET * multifrontal.stats.buckets
    return banded if narrow else multifrontal


def _banded_time(solver: BandedSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve on a CPU, in nanoseconds per robot."""
    symmetric, reach = solver.pattern.symmetric, solver.reach
    if not solver.takes_native(batch):
        width = solver.order.lower
        per_number = (NARROW_BAND_TIME if width <= NARROW_BAND else WIDE_BAND_TIME)[symmetric]
        numbers = solver.memory(batch) / 8 / max(batch, 1)
    else:
        per_number = NATIVE_TIME[symmetric] + NATIVE_PLACE_TIME[symmetric] * reach
        if batch == 1:
            per_number = ALONE_TIME + ALONE_PLACE_TIME * reach
        numbers = solver.pattern.n * (reach + 1) * (1 if symmetric else 2)
    time = per_number * numbers
    return 2 * time if solver.memory(batch) > LARGE_BANDS else time


def _least_multifrontal_time(pattern: Pattern) -> float:
    """Return a time, in nanoseconds per robot, that fronts of this pattern cannot stay below: without any fill."""
    return FRONT_TIME[pattern.symmetric] * pattern.nnz + UNKNOWN_TIME * pattern.n


def _multifrontal_time(solver: MultifrontalSolver, batch: int) -> float:
    """Return an estimate of the time of factor + solve on a CPU, in nanoseconds per robot."""
    symmetric, stats = solver.pattern.symmetric, solver.stats
    calls = BUCKET_TIME[symmetric] * (stats.buckets + BUCKETS_OF_OVERHEAD)
    return FRONT_TIME[symmetric] * stats.front_numbers + UNKNOWN_TIME * solver.pattern.n + calls / max(batch, 1)

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
# The band may hold this many times the numbers of the fronts before banded is slower: LAPACK works in the cache.
# Banded / multifrontal at B = 16, and how many times: rod 54 / 253 (0.3), six-armed star of rods 60 / 171 (0.9),
# 20 x 20 shell 1240 / 2580 (1.0), twelve-armed star 374 / 291 (1.8), branching tree 794 / 406 (3.2).
BAND_TO_FRONTS = 1.5
# For few robots the calls of the multifrontal method (40 us each) count. At B = 1: tree 747 / 1370 (3.2), larger tree
# 3440 / 1580 (6.3).
FEW_ROBOTS = 8
BAND_TO_FRONTS_FEW = 4.0
# Away from the CPU the time of small problems is calls, one after the other. A bucket of fronts takes as many as two
# blocks of the block elimination (counted at B = 1 on the CPU: 73 and 35 us). Not yet measured on a GPU.
BLOCKS_PER_BUCKET = 2


def make(name: str, pattern: Pattern, **options) -> Solver:
    """Return the solver of that name for the pattern; options go to its constructor."""
    if name not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {name!r}")
    return SOLVERS[name](pattern, **options)


def choose(pattern: Pattern, batch: int, device: torch.device | str = "cpu") -> Solver:
    """Return the direct solver that is likely the fastest: dense if tiny, banded for chains, multifrontal for the rest.

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
        ratio = BAND_TO_FRONTS if batch >= FEW_ROBOTS else BAND_TO_FRONTS_FEW
        narrow = banded.memory(1) <= ratio * multifrontal.memory(1)
    else:
        narrow = banded.block_count <= BLOCKS_PER_BUCKET * multifrontal.stats.buckets
    return banded if narrow else multifrontal

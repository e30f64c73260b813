"""Factor and solve on a GPU by every method at hand, against the bytes they move and their multiplications.

The rows show which method is the fastest where. The figures beside them are for constants that `solve/linear` guesses:
the times of a block in the block elimination and of a bucket of fronts, and the lengths and numbers of robots for which
fronts are faster than the kernel that walks along a band.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import rods, shells
from benchmarks.gpu_parts import READY, Look, Record, attempted, row
from benchmarks.machine import median_seconds
from benchmarks.peers import Cantilever
from benchmarks.shell_factor import dominant_values, residual
from benchmarks.table import Row
from torchdismech import forces
from torchdismech.solve import linear
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.base import Solver
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.sparse import Pattern

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "triton": ("banded", {"method": "triton"}),
    "blocks": ("banded", {"method": "blocks"}),
    "multifrontal": ("multifrontal", {}),
    "dense": ("dense", {}),
}
DIFFERENT = 16  # matrices, repeated over the batch, as times of direct methods do not depend on the numbers
SHARE = 0.4  # of the device's free memory, which a factor may take


def rod_pattern(nodes: int, symmetric: bool = True) -> Pattern:
    """Return the pattern of a cantilever, unsymmetric with drag."""
    loads = [] if symmetric else [forces.Resistive(0.5, 1.0)]
    case = rods.Case(1e6, 1, "eager", 1, 1e-2, rod=Cantilever(nodes=nodes))
    return rods.cantilever_model(case, *loads).layout.pattern


def factor_part(look: Look) -> Iterator[Record]:
    """Measure rods by all methods, then long rods and shells by those between which `choose` has to choose."""
    many = (1, 2) if look.tiny else (1, 256, 8192, 65536)
    yield READY
    on_rods = [name for name in METHODS if name != "triton" or look.device == "cuda"]  # a CPU would interpret it
    for nodes, symmetric in ((101, True), (25, True), (101, False)):
        pattern = rod_pattern(nodes, symmetric)
        kind = "Cholesky" if symmetric else "LU"
        yield from compared(look, f"factor: rod, {nodes} nodes, {kind}", pattern, on_rods, many)
    for case in ("plate, hinges", "plate, mid-edge normals"):
        pattern = shells.CASES[case](1, False, "cpu").layout.pattern
        yield from compared(
            look, f"factor: {case}", pattern, ["blocks", "multifrontal"], many[:1] if look.tiny else (1, 64, 1024)
        )
    for nodes in () if look.tiny else (501, 1001, 2501):
        narrow = [name for name in on_rods if name in ("triton", "multifrontal")]
        yield from compared(
            look, f"factor: rod, {nodes} nodes, Cholesky", rod_pattern(nodes), narrow, (1, 64, 512, 2048)
        )


def compared(look: Look, case: str, pattern: Pattern, names: list[str], batches: tuple[int, ...]) -> Iterator[Record]:
    """Yield a row for each method and number of robots."""
    solvers: dict[str, Solver] = {}

    def made(name: str) -> Iterator[Record]:
        kind, options = METHODS[name]
        solvers[name] = linear.make(kind, pattern, **options)
        yield sizes(case, solvers[name])

    for name in names:
        yield from attempted(case, 1, name, made, name)
    for batch in batches:
        for name, solver in solvers.items():
            yield from attempted(case, batch, name, timed, look, case, solver, name, batch)


def sizes(case: str, solver: Solver) -> Record:
    """Return the sizes of a solver as a record: unknowns, nonzeros, and blocks or buckets, which follow each other."""
    found = {
        "kind": "sizes",
        "case": case,
        "solver": solver.describe(),
        "n": solver.pattern.n,
        "nnz": solver.pattern.nnz,
    }
    if isinstance(solver, BandedSolver) and solver.method == "blocks":
        found["blocks"] = solver.block_count
    if isinstance(solver, MultifrontalSolver):
        found["buckets"] = solver.stats.buckets
    return {"figures": found}


def timed(look: Look, case: str, solver: Solver, name: str, batch: int) -> Iterator[Record]:
    """Yield the row of one method; where its factor would take too much memory it says so instead."""
    pattern, takes = solver.pattern, solver.memory(batch, look.device)
    if look.device == "cuda" and takes > SHARE * torch.cuda.mem_get_info()[0]:
        yield row(Row(case, batch, name, note=f"left out: the factor would take {1e-9 * takes:.0f} GB"))
        return
    few = dominant_values(pattern, min(batch, DIFFERENT))
    values = few.to(look.device).repeat(1, -(-batch // few.shape[1]))[:, :batch].contiguous()
    right = torch.from_numpy(np.random.default_rng(1).normal(size=(few.shape[1], pattern.n)))
    rhs = right.to(look.device).repeat(-(-batch // few.shape[1]), 1)[:batch].contiguous()

    def work() -> Tensor:
        return solver.factor(values).solve(rhs)

    x = work()[: few.shape[1]].cpu()
    seconds = median_seconds(work, look.device, 1 if look.tiny else 5, budget=1.0)
    ok = int(solver.factor(values).ok.sum())
    # values are read once, a factor is written once and read twice
    moved = 8 * batch * (pattern.nnz + 2 * pattern.n) + 3 * takes
    yield row(
        Row(
            case,
            batch,
            name,
            seconds=seconds / batch,
            residual=residual(pattern, few, x, right),
            converged=ok,
            note=f"{1e3 * seconds:.3g} ms for all; {1e-9 * moved / seconds:.0f} GB/s of {1e-9 * moved:.3g} GB, "
            f"{1e-9 * batch * flops(solver) / seconds:.3g} GFLOP/s of {1e-6 * flops(solver):.3g} MFLOP a robot",
        )
    )


def flops(solver: Solver) -> float:
    """Return an estimate of the additions and multiplications of one factor + solve, without padding."""
    n, kinds = solver.pattern.n, 1 if solver.pattern.symmetric else 2
    if isinstance(solver, MultifrontalSolver):
        return kinds * 2 * (solver.stats.multiplications + 2 * solver.stats.fill)
    if isinstance(solver, BandedSolver):
        reach = solver.order.lower
        return kinds * n * reach * (reach + 1) + 4 * n * reach
    return kinds * n**3 / 3 + 2 * n**2

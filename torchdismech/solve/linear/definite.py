"""What factors say of matrices that may not be positive definite, or hardly so."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.linear.base import Factor, JoinedFactor, Solver

__all__ = ["RESISTS", "factored", "resisting", "softest_motion"]

# The smallest eigenvalue of a matrix with ones on its diagonal. Where rounding alone keeps it from zero it is up to
# 3e-15 (a coarse shell with hinges; rods 7e-16); of a clamped rod of 1000 edges that is 15,000 times as long as thick
# it is 5e-14. In single precision rounding leaves 1e-7, and rods of 100 edges have 6e-8 to 4e-7: some of them cannot be
# told apart.
RESISTS = {torch.float64: 1e-14, torch.float32: 2e-7}
ITERATIONS = 2  # each makes what is resisted 1e8 times smaller, or more


def factored(solver: Solver, values: Tensor, rows: Tensor, nearly: bool = False) -> tuple[Factor, Tensor]:
    """Return the factor of the matrices of some rows (B,), and which of these are known to be positive definite.

    Iterative solvers take matrices as they are, and do not know.

    Parameters
    ----------
    nearly : take singular matrices in double precision with a diagonal that is larger by half of `RESISTS`, as rounding
        makes others that should be singular.
    """
    factor = solver.factor(values, rows=rows)
    if not (solver.pattern.symmetric and solver.solves_indefinite):
        return factor, torch.zeros_like(rows)
    lost = rows & ~factor.ok
    if not bool(lost.any()):
        return factor, factor.ok
    found = JoinedFactor(factor, solver.factor(values, rows=lost, indefinite=True))
    singular = rows & ~found.ok
    if nearly and values.dtype == torch.float64 and bool(singular.any()):
        return JoinedFactor(found, solver.factor(_shifted(solver, values, 0.5), singular, indefinite=True)), factor.ok
    return found, factor.ok


def _shifted(solver: Solver, values: Tensor, count: float) -> Tensor:
    """Return the values (nnz, B) with a diagonal that is larger by so many times `RESISTS`."""
    shifted = values.clone()
    shifted[solver.diagonal(values.device)] *= 1 + count * RESISTS[values.dtype]
    return shifted


def resisting(solver: Solver, values: Tensor, rows: Tensor, least: float = 1.0) -> Tensor:
    """Return which matrices (B,) of some rows are positive definite by more than rounding.

    A factor of the matrix itself does not tell: where a robot is free to move, rounding leaves a pivot above zero,
    below it, or none. In single precision soft robots cannot be told from free ones, so there that decides still.

    Parameters
    ----------
    least : of the smallest eigenvalue, in units of `RESISTS`; with -1 what is free to move counts as well.
    """
    if values.dtype == torch.float64:
        values = _shifted(solver, values, -least)
    return solver.factor(values, rows=rows).ok & rows


def softest_motion(solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return what the matrices (n, n) of some rows resist least, (B, n), of length one with ones on their diagonals.

    By inverse iterations, for matrices in double precision whose smallest eigenvalue is zero but for rounding:
    `resisting` says with `least` -1 that they resist, and with 1 that they do not.
    """
    factor = solver.factor(_shifted(solver, values, 1.0), rows=rows)
    scale = values[solver.diagonal(values.device)].t().abs().sqrt()
    way = torch.sin(1.0 + torch.arange(scale.shape[1], dtype=values.dtype, device=values.device)).expand_as(scale)
    for _ in range(ITERATIONS):
        way = scale * factor.solve(scale * way)
        way = way / torch.linalg.vector_norm(way, dim=1, keepdim=True).clamp_min(torch.finfo(way.dtype).tiny)
    return way

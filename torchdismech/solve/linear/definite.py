"""Tests by factorization of whether symmetric matrices are positive definite, and factors of those that are not.

They tell stable equilibria from unstable and neutral ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.linear.base import DirectSolver, Factor, JoinedFactor, Solver

__all__ = ["SMALLEST_EIGENVALUE", "factored", "positive_definite", "null_vectors"]

# Smallest eigenvalue, of a matrix scaled to ones on its diagonal, from which the matrix counts as positive definite.
# Where the eigenvalue should be zero, rounding leaves up to 3e-15 (a coarse shell with hinges; rods 7e-16); a clamped
# rod of 1000 edges that is 15,000 times as long as thick has 5e-14. In single precision rounding leaves 1e-7, and rods
# of 100 edges have 6e-8 to 4e-7, so that some of them cannot be told from robots that are free to move.
SMALLEST_EIGENVALUE = {torch.float64: 1e-14, torch.float32: 2e-7}
ITERATIONS = 2  # each makes the part along other eigenvectors at least 1e8 times smaller


def factored(solver: Solver, values: Tensor, rows: Tensor, nearly: bool = False) -> tuple[Factor, Tensor]:
    """Return the factor of the matrices of some rows (B,), and the rows (B,) known to be positive definite.

    Matrices of a symmetric pattern that are not positive definite are factored as indefinite ones. No row is known to
    be positive definite on unsymmetric patterns, or with iterative solvers.

    Parameters
    ----------
    nearly : whether to factor matrices that are exactly singular in double precision with their diagonal raised by half
        of `SMALLEST_EIGENVALUE`. Rounding has much the same effect on other matrices that should be singular.
    """
    factor = solver.factor(values, rows=rows)
    if not (solver.pattern.symmetric and solver.solves_indefinite):
        return factor, torch.zeros_like(rows)
    definite = factor.ok if isinstance(solver, DirectSolver) else torch.zeros_like(rows)
    lost = rows & ~factor.ok
    if not bool(lost.any()):
        return factor, definite
    found = JoinedFactor(factor, solver.factor(values, rows=lost, indefinite=True))
    singular = rows & ~found.ok
    if nearly and values.dtype == torch.float64 and bool(singular.any()):
        return JoinedFactor(found, solver.factor(_shifted(solver, values, 0.5), singular, indefinite=True)), definite
    return found, definite


def _shifted(solver: Solver, values: Tensor, count: float) -> Tensor:
    """Return the values (nnz, B) with the diagonal multiplied by 1 + `count` times `SMALLEST_EIGENVALUE`."""
    shifted = values.clone()
    shifted[solver.diagonal(values.device)] *= 1 + count * SMALLEST_EIGENVALUE[values.dtype]
    return shifted


def positive_definite(solver: Solver, values: Tensor, rows: Tensor, least: float = 1.0) -> Tensor:
    """Return the rows (B,) among `rows` whose matrix is positive definite by more than rounding.

    In double precision the matrix is factored with its diagonal lowered by `least` times `SMALLEST_EIGENVALUE`.
    Factoring the matrix itself would not tell: where a robot is free to move, rounding leaves a pivot that is positive,
    negative or zero. In single precision soft robots cannot be told from free ones, and the matrix itself is factored.

    Parameters
    ----------
    least : smallest eigenvalue that is asked for, in units of `SMALLEST_EIGENVALUE`; with -1 rows count, too, whose
        smallest eigenvalue is zero but for rounding, as that of a robot that is free to move.
    """
    if values.dtype == torch.float64:
        values = _shifted(solver, values, -least)
    return solver.factor(values, rows=rows).ok & rows


def null_vectors(solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return the unit eigenvectors (B, n) of the smallest eigenvalue of some rows' matrices scaled to a unit diagonal.

    The components belong to the scaled unknowns: x = component / sqrt(diagonal). They are found by inverse iterations,
    for matrices in double precision whose smallest eigenvalue is zero but for rounding: those for which
    `positive_definite` is True with `least` -1 and False with 1.
    """
    factor = solver.factor(_shifted(solver, values, 1.0), rows=rows)
    scale = values[solver.diagonal(values.device)].t().abs().sqrt()
    way = torch.sin(1.0 + torch.arange(scale.shape[1], dtype=values.dtype, device=values.device)).expand_as(scale)
    for _ in range(ITERATIONS):
        way = scale * factor.solve(scale * way)
        way = way / torch.linalg.vector_norm(way, dim=1, keepdim=True).clamp_min(torch.finfo(way.dtype).tiny)
    return way

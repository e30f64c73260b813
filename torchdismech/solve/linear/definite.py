"""What factors say of matrices that may not be positive definite, or hardly so."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.linear.base import Factor, JoinedFactor, Solver

__all__ = ["RESISTS", "factored", "resisting"]

# The smallest eigenvalue of a matrix with ones on its diagonal. Where rounding alone keeps it from zero it is up to
# 3e-15 (a coarse shell with hinges; rods 7e-16); of a clamped rod of 1000 edges that is 15,000 times as long as thick
# it is 5e-14. In single precision rounding leaves 1e-7, and rods of 100 edges have 6e-8 to 4e-7: some of them cannot be
# told apart.
RESISTS = {torch.float64: 1e-14, torch.float32: 2e-7}


def factored(solver: Solver, values: Tensor, rows: Tensor) -> tuple[Factor, Tensor]:
    """Return the factor of the matrices of some rows (B,), and which of these are known to be positive definite.

    Iterative solvers take matrices as they are, and do not know.
    """
    factor = solver.factor(values, rows=rows)
    if not (solver.pattern.symmetric and solver.solves_indefinite):
        return factor, torch.zeros_like(rows)
    lost = rows & ~factor.ok
    if not bool(lost.any()):
        return factor, factor.ok
    return JoinedFactor(factor, solver.factor(values, rows=lost, indefinite=True)), factor.ok


def resisting(solver: Solver, values: Tensor, rows: Tensor, least: float = 1.0) -> Tensor:
    """Return which matrices (B,) of some rows are positive definite by more than rounding.

    A factor of the matrix itself does not tell: where a robot is free to move, rounding leaves a pivot above zero,
    below it, or none. In single precision soft robots cannot be told from free ones, so there that decides still.

    Parameters
    ----------
    least : of the smallest eigenvalue, in units of `RESISTS`; with -1 what is free to move counts as well.
    """
    if values.dtype == torch.float64:
        diagonal, values = solver.diagonal(values.device), values.clone()
        values[diagonal] *= 1 - least * RESISTS[values.dtype]
    return solver.factor(values, rows=rows).ok & rows

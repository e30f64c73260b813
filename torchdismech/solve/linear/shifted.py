"""Factors of symmetric matrices whose diagonals are raised until they are positive definite."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.linear.base import DirectSolver

__all__ = ["largest_entry", "shifted_factor"]

SHIFTS = 14  # largest number of shifts that are tried, each ten times the one before
# First shift, relative to the largest diagonal entry. Where an edge is being pressed inside out, the shift that is
# needed is larger than the largest entry.
LEAST_SHIFT = 1e-11


def largest_entry(diagonal: Tensor, weight: Tensor) -> Tensor:
    """Return the largest absolute entry (B,) [N/m] on the weighted diagonals (m, B) of matrices.

    Parameters
    ----------
    weight : (m,) factors of the residuals in their norm, which convert torques to forces; see `NewtonOptions`. An entry
        of the diagonal is multiplied by the square of its weight.
    """
    return (diagonal.abs() * weight.square().unsqueeze(1)).amax(0)


def shifted_factor(
    solver,
    values: Tensor,
    weight: Tensor,
    rows: Tensor,
    least: float = LEAST_SHIFT,
    shifts: int = SHIFTS,
    rhs: Tensor | None = None,
):
    """Return the factor of some rows' symmetric matrices, with diagonals raised until they are positive definite.

    The shift of an unknown is divided by the square of its weight, so that robots of any size are treated alike. Rows
    for which no shift suffices are not `ok`.

    Parameters
    ----------
    weight : (m,) factors of the residuals in their norm, which convert torques to forces; see `NewtonOptions`.
    rows : (B,) rows to factor.
    least : first shift, relative to the largest diagonal entry.
    shifts : largest number of shifts that are tried, each ten times the one before.
    rhs : (B, m) right-hand sides that the caller solves for. Some solvers do not tell that a matrix is indefinite: with
        these the diagonal is raised until the solution is on the same side as the right-hand side.
    """
    diagonal = solver.diagonal(values.device)
    scale, share = largest_entry(values[diagonal], weight), weight.square().reciprocal().unsqueeze(1)
    shift, missing = torch.zeros_like(scale), rows
    # iterative solvers find only in a solve that a matrix is indefinite, by a right-hand side with all eigenvectors
    trial = torch.sin(1.0 + torch.arange(len(share), dtype=values.dtype, device=values.device)).expand(len(scale), -1)
    tells = (solver.pattern.symmetric and isinstance(solver, DirectSolver)) or not solver.solves_indefinite
    uphill = torch.zeros_like(rows)
    for k in range(shifts):
        shift = torch.where(missing, least * 10.0**k * scale, shift)
        shifted = values.clone()
        shifted[diagonal] += shift * share
        factor = solver.factor(shifted, rows=rows)
        factor.solve(trial)
        if rhs is not None and not tells:
            uphill = (rhs * factor.solve(rhs)).sum(1) < 0
        missing = missing & ~(factor.ok & ~uphill)
        if not bool(missing.any()):
            break
    return factor

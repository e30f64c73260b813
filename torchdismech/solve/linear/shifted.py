"""Factors of matrices that are not positive definite: their diagonals are raised until they are."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["largest_entry", "shifted_factor"]

SHIFTS = 14  # how often a matrix is shifted, tenfold each time ...
LEAST_SHIFT = 1e-11  # ... from this part of its largest entry on; what presses an edge inside out takes more than once


def largest_entry(diagonal: Tensor, weight: Tensor) -> Tensor:
    """Return the largest size (B,) [N/m] of the numbers (m, B) on the diagonals of some robots' matrices.

    Parameters
    ----------
    weight : (m,) of the unknowns' residuals in their norm, which makes torques forces; see `NewtonOptions`.
    """
    return (diagonal.abs() * weight.square().unsqueeze(1)).amax(0)


def shifted_factor(
    solver, values: Tensor, weight: Tensor, rows: Tensor, least: float = LEAST_SHIFT, shifts: int = SHIFTS
):
    """Return the factor of some rows' symmetric matrices, their diagonals raised until they are positive definite.

    Angles are raised as what moves at the lever that their weights have, so that robots of any size are raised alike.

    Parameters
    ----------
    weight : (m,) of the unknowns' residuals in their norm, which makes torques forces; see `NewtonOptions`.
    least, shifts : by which part of the largest entry, and how often, tenfold each time.
    """
    diagonal = solver.diagonal(values.device)
    scale, share = largest_entry(values[diagonal], weight), weight.square().reciprocal().unsqueeze(1)
    shift, missing = torch.zeros_like(scale), rows
    for k in range(shifts):
        shift = torch.where(missing, least * 10.0**k * scale, shift)
        shifted = values.clone()
        shifted[diagonal] += shift * share
        factor = solver.factor(shifted, rows=rows)
        factor.solve(torch.zeros_like(shifted[diagonal].t()))  # iterative solvers know only then whether it worked
        missing = missing & ~factor.ok
        if not bool(missing.any()):
            break
    return factor

"""Interior-point method for a batch of linear complementarity problems; each row has its own steps and its own end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdismech.solve.complementarity.lcp import DenseSystem
    from torchdismech.solve.complementarity.pyramid import PyramidSystem

__all__ = ["active_set_polished", "interior_point"]

BOUNDARY = 0.995  # fraction of the way to the boundary that a step may take
SHORT_STEP = 0.1  # after a shorter step the next one is centred more
CENTRED = 0.5  # least fraction of the mean product z_i w_i that such a centred step aims at
GAIN = 0.5  # a row within the tolerance goes on while each step leaves at most this fraction of the error
ROUNDING = 1e-14  # error of the scaled problem below which more steps gain nothing
POLISHING_STEPS = 3  # Newton steps on the equations of the active set after the iteration
FREE, HELD = 1e-10, 1e10  # added to the diagonal of unknowns that move, and of those held at zero


# the map w = A z + q of a complementarity problem, with the linear solve that an interior-point method needs
LinearSystem: TypeAlias = "DenseSystem | PyramidSystem"


def interior_point(
    system: LinearSystem, z: Tensor, w: Tensor, present: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """Follow the central path z_i w_i = t, w = A z + q, to t = 0 by Mehrotra's predictor-corrector method.

    z and w of a row move by the same step length s, so that a step multiplies the residual of w = A z + q by exactly
    1 - s. The path leads to a solution for certain where A is monotone (A + A^T positive semidefinite). With friction A
    is not monotone, and rows may fail. Unknowns that are zero at the solution come out small, not zero: see
    `active_set_polished`.

    Parameters
    ----------
    system : the map w = A z + q, scaled so that |q| is about 1.
    z, w : (B, m) positive first iterates.
    present : (B, m) bool; the other unknowns are padding: they do not move, and A must not couple them with the rest.
    tolerance : of the error, the larger one of the residual of w = A z + q and the largest min(z_i, w_i, z_i w_i). Rows
        that are within it go on while each step halves the error: the smaller it gets, the more surely it shows which
        of z_i and w_i is zero, above all where A is singular.

    Returns
    -------
    The best iterates z (B, m) and the iterations (B,) used.
    """
    best, least = z.clone(), torch.full_like(z[:, 0], torch.inf)
    iterations = torch.zeros_like(least, dtype=torch.long)
    last_step, last_error = torch.ones_like(least), torch.full_like(least, torch.inf)
    index = torch.arange(len(z), device=z.device)  # the rows that still run; the others are computed no more
    for iteration in range(max_iterations + 1):
        gap = torch.where(present, system.product(z) + system.q - w, 0.0)
        smaller = torch.where(present, torch.minimum(torch.minimum(z, w), z * w), 0.0)
        error = torch.maximum(gap.abs().amax(1), smaller.amax(1))
        better = error < least[index]  # False where it is NaN
        best[index] = torch.where(better[:, None], z, best[index])
        least[index] = torch.where(better, error, least[index])
        falls = (error <= GAIN * last_error) & (error > ROUNDING)
        going = (((error > tolerance) | falls) & torch.isfinite(error)).nonzero().flatten()
        if not len(going) or iteration == max_iterations:
            break
        if len(going) < len(index):
            system, index = system.rows(going), index[going]
            z, w, gap, present, last_step, error = (x[going] for x in (z, w, gap, present, last_step, error))
        last_error = error
        z, w, last_step = _stepped(system, z, w, gap, present, last_step)
        iterations[index] += 1
    return best, iterations


def _stepped(system: LinearSystem, z, w, gap, present, last_step) -> tuple[Tensor, Tensor, Tensor]:
    """Return z and w (B, m) after one predictor-corrector step, and its length (B,)."""
    count = present.sum(1).clamp(min=1)
    products = torch.where(present, z * w, 0.0)
    mean = products.sum(1) / count
    factored = system.factor(torch.where(present, w / z, 1.0))
    dz, dw = _direction(factored, z, w, gap, -products, present)
    reach = _step_length(z, w, dz, dw, present)[:, None]
    predicted = torch.where(present, (z + reach * dz) * (w + reach * dw), 0.0).sum(1) / count
    centring = (predicted / mean).clamp(0.0, 1.0) ** 3
    centring = torch.where(last_step < SHORT_STEP, centring.clamp(min=CENTRED), centring)
    dz, dw = _direction(factored, z, w, gap, (centring * mean)[:, None] - products - dz * dw, present)
    step = _step_length(z, w, dz, dw, present)
    return z + step[:, None] * dz, w + step[:, None] * dw, step


def _direction(factored, z, w, gap, products, present) -> tuple[Tensor, Tensor]:
    """Return steps dz and dw (B, m) that close the gap A z + q - w and change the products z_i w_i by `products`."""
    dz = factored.solve(torch.where(present, products / z - gap, 0.0))
    dw = (products - w * dz) / z
    return torch.where(present, dz, 0.0), torch.where(present, dw, 0.0)


def _step_length(z, w, dz, dw, present) -> Tensor:
    """Return the longest step length (B,), up to 1, that leaves at least 1 - BOUNDARY of every z_i and w_i."""
    most = torch.where(present, torch.maximum(-dz / z, -dw / w), 0.0).amax(1)
    return (BOUNDARY / most.clamp(min=BOUNDARY)).clamp(max=1.0)


def active_set_polished(system: LinearSystem, z: Tensor, present: Tensor) -> Tensor:
    """Return z (B, m) after a few Newton steps on the equations of its active set, so that small values become zero.

    The equations are w_i = 0 where z_i > w_i, else z_i = 0. A row takes a step only if it reduces the largest
    |min(z_i, w_i)|. Where the equations are singular, the steps stay close to z.
    """

    def w_and_error(z):
        w = system.product(z) + system.q
        return w, torch.where(present, torch.minimum(z, w).abs(), 0.0).amax(1)

    w, error = w_and_error(z)
    for _ in range(POLISHING_STEPS):
        free = z > w
        diagonal = torch.where(free, torch.full_like(z, FREE), HELD)
        right = torch.where(present, torch.where(free, -w, -HELD * z), 0.0)
        step = system.factor(torch.where(present, diagonal, 1.0)).solve(right)
        trial = torch.where(present & free, (z + step).clamp(min=0.0), torch.where(present, 0.0, z))
        trial_w, trial_error = w_and_error(trial)
        better = trial_error < error
        if not bool(better.any()):
            break
        z = torch.where(better[:, None], trial, z)
        w, error = torch.where(better[:, None], trial_w, w), torch.where(better, trial_error, error)
    return z

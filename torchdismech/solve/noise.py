"""The rounding noise of residuals, and the rules by which a search may end within it.

Rounding adds noise to a residual. The noise in stiff directions may be larger than the whole remaining residual in soft
ones: in single precision the noise of a rod's stretching forces is as large as its weight, long before the rod hangs in
equilibrium. So a residual within the noise does not tell whether the root is reached. The lengths of the Newton step
that led there and of the one before do, as Newton's method converges quadratically:

- after a *short* step, of at most sqrt(machine epsilon) times the trust radius, only a rounding error remains;
- so it does after a step from which a far shorter one is to be expected next;
- steps a little longer than short ones that do not get shorter any more are rounding errors themselves.

Towards a barrier steps creep: each covers a part of the distance, and their lengths hardly decrease. A search may end
there only after a far shorter step, or once steps of nearly short length no longer lower the residual or the potential.

Where steps stay long, the matrix does not tell in this precision where the root is, and the search fails.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.rows import weighted_norms

if TYPE_CHECKING:
    from torchdismech.solve.search import System

__all__ = [
    "NEAR",
    "lengths",
    "negligible",
    "next_length",
    "rounding_noise",
    "settled",
    "settled_where_steps_creep",
    "short_length",
]

ROUNDING = 2.0  # machine epsilons of each product (diagonal entry) x (unknown) that count as noise in a residual
# Lengths in multiples of a short step's. A step counts as the last where the next one is expected to be no longer than
# `LEFT`; this is small because the first step of a rod stretches it and says little about those that bend it. After a
# step of up to `NEAR` the next one is short, as Newton's method turns a step of 30 sqrt(eps) trust radii into one of
# some 900 eps. Steps of up to `FEW` may be rounding errors.
LEFT, NEAR, FEW = 1e-4, 30.0, 4.0
FAR_SHORTER = 1e-2  # likewise: longest step after which a search whose steps may creep has settled


def rounding_noise(x: Tensor, values: Tensor, diagonal: Tensor, weight: Tensor) -> Tensor:
    """Return the norm (B,) below which a residual at x (B, m) is rounding noise, so that x may as well be the root.

    Rounding of positions rotates the edges between them. So an angle counts as at least as large as the largest
    position, divided by the length that converts torques to forces.

    Parameters
    ----------
    values, diagonal : values (nnz, B) of the matrix, and the indices (m,) of its diagonal among them.
    weight : (m,) as of `NewtonOptions`; unknowns whose weight is not 1 are taken for angles.
    """
    angle = weight != 1
    positions = torch.where(angle, 0.0, x).abs().amax(1, keepdim=True)
    size = torch.where(angle, torch.maximum(x.abs(), weight * positions), x)
    noise = weighted_norms(values[diagonal].t() * size, weight) * (ROUNDING * torch.finfo(x.dtype).eps)
    return torch.where(noise < torch.inf, noise, 0.0)  # NaN is not


def short_length(system: System, x: Tensor) -> Tensor:
    """Return the length (B,) up to which steps from x (B, m) are short: sqrt(eps m) trust radii.

    The factor sqrt(m) is there because the length of a step is the root of a sum of m squares.
    """
    short = math.sqrt(torch.finfo(x.dtype).eps * x.shape[1]) * system.trust_radius()
    return x.new_zeros(len(x)) + short


def lengths(step: Tensor, weight: Tensor) -> Tensor:
    """Return the lengths (B,) of steps (B, m): the Euclidean norm of step / weight.

    An angle thus counts by its arc at the length that converts torques to forces.
    """
    return weighted_norms(step, weight.reciprocal())


def settled(norm: Tensor, length: Tensor, before: Tensor, noise: Tensor, short: Tensor) -> Tensor:
    """Return the rows (B,) that are as near the root as rounding permits, by the three rules of this module.

    Parameters
    ----------
    norm : (B,) norm of the residual after a step.
    length, before : (B,) length of this step and of the one before; infinite where there was none.
    noise : (B,) norm up to which a residual may be rounding noise.
    short : (B,) see `short_length`.
    """
    stays = negligible(torch.maximum(length, before), short) & ~(length < 0.5 * before)
    return (norm <= noise) & ((length <= short) | (next_length(length, before) <= LEFT * short) | stays)


def settled_where_steps_creep(norm: Tensor, length: Tensor, noise: Tensor, short: Tensor) -> Tensor:
    """Return the rows (B,) at the root up to rounding where steps may creep: those that took a far shorter step.

    Parameters as for `settled`.
    """
    return (norm <= noise) & (length <= FAR_SHORTER * short)


def negligible(length: Tensor, short: Tensor) -> Tensor:
    """Return the rows (B,) whose steps are so short that they may be rounding errors."""
    return length <= FEW * short


def next_length(length: Tensor, before: Tensor) -> Tensor:
    """Return the length (B,) expected of the next Newton step from those of the last two; infinite after the first."""
    return torch.where(before < torch.inf, length * (length / before) ** 2, torch.inf)

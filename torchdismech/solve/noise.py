"""What rounding leaves of residuals, and when a search may end within that.

Rounding adds noise to a residual. That of stiff directions may be larger than all that soft ones still lack: in single
precision the noise of a rod's stretching forces is as large as its weight, long before it hangs as it will. So a
residual within the noise tells nothing. The lengths of the Newton step that led there and of the one before do, as
Newton's method converges quadratically:

- a step that is as short beside the trust radius as the square root of the unit of rounding leaves rounding alone;
- so does a step after which one far shorter is to be expected;
- steps near that which do not get shorter any more are rounding themselves.

Towards a barrier steps creep: each goes a part of the distance, and their lengths hardly fall. There only a step tells
that is far shorter, or that near short ones lower neither the residual nor a potential any more.

Where steps stay long a matrix does not tell, in this precision, where the root is: there searches fail.
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

ROUNDING = 2.0  # units in the last place of each product (diagonal entry) x (unknown) that count as noise in a residual
# Times the length of a short step. A step counts as the last where the next one is expected to be `LEFT` long, which is
# little, as the first step of a rod stretches it and says little of those that bend it. From one of up to `NEAR` the
# next is short, as Newton's method makes a step of 30 sqrt(eps) trust radii one of some 900 eps. Steps of up to `FEW`
# may be rounding.
LEFT, NEAR, FEW = 1e-4, 30.0, 4.0
FAR_SHORTER = 1e-2  # times the length of a short step: that of one after which a search that may creep is settled


def rounding_noise(x: Tensor, values: Tensor, diagonal: Tensor, weight: Tensor) -> Tensor:
    """Return the norm (B,) below which a residual is rounding noise, so that no iterate can be told from the root.

    Rounded positions turn the edges between them. So an angle counts as at least as large as the positions, divided by
    the length that weighs torques.
    """
    angle = weight != 1
    positions = torch.where(angle, 0.0, x).abs().amax(1, keepdim=True)
    size = torch.where(angle, torch.maximum(x.abs(), weight * positions), x)
    noise = weighted_norms(values[diagonal].t() * size, weight) * (ROUNDING * torch.finfo(x.dtype).eps)
    return torch.where(noise < torch.inf, noise, 0.0)  # NaN is not


def short_length(system: System, x: Tensor) -> Tensor:
    """Return the length (B,) up to which steps of unknowns like x (B, m) are short.

    As the root of a sum of squares it grows with the number of unknowns.
    """
    short = math.sqrt(torch.finfo(x.dtype).eps * x.shape[1]) * system.trust_radius()
    return x.new_zeros(len(x)) + short


def lengths(step: Tensor, weight: Tensor) -> Tensor:
    """Return the lengths (B,) of steps (B, m), or of unknowns.

    Angles count by the arc at the length that weighs torques.
    """
    return weighted_norms(step, weight.reciprocal())


def settled(found: Tensor, length: Tensor, before: Tensor, noise: Tensor, short: Tensor) -> Tensor:
    """Return the rows that are as near the root as rounding lets them get.

    Parameters
    ----------
    found : norm of the residual after a step.
    length, before : of this step and of the one before; infinite where there was none.
    noise : up to which a norm may be rounding.
    short : see `short_length`.
    """
    stays = negligible(torch.maximum(length, before), short) & ~(length < 0.5 * before)
    return (found <= noise) & ((length <= short) | (next_length(length, before) <= LEFT * short) | stays)


def settled_where_steps_creep(found: Tensor, length: Tensor, noise: Tensor, short: Tensor) -> Tensor:
    """Return what `settled` does, of searches whose steps may creep."""
    return (found <= noise) & (length <= FAR_SHORTER * short)


def negligible(length: Tensor, short: Tensor) -> Tensor:
    """Return the rows whose steps are so short that they may be rounding, and need not be taken within the noise."""
    return length <= FEW * short


def next_length(length: Tensor, before: Tensor) -> Tensor:
    """Return how long the next Newton step is to be expected, by the last two; infinite after the first."""
    return torch.where(before < torch.inf, length * (length / before) ** 2, torch.inf)

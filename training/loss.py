"""The loss that a fit minimises: distances of predicted from measured coordinates, and priors.

With d the difference of a predicted and a measured coordinate, and c the scale of `[loss]` in the config,

    rho(d) = sqrt(d^2 + c^2) - c                               pseudo-Huber: d^2 / (2 c) near zero, |d| far from it [m]
    L      = mean of rho over everything measured + c / count * (P + S)                                             [m]

where count is the number of measured coordinates, P = `System.penalty()` is half the sum of squared deviations of the
constants from the means of their priors, in standard deviations, and S is the same for the fitted starts. Up to a
constant, L count / c is the negative logarithm of the posterior probability for noise of standard deviation c, which is
normal but for its tails, and normal priors: the more is measured, the less priors weigh. Adam reduces the mean of
`window_losses`, Gauss-Newton steps reduce `summed_loss`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.data import Window
from training.system import Prediction, System

__all__ = ["WindowLosses", "coordinates", "counted", "robust_loss", "start_penalty", "summed_loss", "window_losses"]


@dataclass(frozen=True)
class WindowLosses:
    """Losses of B windows; both fields are zero for a window of which a step failed, as it says nothing.

    Attributes
    ----------
    loss : (B,) mean over the measured coordinates of each window [m], plus the priors' part.
    count : (B,) number of measured coordinates, by which windows are weighted in a mean over them.
    """

    loss: Tensor
    count: Tensor


def window_losses(prediction: Prediction, window: Window, system: System, scale: float, measured: int) -> WindowLosses:
    """Return the losses of predicted windows, priors included.

    Parameters
    ----------
    scale : c of the loss [m].
    measured : number of coordinates measured in all recordings that are trained on: the count of the constants' prior.
    """
    valid = counted(window, system)
    loss = robust_loss(prediction.positions, window.positions[:, system.given :], valid, scale)
    if (penalty := system.penalty()) is not None:
        loss = loss + scale / measured * penalty
    if window.start is not None:
        loss = loss + start_penalty(window.start, valid, scale)
    count = torch.where(prediction.good, coordinates(valid), 0)
    loss = torch.where(prediction.good, loss, 0.0)
    return WindowLosses(loss, count.to(loss))


def counted(window: Window, system: System) -> Tensor:
    """Return which markers (B, T, M) count in the predicted frames of windows, of those seen after the `warm_up`."""
    valid = system.counted(window.valid[:, system.given :]).clone()
    valid[:, : system.warm_up] = False
    return valid


def coordinates(valid: Tensor) -> Tensor:
    """Return the number of coordinates measured in each window, (B,), for valid markers (B, T, M); 3 at least."""
    return 3 * valid.sum((1, 2)).clamp_min(1)


def robust_loss(predicted: Tensor, measured: Tensor, valid: Tensor, scale: float) -> Tensor:
    """Return (B,) mean pseudo-Huber distances [m] per coordinate of the valid markers (B, T, M)."""
    distance = predicted - measured
    each = (torch.sqrt(distance.square() + scale**2) - scale).mean(-1)
    return torch.where(valid, each, 0.0).sum((1, 2)) / valid.sum((1, 2)).clamp_min(1)


def start_penalty(start: Tensor, valid: Tensor, scale: float) -> Tensor:
    """Return the prior's part in the loss of each window, (B,) [m], for fitted starts (B, S)."""
    return 0.5 * start.square().sum(1) * scale / coordinates(valid)


def summed_loss(residual: Tensor, system: System, scale: float, prior_weight: float, start: Tensor | None) -> Tensor:
    """Return the loss of residuals (B, T, C) [m], summed over all coordinates and in units of its scale, with priors.

    Parameters
    ----------
    prior_weight : weight of the constants' priors: the share of all measured coordinates that these residuals are.
    start : (B, S) fitted starts, whose priors have the weight one.
    """
    total = (torch.sqrt(1 + (residual / scale).square()) - 1).sum()
    if (penalty := system.penalty()) is not None:
        total = total + prior_weight * penalty
    return total if start is None else total + 0.5 * start.square().sum()

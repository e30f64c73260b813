"""What a fit minimises: how far predictions are from recordings, and what is known before anything is measured.

With d the distance of a predicted from a measured coordinate, and c the scale of `[loss]` in the config,

    rho(d) = sqrt(d^2 + c^2) - c                               pseudo-Huber: d^2 / (2 c) near zero, |d| far from it [m]
    L      = mean of rho over everything measured + c / count * (P + S)                                             [m]

where count is how many coordinates were measured, P = `System.penalty()` is half the sum of squares of the constants in
standard deviations of their priors, and S is that of the fitted starts. Times count / c this is minus the logarithm of
a probability: noise of standard deviation c, normal but for its tails, and normal priors. So priors count as much less
as more is measured. Adam goes down the mean of `window_losses`, Gauss-Newton steps down `summed_loss`.
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
    """Losses of some windows; both are zero where a step failed, as that window says nothing.

    Attributes
    ----------
    loss : (B,) mean over what was measured in each window [m], with its share of the priors.
    count : (B,) how many coordinates were measured in it, by which it counts.
    """

    loss: Tensor
    count: Tensor


def window_losses(prediction: Prediction, window: Window, system: System, scale: float, measured: int) -> WindowLosses:
    """Return the losses of predicted windows.

    Parameters
    ----------
    scale : of the loss [m].
    measured : how many coordinates were measured in all recordings that are trained on.
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
    """Return which markers (B, T, M) count in the predicted frames of windows: those seen after the `warm_up`."""
    valid = window.valid[:, system.given :].clone()
    valid[:, : system.warm_up] = False
    return valid


def coordinates(valid: Tensor) -> Tensor:
    """Return how many coordinates were measured in each window, (B,), for valid (B, T, M)."""
    return 3 * valid.sum((1, 2)).clamp_min(1)


def robust_loss(predicted: Tensor, measured: Tensor, valid: Tensor, scale: float) -> Tensor:
    """Return (B,) mean pseudo-Huber distances [m] per coordinate of the valid markers (B, T, M)."""
    distance = predicted - measured
    each = (torch.sqrt(distance.square() + scale**2) - scale).mean(-1)
    return torch.where(valid, each, 0.0).sum((1, 2)) / valid.sum((1, 2)).clamp_min(1)


def start_penalty(start: Tensor, valid: Tensor, scale: float) -> Tensor:
    """Return what the priors of fitted starts (B, S) add to the loss of each window, (B,) [m]."""
    return 0.5 * start.square().sum(1) * scale / coordinates(valid)


def summed_loss(residual: Tensor, system: System, scale: float, prior_weight: float, start: Tensor | None) -> Tensor:
    """Return the loss of residuals (B, T, C) [m] as a sum over all coordinates, in units of its scale.

    Parameters
    ----------
    prior_weight : of the constants' priors: the share of everything measured that the residuals are.
    start : (B, S) fitted starts, whose priors count in whole.
    """
    total = (torch.sqrt(1 + (residual / scale).square()) - 1).sum()
    if (penalty := system.penalty()) is not None:
        total = total + prior_weight * penalty
    return total if start is None else total + 0.5 * start.square().sum()

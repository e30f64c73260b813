"""Fitted starts of recordings: numbers of each recording's start, such as velocities that nobody measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.data import Recordings
from training.loss import robust_loss, start_penalty
from training.system import System, predicted, whole_windows

__all__ = ["Starts", "fitted_starts"]

RATE = 0.1  # learning rate of the optimiser: starts are about one or less


class Starts(nn.Module):
    """The starts of all recordings: those trained on, and those held out.

    Attributes
    ----------
    fitted, held_out : (K, S) of the recordings trained on and held out, in standard deviations of their priors.
    """

    fitted: nn.Parameter
    held_out: nn.Parameter

    def __init__(self, size: int, fitted: int, held_out: int, device: torch.device):
        super().__init__()
        for name, count in (("fitted", fitted), ("held_out", held_out)):
            numbers = torch.zeros(count, size, dtype=torch.float64, device=device)
            self.register_parameter(name, nn.Parameter(numbers, requires_grad=name == "fitted"))


def fitted_starts(
    system: System, recordings: Recordings, scale: float, rounds: int, start: Tensor, rows: slice = slice(None)
) -> Tensor:
    """Return starts (K, S) fitted to the first `System.start_frames` predicted frames; the system is not changed.

    Parameters
    ----------
    scale : scale of the loss [m].
    rounds : number of steps of the optimiser.
    start : (K, S) starts to begin with; rows : the recordings that they are for.
    """
    frames = min(system.start_frames + system.given, recordings.frames)
    window = whole_windows(system, recordings, rows, frames)
    valid = system.counted(window.valid[:, system.given :])
    found = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([found], lr=RATE)
    with torch.enable_grad():
        for k in range(rounds):
            optimizer.param_groups[0]["lr"] = RATE * (1 - 0.9 * k / rounds)
            prediction = predicted(system, window.replace(start=found))
            loss = robust_loss(prediction.positions, window.positions[:, system.given :], valid, scale)
            total = torch.where(prediction.good, loss + start_penalty(found, valid, scale), 0.0).sum()
            (gradient,) = torch.autograd.grad(total, [found])
            found.grad = torch.where(gradient.isfinite(), gradient, 0.0)
            optimizer.step()
    return found.detach()

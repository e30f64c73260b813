"""What is fitted of the start of each recording, such as velocities that nobody measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.config import Loss
from training.data import Recordings, Window, gather
from training.reports.metrics import robust_loss
from training.system import System

__all__ = ["Starts", "coordinates", "fitted_starts", "whole"]

RATE = 0.1  # of the optimiser: starts are about one or less


class Starts(nn.Module):
    """The starts of all recordings: those trained on, and those held out.

    Attributes
    ----------
    fitted, held_out : (K, S), in standard deviations of what is likely before anything is measured.
    """

    fitted: nn.Parameter
    held_out: nn.Parameter

    def __init__(self, size: int, fitted: int, held_out: int, device: torch.device):
        super().__init__()
        for name, count in (("fitted", fitted), ("held_out", held_out)):
            numbers = torch.zeros(count, size, dtype=torch.float64, device=device)
            self.register_parameter(name, nn.Parameter(numbers, requires_grad=name == "fitted"))


def whole(system: System, recordings: Recordings, rows: slice = slice(None), frames: int | None = None) -> Window:
    """Return recordings as windows from their first frame on, on the device of a system."""
    which = torch.arange(len(recordings))[rows]
    first = torch.zeros_like(which)
    window = gather(recordings, which, first, frames or recordings.frames)
    history = {name: value[which, first] for name, value in system.history(recordings).items()}
    return window.replace(history=history).to(system.device)


def coordinates(valid: Tensor) -> Tensor:
    """Return how many numbers were measured in each window, (B,), for valid (B, T, M)."""
    return 3 * valid.sum((1, 2)).clamp_min(1)


def fitted_starts(
    system: System, recordings: Recordings, loss: Loss, rounds: int, start: Tensor, rows: slice = slice(None)
) -> Tensor:
    """Return the starts (K, S) that the first `System.start_frames` frames of recordings tell; nothing else is changed.

    Parameters
    ----------
    rounds : steps of the optimiser.
    start : (K, S) to begin with; rows : of the recordings that it is for.
    """
    frames = min(system.start_frames + system.given, recordings.frames)
    window = whole(system, recordings, rows, frames)
    valid = window.valid[:, system.given :]
    found = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([found], lr=RATE)
    with torch.enable_grad():
        for k in range(rounds):
            optimizer.param_groups[0]["lr"] = RATE * (1 - 0.9 * k / rounds)
            prediction = system.predict(window.replace(start=found))
            rows_of_loss = robust_loss(prediction.positions, window.positions[:, system.given :], valid, loss)
            likely = 0.5 * found.square().sum(1) * loss.scale / coordinates(valid)
            total = torch.where(prediction.good, rows_of_loss + likely, 0.0).sum()
            (gradient,) = torch.autograd.grad(total, [found])
            found.grad = torch.where(gradient.isfinite(), gradient, 0.0)
            optimizer.step()
    return found.detach()

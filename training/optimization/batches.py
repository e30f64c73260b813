"""Batches of a fit: their windows, horizon, learning rates and noise, and the result of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.config import Noise, Stage
from training.data import Recordings, Window, Windows, windows
from training.system import System

__all__ = ["Batch", "windows_of", "decay_at", "horizon_at", "noisy_window", "settled_at"]


@dataclass(frozen=True)
class Batch:
    """The result of an iteration, by Adam or Gauss-Newton.

    Attributes
    ----------
    loss : mean over the windows, weighted by their measured coordinates, before the weights were moved [m]; windows :
        number of windows.
    failed : number of windows that were left out, as a step of theirs failed.
    status : (B,) of the windows' predictions; None after a Gauss-Newton step.
    iterations : Newton iterations a time step; None after a Gauss-Newton step.
    norms, rates : norm of the gradient and learning rate, by group.
    settled : whether further iterations with this horizon would bring next to nothing.
    skipped : whether the weights were left as they were, as numbers were not finite or all windows failed.
    """

    loss: float
    windows: int
    failed: int
    status: Tensor | None = None
    iterations: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    settled: bool = False
    skipped: bool = False


def windows_of(recordings: Recordings, system: System, horizon: int) -> Windows:
    """Return all windows of recordings with `horizon` frames to predict; their starts are a tenth of that apart."""
    stride = max(1, horizon // 10)
    return windows(recordings, horizon, stride, system.given, system.measured, system.anywhere)


def horizon_at(stage: Stage, iteration: int) -> int:
    """Return the frames to predict: the horizons in turn, each for an equal share of the iterations."""
    return stage.horizon[iteration * len(stage.horizon) // stage.iterations]


def settled_at(stage: Stage, iteration: int) -> int:
    """Return the iteration to go on with after a settled one: the first of the next horizon, or the stage's end."""
    turn, turns = iteration * len(stage.horizon) // stage.iterations, len(stage.horizon)
    return -(-(turn + 1) * stage.iterations // turns)


def decay_at(stage: Stage, iteration: int) -> float:
    """Return the factor of the learning rates: a cosine from 1 to `decay` over the stage."""
    return stage.decay + (1 - stage.decay) * 0.5 * (1 + math.cos(math.pi * iteration / stage.iterations))


def noisy_window(window: Window, noise: Noise, system: System, seed: int, batch: int, own: slice) -> Window:
    """Return windows with noise on the free markers in the last two given frames, or in the only one.

    Predicted frames stay as they are, since predictions are compared with them. The noise of the whole batch follows
    from the seed; each process takes its part.

    Parameters
    ----------
    batch, own : number of windows of all processes, and which of them `window` holds.
    """
    if noise.position == 0 and noise.velocity == 0:
        return window
    x, generator = window.positions, torch.Generator().manual_seed(seed)
    everyones = torch.randn((2, batch, *x.shape[2:]), generator=generator, dtype=x.dtype, device="cpu")
    shift, velocity = everyones[:, own].to(x.device)
    free = torch.ones(x.shape[2], 1, dtype=x.dtype, device=x.device)
    free[system.gripped] = 0
    last = system.given - 1
    disturbed = x.clone()
    disturbed[:, last] = x[:, last] + noise.position * shift * free
    if last > 0:
        moved = noise.position * shift - noise.velocity * system.dt * velocity
        disturbed[:, last - 1] = x[:, last - 1] + moved * free
    return window.replace(positions=disturbed)

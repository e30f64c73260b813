"""Batches of a fit: their windows, the noise on these, horizons and rates, and how one went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.config import Noise, Stage
from training.data import Recordings, Window, Windows, windows
from training.system import System

__all__ = ["Batch", "windows_of", "decay_at", "horizon_at", "noisy_window"]


@dataclass(frozen=True)
class Batch:
    """How an iteration went.

    Attributes
    ----------
    loss : mean over windows [m], before the weights were moved; windows : how many there were.
    failed : windows of which a step failed, left out; status : (B,) of the windows' predictions, None if not asked for.
    iterations : of Newton's method a step; None if not asked for.
    norms, rates : of the gradient, and of learning, by group.
    settled : whether further iterations would bring next to nothing.
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
    """Return all windows of recordings that have so many frames to predict."""
    stride = max(1, horizon // 10)
    return windows(recordings, horizon, stride, system.given, system.measured, system.anywhere)


def horizon_at(stage: Stage, iteration: int) -> int:
    """Return the frames to predict: the horizons in turn, each for an equal share of the iterations."""
    return stage.horizon[iteration * len(stage.horizon) // stage.iterations]


def decay_at(stage: Stage, iteration: int) -> float:
    """Return the factor of the learning rates: a cosine from 1 to `decay` over the stage."""
    return stage.decay + (1 - stage.decay) * 0.5 * (1 + math.cos(math.pi * iteration / stage.iterations))


def noisy_window(window: Window, noise: Noise, system: System, seed: int, batch: int, own: slice) -> Window:
    """Return a window with noise on the free nodes of the last two of the frames that are given, or of the only one.

    Frames that are predicted stay as they are: they are what predictions are compared with.
    The noise of the whole batch follows from the seed; each process takes its part.

    Parameters
    ----------
    batch, own : windows of all processes, and which of them are in `window`.
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

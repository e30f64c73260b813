"""How far predictions are from recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from training.data import Recordings
from training.system import System

__all__ = ["HORIZONS", "Errors", "baselines", "beside_references", "in_words", "skipped_frames"]

REFERENCES = {
    "stay": "markers that stay where they were first",
    "follow": "markers that follow the gripped ones",
}
HORIZONS = (0.1, 1.0, 5.0)  # [s] at which errors are reported


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors per coordinate [m] of open-loop predictions, over all nodes.

    Attributes
    ----------
    curve : (T,) mean over recordings for each predicted frame that counts; NaN where no marker was seen.
    recordings : (K,) mean over frames of each recording; NaN where no marker was seen in any that counts. Both are
        infinite where a prediction of what was seen is not finite.
    good : (K,) whether the recording was predicted to its end; others count with what came out.
    dt : time between frames [s].
    first : time of the first frame that counts [s] after the start.
    """

    curve: Tensor
    recordings: Tensor
    good: Tensor
    dt: float
    first: float

    @property
    def horizons(self) -> tuple[float, ...]:
        """Those of `HORIZONS` [s] that the recordings are long enough for."""
        last = self.first + (len(self.curve) - 1) * self.dt
        return tuple(h for h in HORIZONS if self.first - 0.5 * self.dt <= h <= last + 0.5 * self.dt)

    @property
    def time(self) -> Tensor:
        """Times of the curve [s]."""
        return self.first + self.dt * torch.arange(len(self.curve), device="cpu")

    @property
    def mean(self) -> float:
        """Mean over everything that was seen, the figure of merit; infinite where a prediction of it is not finite."""
        return float(self.recordings.nanmean())

    @property
    def failed(self) -> int:
        """How many recordings were not predicted to their end."""
        return int((~self.good).sum())

    @property
    def rank(self) -> tuple[int, float]:
        """What tells the better of two: how many recordings failed, and the mean over the others, if there are some."""
        others = self.recordings[self.good] if bool(self.good.any()) else self.recordings
        return self.failed, float(others.nanmean())

    def at(self, horizon: float) -> float:
        """Return the error [m] a time `horizon` [s], one of `horizons`, after the start."""
        return float(self.curve[round((horizon - self.first) / self.dt)])

    @classmethod
    def of(cls, predicted: Tensor, recordings: Recordings, good: Tensor | None = None, skipped: int = 0) -> Errors:
        """Return the errors of predictions (K, T - given, M, 3) of all frames but the first ones, which were given.

        Markers that were not seen, or repaired, do not count; nor do the first `skipped` frames of the predictions.
        """
        predicted = predicted[:, skipped:]
        given = recordings.frames - predicted.shape[1]
        valid = recordings.valid[:, given:]
        error = (predicted - recordings.positions[:, given:]).abs().mean(-1)
        error = error.nan_to_num(nan=torch.inf, posinf=torch.inf)  # a prediction that is none is no good one
        error = torch.where(valid, error, 0.0)  # a repaired place may be anything
        curve = error.sum((0, 2)) / valid.sum((0, 2))
        good = torch.ones(len(recordings), dtype=torch.bool, device="cpu") if good is None else good
        mean = error.sum((1, 2)) / valid.sum((1, 2))
        return cls(curve, mean, good, recordings.dt, recordings.dt * (skipped + 1))


def baselines(recordings: Recordings, system: System, measured: Recordings | None = None) -> dict[str, Errors]:
    """Return the errors of the predictions that a system makes of recordings without a model.

    Parameters
    ----------
    measured : what they are compared with, if that is something else.
    """
    references, skipped = system.references(recordings), skipped_frames(system, recordings)
    against = measured or recordings
    return {name: Errors.of(predicted, against, skipped=skipped) for name, predicted in references.items()}


def beside_references(errors: Errors, references: Mapping[str, Errors]) -> str:
    """Return the error of a fit beside those of predictions without a model."""
    others = "; ".join(f"of {in_words(name)} {1e3 * e.mean:.2f} mm" for name, e in references.items())
    return f"{1e3 * errors.mean:.2f} mm" + (f" ({others})" if others else "")


def in_words(name: str) -> str:
    """Return what a reference is, in words."""
    return REFERENCES.get(name, f"the reference {name!r}")


def skipped_frames(system: System, recordings: Recordings) -> int:
    """Return how many predicted frames do not count, as starts are fitted to them."""
    return min(system.start_frames, recordings.frames - system.given - 1)

"""Errors of predictions: how far they are from recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from training.data import Recordings
from training.system import System

__all__ = ["HORIZONS", "Errors", "baselines", "beside_references", "in_words", "judged", "skipped_frames"]

REFERENCES = {  # baselines in words, by name
    "stay": "markers that stay where they were first",
    "follow": "markers that follow the gripped ones",
}
HORIZONS = (0.1, 1.0, 5.0)  # [s] at which errors are reported


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors per coordinate [m] of open-loop predictions, over all markers that were seen.

    Attributes
    ----------
    curve : (T,) mean over recordings for each predicted frame that counts; NaN where no marker was seen.
    recordings : (K,) mean over frames of each recording; NaN where no marker was seen in any that counts. Both are
        infinite where a prediction of a marker that was seen is not finite.
    good : (K,) whether the recording was predicted to its end; the others count, too, with the predictions they have.
    dt : time between frames [s].
    first : time from the start to the first frame that counts [s].
    """

    curve: Tensor
    recordings: Tensor
    good: Tensor
    dt: float
    first: float

    @property
    def horizons(self) -> tuple[float, ...]:
        """The times of `HORIZONS` [s] that the curve covers."""
        last = self.first + (len(self.curve) - 1) * self.dt
        return tuple(h for h in HORIZONS if self.first - 0.5 * self.dt <= h <= last + 0.5 * self.dt)

    @property
    def time(self) -> Tensor:
        """Times of the curve (T,) [s] after the start."""
        return self.first + self.dt * torch.arange(len(self.curve), device="cpu")

    @property
    def mean(self) -> float:
        """Mean over recordings, the figure of merit; infinite where a prediction of what was seen is not finite."""
        return float(self.recordings.nanmean())

    @property
    def failed(self) -> int:
        """Number of recordings that were not predicted to their end."""
        return int((~self.good).sum())

    @property
    def rank(self) -> tuple[int, float]:
        """Key by which errors are compared, the smaller the better: failed recordings, then the mean over the others.

        If all failed, the mean is over all.
        """
        others = self.recordings[self.good] if bool(self.good.any()) else self.recordings
        return self.failed, float(others.nanmean())

    def at(self, horizon: float) -> float:
        """Return the error [m] a time `horizon` [s], one of `horizons`, after the start."""
        return float(self.curve[round((horizon - self.first) / self.dt)])

    @classmethod
    def of(cls, predicted: Tensor, recordings: Recordings, good: Tensor | None = None, skipped: int = 0) -> Errors:
        """Return the errors of predictions (K, T - given, M, 3) of all frames but the first, given ones.

        Markers that were not seen, or repaired, do not count; nor do the first `skipped` frames of the predictions.
        """
        predicted = predicted[:, skipped:]
        given = recordings.frames - predicted.shape[1]
        valid = recordings.valid[:, given:]
        error = (predicted - recordings.positions[:, given:]).abs().mean(-1)
        error = error.nan_to_num(nan=torch.inf, posinf=torch.inf)  # NaN must not look like a good prediction
        error = torch.where(valid, error, 0.0)
        curve = error.sum((0, 2)) / valid.sum((0, 2))
        good = torch.ones(len(recordings), dtype=torch.bool, device="cpu") if good is None else good
        mean = error.sum((1, 2)) / valid.sum((1, 2))
        return cls(curve, mean, good, recordings.dt, recordings.dt * (skipped + 1))


def baselines(recordings: Recordings, system: System, measured: Recordings | None = None) -> dict[str, Errors]:
    """Return the errors of a system's baselines, its predictions of recordings without a model, by name.

    Parameters
    ----------
    measured : recordings that they are compared with, if not those they start from.
    """
    references, skipped = system.references(recordings), skipped_frames(system, recordings)
    against = judged(system, measured or recordings)
    return {name: Errors.of(predicted, against, skipped=skipped) for name, predicted in references.items()}


def beside_references(errors: Errors, references: Mapping[str, Errors]) -> str:
    """Return a text with the error of a fit by coordinate and, in brackets, those of the baselines [mm]."""
    others = "; ".join(f"of {in_words(name)} {1e3 * e.mean:.2f} mm" for name, e in references.items())
    return f"{1e3 * errors.mean:.2f} mm a coordinate" + (f" ({others})" if others else "")


def in_words(name: str) -> str:
    """Return a baseline in words, for messages."""
    return REFERENCES.get(name, f"the reference {name!r}")


def judged(system: System, recordings: Recordings) -> Recordings:
    """Return recordings in which only the markers that count were seen, to compare predictions with."""
    return replace(recordings, valid=system.counted(recordings.valid))


def skipped_frames(system: System, recordings: Recordings) -> int:
    """Return the number of first predicted frames that do not count in errors, as starts are fitted to them."""
    return min(system.start_frames, recordings.frames - system.given - 1)

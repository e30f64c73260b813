"""Validation: open-loop predictions of the held-out recordings, which decide the best weights, and of some others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import listed
from torchdismech.system.processes import Processes
from training.data import Recordings, gather
from training.optimization.resuming import Progress
from training.reports.metrics import Errors
from training.reports.predictions import OpenLoop, errors_of, predict_all
from training.robots.starts import Starts, fitted_starts
from training.system import System

__all__ = ["Validated", "Validation", "failure_warning", "is_better"]


@dataclass(frozen=True)
class Validated:
    """Open-loop predictions of whole recordings, and their errors.

    Attributes
    ----------
    errors, predicted : of the held-out recordings.
    errors_trained_on : of as many recordings that are trained on.
    """

    errors: Errors
    predicted: OpenLoop
    errors_trained_on: Errors


class Validation:
    """Predictions of whole recordings; messages and docs call a run of them a look.

    Parameters
    ----------
    system : what predicts.
    scale : scale of the loss by which starts are fitted [m]; starts : where these are kept, None if none are fitted.
    trained_on, held_out : recordings that are trained on, and those that are not.
    processes : that share the recordings.
    """

    def __init__(
        self,
        system: System,
        scale: float,
        trained_on: Recordings,
        held_out: Recordings,
        processes: Processes,
        starts: Starts | None,
    ):
        self.system, self.scale, self.processes, self.starts = system, scale, processes, starts
        self.trained_on, self.held_out = trained_on, held_out

    def run(self) -> Validated:
        """Predict the held-out recordings and as many of those trained on.

        The starts of the held-out ones are fitted first. All are predicted in one batch, as steps of a few robots take
        as long as those of one.
        """
        if self.held_out is self.trained_on:  # none is held out
            return self._without_held_out()
        count, start = len(self.held_out), None
        rows = torch.linspace(0, len(self.trained_on) - 1, min(count, len(self.trained_on)), device="cpu").long()
        some = self.trained_on.subset(rows)
        if self.starts is not None:
            self._find_starts(self.starts)
            start = torch.cat([self.starts.held_out, self.starts.fitted.detach()[rows.to(self.system.device)]])
        everything = predict_all(self.system, self.held_out.followed_by(some), self.processes, start)
        predicted, of_some = everything.rows(slice(0, count)), everything.rows(slice(count, None))
        errors = errors_of(self.system, self.held_out, predicted)
        return Validated(errors, predicted, errors_of(self.system, some, of_some))

    def _without_held_out(self) -> Validated:
        """Predict the recordings that are trained on in place of held-out ones: from starts fitted to first frames.

        Their errors from the starts that training has found are the `errors_trained_on`.
        """
        start = None if self.starts is None else self.starts.fitted.detach()
        errors, predicted = self._predicted(self.trained_on, start)
        if self.starts is None:
            return Validated(errors, predicted, errors)
        self._find_starts(self.starts)
        return Validated(*self._predicted(self.held_out, self.starts.held_out), errors)

    def _find_starts(self, starts: Starts) -> None:
        """Fit the starts of the held-out recordings, from those of the last look on; other parameters are fixed."""
        own, known = self.processes.own(len(self.held_out)), starts.held_out.detach()
        found = torch.zeros_like(known)
        if own.stop > own.start:
            rounds = self.system.start_rounds
            found[own] = fitted_starts(self.system, self.held_out, self.scale, rounds, known[own], own)
        with torch.no_grad():
            starts.held_out.copy_(self.processes.summed(found))

    def _predicted(self, recordings: Recordings, start: Tensor | None) -> tuple[Errors, OpenLoop]:
        """Return open-loop errors and predictions of recordings, from fitted starts (K, S) where there are some."""
        open_loop = predict_all(self.system, recordings, self.processes, start)
        return errors_of(self.system, recordings, open_loop), open_loop

    def learned_share(self, predicted: OpenLoop) -> float | None:
        """Return the ratio of learned to elastic forces half-way through the held-out recordings.

        None without learned terms, without measured starts, and where fewer than two frames are predicted.
        """
        given, frames = self.system.given, self.held_out.frames
        if not self.system.measured or frames < given + 2:
            return None
        middle, every = max(given, (frames - 1) // 2), torch.arange(len(self.held_out), device="cpu")
        # at predicted frames: measured ones stretch by the noise of markers, and elastic forces would be all noise
        positions = predicted.positions[:, middle - given : middle - given + 2]
        places = {name: value[:, middle] for name, value in self.system.history(self.held_out).items()}
        window = gather(self.held_out, every, torch.full_like(every, middle), 2)
        return self.system.learned_share(window.replace(positions=positions, history=places))


def is_better(errors: Errors, progress: Progress) -> bool:
    """Return whether errors on held-out recordings are the best so far: fewer failures, or as many and less error."""
    if not math.isfinite(errors.rank[1]):
        return False
    return not math.isfinite(progress.best) or errors.rank < (progress.best_failed, progress.best)


def failure_warning(errors: Errors, names: Sequence[str]) -> str:
    """Return a warning that names the held-out recordings that are not predicted to their end."""
    failed = [names[k] for k in (~errors.good).nonzero().flatten().tolist()]
    return (
        f"warning: {len(failed)} of {len(names)} held-out recordings are not predicted to their end: {listed(failed)}; "
        "the best weights are those with the fewest of these, and then with the least error on the others"
    )

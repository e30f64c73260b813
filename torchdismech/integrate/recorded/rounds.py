"""RecordedRounds: the recorded iterations of Newton's method in a step, here called rounds: each takes all rows.

A round of whole Newton steps has two recordings: with the matrix at the new iterates, and without it where the round is
expected to be the last, as its numbers say, and as the step before took no more rounds. Both keep their steps only if
these are good in all rows. Three more recordings are made where they are first needed:

- where a round raises the norm of some row's residual, each row *accepts or shortens* its step: the length of the next
  correction by the same factor tells which steps are good all the same, and which rows are to try a part of theirs;
- *shortened* rounds try such parts, beside whole steps of other rows, until all rows take whole steps again;
- where rows do not converge from a first iterate ahead along the motion, they *begin again* from where the robots are,
  if that is the next attempt.

After each replay the host reads five flags; on a GPU it waits for nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.recorded.static_problem import StaticProblem, recorded_mid_step, warn_of_memory
from torchdismech.integrate.search.attempts import Start
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.native.graphs import Recording, recorded
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.rounds import TriedSteps, accepted_or_shortened, tried_steps
from torchdismech.solve.search import RUNNING, NewtonOptions

__all__ = ["Next", "RecordedRounds", "RoundsOutcome", "SetUp"]


class RoundsOutcome(Enum):
    """How a sequence of rounds ended."""

    ROOTS = "all rows that run have come to their roots"
    LOST = "all rows have come to an end, some of them to no root"
    LEFT = "some rows run on, and the next step is none that recordings take"


class Next(Enum):
    """Which kind of round comes next in a search."""

    WHOLE = "whole Newton steps of all rows"
    ACCEPT_OR_SHORTEN = "rows accept or shorten the steps of the last round one by one"
    SHORTENED = "some rows try a part of their step"


class RoundFlags(NamedTuple):
    """Flags of a round of whole steps: for all rows together, those of `Trial.flags` and `lost`.

    Attributes
    ----------
    bad : whether the step of some running row is not good (see `Trial.good`).
    more : whether some row has to take another round.
    unconverged : whether some running row has not converged.
    far : whether some row that has to take another round is not expected to converge in it.
    lost : whether some row has ended without having converged.
    """

    bad: bool
    more: bool
    unconverged: bool
    far: bool
    lost: bool


class ShorteningFlags(NamedTuple):
    """Flags of a round in which rows accept or shorten their steps one by one, for all rows together.

    Attributes
    ----------
    parts : whether some row tries a part of its step next.
    left : whether some row had no step, as its matrix needs another factorization; then nothing of the round is kept.
    more, far, lost : as of `RoundFlags`; each row that has to take another round counts as far.
    """

    parts: bool
    more: bool
    left: bool
    far: bool
    lost: bool


class SetUp(NamedTuple):
    """The results of a step's set-up.

    Attributes
    ----------
    equations, scale, options : the equations, their force scale (B,) [N], and the options of the search.
    progress, fraction : how far the search is, and what part of its Newton step each row tries next (B,); rounds write
        to them.
    earlier : (B,) iterations of the attempts before the present one; none yet.
    running : (B,) the robots that are stepped: those that are to be, whose state is finite and whose contact laws are.
    """

    equations: StepEquations
    scale: Tensor
    options: NewtonOptions
    progress: Progress
    fraction: Tensor
    earlier: Tensor
    running: Tensor


class RecordedRounds:
    """The recorded rounds of a step.

    Parameters
    ----------
    results : of the step's set-up, where each replay of it writes them.
    static : the static buffers of the step.

    Attributes
    ----------
    round, last_round : the recordings of whole steps; `round` evaluates the next matrix, `last_round` does not.
    accept_or_shorten : the recording in which rows accept or shorten the steps of `round`; None before its first use.
    rounds_before : (1,) how many rounds the last step took.
    """

    def __init__(self, results: SetUp, static: StaticProblem):
        self._set_up_results, self._static, self._device = results, static, results.running.device
        self.round = recorded(self._round_with_matrix, self._device, static.pool)
        self.last_round = recorded(self._round_without_matrix, self._device, static.pool)
        self.accept_or_shorten: Recording[Tensor] | None = None
        self.rounds_before = np.zeros(1, dtype=np.int64)

    def replay(self, first: Next = Next.WHOLE) -> RoundsOutcome:
        """Replay rounds until all rows have ended, or recordings cannot take the next step; return how they ended.

        Parameters
        ----------
        first : the kind of round to begin with.
        """
        try:
            return self._replay_rounds(first)
        except torch.OutOfMemoryError:  # while a recording was made that had not been needed before
            if self._device.type == "cpu":
                raise
            warn_of_memory("searches")
            return RoundsOutcome.LEFT

    def _replay_rounds(self, next_round: Next) -> RoundsOutcome:
        with_matrix, more, lost, rounds = True, True, False, 0
        while more:
            if next_round is Next.WHOLE:
                flags = RoundFlags(*(self.round if with_matrix else self.last_round).replay().tolist())
                more, lost = flags.more, flags.lost
                if flags.bad and with_matrix:
                    next_round, more = Next.ACCEPT_OR_SHORTEN, True
                elif not with_matrix and (flags.bad or flags.unconverged):
                    more = True  # it was expected to be the last and was not: once more, with the matrix
                else:
                    rounds += 1
                with_matrix = flags.far or not with_matrix or rounds + 1 < self.rounds_before[0]
                continue
            recording = (
                self._accept_or_shorten_recording()
                if next_round is Next.ACCEPT_OR_SHORTEN
                else self._shortened_recording
            )
            row_flags = ShorteningFlags(*recording.replay().tolist())
            if row_flags.left:
                return RoundsOutcome.LEFT
            more, lost, with_matrix, rounds = row_flags.more, row_flags.lost, True, rounds + 1
            next_round = Next.SHORTENED if row_flags.parts else Next.WHOLE
        self.rounds_before[0] = rounds
        return RoundsOutcome.LOST if lost else RoundsOutcome.ROOTS

    @cached_property
    def second_attempt_begins_again(self) -> bool:
        """Whether the second attempt is the same search as the first, but begun where the robots are."""
        problem = self._static.problem
        first, *later = problem.method.attempts(self._set_up_results.equations, problem.divisible)
        from_here = dataclasses.replace(first, start=Start.HERE)
        return from_here != first and later[:1] == [from_here]

    def replay_second_attempt(self) -> RoundsOutcome:
        """Replay the rounds of the second attempt, for rows that failed in the first; return how they ended."""
        self._second_attempt_beginning.replay()
        return self.replay()

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _round_with_matrix(self) -> Tensor:
        return self._take_round(with_matrix=True)

    def _round_without_matrix(self) -> Tensor:
        return self._take_round(with_matrix=False)

    def _take_round(self, with_matrix: bool) -> Tensor:
        """Try whole Newton steps in all rows and keep them if they are good; return the flags (5,).

        Without the matrix they are kept only if all rows have converged.
        """
        results = self._set_up_results
        steps = tried_steps(results.equations, results.progress, results.options, with_matrix=with_matrix)
        bad, _, unconverged, _ = steps.flags
        self._keep(steps.after, ~bad if with_matrix else ~(bad | unconverged))
        if with_matrix:
            # kept for `_accept_or_shorten`, whose recording reads them where each replay writes them
            self._steps = steps
        return torch.cat([steps.flags, _some_lost(steps.after)[None]])

    def _accept_or_shorten_recording(self) -> Recording[Tensor]:
        if self.accept_or_shorten is None:
            self.accept_or_shorten = self._recorded_mid_step(self._accept_or_shorten, self._set_up_results.fraction)
        return self.accept_or_shorten

    def _accept_or_shorten(self) -> Tensor:
        """Accept or shorten each row's step of the last round, which raised some row's norm; return the flags (5,)."""
        return self._keep_accepted(self._steps)

    @cached_property
    def _shortened_recording(self) -> Recording[Tensor]:
        """The recording of a round in which some rows try a part of their step."""
        return self._recorded_mid_step(self._take_shortened, self._set_up_results.fraction)

    def _take_shortened(self) -> Tensor:
        results = self._set_up_results
        return self._keep_accepted(tried_steps(results.equations, results.progress, results.options, results.fraction))

    def _keep_accepted(self, steps: TriedSteps) -> Tensor:
        results = self._set_up_results
        after, fraction, refused = accepted_or_shortened(steps, results.progress, results.options)
        more, left = (after.status == RUNNING).any(), refused.any()
        flags = torch.stack([(fraction < 1).any(), more, left, more, _some_lost(after)])  # as of `ShorteningFlags`
        self._keep(after, ~left)
        torch.where(left, results.fraction, fraction, out=results.fraction)
        return flags

    @cached_property
    def _second_attempt_beginning(self) -> Recording[None]:
        """The recording that begins the second attempt."""
        return self._recorded_mid_step(self._begin_second_attempt, self._set_up_results.earlier)

    def _begin_second_attempt(self) -> None:
        """Begin the search again where the robots are, in rows that did not converge."""
        results = self._set_up_results
        unsolved = results.running & (results.progress.status != int(Status.CONVERGED))
        beginning = begun(results.equations, first_iterate(results.equations, ahead=False), results.options, unsolved)
        results.earlier.add_(torch.where(unsolved, results.progress.iterations, 0))
        self._keep(results.progress.merged(beginning, unsolved), unsolved.any())

    def _keep(self, progress: Progress, good: Tensor) -> None:
        """Write the progress that was found to the static tensors, if that is `good` ()."""
        for new, static in zip(progress, self._set_up_results.progress, strict=True):
            if new is not static:
                torch.where(good, new, static, out=static)

    def _recorded_mid_step(self, function: Callable[[], Any], written: Tensor) -> Recording[Any]:
        """Return the recording of a function that writes to the progress of the search and to one more tensor."""
        with self._static.in_model():
            all_written = [*self._set_up_results.progress, written]
            return recorded_mid_step(function, all_written, self._device, self._static.pool)


def _some_lost(progress: Progress) -> Tensor:
    """Return whether some row has ended without having converged ()."""
    return ((progress.status != RUNNING) & (progress.status != int(Status.CONVERGED))).any()

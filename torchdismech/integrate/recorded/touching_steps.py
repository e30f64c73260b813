"""TouchingSteps: whole steps as recordings, in which known pairs of parts may touch."""

from __future__ import annotations

import torch

from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.contact_step import RecordedContactStep
from torchdismech.integrate.recorded.lasting_pairs import LastingPairs, TouchWatch
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.step_kind import A_STEP, StepKind
from torchdismech.native.graphs import Unrecordable

__all__ = ["TouchingSteps"]

# steps with one pattern of the matrix before it gets a recording, which takes as long as about so many; twice as many,
# up to the most, after each recording that served few steps
FEWEST_STEPS, MOST_STEPS = 12, 200
# Without a recording pairs are looked for to see whether the pattern stays, those of more than `FEW_ROBOTS` only after
# every so many steps: for these a search takes a tenth of a step.
SELDOM, FEW_ROBOTS = 4, 16
# A pattern that lasts for fewer steps is laid out in vain. Pairs are not looked for in a pause of steps after it, which
# gets longer with each such pattern.
SHORT_LIVED, LONGEST_PAUSE = 6, 15
STEPS_SERVED = 50  # by one recording, after which another one is worth its cost
MOST_NUMBERS = 4_000_000  # of the matrices of all robots: memory of recordings with more counts


class TouchingSteps:
    """The recording of steps in which the pairs of a watch may touch, for the pattern of the matrix that they have now.

    Parameters
    ----------
    kind : of the steps.
    watch : of the pairs.

    Attributes
    ----------
    steps : how many there were with the present pattern; before there is a recording, see `count`.
    recording : takes them; None before it was made.
    """

    def __init__(self, kind: StepKind, watch: PairWatch):
        self._kind, self._watch = kind, watch
        self._pairs: LastingPairs | None = None
        self._bound = watch.found
        self._many = watch.robots > FEW_ROBOTS
        self._pattern: object = None
        self._wait, self._refused = FEWEST_STEPS, False
        self._lasted = self._pause = self._last_pause = 0  # steps
        self.steps = 0
        self.recording: RecordedStep | RecordedContactStep | None = None

    @property
    def waits(self) -> bool:
        """Whether no recording needs to know the pairs of the next step.

        Before there is one, the pairs of many robots are seldom looked for, and those of all after a pause where
        patterns do not last.
        """
        seldom = self._many and self.steps % SELDOM != 0
        return self._refused or self._pause > 0 or (self.recording is None and seldom)

    def count(self, info: StepInfo) -> None:
        """Count a step that Python took, as several if it took many iterations, until there is a recording."""
        self._pause = max(0, self._pause - 1)
        if self.recording is None:
            self.steps += max(0, int(info.iterations.max()) // A_STEP - 1)  # it was counted once as it began

    def recording_of(self, problem: StepProblem) -> RecordedStep | RecordedContactStep | None:
        """Return the recording for a step, bound to its pairs; None if there is none yet."""
        found = self._watch.found
        assert found is not None
        if self._refused or self._pause:
            return None
        if found is not self._bound:
            self._bound = found
            self._take_found(problem)
        pattern = found.coupling.pattern if self._pairs is None else self._pairs.pairs.coupling.pattern
        if pattern is self._pattern:
            self.steps, self._lasted = self.steps + 1, self._lasted + 1
        else:
            self._last_pause = min(2 * self._last_pause + 1, LONGEST_PAUSE) if self._lasted < SHORT_LIVED else 0
            self._pattern, self._pause, self.steps, self._lasted = pattern, self._last_pause, 0, 0
        if self.recording is None and self.steps >= self._wait and not torch.is_inference_mode_enabled():
            self._record(problem, spare=self._wait > FEWEST_STEPS)
        return self.recording

    def _take_found(self, problem: StepProblem) -> None:
        """Let the recording, if there is one, take the pairs that were found last, or give it up."""
        found = self._watch.found
        if self._pairs is None or found is None:
            return
        served = self.steps > STEPS_SERVED  # else another recording would cost more than it saves
        if served and not torch.is_inference_mode_enabled() and self._pairs.pairs.joins_many(found):
            self._record(problem, spare=False)
        elif not self._pairs.take(found):
            self._wait = FEWEST_STEPS if served else min(2 * self._wait, MOST_STEPS)
            self._pairs = self.recording = None

    def _record(self, problem: StepProblem, spare: bool) -> None:
        """Make a recording for the pairs that were found last; `spare` as of `StepPairs.tighten`."""
        found = self._watch.found
        assert found is not None
        self._pairs = self.recording = None
        if spare or found.joins_many(found):
            found.tighten(spare)
        if found.coupling.pattern.nnz * problem.state.batch > MOST_NUMBERS:
            self._wait, self.steps = MOST_STEPS, 0  # not in each step anew
            return
        try:
            self._pairs = LastingPairs(problem.model.contact, found)
            watch = TouchWatch(self._watch, self._pairs)
            whole = RecordedContactStep if problem.model.contact.constrained else RecordedStep
            self.recording = whole(self._kind, problem.replace(recorded=None), watch)
        except Unrecordable:
            self._refused = True

"""RecordedStep: a whole step on static buffers.

It is three recordings: the set-up (what stays fixed in the step, first iterate), a round of Newton's method (with the
next matrix or without), and the end (the state after the step). After each round the host reads five flags, on a GPU
the only wait. A round in which some row is not improved leaves everything as it was; from there the search goes on
without recordings, on the same memory. All of that is on the current stream: steps of a model belong to one.

Of several steps each hands on to the next where it has led, by one more recording. On a CPU compiled code takes them,
from a table of the calls of all these recordings (`native/step_loop.py`), until one of them is for Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.passing import obstacles_suspected
from torchdismech.contact.report import Report
from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.equations import RecordedEquations
from torchdismech.integrate.recorded.kinds import StepKind
from torchdismech.integrate.recorded.static_problem import RecordedCall, StaticProblem
from torchdismech.integrate.search.attempts import Start
from torchdismech.integrate.search.primal_dual import after_step, first_friction, judged_step, judged_step_arguments
from torchdismech.integrate.step import (
    further_attempts,
    newton_options,
    step_contact,
    step_info,
    step_to,
)
from torchdismech.native.availability import Unavailable
from torchdismech.native.graphs import Recording, recorded
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepCalls, StepLoop, StopReason
from torchdismech.native.tape import Tape
from torchdismech.records import replaced
from torchdismech.robot.state import Control, State
from torchdismech.solve.newton import plain_round, resumed
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.search import NewtonOptions, Root
from torchdismech.solve.trial import Measure, Move, Trial, tried

__all__ = ["RecordedStep", "StepKeeper"]

WORTH_A_TABLE = 4  # steps from which on writing a table of them takes less time than Python between them
MAX_NUMBERS_OF_TRIALS = 4000  # numbers in q up to which calls are most of a step: trials are recorded, too


class StepKeeper(Protocol):
    """Keeps the states after each of some steps, and how these went."""

    def keep(self, number: int, after: State, info: StepInfo) -> None:
        """Keep those of a step, counted from 0, which the next one writes anew."""
        ...

    def destinations(self, after: State, info: StepInfo) -> Sequence[tuple[Tensor, Tensor]]:
        """Return pairs of a tensor of a step, and the tensor (T, ...) that keeps it for each step."""
        ...

    def count(self, steps: int) -> None:
        """Learn how many steps are kept."""
        ...


@contextmanager
def _lasting() -> Iterator[None]:
    """Make what later steps write to: tensors made in inference mode could not be written to outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class RecordedStep:
    """A step on static buffers.

    Parameters
    ----------
    kind : of the steps.
    problem : the first of them.

    Attributes
    ----------
    equations, scale, options : of the step that was set up last; see `StepEquations`, `StepInfo` and `NewtonOptions`.
    at : how far its search is.
    values : the static buffers in the places of the model's tensors.
    mechanics : what the recordings evaluate: without the external forces that are given as their sum, if they are.
    pool : where what the recordings make on the way lives.
    """

    def __init__(self, kind: StepKind, problem: StepProblem):
        self._static = StaticProblem(kind, problem)
        self._problem, self.values = self._static.problem, self._static.values
        self.mechanics, self.pool = self._static.mechanics, self._static.pool
        self._record(problem.model.device, kind.inputs(problem), problem.dt)

    def _record(self, device: torch.device, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Record the parts, each on numbers that those before it have made."""
        pool = self.pool
        self._static.give(inputs, dt)
        with self.values.in_place():
            self._setup: Recording[Any] = recorded(self._set_up, device, pool)
            made = self._setup.replay()
            self.equations, self.scale, self.options, self.at, self._running = made
            self._round = recorded(self._round_with_matrix, device, pool)
            self._last_round = recorded(self._round_without_matrix, device, pool)
            self._end = recorded(self._state_after, device, pool)
        # what the recording of the end writes, once it was replayed; and how the steps before the present one went
        self._outcome: tuple[State, StepInfo] | None = None
        self._went: SeveralSteps | None = None

    def start(self, inputs: Sequence[Tensor | None], dt: float | Tensor) -> None:
        """Copy the inputs to static memory and replay the set-up; None: unchanged since the last step."""
        self._static.give(inputs, dt)
        self._setup.replay()

    def take_more(
        self,
        after: State,
        info: StepInfo,
        controls: Sequence[Control],
        divisible: bool,
        keeper: StepKeeper | None = None,
    ) -> tuple[State, StepInfo]:
        """Take the remaining steps of a list of controls, the first of which was taken already.

        Return the states after the last of them and how all went. A robot whose step fails is not stepped any more.

        Parameters
        ----------
        after, info : of the first.
        divisible : see `StepProblem`; then they end before a step that some robot fails, which is for its parts.
        keeper : keeps the states after each of the steps, up to one that a robot fails.
        """
        unless_failed = divisible or keeper is not None
        if unless_failed and self._failed(info):
            return after, info
        went = self._no_steps(info)
        if keeper is not None:
            keeper.keep(0, after, info)
        self._hand_on(after, info)
        table, number = self._table(controls, keeper), 1
        while number < len(controls):
            ended = StopReason.UNEXPECTED
            if table is not None:
                number, ended = table.run(number, len(controls))
                if keeper is not None:
                    keeper.count(number)
            after, info = self._step_after_table(ended, controls, number, divisible)
            if ended is StopReason.ALL_TAKEN:
                break
            if unless_failed and self._failed(info):
                return self._problem.state, replaced(went, count=number)
            if keeper is not None:
                keeper.keep(number, after, info)
            self._hand_on(after, info)
            number += 1
        return after, replaced(went, count=len(controls))

    def _step_after_table(
        self, ended: StopReason, controls: Sequence[Control], number: int, divisible: bool
    ) -> tuple[State, StepInfo]:
        """Return the states after the step at which a table of steps has ended, or after the last, and how it went.

        UNEXPECTED stands for steps without a table, too: the step is taken from its set-up on.
        """
        if ended is StopReason.UNEXPECTED:
            if controls[number] is not controls[number - 1]:
                self._static.give_control(controls[number])
            self._setup.replay()
            return self.taken(divisible)
        if ended is StopReason.SEARCH or (ended is StopReason.CHECK and self._suspects()):
            with self.values.in_place():
                return self.finished_eagerly(divisible)
        assert self._outcome is not None
        return self._outcome

    def _suspects(self) -> bool:
        """Return whether something may have been passed through in the step that ended last."""
        suspect = self._end.outputs[2]
        return suspect is not None and bool(suspect)

    def _table(self, controls: Sequence[Control], keeper: StepKeeper | None) -> StepLoop | None:
        """Return a table of steps with these controls; None where it does not pay or something in it is for Python."""
        if self._outcome is None or len(controls) < WORTH_A_TABLE:
            return None
        tapes = (self._setup, self._round, self._last_round, self._end, self._handing_on)
        parts = [tape.table for tape in tapes if isinstance(tape, Tape)]
        if len(parts) < len(tapes):
            return None
        _, status, suspect, _ = self._end.outputs
        checks = [status] if suspect is None else [suspect, status]
        set_up, with_matrix, without, end, handed_on = parts
        flags = self._round.outputs, self._last_round.outputs
        calls = StepCalls(set_up, with_matrix, without, end, handed_on, flags)
        given, kept = PerStepInstructions(), PerStepInstructions()
        try:
            if any(control is not controls[0] for control in controls):
                for own, each in zip(self._static.control_tensors(), _by_field(controls), strict=True):
                    given.add("copy", own, PerStep.of(each))
            for found, places in () if keeper is None else keeper.destinations(*self._outcome):
                kept.add("copy", PerStep.along(places), found)
            return StepLoop(calls, given, kept, checks)
        except (NoInstruction, Unavailable):
            return None

    def taken(self, divisible: bool) -> tuple[State, StepInfo]:
        """Return the states after the step that was set up, and how it went; without recordings where these end.

        They stand where the next step writes. `divisible`: see `StepProblem`.
        """
        if self.search() and (ended := self.end()) is not None:
            return ended
        with self.values.in_place():
            return self.finished_eagerly(divisible)

    def search(self) -> bool:
        """Take rounds of Newton's method; return whether all rows that run have converged."""
        more, with_matrix = True, True
        while more:
            flags = (self._round if with_matrix else self._last_round).replay()
            bad, more, _unconverged, far, lost = flags.tolist()  # the only wait of a round
            if bad or lost:
                return False
            # a round that was expected to be the last and was not is taken once more
            with_matrix = far or not with_matrix
        return True

    def end(self) -> tuple[State, StepInfo] | None:
        """Return the state after the step and how it went, where the search ended well.

        None where something may have been passed through: that is for `finished_eagerly` to find out.
        """
        after, status, suspect, contact = self._end.replay()
        if suspect is not None and bool(suspect):
            return None
        if self._outcome is None:  # all of it stands where each step writes it anew
            at = self.at
            root = Root(at.x, at.status, at.iterations, at.norm, at.noise)
            self._outcome = after, StepInfo.of(root, status, self.scale, contact)
        return self._outcome

    def finished_eagerly(self, divisible: bool) -> tuple[State, StepInfo]:
        """Return the state after the step and how it went, searched for without recordings from where they got to.

        `divisible` is that of the step, not of the one that was recorded: both have the same first way to search.
        """
        equations, problem = self.equations, self._problem.replace(running=self._running)
        scale = self.scale.clone()
        tolerance = self.options.tolerance.clone()
        _, *others = problem.method.attempts(equations, divisible)
        small = problem.state.q.is_cpu and problem.state.q.numel() <= MAX_NUMBERS_OF_TRIALS
        recordings = self._recordings if small else {}
        searched = RecordedEquations(equations, lambda _: recordings)
        at = Progress(*(tensor.clone() for tensor in self.at))
        root = resumed(searched, at, self.options.with_tolerance(tolerance))
        # other ways change what recordings of trials hold
        without_trials = {function: own for function, own in recordings.items() if function is not tried}
        searched = RecordedEquations(equations, lambda _: without_trials)
        options = newton_options(problem, searched, self.options.weight, tolerance)
        root = further_attempts(searched, root, others, options, problem.running)
        if (ended := self._end_of(root, scale)) is not None:
            return ended
        q = equations.full(root.x)
        info = step_info(equations, root, q, scale, problem.running)
        after, info = step_to(problem, equations, ContactCandidates(problem), q, info)
        info = dataclasses.replace(info, status=self._status(info.status))
        return after, info

    def _end_of(self, root: Root, scale: Tensor) -> tuple[State, StepInfo] | None:
        """Return what `end` does for a root that was searched for elsewhere; None where some row has none, too."""
        if not bool((root.status == int(Status.CONVERGED)).all()):
            return None
        self.at.x.copy_(root.x)
        self.at.status.copy_(root.status)
        after, status, suspect, contact = self._end.replay()
        if suspect is not None and bool(suspect):
            return None
        return after, StepInfo.of(root, status, scale, contact)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _hand_on(self, after: State, info: StepInfo) -> None:
        """Give the next step what a step led to, and count that among those before it."""
        if self._made_by_all(info):
            self._handing_on.replay()
        else:
            self._write_next(after, info)

    def _made_by_all(self, info: StepInfo) -> bool:
        """Return whether a step was ended by the recording of its end, and all robots made it.

        Robots whose state was not finite did not, and nothing was searched for them.
        """
        by_recording = self._outcome is not None and info is self._outcome[1]
        return by_recording and self._statuses.tobytes() == self._all_converged

    @cached_property
    def _statuses(self) -> np.ndarray:
        """The status of the robots, where the recording of the end writes it: a look takes half a call of torch."""
        assert self._outcome is not None
        return self._outcome[1].status.numpy()

    @cached_property
    def _all_converged(self) -> bytes:
        return bytes(self._statuses.nbytes)  # of zeros

    def _failed(self, info: StepInfo) -> bool:
        return not (self._made_by_all(info) or bool(info.converged.all()))

    @cached_property
    @_lasting()
    def _handing_on(self) -> Recording[None]:
        """What `_hand_on` does of a step that the recording of its end has ended."""
        assert self._outcome is not None
        written = self._next_inputs_and_counts()
        before = [tensor.clone() for tensor in written]
        # to record it is to run it, so what it writes is put back
        recording = recorded(partial(self._write_next, *self._outcome), self._running.device, None)
        for own, tensor in zip(written, before, strict=True):
            own.copy_(tensor)
        return recording

    def _write_next(self, after: State, info: StepInfo) -> None:
        """Write what the next step begins with, and add this one to those that have gone."""
        assert self._went is not None
        problem = self._problem
        added = self._went.followed_by(info, problem.running)
        given = self._next_inputs_and_counts()
        new = (*after.fields(), problem.running & info.converged, *added.tensors())
        for own, tensor in zip(given, new, strict=True):
            own.copy_(tensor)

    def _next_inputs_and_counts(self) -> list[Tensor]:
        """Return the static tensors that `_write_next` writes: what a step begins with, and how all before it went."""
        assert self._went is not None
        return [*self._problem.state.fields(), self._problem.running, *self._went.tensors()]

    def _no_steps(self, like: StepInfo) -> SeveralSteps:
        """Return where steps that report like this one are counted, with none in it."""
        if self._went is None:
            none = replaced(SeveralSteps.none(like.residual), contact=like.contact)
            with _lasting():
                self._went = none.with_tensors(map(torch.clone, none.tensors()))
        torch._foreach_zero_(self._went.tensors())
        return self._went

    @cached_property
    @_lasting()
    def _recordings(self) -> dict[Callable, Callable]:
        """Recordings of what searches call after steps that are not taken whole."""
        recordings: dict[Callable, Callable] = {tried: _RecordedTrials(self.equations, self.options, self.at)}
        if self.equations.model.contact.rubs:
            known = self.equations.rubbing.first_friction(self._problem.state)
            given = [self.at.x, torch.zeros_like(self.at.x), *known]
            recordings[after_step] = RecordedCall(partial(after_step, self.equations), given)
            judged = judged_step_arguments(self.at.x, self.options.weight, self._running)
            recordings[judged_step] = RecordedCall(partial(judged_step, self.equations), judged)
            recordings[first_friction] = RecordedCall(partial(first_friction, self.equations), [self.at.x])
        return recordings

    def _set_up(self) -> tuple[Any, ...]:
        """Return the equations and all that the rounds need."""
        problem = self._problem
        running = problem.running & problem.state.finite()
        equations = problem.equations(mechanics=self.mechanics)
        if self._static.load is not None:
            equations.take_load(self._static.load)
        equations.prepare()
        first = next(iter(problem.method.attempts(equations, problem.divisible)))
        weight, scale, x = equations.compiled(StepEquations.setup)(equations, None, first.start is Start.AHEAD)
        tolerance = problem.method.tolerance(scale)
        options = first.options(newton_options(problem, equations, weight, tolerance))
        return equations, scale, options, _apart(begun(equations, x, options, running)), running

    def _round_with_matrix(self) -> Tensor:
        return self._take_round(with_matrix=True)

    def _round_without_matrix(self) -> Tensor:
        return self._take_round(with_matrix=False)

    def _take_round(self, with_matrix: bool) -> Tensor:
        """Take a round if it suits all rows, and without a matrix is the last; return its flags."""
        new, flags = plain_round(self.equations, self.at, self.options, with_matrix)
        good = ~flags[0] if with_matrix else ~(flags[0] | flags[2])
        for found, static in zip(new, self.at, strict=True):
            if found is not static:
                torch.where(good, found, static, out=static)
        return flags

    def _state_after(self) -> tuple[State, Tensor, Tensor | None, Report]:
        """Return state and status after the step, whether something may have been passed through, what contact did."""
        accepted = self._running & (self.at.status == int(Status.CONVERGED))  # those that do not run have it, too
        equations, q, status = self.equations, self.equations.full(self.at.x), self._status(self.at.status)
        after = equations.compiled(StepEquations.accepted_state)(equations, q, accepted)
        if equations.model.contact.none:
            return after, status, None, {}
        suspect = obstacles_suspected(equations.model.obstacles, self._problem.state, after)
        return after, status, suspect.any(), step_contact(equations, q, accepted)

    def _status(self, status: Tensor) -> Tensor:
        """Return the status of the robots, also of those that were not stepped, as their state is not finite."""
        return torch.where(self._problem.running & ~self._running, int(Status.NOT_FINITE), status)


class _RecordedTrials:
    """What `solve.trial.tried` is, recorded on a CPU: with the matrix there and without.

    Parameters
    ----------
    equations, options : of a recorded step.
    at : an iterate; so many robots and unknowns have all others.
    """

    def __init__(self, equations: StepEquations, options: NewtonOptions, at: Progress):
        none = torch.zeros_like(at.status, dtype=torch.bool)
        of_rows = (at.status, none, options.tolerance, at.length, at.noise, at.short)
        static = (at.x, at.norm, torch.zeros_like(at.x), none, *of_rows)
        self._calls = {
            with_matrix: RecordedCall(partial(_tried, equations, Measure.of(options), with_matrix), static)
            for with_matrix in (True, False)
        }

    def __call__(
        self, equations: StepEquations, move: Move, measure: Measure, with_matrix: bool, with_noise: bool
    ) -> Trial:
        """Return what a step led to, as `tried` does; the measure is the recorded one, and no noise is found."""
        given = [tensor for tensor in move if tensor is not None]  # there is always a step
        return Trial._make(self._calls[with_matrix](equations, *given))


def _tried(equations: StepEquations, measure: Measure, with_matrix: bool, *move: Tensor) -> Trial:
    return tried(equations, Move._make(move), measure, with_matrix, with_noise=False)


def _by_field(controls: Sequence[Control]) -> list[tuple[Tensor, ...]]:
    """Return the tensors of controls that set the same fields, field by field."""
    return list(zip(*(control.tensors().values() for control in controls), strict=True))


def _apart(at: Progress) -> Progress:
    """Return tensors in memory of their own, which rounds may write to."""
    seen: set[int] = set()
    own = []
    for tensor in at:
        place = tensor.untyped_storage().data_ptr()
        own.append(tensor.clone() if place in seen else tensor)
        seen.add(place)
    return Progress(*own)

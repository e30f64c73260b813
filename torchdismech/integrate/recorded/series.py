"""Recorded steps one after the other, each from the state that the one before it led to.

After each step one more recording writes the state to where the next step reads it, and adds the report of the step to
the totals. On a CPU a compiled loop takes the steps, from set-up to set-up, by the calls of all these recordings
(`native/step_loop.py`). It ends before a part of a step that needs Python. In a `RecordedSeries` Python takes that step
to its end, and the loop goes on; an `UnaidedSeries` ends before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.recorded.static_problem import StaticProblem, outside_inference_mode, recorded_mid_step
from torchdismech.native.availability import Unavailable
from torchdismech.native.calls import CallTable
from torchdismech.native.graphs import Recording
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepLoop, StopReason
from torchdismech.native.tape import Tape
from torchdismech.records import replaced
from torchdismech.robot.state import Control, State

if TYPE_CHECKING:
    from torchdismech.integrate.gradients.course_states import ChunkStates
    from torchdismech.integrate.recorded.contact_step import RecordedContactStep
    from torchdismech.integrate.recorded.step import RecordedStep

__all__ = ["RecordedSeries", "UnaidedSeries"]


class _Series:
    """Steps of one kind, one after the other: the compiled loop that takes them, and what leads from each to the next.

    Attributes
    ----------
    step : the recording that takes each of them.
    """

    def __init__(self, step: RecordedStep | RecordedContactStep):
        self.step, self._problem = step, step.static.problem
        self._totals: SeveralSteps | None = None  # how the steps before the present one went
        self._kind_of_loop: tuple[CallTable, list[tuple]] | None = None  # for which `_last_loop` was made
        self._last_loop: StepLoop | None = None

    # ---- steps by compiled code ------------------------------------------------------------------------------------

    def _loop(self, controls: Sequence[Control], keeper: ChunkStates | None) -> StepLoop | None:
        """Return a compiled loop of steps with these controls; None where it cannot be compiled.

        None, too, before the recorded end has finished a step.
        """
        step = self.step
        if step.result is None:
            return None
        recordings = (*step.parts(), self._hand_on_recording)
        tables = [recording.table for recording in recordings if isinstance(recording, Tape)]
        if len(tables) < len(recordings):
            return None
        calls = step.calls(*tables)
        try:
            given = _controls_given(step.static, controls)
            kind = calls.accept_or_shorten, [values.layout for _, values in given]
            if keeper is not None or kind != self._kind_of_loop:
                loop = StepLoop(calls, _copied(given), _states_kept(keeper, step.result), step.checks())
                if keeper is not None:
                    return loop  # it holds states of many steps
                self._last_loop, self._kind_of_loop = loop, kind
            assert self._last_loop is not None
            if given:
                self._last_loop.exchange([values for _, values in given])
            return self._last_loop
        except (NoInstruction, Unavailable):
            return None

    # ---- from one step to the next ---------------------------------------------------------------------------------

    def _hand_on(self, after: State, info: StepInfo) -> None:
        """Write the state after a step to where the next one begins, and add the step's report to the totals."""
        result = self.step.result
        if result is not None and info is result[1]:  # the recorded end has finished the step
            self._hand_on_recording.replay()
        else:
            self._write_next(after, info)

    @cached_property
    def _hand_on_recording(self) -> Recording[None]:
        """The recording of `_write_next`, for steps that the recorded end has finished."""
        assert self.step.result is not None
        write = partial(self._write_next, *self.step.result)
        return recorded_mid_step(write, self._next_inputs_and_totals(), self._problem.running.device, None)

    def _write_next(self, after: State, info: StepInfo) -> None:
        """Write state and running robots to the buffers of the next step, and add a report to the totals."""
        assert self._totals is not None
        problem = self._problem
        totals = self._totals.followed_by(info, problem.running)
        values = (*after.fields(), problem.running & info.converged, *totals.tensors())
        for buffer, tensor in zip(self._next_inputs_and_totals(), values, strict=True):
            buffer.copy_(tensor)

    def _next_inputs_and_totals(self) -> list[Tensor]:
        """Return the static tensors that `_write_next` writes: a step's state and running robots, and the totals."""
        assert self._totals is not None
        return [*self._problem.state.fields(), self._problem.running, *self._totals.tensors()]

    def _report(self, count: int) -> SeveralSteps:
        """Return how so many steps went, in memory that the next steps overwrite."""
        assert self._totals is not None
        return replaced(self._totals, count=count)

    def _empty_totals(self, like: StepInfo) -> None:
        """Set the totals to zero; they have a tensor for each that a report like this one holds."""
        if self._totals is None:
            none = replaced(SeveralSteps.none(like.residual), contact=like.contact)
            with outside_inference_mode():
                self._totals = none.clone()
        torch._foreach_zero_(self._totals.tensors())


class RecordedSeries(_Series):
    """Steps one after the other, with what recordings leave of some taken by Python."""

    step: RecordedStep

    def take(self, controls: Sequence[Control], keeper: ChunkStates | None = None) -> tuple[State, StepInfo]:
        """Take steps with these controls, of which the first is started already.

        Return the states after the last of them and how all went. A robot whose step fails is not stepped any more. But
        the series ends before a step that some robot fails where robots that fail take it again in smaller parts, and
        with a keeper; if that is the first step, the report is of this step.

        Parameters
        ----------
        keeper : keeps the states after each of the steps.
        """
        until_failure = self.step.divisible or keeper is not None
        loop, number = None, 0
        if self.step.result is not None:
            self._empty_totals(self.step.result[1])
            loop = self._loop(controls, keeper)
        while number < len(controls):
            reason = StopReason.UNEXPECTED
            if loop is not None:
                number, reason = loop.run(number, len(controls))
                if keeper is not None:
                    keeper.count(number)
            after, info = self._stopped_step(reason, controls, number)
            if reason is StopReason.ALL_TAKEN:
                break
            if loop is None and not number:
                self._empty_totals(info)
            # also where a robot was not stepped, as its state was not finite; CONVERGED is 0
            if until_failure and bool(info.status.any()):
                return (self._problem.state, self._report(number)) if number else (after, info)
            if keeper is not None:
                keeper.keep(number, after, info)
            self._hand_on(after, info)
            number += 1
            if number == 1 or reason is StopReason.BAD_STEP:  # by now the end, or `accept_or_shorten`, is recorded
                loop = self._loop(controls, keeper)
        return after, self._report(len(controls))

    def _stopped_step(self, reason: StopReason, controls: Sequence[Control], number: int) -> tuple[State, StepInfo]:
        """Return the states after the step at which a loop has stopped, or after the last, and how that step went.

        A step that is not over is taken to its end. `StopReason.UNEXPECTED` stands for steps without a loop, too: the
        step is taken from its set-up on.
        """
        if reason is not StopReason.UNEXPECTED:
            return self.step.finish_stopped(reason)
        if number and controls[number] is not controls[number - 1]:
            self.step.static.give_control(controls[number])
        return self.step.finish_by_parts()


class UnaidedSeries(_Series):
    """Steps that recordings take by themselves, one after the other."""

    def take_remaining(
        self, controls: Sequence[Control], keeper: ChunkStates | None = None, other_pairs: bool = True
    ) -> tuple[State, SeveralSteps]:
        """Take the remaining steps of a list of controls, the first of which was taken already.

        Return the states after them, and how all went. The series ends before a step that recordings do not solve for
        all robots, or after which something has to be looked for: what passed through an obstacle, or parts that touch.

        Parameters
        ----------
        keeper : keeps the states after each of the steps.
        other_pairs : whether other pairs may touch in later steps than in the first.
        """
        assert self.step.result is not None
        self._empty_totals(self.step.result[1])
        if keeper is not None:
            keeper.keep(0, *self.step.result)
        self._hand_on(*self.step.result)
        loop, number = self._loop(controls, keeper), 1
        while number < len(controls):
            if loop is not None:
                number, reason = loop.run(number, len(controls))
                if keeper is not None:
                    keeper.count(number)
                if reason is StopReason.ALL_TAKEN:
                    break
                ended = reason is StopReason.CHECK and self.step.stands()
            else:
                ended = self._taken_alone(controls, number)
            if not (ended or self.step.taken_again(other_pairs)):
                break
            if keeper is not None:
                keeper.keep(number, *self.step.result)
            self._hand_on(*self.step.result)
            number += 1
        return self._problem.state.clone(), self._report(number).clone()

    def _taken_alone(self, controls: Sequence[Control], number: int) -> bool:
        """Take a step by its recordings, one part after the other; return whether they do so for all robots."""
        if controls[number] is not controls[number - 1]:
            self.step.static.give_control(controls[number])
        return self.step.taken_alone()


def _controls_given(static: StaticProblem, controls: Sequence[Control]) -> list[tuple[Tensor, PerStep]]:
    """Return the static buffers of the control, with the tensors for each step; none where all controls are one."""
    if all(control is controls[0] for control in controls):
        return []
    by_field = zip(*(control.tensors().values() for control in controls), strict=True)
    given = zip(static.control_tensors(), by_field, strict=True)
    return [(buffer, PerStep.of(values)) for buffer, values in given if buffer.numel()]


def _copied(given: Sequence[tuple[Tensor, PerStep]]) -> PerStepInstructions:
    """Return instructions that copy tensors of each step to buffers."""
    instructions = PerStepInstructions()
    for buffer, values in given:
        instructions.add("copy", buffer, values)
    return instructions


def _states_kept(keeper: ChunkStates | None, result: tuple[State, StepInfo]) -> PerStepInstructions:
    """Return instructions that copy state and report of each step to where a keeper wants them; none without one."""
    kept = PerStepInstructions()
    for overwritten, storage in () if keeper is None else keeper.destinations(*result):
        kept.add("copy", PerStep.along(storage), overwritten)
    return kept

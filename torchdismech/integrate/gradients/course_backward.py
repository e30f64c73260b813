"""ChunkBackward: the backward pass of a chunk of robots through the steps of a course, from the last to the first.

A step is given the gradients by the state after it: those that the step after it found, and what the loss adds, as q
and velocity after each step are outputs of the course. It finds the gradients by the state before it, which go to the
step before, and those by the model's tensors, which are summed. The first steps are differentiated one by one, by
recordings where there are some; then a compiled loop goes on alone (`native/step_loop.py`), until a step needs Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.integrate.forward import SolvedChunk
from torchdismech.integrate.gradients.adjoint import Gradients
from torchdismech.integrate.gradients.gradient import solved_gradients
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.gradients.sums import Needed
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.gradients import RecordedPasses
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.native.availability import Unavailable
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, StepLoop

__all__ = ["ChunkBackward"]

# The last step of a run may have gradients that no earlier one has; the last but one is differentiated by the recording
# that takes all before it. The same holds after each step that Python takes.
STEPS_BEFORE_A_LOOP = 2

# gradients (T, B, n) by a field of the states after the steps, with the field's place
Added = Sequence[tuple[int, Tensor]]


class ChunkBackward:
    """The backward pass of some robots through the steps of a course.

    Parameters
    ----------
    recipe : of each step, of all robots.
    solved : the chunk of robots, and how its steps were taken.
    fitting : the kind of steps that the model is known to fit.
    kept : the states' fields (T + 1, B, ...) of all robots.
    controls : the controls' tensors (B, ...) of all robots, those of the first step first.
    values : the model's tensors that the steps depend on, and whether each needs a gradient.
    recording : of a step's backward pass, for this thread; None: the first that serves.
    """

    def __init__(
        self,
        recipe: StepRecipe,
        solved: SolvedChunk,
        fitting: StepKind | None,
        kept: Sequence[Tensor],
        controls: Sequence[Tensor],
        values: Needed,
        recording: RecordedAdjoint | None = None,
    ):
        chunk, per_step = solved.chunk, len(recipe.controls)
        self._recipe = recipe.of_chunk(solved, fitting)
        self._fields = [chunk.of(field, 1) for field in kept]
        chunk_controls = [chunk.of(tensor) for tensor in controls]
        self._controls = [chunk_controls[per_step * k : per_step * (k + 1)] for k in range(len(kept[0]) - 1)]
        self._values: Needed = [
            (chunk.of(t, axis), need) for (t, need), axis in zip(values, recipe.axes_of_values, strict=True)
        ]
        self._recording = recording
        self._recorded: RecordedPasses | None = None
        self._model_tensors: list[Tensor] = []  # those among the inputs of the steps
        self._last: RecordedAdjoint | None = None  # the recording that differentiated the last step

    def pulled_back(
        self, by_steps: dict[str, Tensor], gradients: list[Tensor | None]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the gradients by the fields of the state before all steps, and by those values that need one.

        Parameters
        ----------
        by_steps : gradients (T, B, n) by "q" and "velocity" after each step; those that are left out are zero.
        gradients : by the fields of the state after the last; None is zero.
        """
        recipe, number = self._recipe, len(self._controls)
        totals: list[Tensor | None] = [None for _, need in self._values if need]
        loss_gradients = [(recipe.fields.index(name), of_steps) for name, of_steps in by_steps.items()]
        by_python = 0  # steps since the last one that a compiled loop took
        while number:
            to_add: Added = loss_gradients
            if by_python == STEPS_BEFORE_A_LOOP and (loop := self._loop(loss_gradients, totals)) is not None:
                number, gradients = self._pulled_back_by_loop(loop, number, gradients)
                to_add, by_python = [], 0  # the loop has added what the loss contributes
                if not number:
                    break
            number, by_python = number - 1, by_python + 1
            for place, of_steps in to_add:
                gradients[place] = _summed(gradients[place], of_steps[number])
            by_inputs = self._step_gradients(number, gradients)
            by_state, by_values = by_inputs[: recipe.n_state - 1], by_inputs[recipe.n_state - 1 :]
            gradients = self._with_time(by_state)
            totals = [_added_in_place(total, gradient) for total, gradient in zip(totals, by_values, strict=True)]
        if self._recorded is not None:
            self._recorded.passes.replayed_steps += len(self._controls)
        return gradients, totals

    def _loop(self, loss_gradients: Added, totals: Sequence[Tensor | None]) -> StepLoop | None:
        """Return a compiled loop that goes back through steps; None if something in them needs Python."""
        if self._recorded is None or self._last is None:
            return None
        places, first_control = self._recorded.places, self._recorded.kind.layout.control.start
        q, controls = self._fields[self._recipe.fields.index("q")], self._controls[::-1]
        try:
            states = [PerStep.along(field[:-1], backward=True) for field in self._fields]
            inputs = [*enumerate(states), *enumerate(map(PerStep.of, zip(*controls, strict=True)), first_control)]
            by_steps = [(place, PerStep.along(of_steps, backward=True)) for place, of_steps in loss_gradients]
            placed_totals = list(zip(places[len(places) - len(totals) :], totals, strict=True))
            return self._last.loop(inputs, PerStep.along(q[1:], backward=True), by_steps, placed_totals)
        except (NoInstruction, Unavailable):
            return None

    def _pulled_back_by_loop(
        self, loop: StepLoop, number: int, gradients: list[Tensor | None]
    ) -> tuple[int, list[Tensor | None]]:
        """Go back through the last of `number` steps by a compiled loop, until a step needs Python.

        Return how many steps are left, and the gradients by the state after the last of these, with what the loss adds;
        where none is left, by the state before all steps.
        """
        assert self._recorded is not None and self._last is not None
        self._last.give_gradients(gradients)
        steps = len(self._controls)
        reached, _ = loop.run(steps - number, steps)
        if reached == steps:
            by_needed = self._recorded.by_needed(self._last.last_gradients())
            return 0, self._with_time(by_needed[: self._recipe.n_state - 1])
        return steps - reached, [*self._last.given_gradients()]

    def _step_gradients(self, number: int, gradients: list[Tensor | None]) -> Gradients:
        """Return the gradients of a step by the state before it, without its time, and by the values that need one."""
        recipe, control = self._recipe, self._controls[number]
        state, q = [steps[number] for steps in self._fields], self._fields[recipe.fields.index("q")][number + 1]
        needed: Needed = [(tensor, k != recipe.time_index) for k, tensor in enumerate(state)]
        needed += [*[(tensor, False) for tensor in control], *self._values]
        if self._recorded is None:
            self._find_recording(needed)
        if self._recorded is not None:
            by_needed = self._by_recording([*state, recipe.running, *control], q, gradients)
            if by_needed is not None:
                return by_needed
            assert self._last is not None
            gradients = [*self._last.given_gradients()]  # those that came from the step after are overwritten
            # no recording is asked again: the first one may be in use by another thread
            recipe = dataclasses.replace(recipe, recorded_as=None)
        all_rows = q.new_ones(len(q), dtype=torch.bool)
        return solved_gradients(recipe, needed, q, all_rows, True, gradients)

    def _find_recording(self, needed: Needed) -> None:
        """Find the recording that differentiates steps, and what all of them have in common, if it is made by now.

        Parameters
        ----------
        needed : the tensors that one of the steps depends on, and whether each needs a gradient.
        """
        recipe = self._recipe
        self._recorded = RecordedPasses.of(recipe, recipe.fitting, needed)
        if self._recorded is not None:
            self._recording = self._recording or self._recorded.passes.recording
            self._model_tensors = self._recorded.inputs(recipe, needed)[self._recorded.kind.layout.model]

    def _by_recording(
        self, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
    ) -> Gradients | None:
        """Return the gradients of a step by the tensors that need one, which the next step overwrites.

        None where a matrix is singular.

        Parameters
        ----------
        inputs : of the step, without tensors of the model.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step; None is zero.
        """
        assert self._recorded is not None and self._recording is not None
        recording = self._recording.without_zeros([*inputs, *self._model_tensors], q, gradients)
        # the model's tensors are the same for all steps: the buffers keep them
        model_tensors = [None] * len(self._model_tensors) if recording is self._last else self._model_tensors
        self._last = recording
        read = recording.gradients_read(gradients)
        by_inputs = recording.replayed(self._recipe.dt, [*inputs, *model_tensors, q, *read])
        return None if by_inputs is None else self._recorded.by_needed(by_inputs)

    def _with_time(self, by_state: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients by all fields of a state, from those by all but its time, whose gradient is None."""
        return [*by_state[: self._recipe.time_index], None, *by_state[self._recipe.time_index :]]


def _summed(gradient: Tensor | None, more: Tensor) -> Tensor:
    """Return the sum of two gradients; None for the first is zero."""
    return more if gradient is None else gradient + more


def _added_in_place(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Return a total with a gradient added in place; None where both are None, which is zero."""
    if gradient is None:
        return total
    return gradient.clone(memory_format=torch.contiguous_format) if total is None else total.add_(gradient)

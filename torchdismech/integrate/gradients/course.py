"""Several steps as one node of autograd, where recordings take them all.

A course is such a sequence of steps. Each chunk of a batch takes all its steps before the next chunk begins, and goes
back through all of them, too: states, and gradients by them, go from recording to recording, and autograd sees one
function. The states after all steps are kept (`course_states.py`), as autograd keeps them where each step is a node;
`course_backward.py` goes back through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.integrate.chunks import chunks_of
from torchdismech.integrate.forward import (
    SolvedChunk,
    held_values,
    of_chunk,
    solved_in_chunks,
    takes_chunks,
    takes_courses,
)
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.integrate.gradients.course_backward import ChunkBackward
from torchdismech.integrate.gradients.course_states import CourseStates
from torchdismech.integrate.gradients.gradient import split_for_autograd
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.gradients.refusals import refuse_changed_model, refuse_other_gradients
from torchdismech.integrate.gradients.sums import Needed, Sums
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.gradients import RecordedPasses, fitting_kind
from torchdismech.integrate.recorded.recording import kind_of
from torchdismech.robot.state import Control, State

__all__ = ["Course", "course_of", "can_begin_course"]


@dataclass(frozen=True)
class Course:
    """Where a sequence of steps led, as one function to autograd.

    Attributes
    ----------
    q, velocity : (T, B, n) after each step.
    after : the states after the last step.
    controls : of each step.
    fields : fields of the states (T + 1, B, ...) before the steps and after each; no gradients pass through them.
    infos : the reports of all steps in one: its tensors are (T, B, ...).
    """

    q: Tensor
    velocity: Tensor
    after: State
    controls: Sequence[Control]
    fields: Sequence[Tensor]
    infos: StepInfo


@torch.no_grad()  # recordings take no tensors that are differentiated
def can_begin_course(problem: StepProblem, size: int, differentiates: bool) -> bool:
    """Return whether a step, taken for `size` robots at a time, is one that others may follow in a course.

    It is not if no recording takes it as a whole, if some robot is not to be stepped, or if the control or the time
    needs a gradient.

    Parameters
    ----------
    differentiates : whether autograd may record the course. Steps in which something that is a constraint may touch
        then are taken one by one, as their gradients need the loads of each.
    """
    known = [problem.state.time, *problem.control.tensors().values()]
    if not bool(problem.running.all()) or any(tensor.requires_grad for tensor in known):
        return False
    chunks, parametrized = chunks_of(problem.state.batch, size), problem.parametrized()
    with parametrized.in_place():
        replaced_values = held_values(problem, parametrized, chunks)
        detached_problem = problem.replace(values=replaced_values.detached()) if replaced_values else problem
        first_chunk = of_chunk(detached_problem, chunks[0])
        with first_chunk.values.in_place():
            kind = kind_of(first_chunk)
    return takes_chunks(kind) or (len(chunks) == 1 and takes_courses(kind, differentiates))


def course_of(problem: StepProblem, size: int) -> Course | None:
    """Return where a step that `can_begin_course` and those that follow it lead; None where a robot fails in the first.

    A course ends before a step that some robot fails. It can be differentiated by the state before its first step and
    the tensors of the model.

    Parameters
    ----------
    size : how many robots are stepped at a time.
    """
    chunks = chunks_of(problem.state.batch, size)
    controls = [problem.control, *problem.following]
    parametrized = problem.parametrized()  # found once for all steps
    with parametrized.in_place():
        recipe, tensors, detached_problem = split_for_autograd(problem, parametrized, chunks)
        detached_problem = detached_problem.replace(following=problem.following)
        states = CourseStates(detached_problem.state, len(controls), differentiated=recipe is not None)
        with torch.no_grad(), apart_from_checkpoints():
            _, _, solved_chunks = solved_in_chunks(detached_problem, chunks, states)
    count = states.common_steps
    if not count:
        return None
    fields = [field[: count + 1] for field in states.fields]
    q, velocity = (fields[states.names.index(name)][1:] for name in ("q", "velocity"))
    last = [field[-1].clone() for field in fields]
    if recipe is not None:
        recipe.chunks = solved_chunks
        inputs = [*tensors[: recipe.n_state], *tensors[recipe.n_own :]]
        q, velocity, *last = _Course.apply(recipe, fields, controls[:count], *inputs)
    assert states.infos is not None
    infos = states.infos.with_tensors([tensor[:count] for tensor in states.infos.tensors()])
    return Course(q, velocity, detached_problem.state.with_fields(last), controls[:count], fields, infos)


class _Course(torch.autograd.Function):
    """The states after each of some steps, which are taken already, as a function of what they depend on."""

    @staticmethod
    def forward(ctx, recipe: StepRecipe, kept: list[Tensor], controls: list[Control], *tensors: Tensor):  # noqa: D102
        ctx.recipe = recipe
        ctx.save_for_backward(*tensors, *kept, *(t for control in controls for t in control.tensors().values()))
        ctx.set_materialize_grads(False)
        q, velocity = (kept[recipe.fields.index(name)][1:] for name in ("q", "velocity"))
        last = [field[-1].clone() for field in kept]
        ctx.mark_non_differentiable(last[recipe.time_index])
        return q, velocity, *last

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):  # noqa: D102
        refuse_other_gradients(gradients)
        recipe: StepRecipe = ctx.recipe
        with recipe.model.lock:
            refuse_changed_model(recipe)  # by name, before torch looks at what it has saved
            saved, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
            needed: Needed = list(zip(saved, needs, strict=False))  # states and controls come after these tensors
            end_of_states = len(needed) + recipe.n_state
            states, controls = saved[len(needed) : end_of_states], saved[end_of_states:]
            return None, None, None, *_CourseGradients(recipe, needed, states, controls, gradients).summed()


class _CourseGradients:
    """The gradients of a course, found for one chunk of the batch after the other, or for several by as many threads.

    Parameters
    ----------
    needed : the tensors of the state before the steps and of the model, and whether each needs a gradient.
    states : the states' fields (T + 1, B, ...).
    controls : the controls' tensors (B, ...), those of the first step first.
    gradients : by q and velocity (T, B, n) after the steps, and by the fields of the state after the last.
    """

    def __init__(
        self,
        recipe: StepRecipe,
        needed: Needed,
        states: Sequence[Tensor],
        controls: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
    ):
        self._recipe, self._needed, self._states, self._controls = recipe, needed, states, controls
        by_q, by_velocity, *self._by_last = gradients
        self._by_steps = {name: g for name, g in (("q", by_q), ("velocity", by_velocity)) if g is not None}
        self._fitting = fitting_kind(recipe, [tensor for tensor, _ in self._of_first_step()])

    def summed(self) -> list[Tensor | None]:
        """Return the gradients by the state before the steps and the model's tensors, None for those that need none."""
        sums = Sums(self._needed, [*[0] * self._recipe.n_state, *self._recipe.axes_of_values])
        sums.add_chunks(self._recipe.chunks, self._of_chunk, self._recordings)
        return sums.gradients()

    def _of_chunk(self, solved: SolvedChunk, recording: RecordedAdjoint | None) -> list[Tensor | None]:
        """Return the gradients of a chunk by the tensors that need one; a recording's next chunk overwrites them."""
        chunk, values = solved.chunk, self._needed[self._recipe.n_state :]
        backward = ChunkBackward(self._recipe, solved, self._fitting, self._states, self._controls, values, recording)
        by_steps = {name: chunk.zero_where_repeated(gradient, axis=1) for name, gradient in self._by_steps.items()}
        last = [None if gradient is None else chunk.zero_where_repeated(gradient) for gradient in self._by_last]
        by_state, by_values = backward.pulled_back(by_steps, last)
        return [*[g for g, (_, need) in zip(by_state, self._needed, strict=False) if need], *by_values]

    def _recordings(self, parts: int) -> list[RecordedAdjoint]:
        """Return recordings that differentiate steps of this many chunks side by side; none where there are none."""
        if parts == 1:
            return []
        recorded = RecordedPasses.of(self._recipe, self._fitting, self._of_first_step())
        return [] if recorded is None else recorded.side_by_side(parts)

    def _of_first_step(self) -> Needed:
        """Return the tensors that the first step depends on, and whether a backward pass finds gradients by them."""
        recipe = self._recipe
        state: Needed = [(field[0], k != recipe.time_index) for k, field in enumerate(self._states)]
        control: Needed = [(tensor, False) for tensor in self._controls[: len(recipe.controls)]]
        return [*state, *control, *self._needed[recipe.n_state :]]

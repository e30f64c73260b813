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
from torchdismech.integrate.forward import held_values, of_chunk, solved_in_chunks
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.integrate.gradients.course_backward import ChunkBackward
from torchdismech.integrate.gradients.course_states import CourseStates
from torchdismech.integrate.gradients.gradient import split_for_autograd
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.gradients.refusals import refuse_changed_model, refuse_other_gradients
from torchdismech.integrate.gradients.sums import Needed, Sums
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.recording import kind_of
from torchdismech.integrate.recorded.step import RecordedStep
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
def can_begin_course(problem: StepProblem, size: int) -> bool:
    """Return whether a step, taken for `size` robots at a time, is one that others may follow in a course.

    It is not if no recording takes it as a whole, if some robot is not to be stepped, or if the control needs a
    gradient.
    """
    if not bool(problem.running.all()) or any(tensor.requires_grad for tensor in problem.control.tensors().values()):
        return False
    chunks, parametrized = chunks_of(problem.state.batch, size), problem.parametrized()
    with parametrized.in_place():
        replaced_values = held_values(problem, parametrized, chunks)
        detached_problem = problem.replace(values=replaced_values.detached()) if replaced_values else problem
        first_chunk = detached_problem if chunks[0].whole else of_chunk(detached_problem, chunks[0])
        with first_chunk.values.in_place():
            kind = kind_of(first_chunk)
    return kind is not None and kind.all_forces and isinstance(kind.recording, RecordedStep)


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
        detached_problem, states = (
            detached_problem.replace(following=problem.following),
            CourseStates(detached_problem.state, len(controls)),
        )
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
            return None, None, None, *_Course._by_tensors(ctx, recipe, gradients)

    @staticmethod
    def _by_tensors(ctx, recipe: StepRecipe, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients by the state before the steps and the model's tensors."""
        refuse_changed_model(recipe)
        saved, count = ctx.saved_tensors, recipe.n_state
        tensor_count = len(recipe.axes_of_values) + count
        tensors, states, controls = (
            saved[:tensor_count],
            saved[tensor_count : tensor_count + count],
            saved[tensor_count + count :],
        )
        needed: Needed = list(zip(tensors, ctx.needs_input_grad[3:], strict=True))
        axes = [*[0] * count, *recipe.axes_of_values]
        by_q, by_velocity, *by_last = gradients
        sums, fitting = Sums(needed, axes), None
        for solved in recipe.chunks:
            chunk = solved.chunk
            chunk_backward = ChunkBackward(recipe, solved, fitting, states, controls, needed[count:])
            by_steps = {
                name: chunk.zero_where_repeated(gradient, axis=1)
                for name, gradient in (("q", by_q), ("velocity", by_velocity))
                if gradient is not None
            }
            last = [None if gradient is None else chunk.zero_where_repeated(gradient) for gradient in by_last]
            by_state, by_values = chunk_backward.pulled_back(by_steps, last)
            by_needed_state = [g for g, (_, need) in zip(by_state, needed, strict=False) if need]
            sums.add(chunk, [*by_needed_state, *by_values])
            fitting = chunk_backward.fitting
        return sums.gradients()

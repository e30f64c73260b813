"""Several steps as one node of autograd, where recordings take them all.

Each chunk of a batch takes all its steps before the next chunk begins, and goes back through all of them, too: what a
step led to, and the gradients by it, go from recording to recording, and autograd sees one function. The states after
all steps are kept, as autograd keeps them where each step is a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.integrate.chunks import Chunk, chunks_of
from torchdismech.integrate.forward import SolvedChunk, held_values, of_chunk, solved_in_chunks
from torchdismech.integrate.gradients.adjoint import Gradients, StepRecipe
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.integrate.gradients.gradient import solved_gradients, taken_apart
from torchdismech.integrate.gradients.refusals import refuse_changed_model, refuse_other_gradients
from torchdismech.integrate.gradients.sums import Needed, Sums
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.gradients import RecordedSteps
from torchdismech.integrate.recorded.kinds import StepKind
from torchdismech.integrate.recorded.recording import kind_of
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.native.availability import Unavailable
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, StepLoop
from torchdismech.robot.state import Control, State, tensor_fields

__all__ = ["Course", "course_of", "goes_on"]

# The last step of a run may have gradients that no earlier one has; the last but one is differentiated by the recording
# that all before it take. So it is after each step that Python takes.
STEPS_BEFORE_A_TABLE = 2

Added = Sequence[tuple[int, Tensor]]  # gradients (T, B, n) by fields of the states after the steps, by their places


@dataclass(frozen=True)
class Course:
    """Where some steps led.

    Attributes
    ----------
    q, velocity : (T, B, n) after each of them.
    after : the states after the last.
    controls : of each step.
    fields : of the states (T + 1, B, ...) before the steps and after each; no gradients pass through them.
    infos : how the steps went, in one: its tensors are (T, B, ...).
    """

    q: Tensor
    velocity: Tensor
    after: State
    controls: Sequence[Control]
    fields: Sequence[Tensor]
    infos: StepInfo

    def step(self, number: int) -> tuple[Control, State, StepInfo]:
        """Return the control of a step, counted from 0, the states after it, and how it went; without gradients."""
        state = self.after.with_fields([field[number + 1] for field in self.fields])
        return self.controls[number], state, self.infos.with_tensors([of[number] for of in self.infos.tensors()])


@torch.no_grad()  # tensors that are differentiated are not for recordings
def goes_on(problem: StepProblem, size: int) -> bool:
    """Return whether a step, of so many robots at a time, is one that others may follow in a course.

    It is none where no recording takes it as a whole, where a robot is not to be stepped, and where a control needs a
    gradient.
    """
    if not bool(problem.running.all()) or any(tensor.requires_grad for tensor in problem.control.tensors().values()):
        return False
    chunks, parametrized = chunks_of(problem.state.batch, size), problem.parametrized()
    with parametrized.in_place():
        held = held_values(problem, parametrized, chunks)
        given = problem.replace(values=held.detached()) if held else problem
        own = given if chunks[0].whole else of_chunk(given, chunks[0])
        with own.values.in_place():
            kind = kind_of(own)
    return kind is not None and kind.all_forces and isinstance(kind.recording, RecordedStep)


def course_of(problem: StepProblem, size: int) -> Course | None:
    """Return where a step that `goes_on` and those that follow it lead; None where a robot fails in the first.

    A course ends before a step that some robot fails. It can be differentiated by the state before it and the tensors
    of the model.

    Parameters
    ----------
    size : how many robots are stepped at a time.
    """
    chunks = chunks_of(problem.state.batch, size)
    controls = [problem.control, *problem.following]
    parametrized = problem.parametrized()  # for all steps
    with parametrized.in_place():
        recipe, tensors, given = taken_apart(problem, parametrized, chunks)
        given, kept = given.replace(following=problem.following), _CourseStates(given.state, len(controls))
        with torch.no_grad(), apart_from_checkpoints():
            _, _, solved = solved_in_chunks(given, chunks, kept)
    count = kept.common_steps
    if not count:
        return None
    fields = [field[: count + 1] for field in kept.fields]
    q, velocity = (fields[kept.names.index(name)][1:] for name in ("q", "velocity"))
    last = [field[-1].clone() for field in fields]
    if recipe is not None:
        recipe.chunks = solved
        depends = [*tensors[: recipe.n_state], *tensors[recipe.n_own :]]
        q, velocity, *last = _Course.apply(recipe, fields, controls[:count], *depends)
    assert kept.infos is not None
    infos = kept.infos.with_tensors([tensor[:count] for tensor in kept.infos.tensors()])
    return Course(q, velocity, given.state.with_fields(last), controls[:count], fields, infos)


class _CourseStates:
    """The states before some steps and after each of them, up to one that some robot fails, and how these went.

    Parameters
    ----------
    state : before them.
    steps : T.

    Attributes
    ----------
    names, fields : of the states' fields (T + 1, B, ...).
    infos : how the steps went, (T, B, ...); None before the first was taken.
    """

    def __init__(self, state: State, steps: int):
        self.names = tensor_fields(state)
        self.counts: dict[int, int] = {}  # of steps, by the numbers of chunks
        self.fields = [field.new_empty(steps + 1, *field.shape) for field in state.fields()]
        self.infos: StepInfo | None = None
        self._steps, self._batch = steps, state.batch
        torch._foreach_copy_([field[0] for field in self.fields], [field.detach() for field in state.fields()])

    @property
    def common_steps(self) -> int:
        """How many steps all chunks so far have taken; before the first has begun, all steps."""
        return min(self.counts.values(), default=self._steps)

    def of_chunk(self, chunk: Chunk) -> _ChunkStates:
        """Return what keeps the states of some robots."""
        self.counts[chunk.number] = 0
        return _ChunkStates(self, chunk)

    def infos_like(self, info: StepInfo) -> StepInfo:
        """Return the infos, made for what the first step of some robots says."""
        if self.infos is None:
            shape = (self._steps, self._batch)
            self.infos = info.with_tensors([tensor.new_empty(*shape, *tensor.shape[1:]) for tensor in info.tensors()])
        return self.infos


class _ChunkStates:
    """Keeps the states of some robots of a course, and how their steps went."""

    def __init__(self, states: _CourseStates, chunk: Chunk):
        self._states, self._chunk = states, chunk
        self._fields = [self._steps(field)[1:] for field in states.fields]

    def keep(self, number: int, after: State, info: StepInfo) -> None:
        """Keep those after a step, counted from 0."""
        kept = self.destinations(after, info)
        torch._foreach_copy_([places[number] for _, places in kept], [found for found, _ in kept])
        self.count(number + 1)

    def destinations(self, after: State, info: StepInfo) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of a tensor of a step, and the tensor (T, ...) that keeps it for each step."""
        infos = [self._steps(tensor) for tensor in self._states.infos_like(info).tensors()]
        found = [self._chunk.without_repeated(tensor) for tensor in (*after.fields(), *info.tensors())]
        return list(zip(found, [*self._fields, *infos], strict=True))

    def count(self, steps: int) -> None:
        """Learn how many steps are kept."""
        self._states.counts[self._chunk.number] = steps

    def _steps(self, tensor: Tensor) -> Tensor:
        """Return what counts of these robots, of a tensor (T, B, ...) of all."""
        return self._chunk.without_repeated(self._chunk.of(tensor, 1), 1)


class _Course(torch.autograd.Function):
    """The states after each of some steps, which are taken already, as a function of all that they depend on."""

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
        given = len(recipe.axes_of_values) + count
        tensors, kept, controls = saved[:given], saved[given : given + count], saved[given + count :]
        needed: Needed = list(zip(tensors, ctx.needs_input_grad[3:], strict=True))
        axes = [*[0] * count, *recipe.axes_of_values]
        by_q, by_velocity, *by_last = gradients
        sums, fitting = Sums(needed, axes), None
        for solved in recipe.chunks:
            chunk = solved.chunk
            steps = _StepsOfChunk(recipe, solved, fitting, kept, controls, needed[count:])
            by_steps = {
                name: chunk.zero_where_repeated(gradient, axis=1)
                for name, gradient in (("q", by_q), ("velocity", by_velocity))
                if gradient is not None
            }
            last = [None if gradient is None else chunk.zero_where_repeated(gradient) for gradient in by_last]
            by_state, by_values = steps.pulled_back(by_steps, last)
            found = [g for g, (_, need) in zip(by_state, needed, strict=False) if need]
            sums.add(chunk, [*found, *by_values])
            fitting = steps.fitting
        return sums.found()


class _StepsOfChunk:
    """The steps of some robots, to be differentiated from the last to the first.

    Parameters
    ----------
    recipe : of each step, of all robots.
    solved : the robots, and how they were stepped.
    fitting : the kind of steps that the model is known to fit.
    kept : the states' fields (T + 1, B, ...) of all robots.
    controls : the controls' tensors (B, ...) of all robots, those of the first step first.
    values : the model's tensors that the steps depend on, and whether each needs a gradient.
    """

    def __init__(
        self,
        recipe: StepRecipe,
        solved: SolvedChunk,
        fitting: StepKind | None,
        kept: Sequence[Tensor],
        controls: Sequence[Tensor],
        values: Needed,
    ):
        chunk, each = solved.chunk, len(recipe.controls)
        self._form = recipe.of_chunk(solved, fitting)
        self._fields = [chunk.of(field, 1) for field in kept]
        own = [chunk.of(tensor) for tensor in controls]
        self._controls = [own[each * k : each * (k + 1)] for k in range(len(kept[0]) - 1)]
        self._values: Needed = [
            (chunk.of(t, axis), need) for (t, need), axis in zip(values, recipe.axes_of_values, strict=True)
        ]
        self._recorded: RecordedSteps | None = None

    @property
    def fitting(self) -> StepKind | None:
        """The kind of steps that the model is known to fit."""
        return self._form.fitting

    def pulled_back(
        self, by_steps: dict[str, Tensor], gradients: list[Tensor | None]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the gradients by the fields of the state before all steps, and by those values that need one.

        Parameters
        ----------
        by_steps : gradients (T, B, n) by "q" and "velocity" after each step; those that are left out are zero.
        gradients : by the fields of the state after the last; None is zero.
        """
        recipe, number = self._form, len(self._controls)
        totals: list[Tensor | None] = [None for _, need in self._values if need]
        added = [(recipe.fields.index(name), of_steps) for name, of_steps in by_steps.items()]
        by_python = 0  # steps since the last that compiled code took
        while number:
            to_add: Added = added
            if by_python == STEPS_BEFORE_A_TABLE and (loop := self._loop(added, totals)) is not None:
                number, gradients, to_add = self._taken_back(loop, number, gradients, added)
                by_python = 0
                if not number:
                    break
            number, by_python = number - 1, by_python + 1
            for place, of_steps in to_add:
                gradients[place] = _sum(gradients[place], of_steps[number])
            found = self._of_step(number, gradients)
            by_state, by_values = found[: recipe.n_state - 1], found[recipe.n_state - 1 :]
            gradients = self._of_fields(by_state)
            totals = [_added(total, gradient) for total, gradient in zip(totals, by_values, strict=True)]
        return gradients, totals

    def _loop(self, added: Added, totals: Sequence[Tensor | None]) -> StepLoop | None:
        """Return what takes steps back without Python; None where something in them is for Python."""
        if self._recorded is None:
            return None
        q, controls = self._fields[self._form.fields.index("q")], self._controls[::-1]
        try:
            return self._recorded.loop(
                [PerStep.along(field[:-1], backward=True) for field in self._fields],
                [PerStep.of(own) for own in zip(*controls, strict=True)],
                PerStep.along(q[1:], backward=True),
                [(place, PerStep.along(of_steps, backward=True)) for place, of_steps in added],
                totals,
            )
        except (NoInstruction, Unavailable):
            return None

    def _taken_back(
        self, loop: StepLoop, number: int, gradients: list[Tensor | None], added: Added
    ) -> tuple[int, list[Tensor | None], Added]:
        """Take steps back from a number on as far as compiled code does.

        Return how many are left, the gradients by the fields of the state after the first of these, and what is still
        to be added to them. Without steps that are left, they are those by the state before all.
        """
        assert self._recorded is not None
        self._recorded.give(gradients)
        steps = len(self._controls)
        reached, _ = loop.run(steps - number, steps)
        if reached == steps:
            return 0, self._of_fields(self._recorded.found()[: self._form.n_state - 1]), []
        return steps - reached, [*self._recorded.given_gradients()], []

    def _of_step(self, number: int, gradients: list[Tensor | None]) -> Gradients:
        """Return the gradients of a step by the state before it, but its time, and by the values that need one."""
        recipe, control = self._form, self._controls[number]
        state, q = [steps[number] for steps in self._fields], self._fields[recipe.fields.index("q")][number + 1]
        needed: Needed = [(tensor, k != recipe.time_index) for k, tensor in enumerate(state)]
        needed += [(tensor, False) for tensor in control]
        if self._recorded is None:
            self._recorded = RecordedSteps.of(recipe, recipe.fitting, [*needed, *self._values])
        found = None if self._recorded is None else self._recorded.of_step(state, control, q, gradients)
        if found is None:
            if self._recorded is not None:  # it has written to what it gave of the step after
                gradients = [*self._recorded.given_gradients()]
            every = q.new_ones(len(q), dtype=torch.bool)
            found = solved_gradients(recipe, [*needed, *self._values], q, every, True, gradients)
        return found

    def _of_fields(self, by_state: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients by all fields of a state, of which that by the time is left out."""
        return [*by_state[: self._form.time_index], None, *by_state[self._form.time_index :]]


def _sum(gradient: Tensor | None, more: Tensor) -> Tensor:
    """Return the sum of two gradients, the first of which is zero where it is None."""
    return more if gradient is None else gradient + more


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Return the sum of gradients, None where both are zero; the total is written to."""
    if gradient is None:
        return total
    return gradient.clone(memory_format=torch.contiguous_format) if total is None else total.add_(gradient)

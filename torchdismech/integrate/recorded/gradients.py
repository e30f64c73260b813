"""Gradients of recorded steps, recorded themselves: what `recording.py` says of steps holds for them, too.

Where the robots of a batch are few, and on a GPU, a backward pass is Python as well: some thousand calls of torch and
of its autograd for one evaluation and one solve. A step that a recording took is differentiated by another one, of the
same kind (`adjoint.py`): on a CPU a tape, once some were differentiated without; on a GPU a CUDA graph, with the whole
of autograd in it, of which the host waits for one flag: whether all robots were solved and have gradients.

It gives the gradients by all that the kind's recordings are given: state, control, the sum of loads of users' own that
do not change within a step, and the model's tensors that may be others in the next step, as they are evaluated. From
these on, autograd goes as ever to the tensors that they are made of: weights of learned loads, and what
`trainable.scaled` and other parametrizations hold.

Steps are differentiated one by one (`recorded_gradients`), chunk by chunk of a batch (`RecordedChunks`), or one after
the other from the last to the first (`RecordedSteps`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.fused import watched
from torchdismech.integrate.chunks import split_by_chunks
from torchdismech.integrate.forward import SolvedChunk
from torchdismech.integrate.gradients.adjoint import Gradients, with_zeros
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.static_problem import warn_of_memory
from torchdismech.integrate.recorded.step_kind import BackwardPasses, StepKind
from torchdismech.model.registration import refuse_unregistered
from torchdismech.native.graphs import Unrecordable
from torchdismech.native.step_loop import PerStep, StepLoop

__all__ = ["RecordedChunks", "RecordedSteps", "recorded_gradients"]

# Steps of a kind that are differentiated before it is recorded: on a CPU that takes about as long as these; on a GPU
# what users wrote is held against autograd in these, and without users' code there is nothing to wait for.
PASSES_BEFORE_RECORDING = 8


def recorded_gradients(
    recipe: StepRecipe,
    leaves: Sequence[Tensor],
    q: Tensor,
    accepted: Tensor | None,
    gradients: Sequence[Tensor | None],
    wanted: Sequence[Tensor],
) -> Gradients | None:
    """Return the gradients by the tensors in `wanted` of a step that solved all robots; None where no recording serves.

    They stand where the next step of the kind writes.

    Parameters
    ----------
    leaves : of state, control and model; the latter stand in the model.
    q : (B, n) at the root.
    accepted : (B,) robots that were solved; None: all were.
    gradients : by the fields of the state after the step; None is zero.
    """
    kind: StepKind | None = recipe.recorded_as
    if kind is None or kind.recording is None or kind.gradients_refused or watched():
        return None
    problem = recipe.problem(leaves)
    if recipe.fitting is not kind:
        snapshot = recipe.snapshot if recipe.unchanged else None
        values = recipe.places.with_tensors(leaves[recipe.n_own :])
        # whatever the plane is, gradients are as in space
        standing = problem.replace(values=values, snapshot=snapshot, plane=kind.plane)
        if not kind.fits(standing) or any(map(kind.captures, recipe.places.tensors)):
            return None
        recipe.fitting = kind if kind.all_forces else None  # loads that users write may change the model
    with torch.enable_grad():
        inputs = kind.inputs(problem)
    if not kind.all_forces:
        load = kind.layout.load
        assert load is not None
        with torch.enable_grad():
            refuse_unregistered(recipe.model, inputs[load], leaves, lambda: kind.inputs(problem)[load])
    step = _recording(kind, recipe, inputs, q, gradients)
    if step is None:
        return None
    step = step.without_zeros(inputs, q, gradients)
    found = step.replayed(recipe.dt, [*inputs, q, *step.gradients_read(gradients)], accepted)
    return None if found is None else _passed_on(inputs, found, wanted)


class RecordedChunks:
    """The gradients of chunks of a step that recordings of one kind take: the model is known to fit.

    Parameters
    ----------
    kind : of the chunks.
    step : differentiates one.
    given : what it is given of each chunk, the first of which it was given already.
    places : for each tensor that needs a gradient its place among the step's inputs; None where it is none of them.
    """

    def __init__(
        self,
        kind: StepKind,
        step: RecordedAdjoint,
        dt: float | Tensor,
        given: Sequence[Sequence[Tensor | None]],
        places: Sequence[int | None],
    ) -> None:
        self._kind, self._step, self._dt, self._given, self._places = kind, step, dt, given, places

    @classmethod
    def of(
        cls,
        recipe: StepRecipe,
        kind: StepKind | None,
        needed: Sequence[tuple[Tensor, bool]],
        q: Tensor,
        gradients: Sequence[Tensor],
    ) -> RecordedChunks | None:
        """Return those of a step whose model is known to fit a kind; None where no recording is there for it.

        Parameters
        ----------
        needed : what the step depends on, of all robots, and whether it needs a gradient.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step.
        """
        step, places = (None, []) if kind is None else _recorded_for(recipe, kind, needed)
        if kind is None or step is None:
            return None
        inputs = _inputs(recipe, kind, needed)
        axes, read = [*kind.axes(inputs), *[0] * (1 + len(gradients))], step.reads
        axes = [axis if k in read else None for k, axis in enumerate(axes)]  # the others are not divided
        chunks = [solved.chunk for solved in recipe.chunks]
        given = split_by_chunks([*inputs, q, *gradients], axes, chunks, [recipe.running, *gradients])
        return cls(kind, step, recipe.dt, given, places)

    def of_chunk(self, solved: SolvedChunk) -> Gradients | None:
        """Return the gradients of a chunk by what needs one; None where it was solved otherwise, or has to be again.

        They stand where the next step of the kind writes.
        """
        if solved.recorded_as is not self._kind:
            return None
        found = self._step.replayed(self._dt, self._given[solved.chunk.number])
        return None if found is None else tuple(None if place is None else found[place] for place in self._places)


class RecordedSteps:
    """The gradients of steps of some robots, one after the other, that recordings of one kind take.

    Parameters
    ----------
    kind : of the steps.
    step : differentiates one.
    running : (B,) the robots that were stepped.
    moved : the model's tensors among what it is given.
    places : as of `RecordedChunks`.
    """

    def __init__(
        self,
        kind: StepKind,
        step: RecordedAdjoint,
        dt: float | Tensor,
        running: Tensor,
        moved: Sequence[Tensor],
        places: Sequence[int | None],
    ) -> None:
        self._layout, self._step, self._dt = kind.layout, step, dt
        self._running, self._moved, self._places = running, moved, places
        self._last: RecordedAdjoint | None = None

    @classmethod
    def of(
        cls, recipe: StepRecipe, kind: StepKind | None, needed: Sequence[tuple[Tensor, bool]]
    ) -> RecordedSteps | None:
        """Return those of steps whose model is known to fit a kind; None where no recording is there for it.

        Parameters
        ----------
        needed : what one of the steps depends on, and whether it needs a gradient.
        """
        step, places = (None, []) if kind is None else _recorded_for(recipe, kind, needed)
        if kind is None or step is None:
            return None
        inputs = _inputs(recipe, kind, needed)
        return cls(kind, step, recipe.dt, recipe.running, inputs[kind.layout.model], places)

    def of_step(
        self, state: Sequence[Tensor], control: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
    ) -> Gradients | None:
        """Return the gradients of a step by what needs one; None where a matrix is singular.

        They stand where the next step of the kind writes.

        Parameters
        ----------
        state, control : the tensors of those of the step.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step; None is zero.
        """
        own = [*state, self._running, *control]
        step = self._step.without_zeros([*own, *self._moved], q, gradients)
        # what of the model is given once stays for the other steps
        moved = [None] * len(self._moved) if step is self._last else self._moved
        self._last = step
        found = step.replayed(self._dt, [*own, *moved, q, *step.gradients_read(gradients)])
        return None if found is None else tuple(None if place is None else found[place] for place in self._places)

    def given_gradients(self) -> list[Tensor]:
        """Return copies of the gradients that the last step was given."""
        assert self._last is not None
        return self._last.given_gradients()

    def loop(
        self,
        state: Sequence[PerStep],
        control: Sequence[PerStep],
        q: PerStep,
        by_steps: Sequence[tuple[int, PerStep]],
        totals: Sequence[Tensor | None],
    ) -> StepLoop | None:
        """Return the loop that differentiates further steps without Python; None where something is for Python.

        Parameters
        ----------
        state, control, q : of the steps, as for `of_step`.
        by_steps : gradients that are added to those that a step is given, by the places of the state's fields.
        totals : to which the gradients by the model's tensors are added; None where nothing depends on one.

        Raises
        ------
        NoInstruction, Unavailable : something in them is for Python.
        """
        if self._last is None:
            return None
        inputs = [*enumerate(state), *enumerate(control, self._layout.control.start)]
        of_model = self._places[len(self._places) - len(totals) :]
        return self._last.loop(inputs, q, by_steps, list(zip(of_model, totals, strict=True)))

    def give(self, gradients: Sequence[Tensor | None]) -> None:
        """Give the next step gradients by the fields of the state after it; all else is given by `loop`."""
        assert self._last is not None
        self._last.give_gradients(gradients)

    def found(self) -> Gradients:
        """Return the gradients of the last step by what needs one, where the next step writes."""
        assert self._last is not None
        found = self._last.found()
        return tuple(None if place is None else found[place] for place in self._places)


def _recorded_for(
    recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]
) -> tuple[RecordedAdjoint | None, list[int | None]]:
    """Return what differentiates steps of a kind, if it was recorded, and where it has the gradients that are needed.

    Those that nothing has are at None.
    """
    numbers = {place: recipe.n_own + k for k, place in enumerate(recipe.places.tensors)}
    # where the inputs of a recording stand among what the step depends on: the rows that run are not there
    order = [*range(recipe.n_state), None, *range(recipe.n_state, recipe.n_own), *map(numbers.get, kind.movable_places)]
    passes = kind.backward.get(tuple(k is not None and needed[k][1] for k in order))
    step = None if passes is None else passes.recording
    place_of = {k: place for place, k in enumerate(order)}
    return step, [place_of.get(k) for k, (_, need) in enumerate(needed) if need]


def _inputs(recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]) -> list[Tensor]:
    """Return what recordings of a kind are given in a step that depends on these tensors."""
    tensors = [tensor for tensor, _ in needed]
    with torch.no_grad(), recipe.places.with_tensors(tensors[recipe.n_own :]).in_place():
        return kind.inputs(recipe.problem(tensors))


def _recording(
    kind: StepKind, recipe: StepRecipe, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
) -> RecordedAdjoint | None:
    """Return the recording for inputs of which the same ones require gradients; None before there is one."""
    which = tuple(tensor.requires_grad for tensor in inputs)
    passes = kind.backward.get(which)
    if passes is None:
        passes = kind.backward[which] = BackwardPasses()
    passes.count += 1
    if passes.count == (PASSES_BEFORE_RECORDING if q.is_cpu or recipe.model.has_user_hooks else 1):
        try:
            passes.recording = RecordedAdjoint(kind, recipe, inputs, q, with_zeros(gradients, inputs))
        except Unrecordable:
            if q.is_cuda:
                raise  # what is recorded there is known to be recordable, but for users' forces that promise it
            kind.gradients_refused = True  # some operation of it reads numbers
        except torch.OutOfMemoryError:
            if q.is_cpu or recipe.model.compilation.runs_compiled(q.shape[0], q):
                raise
            kind.gradients_refused = True
            warn_of_memory("backward passes")
    return passes.recording


def _passed_on(inputs: Sequence[Tensor], found: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> Gradients:
    """Return the gradients by the tensors that inputs are, or are made of, from those by the inputs."""
    total: dict[int, Tensor] = {}
    made = []
    for tensor, gradient in zip(inputs, found, strict=True):
        if gradient is not None and tensor.is_leaf:
            total[id(tensor)] = gradient
        elif gradient is not None:
            made.append((tensor, gradient))
    if made:
        outputs, by_outputs = zip(*made, strict=True)
        further = torch.autograd.grad(outputs, wanted, by_outputs, allow_unused=True)
        for tensor, gradient in zip(wanted, further, strict=True):
            if gradient is not None:
                total[id(tensor)] = total[id(tensor)] + gradient if id(tensor) in total else gradient
    return tuple(total.get(id(t)) for t in wanted)

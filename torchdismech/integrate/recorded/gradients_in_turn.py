"""Gradients of chunks of a step in turn, or of steps from the last to the first, by a recording that is there already.

A step alone is in `gradients.py`, which also makes the recordings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.integrate.chunks import split_by_chunks
from torchdismech.integrate.forward import SolvedChunk
from torchdismech.integrate.gradients.adjoint import Gradients
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.native.step_loop import PerStep, StepLoop

__all__ = ["RecordedChunks", "RecordedSteps"]


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

"""Gradients of many chunks of a step, or of many steps from the last to the first, by recordings of a first one.

A step alone is in `gradients.py`, which also makes the recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.integrate.chunks import ChunkInputs
from torchdismech.integrate.forward import SolvedChunk
from torchdismech.integrate.gradients.adjoint import Gradients
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.for_threads import missing_recordings, used_recordings
from torchdismech.integrate.recorded.step_kind import BackwardPasses, StepKind
from torchdismech.native.step_loop import PerStep, StepLoop
from torchdismech.system.workers import shared_out

__all__ = ["RecordedChunks", "RecordedSteps", "adjoints_for_threads"]


@dataclass(frozen=True)
class RecordedChunks:
    """Differentiates the chunks of a step by recordings; the model is known to fit them.

    Attributes
    ----------
    kind : of the chunks' steps.
    passes : counts them.
    dt : length of the step [s].
    chunk_inputs : what a recorded backward pass takes.
    places : for each tensor that needs a gradient its place among the step's inputs; None where it is none of them.
    recordings : of the backward pass of a chunk, one for each thread.
    """

    kind: StepKind
    passes: BackwardPasses
    dt: float | Tensor
    chunk_inputs: ChunkInputs
    places: Sequence[int | None]
    recordings: Sequence[RecordedAdjoint]

    @classmethod
    def of(
        cls,
        recipe: StepRecipe,
        kind: StepKind | None,
        needed: Sequence[tuple[Tensor, bool]],
        q: Tensor,
        gradients: Sequence[Tensor],
    ) -> RecordedChunks | None:
        """Return the chunks of a step whose model is known to fit a kind; None if no recording differentiates them.

        Parameters
        ----------
        needed : the tensors of all robots that the step depends on, and whether each needs a gradient.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step.
        """
        passes, places = (None, []) if kind is None else _passes_for(recipe, kind, needed)
        if kind is None or passes is None or passes.recording is None:
            return None
        chunks = [solved.chunk for solved in recipe.chunks]
        recordings = adjoints_for_threads(recipe, kind, needed, len(chunks))
        inputs = _inputs(recipe, kind, needed)
        axes, read = [*kind.axes(inputs), *[0] * (1 + len(gradients))], passes.recording.reads
        # tensors that are not read need not be split
        axes = [axis if k in read else None for k, axis in enumerate(axes)]
        chunk_inputs = ChunkInputs([*inputs, q, *gradients], axes, chunks, [recipe.running, *gradients])
        return cls(kind, passes, recipe.dt, chunk_inputs, places, recordings)

    @property
    def has_threads(self) -> bool:
        """Whether there are recordings for several threads."""
        return len(self.recordings) > 1

    def of_chunks_by_threads(self, chunks: Sequence[SolvedChunk]) -> list[Gradients | None]:
        """Return the gradients of chunks as `of_chunk` does, in memory of their own, by a thread for each recording."""

        def found(recording: RecordedAdjoint, solved: SolvedChunk) -> Gradients | None:
            gradients = self._by(recording, solved)
            return None if gradients is None else tuple(None if g is None else g.clone() for g in gradients)

        return shared_out(found, self.recordings, chunks)

    def of_chunk(self, solved: SolvedChunk) -> Gradients | None:
        """Return the gradients of a chunk by the tensors that need one; None if no recording can differentiate it.

        That is where it was not solved by a recording of this kind, or where a matrix is singular. The next chunk
        overwrites them.
        """
        return self._by(self.recordings[0], solved)

    def _by(self, recording: RecordedAdjoint, solved: SolvedChunk) -> Gradients | None:
        if solved.recorded_as is not self.kind:
            return None
        by_inputs = recording.replayed(self.dt, self.chunk_inputs.given_to(recording, solved.chunk))
        self.passes.replayed_steps += 1
        return None if by_inputs is None else _at_places(self.places, by_inputs)


@dataclass
class RecordedSteps:
    """Differentiates steps of some robots, one after the other, by a recording; the model is known to fit it.

    Attributes
    ----------
    kind : of the steps.
    passes : counts them.
    recording : of the backward pass of a step.
    running : (B,) the robots that were stepped.
    model_tensors : the model's tensors among the inputs of the step.
    places : as of `RecordedChunks`.
    """

    kind: StepKind
    passes: BackwardPasses
    recording: RecordedAdjoint
    dt: float | Tensor
    running: Tensor
    model_tensors: Sequence[Tensor]
    places: Sequence[int | None]
    _last: RecordedAdjoint | None = None  # the recording that differentiated the last step

    @classmethod
    def of(
        cls,
        recipe: StepRecipe,
        kind: StepKind | None,
        needed: Sequence[tuple[Tensor, bool]],
        recording: RecordedAdjoint | None = None,
    ) -> RecordedSteps | None:
        """Return the steps whose model is known to fit a kind; None if no recording differentiates them.

        Parameters
        ----------
        needed : the tensors that one of the steps depends on, and whether each needs a gradient.
        recording : the one to use, one of `adjoints_for_threads`; None: the first.
        """
        passes, places = (None, []) if kind is None else _passes_for(recipe, kind, needed)
        if kind is None or passes is None or passes.recording is None:
            return None
        inputs = _inputs(recipe, kind, needed)
        own = passes.recording if recording is None else recording
        return cls(kind, passes, own, recipe.dt, recipe.running, inputs[kind.layout.model], places)

    def count(self, steps: int) -> None:
        """Note how many steps were differentiated."""
        self.passes.replayed_steps += steps

    def of_step(
        self, state: Sequence[Tensor], control: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
    ) -> Gradients | None:
        """Return the gradients of a step by the tensors that need one; None where a matrix is singular.

        The next step overwrites them.

        Parameters
        ----------
        state, control : the tensors of the step's state and control.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step; None is zero.
        """
        inputs_of_step = [*state, self.running, *control]
        recording = self.recording.without_zeros([*inputs_of_step, *self.model_tensors], q, gradients)
        # the model's tensors are the same for all steps: the buffers keep them
        model_tensors = [None] * len(self.model_tensors) if recording is self._last else self.model_tensors
        self._last = recording
        by_inputs = recording.replayed(
            self.dt, [*inputs_of_step, *model_tensors, q, *recording.gradients_read(gradients)]
        )
        return None if by_inputs is None else _at_places(self.places, by_inputs)

    def given_gradients(self) -> list[Tensor]:
        """Return copies of the gradients that the last step was given, by the state after it."""
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
        state, control, q : the tensors of the steps, as for `of_step`.
        by_steps : gradients that are added to those by the state after each step, with the places of the state's
            fields.
        totals : to which the gradients by the model's tensors are added; None where nothing depends on one.

        Raises
        ------
        NoInstruction, Unavailable : something in them is for Python.
        """
        if self._last is None:
            return None
        inputs = [*enumerate(state), *enumerate(control, self.kind.layout.control.start)]
        places_of_totals = self.places[len(self.places) - len(totals) :]
        return self._last.loop(inputs, q, by_steps, list(zip(places_of_totals, totals, strict=True)))

    def give(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy gradients by the state after the next step to the buffers; the loop gives the rest."""
        assert self._last is not None
        self._last.give_gradients(gradients)

    def last_gradients(self) -> Gradients:
        """Return the gradients of the last step by the tensors that need one; the next step overwrites them."""
        assert self._last is not None
        return _at_places(self.places, self._last.last_gradients())


def adjoints_for_threads(
    recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]], parts: int
) -> list[RecordedAdjoint]:
    """Return the recordings of the backward pass of steps, up to one for each of torch's threads; none if none serves.

    Parameters
    ----------
    needed : the tensors that one of the steps depends on, and whether each needs a gradient.
    parts : number of parts of the batch that are still to be differentiated.
    """
    passes, _ = _passes_for(recipe, kind, needed)
    if passes is None or passes.recording is None:
        return []
    for _ in range(missing_recordings(passes, kind, parts)):
        passes.more_recordings.append(passes.recording.another())
    return [passes.recording, *passes.more_recordings[: used_recordings(kind, parts) - 1]]


def _at_places(places: Sequence[int | None], by_inputs: Sequence[Tensor | None]) -> Gradients:
    """Return the gradients by the inputs in these places; None for tensors that are none of them."""
    return tuple(None if place is None else by_inputs[place] for place in places)


def _passes_for(
    recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]
) -> tuple[BackwardPasses | None, list[int | None]]:
    """Return the backward passes for these needs, or None, and the place among their inputs of each needed tensor.

    Tensors that are none of its inputs have None for a place.
    """
    number_of = {place: recipe.n_own + k for k, place in enumerate(recipe.places.tensors)}
    # for each input of a recording its place in `needed`; the mask of the rows that run is not there
    order = [
        *range(recipe.n_state),
        None,
        *range(recipe.n_state, recipe.n_own),
        *map(number_of.get, kind.movable_places),
    ]
    passes = kind.backward.get(tuple(k is not None and needed[k][1] for k in order))
    place_in_inputs = {k: place for place, k in enumerate(order)}
    return passes, [place_in_inputs.get(k) for k, (_, need) in enumerate(needed) if need]


def _inputs(recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]) -> list[Tensor]:
    """Return the inputs of a kind's recordings for a step that depends on these tensors."""
    tensors = [tensor for tensor, _ in needed]
    with kind.turn, torch.no_grad(), recipe.places.with_tensors(tensors[recipe.n_own :]).in_place():
        return kind.inputs(recipe.problem(tensors))

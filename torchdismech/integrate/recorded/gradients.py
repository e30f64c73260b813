"""Backward passes of recorded steps, recorded themselves: what `recording.py` says of recordings holds for them, too.

Where robots are few, and on a GPU, a backward pass spends its time in Python, too: some thousand calls of torch and of
its autograd for one evaluation and one solve. So a recorded step is differentiated by another recording, kept with the
same kind (`adjoint.py`): on a CPU a tape, made once some steps were differentiated without; on a GPU a CUDA graph with
all of autograd in it, of which the host waits for one flag: whether all robots were solved and have gradients.

It gives the gradients by all inputs of the kind's recordings: state, control, the sum of users' loads that do not
change within a step, and the model's tensors that may be replaced before the next step, as they are evaluated. From
these on, autograd itself goes back to the tensors that they are made of: weights of learned loads, and what
`trainable.scaled` and other parametrizations hold.

`recorded_gradients` looks at the model and makes the recording. Further chunks of a batch, and further steps from the
last to the first, are differentiated by the same `RecordedPasses`, without another look at the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.law import constants_of
from torchdismech.fused import traced
from torchdismech.integrate.candidates import LoadsWithPairs, PairsOfStep, PointLoads
from torchdismech.integrate.gradients.adjoint import Gradients, with_zeros
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.gradients.sums import Needed
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.for_threads import side_by_side
from torchdismech.integrate.recorded.lasting_pairs import LastingPairs
from torchdismech.integrate.recorded.static_problem import warn_of_memory
from torchdismech.integrate.recorded.step_kind import BackwardPasses, StepKind
from torchdismech.model import Model
from torchdismech.model.registration import refuse_unregistered
from torchdismech.native.graphs import Unrecordable

__all__ = ["RecordedPasses", "fitting_kind", "recorded_gradients"]

# Backward passes of a kind before they are recorded: on a CPU a recording takes about as long as these; on a GPU users'
# derivatives are compared with autograd's in these, and without users' code the first one is recorded.
PASSES_BEFORE_RECORDING = 8


@dataclass(frozen=True)
class RecordedPasses:
    """Recorded backward passes of steps of a kind, for a choice of tensors that need gradients; the model fits them.

    Attributes
    ----------
    kind : of the steps.
    passes : their backward passes.
    places : for each tensor that needs a gradient its place among a step's inputs; None where it is none of them.
    """

    kind: StepKind
    passes: BackwardPasses
    places: Sequence[int | None]

    @classmethod
    def of(cls, recipe: StepRecipe, kind: StepKind | None, needed: Needed) -> RecordedPasses | None:
        """Return the recorded passes of steps whose model is known to fit a kind; None where there is no recording.

        Parameters
        ----------
        needed : the tensors that one of the steps depends on, and whether each needs a gradient.
        """
        if kind is None:
            return None
        number_of = {place: recipe.n_own + k for k, place in enumerate(recipe.places.tensors)}
        # for each input of a recording its place in `needed`; the mask of the rows that run is not there
        order = [
            *range(recipe.n_state),
            None,
            *range(recipe.n_state, recipe.n_own),
            *map(number_of.get, kind.movable_places),
        ]
        requires_gradients = tuple(k is not None and needed[k][1] for k in order)
        passes = kind.backward.get((type(recipe.candidates), requires_gradients))
        if passes is None or passes.recording is None:
            return None
        if isinstance(recipe.candidates, PairsOfStep):
            assert passes.pairs is not None
            with recipe.places.with_tensors([tensor for tensor, _ in needed[recipe.n_own :]]).in_place():
                if not passes.pairs.take(recipe.candidates.pairs):
                    return None
        place_in_inputs = {k: place for place, k in enumerate(order)}
        return cls(kind, passes, [place_in_inputs.get(k) for k, (_, need) in enumerate(needed) if need])

    def side_by_side(self, parts: int) -> list[RecordedAdjoint]:
        """Return the recordings that differentiate so many parts of a batch, up to one for each of torch's threads."""
        first = self.passes.recording
        assert first is not None
        return side_by_side(self.passes, self.kind, parts, first.another)

    def inputs(self, recipe: StepRecipe, needed: Needed) -> list[Tensor]:
        """Return what a recording of the kind takes of a step that depends on these tensors."""
        tensors = [tensor for tensor, _ in needed]
        with recipe.model.turn, torch.no_grad(), recipe.places.with_tensors(tensors[recipe.n_own :]).in_place():
            return self.kind.inputs(recipe.problem(tensors))

    def by_needed(self, by_inputs: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients by the tensors that need one, from those by the inputs."""
        return tuple(None if place is None else by_inputs[place] for place in self.places)


def recorded_gradients(
    recipe: StepRecipe,
    leaves: Sequence[Tensor],
    q: Tensor,
    accepted: Tensor | None,
    gradients: Sequence[Tensor | None],
    wanted: Sequence[Tensor],
) -> Gradients | None:
    """Return the gradients by the tensors in `wanted` of a step that solved all robots; None if no recording serves.

    The next backward pass of the kind overwrites them.

    Parameters
    ----------
    leaves : the tensors of state, control and model from which gradients are taken; the latter stand in the model.
    q : (B, n) at the root.
    accepted : (B,) robots that were solved; None: all were.
    gradients : by the fields of the state after the step; None is zero.
    """
    kind: StepKind | None = recipe.recorded_as
    if kind is None or kind.recording is None or kind.gradients_refused or traced():
        return None
    problem = recipe.problem(leaves)
    if recipe.fitting is not kind and not _fits_now(recipe, kind, leaves):
        return None
    with torch.enable_grad():
        inputs = kind.inputs(problem)
    if not kind.all_forces:
        load = kind.layout.load
        assert load is not None
        with torch.enable_grad():
            refuse_unregistered(recipe.model, inputs[load], leaves, lambda: kind.inputs(problem)[load])
    if isinstance(recipe.candidates, PairsOfStep) and _trains_pairs(recipe.model):
        return None
    recording = _recording_for(kind, recipe, inputs, q, gradients)
    if recording is None:
        return None
    recording = recording.without_zeros(inputs, q, gradients)
    given = [*inputs, q, *recording.gradients_read(gradients), *recording.load_of(recipe.candidates)]
    by_inputs = recording.replayed(recipe.dt, given, accepted)
    return None if by_inputs is None else _gradients_by_wanted(inputs, by_inputs, wanted)


def fitting_kind(recipe: StepRecipe, tensors: Sequence[Tensor]) -> StepKind | None:
    """Return the kind of the recorded steps of all chunks of a batch if the model fits it still, else None.

    Parameters
    ----------
    recipe : of the step of the whole batch.
    tensors : those of state, control and model that it depends on.
    """
    first, *others = recipe.chunks
    kind = first.recorded_as
    # users' loads run outside of recordings and may change the model
    if kind is None or not kind.all_forces or any(solved.recorded_as is not kind for solved in others):
        return None
    contacts = [solved.candidates for solved in recipe.chunks if solved.candidates is not None]
    if contacts and (others or not isinstance(contacts[0], PairsOfStep)):
        return None  # the loads of each step are those of one chunk
    chunk_recipe = recipe.of_chunk(first, None)
    leaves = [first.chunk.of(tensor, axis).detach() for tensor, axis in zip(tensors, recipe.axes(), strict=True)]
    with chunk_recipe.places.with_tensors(leaves[recipe.n_own :]).in_place():
        return kind if _fits_now(chunk_recipe, kind, leaves) else None


def _fits_now(recipe: StepRecipe, kind: StepKind, leaves: Sequence[Tensor]) -> bool:
    """Return whether a kind of steps still fits the model, in which those of the leaves that are the model's stand."""
    snapshot = recipe.snapshot if recipe.unchanged else None
    values = recipe.places.with_tensors(leaves[recipe.n_own :])
    # gradients do not use how robots lie in a plane, so any plane fits
    problem_now = recipe.problem(leaves).replace(values=values, snapshot=snapshot, plane=kind.plane)
    return kind.fits(problem_now) and not any(map(kind.captures, recipe.places.tensors))


def _trains_pairs(model: Model) -> bool:
    """Return whether some constant of contact between parts requires a gradient, which recordings do not find."""
    constants = (constant for contact in model.self_contacts for constant in constants_of(contact.law))
    return any(constant.requires_grad for constant in constants)


def _recording_for(
    kind: StepKind, recipe: StepRecipe, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
) -> RecordedAdjoint | None:
    """Return the recording for inputs that require the same gradients, made now if it is due; None before."""
    requires_gradients, contacts = tuple(tensor.requires_grad for tensor in inputs), recipe.candidates
    passes = kind.backward.setdefault((type(contacts), requires_gradients), BackwardPasses())
    if isinstance(contacts, PairsOfStep) and passes.pairs is not None and not passes.pairs.take(contacts.pairs):
        passes.pairs, passes.recording, passes.count = None, None, 0  # the matrix has another pattern
    passes.count += 1
    if passes.count == (PASSES_BEFORE_RECORDING if q.is_cpu or recipe.model.has_user_hooks else 1):
        load = contacts.load if isinstance(contacts, PointLoads) else None
        try:
            if isinstance(contacts, PairsOfStep):
                passes.pairs = LastingPairs(recipe.model.contact, contacts.pairs)
                load = passes.pairs.in_room(contacts.load) if isinstance(contacts, LoadsWithPairs) else None
            passes.recording = RecordedAdjoint(
                kind, recipe, inputs, q, with_zeros(gradients, inputs), load=load, pairs=passes.pairs
            )
        except Unrecordable:
            if q.is_cuda:
                raise  # checked before, so a user's force has promised `records` wrongly
            kind.gradients_refused = True  # some operation reads numbers on the host
        except torch.OutOfMemoryError:
            if q.is_cpu or recipe.model.compilation.runs_compiled(q.shape[0], q):
                raise
            kind.gradients_refused = True
            warn_of_memory("backward passes")
    return passes.recording


def _gradients_by_wanted(
    inputs: Sequence[Tensor], by_inputs: Sequence[Tensor | None], wanted: Sequence[Tensor]
) -> Gradients:
    """Return the gradients by the tensors in `wanted`, from those by the inputs.

    An input is one of these tensors itself, or autograd knows how it is made of them.
    """
    total: dict[int, Tensor] = {}
    not_leaves = []
    for tensor, gradient in zip(inputs, by_inputs, strict=True):
        if gradient is not None and tensor.is_leaf:
            total[id(tensor)] = gradient
        elif gradient is not None:
            not_leaves.append((tensor, gradient))
    if not_leaves:
        outputs, by_outputs = zip(*not_leaves, strict=True)
        by_wanted = torch.autograd.grad(outputs, wanted, by_outputs, allow_unused=True)
        for tensor, gradient in zip(wanted, by_wanted, strict=True):
            if gradient is not None:
                total[id(tensor)] = total[id(tensor)] + gradient if id(tensor) in total else gradient
    return tuple(total.get(id(t)) for t in wanted)

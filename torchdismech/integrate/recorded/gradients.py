"""Gradients of recorded steps, recorded themselves: what `recording.py` says of steps holds for them, too.

Where the robots of a batch are few, and on a GPU, a backward pass is Python as well: some thousand calls of torch and
of its autograd for one evaluation and one solve. A step that a recording took is differentiated by another one, of the
same kind (`adjoint.py`): on a CPU a tape, once some were differentiated without; on a GPU a CUDA graph, with the whole
of autograd in it, of which the host waits for one flag: whether all robots were solved and have gradients.

It gives the gradients by all that the kind's recordings are given: state, control, the sum of loads of users' own that
do not change within a step, and the model's tensors that may be others in the next step, as they are evaluated. From
these on, autograd goes as ever to the tensors that they are made of: weights of learned loads, and what
`trainable.scaled` and other parametrizations hold.

Here a step is differentiated by itself; chunks of a batch, and steps one after the other, in `gradients_in_turn.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.fused import watched
from torchdismech.integrate.gradients.adjoint import Gradients, with_zeros
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.static_problem import warn_of_memory
from torchdismech.integrate.recorded.step_kind import BackwardPasses, StepKind
from torchdismech.model.registration import refuse_unregistered
from torchdismech.native.graphs import Unrecordable

__all__ = ["recorded_gradients"]

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

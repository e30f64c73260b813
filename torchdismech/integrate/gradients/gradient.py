"""Gradients through a step by implicit differentiation at its root.

A step finds the unknowns x with r(x, p) = 0 and makes of them the state y(x, p) after it; p is everything else: the
state before, the control, the model's constants and the weights of its modules. For a loss with gradient g by y,

    A^T lambda = (dy/dx)^T g,    A = dr/dx at the root,
    gradient by p = (dy/dp)^T g - (dr/dp)^T lambda.

That is one evaluation, one factorisation and one transposed solve a step, however many iterations Newton's method took.
A is evaluated anew at the accepted root: the last factor of Newton's method belongs to the iterate before, and may have
been shifted. Autograd's node of a step keeps the state before it, q after it, the control, and what it used of the
model: its tensors that require gradients, in chunks of a batch those that are given per robot, and the contact
candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from torchdismech.fused import differentiated
from torchdismech.integrate.chunks import Chunk, ChunkInputs, chunks_of
from torchdismech.integrate.forward import SolvedChunk, held_values, solved_in_chunks
from torchdismech.integrate.gradients.adjoint import PLACES, Gradients, gradients_at_root, sizes_of, with_zeros
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints, within_checkpoint
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.gradients.refusals import refuse_changed_model, refuse_other_gradients
from torchdismech.integrate.gradients.sums import Needed, Sums
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.gradients import RecordedPasses, fitting_kind, recorded_gradients
from torchdismech.robot.state import State
from torchdismech.values import Values, where_rows

__all__ = ["differentiable_step", "solved_gradients", "split_for_autograd"]

# of the gradients by the state after an equilibrium: smaller ones by the state before it are set to zero
NOTHING = 1e-7


def differentiable_step(problem: StepProblem, size: int | None = None) -> tuple[State, StepInfo]:
    """Return the states after a step and how it went; rows that were not solved stay as they were.

    Where autograd records, the states can be differentiated by the state, the control, the values and the tensors of
    the model. A row whose matrix cannot be factored at its root has NaN for gradients; one that was not solved hands
    the gradients by its state on to the state before, which it still is, and has no others.

    Parameters
    ----------
    size : how many robots are stepped at a time, and differentiated; None: all. To autograd they are one step.
    """
    chunks = chunks_of(problem.state.batch, problem.state.batch if size is None else size)
    parametrized = problem.parametrized()  # found once for all chunks
    with parametrized.in_place():
        recipe, tensors, detached_problem = split_for_autograd(problem, parametrized, chunks)
        with torch.no_grad(), apart_from_checkpoints():
            after, info, solved_chunks = solved_in_chunks(detached_problem, chunks)
    if recipe is not None:
        recipe.chunks = solved_chunks
        after = after.with_fields(
            _Step.apply(recipe, after.fields(), detached_problem.running & info.converged, *tensors)
        )
        if (time := problem.state.time).requires_grad:  # it goes on by the same step, whenever it began
            after = after.replace(time=after.time + (time - time.detach()))
    return after, info


def split_for_autograd(
    problem: StepProblem, parametrized: Values, chunks: Sequence[Chunk]
) -> tuple[StepRecipe | None, list[Tensor], StepProblem]:
    """Return what autograd must remember of a step, all tensors that it depends on, and the step without gradients.

    The first is None if autograd does not record the step.

    Parameters
    ----------
    parametrized : the tensors that parametrizations make, which stand in the model.
    """
    autograd_records, replaced_values = torch.is_grad_enabled(), held_values(problem, parametrized, chunks)
    values = problem.trained() | replaced_values if autograd_records else replaced_values
    tensors = [*problem.state.fields(), *problem.control.tensors().values(), *values.tensors.values()]
    recipe, detached_problem = None, problem
    if autograd_records and any(tensor.requires_grad for tensor in tensors):
        _refuse_inference(tensors)
        recipe = StepRecipe.of(problem, values)
        if problem.snapshot is not None:
            recipe.snapshot, recipe.taken_again = problem.snapshot, within_checkpoint()
            recipe.versions = problem.snapshot.versions(sources=recipe.taken_again)
        # compiled code is made for tensors that require gradients, or for tensors that do not
        detached_problem = recipe.problem([tensor.detach() for tensor in tensors])
        detached_problem = detached_problem.replace(
            snapshot=problem.snapshot, plane=problem.plane, divisible=problem.divisible
        )
    return (
        recipe,
        tensors,
        detached_problem.replace(values=replaced_values.detached()) if replaced_values else detached_problem,
    )


def _refuse_inference(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors made in inference mode, which torch lets take no part in a gradient."""
    if any(tensor.is_inference() for tensor in tensors):
        raise RuntimeError(
            "a step that gradients go through cannot start from, or read, what was made under torch.inference_mode: "
            "make states and models under torch.no_grad instead"
        )


class _Step(torch.autograd.Function):
    """The states after a step, which is solved already, as a function of all tensors that it depends on."""

    @staticmethod
    def forward(ctx, recipe: StepRecipe, after: tuple[Tensor, ...], accepted: Tensor, *tensors: Tensor):  # noqa: D102
        input_addresses = {tensor.data_ptr() for tensor in tensors}
        outputs = tuple([tensor.clone() if tensor.data_ptr() in input_addresses else tensor for tensor in after])
        ctx.recipe = recipe
        ctx.save_for_backward(*tensors, outputs[0], accepted)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs[recipe.time_index])
        return outputs

    @staticmethod
    def backward(ctx, *gradients: Tensor | None):  # noqa: D102
        refuse_other_gradients(gradients)
        recipe: StepRecipe = ctx.recipe
        with recipe.model.lock:
            refuse_changed_model(recipe)  # by name, before torch looks at what it has saved
            *tensors, q, accepted = ctx.saved_tensors
            needed: Needed = list(zip(tensors, ctx.needs_input_grad[3:], strict=True))
            return None, None, None, *_ChunkGradients(recipe, needed, q, accepted, gradients).summed()


class _ChunkGradients:
    """The gradients of a step, found for one chunk of the batch after the other, or for several by as many threads.

    The recordings that took one chunk are given the others without another check of the model, which cannot change
    between them.

    Parameters
    ----------
    needed : all tensors that the step depends on, and whether each needs a gradient.
    q : (B, n) at the root.
    accepted : (B,) robots that were solved.
    gradients : by the fields of the state after the step; None is zero.
    """

    def __init__(
        self, recipe: StepRecipe, needed: Needed, q: Tensor, accepted: Tensor, gradients: Sequence[Tensor | None]
    ):
        self._recipe, self._needed, self._axes = recipe, needed, recipe.axes()
        self._q, self._accepted, self._gradients = q, accepted, gradients
        self._on_cpu = accepted.device.type == "cpu"  # a GPU is not waited for
        self._all_accepted = self._on_cpu and bool(accepted.all())
        tensors = [tensor for tensor, _ in needed]
        self._fitting = fitting_kind(recipe, tensors) if len(recipe.chunks) > 1 else None
        self._recorded = RecordedPasses.of(recipe, self._fitting, needed)
        if self._recorded is not None:
            self._chunk_inputs = self._inputs_of_chunks(self._recorded, with_zeros(gradients, tensors))

    def summed(self) -> list[Tensor | None]:
        """Return the gradients by all that the step depends on, None for those that need none."""
        sums = Sums(self._needed, self._axes)
        recordings = (lambda _: []) if self._recorded is None else self._recorded.side_by_side
        sums.add_chunks(self._recipe.chunks, self._of_chunk, recordings)
        by_tensors = sums.gradients()
        if not self._all_accepted:  # rows that were not solved are the state before
            for k, gradient in enumerate(self._gradients):
                if gradient is not None and (total := by_tensors[k]) is not None:
                    by_tensors[k] = total + where_rows(~self._accepted, gradient, 0.0)
        return by_tensors

    def _of_chunk(self, solved: SolvedChunk, recording: RecordedAdjoint | None) -> Gradients | None:
        """Return the gradients of a chunk by the tensors that need one; None where none of its robots was solved."""
        chunk, on_cpu = solved.chunk, self._on_cpu
        all_accepted = self._all_accepted or (on_cpu and bool(chunk.of(self._accepted).all()))
        if on_cpu and not all_accepted and not bool(chunk.of(self._accepted).any()):
            return None
        if recording is not None and all_accepted and (found := self._by_recording(chunk, recording)) is not None:
            return found
        chunk_recipe = self._recipe.of_chunk(solved, self._fitting)
        if recording is not None:
            chunk_recipe.recorded_as = None  # no other recording is asked: another thread may use the first one
        needed: Needed = [
            (chunk.of(tensor, axis), need) for (tensor, need), axis in zip(self._needed, self._axes, strict=True)
        ]
        by_state = [None if gradient is None else chunk.zero_where_repeated(gradient) for gradient in self._gradients]
        accepted = chunk.zero_where_repeated(self._accepted)
        return solved_gradients(chunk_recipe, needed, chunk.of(self._q), accepted, all_accepted, by_state)

    def _by_recording(self, chunk: Chunk, recording: RecordedAdjoint) -> Gradients | None:
        """Return the gradients of a chunk by the tensors that need one; None where a matrix is singular."""
        assert self._recorded is not None
        by_inputs = recording.replayed(self._recipe.dt, self._chunk_inputs.given_to(recording, chunk))
        self._recorded.passes.replayed_steps += 1
        return None if by_inputs is None else self._recorded.by_needed(by_inputs)

    def _inputs_of_chunks(self, recorded: RecordedPasses, gradients: Sequence[Tensor]) -> ChunkInputs:
        """Return what recordings take for each chunk, with gradients by the fields of the state after the step."""
        recipe, inputs, first = self._recipe, recorded.inputs(self._recipe, self._needed), recorded.passes.recording
        assert first is not None
        axes = [*recorded.kind.axes(inputs), *[0] * (1 + len(gradients))]
        read = first.reads  # other tensors need not be split
        axes = [axis if k in read else None for k, axis in enumerate(axes)]
        return ChunkInputs([*inputs, self._q, *gradients], axes, [recipe.running, *gradients])


def solved_gradients(
    recipe: StepRecipe,
    needed: Needed,
    q: Tensor,
    accepted: Tensor,
    all_accepted: bool,
    gradients: Sequence[Tensor | None],
) -> Gradients:
    """Return the gradients by the inputs that need one; rows that were not solved count as zero.

    None stands for a gradient of zero.

    Parameters
    ----------
    all_accepted : whether all rows are known to be solved.
    gradients : by the fields of the state after the step; None is zero, too.
    """
    # as one compiled code serves all steps: the first state of a rollout requires fewer gradients than others
    always_leaves = recipe.n_state if recipe.model.compilation.active else 0
    leaves = [_leaf(t, need or (k < always_leaves and k != recipe.time_index)) for k, (t, need) in enumerate(needed)]
    wanted = [leaf for leaf, (_, need) in zip(leaves, needed, strict=True) if need]
    with recipe.model.turn, recipe.places.with_tensors(leaves[recipe.n_own :]).in_place():
        if all_accepted or accepted.device.type != "cpu":  # on a GPU a recording finds out whether all were solved
            recorded = recorded_gradients(recipe, leaves, q, None if all_accepted else accepted, gradients, wanted)
            if recorded is not None:
                return recorded
        by_wanted = recipe.model.compilation.guarded(lambda: _gradients(recipe, leaves, q, accepted, gradients, wanted))
    if not recipe.method.scheme.inertial:
        wanted_fields = [name for name, (_, need) in zip(recipe.fields, needed, strict=False) if need]
        by_wanted = _without_rounding(by_wanted, wanted_fields, sizes_of(gradients, recipe.fields, q))
    # the host does not wait for the answer: where no row was solved these are zeros, whatever was found
    if accepted.device.type != "cpu":
        by_wanted = tuple(None if g is None else torch.where(accepted.any(), g, 0.0) for g in by_wanted)
    return by_wanted


def _without_rounding(gradients: Gradients, fields: Sequence[str], gradient_sizes: Tensor) -> Gradients:
    """Return gradients in which those by the state before an equilibrium are zero where they are no more than rounding.

    An equilibrium does not depend on where the search for it began, but for what clamps and frames hand on. The
    rounding that is left of such gradients, and gradients by directors that are not kept unit vectors, would be a loss
    to the equilibrium before, and ask there for motions that nothing resists.

    Parameters
    ----------
    gradients : first those by `fields` of the state before, then others.
    gradient_sizes : (B,) of the gradients by the state after the equilibrium.
    """
    kept = []
    for name, gradient in zip(fields, gradients, strict=False):  # the gradients by other tensors come after these
        if name in PLACES and gradient is not None and gradient.numel():
            # the size of all of it, as parts of it may cancel each other later
            sizes = gradient.reshape(len(gradient_sizes), -1).abs().amax(1)
            gradient = where_rows(~(sizes <= NOTHING * gradient_sizes), gradient, 0.0)  # NaN stays
        kept.append(gradient)
    return (*kept, *gradients[len(fields) :])


def _leaf(tensor: Tensor, requires_grad: bool) -> Tensor:
    """Return a tensor of the same numbers from which gradients are taken; a parameter for a parameter."""
    if isinstance(tensor, nn.Parameter):  # compiled code is made for a parameter or for another tensor
        return nn.Parameter(tensor.detach(), requires_grad)
    return tensor.detach().requires_grad_(requires_grad)


def _gradients(
    recipe: StepRecipe, leaves: Sequence[Tensor], q: Tensor, accepted: Tensor, gradients, wanted: list[Tensor]
) -> Gradients:
    """Return the gradients by the tensors in `wanted`, None for zero; the formulas are in the module's docstring.

    Parameters
    ----------
    leaves : tensors of state, control and model; the latter stand in the model.
    """
    # Rows that were not solved may hold any number, and 0 * NaN is NaN: a solved row stands in for each, with weight
    # zero.
    donor, values = None, Values()
    if accepted.device.type != "cpu" or not bool(accepted.all()):  # a GPU is not waited for
        row = torch.arange(len(accepted), device=accepted.device)
        donor = torch.where(accepted, row, accepted.to(torch.uint8).argmax())
        gradients = [None if g is None else where_rows(accepted, g, 0.0) for g in gradients]
        q = q[donor]
        with torch.enable_grad():
            values = recipe.places.with_tensors(leaves[recipe.n_own :]).taken(donor)
    # steps that torch runs eagerly are differentiated by the library's compiled loops
    by_loops = nullcontext() if recipe.model.compilation.active else differentiated()
    with values.in_place(), by_loops:
        return gradients_at_root(recipe, leaves, donor, q, accepted, gradients, wanted)

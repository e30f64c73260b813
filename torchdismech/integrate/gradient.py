"""Gradients through a step by implicit differentiation at its root.

A step finds the unknowns x with r(x, p) = 0 and makes of them the state y(x, p) after it; p is everything else: the
state before, the control, the model's constants and the weights of its modules. For a loss with gradient g by y,

    A^T lambda = (dy/dx)^T g,    A = dr/dx at the root,
    gradient by p = (dy/dp)^T g - (dr/dp)^T lambda.

That is one evaluation, one factorisation and one transposed solve a step, however many iterations Newton's method
took. A is evaluated anew at the accepted root: the last factor of Newton's method belongs to the iterate before, and
may have been shifted. A step keeps the state before it, q after it, the control, and what it used of the model: its
tensors that require gradients, in parts of a batch those that are given per robot, and the contact candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech.errors import Status
from torchdismech.fused import differentiated
from torchdismech.integrate.adjoint import Form, gradients_at_root
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded_gradient import recorded_gradients
from torchdismech.integrate.recorded_step import RecordedStep
from torchdismech.integrate.recording import kind_of, recording_of
from torchdismech.integrate.step import solved_step
from torchdismech.state import State
from torchdismech.values import Values, evaluated, every_module, requiring_gradients

__all__ = ["differentiable_step"]

Needed = list[tuple[Tensor, bool]]  # inputs of a step, and whether each needs a gradient


def differentiable_step(problem: StepProblem) -> tuple[State, StepInfo]:
    """Return the states after a step and how it went; rows that were not solved stay as they were.

    Where autograd records, the states can be differentiated by the state (but its time), the control, the values and
    the tensors of the model. A row whose matrix cannot be factored at its root has NaN for gradients; one that was not
    solved has none.
    """
    recording, modules = torch.is_grad_enabled(), every_module(problem.model)
    values = problem.values | requiring_gradients(modules) if recording else problem.values
    tensors = [*problem.state.fields(), *problem.control.tensors().values(), *values.tensors.values()]
    differentiated = recording and any(tensor.requires_grad for tensor in tensors)
    form = Form.of(problem, values) if differentiated else None
    with torch.no_grad():
        # compiled code is for tensors that require gradients, or for tensors that do not
        given = problem if form is None else form.problem([tensor.detach() for tensor in tensors])
        made = evaluated(modules)
        compiled = problem.model.compilation.active  # torch.compile knows modules as they are
        with (Values() if compiled else made).in_place():
            after, info, candidates = _solved(given.replace(values=problem.values | made))
    if form is not None:
        # of the recordings that which served last comes first
        form.recorded_as = problem.model.recordings[0] if candidates is None else None
        form.candidates = None if candidates is None or candidates.none else candidates.without_state()
        after = after.with_fields(_Gradient.apply(form, after.fields(), given.running & info.converged, *tensors))
    return after, info


def _solved(problem: StepProblem) -> tuple[State, StepInfo, ContactCandidates | None]:
    """Return the states after a step, how it went, and what was looked at for contact: nothing in a recorded step.

    Robots whose state is not finite are not stepped: a residual need not show it, as no force may read that number.
    """
    kind = kind_of(problem)
    recording = None if kind is None else recording_of(kind, problem)
    if isinstance(recording, RecordedStep):
        return *recording.taken(), None
    lost = problem.running & ~problem.state.finite()
    after, info, candidates = solved_step(problem.replace(running=problem.running & ~lost, recorded=recording))
    if kind is not None and recording is None:
        kind.count(int(info.iterations.max()))
    status = torch.where(lost, int(Status.NOT_FINITE), info.status)
    return after, dataclasses.replace(info, status=status), candidates


class _Gradient(torch.autograd.Function):
    """The states after a step, which is solved already, as a function of all that it depends on."""

    @staticmethod
    def forward(ctx, form: Form, after: tuple[Tensor, ...], accepted: Tensor, *tensors: Tensor):  # noqa: D102
        given = {tensor.data_ptr() for tensor in tensors}
        outputs = tuple([tensor.clone() if tensor.data_ptr() in given else tensor for tensor in after])
        ctx.form = form
        ctx.save_for_backward(*tensors, outputs[0], accepted)
        ctx.mark_non_differentiable(outputs[form.time])
        return outputs

    @staticmethod
    def backward(ctx, *gradients: Tensor):  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a step can be differentiated once, and create_graph=True asks for derivatives of its gradients: take "
                "differences of gradients, or a loss without them"
            )
        *tensors, q, accepted = ctx.saved_tensors
        needed: Needed = list(zip(tensors, ctx.needs_input_grad[3:], strict=True))
        on_cpu = accepted.device.type == "cpu"  # a GPU is not waited for
        every = on_cpu and bool(accepted.all())
        if on_cpu and not every and not bool(accepted.any()):
            by_inputs: Sequence[Tensor] = [torch.zeros_like(t) for t, need in needed if need]
        else:
            by_inputs = _solved_gradients(ctx.form, needed, q, accepted, every, gradients)
        found = iter(by_inputs)
        by_tensors = [next(found) if need else None for _, need in needed]
        if not every:  # rows that were not solved are the state before
            for k, gradient in enumerate(gradients):
                by_tensors[k] = _with_rows(by_tensors[k], gradient, ~accepted)
        return None, None, None, *by_tensors


def _solved_gradients(
    form: Form, needed: Needed, q: Tensor, accepted: Tensor, every_row: bool, gradients: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return the gradients by the inputs that need one, zero where rows were not solved.

    Parameters
    ----------
    every_row : whether all rows are known to be solved.
    """
    # compiled code is for all steps: the first state of a rollout requires fewer gradients than the others
    every = form.count if form.model.compilation.active else 0
    leaves = [_leaf(t, need or (k < every and k != form.time)) for k, (t, need) in enumerate(needed)]
    wanted = [leaf for leaf, (_, need) in zip(leaves, needed, strict=True) if need]
    _refuse_lost_places(form)
    with form.places.with_tensors(leaves[form.own :]).in_place():
        if every_row or accepted.device.type != "cpu":  # of a GPU a recording asks, once
            recorded = recorded_gradients(form, leaves, q, accepted, gradients, wanted)
            if recorded is not None:
                return recorded
        found = form.model.compilation.guarded(lambda: _gradients(form, leaves, q, accepted, gradients, wanted))
    if accepted.device.type != "cpu":  # not waited for: where no row was solved, zeros whatever came out
        found = tuple(torch.where(accepted.any(), g, 0.0) for g in found)
    return found


def _refuse_lost_places(form: Form) -> None:
    """Refuse a model of which a module was exchanged since the step: its tensors cannot be found again."""
    present = {*map(id, every_module(form.model))}
    if not all(id(module) in present for module, _ in form.places.tensors):
        raise RuntimeError(
            "a module of the model was exchanged between a step and its backward pass; keep the model's modules in "
            "place until the backward pass is done"
        )


def _leaf(tensor: Tensor, requires_grad: bool) -> Tensor:
    """Return a tensor of the same numbers from which gradients are taken; a parameter for a parameter."""
    if isinstance(tensor, nn.Parameter):  # compiled code is for one of the two
        return nn.Parameter(tensor.detach(), requires_grad)
    return tensor.detach().requires_grad_(requires_grad)


def _with_rows(found: Tensor | None, gradient: Tensor, rows: Tensor) -> Tensor | None:
    """Return what was found, if it is needed, with a gradient (B, ..) added in some rows (B,)."""
    if found is None:
        return None
    return found + torch.where(rows.view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)


def _gradients(
    form: Form, leaves: Sequence[Tensor], q: Tensor, accepted: Tensor, gradients, wanted: list[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients by the tensors in `wanted`; see the formulas above.

    Parameters
    ----------
    leaves : of state, control and model; the latter stand in the model.
    """
    # Rows that were not solved may hold anything, and 0 * NaN is NaN: a solved row stands in for each, at weight zero.
    donor = None
    if accepted.device.type != "cpu" or not bool(accepted.all()):  # a GPU is not waited for
        row = torch.arange(len(accepted), device=accepted.device)
        donor = torch.where(accepted, row, accepted.to(torch.uint8).argmax())
        gradients = [torch.where(accepted.view(-1, *[1] * (g.dim() - 1)), g, 0.0) for g in gradients]
        q = q[donor]
        with torch.enable_grad():
            values = form.places.with_tensors(leaves[form.own :]).taken(donor)
        with values.in_place():
            return _gradients_by_loops(form, leaves, donor, q, accepted, gradients, wanted)
    return _gradients_by_loops(form, leaves, donor, q, accepted, gradients, wanted)


def _gradients_by_loops(form: Form, leaves: Sequence[Tensor], donor: Tensor | None, *given: Any) -> tuple[Tensor, ...]:
    """Return what `gradients_at_root` does, by compiled loops where steps are not compiled as a whole."""
    if form.model.compilation.active:
        return gradients_at_root(form, leaves, donor, *given)
    with torch.enable_grad():
        made = evaluated(every_module(form.model))
        made = made if donor is None else made.taken(donor)  # trained constants of robots that were not solved, too
    with made.in_place(), differentiated():
        return gradients_at_root(form, leaves, donor, *given)

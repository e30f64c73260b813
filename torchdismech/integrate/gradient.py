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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech.errors import Status
from torchdismech.fused import differentiated
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.constrained import KKTConditions
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.inspection import refuse_wrong_matrix
from torchdismech.integrate.problem import Method, StepProblem
from torchdismech.integrate.recording import recorded_step
from torchdismech.integrate.step import solved_step
from torchdismech.model import Model
from torchdismech.registration import refuse_unregistered
from torchdismech.solve.newton import matrix_values
from torchdismech.state import Control, State, tensor_fields
from torchdismech.values import Values, evaluated, every_module, requiring_gradients

__all__ = ["differentiable_step"]

Needed = list[tuple[Tensor, bool]]  # inputs of a step, and whether each needs a gradient


def differentiable_step(problem: StepProblem) -> tuple[State, StepInfo]:
    """Return the states after a step and how it went; rows that were not solved stay as they were.

    Where autograd records, the states can be differentiated by the state (but its time), the control, the values and
    the tensors of the model. A row whose matrix cannot be factored at its root has NaN for gradients; one that was not
    solved has none.
    """
    recording = torch.is_grad_enabled()
    values = problem.values | requiring_gradients(problem.model) if recording else problem.values
    tensors = [*problem.state.fields(), *problem.control.tensors().values(), *values.tensors.values()]
    differentiated = recording and any(tensor.requires_grad for tensor in tensors)
    form = _Form.of(problem, values) if differentiated else None
    with torch.no_grad():
        # compiled code is for tensors that require gradients, or for tensors that do not
        given = problem if form is None else form.problem([tensor.detach() for tensor in tensors])
        made = evaluated(problem.model)
        compiled = problem.model.compilation.active  # torch.compile knows modules as they are
        with (Values() if compiled else made).in_place():
            after, info, candidates = _solved(given.replace(values=problem.values | made))
    if form is not None:
        form.candidates = None if candidates is None or candidates.none else candidates.without_state()
        after = after.with_fields(_Gradient.apply(form, after.fields(), given.running & info.converged, *tensors))
    return after, info


def _solved(problem: StepProblem) -> tuple[State, StepInfo, ContactCandidates | None]:
    """Return the states after a step, how it went, and what was looked at for contact: nothing in a recorded step.

    Robots whose state is not finite are not stepped: a residual need not show it, as no force may read that number.
    """
    taken = recorded_step(problem)
    if taken is not None:
        return *taken, None
    lost = problem.running & ~problem.state.finite()
    after, info, candidates = solved_step(problem.replace(running=problem.running & ~lost))
    status = torch.where(lost, int(Status.NOT_FINITE), info.status)
    return after, dataclasses.replace(info, status=status), candidates


@dataclass
class _Form:
    """A step without the tensors that it depends on, which autograd keeps: of its state, of its control, of the model.

    Attributes
    ----------
    kind, n_held : of its state, see `State`.
    controls : names of the control's tensors.
    places : of the model's tensors.
    candidates : what was looked at for contact; None where nothing can touch.
    """

    model: Model
    method: Method
    dt: float | Tensor
    share: float
    running: Tensor
    kind: type[State]
    n_held: int
    controls: tuple[str, ...]
    places: Values
    candidates: ContactCandidates | None = None

    @classmethod
    def of(cls, problem: StepProblem, values: Values) -> _Form:
        """Return the form of a step that depends on these values of the model."""
        controls = tuple(problem.control.tensors())
        state = problem.state
        rest = (problem.running, type(state), state.n_held, controls, values.without_tensors())
        return cls(problem.model, problem.method, problem.dt, problem.share, *rest)

    @property
    def count(self) -> int:
        """Number of the state's tensors."""
        return len(tensor_fields(self.kind))

    @property
    def own(self) -> int:
        """Number of the state's and the control's tensors: those of the model come after them."""
        return self.count + len(self.controls)

    @property
    def time(self) -> int:
        """Number of the time among the state's tensors."""
        return tensor_fields(self.kind).index("time")

    def problem(self, tensors: Sequence[Tensor], robots: Tensor | None = None) -> StepProblem:
        """Return the step from tensors of state and control; of these robots (B,) of the batch, if given."""
        own = tensors[: self.own] if robots is None else [tensor[robots] for tensor in tensors[: self.own]]
        control = Control.of(dict(zip(self.controls, own[self.count :], strict=True)))
        state = self.kind(*own[: self.count], n_held=self.n_held)
        return StepProblem(self.model, self.method, state, control, self.dt, self.running, share=self.share)

    def equations(self, tensors: Sequence[Tensor], robots: Tensor | None = None) -> StepEquations:
        """Return the equations of the step from these tensors; of some robots (B,) of the batch, if given."""
        problem = self.problem(tensors, robots)
        return problem.equations() if self.candidates is None else self.candidates.equations(problem, robots)


class _Gradient(torch.autograd.Function):
    """The states after a step, which is solved already, as a function of all that it depends on."""

    @staticmethod
    def forward(ctx, form: _Form, after: tuple[Tensor, ...], accepted: Tensor, *tensors: Tensor):  # noqa: D102
        outputs = tuple(o.clone() if any(o.data_ptr() == t.data_ptr() for t in tensors) else o for o in after)
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
        if on_cpu and not bool(accepted.any()):
            by_inputs: Sequence[Tensor] = [torch.zeros_like(t) for t, need in needed if need]
        else:
            by_inputs = _solved_gradients(ctx.form, needed, q, accepted, gradients)
        found = iter(by_inputs)
        by_tensors = [next(found) if need else None for _, need in needed]
        if not (on_cpu and bool(accepted.all())):  # rows that were not solved are the state before
            for k, gradient in enumerate(gradients):
                by_tensors[k] = _with_rows(by_tensors[k], gradient, ~accepted)
        return None, None, None, *by_tensors


def _solved_gradients(
    form: _Form, needed: Needed, q: Tensor, accepted: Tensor, gradients: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return the gradients by the inputs that need one, zero where rows were not solved."""
    # compiled code is for all steps: the first state of a rollout requires fewer gradients than the others
    every = form.count if form.model.compilation.active else 0
    leaves = [_leaf(t, need or (k < every and k != form.time)) for k, (t, need) in enumerate(needed)]
    wanted = [leaf for leaf, (_, need) in zip(leaves, needed, strict=True) if need]
    _refuse_lost_places(form)
    with form.places.with_tensors(leaves[form.own :]).in_place():
        found = form.model.compilation.guarded(lambda: _gradients(form, leaves, q, accepted, gradients, wanted))
    if accepted.device.type != "cpu":  # not waited for: where no row was solved, zeros whatever came out
        found = tuple(torch.where(accepted.any(), g, 0.0) for g in found)
    return found


def _refuse_lost_places(form: _Form) -> None:
    """Refuse a model of which a module was exchanged since the step: its tensors cannot be found again."""
    present = {id(module) for module in every_module(form.model)}
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
    form: _Form, leaves: Sequence[Tensor], q: Tensor, accepted: Tensor, gradients, wanted: list[Tensor]
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


def _gradients_by_loops(form: _Form, leaves: Sequence[Tensor], donor: Tensor | None, *given: Any) -> tuple[Tensor, ...]:
    """Return what `_gradients_at_root` does, by compiled loops where steps are not compiled as a whole."""
    if form.model.compilation.active:
        return _gradients_at_root(form, leaves, donor, *given)
    with torch.enable_grad():
        made = evaluated(form.model)
        made = made if donor is None else made.taken(donor)  # trained constants of robots that were not solved, too
    with made.in_place(), differentiated():
        return _gradients_at_root(form, leaves, donor, *given)


def _gradients_at_root(
    form: _Form,
    leaves: Sequence[Tensor],
    donor: Tensor | None,
    q: Tensor,
    accepted: Tensor,
    gradients,
    wanted: list[Tensor],
) -> tuple[Tensor, ...]:
    """Return the gradients by the tensors in `wanted`, robots that were not solved replaced by a `donor` (B,)."""
    model, weight = form.model, accepted[:, None].to(q.dtype)
    x = q.index_select(1, model.free_index)
    with torch.enable_grad():
        equations = form.equations(leaves, donor)
        equations.prepare()  # here, where autograd records
        root = x.requires_grad_()
        after = equations.state_after(equations.full(root))
        outputs = list(zip(after.fields(), gradients, strict=True))
        by_root, *direct = _pulled_back(outputs, [root, *wanted], keep=True)
    assert by_root is not None
    # what users write may have derivatives that are not its own: their product with lambda is held against autograd's
    x = x.detach().requires_grad_(model.has_user_hooks and equations.constraints is None)
    fixed, residual, values = _linearised(form, equations, leaves, donor, x)
    if model.has_user_hooks:
        refuse_unregistered(model, residual, [x, *leaves])
    multiplier, conditions, of_contacts = _adjoint(fixed, x, values, by_root * weight, accepted)
    with torch.enable_grad():
        products = [(residual, multiplier * weight)]
        if conditions is not None:
            products.append((conditions.residual(equations, x), of_contacts))
        *through_root, by_x = _pulled_back(products, [*wanted, x] if x.requires_grad else [*wanted, root])
    if by_x is not None:
        position, velocity, time = equations.evaluated_at(equations.full(x.detach()))
        at = equations.start.state.replace(q=position, velocity=velocity, time=time).detach()
        refuse_wrong_matrix(model, at, equations.start.control, by_x, by_root * weight, accepted)
    return tuple(_difference(a, b, t) for a, b, t in zip(direct, through_root, wanted, strict=True))


def _linearised(
    form: _Form, equations: StepEquations, leaves: Sequence[Tensor], donor: Tensor | None, x: Tensor
) -> tuple[StepEquations, Tensor, Tensor]:
    """Return the equations for `_adjoint`, their residual at x as autograd records it, and their matrix there."""
    compiled = equations.model.compilation.active
    if equations.closed and not compiled:
        with torch.enable_grad():  # in one evaluation, of which autograd does not record the matrix
            residual, values = equations.residual_and_matrix(x)
        return equations, residual, values.detach()
    fixed = equations
    # constraints keep what they find of the equations; compiled steps are of tensors without gradients
    if equations.constraints is not None or (compiled and equations.closed):
        fixed = form.equations([t.detach() for t in leaves], donor)
        fixed.prepare()
    model = fixed.model
    values = matrix_values(fixed, x.detach(), model.solver_for(len(x), fixed.start.pairs), model.residual_weight())
    with torch.enable_grad():
        return fixed, equations.residual(x), values


def _pulled_back(outputs, inputs: list[Tensor], keep: bool = False) -> tuple[Tensor | None, ...]:
    """Return the gradients by the inputs of pairs of outputs and the gradients by these; None where there is none."""
    outputs = [(y, g) for y, g in outputs if y.requires_grad]
    if not outputs:
        return (None,) * len(inputs)
    values, gradients = zip(*outputs, strict=True)
    return torch.autograd.grad(values, inputs, gradients, retain_graph=keep, allow_unused=True)


def _difference(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor:
    """Return a - b, where None is zero."""
    if b is None:
        return torch.zeros_like(like) if a is None else a
    return -b if a is None else a - b


@torch.no_grad()
def _adjoint(equations: StepEquations, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor):
    """Return lambda (B, n_free) with A^T lambda = rhs in the given rows; NaN where A cannot be factored.

    And, where contacts are constraints, their KKT conditions and the multipliers of these.
    """
    solver = equations.model.solver_for(len(rows), equations.start.pairs)
    factor = solver.factor(values, rows=rows)
    solution = factor.solve(rhs, transpose=True)
    lost = rows & ~factor.ok
    if bool(lost.any()) and solver.solves_indefinite and solver.pattern.symmetric:
        again = solver.factor(values, rows=lost, indefinite=True)
        solution = torch.where(lost[:, None], again.solve(rhs, transpose=True), solution)
        factor = again if bool(again.ok[rows].all()) else factor
        lost = lost & ~again.ok
    conditions, of_contacts = None, None
    if equations.constraints is not None:
        conditions = KKTConditions(equations, x, factor, rows)
        solution, of_contacts = conditions.multipliers(rhs)
    return torch.where(lost[:, None], torch.nan, solution), conditions, of_contacts

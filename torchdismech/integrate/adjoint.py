"""Gradients through a step by implicit differentiation at its root.

A step finds the unknowns x with r(x, p) = 0 and makes of them the state y(x, p) after it; p is everything else: the
state before, the control, the model's constants and the weights of its modules. For a loss with gradient g by y,

    A^T lambda = (dy/dx)^T g,    A = dr/dx at the root,
    gradient by p = (dy/dp)^T g - (dr/dp)^T lambda.

That is one evaluation, one factorisation and one transposed solve a step, however many iterations Newton's method
took. A is evaluated anew at the accepted root: the last factor of Newton's method belongs to the iterate before, and
may have been shifted. A step keeps the states before and after it and the control, nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchdismech.hooks import refuse_unregistered
from torchdismech.integrate.balance import Balance
from torchdismech.integrate.constrained import Laws
from torchdismech.integrate.inspection import refuse_wrong_matrix
from torchdismech.model import Model
from torchdismech.solve.newton import matrix_values
from torchdismech.split import every_module
from torchdismech.state import Control, State

__all__ = ["Equations", "implicit_step", "merged_after"]

STATE = tuple(f.name for f in dataclasses.fields(State))
Q, TIME = STATE.index("q"), STATE.index("time")

Needed = list[tuple[Tensor, bool]]  # inputs of a step, and whether each needs a gradient
# the balance of forces of a state and a control, of the robots with these numbers (B,), or of all in their order
Equations = Callable[[State, Control, Tensor | None], Balance]


def implicit_step(
    model: Model,
    state: State,
    control: Control,
    equations: Equations,
    solved: Callable[[State, Control], tuple[State, Tensor]],
    after: Callable[[Balance, Tensor], State],
) -> State:
    """Return the state after a step; rows that were not solved stay as they were.

    Where autograd records, the state can be differentiated by `state` (but its time), `control` and the tensors of
    `model`. A row whose matrix cannot be factored at its root has NaN for gradients; one that was not solved has none.

    Parameters
    ----------
    equations : makes the balance of forces.
    solved : takes the step; returns the state after it and which rows (B,) were solved; the others are as before.
    after : makes the state after the step of a balance and q.
    """
    fields = {f.name: getattr(control, f.name) for f in dataclasses.fields(Control)}
    given = tuple(name for name, value in fields.items() if value is not None)
    inputs = (*(getattr(state, name) for name in STATE), *(fields[name] for name in given))
    constants = _differentiated(model) if torch.is_grad_enabled() else []
    problem = _Problem(model, given, equations, solved, after)
    if torch.is_grad_enabled() and (constants or any(x.requires_grad for x in inputs)):
        return State(**dict(zip(STATE, _Root.apply(problem, *inputs, *constants), strict=True)))
    with torch.no_grad():
        return problem.step(inputs)[0]


def _differentiated(model: Model) -> list[Tensor]:
    """Return the model's tensors that require gradients.

    What `parameters` and `buffers` give, without names: they take a third of a millisecond in each step.
    """
    found: dict[int, Tensor] = {}
    for module in every_module(model):
        for tensor in chain(module._parameters.values(), module._buffers.values()):
            if tensor is not None and tensor.requires_grad:
                found[id(tensor)] = tensor
    return list(found.values())


@dataclass
class _Problem:
    """A step without its tensors, which autograd keeps."""

    model: Model
    given: tuple[str, ...]  # fields of the control that are set
    equations: Equations
    solved: Callable[[State, Control], tuple[State, Tensor]]
    after: Callable[[Balance, Tensor], State]

    def balance(self, inputs, robots: Tensor | None = None) -> Balance:
        """Return the equations of the step from the flat inputs; of these robots (B,) if given."""
        inputs = inputs if robots is None else [t[robots] for t in inputs]
        return self.equations(*self._named(inputs), robots)

    def step(self, inputs) -> tuple[State, Tensor]:
        """Return the state after the step and the rows (B,) that were solved; the others are as before."""
        return self.solved(*self._named(inputs))

    def _named(self, inputs) -> tuple[State, Control]:
        state = State(**dict(zip(STATE, inputs[: len(STATE)], strict=True)))
        return state, Control(**dict(zip(self.given, inputs[len(STATE) :], strict=True)))


def merged_after(balance: Balance, after: Callable[[Balance, Tensor], State], q: Tensor, accepted: Tensor) -> State:
    """Return the state after a step to q (B, n) in the accepted rows (B,), that before it in the others."""
    return balance.start.state.merged(after(balance, q), accepted)


class _Root(torch.autograd.Function):
    """The step as a function of state, control and the model's tensors."""

    @staticmethod
    def forward(ctx, problem: _Problem, *tensors: Tensor):  # noqa: D102
        count = len(STATE) + len(problem.given)
        # detached, as compiled code is for tensors that require gradients or for tensors that do not
        given = [t.detach() for t in tensors[:count]]
        after, accepted = problem.step(given)
        outputs = tuple(getattr(after, name) for name in STATE)
        ctx.problem, ctx.count = problem, count
        ctx.constants = tensors[count:]
        ctx.save_for_backward(*tensors, outputs[Q], accepted)
        outputs = tuple(o.clone() if any(o is t for t in given) else o for o in outputs)
        ctx.mark_non_differentiable(outputs[TIME])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):  # noqa: D102
        problem: _Problem = ctx.problem
        *tensors, q, accepted = ctx.saved_tensors
        constants = _differentiated(problem.model)
        if [id(t) for t in constants] != [id(t) for t in ctx.constants]:
            raise RuntimeError(
                "a tensor of the model was exchanged between a step and its backward pass; keep the model's parameters "
                "in place until the backward pass is done"
            )
        needed: Needed = list(zip(tensors, ctx.needs_input_grad[1:], strict=True))
        on_cpu = accepted.device.type == "cpu"  # a GPU is not waited for
        if on_cpu and not bool(accepted.any()):
            by_inputs: Sequence[Tensor] = [torch.zeros_like(t) for t, need in needed if need]
        else:
            by_inputs = _solved_gradients(problem, needed[: ctx.count], constants, q, accepted, gradients)
        found = iter(by_inputs)
        by_tensors = [next(found) if need else None for _, need in needed]
        if not (on_cpu and bool(accepted.all())):  # rows that were not solved are the state before
            for k, gradient in enumerate(gradients):
                by_tensors[k] = _with_rows(by_tensors[k], gradient, ~accepted)
        return None, *by_tensors


def _solved_gradients(
    problem: _Problem, needed: Needed, constants: list[Tensor], q: Tensor, accepted: Tensor, gradients: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return the gradients by the inputs that need one and by the constants, zero where rows were not solved."""
    # compiled code is for all steps: the first state of a rollout requires fewer gradients than the others
    every = len(STATE) if problem.model.compilation.active else 0
    forced = [k < every and k != TIME for k in range(len(needed))]
    leaves = [t.detach().requires_grad_(need or force) for (t, need), force in zip(needed, forced, strict=True)]
    wanted = [leaf for leaf, (_, need) in zip(leaves, needed, strict=True) if need] + constants
    found = problem.model.compilation.guarded(lambda: _gradients(problem, leaves, q, accepted, gradients, wanted))
    if accepted.device.type != "cpu":  # not waited for: where no row was solved, zeros whatever came out
        found = tuple(torch.where(accepted.any(), g, 0.0) for g in found)
    return found


def _with_rows(found: Tensor | None, gradient: Tensor, rows: Tensor) -> Tensor | None:
    """Return what was found, if it is needed, with a gradient (B, ..) added in some rows (B,)."""
    if found is None:
        return None
    return found + torch.where(rows.view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)


def _gradients(problem: _Problem, leaves, q: Tensor, accepted: Tensor, gradients, wanted) -> tuple[Tensor, ...]:
    """Return the gradients by the tensors in `wanted`; see the formulas above."""
    model = problem.model
    # Rows that were not solved may hold anything, and 0 * NaN is NaN: a solved row stands in for each, at weight zero.
    donor, weight = None, accepted[:, None].to(q.dtype)
    if accepted.device.type != "cpu" or not bool(accepted.all()):  # a GPU is not waited for
        row = torch.arange(len(accepted), device=accepted.device)
        donor = torch.where(accepted, row, accepted.to(torch.uint8).argmax())
        gradients = [torch.where(accepted.view(-1, *[1] * (g.dim() - 1)), g, 0.0) for g in gradients]
        q = q[donor]
    x = q.index_select(1, model.free_index)
    with torch.enable_grad():
        balance = problem.balance(leaves, donor)
        balance.prepare()  # here, where autograd records
        root = x.requires_grad_()
        after = problem.after(balance, balance.full(root))
        outputs = [(getattr(after, name), g) for name, g in zip(STATE, gradients, strict=True)]
        by_root, *direct = _pulled_back(outputs, [root, *wanted], keep=True)
    assert by_root is not None
    # what users write may have derivatives that are not its own: their product with lambda is held against autograd's
    x = x.detach().requires_grad_(model.has_user_hooks and balance.constraints is None)
    fixed, residual, values = _linearised(problem, balance, leaves, donor, x)
    if model.has_user_hooks:
        refuse_unregistered(balance.model, residual, [x, *leaves])
    multiplier, laws, of_contacts = _adjoint(fixed, x, values, by_root * weight, accepted)
    with torch.enable_grad():
        equations = [(residual, multiplier * weight)]
        if laws is not None:
            equations.append((laws.equations(balance, x), of_contacts))
        *through_root, by_x = _pulled_back(equations, [*wanted, x] if x.requires_grad else [*wanted, root])
    if by_x is not None:
        position, velocity, time = balance.evaluated_at(balance.full(x.detach()))
        at = balance.start.state.replace(q=position, velocity=velocity, time=time).detach()
        refuse_wrong_matrix(model, at, balance.start.control, by_x, by_root * weight, accepted)
    return tuple(_difference(a, b, t) for a, b, t in zip(direct, through_root, wanted, strict=True))


def _linearised(
    problem: _Problem, balance: Balance, leaves: list[Tensor], donor: Tensor | None, x: Tensor
) -> tuple[Balance, Tensor, Tensor]:
    """Return the equations for `_adjoint`, their residual at x as autograd records it, and their matrix there."""
    compiled = balance.model.compilation.active
    if balance.closed and not compiled:
        with torch.enable_grad():  # in one evaluation, of which autograd does not record the matrix
            residual, values = balance.residual_and_matrix(x)
        return balance, residual, values.detach()
    fixed = balance
    # the laws of constraints keep what they find of the balance; compiled steps are of tensors without gradients
    if balance.constraints is not None or (compiled and balance.closed):
        fixed = problem.balance([t.detach() for t in leaves], donor)
        fixed.prepare()
    model = fixed.model
    values = matrix_values(fixed, x.detach(), model.solver_for(len(x), fixed.start.pairs), model.residual_weight())
    with torch.enable_grad():
        return fixed, balance.residual(x), values


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
def _adjoint(balance: Balance, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor):
    """Return lambda (B, n_free) with A^T lambda = rhs in the given rows; NaN where A cannot be factored.

    And, where contacts are constraints, the laws that they obey and the multipliers of these.
    """
    solver = balance.model.solver_for(len(rows), balance.start.pairs)
    factor = solver.factor(values, rows=rows)
    solution = factor.solve(rhs, transpose=True)
    lost = rows & ~factor.ok
    if bool(lost.any()) and solver.solves_indefinite and solver.pattern.symmetric:
        again = solver.factor(values, rows=lost, indefinite=True)
        solution = torch.where(lost[:, None], again.solve(rhs, transpose=True), solution)
        factor = again if bool(again.ok[rows].all()) else factor
        lost = lost & ~again.ok
    laws, of_contacts = None, None
    if balance.constraints is not None:
        laws = Laws(balance, x, factor, rows)
        solution, of_contacts = laws.multipliers(rhs)
    return torch.where(lost[:, None], torch.nan, solution), laws, of_contacts

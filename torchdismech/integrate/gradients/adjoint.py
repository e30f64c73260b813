"""The gradients of a step at its root by the adjoint equations; formulas and symbols are in `gradient.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.gradients.hooks import refuse_wrong_matrix
from torchdismech.integrate.gradients.kkt import KKTConditions
from torchdismech.integrate.gradients.point_conditions import PointConditions
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.model.registration import refuse_unregistered
from torchdismech.solve.linear import SMALLEST_EIGENVALUE, Factor, factored
from torchdismech.solve.progress import matrix_values

__all__ = ["PLACES", "Adjoint", "Gradients", "gradients_at_root", "sizes_of", "with_zeros"]

# lambda (B, n_free), and where contacts are constraints their KKT conditions and the multipliers of these
Adjoint = tuple[Tensor, KKTConditions | PointConditions | None, Tensor | None]
Gradients = tuple[Tensor | None, ...]  # None for a tensor that nothing depends on
FELT = 1e-8  # part of a loss along a motion: where the loss does not depend on it, rounding leaves 1e-16 to 1e-12
# The fields of a state that say where a robot is; others, of what materials remember, may be in any unit.
PLACES = ("q", "director", "tangent", "reference_twist")
AdjointSolve = Callable[[StepEquations, Tensor, Tensor, Tensor, Tensor], Adjoint]


def gradients_at_root(
    recipe: StepRecipe,
    leaves: Sequence[Tensor],
    donor: Tensor | None,
    q: Tensor,
    accepted: Tensor,
    gradients: Sequence[Tensor | None],
    wanted: list[Tensor],
    solve: AdjointSolve | None = None,
) -> Gradients:
    """Return the gradients by the tensors in `wanted`, which are leaves or stand in the model.

    Parameters
    ----------
    leaves : the tensors of state, control and model that the step depends on.
    donor : (B,) for each robot the one whose root stands in for its own: itself where it was solved; None: all were.
    q : (B, n) at the root.
    accepted : (B,) robots that were solved.
    gradients : by the fields of the state after the step; None is zero, and nothing is done for it.
    solve : solves the adjoint equations. By default that is `multipliers`, and users' derivatives are compared with
        autograd's.
    """
    model = recipe.model
    weight = 1.0 if donor is None else accepted[:, None].to(q.dtype)
    x = model.unknowns.of_dofs(q)
    with torch.enable_grad():  # gradients through y(x, p): (dy/dx)^T g and (dy/dp)^T g
        equations = recipe.equations(leaves, donor)
        equations.prepare()  # here, so that autograd records it
        root = x.requires_grad_()
        after = equations.state_after(equations.full(root))
        outputs = list(zip(after.fields(), gradients, strict=True))
        by_root, *direct = _vector_jacobian(outputs, [root, *wanted], keep=True)
    by_root = torch.zeros_like(x) if by_root is None else _weighted(by_root, weight)
    # A^T lambda = (dy/dx)^T g
    # the derivatives that users write may be wrong: their product with lambda is compared with autograd's
    checks_derivatives = model.has_user_hooks and solve is None
    x = x.detach().requires_grad_(checks_derivatives and equations.constraints is None)
    with _derivatives_by_unknowns(equations, x.requires_grad):
        equations_at_root, residual, values = _residual_and_matrix(recipe, equations, leaves, donor, x)
    if checks_derivatives:
        with torch.enable_grad():
            refuse_unregistered(model, residual, [x, *leaves], lambda: equations.residual(x))
    solve = partial(multipliers, gradient_sizes=sizes_of(gradients, recipe.fields, q)) if solve is None else solve
    multiplier, conditions, contact_multipliers = solve(equations_at_root, x, values, by_root, accepted)
    with torch.enable_grad():  # (dr/dp)^T lambda
        products = [(residual, _weighted(multiplier, weight))]
        if conditions is not None:
            assert contact_multipliers is not None
            products.append((conditions.residual(equations, x), contact_multipliers))
        *through_root, by_x = _vector_jacobian(products, [*wanted, x] if x.requires_grad else [*wanted, root])
    if by_x is not None:
        at = equations.evaluated_state(equations.full(x.detach())).detach()
        refuse_wrong_matrix(model, at, equations.start.control, by_x, by_root, accepted)
    return tuple(_difference(a, b) for a, b in zip(direct, through_root, strict=True))


def with_zeros(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, with zeros like the tensors in `like` for None."""
    return [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, like, strict=False)]


def _weighted(tensor: Tensor, weight: Tensor | float) -> Tensor:
    """Return a tensor (B, n) times the weights (B, 1) of its robots; a float stands for weights of 1."""
    return tensor * weight if isinstance(weight, Tensor) else tensor


def _derivatives_by_unknowns(equations: StepEquations, wanted: bool) -> AbstractContextManager[None]:
    """Leave out, in the block, derivatives of the residual by the unknowns, if not wanted and if loops can do without.

    Derivatives by q at held dofs stay. Nothing is left out where nodes slide, as these are held along some directions;
    where forces are not evaluated at the end of a step, as q before the step then counts at all dofs; and in compiled
    steps, which have no such loops.
    """
    model, at_end = equations.model, equations.scheme.position == 1
    leaves_out = not wanted and at_end and model.unknowns.slides.none and not model.compilation.active
    return equations.mechanics.layout.elastic.only_clamped_gradients() if leaves_out else nullcontext()


def _residual_and_matrix(
    recipe: StepRecipe, equations: StepEquations, leaves: Sequence[Tensor], donor: Tensor | None, x: Tensor
) -> tuple[StepEquations, Tensor, Tensor]:
    """Return equations for `multipliers`, the residual at x as autograd records it, and the matrix values there.

    The equations are those given, or others from detached tensors where gradients would be in the way. The residual is
    that of the equations given.
    """
    compiled = equations.model.compilation.active
    if equations.evaluates_once and not compiled:
        with torch.enable_grad():  # one evaluation gives both; autograd does not record the matrix
            residual, values = equations.residual_and_matrix(x)
        return equations, residual, values.detach()
    detached_equations = equations
    # constraints keep tensors that they compute; compiled steps take tensors without gradients
    if equations.constraints is not None or (compiled and equations.compiles_whole):
        detached_equations = recipe.detached().equations([t.detach() for t in leaves], donor)
        detached_equations.prepare()
    values = matrix_values(
        detached_equations, x.detach(), detached_equations.solver(), detached_equations.model.unknowns.residual_weight()
    )
    with torch.enable_grad():
        return detached_equations, equations.residual(x), values


def _vector_jacobian(
    outputs: Iterable[tuple[Tensor, Tensor | None]], inputs: list[Tensor], keep: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradients by the inputs, from pairs of an output and the gradient by it; None where there is none.

    Parameters
    ----------
    keep : whether the graph is kept for another call.
    """
    outputs = [(y, g) for y, g in outputs if y.requires_grad and g is not None]
    if not outputs:
        return (None,) * len(inputs)
    values, gradients = zip(*outputs, strict=True)
    return torch.autograd.grad(values, inputs, gradients, retain_graph=keep, allow_unused=True)


def _difference(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return a - b, where None is zero."""
    if b is None:
        return a
    return -b if a is None else a - b


@torch.no_grad()
def multipliers(
    equations: StepEquations, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor, gradient_sizes: Tensor | None = None
) -> Adjoint:
    """Return lambda (B, n_free) with A^T lambda = rhs in the given rows; NaN where there is none.

    That is where A is singular, and in equilibria also where rhs asks for a motion that A resists by no more than
    rounding.

    Where contacts are constraints, also returned are their KKT conditions and the multipliers of these (A, 3); else
    None.

    Parameters
    ----------
    gradient_sizes : (B,) of the gradients by the state after the step, from which rhs was made; None: those of rhs.
    """
    solver, conditions, contact_multipliers = equations.solver(), None, None
    if equations.constraints is None:
        factor, _ = factored(solver, values, rows, nearly=not equations.scheme.inertial)
        solution = factor.solve(rhs, transpose=True)
    else:
        conditions = KKTConditions(equations, x, values, rows)
        factor, values = conditions.factor, conditions.values
        solution, contact_multipliers = conditions.multipliers(rhs)
    unsolved = rows & ~factor.ok
    # with inertia nothing is free; single precision and iterative solvers cannot tell free motions from soft ones
    if not equations.scheme.inertial and solver.solves_indefinite and rhs.dtype == torch.float64:
        unsolved = unsolved | (
            rows
            & _asks_for_free_motion(factor, solution, rhs, values[solver.diagonal(values.device)].t(), gradient_sizes)
        )
    if conditions is not None:
        assert contact_multipliers is not None
        contact_multipliers = torch.where(unsolved[conditions.robot][:, None], torch.nan, contact_multipliers)
    return torch.where(unsolved[:, None], torch.nan, solution), conditions, contact_multipliers


def sizes_of(gradients: Sequence[Tensor | None], fields: Sequence[str], q: Tensor) -> Tensor:
    """Return the largest entry (B,) of the gradients by those fields of a state that say where a robot is."""
    placed = (g for g, name in zip(gradients, fields, strict=True) if name in PLACES)
    sizes = [g.reshape(len(q), -1).abs().amax(1) for g in placed if g is not None and g.numel()]
    return torch.stack(sizes).amax(0) if sizes else torch.zeros_like(q[:, 0])


def _asks_for_free_motion(
    factor: Factor, solution: Tensor, rhs: Tensor, diagonal: Tensor, gradient_sizes: Tensor | None
) -> Tensor:
    """Return the robots (B,) whose loss asks for a motion that A resists by no more than rounding.

    Where a robot is free to turn, A is regular only by rounding; but losses that do not depend on such a motion have
    right gradients all the same, as no part of the loss is along it. One more solve tells how large that part is: with
    ones on A's diagonal two inverse iterations from the loss give the eigenvalue that dominates the solution.

    Parameters
    ----------
    solution, rhs : (B, n_free) of A^T lambda = rhs.
    diagonal : (B, n_free) of A.
    gradient_sizes : see `multipliers`. An equilibrium that another one follows gets little more than rounding from
        that one.
    """
    scale = diagonal.abs().sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    scaled = scale * solution
    direction = unit_or_zero(scaled)
    eigenvalue = 1 / torch.linalg.vector_norm(scale * factor.solve(scale * direction, transpose=True), dim=1)
    part_along = torch.linalg.vector_norm(scaled, dim=1) * eigenvalue
    whole_size = torch.linalg.vector_norm(rhs / scale, dim=1)
    if gradient_sizes is not None:
        whole_size = torch.maximum(whole_size, gradient_sizes / scale.amax(1))
    return (eigenvalue < SMALLEST_EIGENVALUE[rhs.dtype]) & (part_along > FELT * whole_size)

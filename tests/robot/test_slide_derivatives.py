"""Newton matrices and gradients of robots that slide."""

import pytest
import torch

from tests.robot.sliding_arches import ANYHOW, EXACT, arch
from torchdismech import Control, ImplicitEuler, ImplicitMidpoint, Newmark, unroll
from torchdismech.solve.progress import matrix_values


def test_the_matrix_is_the_residuals_derivative():
    """Be the residual's derivative along the line, and a stiffness across it that is coupled to nothing."""
    model = arch(ANYHOW)
    state, _ = ImplicitMidpoint(0.01).step(model, model.initial_state(), throw=True)
    equations = ImplicitMidpoint(0.01).equations(model, state)
    x = state.q[:, model.unknowns.index]
    values = matrix_values(equations, x, model.solvers.of(2), model.unknowns.residual_weight())
    matrix = model.layout.pattern.to_dense(values)
    scale = matrix.abs().max()
    for k in range(model.unknowns.count):
        step = torch.zeros_like(x)
        step[:, k] = 1e-6
        slope = (equations.residual(x + step) - equations.residual(x - step)) / 2e-6
        own = int(model.unknowns.index[k]) // 3
        if own not in (4, 8):
            assert (matrix[:, :, k] - slope).abs().max() < 1e-8 * scale  # of second order in 1e-6 m
            continue
        at = [i for i, dof in enumerate(model.unknowns.index.tolist()) if dof // 3 == own]
        allowed = torch.as_tensor(model.unknowns.slides.projections()[0, [4, 8].index(own)])
        others = [i for i in range(model.unknowns.count) if i not in at]
        assert (matrix[:, others, k] - slope[:, others]).abs().max() < 1e-8 * scale
        within = matrix[:, at][:, :, at] @ allowed
        assert (within[:, :, at.index(k)] - slope[:, at]).abs().max() < 1e-8 * scale
        across = torch.linalg.eigvalsh(matrix[:, at][:, :, at] - within)
        assert bool((across[:, -1] > 1e-3 * scale).all())


@pytest.mark.parametrize("integrator", [ImplicitEuler, Newmark])
def test_gradients_are_those_of_differences(integrator):
    """Differentiate by stiffness, start and the place of the line."""
    shift = torch.linspace(-1, 1, 3, dtype=torch.float64)
    model = arch(ANYHOW)
    bending = model.term("bend_twist").energy.EI1.detach()

    def loss(factor, start, line, record):
        with torch.set_grad_enabled(record):
            values = {"bend_twist.EI1": factor * bending}
            first = model.initial_state(2)
            state = first.replace(q=first.q + start * torch.cos(torch.arange(model.n_dofs)) * model.free)
            target = first.q.clone()
            target[:, 24:27] = target[:, 24:27] + line * shift
            end = unroll(
                model, state, integrator(0.02, **EXACT), 3, lambda time, model: Control(clamped_q=target, values=values)
            )
            return (end.state.positions * torch.linspace(0, 1, 27, dtype=torch.float64).view(9, 3)).sum()

    at = torch.tensor([1.0, 1e-3, 2e-3], dtype=torch.float64).unbind()
    leaves = [value.clone().requires_grad_() for value in at]
    found = torch.autograd.grad(loss(*leaves, True), leaves)
    for k in range(3):
        sides = []
        for sign in (1, -1):
            near = [value + sign * 1e-5 * (j == k) for j, value in enumerate(at)]
            sides.append(float(loss(*near, False)))
        # of second order; 1e-10 of noise, as steps end within 1e-13 N on nodes that 1e-3 N/m hold
        assert float(found[k]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-5 * 0.1)


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_gradients_pass_through_contact(contact):
    """Differentiate by stiffness and the place of the line where robots touch something."""
    shift = torch.linspace(-1, 1, 3, dtype=torch.float64)
    model, euler = arch(ANYHOW, contact), ImplicitEuler(0.01, **EXACT)
    bending, state = model.term("bend_twist").energy.EI1.detach(), model.initial_state()
    with torch.no_grad():
        for _ in range(6):
            state, _ = euler.step(model, state, throw=True)

    def loss(factor, line, record):
        with torch.set_grad_enabled(record):
            target = state.q.clone()
            target[:, 24:27] = target[:, 24:27] + line * shift
            control = Control(clamped_q=target, values={"bend_twist.EI1": factor * bending})
            end = unroll(model, state, euler, 2, lambda time, model: control)
            return (end.state.positions[:, :9] * torch.linspace(0, 1, 27, dtype=torch.float64).view(9, 3)).sum()

    at = torch.tensor([1.0, 1e-5], dtype=torch.float64).unbind()
    leaves = [value.clone().requires_grad_() for value in at]
    found = torch.autograd.grad(loss(*leaves, True), leaves)
    for k, size in enumerate((1e-4, 1e-7)):
        sides = []
        for sign in (1, -1):
            near = [value + sign * size * (j == k) for j, value in enumerate(at)]
            sides.append(float(loss(*near, False)))
        # of second order; sums of 10 rounded to 1e-15
        assert float(found[k]) == pytest.approx((sides[0] - sides[1]) / (2 * size), rel=1e-4, abs=1e-9)

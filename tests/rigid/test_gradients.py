"""Gradients through steps of chains, against central differences; trained constants."""

import math

import pytest
import torch
from torch import nn

from tests.rigid.chains import cable, random_motion
from torchdismech import Control, InputError, trainable, unroll
from torchdismech.rigid import Radau, RigidChain, Sdirk2

# central differences in steps of 1e-4 of a number are good to 1e-8 of its derivative; 1e-5 is asked for
AGREE = 1e-6


def tip(constants, integrator, steps, space=False):
    """Return where the tip ends (2,) [m], from Young's modulus, density, gain of the controller, first angle."""
    youngs, density, gain, angle = constants
    chain = cable(3, space, youngs=youngs, density=density, shear=0.4 * youngs if space else None)

    def controller(state, control, model):
        goal = torch.where(state.time < 0.1, 0.0, math.pi / 4)
        return model.drive(gain * (goal - state.q[:, 0]) - 0.05 * state.velocity[:, 0])

    q = torch.cat([angle[None], torch.full((chain.n_dofs - 1,), 0.02, dtype=torch.float64)])
    run = unroll(chain, chain.initial_state(q=q), integrator, steps, controller=controller, throw=True)
    return run.state.positions[0, -1, ::2]


@pytest.mark.parametrize(
    ("integrator", "space", "steps"),
    [
        (Radau(0.01, tolerance=1e-13), False, 25),
        (Sdirk2(0.01, h=5e-3, tolerance=1e-13), False, 15),
        (Radau(0.01, tolerance=1e-11), True, 4),
        pytest.param(Radau(0.01, tolerance=1e-13), False, 501, marks=pytest.mark.slow),
        pytest.param(Sdirk2(0.01, h=2e-3, tolerance=1e-13), False, 501, marks=pytest.mark.slow),
        pytest.param(Radau(0.01, tolerance=1e-11), True, 50, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_the_tip_are_central_differences(integrator, space, steps):
    """Differentiate a run by Young's modulus, density, gain and first angle."""
    values = [torch.tensor(x, dtype=torch.float64) for x in (7e10 / 3, 2710.0, 2.5, 0.1)]
    leaves = [x.clone().requires_grad_() for x in values]
    weight = torch.tensor([0.3, 1.0], dtype=torch.float64)
    gradients = torch.autograd.grad((tip(leaves, integrator, steps, space) * weight).sum(), leaves)
    for k, value in enumerate(values):
        step = 1e-4 * value
        ends = []
        with torch.no_grad():
            for sign in (1, -1):
                moved = [x + sign * step if j == k else x for j, x in enumerate(values)]
                ends.append((tip(moved, integrator, steps, space) * weight).sum())
        difference = (ends[0] - ends[1]) / (2 * step)
        assert abs(float(gradients[k] / difference) - 1) < AGREE, k


def test_gradients_reach_tensors_in_lists():
    """Differentiate by lengths and gravity whose tensors are given in lists, and by angles of an initial state."""
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, -9.81, 0.1)]

    def ends(length, gravity, angle):
        chain = RigidChain([length, 0.2], 0.1, 0.1, 1e-3, 0.5, gravity=(0.0, 0.0, gravity))
        state = chain.initial_state(q=[angle, 0.0])
        return Radau(0.01).step(chain, state, throw=True)[0].q.sum()

    assert torch.autograd.gradcheck(ends, leaves)


@pytest.mark.parametrize("space", [False, True])
def test_every_constant_has_its_gradient(space):
    """Differentiate a step by each constant of unlike elements and by the torques."""
    chain = cable(2, space, diameter=[4e-3, 6e-3, 8e-3])
    q, velocity, torque = random_motion(chain, 2)
    integrator = Radau(0.01, tolerance=1e-12)
    weight = torch.linspace(0.5, 2, 2 * chain.n_dofs, dtype=torch.float64).view(2, -1)

    def loss(torque):
        # the state is not differentiated: its acceleration, which only starts the search, depends on constants, too
        start = chain.initial_state(q=q, velocity=velocity).detach()
        after, _ = integrator.step(chain, start, Control(force=torque), throw=True)
        return (after.q * weight).sum() + 0.1 * (after.velocity * weight).sum()

    names = [name for name in chain.per_robot if name != "base"]
    for name in names:
        value = getattr(chain, name).expand(getattr(chain, name).shape or (1,)).clone().requires_grad_()
        setattr(chain, name, value)
    torque = torque.clone().requires_grad_()
    leaves = [getattr(chain, name) for name in names] + [torque]
    gradients = torch.autograd.grad(loss(torque), leaves)
    for name, leaf, gradient in zip([*names, "force"], leaves, gradients, strict=True):
        if name == "gravity" and not space:
            gradient = gradient * torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
        direction = leaf.detach() * 0.5 + (1e-3 if name in ("force", "gravity") else 0.0)
        step = 1e-4
        ends = []
        with torch.no_grad():
            for sign in (1, -1):
                leaf += sign * step * direction
                ends.append(loss(torque))
                leaf -= sign * step * direction
        difference = float(ends[0] - ends[1]) / (2 * step)
        # differences of a step of the chain in space are good to 1e-6: it is solved to 1e-12 rad
        assert float((gradient * direction).sum()) == pytest.approx(difference, rel=1e-5, abs=1e-7), name


def test_gradients_where_the_exact_matrix_is_needed():
    """Differentiate a step in which chains twist so loosely that simplified iterations do not converge."""
    chain = cable(2, space=True, youngs=2e9, viscosity=1e6, shear=2e7)
    q, velocity, _ = random_motion(chain, 2)
    integrator = Radau(5e-3, tolerance=1e-12)

    def end(q):
        after, info = integrator.step(
            chain, chain.initial_state(q=q, velocity=velocity).detach().replace(q=q), throw=True
        )
        return after.q[:, 1:3].sum(), info

    leaf = q.clone().requires_grad_()
    value, info = end(leaf)
    assert int(info.iterations.max()) > 12, "the case is not hard enough"
    (gradient,) = torch.autograd.grad(value, leaf)
    step = 1e-6
    direction = torch.linspace(-1, 1, q.numel(), dtype=torch.float64).view(q.shape)
    with torch.no_grad():
        difference = float(end(q + step * direction)[0] - end(q - step * direction)[0]) / (2 * step)
    # the solution moves fast: differences of 1e-6 rad are good to 1e-4
    assert float((gradient * direction).sum()) == pytest.approx(difference, rel=1e-4)


def test_rows_that_fail_pass_gradients_through():
    """Give a robot that fails the gradient of the state that it keeps; the others theirs, without NaN."""
    chain = cable(2)
    q, velocity, _ = random_motion(chain, 3)
    velocity[1] = 1e200
    q.requires_grad_()
    start = chain.initial_state(q=q.detach(), velocity=velocity).detach().replace(q=q)
    after, info = Radau(0.01).step(chain, start)
    assert info.converged.tolist() == [True, False, True]
    (gradient,) = torch.autograd.grad(after.q.sum(), q)
    torch.testing.assert_close(gradient[1], torch.ones(3, dtype=torch.float64))
    alone = q.detach()[[0, 2]].requires_grad_()
    rest = start.rows([0, 2]).detach().replace(q=alone)
    (expected,) = torch.autograd.grad(Radau(0.01).step(chain, rest)[0].q.sum(), alone)
    torch.testing.assert_close(gradient[[0, 2]], expected, rtol=1e-12, atol=0)  # rounding


@pytest.mark.parametrize("space", [False, True])
def test_rows_that_are_not_finite_leave_shared_constants_alone(space):
    """Give a constant that all robots share the gradient by the other robots, where one has NaN in its state."""
    gradients = []
    for rows in ([0, 1, 2], [0, 2]):
        chain = cable(2, space)
        q, velocity, _ = random_motion(chain, 3)
        q[1, 1] = torch.nan
        springs = trainable.scaled(chain, ["stiffness_z"])
        start = chain.initial_state(3, velocity=velocity).detach().replace(q=q).rows(rows)
        after, info = Radau(0.01).step(chain, start)
        assert int(info.converged.sum()) == 2
        gradients += torch.autograd.grad(after.q[[0, -1]].sum(), springs.parameters())
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=0)  # rounding


def test_constants_are_trained_by_name():
    """Scale the springs of each robot; mass and inertia go together with the density."""
    chain = cable(2)
    assert {"mass", "stiffness_z", "inertia_z", "gravity"} <= set(trainable.constants(chain))
    springs = trainable.scaled(chain, ["stiffness_z"], shape=(3, 1))
    density = trainable.scaled(chain, ["mass", "inertia_z"])
    run = unroll(chain, chain.initial_state(3), Radau(0.01), 3)
    run.state.positions[:, -1, 2].sum().backward()
    assert springs.log_factor.grad.shape == (3, 1) and float(springs.log_factor.grad.abs().min()) > 0
    assert float(density.log_factor.grad.abs()) > 0


def test_negative_constants_are_refused_by_name():
    """Refuse a trained stiffness that an optimiser drove below zero, in the step that would use it."""
    stiffness = nn.Parameter(torch.tensor([3.0, 3.0], dtype=torch.float64))
    chain = RigidChain([0.1, 0.2, 0.1], 0.02, 0.05, 1e-4, stiffness, 0.1)
    assert dict(chain.named_parameters())["stiffness_z"] is stiffness
    state = chain.initial_state()
    Radau(0.01).step(chain, state)
    with torch.no_grad():
        stiffness[1] = -1.0
    with pytest.raises(InputError, match="stiffness_z: expected 0 or more, got -1"):
        Radau(0.01).step(chain, state)

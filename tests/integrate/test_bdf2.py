"""BDF2: order, damping, gradients, refusals."""

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Static,
    forces,
    straight,
    unroll,
)
from torchdismech.state import State

TIGHT = {"force_tolerance": 1e-12, "relative_tolerance": 0.0}


def swinging():
    """Return a clamped rod that gravity lets swing."""
    gravity = forces.Gravity((0, 0, -9.81))
    return rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0), [gravity]).finalize()


def after(rule, dt, time=0.04):
    """Return q after a time."""
    model, integrator = swinging(), rule(dt, **TIGHT)
    state = model.initial_state()
    for _ in range(round(time / dt)):
        state, _ = integrator.step(model, state, throw=True)
    return state.q


def test_order():
    """Converge with the second power of the step."""
    found = [after(BDF2, 2e-3 / 2**k) for k in range(3)]
    changes = [float((a - b).norm()) for a, b in zip(found, found[1:], strict=False)]
    # a second order gives 4
    assert 3.4 < changes[0] / changes[1] < 4.6


def test_more_exact_than_implicit_euler():
    """Come ten times as near to the limit as implicit Euler does with the same step."""
    limit = after(BDF2, 2.5e-4)
    errors = {rule: float((after(rule, 1e-3) - limit).norm()) for rule in (BDF2, ImplicitEuler)}
    assert errors[BDF2] < 0.1 * errors[ImplicitEuler]


def test_gradients():
    """Differentiate a rollout by the initial velocity, through what steps remember, against central differences."""
    model, integrator = swinging(), BDF2(1e-3, **TIGHT)

    def tip(velocity):
        """Return where the tip ends."""
        state = model.initial_state(velocity=velocity)
        return unroll(model, state, integrator, 5).q[-1, 0, 12:15].sum()

    velocity = (0.2 * model.free.double()).requires_grad_()
    (found,) = torch.autograd.grad(tip(velocity), velocity)
    direction = torch.linspace(-1, 1, len(velocity), dtype=torch.float64) * model.free
    ahead, behind = (float(tip((velocity + s * 1e-4 * direction).detach())) for s in (1, -1))
    # positions of 0.1 m, solved to 1e-12 N, over 2e-4
    assert float(found @ direction) == pytest.approx((ahead - behind) / 2e-4, rel=1e-6)


def test_a_row_is_the_robot_alone():
    """Step a robot among others as alone."""
    model, integrator = swinging(), BDF2(1e-3, **TIGHT)
    speeds = torch.tensor([[0.0], [0.1], [0.3]], dtype=torch.float64) * model.free
    state, alone = model.initial_state(3, velocity=speeds), model.initial_state(velocity=speeds[2])
    for _ in range(4):
        state, _ = integrator.step(model, state, throw=True)
        alone, _ = integrator.step(model, alone, throw=True)
    # rounding of sums in another order
    assert torch.allclose(state.q[2], alone.q[0], rtol=0, atol=1e-12)


def test_what_it_remembers_ends_with_a_step_of_another_rule():
    """Begin anew after an equilibrium: the robot is at rest, and the step before the last is over."""
    model, rule = swinging(), BDF2(1e-3, **TIGHT)
    state, _ = rule.step(model, model.initial_state(velocity=0.2 * model.free.double()), throw=True)
    rest, _ = Static(force_tolerance=1e-10).step(model, state, throw=True)
    assert type(rest) is State
    after, _ = rule.step(model, rest, throw=True)
    assert (after.velocity.abs() < 1e-5).all()  # what the tolerance of the equilibrium leaves


def test_refused():
    """Refuse parts of steps, and a state that belongs to steps of another length."""
    with pytest.raises(InputError, match="max_substeps = 4"):
        BDF2(1e-3, max_substeps=4)
    model = swinging()
    state, _ = BDF2(1e-3).step(model, model.initial_state())
    with pytest.raises(InputError, match=r"expected a state after steps of 0.002 s, got one after steps of 0.001 s"):
        BDF2(2e-3).step(model, state)
    anew = State(*state.fields()[:7])
    BDF2(2e-3).step(model, anew, throw=True)

"""Each robot of a batch is on its own."""

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    SimulationError,
    Static,
    Status,
    forces,
    rollout,
    straight,
)
from torchdismech.integrate.equations import StepEquations

INTEGRATORS = {
    "euler": ImplicitEuler(0.01),
    "midpoint": ImplicitMidpoint(0.005),
    "newmark": Newmark(0.005),
    "static": Static(),
}


def rod(rows=slice(None)):
    """Return a model of three robots of unlike stiffness and loads, or of some of these."""
    youngs = torch.tensor([[1e6], [4e6], [2e7]], dtype=torch.float64)[rows]
    load = torch.tensor([[0, 0.01, 0], [0, 0, -0.02], [0.01, 0.01, 0.01]], dtype=torch.float64)[rows]
    loads = [forces.Gravity((0, 0, -9.81)), forces.PointForce([20], load), forces.Viscous(0.05)]
    return rod_through(straight((0, 0, 0), (0.4, 0, 0), 21), Circle(5e-3), Material(youngs, 1000.0), loads).finalize()


def bent(rows=slice(None)):
    """Return natural curvatures that differ from robot to robot."""
    kappa = torch.zeros(3, 19, 2, dtype=torch.float64)
    kappa[0, :, 0], kappa[1, :, 1], kappa[2, :5, 0] = 0.02, -0.01, 0.05
    return Control(natural_curvature=kappa[rows])


@pytest.mark.parametrize(
    "integrator", ["euler", *(pytest.param(name, marks=pytest.mark.slow) for name in INTEGRATORS if name != "euler")]
)
def test_a_row_is_the_robot_alone(integrator):
    """Match each robot stepped alone: rounding after one step, little more after 50."""
    rule, together = INTEGRATORS[integrator], rod()
    state = together.initial_state(batch=3)
    alone = [(rod([i]), rod([i]).initial_state(batch=1)) for i in range(3)]
    states = [s for _, s in alone]
    for step in range(1, 51):
        state, info = rule.step(together, state, bent(), throw=True)
        for i, (model, _) in enumerate(alone):
            states[i], own = rule.step(model, states[i], bent([i]), throw=True)
            difference = (state.q[i] - states[i].q[0]).abs().max().item()
            # vector instructions group sums differently: 1e-12 of the length at once, growing with the steps
            assert difference < (1e-12 if step == 1 else 1e-9)
            assert info.iterations[i] == own.iterations[0]


def broken(model):
    """Return a start from which 15 iterations cannot step robot 1: its nodes fly apart at 1000 m/s."""
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    velocity[1, :63] = 1e3 * torch.randn(63, dtype=torch.float64, generator=generator)
    return velocity


@pytest.mark.parametrize("poison", ["speed", "nan"])
def test_a_failing_row_leaves_the_others_alone(poison):
    """Report the failing robot, keep its last good state, and step the others as if it were not there."""
    model = rod()
    healthy = model.initial_state(batch=3)
    state = model.initial_state(batch=3, velocity=broken(model)) if poison == "speed" else healthy
    control = bent()
    if poison == "nan":
        control.natural_curvature[1, 3, 0] = torch.nan
    rule = ImplicitEuler(0.01, max_iterations=15)
    after, info = rule.step(model, state, control)
    good, _ = rule.step(model, healthy, bent())
    assert info.status[1] != Status.CONVERGED
    if poison == "nan":
        assert info.status[1] == Status.NOT_FINITE
    assert info.status[[0, 2]].tolist() == [Status.CONVERGED] * 2
    assert torch.equal(after.q[1], state.q[1]) and after.time[1] == 0
    # different sets of rows still iterate: rounding
    assert (after.q[[0, 2]] - good.q[[0, 2]]).abs().max() < 1e-12
    with pytest.raises(SimulationError, match="robot 1"):
        rule.step(model, state, control, throw=True)


def test_rows_are_bitwise_independent():
    """Give the same bits for a robot whatever the values of the others are, while all of them iterate."""
    model = rod()
    state = model.initial_state(batch=3)
    rule = ImplicitEuler(0.01, max_iterations=1, relative_tolerance=0.0, force_tolerance=1e-300)
    rule.max_iterations = 2
    other = bent()
    other.natural_curvature[1] *= -1.5
    results = []
    for control in (bent(), other):
        start = model.start_step(state, control)
        balance = StepEquations(model, rule.scheme, start, state.q, getattr(rule, "dt", 0.0))
        x = state.q[:, model.unknowns.index]
        residual, values = balance.residual_and_matrix(x)
        direction = model.solvers.of(3).factor(values).solve(-residual)
        results.append((residual, values.t(), balance.advanced(x, direction)))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first[[0, 2]], second[[0, 2]])
        assert not torch.equal(first[1], second[1])


def test_a_rollout_goes_on_without_a_failed_robot():
    """Keep the failed robot's last good state and its status, and step the others to the end."""
    model = rod()
    rule = ImplicitEuler(0.01, max_iterations=8)
    state = model.initial_state(batch=3, velocity=broken(model))
    trajectory = rollout(model, state, rule, steps=5)
    assert (trajectory.status[1:, 1] != Status.CONVERGED).all()
    assert (trajectory.status[:, [0, 2]] == Status.CONVERGED).all()
    assert torch.equal(trajectory.positions[-1, 1], trajectory.positions[0, 1])
    assert (trajectory.positions[-1, [0, 2]] - trajectory.positions[0, [0, 2]]).abs().max() > 1e-3


def test_substeps_rescue_a_robot():
    """Take a step that fails in several parts, for the robot that needs it."""
    model = rod()
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, 1:63:3] = torch.linspace(0, 40, 21, dtype=torch.float64)
    state = model.initial_state(batch=3, velocity=velocity)
    strict = {"max_iterations": 4, "force_tolerance": 1e-6}
    _, info = ImplicitEuler(0.05, **strict).step(model, state)
    assert info.status[1] != Status.CONVERGED and info.converged[[0, 2]].all()
    after, info = ImplicitEuler(0.05, max_substeps=64, **strict).step(model, state)
    assert info.converged.all()
    assert info.substeps[1] > 1 and info.substeps[[0, 2]].tolist() == [1, 1]
    assert torch.allclose(after.time, torch.full((3,), 0.05, dtype=torch.float64))


def test_parts_that_did_not_help_are_reported():
    """Say of a robot that failed in all parts how many were tried, and the iterations of all of them."""
    model = rod()
    rule = {"max_iterations": 8}
    state = model.initial_state(batch=3, velocity=broken(model))
    _, once = ImplicitEuler(0.01, **rule).step(model, state)
    after, info = ImplicitEuler(0.01, max_substeps=4, **rule).step(model, state)
    assert info.substeps.tolist() == [1, 4, 1] and info.status[1] == once.status[1] != Status.CONVERGED
    assert info.iterations[1] > once.iterations[1]
    assert torch.equal(after.q[1], state.q[1])

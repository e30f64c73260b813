"""Where a step fails by what its caller set, that is named."""

import math
import warnings

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    Status,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.errors import FailureWarning
from torchdismech.integrate import static

DT = 0.01


class Below(forces.LocalForce):
    """A force that is no number where the last node has fallen by 1 cm."""

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return a small spring, or NaN."""
        x = state.positions
        return torch.where(x[:, -1:, 2:] < -0.01, torch.nan, -1e-3 * x)


def rod(*more):
    """Return a rod that is held at one end and hangs."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 11), Circle(5e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    for force in (forces.Gravity((0, 0, -9.81)), *more):
        builder.add_force(force)
    return builder.finalize()


def fields(model):
    """Return controls that set what the model has already, for two robots, by the name of what they set."""
    state = model.initial_state(2)
    return {
        "natural_curvature": model.natural_strains(2).natural_curvature.expand(2, -1, -1),
        "force": torch.zeros_like(state.q),
        "clamped_q": state.q,
        "pose": model.rest_poses.expand(2, -1, -1),
        "values['Gravity.acceleration']": torch.tensor([[0, 0, -9.81]] * 2, dtype=torch.float64),
    }


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("name", fields(rod()))
def test_controls_that_are_not_finite_are_named(name, number):
    """Name the field, the robot and the time, once, where it becomes NaN in the third step."""
    model = rod()
    own = fields(model)[name]

    def schedule(time, _):
        value = own.clone()
        if float(time[0]) > 2.5 * DT:
            value[1].view(-1)[5 if name == "force" else 2] = number  # where it is read: of node 1, of node 0
        given = {"values": {"Gravity.acceleration": value}} if "values" in name else {name: value}
        return Control(**given)

    said = "NaN" if math.isnan(number) else "an infinite number"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = rollout(model, model.initial_state(2), ImplicitEuler(DT), 5, schedule=schedule)
    assert run.status[-1].tolist() == [Status.CONVERGED, Status.NOT_FINITE]
    named = [str(w.message) for w in heard if f"Control.{name} of robot 1 at t = 0.03 s holds {said}" in str(w.message)]
    assert len(named) == 1 and len(heard) == 2  # the other one is that of the run


def test_several_steps_name_the_control_too():
    """Name the control of the step that failed among several that were asked for at once."""
    model = rod()
    good = Control(force=torch.zeros_like(model.initial_state().q))
    bad = Control(force=good.force * math.nan)
    with pytest.warns(RuntimeWarning, match="Control.force of robot 0 at t = 0.03 s holds NaN"):
        _, info = ImplicitEuler(DT).steps(model, model.initial_state(), 4, [good, good, bad, bad])
    assert info.status.tolist() == [Status.NOT_FINITE]


def test_one_number_for_all_robots_is_looked_at():
    """Report a step that fails where a control sets one number for all, and name that one if it is none."""
    model, short = rod(), ImplicitEuler(DT, max_iterations=1)
    one = torch.as_tensor(1e-4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = short.step(model, model.initial_state(2), Control(values={"bend_twist.EI1": one}))
    assert not bool(info.converged.any())
    with pytest.warns(RuntimeWarning, match=r"Control.values\['bend_twist.EI1'\] of robot 0 at t = 0.01 s holds NaN"):
        short.step(model, model.initial_state(2), Control(values={"bend_twist.EI1": math.nan * one}))


def test_controls_that_a_robot_never_met_are_not_blamed():
    """Say nothing of a control after the step in which a robot failed, also where recordings take several at once."""
    model, integrator = rod(), ImplicitEuler(DT)
    force = torch.zeros_like(model.initial_state(2).q)
    state, good = model.initial_state(2), Control(force=force)
    for _ in range(20):  # then steps are recorded
        state, _ = integrator.step(model, state, good)
    hard, ended = force.clone(), force.clone()
    hard[0, 30:33], ended[0] = 1e6, math.nan  # N, on the last node
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        after, _ = integrator.steps(
            model, state, 6, [good, good, Control(force=hard), good, Control(force=ended), good]
        )
    assert (after.time - state.time).tolist() == pytest.approx([2 * DT, 6 * DT], abs=1e-12)  # sums of steps
    assert not [str(warning.message) for warning in heard if "NaN" in str(warning.message)]


def test_what_no_clamp_holds_is_not_read():
    """Say nothing of NaN in `clamped_q` at free dofs, which are not read, where a step fails for another reason."""
    model = rod()
    state = model.initial_state()
    led = torch.full_like(state.q, math.nan)
    led[:, model.body.clamped.dofs] = state.q[:, model.body.clamped.dofs]
    short = ImplicitEuler(DT, max_iterations=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = short.step(model, state, Control(clamped_q=led))
    assert not bool(info.converged.any())


def test_a_force_that_ends_during_the_search_is_named():
    """Name a user's force that is NaN where the step leads, though the search ends for want of iterations."""
    integrator = ImplicitEuler(DT, max_iterations=10)
    with pytest.warns(RuntimeWarning, match="Below: its force on node 0 along x is nan, where positions and velo"):
        run = rollout(rod(Below()), rod().initial_state(), integrator, 15)
    assert run.status[-1].tolist() in ([Status.MAX_ITERATIONS], [Status.LINE_SEARCH_FAILED])


def turned(angle, axis):
    """Return the pose (1, 1, 7) of a clamp at the origin, turned by an angle about an axis."""
    half = 0.5 * angle
    turn = [math.cos(half), *(math.sin(half) * float(axis == k) for k in "xyz")]
    return torch.tensor([[[0.0, 0.0, 0.0, *turn]]], dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
def test_steps_fail_within_checkpoints_as_without():
    """Keep the search for the cause out of the checkpoint, which took its steps once more within it and raised."""
    model = rod(forces.Gravity((0.0, 0.0, -9.81)), Below())
    gradients = []
    for checkpoint_every in (None, 2):
        push = torch.zeros(1, model.n_dofs, dtype=torch.float64, requires_grad=True)
        fails = ImplicitEuler(DT, max_iterations=1)
        run = unroll(model, model.initial_state(velocity=push), fails, 3, checkpoint_every=checkpoint_every)
        assert run.status.tolist() == [int(Status.MAX_ITERATIONS)]
        gradients += torch.autograd.grad(run.state.velocity.sum(), [push])
    assert torch.equal(*gradients)  # both pass unchanged through the steps that failed


@pytest.mark.parametrize(
    "pose",
    [
        turned(math.pi, "z"),
        turned(math.pi, "y"),
        turned(0.99 * math.pi, "z"),
        torch.eye(7, dtype=torch.float64)[None, 6:],
    ],
    ids=["about z", "about y", "nearly", "identity as (x, y, z, w)"],
)
def test_half_turns_of_a_clamp_are_named(pose):
    """Name the clamp, and the order of quaternions, where a step that turns it by half a turn fails."""
    model, integrator = rod(), ImplicitEuler(DT, max_iterations=2)  # so that the step of a bit less fails, too
    with pytest.warns(RuntimeWarning, match=r"clamp 0 of robot 0 turns by 1[78]\d degrees .* are \(w, x, y, z\)"):
        integrator.step(model, model.initial_state(), Control(pose=pose))


@pytest.mark.parametrize("integrator", [ImplicitEuler(DT), Static()])
def test_tendons_that_are_pulled_in_whole_are_named(integrator):
    """Name a tendon that a control pulls in by more than it is long, where a step fails."""
    model = rod(Tendons([AtNodes(range(11), (0, 0, 0.01))], pull=0.0, stiffness=1e3))
    with pytest.warns(
        RuntimeWarning, match=r"values\['Tendons.pull'\]: tendon 0 is to be pulled in by 5 m, and is 0.3 m"
    ):
        integrator.step(model, model.initial_state(), Control(values={"Tendons.pull": torch.tensor(5.0).double()}))


def test_far_turns_of_a_robot_with_a_corner_are_named(monkeypatch):
    """Name the clamp where an equilibrium is not found in one step.

    All robots that fail find it in parts of the one step.
    """
    builder = RobotBuilder()
    points = np.array([[0, 0, 0], [0.05, 0, 0], [0.1, 0, 0], [0.1, 0.05, 0], [0.1, 0.1, 0]])
    builder.add_rod(points, Circle(2e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize(compile=False)
    axes = torch.nn.functional.normalize(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double(), dim=1)
    poses = model.rest_poses.repeat(20, 1, 1)
    poses[:, 0, 3:] = torch.cat([torch.full((20, 1), math.cos(1.25)).double(), math.sin(1.25) * axes], dim=1)
    state, control = model.initial_state(20), Control(pose=poses)
    with monkeypatch.context() as patch:
        patch.setattr(static, "MOST_PARTS", 1)
        with pytest.warns(RuntimeWarning, match=r"turns by 1\d\d degrees in this step, where corners .*load_steps"):
            _, whole = Static(max_iterations=100).step(model, state, control)
    assert 0 < int(whole.converged.sum()) < 20
    _, parts = Static().step(model, state, control)
    assert parts.converged.all()
    assert (parts.substeps[whole.converged] == 1).all() and (parts.substeps[~whole.converged] > 1).any()
    after, info = Static(load_steps=2).step(model, state, control, throw=True)
    held = sum(energy.abs().max() for name, energy in model.energies(after).items() if name != "kinetic")
    assert held < 1e-12  # J; bent by a radian it holds some 1e-5


def test_small_turns_are_not_blamed():
    """Say nothing of a clamp that turns by half a right angle in a step that fails."""
    model = rod()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = ImplicitEuler(DT, max_iterations=1).step(
            model, model.initial_state(), Control(pose=turned(math.pi / 4, "z"))
        )
    assert not bool(info.converged.any())


@pytest.mark.parametrize("field", ["pose", "clamped_q"])
def test_jumps_of_a_clamp_are_named(field):
    """Name the clamp that is moved by more than the robot's length in a step that fails, and how far, in its batch."""
    model = rod()
    state = model.initial_state(2)
    given = {"pose": model.rest_poses.repeat(2, 1, 1), "clamped_q": state.q.clone()}[field]
    given[1].view(-1)[0] += 100.0
    said = "clamp 0 of robot 1 moves by 100 m in this step, and the robot is 0.3 m long: move it in more steps"
    with pytest.warns(RuntimeWarning, match=said):
        _, info = ImplicitEuler(DT).step(model, state, Control(**{field: given}))
    assert info.converged.tolist() == [True, False]


@pytest.mark.parametrize(
    ("field", "place", "named"),
    [
        ("q", (1, 5), r"State.q of robot 1 \(z of node 1\) holds NaN"),
        ("velocity", (0, 0), r"State.velocity of robot 0 \(x of node 0\) holds NaN"),
        ("time", (1,), "State.time of robot 1 holds NaN"),
    ],
)
def test_a_run_from_a_state_with_nan_says_where_it_is(field, place, named):
    """Name the number before the first step, and let the other robot go on."""
    model = rod()
    state = model.initial_state(2)
    value = getattr(state, field).clone()
    value[place] = torch.nan
    with pytest.warns(FailureWarning), pytest.warns(RuntimeWarning, match=named):
        run = rollout(model, state.replace(**{field: value}), ImplicitEuler(1e-2), 2)
    assert run.status[-1].eq(int(Status.NOT_FINITE)).tolist() == [place[0] == robot for robot in (0, 1)]

"""BDF2: order, damping, gradients, refusals."""

import math
import warnings

import h5py
import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    Trajectory,
    TrajectoryWriter,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.robot.state import State

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


@pytest.mark.parametrize("relaxation_time", [0.0, 5e-3, 5e-2])
def test_a_sudden_load_pulls_the_way_it_acts(relaxation_time):
    """Twist a rod by a moment from the first step on, in steps far longer than its twisting takes.

    The first steps begin with an acceleration that turns a free edge by some thousand rad in a step.
    """
    moment = 1e-3  # N m
    builder = rod_through(
        straight((0, 0, 0), (0.2, 0, 0), 11),
        Circle(4e-3),
        Material(1e6, 1000.0, relaxation_time=relaxation_time),
        [forces.PointMoment((moment, 0, 0), nodes=[10])],
        held="end",
    )
    model = builder.finalize()
    run = rollout(model, model.initial_state(), BDF2(2e-2), 20)
    assert not run.failed.any()
    angle = run.twist[:, 0, 9]
    at_rest = moment * 0.19 / (1e6 / 3 * math.pi / 2 * 4e-3**4)  # at the middle of the last edge; GJ with G = E / 3
    assert (angle[1:] > 0).all()
    assert angle.max() < 1.6 * at_rest
    # the slowest decay, with 0.05 s over 0.4 s, leaves exp(-8)
    assert float(angle[-1]) == pytest.approx(at_rest, rel=1e-2)


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


def by_thrown(model, state, velocity):
    """Return robots thrown by the model."""
    return model.thrown(state, velocity=velocity)


def by_hand(model, state, velocity):
    """Return robots whose velocity is replaced."""
    of_nodes = velocity[:, None].expand(-1, model.body.n_nodes, -1).flatten(1)
    rest = state.velocity[:, of_nodes.shape[1] :]
    return model.accelerated(state.replace(velocity=torch.cat([of_nodes, rest], 1)))


@pytest.mark.parametrize("throw", [by_thrown, by_hand])
def test_thrown_robots_begin_anew(throw):
    """Throw a robot of two after some steps: it flies as from its beginning, and the other one flies on as it did."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0))
    model, rule = builder.finalize(), BDF2(1e-3, **TIGHT)
    state = model.thrown(model.initial_state(2), velocity=[[0.0, 0.5, 0.0], [0.0, 0.0, 0.3]])
    for _ in range(10):
        state, _ = rule.step(model, state, throw=True)
    velocity = state.node_velocities.mean(1)
    velocity[0] = torch.tensor([0.0, 1.0, 0.0])
    thrown = throw(model, state, velocity)
    anew, gone_on = throw(model, State.of(state), velocity), state
    for _ in range(10):
        thrown, _ = rule.step(model, thrown, throw=True)
        anew, _ = rule.step(model, anew, throw=True)
        gone_on, _ = rule.step(model, gone_on, throw=True)
    assert torch.equal(thrown.q[0], anew.q[0])
    # no force acts: what is left are tolerances of 1e-12 N
    way = thrown.positions[:, :, 1] - state.positions[:, :, 1]
    assert torch.allclose(way[0], torch.tensor(0.01, dtype=torch.float64), rtol=0, atol=1e-9)
    assert torch.allclose(thrown.q[1], gone_on.q[1], rtol=0, atol=1e-9)


def test_a_thrown_row_is_the_robot_alone():
    """Throw one of three swinging rods: it moves as thrown alone, and the others keep every bit."""
    model, integrator = swinging(), BDF2(1e-3, **TIGHT)
    state, _ = integrator.step(model, model.initial_state(3), throw=True)
    spins = torch.zeros(3, 3, dtype=torch.float64)
    spins[1, 1] = 4.0
    moving = model.thrown(state, velocity=(0, 0, 0), angular_velocity=spins).velocity
    changed = torch.where(torch.tensor([[False], [True], [False]]), moving, state.velocity)
    after, _ = integrator.step(model, state.replace(velocity=changed), throw=True)
    calm, _ = integrator.step(model, state, throw=True)
    alone, _ = integrator.step(model, state.rows(slice(1, 2)).replace(velocity=changed[1:2]), throw=True)
    assert torch.equal(after.q[[0, 2]], calm.q[[0, 2]])
    assert torch.allclose(after.q[1], alone.q[0], rtol=0, atol=1e-12)
    assert (after.reached_velocity == after.velocity).all()


def test_files_of_earlier_versions_go_on(tmp_path):
    """Read what BDF2 remembers from a file that does not say which velocity a step ended with."""
    model, rule, path = swinging(), BDF2(1e-3), tmp_path / "run.h5"
    run = rollout(model, model.initial_state(), rule, 5)
    run.save(path)
    with h5py.File(path, "r+") as file:
        for name in ("checksums", "state/reached_velocity", "state/backup/reached_velocity"):
            del file[name]
    expected, _ = rule.step(model, run.state)
    found, _ = rule.step(model, Trajectory.load(path).state)
    assert torch.equal(found.q, expected.q)


def test_runs_are_written_whatever_rule_comes_before_or_after(tmp_path):
    """Write runs from states without history and with it, by either rule, also beside the frames of a run before."""
    model, first, second = swinging(), tmp_path / "first.h5", tmp_path / "second.h5"
    for rule, next_rule in ((BDF2(1e-3), ImplicitEuler(1e-3)), (ImplicitEuler(1e-3), BDF2(1e-3))):
        rollout(model, model.initial_state(), rule, 3, writer=TrajectoryWriter(first))
        before = Trajectory.load(first)
        goes_on = rollout(model, before.state, next_rule, 3, writer=TrajectoryWriter(second, resume=before))
        state = before.state
        for _ in range(3):
            state, _ = next_rule.step(model, state)
        assert torch.equal(goes_on.state.q, state.q) and type(goes_on.state) is type(state)


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
    with warnings.catch_warnings(), pytest.raises(InputError, match=r"one after steps of 0.001 s"):
        warnings.simplefilter("error")  # torch warned of the step's graph beside the refusal
        BDF2(2e-3).step(model, state.replace(step_length=state.step_length.requires_grad_()))
    other, _ = BDF2(2e-3).step(model, model.initial_state())
    with pytest.raises(InputError, match=r"expected a state after steps of 0.001 s, got one after steps of 0.002 s"):
        BDF2(1e-3).step(model, type(state).joined([state, other]))
    own, dofs = model.initial_state(), model.n_dofs
    for others, got in (
        ([state, own], f"TwoStepState of {dofs} dofs in torch.float64, State of"),
        ([own, own.replace(q=own.q[:, 1:])], f"State of {dofs} dofs in torch.float64, State of {dofs - 1} dofs"),
        ([own, own.to(torch.float32)], ".* dofs in torch.float32"),  # was taken for one in double precision
        ([], "none"),
    ):
        with pytest.raises(InputError, match=f"expected one or more states of one kind and robot, got {got}"):
            State.joined(others)
    for number in (0, torch.tensor(0), np.int64(0)):  # was without a batch, and no text
        assert torch.equal(own.rows(number).q, own.q) and "1 robot of" in repr(own.rows(number))
    anew = State(*state.fields()[:7])
    BDF2(2e-3).step(model, anew, throw=True)


def test_a_state_in_single_precision_goes_on_in_double():
    """Take a state after steps of 0.01 s, which single precision rounds, for one after steps of 0.01 s."""
    model = swinging()
    state, _ = BDF2(0.01).step(model, model.initial_state())
    state = state.to(torch.float32).to(torch.float64)
    BDF2(0.01).step(model, state, throw=True)

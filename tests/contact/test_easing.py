"""Friction that is sharp: steps in which feet stick are solved, by easing it in; nodes that do not touch."""

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces, straight
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle
from torchdismech.integrate import easing


def sled(mu, slip=1e-6, nodes=None, push=2e-3):
    """Return a planar rod of three nodes just above a floor that a force at its middle pushes along it."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 3), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.PointForce([1], (push, 0.0, 0.0)))
    coefficient = torch.tensor(mu, dtype=torch.float64)[:, None]
    floor = HalfSpace((0, 0, -2.5e-3), (0, 0, 1))
    builder.add_contact(Obstacle(floor, Barrier(10.0, 5e-4), Friction(coefficient, slip), name="floor", nodes=nodes))
    return builder.finalize()


def slid(model, speed, count=10):
    """Return the state after some steps from a speed along the floor, and the statuses (steps, B)."""
    robots = len(model.obstacles[0].law.friction.coefficient)
    velocity = torch.zeros(model.n_dofs, dtype=torch.float64)
    velocity[:9:3] = speed
    state, integrator, statuses = model.initial_state(robots, velocity=velocity), ImplicitEuler(2e-3), []
    for _ in range(count):
        state, info = integrator.step(model, state)
        statuses.append(info.status)
    return state, torch.stack(statuses)


def test_sharp_friction_stops_and_holds():
    """Solve every step of robots that slide, stop and stick, slip velocities being a nanometre a step."""
    mu = [0.0, 0.3, 0.9]
    model = sled(mu)
    state, statuses = slid(model, 0.05, 40)
    assert (statuses == 0).all()
    speed = state.node_velocities[:, 1, 0]
    mass, weight = float(model.body.node_mass().sum()), float(model.body.node_mass().sum()) * 9.81
    # without friction what the force gives; 2e-3 N are less than the friction of the others
    assert speed[0].item() == pytest.approx(0.05 + 40 * 2e-3 * 2e-3 / mass, rel=1e-6)
    assert 0.3 * weight > 2e-3
    # what sticks creeps, slower than the slip velocity
    assert (speed[1:].abs() < 1e-6).all()


def test_blunt_friction_is_not_eased_in():
    """Leave steps alone whose slip velocity is like the velocities."""
    model = sled([0.3], slip=1e-3)
    state = model.initial_state(velocity=torch.full((model.n_dofs,), 0.05, dtype=torch.float64))
    assert not easing.is_sharp(ImplicitEuler(1e-3).equations(model, state))
    sharp = sled([0.3], slip=1e-6)
    assert easing.is_sharp(ImplicitEuler(1e-3).equations(sharp, state))


def test_with_slip_changes_nothing_else():
    """Multiply slip velocities while the values stand in the model, and nothing else."""
    model = sled([0.3], slip=1e-3)
    friction = model.obstacles[0].law.friction
    coefficient = friction.coefficient
    with model.contact.with_slip(100.0).in_place():
        assert friction.slip_velocity.item() == pytest.approx(0.1) and friction.coefficient is coefficient
    assert friction.slip_velocity.item() == 1e-3


def test_nodes_that_do_not_touch_pass_through():
    """Let the named nodes alone bear the robot."""
    model = sled([0.0], nodes=[0, 2], push=1e-9)
    state, statuses = slid(model, 0.0, 30)
    heights = state.positions[0, :, 2]
    assert (statuses == 0).all() and heights[0] > -5e-4 and heights[2] > -5e-4
    assert heights[1] < -6e-4  # the middle sags below the floor, which is at -5e-4 for it
    other = sled([0.0], nodes=[1], push=1e-9)
    assert (other.obstacles[0].gap(state.q, state.time)[0] < 1).tolist() == [False, True, False]
    for wrong in ([3], [-1], []):
        with pytest.raises(InputError, match="Obstacle.nodes: expected indices 0 to 2"):
            sled([0.0], nodes=wrong)

"""Friction that is sharp: steps in which feet stick are solved, by easing it in; nodes that do not touch."""

import dataclasses

import pytest
import torch

from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, RobotBuilder, Status, forces, straight
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle, Penalty
from torchdismech.integrate.search import easing
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.solve.search import NewtonOptions


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


def test_with_slip_changes_nothing_else():
    """Multiply slip velocities while the values stand in the model, and nothing else."""
    model = sled([0.3], slip=1e-3)
    friction = model.obstacles[0].law.friction
    coefficient = friction.coefficient
    with model.contact.with_slip(torch.full((1, 1), 100.0, dtype=torch.float64)).in_place():
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


def test_a_rod_that_buckles_onto_a_rough_floor():
    """Solve each step of a rod that is lowered onto a floor in one part, sharp as its friction is.

    In the fifth step neither Newton's method nor friction that is eased in found the root of one that buckled there.
    """
    builder, nodes = RobotBuilder(), 24
    builder.add_rod(straight((0, 0, 0.303), (0, 0, 0.003), nodes), Circle(2e-3), Material(3e4, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.PointForce([nodes - 1], (2e-5, 1e-5, 0)))
    law = Penalty(200.0, 5e-4)
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), law, Friction(0.5, 1.5e-4), name="floor"))
    model = builder.finalize()
    state, integrator = model.initial_state(), ImplicitEuler(9e-3)
    held = state.q.clone()
    for _ in range(7):
        held[:, [2, 5]] -= 0.3 * 9e-3
        state, _ = integrator.step(model, state, Control(clamped_q=held.clone()), throw=True)
    bent = state.positions[0, :, :2].abs().max()
    assert float(bent) > 1e-3


def test_a_stage_that_fails_is_taken_in_shorter_ones(monkeypatch):
    """End at the root of the own slip velocity by shorter stages where long ones fail, each robot by its own."""
    model = sled([0.3, 0.9])
    velocity = torch.zeros(model.n_dofs, dtype=torch.float64)
    velocity[:9:3] = 0.05
    state = model.initial_state(2, velocity=velocity)
    for _ in range(6):
        state, _ = ImplicitEuler(2e-3).step(model, state, throw=True)
    equations = ImplicitEuler(2e-3).equations(model, state)
    options = NewtonOptions(equations.solver(), model.unknowns.residual_weight(), torch.full((2,), 1e-9).double(), 50)
    first, both = first_iterate(equations, True), torch.tensor([True, True])
    expected = easing.eased_newton(equations, first, options, both)
    assert (expected.status == Status.CONVERGED).all()
    friction, solve, longest = model.obstacles[0].law.friction, easing.newton, torch.tensor([4.0, 20.0])
    solved, stages = torch.full((2,), 1e5).double(), torch.zeros(2)

    def failing(equations, x, options, running):
        """Fail where the slip velocity falls by too much at once; the first stage is free to begin anywhere."""
        root, factor = solve(equations, x, options, running), friction.slip_velocity.flatten() / 1e-6
        far = running & (solved / factor > longest) & (solved < 1e5)
        solved[:] = torch.where(running & ~far, factor, solved)
        stages[:] += running
        return dataclasses.replace(root, status=torch.where(far, int(Status.LINE_SEARCH_FAILED), root.status))

    monkeypatch.setattr(easing, "newton", failing)
    found = easing.eased_newton(equations, first, options, both)
    assert (found.status == Status.CONVERGED).all() and stages[0] > 10 and stages[1] == 5
    # m: what Newton's method leaves, 1e-9 N, over inertia
    assert float((found.x - expected.x).abs().max()) < 1e-11

    def hopeless(equations, x, options, running):
        """Fail at slip velocities near the own one."""
        root, near = solve(equations, x, options, running), (friction.slip_velocity < 1e-5).flatten()
        return dataclasses.replace(root, status=torch.where(near, int(Status.LINE_SEARCH_FAILED), root.status))

    monkeypatch.setattr(easing, "newton", hopeless)
    lost = easing.eased_newton(equations, first, options, torch.tensor([True, False]))
    # stages of other slip velocities were solved: that is no root
    assert lost.status.tolist() == [int(Status.LINE_SEARCH_FAILED), int(Status.CONVERGED)]

    def unbegun(equations, x, options, running):
        """Fail at every slip velocity."""
        stages[:] += running
        root = solve(equations, x, options, running)
        return dataclasses.replace(root, status=torch.where(running, int(Status.LINE_SEARCH_FAILED), root.status))

    monkeypatch.setattr(easing, "newton", unbegun)
    for briefly in (True, False):
        stages[:] = 0
        found = easing.eased_newton(equations, first, options, both, briefly)
        # else a second beginning, and after relaxed steps, which find one, stages nearer and nearer to it
        assert (stages == 1).all() if briefly else (stages > 2).all()
        assert (found.status != Status.CONVERGED).all()

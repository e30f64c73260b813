"""Equilibria and motions against an independent implementation, its arrays loaded."""

import json

import numpy as np
import pytest
import torch

from tests.reference.loading import hinge_order, load, reference_model, tensor
from tests.reference.paper_midedge import with_paper_midedge
from torchdismech import Control, ImplicitEuler, Static, forces
from torchdismech.integrate.equations import StepEquations


def gravity_of(data) -> forces.Gravity:
    """Return the file's gravity as an acceleration."""
    n = 3 * len(data["nodes0"])
    return forces.Gravity((data["Fg"].reshape(-1)[:n] / data["massVec"].reshape(-1)[:n]).reshape(-1, 3)[-1])


def relative_error(positions, data, frame=-1) -> float:
    """Return the largest difference of the nodes over the size of the motion."""
    motion = np.abs(data["X"] - data["nodes0"]).max()
    return float(np.abs(np.asarray(positions) - data["X"][frame]).max() / motion)


def solved(model, steps=1, control=None):
    """Return the static equilibrium; the residual is driven to the rounding level, as in the files."""
    state = model.initial_state()
    state, info = Static(load_steps=steps, force_tolerance=1e-12, relative_tolerance=1e-12).step(
        model, state, control, throw=True
    )
    return state.positions[0]


@pytest.mark.parametrize("name", ["rodCantilever", "rodCantilever_E2e10"])
def test_cantilever(name):
    """Match the planar cantilever under its weight, soft and stiff."""
    data = load(name)
    model = reference_model(data, forces=[gravity_of(data)], planar=True, clamped=data["fixedDOF"])
    # 1e-6 of the motion: the file's own convergence
    assert relative_error(solved(model), data) < 1e-6


@pytest.mark.parametrize("name", ["pneunet_quarter", "pneunet_half", "pneunet_force175_7_quarter"])
def test_pneunet(name):
    """Match an actuator that its natural curvature bends, with and without a force at its tip."""
    data = load(name)
    env = json.loads(str(data["meta_json"]))["params"]["env"]
    tip = forces.PointForce([int(env["ptForce_node"]) - 1], np.array(env["ptForce"]).reshape(-1)[:3])
    model = reference_model(data, forces=[gravity_of(data), tip], planar=True, clamped=data["fixedDOF"])
    assert relative_error(solved(model), data) < 1e-6


class LaggedResistive(forces.Resistive):
    """The file's scheme: present tangents, but the velocity of the step before."""

    def forward(self, state, control):
        """Return the force at the velocity of the step before."""
        return super().forward(state.replace(velocity=self.before.expand_as(state.q)), control)

    def derivatives(self, state, control):
        """Return the derivative by the tangents only."""
        by_q, (_, by_velocity) = super().derivatives(state.replace(velocity=self.before.expand_as(state.q)), control)
        return [by_q, (None, torch.zeros_like(by_velocity))]


def snake_errors(force) -> list[float]:
    """Return the relative errors of the snake at the file's times under a resistive force."""
    data = load("snake_n21")
    force.before = torch.zeros(1, dtype=torch.float64)
    model = reference_model(data, forces=[force])
    state = model.initial_state()
    integrator = ImplicitEuler(0.01, force_tolerance=1e-13, relative_tolerance=1e-12)
    spring = np.arange(19)
    errors = []
    for step in range(1, 201):
        # a travelling wave: 0.05 rad per node, one wave along the body, 1 Hz, taken at the start of the step
        wave = 0.05 * np.cos(2 * np.pi * (spring / 18 - 0.01 * (step - 1)))
        control = Control(natural_curvature=tensor(np.stack([np.zeros(19), wave], 1))[None])
        force.before = state.velocity
        state, _ = integrator.step(model, state, control, throw=True)
        frame = np.flatnonzero(np.abs(data["t"] - 0.01 * step) < 1e-6)
        if len(frame):
            errors.append(relative_error(state.positions[0], data, frame[0]))
    # the last wave is the file's
    assert np.abs(wave - data["end_bt_kappaBar"][:, 1]).max() < 1e-12
    assert len(errors) == len(data["t"])
    return errors


def test_snake_with_the_file_s_lagged_velocity():
    """Match the swimming snake for 200 steps."""
    # 1e-6 of the motion; the file's residuals of 1e-10 N add up to 6e-7 over 200 steps
    assert max(snake_errors(LaggedResistive(0.01, 0.1))) < 1e-6


def test_snake_with_the_present_velocity():
    """Stay near the file when the force sees the velocity at the end of the step, as it should."""
    errors = snake_errors(forces.Resistive(0.01, 0.1))
    # lagging the velocity by one step is an error of order dt: 1.9 % of the motion after 0.1 s, measured
    assert 1e-3 < max(errors) < 0.025


def test_contortion():
    """Match a rod whose ends are pushed together, then twisted: buckling, its branch chosen by gravity.

    A step of implicit Euler in which a rod buckles has several roots. The reference leaves the straight one in the
    first step, this library two steps later (`integrator.minima` is False of these); from there on both sink into the
    same shape, and what is left of the difference falls tenfold in 50 ms: it is 4e-5 at the first frame after the ends
    were pushed together, and 2e-6 at the second.
    """
    data = load("contortion")
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    state = model.initial_state()
    first_twist = 3 * len(data["nodes0"])
    integrator = ImplicitEuler(0.01, force_tolerance=1e-12, relative_tolerance=1e-12, max_substeps=8)
    errors, buckled = [], []
    for step in range(1, 101):
        time = 0.01 * step
        target = model.initial_state().q.clone()
        target[0, 0:9:3] += 0.1 * min(time, 0.15)  # nodes 0, 1, 2 move along x for 0.15 s,
        target[0, first_twist : first_twist + 2] = 2.0 * max(time - 0.15, 0.0)  # then edges 0, 1 turn
        state, _ = integrator.step(model, state, Control(clamped_q=target), throw=True)
        frame = np.flatnonzero(np.abs(data["t"] - time) < 1e-6)
        if len(frame):
            errors.append(relative_error(state.positions[0], data, frame[0]))
            buckled.append(time > 0.15)
    assert len(errors) == len(data["t"])
    first, *later = np.array(errors)[buckled]
    assert first < 1e-4 and max(later) < 1e-5 and len(later) > 15


@pytest.mark.parametrize("name", ["squarePlate_m4_hinge", "shellCantilever_hinge_eq20"])
def test_plates_of_hinges(name):
    """Match a plate held at its sides and a cantilever plate under their weight."""
    data = load(name)
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    assert relative_error(solved(model), data) < 1e-6


def steps_of(model, data, dt, count):
    """Yield the relative errors at the file's times of steps from rest."""
    state = model.initial_state()
    integrator = ImplicitEuler(dt, force_tolerance=1e-13, relative_tolerance=1e-12)
    for step in range(1, count + 1):
        state, _ = integrator.step(model, state, throw=True)
        frame = np.flatnonzero(np.abs(data["t"] - dt * step) < 1e-9)
        if len(frame):
            yield relative_error(state.positions[0], data, frame[0])


def test_a_falling_plate_of_hinges():
    """Match a soft plate that falls, held at one side."""
    data = load("x_plate_hinge_dynamic")
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    errors = list(steps_of(model, data, 0.005, 20))
    assert len(errors) == len(data["t"]) and max(errors) < 1e-6


@pytest.mark.parametrize("load_steps", [1, 2, 5, 20])
def test_a_plate_of_mid_edge_normals_that_are_held(load_steps):
    """Sink by the same amount however many steps the load takes: held normals do not slide."""
    data = load("squarePlate_m4_midedge")
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    # the papers' bending with its clamps fixed in space gives this number; deflections are 1e-5 of the side
    assert solved(model, load_steps)[:, 2].min().item() == pytest.approx(-9.791460e-7, rel=1e-6)


def test_the_papers_plate_whose_clamps_slide():
    """Match the file of the papers' scheme, whose clamps slide in both of its load steps."""
    data = load("squarePlate_m4_midedge")
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    assert relative_error(solved(with_paper_midedge(model, data), 2), data) < 1e-6


def test_the_papers_falling_plate_of_mid_edge_normals():
    """Match the file of the papers' scheme for a soft plate that falls."""
    data = load("x_plate_midedge_dynamic")
    model = reference_model(data, forces=[gravity_of(data)], clamped=data["fixedDOF"])
    errors = list(steps_of(with_paper_midedge(model, data), data, 0.005, 6))
    assert len(errors) == len(data["t"]) and max(errors) < 1e-6


def test_the_swimming_ray():
    """Match a ray of hinges whose centre line is actuated, with buoyancy and drag, for its 104 steps."""
    data = load("stingRay_n4")
    model = reference_model(data, forces=[gravity_of(data), forces.Drag(1000.0, 0.5)])
    order, signs = hinge_order(model, data["hinge_nodes"])
    # The file keeps the last angles only. They, and the motion, are those of a wave of 3.384 Hz along the centre line
    # from the front hinge on, a sixth of a turn later from hinge to hinge, taken at the start of each step.
    ours = [int(np.flatnonzero(order == hinge)[0]) for hinge in (18, 34, 9, 14)]
    state = model.initial_state()
    integrator = ImplicitEuler(0.001, force_tolerance=1e-11, relative_tolerance=1e-11)
    errors = []
    for step in range(1, 105):
        phase = np.pi / 2 + np.arange(4) * np.pi / 3 - 2 * np.pi * 3.384 * 0.001 * (step - 1)
        wave = -np.pi / 4 * (1 + np.sin(phase))
        angles = model.natural_strains(1).natural_hinge_angle.clone()
        angles[0, ours] = tensor(wave * signs[ours])
        state, _ = integrator.step(model, state, Control(natural_hinge_angle=angles), throw=True)
        frame = np.flatnonzero(np.abs(data["t"] - 0.001 * step) < 1e-9)
        if len(frame):
            errors.append(relative_error(state.positions[0], data, frame[0]))
    assert np.abs(wave - data["end_hinge_thetaBar"][[18, 34, 9, 14]]).max() < 1e-9  # the frequency's last digit
    assert len(errors) == len(data["t"]) and max(errors) < 1e-6


class DoubledDrag(forces.Drag):
    """The file's drag: the right force, its matrix twice too large."""

    def derivatives(self, state, control):
        """Return twice the derivatives."""
        doubled = super().derivatives(state, control)
        return [tuple(None if block is None else 2 * block for block in pair) for pair in doubled]


def parachute_errors(stopped_early: bool) -> list[float]:
    """Return the largest differences [m] of the nodes at the file's times.

    The file's Newton's method, slowed down by the matrix of its drag, was stopped by the size of its last step. Those
    same iterations are taken here, or as many as a solution needs.
    """
    data = load("parachute_shipped")
    # its joints have no stiffness: the sides of triangles at them have no say
    drag = forces.Drag(1.0, 10.0)
    model = reference_model(data, forces=[gravity_of(data), drag], joints="pinned")
    if stopped_early:
        drag.__class__ = DoubledDrag  # not before: a model refuses a force whose matrix is wrong
    integrator = ImplicitEuler(0.01)
    state = model.initial_state()
    errors = []
    for step in range(1, 41):
        if stopped_early:
            balance = StepEquations(model, integrator.scheme, model.start_step(state), state.q, integrator.dt)
            x = state.q[:, model.unknowns.index]
            for _ in range(int(data["newton_iters"][step - 1])):
                residual, values = balance.residual_and_matrix(x)
                x = x - model.solvers.of(1).factor(values).solve(residual)
            state = balance.state_after(balance.full(x))
        else:
            state, _ = integrator.step(model, state, throw=True)
        frame = np.flatnonzero(np.abs(data["t"] - 0.01 * step) < 1e-6)
        if len(frame):
            errors.append(np.abs(state.positions[0].numpy() - data["X"][frame[0]]).max())
    assert len(errors) == len(data["t"])
    return errors


def test_the_falling_parachute_as_its_file_was_solved():
    """Match a canopy on ropes with a payload for 0.4 s, with the file's own iterations."""
    assert max(parachute_errors(stopped_early=True)) < 4e-6  # m, of 0.7 m that it falls


def test_the_falling_parachute_solved():
    """Find how far the file's early stops led it astray: 0.7 mm, of 0.7 m that it falls."""
    errors = parachute_errors(stopped_early=False)
    assert errors[0] < 1e-7 and 5e-4 < errors[-1] < 8e-4

"""Order of convergence in time, and what each integrator conserves."""

import functools
import math

import pytest
import torch

from tests import shells
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    forces,
    modes,
    rollout,
    straight,
)

TIGHT = {"force_tolerance": 1e-12, "relative_tolerance": 1e-12}
INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark}


def coarse_rod(clamped=True, loads=()):
    """Return a soft rod of 6 nodes, whose modes a time step of a few ms resolves."""
    points, held = straight((0, 0, 0), (0.5, 0, 0), 6), "edge" if clamped else "not"
    return rod_through(points, Circle(0.02), Material(2e4, 1000.0), loads, held, stiffness={"EA": 2e1}).finalize()


def bending_wave(time, model):
    """Return natural curvatures that grow smoothly from zero."""
    kappa = torch.zeros(len(time), len(model.springs), 2, dtype=time.dtype)
    kappa[..., 0] = 0.2 * (1 - torch.cos(2 * math.pi * time / 0.4))[:, None]
    kappa[..., 1] = 0.1 * time[:, None] ** 2
    return Control(natural_curvature=kappa)


@functools.cache
def final_positions(integrator, steps, schedule):
    """Return the nodes after 0.2 s."""
    model = coarse_rod(loads=[forces.Gravity((0, 0, -2.0)), forces.Resistive(0.1, 0.3)])
    rule = INTEGRATORS[integrator](0.2 / steps, **TIGHT)
    trajectory = rollout(model, model.initial_state(), rule, steps, schedule, every=steps, throw=True)
    return trajectory.positions[-1]


@pytest.mark.parametrize(("integrator", "order"), [("euler", 1), ("midpoint", 2), ("newmark", 2)])
@pytest.mark.parametrize("schedule", [pytest.param(None, marks=pytest.mark.slow), bending_wave])
def test_order_in_time(integrator, order, schedule):
    """Halve the step and quarter (halve, for implicit Euler) the error."""
    reference = final_positions("midpoint", 500, schedule)
    counts = (25, 50, 100)
    errors = [(final_positions(integrator, n, schedule) - reference).abs().max().item() for n in counts]
    orders = [math.log2(a / b) for a, b in zip(errors, errors[1:], strict=False)]
    # not yet asymptotic at the coarsest step; the reference's own error is 1/25 of the finest second-order one
    assert all(order - 0.15 < found < order + 0.25 for found in orders), (errors, orders)


@pytest.mark.parametrize("integrator", [ImplicitMidpoint, Newmark, BDF2])
def test_order_in_time_of_a_damped_material(integrator):
    """Be of second order where rates of strain resist, too; by differences from a step's start all were of first."""
    material = Material(1e6, 1000.0, 0.4, relaxation_time=0.02)
    loads = [forces.Gravity((0, 0, -9.81))]
    model = rod_through(straight((0, 0, 0), (0.2, 0, 0), 9), Circle(3e-3), material, loads, "edge").finalize()
    ends = []
    for steps in (40, 80, 160):
        run = rollout(model, model.initial_state(), integrator(0.16 / steps, **TIGHT), steps, every=steps, throw=True)
        ends.append(run.positions[-1])
    coarse, fine = ((a - b).abs().max() for a, b in zip(ends, ends[1:], strict=False))
    # 4 ms are 1/5 of the relaxation time: BDF2 has 1.94 there
    assert math.log2(coarse / fine) == pytest.approx(2, abs=0.1)


def test_midpoint_rule_of_a_damped_shell():
    """Come to the same motion as Newmark's method where normals without inertia turn and the material resists that."""
    model = shells.robot("midedge", [forces.Gravity((0, 0, -9.81))], batch=False, relaxation_time=0.02)
    limits = []
    for integrator in (ImplicitMidpoint, Newmark):
        coarse, fine = (
            rollout(model, model.initial_state(), integrator(0.04 / n, **TIGHT), n, every=n, throw=True).positions[-1]
            for n in (20, 40)
        )
        limits.append(fine + (fine - coarse) / 3)  # both are of second order
    # nodes move by 5 mm; 6e-9 m, and 1.2e-6 m where angles at the middle of the step before count as those at its end
    assert (limits[0] - limits[1]).abs().max() < 5e-8


@pytest.mark.parametrize("integrator", ["midpoint", pytest.param("newmark", marks=pytest.mark.slow)])
def test_energy_of_an_undamped_rod(integrator):
    """Keep the total energy of a swinging rod over 300 steps."""
    model = coarse_rod(loads=[forces.Gravity((0, 0, -2.0))])
    state = model.initial_state()

    def total(state):
        weight = -2.0 * (model.body.node_mass() * state.positions[..., 2]).sum()
        return (sum(model.energies(state).values()) - weight).item()

    start = total(state)
    rule, drift, largest = INTEGRATORS[integrator](2e-3, **TIGHT), 0.0, 0.0
    for k in range(300):
        state, _ = rule.step(model, state, throw=True)
        if k % 3:
            continue
        drift = max(drift, abs(total(state) - start))
        largest = max(largest, model.energies(state)["kinetic"].item())
    # oscillates within the O(dt^2) error of the rule, without a trend: measured 0.4 % (midpoint) and 0.5 % (Newmark)
    assert drift < 0.01 * largest


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_linear_momentum_of_a_free_rod(integrator):
    """Keep the momentum of a rod that tumbles and vibrates."""
    model = coarse_rod(clamped=False)
    state = model.initial_state(velocity=tumbling(model))
    mass = model.body.node_mass()[:, None]
    before = (mass * state.node_velocities[0]).sum(0)
    rule = INTEGRATORS[integrator](5e-3, **TIGHT)
    for _ in range(100):
        state, _ = rule.step(model, state, throw=True)
    after = (mass * state.node_velocities[0]).sum(0)
    # residuals of 1e-12 N over 0.5 s
    assert (after - before).abs().max() < 1e-10


def test_angular_momentum_of_a_free_rod():
    """Keep the angular momentum about the origin in the midpoint rule.

    What twisting takes from the nodes goes into the spin of the edges, I dw along their axis, step by step. (Discrete
    elastic rods leave out the gyroscopic force of that spin, so it is the sum of these exchanges that is kept.)
    """
    model = coarse_rod(clamped=False)
    state = model.initial_state(velocity=tumbling(model))
    first_twist = 3 * len(model.nodes)
    mass, inertia = model.body.node_mass()[:, None], model.body.mass[first_twist:]

    def orbital(state):
        return torch.linalg.cross(state.positions[0], mass * state.node_velocities[0]).sum(0)

    before, spin = orbital(state), torch.zeros(3, dtype=torch.float64)
    rule = ImplicitMidpoint(5e-3, **TIGHT)
    for _ in range(100):
        new, _ = rule.step(model, state, throw=True)
        middle, start = model.frames.tangents(0.5 * (state.q + new.q))[0], state.tangent[0]
        axis = (start + middle) / (1 + (start * middle).sum(-1, keepdim=True))  # frames are transported from the start
        exchange = inertia * (new.velocity - state.velocity)[0, first_twist:]
        spin, state = spin + (exchange[:, None] * axis).sum(0), new
    assert spin.norm() > 1e-5 * before.norm()  # twisting does take part
    # exact up to residuals of 1e-12 N over 0.5 s
    assert (orbital(state) + spin - before).norm() < 1e-11 * before.norm()


def test_spin_has_no_gyroscopic_force():
    """Let a spinning shaft that is hinged at its foot fall as one that does not spin; a top would precess.

    What docs/rods.md says of spin holds for as long as this does.
    """
    start = (math.sin(0.3) * 0.2, 0.0, math.cos(0.3) * 0.2)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), start, 5), Circle(0.05), Material(1e9, 1000.0))
    builder.clamp(nodes=[0])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize(compile=False)
    ends = []
    for spin in (0.0, 2000.0):
        state = model.initial_state()
        velocity = state.velocity.clone()
        velocity[:, 3 * len(model.nodes) :] = spin  # rad/s
        state = state.replace(velocity=velocity)
        for _ in range(50):
            state, _ = ImplicitMidpoint(4e-3).step(model, state, throw=True)
        ends.append(state.positions[0, -1])
    # twist of a straight round rod does no work: only rounding tells the two apart
    assert (ends[1] - ends[0]).norm() < 1e-9
    assert float(ends[0][2]) < 0.15  # m, from .19: a top of that spin keeps its height to 1e-3


def tumbling(model):
    """Return velocities (1, n) of a rod that flies, turns and bends."""
    x = model.nodes[:, 0]
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    nodes = velocity[:, : 3 * len(x)].unflatten(1, (-1, 3))
    nodes[0, :, 0] = 0.3
    nodes[0, :, 1] = 0.5 * torch.sin(8 * x)
    nodes[0, :, 2] = 2.0 * x
    return velocity


def test_a_period_of_implicit_euler_loses_what_the_page_says():
    """Swing in the lowest mode, a hundred steps a period, as docs/start.md has it: 18 % are lost in each."""
    model = coarse_rod()
    rest = model.initial_state()
    lowest = modes(model, rest, 1)
    way = 1e-5 * lowest.shape[:, 0] / lowest.shape[:, 0].abs().max()  # so little that the mode stays alone
    start = model.initial_state(q=rest.q + way)
    period = 1 / lowest.frequency[0, 0].item()
    run = rollout(model, start, ImplicitEuler(period / 100, **TIGHT), 300, every=100, throw=True)
    moved = (run.positions - rest.positions)[:, 0, -1].norm(dim=-1)
    # the steps' own period is (2 pi / 100)^2 / 3 longer, which moves the phase and so the loss by less than 1e-3
    loss = 1 - (moved[3] / moved[1]) ** 0.5
    assert loss.item() == pytest.approx(1 - (1 + (2 * math.pi / 100) ** 2) ** -50, abs=1e-3)

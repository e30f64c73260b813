"""Closed forms of beam theory and mechanics."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    helix,
    straight,
)

RADIUS = 5e-3
AREA, SECOND = math.pi * RADIUS**2, math.pi * RADIUS**4 / 4
DYNAMIC = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark}


def cantilever(nodes, youngs=1e6, length=0.5, loads=(), density=1000.0, **options):
    """Return a rod along x clamped at its first edge, whose free length is `length`.

    Beam theory's clamp is at the middle of the clamped edge, whose tangent it fixes: there lies x = 0.
    """
    dl = length / (nodes - 1.5)
    points = straight((-dl / 2, 0, 0), (length, 0, 0), nodes)
    return rod_through(points, Circle(RADIUS), Material(youngs, density), loads, **options).finalize()


def equilibrium(model, **options):
    """Return the nodes (N, 3) at rest under the loads."""
    state, _ = Static(**options).step(model, model.initial_state(), throw=True)
    return state.positions[0].numpy()


def stepped_error(edges: int) -> float:
    """Return the relative error of the tip of a cantilever whose radius is halved in its middle, under a tip load."""
    length, load, youngs, radii = 0.2, 1e-6, 1e8, (4e-3, 2e-3)
    thick, thin = (youngs * math.pi * radius**4 / 4 for radius in radii)
    tip = load / thick * (length**3 - (length / 2) ** 3) / 3 + load / thin * (length / 2) ** 3 / 3
    builder = RobotBuilder()
    radius = torch.tensor(radii, dtype=torch.float64).repeat_interleave(edges // 2)
    builder.add_rod(straight((0, 0, 0), (length, 0, 0), edges + 1), Circle(radius), Material(youngs, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointForce([edges], (0, 0, load)))
    return equilibrium(builder.finalize(), force_tolerance=1e-14)[-1, 2] / tip - 1


def test_halves_of_a_voronoi_cell_bend_in_series():
    """Bend as beam theory says where the section changes, with errors of second order in the edges' length.

    With the mean of both stiffnesses at the step they are -16, -8 and -4 %, of first order.
    """
    errors = np.array([stepped_error(edges) for edges in (10, 20, 40)])
    assert abs(errors[0]) < 0.016
    np.testing.assert_allclose(errors[:-1] / errors[1:], 4.0, rtol=1e-3)  # tip loads leave no other power


@pytest.mark.parametrize("name", DYNAMIC)
def test_free_fall(name):
    """Fall with v = g t, and as far as each rule says."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0.1, 0), 11), Circle(RADIUS), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    state, integrator, steps, dt = model.initial_state(), DYNAMIC[name](0.01), 25, 0.01
    first = state.positions
    for _ in range(steps):
        state, _ = integrator.step(model, state, throw=True)
    t = steps * dt
    fallen = (first - state.positions)[..., 2]
    expected = 0.5 * 9.81 * t * (t + dt if name == "euler" else t)
    # rounding of positions (1e-16 m) through the stiffness of stretching, over 25 steps
    assert (fallen - expected).abs().max() < 1e-10
    assert (state.node_velocities[..., 2] + 9.81 * t).abs().max() < 1e-9


def test_small_cantilever():
    """Sag as Euler-Bernoulli says: q L^4 / (8 EI) under own weight, and P L^3 / (3 EI) under a tip force."""
    length, youngs = 0.5, 1e10  # sags by 0.2 %, so that the geometry's nonlinearity is below 1e-5
    weight = 1000.0 * AREA * 9.81
    nodes = equilibrium(cantilever(81, youngs, length, [forces.Gravity((0, 0, -9.81))]))
    # second order in dx: 0.02 % at 80 edges
    assert -nodes[-1, 2] == pytest.approx(weight * length**4 / (8 * youngs * SECOND), rel=5e-4)
    tip = forces.PointForce([80], (0, 0, -0.01))
    nodes = equilibrium(cantilever(81, youngs, length, [tip]))
    assert -nodes[-1, 2] == pytest.approx(0.01 * length**3 / (3 * youngs * SECOND), rel=2e-4)  # likewise: .004 %


def elastica_tip(force: float, stiffness: float, length: float) -> tuple[float, float]:
    """Return (x, z) of the tip of an inextensible cantilever under a vertical tip force, by shooting.

    theta'' = force/EI cos(theta) (sag positive), theta(0) = 0, theta'(L) = 0.
    """

    def shape(curvature):
        def slope(_, y):
            return [y[1], -force / stiffness * math.cos(y[0]), math.cos(y[0]), -math.sin(y[0])]

        return scipy.integrate.solve_ivp(slope, (0, length), [0, curvature, 0, 0], rtol=1e-11, atol=1e-13).y[:, -1]

    curvature = scipy.optimize.brentq(lambda k: shape(k)[1], 0, 2 * force * length / stiffness, xtol=1e-14)
    _, _, x, z = shape(curvature)
    return x, z


def elastica_error(nodes: int) -> float:
    """Return how far the tip under a large force is from the elastica's, over the length."""
    youngs, length = 1e6, 0.5
    stiffness = youngs * SECOND
    force = 5.0 * stiffness / length**2
    model = cantilever(
        nodes, youngs, length, [forces.PointForce([nodes - 1], (0, 0, -force))], stiffness={"EA": 1e3 * youngs * AREA}
    )
    tip = equilibrium(model, load_steps=4)[-1]
    x, z = elastica_tip(force, stiffness, length)
    return math.hypot(tip[0] - x, tip[2] - z) / length


def test_large_cantilever_is_the_elastica():
    """Approach the elastica, to second order in the edge length."""
    errors = [elastica_error(n) for n in (21, 41, 81)]
    orders = [math.log2(a / b) for a, b in zip(errors, errors[1:], strict=False)]
    assert errors[-1] < 2e-4  # second order: 1.3e-4 at 80 edges
    # slightly off 2 as the tip's Voronoi half-cell and the clamp count at order dx^3
    assert all(1.8 < order < 2.2 for order in orders)


def test_bending_frequencies():
    """Vibrate at (1.8751, 4.6941, 7.8548)^2 sqrt(EI / (rho A)) / L^2."""
    youngs, length = 1e8, 1.0
    model = cantilever(161, youngs, length)
    state = model.initial_state()
    start = model.start_step(state)
    _, values = model.mechanics.force_and_stiffness(start, state.q, torch.zeros_like(state.q), state.time)
    stiffness = model.layout.pattern.to_dense(values)[0].numpy()
    mass = np.diag(model.body.mass[model.unknowns.index].numpy())
    squares = scipy.linalg.eigh(stiffness, mass, eigvals_only=True)
    # a round rod bends alike in two planes: frequencies come in pairs; twist and stretch are far above
    found = np.sqrt(squares[:6:2])
    roots = np.array([1.875104, 4.694091, 7.854757])
    expected = roots**2 * math.sqrt(youngs * SECOND / (1000.0 * AREA)) / length**2
    assert found == pytest.approx(expected, rel=2e-3)  # second order: (7.85 dx / L)^2 / 12 = 2e-4, and the lumped tip


@pytest.mark.parametrize("integrator", [ImplicitMidpoint, Newmark])
def test_period_of_the_first_mode(integrator):
    """Swing at the first bending frequency when let go from a small deflection."""
    youngs, length = 1e8, 1.0
    model = cantilever(41, youngs, length)
    state = model.initial_state()
    period = 2 * math.pi / (1.875104**2 * math.sqrt(youngs * SECOND / (1000.0 * AREA)) / length**2)
    x = state.positions[0, :, 0].clamp_min(0.0)
    beta = 1.875104 / length
    ratio = (math.cosh(1.875104) + math.cos(1.875104)) / (math.sinh(1.875104) + math.sin(1.875104))
    mode = torch.cosh(beta * x) - torch.cos(beta * x) - ratio * (torch.sinh(beta * x) - torch.sin(beta * x))
    q = state.q.clone()
    q[0, 2 : 3 * 41 : 3] = 1e-4 * mode
    state = model.initial_state(q=q)
    dt, tips, times = period / 100, [], []
    for step in range(1, 121):
        state, _ = integrator(dt, relative_tolerance=1e-10, force_tolerance=1e-12).step(model, state, throw=True)
        tips.append(state.positions[0, -1, 2].item())
        times.append(step * dt)
    tips = np.array(tips)
    crossings = [k for k in range(119) if tips[k] * tips[k + 1] < 0]
    t = [times[k] + dt * tips[k] / (tips[k] - tips[k + 1]) for k in crossings]
    # half a period between zero crossings; 1 % for the higher modes in the lumped start and the coarse rod
    assert 2 * (t[1] - t[0]) == pytest.approx(period, rel=1e-2)


def test_euler_buckling():
    """Lose stability under an axial force at pi^2 EI / (4 L^2), clamped at one end."""
    youngs, length = 1e6, 0.5
    critical = math.pi**2 * youngs * SECOND / (4 * length**2)

    def softest(force):
        model = cantilever(81, youngs, length, [forces.PointForce([80], (-force, 0, 0))])
        state = model.initial_state()
        # the straight, compressed equilibrium
        strain = force / (youngs * AREA)
        q = state.q.clone()
        x = q[:, 0 : 3 * 81 : 3]
        q[:, 0 : 3 * 81 : 3] = torch.where(x > x[:, 1:2], x[:, 1:2] + (x - x[:, 1:2]) * (1 - strain), x)
        start = model.start_step(state)
        _, values = model.mechanics.force_and_stiffness(start, q, torch.zeros_like(q), state.time)
        return torch.linalg.eigvalsh(model.layout.pattern.to_dense(values))[0, 0].item()

    assert softest(0.9 * critical) > 0 > softest(1.1 * critical)
    found = scipy.optimize.brentq(softest, 0.9 * critical, 1.1 * critical, rtol=1e-6)
    # second order in dx, and the compression of 0.06 % that shortens the rod
    assert found == pytest.approx(critical, rel=2e-3)


@pytest.mark.parametrize("integrator", [ImplicitEuler(0.01), ImplicitMidpoint(0.01), Newmark(0.01), Static()])
def test_natural_helix_stays(integrator):
    """Keep a helix whose natural curvature and twist are its own."""
    builder = RobotBuilder()
    builder.add_rod(helix((0, 0, 0), (0.05, 0, 0), (0, 0.2, 1), 7.0, 0.2, 40), Circle(RADIUS), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    state = model.initial_state()
    before = state.positions
    for _ in range(5):
        state, info = integrator.step(model, state, throw=True)
    # rounding of strains (1e-15) times stiffness: nothing to iterate on
    assert (state.positions - before).abs().max() < 1e-12
    assert info.residual.max() < 1e-10


def test_twisted_rod():
    """Answer a twist with the torque GJ angle / L."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.4, 0, 0), 21), Circle(RADIUS), Material(1e6, 1000.0, 0.5))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[19, 20])
    model = builder.finalize()
    state = model.initial_state()
    target = state.q.clone()
    target[0, -1] = 0.3
    state, _ = Static().step(model, state, Control(clamped_q=target), throw=True)
    shear, polar = 1e6 / 3, math.pi * RADIUS**4 / 2
    torque = -model.mechanics.elastic_force(model.start_step(state), state.q)[0, -1].item()
    # between the middles of the clamped edges there are 19 edges of 20 mm
    assert torque == pytest.approx(shear * polar * 0.3 / (19 * 0.02), rel=1e-6)


def test_planar_mode():
    """Stay in the x-z plane, y and twist fixed, under a load that would leave it."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 11), Circle(RADIUS), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 5.0, -9.81)))
    model = builder.finalize()
    assert model.unknowns.count == 2 * 9
    state = model.initial_state()
    for _ in range(10):
        state, _ = ImplicitEuler(0.01).step(model, state, throw=True)
    assert state.positions[..., 1].abs().max() == 0 and state.twist.abs().max() == 0
    assert state.positions[0, -1, 2] < -0.01


def test_moving_clamp_has_its_speed():
    """Give a moved clamp its velocity, which drag then sees."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 11), Circle(RADIUS), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    state = model.initial_state()
    for step in range(1, 4):
        target = model.initial_state().q.clone()
        target[0, [2, 5]] += 0.05 * 0.01 * step
        state, _ = ImplicitEuler(0.01).step(model, state, Control(clamped_q=target), throw=True)
    assert state.node_velocities[0, :2].numpy() == pytest.approx(np.array([[0, 0, 0.05]] * 2), abs=1e-12)


def test_helical_spring_by_edges_a_turn():
    """Pull a close-coiled spring: docs/rods.md says by how much polygons of 12, 24 and 48 edges a turn are stiffer."""
    turns, radius, coil, youngs, poisson, density, force = 6, 5e-4, 1e-2, 2e8, 0.4, 1500.0, 1e-6
    theory = youngs / (2 * (1 + poisson)) * radius**4 / (4 * coil**3 * turns)
    length = math.hypot(2 * math.pi * coil * turns, turns * 3e-3)
    for edges, stiffer, lighter in ((12, 0.035, 0.011), (24, 0.011, 0.003), (48, 0.006, 0.0007)):
        points = helix((0, 0, 0), (coil, 0, 0), (0, 0, -1), 2 * math.pi * turns, turns * 3e-3, turns * edges + 1)
        builder = RobotBuilder()
        rod = builder.add_rod(points, Circle(radius), Material(youngs, density, poisson))
        builder.clamp(nodes=[rod[0]], direction="rest")
        builder.clamp(nodes=[rod[-1]], axes="xy", direction="rest")
        model = builder.finalize(compile=False)
        state = model.initial_state()
        pull = torch.zeros_like(state.q)
        pull[0, 3 * rod[-1] + 2] = -force
        after, _ = Static().step(model, state, Control(force=pull), throw=True)
        sunk = float((state.positions - after.positions)[0, -1, 2])
        # the page gives one or two digits, so half of the last one is left
        assert force / sunk / theory - 1 == pytest.approx(stiffer, abs=5e-4)
        mass = density * math.pi * radius**2 * length
        assert 1 - float(model.body.node_mass().sum()) / mass == pytest.approx(lighter, abs=5e-4)

"""Dissipation in elastic terms: damps deformation as theory says, leaves rigid motion alone, has its matrix."""

import math

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    meshes,
    straight,
    unroll,
)
from torchdismech.elastic import Energy, LinearElastic
from torchdismech.integrate.equations import StepEquations

RADIUS, LENGTH, YOUNGS, DENSITY = 5e-3, 0.3, 1e6, 1000.0
FIRST_MODE = 1.8751  # root of cos x cosh x = -1
BENT = LENGTH - 0.5 * LENGTH / 20  # the spring at the clamp bends over half an edge on either side
OMEGA = FIRST_MODE**2 * math.sqrt(YOUNGS * RADIUS**2 / 4 / DENSITY) / BENT**2  # of an undamped cantilever [rad/s]


def cantilever(relaxation_time: float, clamped: bool = True):
    """Return a slender rod without weight."""
    material = Material(YOUNGS, DENSITY, relaxation_time=relaxation_time)
    points = straight((0, 0, 0), (LENGTH, 0, 0), 21)
    return rod_through(points, Circle(RADIUS), material, held="edge" if clamped else "not")


@torch.no_grad()
def damping_ratio(model, dt: float) -> float:
    """Return the damping ratio of the tip's free swing, by the decay of its extremes."""
    shape = torch.zeros(model.n_dofs, dtype=torch.float64)
    x = ((model.nodes[:, 0] - model.nodes[1, 0]) / (LENGTH - model.nodes[1, 0])).clamp_min(0)  # from the clamp on
    shape[2 : 3 * len(x) : 3] = 1e-4 * x**2 * (6 - 4 * x + x**2) / 3  # a uniform load's, close to the first mode
    state = model.initial_state(q=model.initial_state().q[0] + shape)
    steps = round(3.2 * 2 * math.pi / OMEGA / dt)
    run = unroll(model, state, ImplicitMidpoint(dt, force_tolerance=1e-13, relative_tolerance=0.0), steps)
    tip = run.positions[:, 0, -1, 2]
    inner = tip[1:-1]
    peaks = inner[(inner > tip[:-2]) & (inner >= tip[2:])]
    decay = math.log(float(peaks[0] / peaks[1]))
    return decay / math.sqrt(4 * math.pi**2 + decay**2)


@pytest.mark.slow
def test_cantilever_is_damped_as_kelvin_and_voigt_have_it():
    """Lose amplitude at the ratio omega x relaxation time / 2 of the first mode."""
    time = 0.1 / OMEGA  # a damping ratio of 0.05
    dt = 2 * math.pi / OMEGA / 400
    # 20 edges and a peak read off at 400 steps a period; measured: 0.2 %
    assert damping_ratio(cantilever(time).finalize(), dt) == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize("integrator", [ImplicitEuler(0.01), ImplicitMidpoint(0.01), Newmark(0.01)])
def test_rigid_motion_costs_nothing(integrator):
    """Let a free rod fly on as if there was no damping."""
    velocity = torch.zeros(21 * 3 + 20, dtype=torch.float64)
    velocity[0 : 3 * 21 : 3], velocity[2 : 3 * 21 : 3] = 0.3, -0.7
    found = []
    for time in (0.0, 0.05):
        model = cantilever(time, clamped=False).finalize()
        found.append(unroll(model, model.initial_state(velocity=velocity), integrator, 5).q[-1].detach())
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-9)  # residuals of 1e-8 N on grams, over 5 steps of 10 ms


@pytest.mark.parametrize("integrator", [ImplicitEuler(0.01), ImplicitMidpoint(0.01), Newmark(0.01, 0.3, 0.6)])
def test_matrix_is_the_derivative_of_the_residual(integrator):
    """Match central differences, and have a potential that the residual is the gradient of."""
    builder = cantilever(0.05)
    builder.add_dissipation(
        "bend_twist", LinearElastic({"c1": torch.tensor(1e-4), "c2": torch.tensor(2e-4), "c3": torch.tensor(3e-4)})
    )
    model = builder.finalize()
    generator = torch.Generator().manual_seed(0)
    scale = torch.cat([torch.full((63,), 1e-3), torch.full((20,), 0.1)]).double()

    def noise():
        return scale * torch.randn(1, model.n_dofs, dtype=torch.float64, generator=generator)

    state = model.initial_state(q=model.initial_state().q + noise(), velocity=20 * noise())
    start = model.start_step(state, None, integrator.scheme.time * integrator.dt)
    balance = StepEquations(model, integrator.scheme, start, state.q, integrator.dt)
    x = (state.q + noise())[:, model.unknowns.index]
    _, values = balance.residual_and_matrix(x)
    matrix = model.layout.pattern.to_dense(values)[0]
    for k in range(0, x.shape[1], 7):
        step = torch.zeros_like(x)
        step[0, k] = 1e-8
        column = (balance.residual(x + step) - balance.residual(x - step))[0] / 2e-8
        # differences over 2e-8 m: rounding leaves 6e-10 of the largest entry
        assert torch.allclose(matrix[:, k], column, rtol=0, atol=1e-8 * float(matrix.abs().max()))
    direction = 1e-7 * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    slope = (balance.potential_at(x + direction) - balance.potential_at(x - direction)) / 2
    # rounding of the potential over a way of 1e-7: 2e-11 seen
    assert torch.allclose(slope, (balance.residual(x) * direction).sum(1), rtol=1e-8, atol=0)


@pytest.mark.slow
def test_added_dissipation_comes_on_top():
    """Damp twice as much with as much added to what the relaxation time gives."""
    time = 0.1 / OMEGA
    second = math.pi * RADIUS**4 / 4
    builder = cantilever(time)
    bending = torch.tensor(time * YOUNGS * second, dtype=torch.float64)
    zero = torch.tensor(0.0, dtype=torch.float64)
    builder.add_dissipation("bend_twist", LinearElastic({"c1": bending, "c2": bending, "c3": zero}))
    dt = 2 * math.pi / OMEGA / 400
    # 20 edges and a peak read off at 400 steps a period; measured: .04 %
    assert damping_ratio(builder.finalize(), dt) == pytest.approx(0.1, rel=3e-3)


def test_equilibria_do_not_know_of_it():
    """Find the same static shape with and without."""
    found = []
    for time in (0.0, 0.1):
        builder = cantilever(time)
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        model = builder.finalize()
        state, info = Static().step(model, model.initial_state())
        assert info.converged.all()
        found.append(state.q)
    assert torch.equal(found[0], found[1])


def test_negative_relaxation_time_is_refused():
    """Name the constant."""
    with pytest.raises(InputError, match="relaxation_time"):
        cantilever(-1.0)


def damped_rod(relaxation_time=0.02, held=True):
    """Return a soft, damped rod of 20 cm with a rate of its own for twist, clamped at one end or free."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 9), Circle(4e-3), Material(2e6, 1100.0, 0.4, relaxation_time))
    builder.add_dissipation("bend_twist", LinearElastic({"EI1": 2e-5, "EI2": 1e-5, "GJ": 1e-6}))
    if held:
        builder.clamp(nodes=[0], direction="rest")
    return builder.finalize(compile=False)


class Thinning(Energy):
    """A dissipation that resists slow rates most, nearly as friction does."""

    def density(self, strain):
        """Return the power, each (S, B)."""
        return sum(1e-5 * ((rate.square() + 1).sqrt() - 1) + 1e-6 * rate.square() for rate in strain)


def damped_sheet(thinning=False):
    """Return a soft, damped strip that is clamped along a side."""
    mesh, builder = meshes.rectangle(0.1, 0.04, 0.02), RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0, 0.3, relaxation_time=0.002))
    if thinning:
        builder.add_dissipation("midedge", Thinning())
    builder.clamp(nodes=mesh.nodes[:, 0] < 1e-9)
    return builder.finalize(compile=False)


def swaying(model):
    """Return a velocity (1, n) that bends, stretches and twists a robot from its clamp on."""
    velocity, x = torch.zeros(1, model.n_dofs, dtype=torch.float64), model.nodes[:, 0] / 0.2
    count = 3 * len(x)
    velocity[0, 0:count:3], velocity[0, 2:count:3] = 0.02 * x, 0.5 * x**2
    if len(model.rod_edges):
        velocity[0, count : count + len(model.rod_edges)] = torch.linspace(0, 3, len(model.rod_edges))
    return model.unknowns.with_held(velocity, 0.0)


def begun_by_tiny_steps(model, state):
    """Return the acceleration (B, n) of steps so short that next to nothing has moved, extrapolated to none."""
    found = []
    for dt in (5e-8, 1e-7):
        after, _ = ImplicitEuler(dt, force_tolerance=1e-12, relative_tolerance=0.0).step(model, state, throw=True)
        found.append(model.unknowns.where_algebraic(0.0, (after.velocity - state.velocity) / dt))
    return 2 * found[0] - found[1]


@pytest.mark.parametrize("start", ["rod", "sheet", "thinning sheet", "bent", "thrown", "released"])
def test_states_in_motion_begin_with_what_dissipates(start):
    """Accelerate as over a tiny step: strains that change are damped from the first moment on."""
    model = damped_sheet(start == "thinning sheet") if start.endswith("sheet") else damped_rod()
    if start == "bent":
        moved = model.initial_state(velocity=swaying(model))
        state = model.initial_state(q=moved.q + 0.1 * moved.velocity, velocity=moved.velocity)
    elif start == "thrown":
        state = model.thrown(model.initial_state(), angular_velocity=(0, -3.0, 0), center=(0, 0, 0))
    elif start == "released":
        held, model = model, damped_rod(held=False)
        state = model.released(held.initial_state(velocity=swaying(held)), held)
    else:
        state = model.initial_state(velocity=swaying(model))
    expected = begun_by_tiny_steps(model, state)
    largest = expected.abs().max().item()
    assert largest > 1.0
    # what is damped fastest, at some 1e5 / s, changes by a hundredth within a step, of which 1e-4 is not extrapolated
    torch.testing.assert_close(state.acceleration, expected, rtol=0, atol=5e-4 * largest)


@pytest.mark.parametrize("damped", [damped_rod, damped_sheet])
@pytest.mark.parametrize("integrator", [Newmark, BDF2])
def test_damped_motion_from_a_velocity_is_of_second_order(integrator, damped):
    """Quarter the error with half the step, also where a robot begins in motion."""
    model, tips = damped(), []
    for dt in (2e-3, 1e-3, 5e-4):
        state, rule = model.initial_state(velocity=swaying(model)), integrator(dt)
        state, _ = rule.steps(model, state, round(0.02 / dt))
        tips.append(state.positions[0, -1])
    coarse, fine = ((a - b).abs().max() for a, b in zip(tips, tips[1:], strict=False))
    assert 3.4 < coarse / fine < 4.6


@pytest.mark.parametrize("damped", [damped_rod, damped_sheet])
def test_first_accelerations_of_damped_robots_have_gradients(damped):
    """Differentiate the acceleration of a state by its shape and velocity, as differences do."""
    model = damped()
    shape = (model.initial_state().q + 0.1 * swaying(model)).requires_grad_()
    velocity = swaying(model).requires_grad_()
    ways = [torch.sin(torch.arange(shape.numel()) + k).double() * size for k, size in enumerate((1e-3, 0.1))]
    weight = torch.cos(7 * shape.detach())

    def seen(shape, velocity):
        return (weight * model.initial_state(q=shape, velocity=velocity).acceleration).sum()

    slopes = torch.autograd.grad(seen(shape, velocity), (shape, velocity))
    with torch.no_grad():
        ends = [seen(shape + s * 1e-4 * ways[0], velocity + s * 1e-4 * ways[1]) for s in (1, -1)]
    expected = sum((slope * way).sum() for slope, way in zip(slopes, ways, strict=True))
    # strains are some 1e-2, so differences over 1e-7 m are good to 1e-6
    assert expected.item() == pytest.approx((ends[0] - ends[1]).item() / 2e-4, rel=1e-6)

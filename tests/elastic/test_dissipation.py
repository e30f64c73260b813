"""Dissipation in elastic terms: damps deformation as theory says, leaves rigid motion alone, has its matrix."""

import math

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    Static,
    forces,
    straight,
    unroll,
)
from torchdismech.elastic import LinearElastic
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
    balance.descending = True
    slope = (balance.potential(x + direction) - balance.potential(x - direction)) / 2
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

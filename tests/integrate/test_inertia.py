"""Consistent masses: frequencies, momenta, matrices, first accelerations, batches."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from tests import shells
from tests.rods import rod_through
from torchdismech import Circle, InputError, Material, RobotBuilder, meshes, straight, trainable
from torchdismech.forces import Gravity, PointForce
from torchdismech.integrate import BDF2, ImplicitEuler, ImplicitMidpoint, Newmark, Static

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 5e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
MASS_PER_LENGTH = DENSITY * math.pi * RADIUS**2
INTEGRATORS = [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2]


def rod(edges: int, mass: str, held: bool = True, loads=(), density=DENSITY):
    """Return a rod along x."""
    points, builder = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), RobotBuilder(mass=mass)
    rod_through(points, Circle(RADIUS), Material(YOUNGS, density), loads, "end" if held else "not", builder)
    return builder.finalize(compile=False)


def matrices(model, state):
    """Return stiffness and mass matrix of the unknowns."""
    start = model.start_step(state)
    _, values = model.mechanics.force_and_stiffness(start, state.q, torch.zeros_like(state.q), state.time)
    mass = torch.zeros_like(values)
    model.mechanics.layout.add_mass(mass, 1.0)
    return model.layout.pattern.to_dense(values)[0].numpy(), model.layout.pattern.to_dense(mass)[0].numpy()


def frequency_errors(edges: int, mass: str) -> np.ndarray:
    """Return those of the first three bending modes of a cantilever (each comes twice, in two planes)."""
    model = rod(edges, mass)
    squares = scipy.linalg.eigh(*matrices(model, model.initial_state()), eigvals_only=True, subset_by_index=[0, 5])[::2]
    exact = np.array([1.8751040687, 4.6940911330, 7.8547574382]) ** 2 * math.sqrt(EI / MASS_PER_LENGTH) / LENGTH**2
    return np.sqrt(squares) / exact - 1


def test_frequencies():
    """Leave half of the first frequency's error and a third of the third's; what is left comes from the rod's ends."""
    lumped, consistent = frequency_errors(20, "lumped"), frequency_errors(20, "consistent")
    # as far as the digits go
    assert lumped == pytest.approx([-0.0021, -0.0106, -0.0221], rel=0.02)
    assert consistent == pytest.approx([-0.00115, -0.00397, -0.00650], rel=0.02)
    assert frequency_errors(40, "consistent") / consistent == pytest.approx([0.25] * 3, rel=0.1)  # of second order


@pytest.mark.parametrize("kind", ["rod", "midedge"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_trained_masses_take_what_couples_nodes_along(kind, factor):
    """Have the mass matrix of that density; with links as built it was indefinite for half of the masses."""

    def robot(density):
        if kind == "rod":
            return rod(6, "consistent", density=density)
        builder, sheet = RobotBuilder(mass="consistent"), meshes.rectangle(0.1, 0.06, spacing=0.03)
        builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, Material(1e6, density, 0.3))
        return builder.finalize()

    model, other = robot(DENSITY), robot(factor * DENSITY)
    trained = trainable.scaled(model, ["mass"])
    with torch.no_grad():
        trained.log_factor.fill_(math.log(factor))
        (_, found), (_, wanted) = (matrices(one, one.initial_state()) for one in (model, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-14 * wanted.max())  # rounding of exp(log)
    assert np.linalg.eigvalsh(found).min() > -1e-12 * wanted.max()  # angles have none, up to rounding


def test_what_is_added_to_a_node_couples_it_to_no_other():
    """Have the same links with a payload at the end, whether it is built in or set."""
    model, sets = rod(6, "consistent", held=False), rod(6, "consistent", held=False)
    builder = RobotBuilder(mass="consistent")
    points = straight((0, 0, 0), (LENGTH, 0, 0), 7)
    rod_through(points, Circle(RADIUS), Material(YOUNGS, DENSITY), (), "not", builder)
    builder.add_mass([6], 0.3)
    built = builder.finalize(compile=False)
    with torch.no_grad():
        sets.body.mass[18:21] += 0.3
    dense = [matrices(one, one.initial_state())[1] for one in (model, built, sets)]
    np.testing.assert_allclose(dense[2], dense[1], rtol=1e-12, atol=1e-15)  # shares are ratios, rounded
    off = ~np.eye(len(dense[0]), dtype=bool)
    np.testing.assert_allclose(dense[1][off], dense[0][off], rtol=1e-12, atol=1e-15)


def test_gradients_by_single_masses_are_those_of_both_sides_of_their_kink():
    """Follow central differences at masses as built; rounding chose one side for each link."""
    points, builder = np.outer(np.arange(12), [0.01, 0.0, 0.0]), RobotBuilder(mass="consistent")
    rod_through(points, Circle(3e-3), Material(1e6, 1234.5), [Gravity((0.0, 0.0, -9.81))], "end", builder)
    model = builder.finalize(compile=False)
    factors = trainable.scaled(model, ["mass"], shape=(model.n_dofs,)).log_factor

    def tip() -> torch.Tensor:
        state, _ = ImplicitEuler(0.01, force_tolerance=1e-14).step(model, model.initial_state(), throw=True)
        return state.positions[0, -1, 2]

    (gradient,) = torch.autograd.grad(tip(), [factors])
    step = 1e-4
    with torch.no_grad():
        for dof in range(0, 3 * 12, 3):  # links go by the masses along x
            factors[dof] = step
            above = tip()
            factors[dof] = -step
            difference = (above - tip()) / (2 * step)
            factors[dof] = 0.0
            # what is left is the square of the step, and rounding over it; one side was off by a thousandth
            assert float(gradient[dof]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6 * float(gradient.max()))


def test_a_hanging_chain():
    """Swing with the first root of J0 over 2: lumped masses are off by 1e-4 at 50 edges, consistent ones by 1e-5."""
    found = []
    for mass in ("lumped", "consistent"):
        builder = RobotBuilder(mass=mass)
        stiffness = {"EA": 1e5, "EI1": 1e-9, "EI2": 1e-9, "GJ": 1e-9}
        builder.add_rod(
            straight((0, 0, 0), (0, 0, -LENGTH), 51), Circle(RADIUS), Material(YOUNGS, DENSITY), stiffness=stiffness
        )
        builder.clamp(nodes=[0])
        builder.add_force(Gravity((0, 0, -9.81)))
        model = builder.finalize(compile=False)
        state, _ = Static(force_tolerance=1e-11).step(model, model.initial_state(), throw=True)
        stiffness_matrix, masses = matrices(model, state)
        sway = np.flatnonzero(np.isin(model.unknowns.index.numpy(), np.arange(0, 153, 3)))
        square = scipy.linalg.eigh(
            stiffness_matrix[np.ix_(sway, sway)], masses[np.ix_(sway, sway)], eigvals_only=True, subset_by_index=[0, 0]
        )[0]
        found.append(math.sqrt(square) / (2.404825557695773 / 2 * math.sqrt(9.81 / LENGTH)) - 1)
    assert found == pytest.approx([-1.2e-4, 1.0e-5], rel=0.05)  # two digits


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_push_gives_the_momentum_of_its_impulse(integrator):
    """Momenta are those of lumped masses: sums over rows are the nodes' masses."""
    model = rod(8, "consistent", held=False, loads=[PointForce([3], (0.0, 0.02, 0.01), stop=0.05)])
    steps, state = integrator(0.01, force_tolerance=1e-13, relative_tolerance=0.0), model.initial_state()
    mass = model.body.node_mass()[:, None]
    for _ in range(5):
        before = (mass * state.node_velocities[0]).sum(0)
        state, _ = steps.step(model, state, throw=True)
    if integrator is ImplicitEuler:
        gained = (mass * state.node_velocities[0]).sum(0) - before
        torch.testing.assert_close(gained, torch.tensor([0.0, 2e-4, 1e-4], dtype=torch.float64), rtol=0, atol=1e-12)
    assert abs(float((mass * state.node_velocities[0]).sum(0)[1] / 0.02 - 0.05)) < 0.011  # a step, at most


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("kind", ["rod", "shell"])
def test_the_matrix_is_the_derivative_of_the_residual(integrator, kind):
    """Per robot, with rods and shells."""
    if kind == "rod":
        model = rod(5, "consistent", density=torch.tensor([[1000.0], [2000.0]], dtype=torch.float64))
    else:
        model = shells.robot("midedge_rod", mass="consistent")
    state = model.initial_state(2)
    generator = torch.Generator().manual_seed(0)
    state = state.replace(velocity=torch.randn(state.q.shape, dtype=torch.float64, generator=generator))
    equations = integrator(1e-3).equations(model, state)
    x = model.unknowns.of_dofs(state.q)
    x = x + 1e-4 * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    _, values = equations.residual_and_matrix(x)
    matrix = model.layout.pattern.to_dense(values)
    move = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    step = 1e-6
    expected = (equations.residual(x + step * move) - equations.residual(x - step * move)) / (2 * step)
    found = (matrix @ move.unsqueeze(-1)).squeeze(-1)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()  # of differences


def test_first_accelerations_are_those_of_the_mass_matrix():
    """A free fall is one: every node by g; a clamped rod's nodes by the dense solution."""
    free = rod(6, "consistent", held=False, loads=[Gravity((0, 0, -9.81))])
    acceleration = free.initial_state().acceleration[0, :21].reshape(-1, 3)
    torch.testing.assert_close(
        acceleration, torch.tensor([0.0, 0.0, -9.81], dtype=torch.float64).expand(7, 3), rtol=0, atol=1e-9
    )
    held = rod(6, "consistent", loads=[Gravity((0, 0, -9.81))])
    state = held.initial_state()
    _, mass = matrices(held, state)
    load = held.forces[0](state, None)[0, held.unknowns.index].numpy()
    found = state.acceleration[0, held.unknowns.index].numpy()
    assert found == pytest.approx(np.linalg.solve(mass, load), rel=1e-12, abs=1e-12)


def test_batch_rows_are_robots_alone():
    """Each robot has its own masses."""
    densities, steps = (1000.0, 2500.0), ImplicitMidpoint(5e-3, force_tolerance=1e-12)
    together = rod(6, "consistent", loads=[Gravity((0, 0, -9.81))], density=torch.tensor(densities).double()[:, None])
    state = together.initial_state()
    for _ in range(5):
        state, _ = steps.step(together, state, throw=True)
    for k, density in enumerate(densities):
        alone = rod(6, "consistent", loads=[Gravity((0, 0, -9.81))], density=density)
        own = alone.initial_state()
        for _ in range(5):
            own, _ = steps.step(alone, own, throw=True)
        torch.testing.assert_close(state.q[k], own.q[0], rtol=0, atol=1e-12)


def test_energy_of_a_free_rod():
    """The midpoint rule keeps the sum of both energies of a rod that vibrates gently."""
    model = rod(10, "consistent", held=False)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[0, 2:33:3] = 0.05 * torch.cos(torch.linspace(0, 3 * math.pi, 11).double())
    state, steps = model.initial_state(velocity=velocity), ImplicitMidpoint(2e-3, force_tolerance=1e-13)
    total = lambda at: sum(float(e) for e in model.energies(at).values())  # noqa: E731
    start = total(state)
    for _ in range(50):
        state, _ = steps.step(model, state, throw=True)
        assert total(state) == pytest.approx(start, rel=2e-3)  # the rule is exact for quadratic energies only


def test_an_unknown_kind_is_refused():
    """Name the choices."""
    with pytest.raises(InputError, match="mass: expected one of 'lumped', 'consistent'"):
        RobotBuilder(mass="coupled")


def test_densities_of_one_robot_beside_those_of_several():
    """Take a rod's density of shape (1, 1), as for all robots, beside a shell's of (3, 1); it was an error of torch."""

    def of_links(density):
        builder = RobotBuilder(mass="consistent")
        builder.add_rod([[0, 0, 0], [0, 0, 0.1]], Circle(RADIUS), Material(YOUNGS, density))
        of_shell = torch.tensor([[900.0], [1000.0], [1100.0]], dtype=torch.float64)
        builder.add_shell([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]], [[0, 1, 2]], 1e-3, Material(YOUNGS, of_shell))
        return builder.finalize(compile=False).body.link_share

    assert torch.equal(of_links(torch.full((1, 1), DENSITY, dtype=torch.float64)), of_links(DENSITY))

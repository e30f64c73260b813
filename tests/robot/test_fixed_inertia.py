"""What is hard to turn and fixed to edges: pendulums, energies, matrices, first accelerations, batches, gradients."""

import math

import pytest
import torch

from tests.integrate.test_newton_matrix import check_matrix
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
    modes,
    rollout,
    straight,
    trainable,
    unroll,
)

INTEGRATORS = [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2]
LENGTH, MASS, INERTIA, GRAVITY = 0.3, 0.05, 2e-3, 9.81


def rod(across, along=1e-6, nodes=7, planar=False, youngs=1e6):
    """Return a clamped rod with a weight at its end that is hard to turn."""
    builder = RobotBuilder(planar=planar)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), nodes), Circle(3e-3), Material(youngs, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    builder.add_mass([nodes - 1], 0.01)
    builder.add_inertia([nodes - 2], across, None if planar else along)
    return builder.finalize(compile=False)


@pytest.mark.parametrize("planar", [True, False])
def test_pendulum(planar):
    """Swing as slowly as a rigid body: omega^2 = m g l / (m l^2 + J), of an edge that hangs from a node."""
    builder = RobotBuilder(planar=planar)
    builder.add_rod([(0, 0, 0), (0, 0, -LENGTH)], Circle(2e-3), Material(1e9, 10.0))  # stiff
    builder.clamp(nodes=[0], twist=not planar)
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    builder.add_mass([1], MASS)
    builder.add_inertia([0], INERTIA)
    model = builder.finalize()
    mass = model.body.node_mass()[1].item()
    expected = math.sqrt(mass * GRAVITY * LENGTH / (mass * LENGTH**2 + INERTIA)) / (2 * math.pi)
    hanging, _ = Static().step(model, model.initial_state(), throw=True)  # the weight's pull is what drives it back
    # in space it swings to two sides, and nothing keeps it from spinning
    found = modes(model, hanging, count=1).frequency[0] if planar else modes(model, hanging, count=3).frequency[0, 1:]
    # the weight stretches the edge by m g / EA = 4e-5 of its length
    assert found.tolist() == pytest.approx([expected] * len(found), rel=1e-4)


def test_cantilever_with_a_disc_at_its_end():
    """Approach beam theory's frequencies; the disc turns with the middle of the last edge, an error of first order."""

    def frequencies(nodes):
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), nodes), Circle(4e-3), Material(1e8, 1100.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_mass([nodes - 1], 0.05)
        builder.add_inertia([nodes - 2], 2e-4)
        model = builder.finalize()
        return modes(model, model.initial_state(), count=3).frequency[0]

    # roots of (1 + c C) + k b (c S - s C) - j b^3 (c S + s C) + k j b^4 (1 - c C) with c, s, C, S the functions of
    # b, k = M / m and j = J / (m L^2), and omega = b^2 sqrt(EI / (m L^3))
    theory = torch.tensor([0.97928383, 5.77322287, 25.19230443], dtype=torch.float64)
    coarse, fine = (frequencies(nodes) / theory - 1 for nodes in (41, 81))
    assert (fine.abs() < 0.014).all() and fine[1:].tolist() == pytest.approx((0.5 * coarse[1:]).tolist(), rel=0.05)


def test_kinetic_energy():
    """Have J |omega|^2 / 2 of a turn across the edge, and along it."""
    plain, fixed = rod(1e-12, 1e-12), rod(3e-4, 5e-5)
    omega = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64)
    state = plain.initial_state()
    turning = torch.linalg.cross(omega[:, None].expand_as(state.positions), state.positions).flatten(1)
    velocity = torch.zeros_like(state.q)
    velocity[:, : turning.shape[1]] = turning
    velocity[:, 3 * 7 + 5] = 4.0  # the last edge about itself [rad/s]
    found = [m.energies(m.initial_state().replace(velocity=velocity))["kinetic"].item() for m in (fixed, plain)]
    assert found[0] - found[1] == pytest.approx(0.5 * 3e-4 * 2.0**2 + 0.5 * 5e-5 * 4.0**2, rel=1e-7)


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_matrix_is_the_derivative_of_the_residual(integrator, planar):
    """Match central differences."""
    model = rod(torch.tensor([[1e-5], [1e-4]], dtype=torch.float64), planar=planar)
    state = model.initial_state()
    torch.manual_seed(0)
    state = state.replace(velocity=0.1 * torch.randn_like(state.q) * model.free)
    equations = integrator(1e-2).equations(model, state)
    moved = state.q + 1e-3 * torch.randn_like(state.q) * model.free
    check_matrix(equations, moved[:, model.unknowns.index])


@pytest.mark.parametrize("everywhere", [False, True])
def test_first_acceleration(everywhere):
    """Balance the forces at the beginning, also where inertia couples all nodes far more than their masses hold."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 21), Circle(3e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    builder.add_inertia(range(20) if everywhere else [19], 1e-4)
    model = builder.finalize(compile=False)
    state = model.initial_state()
    force = model.mechanics.force(model.start_step(state), state.q, state.velocity, state.time)
    missing = (model.mechanics.inertia.times(state.acceleration) - force) * model.free
    assert missing.abs().max() < 1e-11 * force.abs().max()


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
@pytest.mark.parametrize("nodes", [3, 6])
def test_gradients_of_the_first_acceleration(nodes, mass):
    """Match differences in positions and masses at rest, where the force asks for few of the search's directions."""
    builder = RobotBuilder(mass=mass)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), nodes), Circle(5e-3), Material(1e5, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    if mass == "lumped":
        builder.add_inertia([nodes - 2], 1e-5)
    model = builder.finalize(compile=False)
    factor = trainable.scaled(model, ["mass"])
    rest, weights = model.body.rest_q[None], torch.linspace(-1.0, 2.0, model.n_dofs, dtype=torch.float64)
    direction = torch.cos(torch.arange(model.n_dofs)) * model.free

    def weighted(by):
        with torch.no_grad():
            factor.log_factor.fill_(float(by))
        return (model.initial_state(q=rest + by * direction).acceleration * weights).sum()

    by = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.grad(weighted(by), [by, factor.log_factor])
    step = 1e-6
    expected = (weighted(torch.tensor(step)) - weighted(torch.tensor(-step))) / (2 * step)
    torch.testing.assert_close(sum(slopes), expected.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_robots_alone(integrator):
    """Step each robot of a batch as it steps alone."""
    across = torch.tensor([[1e-6], [1e-5], [1e-4]], dtype=torch.float64)
    both = rollout(model := rod(across), model.initial_state(3), integrator(5e-3), steps=20)
    for robot in range(3):
        alone = rollout(model := rod(float(across[robot])), model.initial_state(), integrator(5e-3), steps=20)
        # of .1 m, in 20 steps: one robot and three go through other instructions on some processors, 9e-16 was seen
        assert torch.allclose(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-14)
    assert (both.positions[-1, 0] - both.positions[-1, 2]).abs().max() > 1e-4


def test_gradient():
    """Have the gradient by the moment of inertia that differences have."""
    model = rod(1e-5)
    factor = trainable.scaled(model, ["edge_inertia"])

    def height():
        return unroll(model, model.initial_state(), ImplicitMidpoint(5e-3), steps=10).positions[-1, 0, -1, 2]

    (found,) = torch.autograd.grad(height(), factor.log_factor)
    with torch.no_grad():
        factor.log_factor += 1e-4
        above = height()
        factor.log_factor -= 2e-4
        difference = (above - height()) / 2e-4
    # differences are off by the tolerance of steps, 1e-6 of the loads, over 2e-4
    assert found.item() == pytest.approx(difference.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edges": [6], "across": 1e-5}, "inertia.edges"),
        ({"edges": [1, 1], "across": 1e-5}, "inertia.edges: expected indices, each once"),
        ({"edges": [1], "across": 0.0}, "inertia.across: expected a finite number above 0"),
        ({"edges": [1, 2], "across": torch.ones(2)}, r"inertia.across: expected one number, or one of each robot"),
        ({"edges": [1], "across": 1e-5, "along": -1.0}, "inertia.along: expected a finite number above 0"),
    ],
)
def test_refusals(given, message):
    """Name what is wrong."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 7), Circle(3e-3), Material(1e6, 1100.0))
    with pytest.raises(InputError, match=message):
        builder.add_inertia(**given)


def test_planar_rods_do_not_twist():
    """Refuse a moment of inertia about the edges of a planar robot."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 7), Circle(3e-3), Material(1e6, 1100.0))
    with pytest.raises(InputError, match="inertia.along: the robot is planar"):
        builder.add_inertia([5], 1e-5, 1e-5)

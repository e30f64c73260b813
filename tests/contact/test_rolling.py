"""Rods that roll on obstacles: friction feels their spin and turns them."""

import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Rectangle,
    RobotBuilder,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.contact import Barrier, Complementarity, Friction, HalfSpace, Obstacle, Penalty, Sphere
from torchdismech.errors import InputError
from torchdismech.testing import check_force

RADIUS, NODES, G, SLIP = 5e-3, 5, 9.81, 1e-3
FLOOR = HalfSpace((0, 0, 0), (0, 0, 1))


def lying(down=(0.0, 0.0, -1.0), rolling=True, mu=0.8, name="floor", **law):
    """Return a rod along y that lies on a floor, which gravity pulls it down along."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, -0.02, RADIUS), (0, 0.02, RADIUS), NODES), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_force(forces.Gravity([G * x for x in down]))
    response, friction = Penalty(100.0, 1e-4), Friction(mu, SLIP, **law)
    builder.add_contact(Obstacle(FLOOR, response, friction, name=name, rolling=rolling))
    return builder.finalize()


def spins(state) -> torch.Tensor:
    """Return the rates of the rod's angles (B, E)."""
    return state.velocity[:, 3 * NODES : 3 * NODES + NODES - 1]


@pytest.mark.parametrize("response", [Penalty(100.0, 2e-3), Barrier(1.0, 2e-3)], ids=["penalty", "barrier"])
@pytest.mark.parametrize("law", [{}, {"static": 0.9, "forward_coefficient": 0.1}], ids=["plain", "all"])
@pytest.mark.parametrize("spacing", [None, 0.006])
def test_derivatives(response, law, spacing):
    """Match differences by all dofs, angles among them, on a ball, whose normals turn."""
    builder, generator = RobotBuilder(), torch.Generator().manual_seed(5)
    gap = 1e-3 if isinstance(response, Barrier) else 0.0
    points = straight((-0.02, 0, 0.05 + RADIUS + gap), (0.02, 0.01, 0.05 + RADIUS + gap), NODES)
    builder.add_rod(points, Circle(RADIUS), Material(1e7, 1000.0))
    friction = Friction(0.5, SLIP, **law)
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.05), response, friction, spacing=spacing, rolling=True))
    model = builder.finalize()
    state = model.initial_state(3)
    noise = torch.randn(state.velocity.shape, generator=generator, dtype=torch.float64)
    noise[:, 3 * NODES :] /= RADIUS
    speeds = torch.tensor([[0.3], [1.0], [8.0]], dtype=torch.float64)
    check_force(model.obstacles[0], model, state.replace(velocity=SLIP * speeds * noise)).raise_if_failed()


@pytest.mark.parametrize("slope", [0.1, 0.4])
def test_rolls_down_a_slope(slope):
    """Accelerate as a solid cylinder that rolls: by 2/3 of g sin, with the spin that belongs to the speed."""
    model = lying((math.sin(slope), 0.0, -math.cos(slope)))
    state = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 100, progress=False).state
    speed = state.node_velocities[0, :, 0]
    # 0.5 %: it lands first, and smoothed friction creeps: by .03 slip velocities of 200 here
    assert torch.allclose(speed, torch.full_like(speed, 0.2 * 2 / 3 * G * math.sin(slope)), rtol=5e-3)
    # along y, a rod that goes towards x turns by the right hand; it creeps by less than a slip velocity
    assert torch.allclose(spins(state)[0] * RADIUS, speed[:-1], atol=SLIP)


def test_without_rolling_it_holds():
    """Hold on the slope by default, where friction takes no account of spin."""
    model = lying((math.sin(0.4), 0.0, -math.cos(0.4)), rolling=False)
    state = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 100, progress=False).state
    assert float(state.node_velocities.abs().max()) < SLIP


def test_spin_becomes_speed():
    """Set off a rod that spins until it rolls, with a third of the speed of its surface at the start."""
    model = lying()
    spin = torch.tensor([[40.0], [-20.0]], dtype=torch.float64)
    state = model.initial_state(2)
    velocity = state.velocity.clone()
    velocity[:, 3 * NODES :] = spin
    run = rollout(model, state.replace(velocity=velocity), ImplicitEuler(1e-3), 60, progress=False)
    # m v = F t and m r^2 / 2 w = m r^2 / 2 w0 - r F t: v = w r at w0 / 3. 1 %: what it loses as it lands
    assert torch.allclose(run.state.node_velocities[:, :, 0], (spin * RADIUS / 3).expand(2, NODES), rtol=1e-2)
    assert torch.allclose(spins(run.state), (spin / 3).expand(2, NODES - 1), rtol=1e-2)
    assert int(run.contact["sliding"][-1].sum()) == 0


def test_robots_of_a_batch():
    """Step robots with friction, spins and speeds of their own as each alone."""
    mu = [0.1, 0.4, 0.9]
    start = {"spin": [30.0, -10.0, 0.0], "speed": [0.0, 0.1, -0.2]}

    def run(robots, mu):
        model = lying(mu=mu)
        velocity = torch.zeros(len(robots), model.n_dofs, dtype=torch.float64)
        for row, robot in enumerate(robots):
            velocity[row, : 3 * NODES : 3] = start["speed"][robot]
            velocity[row, 3 * NODES :] = start["spin"][robot]
        state = model.initial_state(velocity=velocity)
        return rollout(model, state, ImplicitEuler(2e-3, relative_tolerance=1e-9), 20, progress=False).state.q

    together = run([0, 1, 2], torch.tensor(mu, dtype=torch.float64)[:, None])
    for robot, own in enumerate(mu):
        # 1e-9 of loads, on masses of 1 g: 1e-11 m a step
        assert torch.allclose(together[robot], run([robot], own)[0], atol=1e-9)


def test_gradients():
    """Match differences of where a rod that spins comes to, by friction and by the spin."""
    model = lying(mu=0.1)

    def end(values: torch.Tensor) -> torch.Tensor:
        velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
        velocity[:, 3 * NODES :] = 40.0 * values[1]
        integrator = ImplicitEuler(1e-3, relative_tolerance=1e-11)
        control = Control(values={"floor.friction": values[0]})
        start = model.initial_state(velocity=velocity)
        return unroll(model, start, integrator, 10, lambda time, model: control).state.positions[0, :, 0].sum()

    values = torch.tensor([0.1, 1.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(end(values), values)
    assert float(found[0]) > 1e-4
    for k in range(2):
        h = 1e-5
        step = h * torch.eye(2, dtype=torch.float64)[k]
        with torch.no_grad():
            difference = (end(values + step) - end(values - step)) / (2 * h)
        # 1e-5 of the larger one: h^2, and what is left of the steps' residuals over h
        assert float(found[k]) == pytest.approx(float(difference), rel=1e-5, abs=1e-5 * float(found.abs().max()))


@pytest.mark.parametrize("way", ["head to head", "tail to tail", "end to beginning"])
def test_the_order_of_points_does_not_matter(way):
    """Let a straight rod of two halves roll as one does, whichever way the halves' points are given."""
    slope, first, second = 0.1, (-0.02, 0.0), (0.0, 0.02)
    first, second = (
        (first[::-1] if way == "tail to tail" else first),
        (second[::-1] if way == "head to head" else second),
    )
    builder = RobotBuilder()
    for start, end in (first, second):
        builder.add_rod(straight((0, start, RADIUS), (0, end, RADIUS), 3), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_force(forces.Gravity((G * math.sin(slope), 0.0, -G * math.cos(slope))))
    builder.add_contact(Obstacle(FLOOR, Penalty(100.0, 1e-4), Friction(0.8, SLIP), rolling=True))
    model = builder.finalize()
    state = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 100, progress=False).state
    speed = state.node_velocities[0, :, 0]
    # 0.5 %: see test_rolls_down_a_slope
    assert torch.allclose(speed, torch.full_like(speed, 0.2 * 2 / 3 * G * math.sin(slope)), rtol=5e-3)


def test_what_is_refused():
    """Name what rolling needs."""
    with pytest.raises(InputError, match="obstacle 'ground': rolling: rods roll by friction that is smoothed"):
        Obstacle(FLOOR, Penalty(10.0, 1e-3), name="ground", rolling=True)
    with pytest.raises(InputError, match="obstacle 'ground': rolling: rods roll by friction that is smoothed"):
        Obstacle(FLOOR, Complementarity(), Friction(0.3), name="ground", rolling=True)
    builder = RobotBuilder()
    builder.add_shell([[0, 0, 0], [1, 0, 0], [0, 1, 0.0]], [[0, 1, 2]], 0.01, Material(1e6, 1000.0), "hinge")
    builder.add_contact(Obstacle(FLOOR, Penalty(10.0, 1e-3), Friction(0.3, SLIP), name="ground", rolling=True))
    with pytest.raises(InputError, match="no rod touches it; leave out rolling"):
        builder.finalize()
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, RADIUS), (0.1, 0, RADIUS), 3), Circle(RADIUS), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(FLOOR, Penalty(10.0, 1e-3), Friction(0.3, SLIP), name="ground", rolling=True))
    with pytest.raises(InputError, match="obstacle 'ground': rolling: the rods cannot turn about themselves"):
        builder.finalize()
    with pytest.raises(InputError, match="rolling: expected True or False, got 'no'"):
        Obstacle(FLOOR, Penalty(10.0, 1e-3), Friction(0.3, SLIP), rolling="no")
    builder = RobotBuilder()
    ribbon = builder.add_rod(
        straight((0, 0, RADIUS), (0.1, 0, RADIUS), 3), Rectangle(1e-3, 1e-2), Material(1e6, 1000.0)
    )
    rod = builder.add_rod(straight((0, 0.1, RADIUS), (0.1, 0.1, RADIUS), 3), Circle(RADIUS), Material(1e6, 1000.0))
    law = Penalty(10.0, 1e-3), Friction(0.3, SLIP)
    builder.add_contact(Obstacle(FLOOR, *law, name="ground", rolling=True, nodes=[*rod, int(ribbon[0])]))
    with pytest.raises(InputError, match="obstacle 'ground': rolling: rods roll that are round, and a rectangle"):
        builder.finalize()
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, RADIUS), (0.1, 0, RADIUS), 3), Circle(RADIUS), Material(1e6, 1000.0))
    shell = builder.add_shell([[0, 1, 0], [1, 1, 0], [0, 2, 0.0]], [[0, 1, 2]], 0.01, Material(1e6, 1000.0), "hinge")
    builder.add_contact(Obstacle(FLOOR, *law, name="ground", rolling=True, nodes=shell))
    with pytest.raises(InputError, match="no rod touches it; leave out rolling"):
        builder.finalize()

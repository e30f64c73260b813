"""Recorded backward passes through steps on obstacles that are constraints: what bears a load, sticks and slides."""

import pytest
import torch

from tests.gradients.cases import EXACT
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight, trainable
from torchdismech.contact import Box, Complementarity, Friction, HalfSpace, Obstacle, Sphere
from torchdismech.integrate.gradients import kkt

RADIUS = 5e-3
RUNS = 14  # of three steps: the first steps of a kind are not recorded, nor are the first passes back
SCENES = {
    "plane": lambda: [HalfSpace((0, 0, 0), (0, 0.05, 1))],
    "ball": lambda: [Sphere((0.1, 0, -0.1), 0.1 - 1e-4)],
    "two": lambda: [HalfSpace((0, 0, 0), (0, 0, 1)), Box((0.1, 0.105, 0), (0.6, 0.2, 0.1))],
}


def lying(scene, friction, spacing=None):
    """Return a rod of 8 nodes on obstacles, in front of a box that it is driven against in scene "two"."""
    builder = RobotBuilder()
    nodes = straight((0, 0, RADIUS), (0.2, 0, RADIUS), 8)
    builder.add_rod(nodes, Circle(RADIUS), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    for number, shape in enumerate(SCENES[scene]()):
        rough = [Friction(friction)] if friction else []
        builder.add_contact(Obstacle(shape, Complementarity(), *rough, spacing=spacing, name=f"obstacle{number}"))
    return builder.finalize(compile=False)


def moving(model, speed):
    """Return two robots: the first moves across and along, and turns, the second more slowly."""
    state = model.initial_state(batch=2)
    velocity = state.velocity[:, :24].unflatten(1, (-1, 3))
    velocity[..., 1] = speed * torch.linspace(0.7, 1.3, 8, dtype=torch.float64)
    velocity[..., 0] = 0.4 * speed
    state.velocity[1] *= 0.6
    return state


def gradients(model, state, tensors, steps=3):
    """Return the gradients of a loss of positions and velocities after some steps, by velocity, q and tensors."""
    integrator = ImplicitEuler(2e-3, **EXACT)
    weight = torch.randn(model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    leaves = [state.velocity.clone().requires_grad_(), state.q.clone().requires_grad_()]
    after = state.replace(velocity=leaves[0], q=leaves[1])
    for _ in range(steps):
        after, info = integrator.step(model, after)
    assert bool(info.converged.all())
    loss = (after.q * weight).sum() + 0.01 * (after.velocity * weight).sum()
    return torch.autograd.grad(loss, [*leaves, *tensors], allow_unused=True), info


@pytest.mark.parametrize("speed", [0.0, 0.5])
@pytest.mark.parametrize(
    ("scene", "friction"), [("plane", 0.0), ("plane", 0.9), ("ball", 0.0), ("ball", 0.3), ("two", 0.3)]
)
def test_recorded_gradients_are_those_without(scene, friction, speed, monkeypatch):
    """Find the gradients of eager passes, which take all responses of contacts to loads, by recordings as well."""
    model = lying(scene, friction)
    constants = ["bend_twist.EI1", *(["obstacle0.friction"] if friction else [])]
    factor = trainable.scaled(model, constants)
    integrator, state = ImplicitEuler(2e-3), moving(model, speed)
    with torch.no_grad():
        for _ in range(16):  # steps are recorded by then, and the rod lies where it slides
            state, info = integrator.step(model, state)
    tensors = list(factor.parameters())
    expected, info = gradients(model, state, tensors)
    assert bool(info.contact["active"].any())
    for _ in range(RUNS):
        gradients(model, state, tensors)
    eager = []
    monkeypatch.setattr(kkt.KKTConditions, "multipliers", lambda *_: eager.append(1))
    found, _ = gradients(model, state, tensors)
    assert not eager
    for own, other in zip(found, expected, strict=True):
        # solves end within 1e-9 of the largest multiplier, and a run has three
        assert (own is None) == (other is None)
        assert own is None or float((own - other).abs().max()) <= 1e-7 * max(float(other.abs().max()), 1e-12)


def test_gradients_are_slopes():
    """Match central differences through steps in which all contacts slide, some turning, by recorded passes."""
    model = lying("plane", 0.5)
    with torch.no_grad():
        state = moving(model, 0.5)
        for _ in range(16):
            state, info = ImplicitEuler(2e-3).step(model, state)
    assert bool(info.contact["active"].any())
    for _ in range(RUNS):
        (by_velocity, *_), _ = gradients(model, state, [])
    way = torch.randn(state.velocity.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slopes = []
    integrator = ImplicitEuler(2e-3, **EXACT)
    weight = torch.randn(model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for sign in (1, -1):
        after = state.replace(velocity=state.velocity + sign * 1e-6 * way)
        for _ in range(3):
            after, _ = integrator.step(model, after)
        slopes.append(float((after.q * weight).sum() + 0.01 * (after.velocity * weight).sum()))
    assert float((by_velocity * way).sum()) == pytest.approx((slopes[0] - slopes[1]) / 2e-6, rel=1e-5)


def test_points_between_nodes():
    """Find the same gradients where contacts share nodes, and more of them bear loads than there are unknowns."""
    model = lying("ball", 0.3, spacing=4e-3)
    with torch.no_grad():
        state = moving(model, 0.0)
        for _ in range(16):
            state, _ = ImplicitEuler(2e-3).step(model, state)
    expected, _ = gradients(model, state, [])
    for _ in range(RUNS):
        found, _ = gradients(model, state, [])
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-6 * float(other.abs().max()))

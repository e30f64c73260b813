"""Friction of rods that rub otherwise along themselves than across: forwards, backwards, sideways."""

import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    follow,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.contact import (
    Barrier,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.errors import InputError
from torchdismech.testing import check_force

SIDEWAYS, FORWARD, BACKWARD, SLIP, RADIUS, G = 0.5, 0.1, 0.9, 1e-3, 5e-3, 9.81
FLOOR = HalfSpace((0, 0, 0), (0, 0, 1))
LENGTH, NODES = 0.08, 5


def friction(**others) -> Friction:
    """Return the law of scales: easy forwards, hard backwards."""
    return Friction(SIDEWAYS, SLIP, forward_coefficient=FORWARD, backward_coefficient=BACKWARD, **others)


def lying(law: Friction, along=(1.0, 0.0, 0.0), stiffness=100.0, spacing=None, shape=FLOOR):
    """Return a rod that lies on a floor, its middle at the origin, and its nodes at rest on the penalty."""
    along = torch.tensor(along, dtype=torch.float64)
    middle = torch.tensor([0.0, 0.0, RADIUS], dtype=torch.float64)
    builder = RobotBuilder()
    ends = (middle - LENGTH / 2 * along).tolist(), (middle + LENGTH / 2 * along).tolist()
    builder.add_rod(straight(*ends, NODES), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -G)))
    builder.add_contact(Obstacle(shape, Penalty(stiffness, 1e-4), law, name="floor", spacing=spacing))
    return builder.finalize()


def moving(model, velocity, batch=1):
    """Return the robots with all nodes at a velocity (3,) or (B, 3)."""
    state = model.initial_state(batch)
    nodes = torch.as_tensor(velocity, dtype=torch.float64).expand(batch, 3).repeat(1, model.body.n_nodes)
    rest = state.velocity[:, nodes.shape[1] :]
    return state.replace(velocity=torch.cat([nodes, rest], 1))


@pytest.mark.parametrize("degrees", [0, 30, 90, 150, 180, 240, 300])
def test_force_of_a_rod_that_slides(degrees):
    """Find the force of the formula of Hu et al.: each component of the direction with a coefficient of its own."""
    model = lying(friction(), along=(0.6, 0.8, 0.0))
    angle = math.radians(degrees)
    tangent, side = torch.tensor([0.6, 0.8, 0.0]).double(), torch.tensor([-0.8, 0.6, 0.0]).double()
    direction = math.cos(angle) * tangent + math.sin(angle) * side
    state = moving(model, 100 * SLIP * direction)
    force = model.obstacles[0](state, Control()).view(1, -1)[:, : 3 * NODES].view(NODES, 3)
    load = force[:, 2]
    mu = FORWARD if math.cos(angle) > 0 else BACKWARD
    expected = -(mu * math.cos(angle) * tangent + SIDEWAYS * math.sin(angle) * side)
    # the harder way falls short by a fifteenth of the difference at the slip velocity, of which these are 100
    atol = (BACKWARD - FORWARD) / 15 / 100
    assert torch.allclose(force[:, :2] / load[:, None], expected[:2].expand(NODES, 2), rtol=0, atol=1.01 * atol)


@pytest.mark.parametrize("response", [Penalty(100.0, 2e-3), Barrier(1.0, 2e-3)], ids=["penalty", "barrier"])
@pytest.mark.parametrize("static", [None, 0.8])
@pytest.mark.parametrize("spacing", [None, 0.01])
def test_derivatives(response, static, spacing):
    """Match autograd and differences, on a round thing, whose normals turn, for a rod that slides and creeps."""
    builder, generator = RobotBuilder(), torch.Generator().manual_seed(3)
    gap = 1e-3 if isinstance(response, Barrier) else 0.0
    points = straight((-0.02, 0, 0.05 + RADIUS + gap), (0.02, 0.01, 0.05 + RADIUS + gap), NODES)
    builder.add_rod(points, Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.05), response, friction(static=static), spacing=spacing))
    model = builder.finalize()
    state = model.initial_state(3)
    noise = torch.randn(state.velocity.shape, generator=generator, dtype=torch.float64)
    speeds = torch.tensor([[0.3], [1.0], [8.0]], dtype=torch.float64)
    check_force(model.obstacles[0], model, state.replace(velocity=SLIP * speeds * noise)).raise_if_failed()


def test_the_same_coefficient_all_around():
    """Slide as by one coefficient where all three are the same."""
    ends = []
    for law in (Friction(0.4, SLIP), Friction(0.4, SLIP, forward_coefficient=0.4)):
        model = lying(law, along=(0.6, 0.8, 0.0))
        start = moving(model, (0.2, 0.1, 0.0))
        ends.append(rollout(model, start, ImplicitEuler(2e-3), 20, progress=False).state.q)
    # steps are solved to 1e-6 of the loads, .01 N on nodes of 1 g: 1e-8 N dt^2 / m a step
    assert torch.allclose(*ends, atol=1e-10)
    assert float(ends[0][0, 0]) > 1e-3 - LENGTH / 2 * 0.6


def test_robots_of_a_batch():
    """Step robots with coefficients and directions of their own as each alone."""
    ahead, velocity = [0.05, 0.2, 0.6], torch.tensor([[0.2, 0.0, 0.0], [-0.1, 0.1, 0.0], [0.0, 0.2, 0.0]])
    law = {"forward_coefficient": torch.tensor(ahead)[:, None], "backward_coefficient": 0.8}
    model = lying(Friction(SIDEWAYS, SLIP, **law))
    all_together = rollout(model, moving(model, velocity, 3), ImplicitEuler(2e-3), 15, progress=False).state.q
    for robot, own in enumerate(ahead):
        alone = lying(Friction(SIDEWAYS, SLIP, forward_coefficient=own, backward_coefficient=0.8))
        found = rollout(alone, moving(alone, velocity[robot]), ImplicitEuler(2e-3), 15, progress=False).state.q
        # single precision of the coefficient that tensors give; beside it other ways through vectorised code
        assert torch.allclose(all_together[robot], found[0], atol=1e-8)


def test_rods_on_a_slope():
    """Let a rod slide down along itself, as its small coefficient says, and hold the others."""
    slope = math.atan(0.3)  # FORWARD < 0.3 < SIDEWAYS < BACKWARD
    found = {}
    for name, along in {"head first": (1.0, 0, 0), "tail first": (-1.0, 0, 0), "across": (0, 1.0, 0)}.items():
        builder = RobotBuilder()
        along = torch.tensor(along, dtype=torch.float64)
        ends = [(torch.tensor([0, 0, RADIUS]) + s * LENGTH / 2 * along).tolist() for s in (-1, 1)]
        builder.add_rod(straight(*ends, NODES), Circle(RADIUS), Material(1e7, 1000.0))
        builder.add_force(forces.Gravity((G * math.sin(slope), 0, -G * math.cos(slope))))
        builder.add_contact(Obstacle(FLOOR, Penalty(100.0, 1e-4), friction(), name="slope"))
        model = builder.finalize()
        run = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 100, progress=False)
        assert not bool(run.failed.any())
        found[name] = run.state.node_velocities[0, :, 0]
    time = 0.2
    # 0.5 %: it begins with a landing, in which loads swing
    assert torch.allclose(
        found["head first"], torch.tensor(time * G * (math.sin(slope) - FORWARD * math.cos(slope))).double(), rtol=5e-3
    )
    # held: it creeps at less than the slip velocity
    assert float(found["tail first"].abs().max()) < SLIP and float(found["across"].abs().max()) < SLIP


def test_a_rod_that_stands_up_has_one_coefficient():
    """Rub all around alike under a rod that stands on its end, and lose the difference by the square of the cosine."""
    for degrees in (0, 45, 90):
        angle = math.radians(degrees)
        along = torch.tensor([math.cos(angle), 0, math.sin(angle)]).double()
        builder = RobotBuilder()
        end = torch.tensor([0, 0, RADIUS - 1e-4]).double()
        builder.add_rod(straight(end.tolist(), (end + 0.1 * along).tolist(), 3), Circle(RADIUS), Material(1e7, 1000.0))
        builder.add_contact(Obstacle(FLOOR, Penalty(100.0, 1e-4), friction(), nodes=[0]))
        model = builder.finalize()
        force = model.obstacles[0](moving(model, (1.0, 0, 0)), Control())[0, :3]
        expected = SIDEWAYS + (FORWARD - SIDEWAYS) * math.cos(angle) ** 2
        assert float(-force[0] / force[2]) == pytest.approx(expected, rel=1e-12)


def test_gradients_by_coefficients():
    """Match differences of where a rod comes to, by all three coefficients."""
    model = lying(friction(), along=(0.6, 0.8, 0.0))
    start = moving(model, (0.3, 0.1, 0.0))
    names = ["floor.friction", "floor.forward_friction"]

    def end(values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, values.unbind(0), strict=True))
        integrator = ImplicitEuler(2e-3, relative_tolerance=1e-11)
        return unroll(model, start, integrator, 10, lambda time, model: Control(values=given)).state.q[0, :2].sum()

    values = torch.tensor([SIDEWAYS, FORWARD], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(end(values), values)
    for k in range(2):
        h = 1e-5
        step = h * torch.eye(2, dtype=torch.float64)[k]
        with torch.no_grad():
            difference = (end(values + step) - end(values - step)) / (2 * h)
        # 1e-5: h^2, and what is left of the steps' residuals over h
        assert float(found[k]) == pytest.approx(float(difference), rel=1e-5)


def test_what_is_refused():
    """Name what coefficients along rods do not go with."""
    along = {"forward_coefficient": 0.1}
    with pytest.raises(InputError, match=r"Friction.forward_coefficient: rods that touch each other have one"):
        SelfContact(Penalty(10.0, 1e-3), Friction(0.3, SLIP, **along))
    with pytest.raises(InputError, match=r"Friction.forward_coefficient: Complementarity has one coefficient"):
        Obstacle(FLOOR, Complementarity(), Friction(0.3, **along))
    with pytest.raises(InputError, match=r"Friction.coefficient: expected more than 0 beside coefficients along rods"):
        Friction(0.0, SLIP, **along)
    with pytest.raises(InputError, match=r"Friction.backward_coefficient: expected 0 or more, got -0.1"):
        Friction(0.3, SLIP, backward_coefficient=-0.1)
    builder = RobotBuilder()
    builder.add_shell([[0, 0, 0], [1, 0, 0], [0, 1, 0.0]], [[0, 1, 2]], 0.01, Material(1e6, 1000.0), "hinge")
    builder.add_contact(Obstacle(FLOOR, Penalty(10.0, 1e-3), Friction(0.3, SLIP, **along), name="ground"))
    with pytest.raises(InputError, match=r"no rod touches it; leave out forward_coefficient and backward"):
        builder.finalize()
    model = lying(friction())
    with pytest.raises(InputError, match=r"floor.friction.*: expected more than 0, got 0"):
        ImplicitEuler(2e-3).step(
            model, model.initial_state(), Control(values={"floor.friction": torch.zeros(1, 1).double()})
        )


def test_where_there_is_no_tangent():
    """Rub all around alike where rods meet head to head, and by the tangents of the edges elsewhere."""
    builder = RobotBuilder()
    first = builder.add_rod(straight((-0.1, 0, RADIUS), (0, 0, RADIUS), 3), Circle(RADIUS), Material(1e7, 1000.0))
    second = builder.add_rod(straight((0.1, 0, RADIUS), (0, 0, RADIUS), 3), Circle(RADIUS), Material(1e7, 1000.0))
    assert first[-1] == second[-1]
    builder.add_contact(Obstacle(FLOOR, Penalty(100.0, 1e-4), friction(), spacing=None))
    model = builder.finalize()
    obstacle, state = model.obstacles[0], model.initial_state()
    axes = obstacle.surface(state).axis
    assert axes[0, :, 0].tolist() == [1, 1, 1, -1, -1]
    assert obstacle.rod_tangents.directions(axes)[0, :, 0].tolist() == [1, 1, 0, -1, -1]


def test_between_backwards_and_forwards_friction_grows_with_the_velocity():
    """Hold a rod by more, the faster it slides along itself, also where one way is far harder than the other."""
    model = lying(Friction(SIDEWAYS, SLIP, forward_coefficient=0.0, backward_coefficient=2.0))
    speeds = SLIP * torch.linspace(-2, 2, 801, dtype=torch.float64)
    velocity = torch.nn.functional.pad(speeds[:, None], (0, 2))
    force = model.obstacles[0](moving(model, velocity, 801), Control())[:, 0]
    # rounding: .02 N of weight
    assert float(force.diff().max()) < 1e-15


def test_equilibria_on_a_belt_are_refused():
    """Say that `Static` and `follow` know the tangents of the start alone; of a floor at rest that it does nothing."""
    for key in ({"forward_coefficient": 0.1}, {}):
        builder = RobotBuilder()
        rod = builder.add_rod(straight((0, 0, RADIUS), (0.1, 0, RADIUS), NODES), Circle(RADIUS), Material(1e7, 1000.0))
        builder.clamp(nodes=rod[:2].tolist())
        builder.add_force(forces.Gravity((0, 0, -G)))
        belt, law = Path.uniform((0.0, 1.0, 0.0)), (Penalty(100.0, 1e-4), Friction(0.3, SLIP, **key))
        builder.add_contact(Obstacle(FLOOR, *law, path=belt, name="belt", rolling=not key))
        model = builder.finalize()
        with pytest.raises(InputError, match="Static: obstacle 'belt' .* goes by the tangents of the start"):
            Static().step(model, model.initial_state())
        with pytest.raises(InputError, match="follow: obstacle 'belt' .* goes by the tangents of the start"):
            follow(model, model.initial_state())
    model = lying(friction())
    with pytest.warns(RuntimeWarning, match="friction"):
        Static().step(model, model.initial_state())

"""Each robot of a batch is on its own, whatever contacts the others have."""

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    Newmark,
    RobotBuilder,
    Status,
    forces,
    straight,
)
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle, Penalty, SelfContact, Sphere

INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark}
RESPONSES = {"penalty": Penalty, "barrier": Barrier}
NODES = 7


def column(*values) -> torch.Tensor:
    """Return one value of each robot."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def robot(kind: str, rows=slice(None), friction: bool = True) -> Model:
    """Return two rods, one above the other, over a floor and a ball: four robots unlike in all that contact knows.

    Robot 0 touches nothing, 1 the floor, 2 itself, 3 all with all its nodes.
    """
    radius = column(2e-3, 2e-3, 3e-3, 4e-3)[rows]
    stiffness = column(200.0, 400.0, 300.0, 500.0)[rows] * (0.2 if kind == "barrier" else 1.0)
    mu, slip = column(0.1, 0.3, 0.5, 0.7)[rows], column(0.02, 0.05, 0.03, 0.04)[rows]
    floor = torch.tensor([[0, 0, -1.0], [0, 0, -0.0045], [0, 0, -0.5], [0, 0, -0.007]], dtype=torch.float64)[rows]
    ball = torch.tensor([[0, 0, 1.0], [0, 0, 1.0], [0, 0, 1.0], [0, 0, 0.0365]], dtype=torch.float64)[rows]
    builder = RobotBuilder()
    material = Material(column(1e6, 2e6, 3e6, 1e6)[rows], 1000.0)
    first = straight((-0.03, 0, 0), (0.03, 0, 0), NODES)
    second = straight((-0.02, -0.02, 0.011), (0.02, 0.02, 0.011), NODES)
    for nodes in (first, second):
        builder.add_rod(nodes, Circle(2e-3), material, contact_radius=radius)
    builder.add_force(forces.Gravity((0, 0, -9.81)))

    def law():
        return RESPONSES[kind](stiffness, 3e-3), Friction(mu, slip) if friction else None

    builder.add_contact(Obstacle(HalfSpace(floor, (0, 0, 1.0)), *law(), name="floor"))
    builder.add_contact(Obstacle(Sphere(ball, 0.02), *law(), name="ball"))
    builder.add_contact(SelfContact(*law(), ring=2))
    return builder.finalize()


def started(model: Model, rows=slice(None)):
    """Return a state in which each robot's rods move in a way of their own."""
    velocity = torch.zeros(4, 2, NODES, 3, dtype=torch.float64)
    velocity[:, :, :, 0] = column(0.1, 0.2, -0.1, 0.05)[:, :, None]
    velocity[:, 1, :, 2] = column(0.3, 0.1, -0.4, -0.1)
    velocity[:, 0, :, 2] = column(-0.1, -0.2, 0.2, -0.05)
    flat = torch.cat([velocity.flatten(1), velocity.new_zeros(4, model.body.n_angles)], dim=1)
    return model.initial_state(velocity=flat[rows])


def contacts(model: Model, state) -> list[int]:
    """Return how many nodes of each robot feel a contact force."""
    force = sum(o(state, Control()) for o in model.obstacles)
    pairs = model.contact.may_touch(state.q, state.q, torch.zeros_like(state.time)).listed
    force = force + model.self_contacts.force(pairs, state.q, state.velocity)
    return (force[:, : 6 * NODES].unflatten(1, (-1, 3)) != 0).any(2).sum(1).tolist()


@pytest.mark.parametrize("kind", RESPONSES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_row_is_the_robot_alone(integrator, kind):
    """Match each robot stepped alone."""
    rule = INTEGRATORS[integrator](1e-3, force_tolerance=1e-10, relative_tolerance=1e-10)
    together = robot(kind)
    state = started(together)
    alone = [(robot(kind, [i]), started(robot(kind, [i]), [i])) for i in range(4)]
    states, most = [s for _, s in alone], np.zeros(4, dtype=int)
    for _ in range(5):
        state, info = rule.step(together, state, throw=True)
        most = np.maximum(most, contacts(together, state))
        for i, (model, _) in enumerate(alone):
            states[i], own = rule.step(model, states[i], throw=True)
            # residuals of 1e-10 N over masses of 0.1 g / (1 ms)^2 are 1e-12 m; iterations differ by how sums round
            assert float((state.q[i] - states[i].q[0]).abs()[: 6 * NODES].max()) < 1e-10
            assert abs(int(info.iterations[i]) - int(own.iterations[0])) <= 1
    assert most[0] == 0 and most[1] > 0 and most[2] > 0 and most[3] >= 9, most


@pytest.mark.parametrize("poison", ["nan", "speed"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_failing_row_leaves_the_others_alone(integrator, poison):
    """Step the others as if the failing robot were not there; it says why it failed and stays where it was."""
    model = robot("penalty")
    healthy = started(model)
    rule = INTEGRATORS[integrator](1e-3, max_iterations=25)
    control, state = None, healthy
    if poison == "nan":
        force = torch.zeros_like(healthy.q)
        force[2, 5] = torch.nan
        control = Control(force=force)
    else:  # one rod through the other
        velocity = healthy.velocity.clone()
        velocity[2, 3 * NODES + 2 : 6 * NODES : 3] = -60.0
        state = healthy.replace(velocity=velocity)
    after, info = rule.step(model, state, control)
    good, _ = rule.step(model, healthy, throw=True)
    others = [0, 1, 3]
    assert int(info.status[2]) == {"nan": Status.NOT_FINITE, "speed": Status.PASSED_THROUGH}[poison]
    assert info.status[others].tolist() == [Status.CONVERGED] * 3
    assert torch.equal(after.q[2], state.q[2])
    # different sets of rows still iterate: rounding
    assert float((after.q[others] - good.q[others]).abs().max()) < 1e-10


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_node_shot_through_the_ball(integrator):
    """Step the others where one robot's nodes pass through an obstacle."""
    model = robot("penalty")
    healthy = started(model)
    velocity = healthy.velocity.clone()
    velocity[3, 3 * NODES + 2 : 6 * NODES : 3] = 100.0
    rule = INTEGRATORS[integrator](1e-3, max_iterations=25)
    after, info = rule.step(model, healthy.replace(velocity=velocity))
    good, _ = rule.step(model, healthy, throw=True)
    assert info.status.tolist() == [0, 0, 0, int(Status.PASSED_THROUGH)]
    assert float((after.q[:3] - good.q[:3]).abs().max()) < 1e-10

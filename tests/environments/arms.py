"""Hanging arms that reach for targets, as environments."""

import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    forces,
    straight,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle
from torchdismech.environments import (
    Actuator,
    Environment,
    Task,
    node_positions,
    node_velocities,
)

NODES = 6


def arm(floor=False, dtype=torch.float64, nodes=NODES):
    """Return hanging arms; on request with a floor that they touch."""
    points, material = straight((0, 0, 0), (0.2, 0, 0), nodes), Material(1e6, 1000.0, relaxation_time=0.01)
    builder = rod_through(points, Circle(5e-3), material, [forces.Gravity((0, 0, -9.81))])
    if floor:
        ground = HalfSpace((0, 0, -0.02), (0, 0, 1))
        builder.add_contact(Obstacle(ground, Complementarity(), Friction(0.3), name="ground"))
    return builder.finalize(compile=False, dtype=dtype)


def bend(model):
    """Return an actuator of two numbers: curvature about either axis, alike in all springs."""
    springs = len(model.springs)
    return Actuator("natural_curvature", torch.block_diag(*[torch.full((springs, 1), 0.1)] * 2))


def reach(model, **changes):
    """Return a task: the tip to a random target; the weight of the arm is another in each episode."""
    parts = {
        "actions": [bend(model)],
        "observations": [node_positions([NODES - 1]), node_velocities([NODES - 1]), lambda m, s, goal: goal["target"]],
        "reward": lambda m, step: -(step.after.positions[:, -1] - step.goal["target"]).norm(dim=1),
        "goal": lambda m, draws: {"target": draws.uniform(-0.05, 0.05, 3)},
        "start": lambda m, draws: {"velocity": 0.1 * draws.uniform(-1.0, 1.0, m.n_dofs) * m.free},
        "constants": lambda m, draws: {"Gravity.acceleration": draws.uniform(-9.0, 9.0, 3)},
    }
    return Task(**{**parts, **changes})


def environment(batch=5, floor=False, model=None, horizon=4, integrator=None, seed=7, **changes):
    """Return an environment of arms."""
    model = arm(floor=floor) if model is None else model
    integrator = ImplicitEuler(0.02) if integrator is None else integrator
    return Environment(model, integrator, reach(model, **changes), batch, horizon=horizon, seed=seed)


def actions(batch, k=0):
    """Return actions that differ from robot to robot."""
    return torch.linspace(-1, 1, 2 * batch, dtype=torch.float64).reshape(batch, 2).roll(k, 0)


def same(a, b, rows, rounding=0.0):
    """Return whether two episodes agree, bit for bit or up to rounding, in some robots."""
    fields = [*zip(a.state.fields(), b.state.fields(), strict=True)]
    fields += [(a.goal[k], b.goal[k]) for k in a.goal] + [(a.constants[k], b.constants[k]) for k in a.constants]
    fields += [(a.seed, b.seed), (a.episode, b.episode), (a.actions, b.actions)]
    return all(torch.allclose(x[rows], y[rows], rtol=0, atol=rounding) for x, y in fields)

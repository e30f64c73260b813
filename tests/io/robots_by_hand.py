"""Scenes of a rod and of a shell, the same robots built by hand, and whether both run alike to the last bit."""

import torch

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, rollout

NODES = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.3, 0.0, 0.0], [0.4, 0.0, 0.0]]
EDGES = [[0, 1], [1, 2], [2, 3], [3, 4]]
SQUARE = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.1, 0.1, 0.0]]
FACES = [[0, 1, 2], [1, 3, 2]]
HEAD = {
    "rod": f"""
[robot]
nodes = {NODES}
rod_edges = {EDGES}
[environment]
gravity = [1.0, 2.0, -9.81]
[[clamp]]
nodes = [0, 1]
[rod]
section = {{shape = "circle", radius = 5e-3}}
youngs = 1e6
density = 1000.0
""",
    "shell": f"""
[robot]
nodes = {SQUARE}
triangles = {FACES}
[environment]
gravity = [1.0, 2.0, -9.81]
[[clamp]]
nodes = [0, 1]
[shell]
thickness = 1e-3
youngs = 1e6
density = 1000.0
""",
}
SIMULATION = "[simulation]\ndt = 0.01\nduration = 0.05\n"


def built(kind, damping=0.0, shell=(), nodes=None):
    """Return the robots of the scenes above, built by hand."""
    builder = RobotBuilder()
    if kind == "rod":
        builder.add_rods(NODES if nodes is None else nodes, EDGES, Circle(5e-3), Material(1e6, 1000.0, 0.5, damping))
    else:
        builder.add_shell(SQUARE, FACES, 1e-3, Material(1e6, 1000.0, 0.5, damping), *shell)
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
    return builder


def by_hand(builder, integrator=None, batch=None, **finalized):
    """Return the trajectory of a robot built by hand."""
    model = builder.finalize(**finalized)
    trajectory = rollout(model, model.initial_state(batch), integrator or ImplicitEuler(0.01), 5)
    assert not trajectory.failed.any()
    return trajectory


def same(found, expected, other):
    """Compare all bits of two runs, and see that the key makes a difference to another one."""
    assert torch.equal(found.positions, expected.positions) and torch.equal(found.velocities, expected.velocities)
    assert not torch.equal(found.positions, other.positions)

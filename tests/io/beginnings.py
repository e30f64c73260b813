"""A scene of a rod to which [initial] is added, the same rod built by hand, and what tests do with both."""

import torch

from torchdismech import ImplicitMidpoint, Material, Rectangle, RobotBuilder, Trajectory, forces, rollout
from torchdismech.io.run import run_scene

NODES = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.3, 0.0, 0.0], [0.4, 0.0, 0.0]]
EDGES = [[0, 1], [1, 2], [2, 3], [3, 4]]
ROD = """
[rod]
section = {shape = "rectangle", width = 8e-3, height = 4e-3}
youngs = 1e6
density = 1000.0
"""
ROBOT = f"[robot]\nnodes = {NODES}\nrod_edges = {EDGES}\n"
GRAVITY = "[environment]\ngravity = [0, 1.0, -9.81]\n"
CLAMP = "[[clamp]]\nnodes = [0, 1]\n"
STEPS = '[simulation]\ndt = 0.01\nduration = 0.1\nintegrator = "implicit_midpoint"\n'
FREE = ROBOT + ROD + GRAVITY + STEPS
HELD = FREE + CLAMP
BENT = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.01], [0.3, 0.01, 0.03], [0.39, 0.02, 0.06]]


def built(clamped=False):
    """Return the model of the scenes above, built by hand."""
    builder = RobotBuilder()
    builder.add_rods(NODES, EDGES, Rectangle(8e-3, 4e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity([0.0, 1.0, -9.81]))
    if clamped:
        builder.clamp(nodes=[0, 1])
    return builder.finalize()


def same(found, model, state):
    """Compare all bits of a scene's run with a rollout from Python."""
    expected = rollout(model, state, ImplicitMidpoint(0.01), 10)
    for name in ("positions", "velocities", "twist"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def double(*numbers):
    """Return a tensor of float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def table(rows, between=" "):
    """Return rows as text."""
    return "\n".join(between.join(map(repr, row)) for row in rows)


def written(load, tmp_path, text, name="run.h5"):
    """Run a scene into a file."""
    scene = load(text)
    run_scene(scene, scene.build(), tmp_path / name)
    return Trajectory.load(tmp_path / name)

"""Runs to look at: short ones, made anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, State, Trajectory
from torchdismech.io.run import run_scene
from torchdismech.io.scene import load_scene
from torchdismech.runs.rollout import frames
from torchdismech.trajectory import Frame, Recorder

# a strip of a rectangular section and a round rod on it, a shell beside them, a floor and a moving ball
SCENE = """
[robot]
nodes = [[0, 0, 0.1], [0.1, 0, 0.1], [0.2, 0, 0.1], [0.2, 0.1, 0.1], [0.1, 0.1, 0.1], [0.3, 0, 0.1]]
rod_edges = [[0, 1], [1, 2], [2, 5]]
triangles = [[1, 2, 3], [1, 3, 4]]
[[rod]]
section = {shape = "rectangle", width = 4e-3, height = 2e-2}
youngs = 1e6
density = 1000.0
nodes = [0, 1, 2]
[[rod]]
section = {shape = "circle", radius = 5e-3}
youngs = 1e6
density = 1000.0
nodes = [2, 5]
[shell]
thickness = 1e-3
youngs = 1e6
density = 1000.0
[[clamp]]
nodes = [0]
direction = "rest"
[environment]
gravity = [0, 0, -9.81]
[floor]
stiffness = 100.0
[[obstacle]]
shape = "sphere"
center = [0.4, 0, 0.2]
radius = 0.03
stiffness = 50.0
velocity = [0.1, 0, 0]
[simulation]
dt = 0.01
duration = 0.05
[batch]
size = 3
[batch.randomize]
"rod.1.section.radius" = {values = [5e-3, 6e-3, 7e-3]}
[output]
every = 1
"""


def run_of(folder: Path, text: str = SCENE) -> Path:
    """Return the trajectory file of a scene."""
    scene = folder / "scene.toml"
    scene.write_text(text)
    loaded = load_scene(scene)
    run_scene(loaded, loaded.build("cpu", False), folder / "run.h5")
    return folder / "run.h5"


def twisting(every: int = 1) -> tuple[Trajectory, list[State]]:
    """Return a run of two rods bent and twisted as they swing, and the state of each of its frames."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 0], [0.3, 0, 0], 7), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize()
    push = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    push[0, 19], push[1, 19], push[1, 20] = 2.0, -1.0, 1.5  # m/s, the last node, to the side and up
    push[:, 3 * model.body.n_nodes :][:, :6] = 20.0  # rad/s
    recorder, states = Recorder(), []
    recorder.start(1, model.rod_edges, model.triangles)
    for frame in frames(model, model.initial_state(2, velocity=push), ImplicitEuler(5e-3), 8, every=every):
        recorder.append(frame)
        states.append(frame.state)
    return recorder.trajectory(), states


def made_up(nodes: np.ndarray, edges, triangles=(), twist: float = 0.0) -> Trajectory:
    """Return a run of frames of one robot: nodes (T, N, 3), with straight reference frames and a twist of each edge."""
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    triangles = np.array(triangles, dtype=np.int64).reshape(-1, 3)
    recorder = Recorder()
    recorder.start(len(nodes), edges, triangles)
    zero = torch.zeros(1, dtype=torch.long)
    for step, x in enumerate(nodes):
        angles = twist * torch.arange(len(edges), dtype=torch.float64)
        q = torch.cat([torch.tensor(x, dtype=torch.float64).flatten(), angles])[None]
        t = torch.tensor(x[edges[:, 1]] - x[edges[:, 0]], dtype=torch.float64)[None]
        t = t / t.norm(dim=-1, keepdim=True)
        d = torch.linalg.cross(t, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand_as(t))
        d = torch.where(t[..., :1] < 0, -d, d)  # an edge that is turned round has the director of its neighbours
        time = torch.full((1,), 0.1 * step, dtype=torch.float64)
        state = State(q, torch.zeros_like(q), q, d, t, d[:, :, 0], time)
        recorder.append(Frame(step, time[0], state, zero, zero, time, zero, {}))
    return recorder.trajectory()

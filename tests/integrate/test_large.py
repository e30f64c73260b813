"""Robots of thousands of nodes: made and stepped in seconds."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, meshes, straight

OPTIONS = {"relative_tolerance": 1e-9}


def rod():
    """Return a clamped rod of 5000 nodes."""
    return rod_through(straight((0, 0, 0), (50, 0, 0), 5000), Circle(1e-2), Material(1e7, 1000.0))


def shell():
    """Return a plate of 2601 nodes and 5000 triangles, held at one side."""
    mesh = meshes.rectangle(0.4, 0.4, 0.008, "right")
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 2e-3, Material(1e7, 1200.0, 0.3))
    builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    return builder


@pytest.mark.parametrize("make", [rod, shell])
def test_large_robots_take_few_iterations(make):
    """Step a large robot; keeping the lengths of edges takes it to the same places in fewer iterations, or as many."""
    builder = make()
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    assert model.frames._length_preserving.enabled and not model.frames._length_preserving.dense
    ends, iterations = [], []
    for enabled in (True, False):
        model.frames._length_preserving.enabled = enabled
        state, count = model.initial_state(batch=1), 0
        for _ in range(3):
            state, info = ImplicitEuler(1e-2, **OPTIONS).step(model, state, throw=True)
            count += int(info.iterations)
        ends.append(state.q)
        iterations.append(count)
    assert iterations[0] <= min(iterations[1], 12)
    # residuals of 1e-9 of the forces (weights), of what moves by 6 mm in three steps
    assert (ends[0] - ends[1]).abs().max() < 1e-7
    fall = -9.81 * 1e-4 * 6  # implicit Euler: 1 + 2 + 3 times g dt^2
    far = state.positions[0, :, 2].min()
    assert torch.isclose(far, torch.tensor(fall, dtype=torch.float64), rtol=0.2)

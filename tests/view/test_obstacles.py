"""Obstacles in pictures."""

import dataclasses

import numpy as np
import pytest
import torch

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, rollout
from torchdismech.contact import Box, Capsule, Cylinder, HalfSpace, Mesh, Obstacle, Path, Penalty, Sphere
from torchdismech.view import draw_trajectory
from torchdismech.view.obstacles import surface_of

CORNERS = np.array([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
SHAPES = {
    "sphere": lambda: Sphere((0.01, 0.02, 0.03), torch.tensor([[0.04], [0.05]], dtype=torch.float64)),
    "capsule": lambda: Capsule((0, 0, 0), (0.1, 0.05, -0.02), 0.02),
    "cylinder": lambda: Cylinder((0, 0, 0), (0.1, 0.05, -0.02), 0.02),
    "box": lambda: Box((0.01, 0, 0.02), (0.1, 0.2, 0.05), (0.3, -0.2, 0.5)),
    "mesh": lambda: Mesh(CORNERS, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_surface_is_that_of_the_shape(name):
    """Have all vertices at distance zero, of the second robot's shape."""
    shape = SHAPES[name]()
    vertices, triangles = surface_of(shape, 1)
    distance = shape.distance(torch.as_tensor(np.array(vertices)).expand(2, -1, -1))[1]
    assert float(distance.abs().max()) < 1e-9  # rounding of the rotations
    assert triangles.max() < len(vertices)


@pytest.mark.parametrize("planar", [False, True])
def test_drawn_with_the_robot(planar):
    """Draw a floor and moving obstacles in space, and their sections in a plane, without widening a flat picture."""
    builder = RobotBuilder(planar=planar)
    builder.add_rod(np.linspace([0, 0, 0.05], [0.1, 0, 0.08], 5), Circle(1e-3), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1.0, 1e-3), name="floor"))
    for name, make in SHAPES.items():
        path = Path.uniform((0.0, 0.0, -0.1)) if name == "box" else None
        builder.add_contact(Obstacle(make(), Penalty(1.0, 1e-3), path=path, name=name))
    model = builder.finalize()
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    velocity[:, 2] = 0.1
    velocity[:, 1] = 0.0 if planar else 0.05
    run = rollout(model, model.initial_state(2, velocity=velocity), ImplicitEuler(1e-3), 3)
    without = dataclasses.replace(run, attributes={})
    plain, full = draw_trajectory(without, robot=1), draw_trajectory(run, robot=1)
    count = [len(f.axes[0].collections) for f in (plain, full)]
    assert count[1] > count[0]
    full.canvas.draw()

"""Small robots of which the tests of refusals ask too much."""

import numpy as np
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Material,
    RobotBuilder,
    straight,
)

MATERIAL = Material(1e6, 1000.0)


def rod(section=None, planar=False, length=0.3, material=MATERIAL, loads=(), dtype=torch.float64, **options):
    """Return a rod of four edges, clamped at its start."""
    points, builder = straight((0, 0, 0), (length, 0, 0), 5), RobotBuilder(planar=planar)
    rod_through(points, section or Circle(2e-3), material, loads, builder=builder, **options)
    return builder.finalize(dtype=dtype)


def shell(thickness=1e-3, size=0.1, material=MATERIAL):
    """Return two triangles."""
    builder = RobotBuilder()
    nodes = size * np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
    builder.add_shell(nodes, [[0, 1, 2], [1, 3, 2]], thickness, material)
    return builder.finalize()

"""Small robots with shells that several tests use: two robots in a batch, each with its own thickness and stiffness."""

from __future__ import annotations

import numpy as np
import torch

from torchdismech import Circle, Material, Model, RobotBuilder
from torchdismech.robot.body import Body

SIZE = 0.03  # m, side of a square of the patch


def patch(rows: int = 3, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and triangles of a curved and sheared patch, seen from its outside."""
    i, j = np.divmod(np.arange(rows * columns), columns)
    nodes = SIZE * np.stack([i + 0.1 * j, j + 0.05 * i, -0.15 * (i - 0.5) ** 2 + 0.05 * i * j], axis=1)
    corners = np.array([r * columns + c for r in range(rows - 1) for c in range(columns - 1)])
    a, b, c, d = corners, corners + columns, corners + columns + 1, corners + 1
    halves = np.where(
        (corners % 2 == 0)[:, None, None], np.stack([[a, b, c], [a, c, d]], 1).T, np.stack([[a, b, d], [b, c, d]], 1).T
    )
    return nodes, halves.reshape(-1, 3)


def first_normal(body: Body) -> int:
    """Return the index in q of the first mid-edge normal's angle."""
    return 3 * body.n_nodes + len(body.rod_edges) + len(body.joint_edges)


def robot(
    shape: str,
    loads=(),
    batch: bool = True,
    relaxation_time: float = 0.0,
    membrane: str = "springs",
    mass: str = "lumped",
    **more,
) -> Model:
    """Return "hinge" or "midedge", a patch held by a triangle, or "hinge_rod" or "midedge_rod": with a rod at an edge.

    `more` are energies by the name of their terms.
    """
    bending, _, rod = shape.partition("_")
    builder = RobotBuilder(mass=mass)
    nodes, triangles = patch(*(2, 3) if rod else (3, 3))
    thickness = torch.tensor([[2e-3], [3e-3]], dtype=torch.float64) if batch else 2e-3
    youngs = torch.tensor([[1e6], [2e6]], dtype=torch.float64) if batch else 1e6
    material = Material(youngs, 1000.0, 0.3, relaxation_time)
    index = builder.add_shell(nodes, triangles, thickness, material, bending, membrane=membrane)
    if rod:
        end = nodes[1]
        line = np.stack([end, end + [-0.5 * SIZE, 0, 0.8 * SIZE], end + [-0.9 * SIZE, 0.2 * SIZE, 1.5 * SIZE]])
        builder.add_rod(line, Circle(2e-3), Material(youngs, 1000.0, 0.4, relaxation_time))
    builder.clamp(nodes=index[triangles[-1]].tolist())
    for load in loads:
        builder.add_force(load)
    for term, energy in more.items():
        builder.add_energy(term, energy)
    return builder.finalize()

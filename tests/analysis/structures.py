"""Structures whose equilibrium paths the tests follow."""

import numpy as np
import torch

from torchdismech import (
    Circle,
    Material,
    RobotBuilder,
    forces,
    straight,
)

STIFFNESS = torch.tensor([[1.0], [2.0]], dtype=torch.float64)


LOAD = 0.05


def truss(stiffness=STIFFNESS):
    """Two bars that lean on each other, pressed down where they meet; they hardly resist bending there."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(
        np.array([[-1, 0, 0], [0, 0, 0.3], [1, 0, 0]]),
        Circle(0.01),
        Material(1e6, 1000.0),
        stiffness={"EA": stiffness, "EI1": 1e-12},
    )
    builder.clamp(nodes=[0, 2])
    builder.add_force(forces.PointForce([1], (0, 0, -LOAD)))
    return builder.finalize(compile=False)


def column(load, **options):
    """A column of 20 edges, clamped at its foot, with a force at its top."""
    builder = RobotBuilder(**options)
    stiffness = {"EA": 1e5, "EI1": 1.0} | ({} if builder.planar else {"EI2": 1.0, "GJ": 1.0})
    builder.add_rod(straight((0, 0, 0), (0, 0, 1), 21), Circle(0.01), Material(1e6, 1000.0), stiffness=stiffness)
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointForce([20], load))
    return builder.finalize(compile=False)

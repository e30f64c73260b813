"""The wave of natural curvature that runs down the snakes, another amplitude for each."""

from __future__ import annotations

import math

from torchdismech import Control, Model

import torch
from torch import Tensor

LENGTH = 0.1  # m
WAVES, FREQUENCY = 3, 1.0  # along the body; Hz
SLOPES = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4]  # b k of the wave y = b sin(k x - w t)
START = 0.25  # s, over which the wave grows


def wave(time: Tensor, model: Model, control: Control) -> Control:
    """Return the natural curvatures of y = b sin(k x - w t): -b k^2 sin(k x - w t), in the x-y plane."""
    k, omega = 2 * math.pi * WAVES / LENGTH, 2 * math.pi * FREQUENCY
    x = model.nodes[torch.as_tensor(model.springs[:, 1]), 0]
    voronoi = model.body.edge_length[torch.as_tensor(model.body.springs.edges)].mean(-1)
    slope = torch.tensor(SLOPES, dtype=x.dtype)[:, None]
    grown = (time / START).clamp(0, 1)[:, None]
    curvature = -slope * k * torch.sin(k * x - omega * time[:, None]) * grown * voronoi
    # the rod is along x with d1 = z and d2 = -y: kappa2 bends it towards -y
    return control.replace(natural_curvature=torch.stack([torch.zeros_like(curvature), -curvature], dim=-1))

"""How the rays flap: natural angles of the hinges on the centre line, each ray at its frequency and phase lag."""

from __future__ import annotations

import math

from torchdismech import Control, InputError, Model

import torch
from torch import Tensor

FREQUENCY = (1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5)  # Hz
LAG = tuple(math.pi / 4 * k for k in (1, -1, 2, -2) * 2)  # rad; phase of the nose ahead of the tail
AMPLITUDE = math.pi / 4  # rad


def flap(time: Tensor, model: Model, control: Control) -> Control:
    """Return natural hinge angles -A (1 + sin(2 pi f t + lag s)) on the centre line, s from -1/2 (tail) to 1/2 (nose).

    Robot k of the batch has the k-th frequency and lag.
    """
    robots = len(time)
    if robots > len(LAG):
        raise InputError(f"flap: expected at most {len(LAG)} robots, one for each lag, got {robots}")
    ends = model.nodes[torch.as_tensor(model.hinges[:, :2])]  # (H, 2, 3)
    middle = (ends[:, :, 0].abs() < 1e-9).all(dim=1)
    y = model.nodes[:, 1]
    place = ends[middle, :, 1].mean(dim=1) / (y.max() - y.min())
    frequency, lag = (time.new_tensor(values)[:robots, None] for values in (FREQUENCY, LAG))
    angle = time.new_zeros(robots, len(model.hinges))
    angle[:, middle] = -AMPLITUDE * (1 + torch.sin(2 * math.pi * frequency * time[:, None] + lag * place))
    return control.replace(natural_hinge_angle=angle)

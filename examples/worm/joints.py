"""How the worm's two joints swing: alike, the second one later by another phase for each robot."""

from __future__ import annotations

import math

from torchdismech import Control, Model

import torch
from torch import Tensor

FREQUENCY, SWING, START = 1.0, 0.35, 0.5  # Hz; rad to either side; s, over which the swing grows
PHASES = [math.pi * k / 8 for k in range(9)]  # rad, from together to opposite
WIDE = 4  # springs that make a joint


def swing(time: Tensor, model: Model, control: Control) -> Control:
    """Return the natural curvatures: those of the joints, a third and two thirds along the body."""
    springs = len(model.springs)
    grown = (time / START).clamp(0, 1)
    phase = torch.tensor(PHASES, dtype=time.dtype)
    beat = 2 * math.pi * FREQUENCY * time
    angles = SWING * grown * torch.stack([torch.sin(beat), torch.sin(beat - phase)])  # (2, B)
    curvature = torch.zeros(len(time), springs, 2, dtype=model.dtype)
    for joint, angle in zip((springs // 3, springs - springs // 3), angles, strict=True):
        first = joint - WIDE // 2
        curvature[:, first : first + WIDE, 0] = 2 * torch.tan(angle / WIDE / 2)[:, None]
    return control.replace(natural_curvature=curvature)

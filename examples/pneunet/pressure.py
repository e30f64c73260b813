"""What pressure does to the actuators: it bends each to its own natural curvature."""

from __future__ import annotations

import math

from torchdismech import Control, Model

import torch
from torch import Tensor

ANGLES = (math.pi / 4, math.pi / 2, math.pi)  # rad, by which the actuators bend without loads


def bend(time: Tensor, model: Model, control: Control) -> Control:
    """Return the natural curvatures: the same at every node of an actuator, downwards."""
    springs = len(model.springs)
    # two edges that meet at an angle a have the curvature 2 tan(a / 2)
    turn = torch.tensor(ANGLES, dtype=model.dtype, device=model.device) / springs
    kappa = (-2 * torch.tan(turn / 2))[:, None].expand(-1, springs)
    return control.replace(natural_curvature=torch.stack([kappa, torch.zeros_like(kappa)], dim=-1))

"""How the bells pulse: natural angles of all hinges, another frequency for each robot."""

from __future__ import annotations

import math

from torchdismech import Control, InputError, Model

import torch
from torch import Tensor

FREQUENCY = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)  # Hz
AMPLITUDE = 1.0  # growth of the natural angles of a contracted bell, over those at rest


def pulse(time: Tensor, model: Model, control: Control) -> Control:
    """Return the hinge angles at rest times 1 + A (1 - cos(2 pi f t)) / 2; robot k has the k-th frequency."""
    robots = len(time)
    if robots > len(FREQUENCY):
        raise InputError(f"pulse: expected at most {len(FREQUENCY)} robots, one for each frequency, got {robots}")
    frequency = time.new_tensor(FREQUENCY)[:robots]
    contraction = 0.5 * (1 - torch.cos(2 * math.pi * frequency * time))
    return control.replace(natural_hinge_angle=(1 + AMPLITUDE * contraction[:, None]) * model.body.hinge_angle)

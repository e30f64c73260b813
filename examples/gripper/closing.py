"""How the gripper closes: the fingers' natural curvature grows for a second, to another grip for each robot."""

from __future__ import annotations

import math

from torchdismech import Control, Model

import torch
from torch import Tensor

EDGES = 12  # of a finger, the palm's spoke included
GRIPS = [math.pi * k / 16 for k in range(1, 9)]  # rad, by which a finger bends: up to a quarter of a circle
CLOSING_TIME = 1.0  # s


def close(time: Tensor, model: Model, control: Control) -> Control:
    """Return the natural curvatures at the times (B,): those as built, and more above the fingers' roots."""
    own = model.natural_strains(len(time)).natural_curvature
    assert own is not None
    above = torch.as_tensor(model.springs[:, 0] != 0) & torch.as_tensor(model.springs[:, 1] != 0)  # not root, not palm
    grip = torch.tensor(GRIPS, dtype=own.dtype) * (time / CLOSING_TIME).clamp(0, 1)
    # two edges that meet at an angle a have the curvature 2 tan(a / 2)
    kappa = 2 * torch.tan(grip / (EDGES - 2) / 2)  # (B,)
    return control.replace(natural_curvature=own + kappa[:, None, None] * above[:, None] * inwards(model))


def inwards(model: Model) -> Tensor:
    """Return the direction to the gripper's axis at each spring, by the directors d1 and d2 there, (S, 2).

    A rod that bends towards b has the curvatures kappa (b . d1, b . d2).
    """
    springs = model.body.springs
    x = model.nodes[torch.as_tensor(springs.nodes)]
    tangent = torch.nn.functional.normalize(x[:, 1] - x[:, 0], dim=-1)
    d1 = model.directors[torch.as_tensor(springs.edges[:, 0])]
    d2 = torch.linalg.cross(tangent, d1)
    b = torch.nn.functional.normalize(-x[:, 1] * torch.tensor([1.0, 1.0, 0.0], dtype=x.dtype), dim=-1)
    return torch.stack([(b * d1).sum(-1), (b * d2).sum(-1)], dim=-1)

"""The perceptron that all networks here are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["mlp"]


def mlp(inputs: int, outputs: int, hidden: Sequence[int] = (32, 32), zero: bool = True) -> nn.Sequential:
    """Return a perceptron in float64 with SiLU between its layers: smooth, as second derivatives enter Newton's matrix.

    Parameters
    ----------
    zero : whether the last layer starts at zero, so that an untrained network gives zeros.
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width, dtype=torch.float64, device="cpu"), nn.SiLU()]
        inputs = width
    last = nn.Linear(inputs, outputs, dtype=torch.float64, device="cpu")
    if zero:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)

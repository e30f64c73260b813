"""Sizes that networks take, with their bounds: whoever makes one from a file checks its options against these."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from torchdismech import InputError

__all__ = ["Positive", "PositiveEach", "Rounds", "Strains", "Width", "Widths", "in_sizes", "sizes_of_strains"]

Positive = Annotated[float, Field(gt=1e-15, le=1e15)]
PositiveEach = Annotated[tuple[Positive, ...], Field(min_length=1)]
Rounds = Annotated[int, Field(ge=1, le=32)]
Strains = Annotated[int, Field(ge=1, le=3)]
Width = Annotated[int, Field(ge=1, le=4096)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]


def sizes_of_strains(strains: int, size: float | tuple[float, ...]) -> Tensor:
    """Return (strains,) sizes from one number for all, or one for each."""
    sizes = torch.as_tensor(size, dtype=torch.float64)
    if sizes.ndim > 1 or sizes.numel() not in (1, strains):
        raise InputError(f"size: expected one number, or one for each of {strains} strains, got {size}")
    return sizes.expand(strains).clone()


def in_sizes(strain: tuple[Tensor, ...], size: Tensor) -> Tensor:
    """Return as many of the first strains (S, B) as there are sizes, divided by these, (S, B, strains)."""
    return torch.stack(strain[: len(size)], dim=-1) / size

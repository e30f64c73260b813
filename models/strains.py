"""Strains as numbers of a size of one, which networks see."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech import InputError

__all__ = ["scaled_strains", "strain_sizes"]


def strain_sizes(strains: int, size: float | tuple[float, ...]) -> Tensor:
    """Return (strains,) sizes from one number for all, or one for each."""
    sizes = torch.as_tensor(size, dtype=torch.float64, device="cpu")
    if sizes.ndim > 1 or sizes.numel() not in (1, strains):
        raise InputError(f"size: expected one number, or one for each of {strains} strains, got {size}")
    return sizes.expand(strains).clone()


def scaled_strains(strain: tuple[Tensor, ...], size: Tensor) -> Tensor:
    """Return as many of the first strains (S, B) as there are sizes, divided by these, (S, B, strains)."""
    return torch.stack(strain[: len(size)], dim=-1) / size

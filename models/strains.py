"""Strains divided by their typical sizes, as networks see them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech import InputError

__all__ = ["scaled_strains", "strain_sizes"]


def strain_sizes(strains: int, size: float | tuple[float, ...]) -> Tensor:
    """Return the sizes (strains,) from one number for all strains, or one for each."""
    sizes = torch.as_tensor(size, dtype=torch.float64, device="cpu")
    if sizes.ndim > 1 or sizes.numel() not in (1, strains):
        raise InputError(f"size: expected one number, or one for each of {strains} strains, got {size}")
    return sizes.expand(strains).clone()


def scaled_strains(strain: tuple[Tensor, ...], size: Tensor) -> Tensor:
    """Return the first strains (S, B), as many as there are sizes, divided by these: (S, B, strains)."""
    return torch.stack(strain[: len(size)], dim=-1) / size

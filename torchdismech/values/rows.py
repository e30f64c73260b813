"""Tensors of the robots of a batch: splitting them into chunks, and choosing each row from one of two."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["split", "where_rows"]


def split(tensor: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Return chunks of `size` robots each; where the robots do not divide, the last chunk overlaps the one before it.

    All chunks have the same shape, so that one compiled kernel takes them. They are views, except for such a last one.
    Autograd joins their gradients at once, at a cost that does not grow with the number of chunks.
    """
    parts = list(tensor.split(size, dim))
    missing = size - parts[-1].shape[dim]
    if missing and len(parts) > 1:
        parts[-1] = torch.cat([parts[-2].narrow(dim, size - missing, missing), parts[-1]], dim)
    return parts


def where_rows(take: Tensor, first: Tensor, second: Tensor | float) -> Tensor:
    """Return the rows (B, ..) of `first` where `take` (B,) is True, else those of `second`, which may be one number."""
    return torch.where(take.view(-1, *[1] * (first.dim() - 1)), first, second)

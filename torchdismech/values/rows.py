"""Tensors of the robots of a batch: in parts, and from one of two for each robot."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["split", "where_rows"]


def split(tensor: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Return parts of `size` robots each; the last goes back into the one before it where the robots do not divide.

    All parts have the same shape, so that one compiled kernel takes them. They are views but for such a last one.
    Autograd joins their gradients at once, at a cost that does not grow with the number of parts.
    """
    parts = list(tensor.split(size, dim))
    missing = size - parts[-1].shape[dim]
    if missing and len(parts) > 1:
        parts[-1] = torch.cat([parts[-2].narrow(dim, size - missing, missing), parts[-1]], dim)
    return parts


def where_rows(take: Tensor, first: Tensor, second: Tensor | float) -> Tensor:
    """Return the rows (B, ..) of `first` where `take` (B,) holds, else those of `second`, or one number."""
    return torch.where(take.view(-1, *[1] * (first.dim() - 1)), first, second)

"""Rotations as vectors, axis times angle [rad], which optimisers may change freely."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["quaternion"]

TINY = 1e-12  # under the square root, so that it has a derivative at zero


def quaternion(vector: Tensor) -> Tensor:
    """Return the unit quaternions (..., 4), w first, of rotation vectors (..., 3); smooth at zero."""
    square = vector.square().sum(-1, keepdim=True)
    half = 0.5 * (square + TINY).sqrt()
    return torch.cat([torch.cos(half), 0.5 * torch.sinc(half / torch.pi) * vector], dim=-1) / _length(square, half)


def _length(square: Tensor, half: Tensor) -> Tensor:
    """Return the length by which `quaternion` divides: close to one, but for `TINY`."""
    return (torch.cos(half).square() + 0.25 * torch.sinc(half / torch.pi).square() * square).sqrt()

"""Unit quaternions (w, x, y, z) as rotations."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["product", "rotation_matrix"]


def product(p: Tensor, q: Tensor) -> Tensor:
    """Return the products (..., 4) of quaternions: the rotation q, then p."""
    a, b, u, v = p[..., :1], q[..., :1], p[..., 1:], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    return torch.cat([a * b - (u * v).sum(-1, keepdim=True), a * v + b * u + torch.linalg.cross(u, v)], dim=-1)


def rotation_matrix(quaternion: Tensor) -> Tensor:
    """Return the rotation matrices (..., 3, 3) of unit quaternions (..., 4)."""
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)

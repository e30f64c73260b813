"""Rotations as unit quaternions (w, x, y, z), as rotation vectors, and as matrices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["product", "rotation_matrix", "rotation_of_vector"]


def product(p: Tensor, q: Tensor) -> Tensor:
    """Return the products (..., 4) of quaternions: the rotation q, then p."""
    a, b, u, v = p[..., :1], q[..., :1], p[..., 1:], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    return torch.cat([a * b - (u * v).sum(-1, keepdim=True), a * v + b * u + torch.linalg.cross(u, v)], dim=-1)


def _products_in_matrix() -> np.ndarray:
    """Return by how much each product of two components counts in a rotation matrix less the identity, (16, 9)."""
    share = np.zeros((4, 4, 3, 3))
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        share[0, i + 1, k, j], share[0, i + 1, j, k] = 2, -2
        share[i + 1, i + 1, [j, k], [j, k]] = -2
        share[i + 1, j + 1, i, j] = share[i + 1, j + 1, j, i] = 2
    return share.reshape(16, 9)


_PRODUCTS_IN_MATRIX = _products_in_matrix()


def rotation_matrix(quaternion: Tensor) -> Tensor:
    """Return the rotation matrices (..., 3, 3) of unit quaternions (..., 4)."""
    products = (quaternion.unsqueeze(-1) * quaternion.unsqueeze(-2)).flatten(-2)
    less = (products @ torch.as_tensor(_PRODUCTS_IN_MATRIX).to(products)).unflatten(-1, (3, 3))
    return less + torch.eye(3, dtype=less.dtype, device=less.device)


def rotation_of_vector(vectors: Tensor) -> Tensor:
    """Return the matrices (..., 3, 3) of rotation vectors (..., 3) [rad], axis times angle; smooth also at zero."""
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    rows = [torch.stack(row, -1) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))]
    return torch.linalg.matrix_exp(torch.stack(rows, -2))

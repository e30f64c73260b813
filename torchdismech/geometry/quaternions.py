"""Rotations as unit quaternions (w, x, y, z), rotation vectors and matrices, and conversions between them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.frames import cross_matrix

__all__ = ["best_rotation", "conjugate", "power", "product", "rotation_matrix", "rotation_of_vector"]

TINY_ANGLE = 1e-3  # rad: below, series of two terms are right to rounding


def product(p: Tensor, q: Tensor) -> Tensor:
    """Return the products (..., 4) of quaternions, which rotate by q first, then by p."""
    a, b, u, v = p[..., :1], q[..., :1], p[..., 1:], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    return torch.cat([a * b - (u * v).sum(-1, keepdim=True), a * v + b * u + torch.linalg.cross(u, v)], dim=-1)


def _products_in_matrix() -> np.ndarray:
    """Return the coefficients (16, 9) of the products q_a q_b in the entries of the rotation matrix minus identity."""
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
    less = (products @ torch.as_tensor(_PRODUCTS_IN_MATRIX, device="cpu").to(products)).unflatten(-1, (3, 3))
    return less + torch.eye(3, dtype=less.dtype, device=less.device)


def conjugate(quaternion: Tensor) -> Tensor:
    """Return the conjugate quaternions (..., 4), which rotate back."""
    return torch.cat([quaternion[..., :1], -quaternion[..., 1:]], dim=-1)


def power(quaternion: Tensor, exponent: Tensor) -> Tensor:
    """Return the quaternions (..., 4) that rotate by a multiple (..., 1) of the angle, taken within half a turn."""
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    sine = torch.linalg.vector_norm(quaternion[..., 1:], dim=-1, keepdim=True)
    half = exponent * torch.atan2(sine, quaternion[..., :1])
    axis = quaternion[..., 1:] / torch.where(sine > 0, sine, 1.0)
    return torch.cat([torch.cos(half), torch.sin(half) * axis], dim=-1)


def best_rotation(sums: Tensor, near: Tensor, weight: float) -> Tensor:
    """Return the rotations (..., 4) R that fit vectors a to b best: the sum of b . (R a) is largest (Horn 1987).

    Parameters
    ----------
    sums : (..., 3, 3) sums of b a^T.
    near : (..., 4) rotations; where several R fit alike, the one nearest to these is taken.
    weight : of `near`, relative to the vectors.
    """
    table = torch.as_tensor(_PRODUCTS_IN_MATRIX, device="cpu").to(sums)
    form = (sums.flatten(-2) @ table.mT).unflatten(-1, (4, 4))  # the sum of b . (R a) is q . form q plus a constant
    form = form / torch.linalg.matrix_norm(form, keepdim=True).clamp(min=torch.finfo(form.dtype).tiny)
    form = form + form.mT + weight * near.unsqueeze(-1) * near.unsqueeze(-2)
    return torch.linalg.eigh(form).eigenvectors[..., -1]


def rotation_of_vector(vectors: Tensor) -> Tensor:
    """Return the matrices (..., 3, 3) of rotation vectors (..., 3), axis times angle [rad]; smooth also at zero."""
    square = (vectors * vectors).sum(-1, keepdim=True).unsqueeze(-1)
    tiny = square < TINY_ANGLE**2
    angle = torch.where(tiny, 1.0, square).sqrt()  # 1, as the branch that is not taken needs a finite gradient, too
    half = (angle / 2).sin() / angle
    first = torch.where(tiny, 1 - square / 6, angle.sin() / angle)
    second = torch.where(tiny, 0.5 - square / 24, 2 * half * half)
    outer = vectors.unsqueeze(-1) * vectors.unsqueeze(-2)
    identity = torch.eye(3, dtype=vectors.dtype, device=vectors.device)
    return identity + first * cross_matrix(vectors) + second * (outer - square * identity)

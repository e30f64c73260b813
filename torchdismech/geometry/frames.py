"""Directors along rods: parallel transport, first directors, and angles between directors.

Vectors are tensors `(..., 3)` here; the component kernels have their own transport in `rods.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3

__all__ = [
    "REST_BRANCH",
    "cross_matrix",
    "first_director",
    "rotated",
    "signed_angle",
    "transported",
    "unit",
    "unit_or_zero",
]

# rad; of the twists at rest, which are known up to whole turns, that nearest to this is taken. It is not 0, as frames
# half a turn apart are common where sides of triangles meet, and rounding must not decide between -pi and pi.
REST_BRANCH = 0.04


def unit(vector: Tensor) -> Tensor:
    """Return the vectors (..., 3) scaled to length one."""
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def unit_or_zero(vector: Tensor) -> Tensor:
    """Return the vectors (..., k) scaled to length one; zero vectors stay zero, with zero derivatives."""
    length = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    points = length != 0  # True for NaN, which is passed on
    return torch.where(points, vector / torch.where(points, length, 1.0), 0.0)


def transported(vector: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the vectors (..., 3) parallel transported from unit tangents `start` to unit tangents `end`.

    That is the rotation about start x end that takes one tangent to the other. It is undefined where they are opposite;
    the result is infinite or NaN there, which the solver reports as a folded edge.
    """
    axis = torch.linalg.cross(start, end)
    cosine = (start * end).sum(-1, keepdim=True)
    along = (axis * vector).sum(-1, keepdim=True)
    return vector * cosine + torch.linalg.cross(axis, vector) + axis * (along / (1 + cosine))


def rotated(vector: Tensor, axis: Tensor, angle: Tensor) -> Tensor:
    """Return the vectors (..., 3), which are normal to the unit `axis`, rotated about it by `angle` (...) [rad]."""
    cosine, sine = torch.cos(angle)[..., None], torch.sin(angle)[..., None]
    return vector * cosine + torch.linalg.cross(axis, vector) * sine


def signed_angle(start: Tensor, end: Tensor, axis: Tensor) -> Tensor:
    """Return the angle (...) in (-pi, pi] about the unit `axis` from `start` to `end` [rad]."""
    return torch.atan2((torch.linalg.cross(start, end) * axis).sum(-1), (start * end).sum(-1))


def first_director(tangent: Tensor) -> Tensor:
    """Return unit directors (..., 3) normal to the tangents: along t x y, or for tangents along y along z."""
    return Vec3.of(tangent).first_director().stacked()


def cross_matrix(v: Tensor) -> Tensor:
    """Return the matrices (.., 3, 3) that map u to v x u."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))

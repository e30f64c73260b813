"""Vector functions that distances of shapes are made of, safe where a vector is too short to have a direction."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3

__all__ = ["identity", "one_hot", "outer_square", "per_point", "perpendicular", "polar", "rounding", "unit"]


def polar(away: Tensor, smallest: Tensor, fallback: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length (...,) of vectors (..., 3), their direction (..., 3) and 1 / length (...,).

    A vector v no longer than `smallest` gets the direction `fallback`, its component in that direction as its length,
    and 0 as its inverse length: the cone |v| is replaced by a tangent plane at its tip.
    """
    squared = (away * away).sum(-1)
    apart = squared > smallest * smallest
    length = torch.where(apart, squared, 1.0).sqrt()  # 1, as the branch that is not taken needs a finite gradient, too
    inverse = torch.where(apart, 1 / length, 0.0)
    direction = torch.where(apart[..., None], away / length[..., None], fallback)
    return torch.where(apart, length, (away * fallback).sum(-1)), direction, inverse


def rounding(size: Tensor) -> Tensor:
    """Return the length [m] below which a difference of positions is rounding error, in a shape of this size."""
    return 4 * torch.finfo(size.dtype).eps * size.detach()


def per_point(parameter: Tensor) -> Tensor:
    """Return a vector parameter, (3,) or (B, 3), in a shape that broadcasts against points (B, N, 3)."""
    return parameter if parameter.dim() == 1 else parameter[:, None]


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., 3) scaled to length one."""
    return _UNIT.of_columns(vectors.reshape(-1, 3).t()).t().reshape(vectors.shape)


_UNIT = Fused(lambda vectors: Vec3(*vectors.unbind(0)).unit().components(), "unit vectors")


def outer_square(vectors: Tensor) -> Tensor:
    """Return the outer product (..., 3, 3) of each vector (..., 3) with itself."""
    return vectors[..., :, None] * vectors[..., None, :]


def identity(like: Tensor) -> Tensor:
    """Return the identity (3, 3) of the dtype and device of a tensor."""
    return torch.eye(3, dtype=like.dtype, device=like.device)


def one_hot(index: Tensor, count: int) -> Tensor:
    """Return the one-hot encoding (.., count) bool of indices (..).

    In place of `torch.nn.functional.one_hot`, which reads numbers on the host.
    """
    return torch.arange(count, device=index.device) == index.unsqueeze(-1)


def perpendicular(axis: Tensor) -> Tensor:
    """Return a unit vector perpendicular to each unit vector (..., 3)."""
    # the coordinate axis to which the vector is most nearly perpendicular
    other = one_hot(axis.abs().argmin(-1), 3).to(axis.dtype)
    return unit(torch.linalg.cross(axis, other))

"""Vectors and matrices by components: the form in which stencil kernels vectorise and compile.

A `Vec3` holds three equally shaped tensors. Written with it, kernels read like vector algebra while every operation
runs on contiguous scalars.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Mat3", "Vec3", "components_of", "outer_sym", "side_by_side"]


class Vec3:
    """A vector field by components."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: Tensor, y: Tensor, z: Tensor):
        self.x = x
        self.y = y
        self.z = z

    @classmethod
    def of(cls, vectors: Tensor) -> Vec3:
        """Return vectors (..., 3) by components."""
        return cls(*vectors.unbind(-1))

    def stacked(self) -> Tensor:
        """Return the vectors as one tensor (..., 3)."""
        return torch.stack((self.x, self.y, self.z), dim=-1)

    def without_y(self) -> Vec3:
        """Return the vectors with y = 0, projected on the x-z plane."""
        return Vec3(self.x, torch.zeros_like(self.y), self.z)

    def columns(self, index: Tensor) -> Vec3:
        """Return the vectors (B, K) in the columns `index` of these (B, A)."""
        return Vec3(self.x[:, index], self.y[:, index], self.z[:, index])

    def __add__(self, other: Vec3) -> Vec3:
        return Vec3(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: Vec3) -> Vec3:
        return Vec3(self.x - other.x, self.y - other.y, self.z - other.z)

    def __neg__(self) -> Vec3:
        return Vec3(-self.x, -self.y, -self.z)

    def times(self, scale) -> Vec3:
        """Return the vectors scaled; a method, as torch.compile cannot trace `Vec3 * Tensor`."""
        return Vec3(self.x * scale, self.y * scale, self.z * scale)

    def dot(self, other: Vec3) -> Tensor:
        """Return the scalar product."""
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: Vec3) -> Vec3:
        """Return the vector product."""
        return Vec3(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )

    def length(self) -> Tensor:
        """Return the lengths; their gradient at zero is zero."""
        square = self.dot(self)
        some = square > 0
        return torch.where(some, torch.sqrt(torch.where(some, square, 1.0)), 0.0)

    def unit(self) -> Vec3:
        """Return the vectors scaled to length one."""
        length = torch.sqrt(self.dot(self))
        return Vec3(self.x / length, self.y / length, self.z / length)

    def first_director(self) -> Vec3:
        """Return unit directors normal to these unit tangents t: along t x y, or for tangents along y along z."""
        beside = Vec3(-self.z, torch.zeros_like(self.y), self.x)
        # 1e-8: a tangent this close to y leaves too few digits in t x y for a direction
        parallel = beside.dot(beside) < 1e-16
        up = Vec3(-self.x * self.z, -self.y * self.z, 1 - self.z * self.z)
        either = zip(up.components(), beside.components(), strict=True)
        return Vec3(*(torch.where(parallel, *of_both) for of_both in either)).unit()

    def transported(self, start: Vec3, end: Vec3) -> Vec3:
        """Return the vectors parallel transported from unit tangents `start` to unit tangents `end`.

        It is undefined (NaN or infinite) where the two are opposite, as `frames.transported`.
        """
        axis, cosine = start.cross(end), start.dot(end)
        return self.times(cosine) + axis.cross(self) + axis.times(axis.dot(self) / (1 + cosine))

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (x, y, z)."""
        return self.x, self.y, self.z


class Mat3:
    """A matrix field by the components of its rows."""

    __slots__ = ("rows",)

    def __init__(self, *rows: Vec3):
        self.rows = rows

    @classmethod
    def diagonal(cls, scale: Tensor) -> Mat3:
        """Return the identity matrices times `scale`."""
        zero = torch.zeros_like(scale)
        return cls(Vec3(scale, zero, zero), Vec3(zero, scale, zero), Vec3(zero, zero, scale))

    @classmethod
    def cross(cls, a: Vec3) -> Mat3:
        """Return the matrices that map v to a x v."""
        zero = torch.zeros_like(a.x)
        return cls(Vec3(zero, -a.z, a.y), Vec3(a.z, zero, -a.x), Vec3(-a.y, a.x, zero))

    @classmethod
    def outer(cls, a: Vec3, b: Vec3) -> Mat3:
        """Return a b^T."""
        return cls(*(b.times(component) for component in a.components()))

    def __add__(self, other: Mat3) -> Mat3:
        return Mat3(*(a + b for a, b in zip(self.rows, other.rows, strict=True)))

    def __sub__(self, other: Mat3) -> Mat3:
        return Mat3(*(a - b for a, b in zip(self.rows, other.rows, strict=True)))

    def times(self, scale) -> Mat3:
        """Return the matrices scaled."""
        return Mat3(*(row.times(scale) for row in self.rows))

    def applied(self, vector: Vec3) -> Vec3:
        """Return the matrices times vectors."""
        return Vec3(*(row.dot(vector) for row in self.rows))

    def components(self) -> tuple[Tensor, ...]:
        """Return the nine components, row by row."""
        return tuple(x for row in self.rows for x in row.components())


def components_of(vectors: Tensor) -> Tensor:
    """Return vectors (B, A, 3) as components (3, A, B), with robots side by side in memory."""
    robots_together = vectors.flatten(1).t().contiguous()  # turned in one piece: vectors one by one take twice as long
    return robots_together.unflatten(0, vectors.shape[1:]).transpose(0, 1)


def side_by_side(*matrices: Mat3) -> list[Tensor]:
    """Return the components, row by row, of the wide matrix that has the given matrices next to each other."""
    rows = zip(*(matrix.rows for matrix in matrices), strict=True)
    return [x for row in rows for part in row for x in part.components()]


def outer_sym(a: Vec3, b: Vec3) -> tuple[Tensor, ...]:
    """Return the symmetric part of a (x) b as (xx, xy, xz, yy, yz, zz)."""
    return (
        a.x * b.x,
        0.5 * (a.x * b.y + a.y * b.x),
        0.5 * (a.x * b.z + a.z * b.x),
        a.y * b.y,
        0.5 * (a.y * b.z + a.z * b.y),
        a.z * b.z,
    )

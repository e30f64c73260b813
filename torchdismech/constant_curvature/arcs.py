r"""Kinematics of one section as an arc: its points, their rotations, and the derivatives of both by its shape.

Tensors have the batch last. A section of the length s bends by u = (ux, uy) [rad]: by the angle |u|, towards the
direction of u. Its first frame, at its start, looks along z. At the share xi of its length, with q = xi^2 u.u and the
rotation vector w = xi (-uy, ux, 0),

    p = s xi (xi b u, a),    R = 1 + a [w] + b [w]^2,
    a = sin x / x,  b = (1 - cos x) / x^2,  c = (x - sin x) / x^3,    x^2 = q.

All are functions of q that are smooth at q = 0, where the section is straight. Below q = 1 their power series are
summed, beyond it they follow from sine and cosine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Arcs", "BendFunctions", "bend_functions", "cross", "rotated"]

SERIES_BELOW = 1.0  # the q below which the power series are summed
TERMS = 11  # of each series, from 9 to 12; the first one left out is below 1e-19 at q = 1


def _series() -> list[list[float]]:
    """Return the coefficients of a, b, c, a', b', c', a'', b'' (8, TERMS) by powers of q, lowest power first."""
    a, b, c = ([(-1) ** k / math.factorial(2 * k + j) for k in range(TERMS + 2)] for j in (1, 2, 3))

    def slope(x: list[float]) -> list[float]:
        return [k * x[k] for k in range(1, len(x))]

    every = [a, b, c, slope(a), slope(b), slope(c), slope(slope(a)), slope(slope(b))]
    return [x[:TERMS] for x in every]


_COEFFICIENTS = _series()


@dataclass(frozen=True)
class BendFunctions:
    """a, b, c and their derivatives by q (one prime: d, two: dd), each of the shape of q."""

    a: Tensor
    b: Tensor
    c: Tensor
    da: Tensor
    db: Tensor
    dc: Tensor
    dda: Tensor
    ddb: Tensor


def bend_functions(q: Tensor) -> BendFunctions:
    """Return a, b, c and their derivatives at q >= 0; neither values nor gradients have a singularity at 0."""
    bent = q >= SERIES_BELOW
    series = _summed(torch.where(bent, 0.0, q))
    return BendFunctions(*torch.where(bent, _closed(torch.where(bent, q, 1.0)), series).unbind(0))


def _summed(q: Tensor) -> Tensor:
    """Return the functions (8, ...) by their power series, for q near 0."""
    square = q * q
    powers = torch.stack((torch.ones_like(q), q, square, square * q))
    fourth = square * square
    powers = torch.cat((powers, powers * fourth, powers[: TERMS - 8] * fourth.square()))
    return (q.new_tensor(_COEFFICIENTS) @ powers.flatten(1)).unflatten(1, q.shape)


def _closed(q: Tensor) -> Tensor:
    """Return the functions (8, ...) by sine and cosine, for q away from 0."""
    x, inverse = q.sqrt(), q.reciprocal()
    a = x.sin() / x
    b = (1 - x.cos()) * inverse
    c = (1 - a) * inverse
    da = 0.5 * (c - b)
    db = 0.5 * (a - 2 * b) * inverse
    dc = -(da + c) * inverse
    return torch.stack([a, b, c, da, db, dc, 0.5 * (dc - db), 0.5 * (da - 4 * db) * inverse])


@dataclass(frozen=True)
class Arcs:
    """Points of sections in each section's first frame, for S sections, G points on each and B robots.

    Attributes
    ----------
    length, bend : (S, 1, B) s [m] and (2, S, 1, B) u [rad].
    share : (G, 1) xi of the points.
    functions : a, b, c and their derivatives at the points, each (S, G, B).
    """

    length: Tensor
    bend: Tensor
    share: Tensor
    functions: BendFunctions

    @classmethod
    def at(cls, shape: Tensor, share: Tensor) -> Arcs:
        """Return the points at the shares (G,) of sections of the shapes (s, ux, uy), (3, S, B)."""
        length, bend = shape[0][:, None], shape[1:, :, None]
        share = share[:, None]
        return cls(length, bend, share, bend_functions((share * bend).square().sum(0)))

    def first_and_last(self, count: int) -> Arcs:
        """Return the first `count` points of each section and its last one."""
        points = [*range(count), -1]
        functions = torch.stack(list(vars(self.functions).values()))[:, :, points]
        return Arcs(self.length, self.bend, self.share[points], BendFunctions(*functions.unbind(0)))

    def points(self) -> Tensor:
        """Return the positions (3, S, G, B) of the points [m]."""
        f, reach = self.functions, self.length * self.share
        across = reach * self.share * f.b
        return torch.stack((across * self.bend[0], across * self.bend[1], reach * f.a))

    def by_shape(self) -> Tensor:
        """Return the derivatives (3, 3, S, G, B) of the points by (s, ux, uy)."""
        f, xi, (x, y) = self.functions, self.share, self.bend
        square = xi * xi
        across, down = square * f.b, 2 * self.length * xi * square * f.da
        turn = 2 * self.length * square * square * f.db
        straight = self.length * across
        mixed = turn * (x * y)
        first = (across * x, torch.addcmul(straight, turn, x * x), mixed)
        second = (across * y, mixed, torch.addcmul(straight, turn, y * y))
        third = (xi * f.a, down * x, down * y)
        return torch.stack(torch.broadcast_tensors(*first, *second, *third)).unflatten(0, (3, 3))

    def solid(self, first: int) -> tuple[Tensor, Tensor]:
        """Return, of the points from index `first` on, R (3, 3, S, G', B) and the angular rates (3, 2, S, G', B).

        The angular rates are angular velocities per rate of ux and of uy, along the axes of the section's first frame.
        """
        f = self.functions
        xi = self.share[first:]
        a, b, c = f.a[:, first:], f.b[:, first:], f.c[:, first:]
        wx, wy = -xi * self.bend[1], xi * self.bend[0]
        xx, xy, yy = wx * wx, wx * wy, wy * wy
        ax, ay, bx, by = a * wx, a * wy, b * wx, b * wy
        rotation = (1 - b * yy, b * xy, ay, b * xy, 1 - b * xx, -ax, -ay, ax, 1 - b * (xx + yy))
        mixed = xi * c * xy
        rate = (mixed, xi * (c * yy - 1), xi * (1 - c * xx), -mixed, xi * bx, xi * by)
        return torch.stack(rotation).unflatten(0, (3, 3)), torch.stack(rate).unflatten(0, (3, 2))

    def velocity_and_acceleration(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return velocities and accelerations (3, S, G, B) of the points at constant rates of (s, ux, uy) (3, S, B)."""
        f, xi, u = self.functions, self.share, self.bend
        ds, du = rate[0][:, None], rate[1:, :, None]
        square = xi * xi
        dq = 2 * square * (u * du).sum(0)
        ddq = 2 * square * du.square().sum(0)
        da, db = f.da * dq, f.db * dq
        dda, ddb = torch.addcmul(f.da * ddq, f.dda, dq * dq), torch.addcmul(f.db * ddq, f.ddb, dq * dq)
        s = self.length
        dsb = torch.addcmul(ds * f.b, s, db)
        across = square * torch.addcmul(dsb * u, s * f.b, du)
        along = xi * torch.addcmul(ds * f.a, s, da)
        ddsb = torch.addcmul(2 * ds * db, s, ddb)
        across2 = square * torch.addcmul(ddsb * u, 2 * dsb, du)
        along2 = xi * torch.addcmul(2 * ds * da, s, dda)
        return torch.cat((across, along[None])), torch.cat((across2, along2[None]))

    def spin(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return angular velocity and acceleration (3, S, B) of the last point at constant rates (3, S, B).

        Both along the axes of the section's first frame.
        """
        f, xi = self.functions, self.share[-1]
        b, c, db, dc = (x[:, -1] for x in (f.b, f.c, f.db, f.dc))
        u, du = self.bend[:, :, 0], rate[1:]
        zero = torch.zeros_like(u[0])
        w, dw = torch.stack((-xi * u[1], xi * u[0], zero)), torch.stack((-xi * du[1], xi * du[0], zero))
        once = cross(w, dw)
        twice = cross(w, once)
        dq = 2 * (w * dw).sum(0)
        velocity = dw + b * once + c * twice
        return velocity, db * dq * once + dc * dq * twice + c * cross(dw, once)


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Return the vector product along the first dimension (3, ...)."""
    return torch.addcmul(a * b.roll(-1, 0), a.roll(-1, 0), b, value=-1).roll(-1, 0)


def rotated(rotation: Tensor, vectors: Tensor) -> Tensor:
    """Return R x for R (3, 3, ...) and x (3, ...), whose further dimensions broadcast."""
    return (rotation * vectors).sum(1)

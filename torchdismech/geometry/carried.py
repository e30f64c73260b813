r"""Vectors that the material frames of edges carry along, and the derivatives of their potential - P . f.

With r = (r_t, r_1, r_2) its components in the frame, such a vector is

    P = r_t t + r_1 m1 + r_2 m2.

A small motion de of the edge and dtheta of its angle turns the frame by omega = t x de / |e| + (dtheta + turn . de) t,
so P changes by omega x P. A magnetic moment P in a field f has the potential - P . f, and so has a constant force f on
the point that P leads to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3, outer_sym

__all__ = ["CarriedVector"]


class CarriedVector:
    """A vector P that the frame of an edge carries along, by components: tensors of any shape, which broadcast.

    Parameters
    ----------
    e : the edge [m].
    theta : its angle [rad].
    start, anchor : tangent and director at which the reference frame is anchored.
    components : (along, r1, r2), those of P in the material frame (t, m1, m2).
    """

    def __init__(
        self, e: Vec3, theta: Tensor, start: Vec3, anchor: Vec3, components: Tensor | tuple[Tensor, Tensor, Tensor]
    ):
        self.inverse = 1 / torch.sqrt(e.dot(e))
        t = e.times(self.inverse)
        axis, cosine = start.cross(t), start.dot(t)
        over = 1 / (1 + cosine)
        d1 = anchor.times(cosine) + axis.cross(anchor) + axis.times(axis.dot(anchor) * over)
        d2 = t.cross(d1)
        cos, sin = torch.cos(theta), torch.sin(theta)
        along, r1, r2 = components
        self.t, self.along = t, along
        self.across = d1.times(r1 * cos - r2 * sin) + d2.times(r1 * sin + r2 * cos)
        self.turn = axis.times(-over * self.inverse)
        # the turn's derivative by e, symmetrised: - turn (x) twice_mean / |e|
        self.twice_mean = t + (start + t).times(over)

    @property
    def vector(self) -> Vec3:
        """P."""
        return self.t.times(self.along) + self.across

    def potential(self, field: Vec3) -> Tensor:
        """Return w = - P . f."""
        return -self.vector.dot(field)

    def slopes(self, field: Vec3) -> tuple[Vec3, Tensor]:
        """Return the derivatives of w by e and theta: linear in the field."""
        along = field.dot(self.t)
        torque = self.t.dot(self.across.cross(field))
        # without their parts along t, which cancel
        couple = self.across.times(along) - (field - self.t.times(along)).times(self.along)
        return couple.times(self.inverse) - self.turn.times(torque), -torque

    def curvatures(self, field: Vec3) -> tuple[list[Tensor], Vec3, Tensor]:
        """Return the second derivatives of w: by e (xx, xy, xz, yy, yz, zz), by e and theta, by theta."""
        t, across = self.t, self.across
        along = field.dot(t)
        beside = field - t.times(along)
        both = across.dot(field)
        torque = t.dot(across.cross(field))
        mixed = across.cross(t).times(along * self.inverse)
        square = self.inverse * self.inverse
        parallel = self.along * along
        straight = outer_sym(t, across.times(2 * along) + t.times(parallel) - beside.times(2 * self.along))
        skewed = outer_sym(across, beside)
        turned = outer_sym(
            self.turn, mixed.times(2) - self.turn.times(both) - self.twice_mean.times(torque * self.inverse)
        )
        by_e = []
        for k, (s, a, r) in enumerate(zip(straight, skewed, turned, strict=True)):
            entry = a - s
            by_e.append((entry + parallel if k in (0, 3, 5) else entry) * square - r)
        return by_e, self.turn.times(both) - mixed, both

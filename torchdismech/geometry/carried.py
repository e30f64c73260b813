r"""A vector that an edge's material frame carries, with its derivatives by edge vector and angle.

The vector has constant components in the frame, P = p_t t + p_1 m1 + p_2 m2. By components and batch last, as
`geometry.rods`; the symbols are the same. A small motion de of the edge and dtheta of its angle turns the frame by
omega = t x de / |e| + (dtheta + turn . de) t, so P changes by omega x P, and its product with a constant vector f by

    d(P . f) = (P x f) . omega:   by e  (p_t f - (f . t) P) / |e| + turn t . (P x f),   by theta  t . (P x f).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Mat3, Vec3, outer_sym

__all__ = ["CarriedVector"]


@dataclass(frozen=True)
class CarriedVector:
    """Vectors P that edges carry, in their parts along and across the edge, p_t and p_1 m1 + p_2 m2."""

    frame: EdgeFrame
    along: Tensor
    across: Vec3

    @classmethod
    def of(cls, frame: EdgeFrame, theta: Tensor, components: tuple[Tensor, Tensor, Tensor]) -> CarriedVector:
        """Return the vectors with these components (p_t, p_1, p_2), where the frame is turned by the angle theta."""
        along, first, second = components
        cos, sin = torch.cos(theta), torch.sin(theta)
        across = frame.d1.times(first * cos - second * sin) + frame.d2.times(first * sin + second * cos)
        return cls(frame, along, across)

    def value(self) -> Vec3:
        """Return P."""
        return self.frame.t.times(self.along) + self.across

    def by_edge(self) -> Mat3:
        """Return the derivatives of P by e, row by row for the components of P."""
        t, inverse = self.frame.t, self.frame.inverse
        straight = Mat3.diagonal(self.along * inverse) - Mat3.outer(t, self.value().times(inverse))
        return straight + Mat3.outer(self.by_angle(), self.frame.turn)

    def by_angle(self) -> Vec3:
        """Return the derivatives of P by theta."""
        return self.frame.t.cross(self.across)

    def slopes(self, f: Vec3) -> tuple[Vec3, Tensor]:
        """Return the derivatives of P . f by e and theta, for constant f."""
        t = self.frame.t
        f_along = f.dot(t)
        torque = t.dot(self.across.cross(f))
        # the parts of both terms along t cancel, so they are left out
        couple = self.across.times(f_along) - (f - t.times(f_along)).times(self.along)
        return self.frame.turn.times(torque) - couple.times(self.frame.inverse), torque

    def curvatures(self, f: Vec3) -> tuple[list[Tensor], Vec3, Tensor]:
        """Return the second derivatives of P . f: by e (xx, xy, xz, yy, yz, zz), by e and theta, by theta."""
        t, turn, inverse, across = self.frame.t, self.frame.turn, self.frame.inverse, self.across
        f_along = f.dot(t)
        f_across = f - t.times(f_along)
        both = across.dot(f)
        torque = t.dot(across.cross(f))
        mixed = across.cross(t).times(f_along * inverse)
        square = inverse * inverse
        parallel = self.along * f_along
        straight = outer_sym(t, across.times(2 * f_along) + t.times(parallel) - f_across.times(2 * self.along))
        skewed = outer_sym(across, f_across)
        turned = outer_sym(turn, mixed.times(2) - turn.times(both) - self.frame.twice_mean().times(torque * inverse))
        by_e = []
        for k, (s, a, r) in enumerate(zip(straight, skewed, turned, strict=True)):
            entry = a - s
            by_e.append(r - (entry + parallel if k in (0, 3, 5) else entry) * square)
        return by_e, mixed - turn.times(both), -both

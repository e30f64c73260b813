"""Friction of rods with other coefficients along themselves than across; `LawFormulas` uses it, see `Friction`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = ["AlongRods"]

WIDTH = 2 / 15  # in slip velocities: the speed the hard way at which half of the coefficient's excess has set in


@dataclass(frozen=True)
class AlongRods:
    """The operator from tractions T to T + (s - 1) (t . T) p: t is the rod's tangent, p its component in the surface.

    s is the coefficient along the rod over that across it; forward and backward it differs. Call the direction along
    the rod with the larger coefficient the hard way, and h the sliding velocity that way. For h <= 0 the smaller
    coefficient holds; for h > 0 friction grows smoothly towards the larger one,

        s = easy + (hard - easy) (h / 2 w up to h = w, then 1 - w / 2 h)

    so that s h has a continuous slope and grows with h, whatever the coefficients are.

    Attributes
    ----------
    tangent : t of the rod at each contact; zero where there is no rod, and T stays as it is.
    hard_speed : h [m/s], negative where the rod slides the easy way.
    ratio_easy, ratio_rise : the smaller coefficient, and the difference of both, over that across.
    width : w [m/s].
    """

    tangent: Vec3
    hard_speed: Tensor
    ratio_easy: Tensor
    ratio_rise: Tensor
    width: Tensor

    @classmethod
    def of(
        cls, tangent: Vec3, sliding: Vec3, coefficient: Tensor, forward: Tensor, backward: Tensor, slip_velocity: Tensor
    ) -> AlongRods:
        """Return the operator at a sliding velocity, for the coefficients across, forward and backward."""
        along, ahead_is_harder = tangent.dot(sliding), forward > backward
        hard_speed, excess = (torch.where(ahead_is_harder, x, -x) for x in (along, forward - backward))
        smaller = torch.where(ahead_is_harder, backward, forward)
        return cls(tangent, hard_speed, smaller / coefficient, excess / coefficient, WIDTH * slip_velocity)

    def directed(self, traction: Vec3, normal: Vec3) -> Vec3:
        """Return T + (s - 1) (t . T) p for tractions T on surfaces with these normals."""
        return traction + self._in_surface(normal).times(self._excess() * self.tangent.dot(traction))

    def directed_changes(self, changes: Mat3, ratio: Tensor, normal: Vec3) -> Mat3:
        """Return the derivative of `directed` by the sliding velocity, from that of the traction itself.

        Parameters
        ----------
        changes : dT/dv_t times any factor.
        ratio : of T to v_t, times the same factor.
        """
        along = [row.times(t) for row, t in zip(changes.rows, self.tangent.components(), strict=True)]
        grows = (along[0] + along[1] + along[2]).times(self._excess())
        slope = torch.where(self.hard_speed < self.width, self.hard_speed / self.width, self.width / self._moving())
        steeper = torch.where(self.hard_speed > 0, 0.5 * self.ratio_rise * slope, 0.0)  # h ds/dh
        return changes + Mat3.outer(self._in_surface(normal), grows + self.tangent.times(ratio * steeper))

    def by_normal(self, traction: Vec3, normal: Vec3) -> Mat3:
        """Return the derivative of `directed` by the normal, with traction and velocity held fixed."""
        grows = self._excess() * self.tangent.dot(traction)
        turned = Mat3.outer(normal, self.tangent) + Mat3.diagonal(self.tangent.dot(normal))
        return turned.times(-grows)

    def _in_surface(self, normal: Vec3) -> Vec3:
        """Return p, the component of the tangents in the planes of the surfaces."""
        return self.tangent - normal.times(self.tangent.dot(normal))

    def _excess(self) -> Tensor:
        """Return s - 1, by which the traction along the rod differs from that across."""
        onset = torch.where(
            self.hard_speed < self.width, 0.5 * self.hard_speed / self.width, 1 - 0.5 * self.width / self._moving()
        )
        return self.ratio_easy + torch.where(self.hard_speed > 0, self.ratio_rise * onset, 0.0) - 1

    def _moving(self) -> Tensor:
        """Return the larger of h and w, by which formulas may divide."""
        return torch.where(self.hard_speed > self.width, self.hard_speed, self.width)

"""Friction of rods that rub otherwise along themselves than across: see `contact.Friction`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = ["AlongRods"]

WIDTH = 2 / 15  # slip velocities, over which rods that slide the hard way begin to rub by its coefficient


@dataclass(frozen=True)
class AlongRods:
    """What turns the tractions T of contacts into T + (s - 1) (t . T) p, of the tangent t and its part in a surface, p.

    s is one of two coefficients over that across, as the rod slides ahead or back. Of these the smaller one holds up to
    rest; beyond, at a velocity h the harder way, friction grows into the larger one:

        s = easy + (hard - easy) (h / 2 w up to h = w, then 1 - w / 2 h)

    so that s h has a continuous slope and grows with h, whatever the coefficients are.

    Attributes
    ----------
    tangent : of the rod at each contact; zero where there is none, and T stays as it is.
    speed : h, along the surface.
    easy, rise : the smaller coefficient over that across, and how much more the larger one is.
    width : w.
    """

    tangent: Vec3
    speed: Tensor
    easy: Tensor
    rise: Tensor
    width: Tensor

    @classmethod
    def of(
        cls, tangent: Vec3, sliding: Vec3, coefficient: Tensor, forward: Tensor, backward: Tensor, slip_velocity: Tensor
    ) -> AlongRods:
        """Return that of a velocity along the surface, and of the coefficients across, ahead and back."""
        along, ahead_is_harder = tangent.dot(sliding), forward > backward
        speed, rise = (torch.where(ahead_is_harder, x, -x) for x in (along, forward - backward))
        easy = torch.where(ahead_is_harder, backward, forward)
        return cls(tangent, speed, easy / coefficient, rise / coefficient, WIDTH * slip_velocity)

    def directed(self, traction: Vec3, normal: Vec3) -> Vec3:
        """Return what becomes of tractions on surfaces with these normals."""
        return traction + self._in_surface(normal).times(self._excess() * self.tangent.dot(traction))

    def directed_changes(self, changes: Mat3, ratio: Tensor, normal: Vec3) -> Mat3:
        """Return what becomes of a matrix whose columns are changes of tractions with the sliding velocity.

        Parameters
        ----------
        ratio : of the tractions to the velocity, times what the matrix is scaled by.
        """
        along = [row.times(t) for row, t in zip(changes.rows, self.tangent.components(), strict=True)]
        grows = (along[0] + along[1] + along[2]).times(self._excess())
        slope = torch.where(self.speed < self.width, self.speed / self.width, self.width / self._moving())
        steeper = torch.where(self.speed > 0, 0.5 * self.rise * slope, 0.0)  # h ds/dh
        return changes + Mat3.outer(self._in_surface(normal), grows + self.tangent.times(ratio * steeper))

    def by_normal(self, traction: Vec3, normal: Vec3) -> Mat3:
        """Return the derivative of `directed` by the normal where traction and velocity stay."""
        grows = self._excess() * self.tangent.dot(traction)
        turned = Mat3.outer(normal, self.tangent) + Mat3.diagonal(self.tangent.dot(normal))
        return turned.times(-grows)

    def _in_surface(self, normal: Vec3) -> Vec3:
        """Return what of the tangents lies in surfaces."""
        return self.tangent - normal.times(self.tangent.dot(normal))

    def _excess(self) -> Tensor:
        """Return s - 1."""
        begun = torch.where(
            self.speed < self.width, 0.5 * self.speed / self.width, 1 - 0.5 * self.width / self._moving()
        )
        return self.easy + torch.where(self.speed > 0, self.rise * begun, 0.0) - 1

    def _moving(self) -> Tensor:
        """Return h where it is beyond w, elsewhere w."""
        return torch.where(self.speed > self.width, self.speed, self.width)

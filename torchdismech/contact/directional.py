"""Friction of rods that rub otherwise along themselves than across: see `contact.Friction`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = ["AlongRods"]


@dataclass(frozen=True)
class AlongRods:
    """What turns the tractions T of contacts into (1 + (s - 1) p t^T) T, of the tangent t and its part in a surface, p.

    Attributes
    ----------
    tangent : of the rod at each contact; zero where there is none, and T stays as it is.
    coefficient : that T was found with.
    forward, backward : coefficients of rods that slide with their tangents, and against them; s is one of them over
        `coefficient`.
    """

    tangent: Vec3
    coefficient: Tensor
    forward: Tensor
    backward: Tensor

    def directed(self, traction: Vec3, normal: Vec3) -> Vec3:
        """Return what becomes of tractions on surfaces with these normals."""
        return traction + self._in_surface(normal).times(self._excess(traction) * self.tangent.dot(traction))

    def directed_changes(self, changes: Mat3, traction: Vec3, normal: Vec3) -> Mat3:
        """Return what becomes of a matrix whose columns are changes of tractions."""
        along = [row.times(t) for row, t in zip(changes.rows, self.tangent.components(), strict=True)]
        grows = (along[0] + along[1] + along[2]).times(self._excess(traction))
        return changes + Mat3.outer(self._in_surface(normal), grows)

    def by_normal(self, traction: Vec3, normal: Vec3) -> Mat3:
        """Return the derivative of `directed` by the normal where the traction stays."""
        grows = self._excess(traction) * self.tangent.dot(traction)
        turned = Mat3.outer(normal, self.tangent) + Mat3.diagonal(self.tangent.dot(normal))
        return turned.times(-grows)

    def _in_surface(self, normal: Vec3) -> Vec3:
        """Return what of the tangents lies in surfaces."""
        return self.tangent - normal.times(self.tangent.dot(normal))

    def _excess(self, traction: Vec3) -> Tensor:
        """Return s - 1."""
        along = torch.where(self.tangent.dot(traction) >= 0, self.forward, self.backward)
        return along / self.coefficient - 1

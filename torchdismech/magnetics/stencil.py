r"""The magnetic energy of an edge per unit of its volume, w = - (R r) . B, with first and second derivatives.

R r is the remanent magnetisation r, given in the rod's frame at rest, carried by the frame as it is now:

    P = r_t t + r_1 m1 + r_2 m2.

By components and batch last, as `geometry.rods`. `geometry.carried` has the derivatives of P . B. That by the angle is
a torque about the edge, that by the edge vector a couple of forces across it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic.stencil import Derivatives, Stencil, edge_variables
from torchdismech.geometry.carried import CarriedVector
from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Vec3
from torchdismech.magnetics.field import Field

__all__ = ["MagneticStencil", "by_components"]


class MagneticStencil(Stencil):
    """The energy density w of rod edges.

    Its local variables: the edge vector e; the sum of its nodes x0 + x1, only in fields that vary in space; the angle
    theta.

    Its constants: volume (E, 1 or B), tangents and directors of the anchors (3, E, B), magnetisation by the frame's
    components (3, E, 1 or B), and the uniform field (3, 1, B), or the time (B,) where the field is not uniform.

    Parameters
    ----------
    edges : (E, 2) nodes of the rod edges.
    first_twist_dof : index in q of the angle of edge 0.
    field : the magnetic field that the rod is in.
    """

    def __init__(self, edges: np.ndarray, first_twist_dof: int, field: Field):
        start, end = edges.T
        variables = edge_variables(start, end)
        one = np.ones(len(edges))
        if not field.uniform:
            variables += [[(3 * start + axis, one), (3 * end + axis, one)] for axis in range(3)]
        theta = first_twist_dof + np.arange(len(edges))
        super().__init__([*variables, [(theta, one)]], ["magnetic"])
        self.field = field

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        """Whether the field has its derivatives in closed form."""
        return self.field.closed_form

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return the energy density w (E, B), as a tuple of one strain."""
        _, tangent, director, magnetisation, field_or_time = constants
        carried = _carried_magnetisation(local, tangent, director, magnetisation)
        if self.field.uniform:
            return (-carried.value().dot(Vec3(*field_or_time)),)
        return (-carried.value().dot(by_components(self.field(_middle(local), field_or_time))),)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return w, its gradient, and the function of its weighted second derivatives."""
        _, tangent, director, magnetisation, field_or_time = constants
        carried = _carried_magnetisation(local, tangent, director, magnetisation)
        if self.field.uniform:
            return _in_uniform_field(carried, Vec3(*field_or_time))
        return _in_space(carried, self.field, _middle(local), field_or_time)


def _carried_magnetisation(
    local: list[Tensor], tangent: Tensor, director: Tensor, magnetisation: Tensor
) -> CarriedVector:
    """Return the magnetisation P (E, B) that edges carry."""
    frame = EdgeFrame.of(Vec3(*local[:3]), Vec3(*tangent), Vec3(*director))
    return CarriedVector.of(frame, local[-1], tuple(magnetisation))


def _in_uniform_field(carried: CarriedVector, field: Vec3) -> Derivatives:
    """Return w with its first and second derivatives by e and theta, in a uniform field."""
    by_e, by_theta = carried.slopes(-field)

    def second(weight: Tensor) -> list[Tensor]:
        (xx, xy, xz, yy, yz, zz), by_both, twice = carried.curvatures(-field)
        x, y, z = by_both.components()
        return [weight * entry for entry in (xx, xy, xz, x, yy, yz, y, zz, z, twice)]

    return (-carried.value().dot(field),), [[*by_e.components(), by_theta]], second


def _in_space(carried: CarriedVector, field: Field, middle: Tensor, time: Tensor) -> Derivatives:
    """Return w with its first and second derivatives by e, x0 + x1 and theta, in the field at the middle."""
    magnetisation = carried.value()
    moment = magnetisation.stacked().transpose(0, 1)
    field_there, gradient, _ = field.derivatives(middle, time)
    value = by_components(field_there)
    by_e, by_theta = carried.slopes(-value)
    columns = [by_components(gradient[..., k]) for k in range(3)]  # derivatives of the field by x, y and z
    by_sum = [-0.5 * magnetisation.dot(column) for column in columns]

    def second(weight: Tensor) -> list[Tensor]:
        _, _, curved = field.derivatives(middle, time, moment)
        assert curved is not None
        curvature = curved.transpose(0, 1)
        (xx, xy, xz, yy, yz, zz), by_both, twice = carried.curvatures(-value)
        halves = [carried.slopes(column.times(-0.5)) for column in columns]
        crossed = [slope.components() for slope, _ in halves]
        x, y, z = by_both.components()
        cx, cy, cz = ([c[axis] for c in crossed] for axis in range(3))
        tx, ty, tz = (torque for _, torque in halves)
        ss = {(i, j): -0.25 * curvature[..., i, j] for i in range(3) for j in range(i, 3)}
        entries = [
            xx, xy, xz, *cx, x,
            yy, yz, *cy, y,
            zz, *cz, z,
            ss[0, 0], ss[0, 1], ss[0, 2], tx,
            ss[1, 1], ss[1, 2], ty,
            ss[2, 2], tz,
            twice,
        ]  # fmt: skip
        return [weight * entry for entry in entries]

    return (-magnetisation.dot(value),), [[*by_e.components(), *by_sum, by_theta]], second


def _middle(local: list[Tensor]) -> Tensor:
    """Return the middles (B, E, 3) of the edges."""
    return 0.5 * torch.stack(local[3:6], dim=-1).transpose(0, 1)


def by_components(vectors: Tensor) -> Vec3:
    """Return vectors (B, E, 3) of E elements by components (E, B)."""
    return Vec3.of(vectors.transpose(0, 1))

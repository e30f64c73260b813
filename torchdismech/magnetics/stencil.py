r"""The magnetic energy of an edge per unit of its volume, w = - (R r) . B, with first and second derivatives.

R r is the remanent magnetisation r, given in the rod's frame at rest, carried by the frame as it is now:

    P = r_t t + r_1 m1 + r_2 m2.

By components and batch last, as `geometry.rods`; the symbols are the same. A small motion de of the edge and dtheta of
its angle turns the frame by omega = t x de / |e| + (dtheta + turn . de) t, so P changes by omega x P and

    dw = - (P x B) . omega:   by e  - (r_t B - (B . t) P) / |e| - turn t . (P x B),   by theta  - t . (P x B).

The latter is a torque about the edge, the former a couple of forces across it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic.stencil import Derivatives, Stencil, edge_variables
from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Vec3, outer_sym
from torchdismech.magnetics.field import Field

__all__ = ["MagneticStencil"]


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
        edge = _Edge(local, tangent, director, magnetisation)
        if self.field.uniform:
            return (edge.density(Vec3(*field_or_time)),)
        return (edge.density(_by_components(self.field(_middle(local), field_or_time))),)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return w, its gradient, and the function of its weighted second derivatives."""
        _, tangent, director, magnetisation, field_or_time = constants
        edge = _Edge(local, tangent, director, magnetisation)
        if self.field.uniform:
            return _in_uniform_field(edge, Vec3(*field_or_time))
        return _in_space(edge, self.field, _middle(local), field_or_time)


class _Edge:
    """Edges at a state: their frames and the parts of the magnetisation P, `along` (r_t) and `across` the edge."""

    def __init__(self, local: list[Tensor], tangent: Tensor, director: Tensor, magnetisation: Tensor):
        frame, theta = EdgeFrame.of(Vec3(*local[:3]), Vec3(*tangent), Vec3(*director)), local[-1]
        cos, sin = torch.cos(theta), torch.sin(theta)
        self.frame, self.t, self.inverse, self.turn = frame, frame.t, frame.inverse, frame.turn
        self.along, r1, r2 = magnetisation
        self.across = frame.d1.times(r1 * cos - r2 * sin) + frame.d2.times(r1 * sin + r2 * cos)

    def density(self, field: Vec3) -> Tensor:
        """Return w (E, B) in a field at the edges."""
        return -(self.t.times(self.along) + self.across).dot(field)

    def slopes(self, field: Vec3) -> tuple[Vec3, Tensor]:
        """Return the derivatives of w by e and theta; they are linear in the field."""
        field_along = field.dot(self.t)
        torque = self.t.dot(self.across.cross(field))
        # the parts of both terms along t cancel, so they are left out
        couple = self.across.times(field_along) - (field - self.t.times(field_along)).times(self.along)
        return couple.times(self.inverse) - self.turn.times(torque), -torque

    def curvatures(self, field: Vec3) -> tuple[list[Tensor], Vec3, Tensor]:
        """Return the second derivatives of w: by e (xx, xy, xz, yy, yz, zz), by e and theta, by theta."""
        t, across = self.t, self.across
        field_along = field.dot(t)
        field_across = field - t.times(field_along)
        both = across.dot(field)
        torque = t.dot(across.cross(field))
        mixed = across.cross(t).times(field_along * self.inverse)
        square = self.inverse * self.inverse
        parallel = self.along * field_along
        straight = outer_sym(t, across.times(2 * field_along) + t.times(parallel) - field_across.times(2 * self.along))
        skewed = outer_sym(across, field_across)
        turned = outer_sym(
            self.turn, mixed.times(2) - self.turn.times(both) - self.frame.twice_mean().times(torque * self.inverse)
        )
        by_e = []
        for k, (s, a, r) in enumerate(zip(straight, skewed, turned, strict=True)):
            entry = a - s
            by_e.append((entry + parallel if k in (0, 3, 5) else entry) * square - r)
        return by_e, self.turn.times(both) - mixed, both


def _in_uniform_field(edge: _Edge, field: Vec3) -> Derivatives:
    """Return w with its first and second derivatives by e and theta, in a uniform field."""
    by_e, by_theta = edge.slopes(field)

    def second(weight: Tensor) -> list[Tensor]:
        (xx, xy, xz, yy, yz, zz), by_both, twice = edge.curvatures(field)
        x, y, z = by_both.components()
        return [weight * entry for entry in (xx, xy, xz, x, yy, yz, y, zz, z, twice)]

    return (edge.density(field),), [[*by_e.components(), by_theta]], second


def _in_space(edge: _Edge, field: Field, middle: Tensor, time: Tensor) -> Derivatives:
    """Return w with its first and second derivatives by e, x0 + x1 and theta, in the field at the middle."""
    magnetisation = edge.t.times(edge.along) + edge.across
    moment = magnetisation.stacked().transpose(0, 1)
    field_there, gradient, _ = field.derivatives(middle, time)
    value = _by_components(field_there)
    by_e, by_theta = edge.slopes(value)
    columns = [_by_components(gradient[..., k]) for k in range(3)]  # derivatives of the field by x, y and z
    by_sum = [-0.5 * magnetisation.dot(column) for column in columns]

    def second(weight: Tensor) -> list[Tensor]:
        _, _, curved = field.derivatives(middle, time, moment)
        assert curved is not None
        curvature = curved.transpose(0, 1)
        (xx, xy, xz, yy, yz, zz), by_both, twice = edge.curvatures(value)
        halves = [edge.slopes(column.times(0.5)) for column in columns]
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

    return (edge.density(value),), [[*by_e.components(), *by_sum, by_theta]], second


def _middle(local: list[Tensor]) -> Tensor:
    """Return the middles (B, E, 3) of the edges."""
    return 0.5 * torch.stack(local[3:6], dim=-1).transpose(0, 1)


def _by_components(vectors: Tensor) -> Vec3:
    """Return vectors (B, E, 3) by components (E, B)."""
    return Vec3.of(vectors.transpose(0, 1))

r"""The magnetic energy of a triangle per unit of its volume, w = - (R r) . B, with first and second derivatives.

F takes the plane of the triangle at rest to the present one; its columns f1, f2 are where the unit vectors of that
plane go, axis 1 along the side from node 0 to node 1. R is the rotation in F, as the polar decomposition has it, and
takes the normal along; stretching does not change a remanence. With N = f1 x f2, J = |N|, n = N / J and

    g = f1 + f2 x n,    s = |g|,    s^2 = |f1|^2 + |f2|^2 + 2 J,

R's columns are g / s, n x g / s and n, so that with a = r1 f1 + r2 f2 and b = r1 f2 - r2 f1

    w = - (T / s + r3 n . B),    T = a . B + n . (B x b).

Derivatives by f1 and f2 follow from those of N, which is bilinear: L(v) = (f2 x v, v x f1) is the gradient of N . v,

    d(n . v) = L(v - n (n . v)) / J,    d(s^2) = 2 (g, n x g),    d2(s^2) = 2 + 2 d2 J,
    d2 J = dN^T (1 - n n^T) dN / J + K(n),

and d2(n . v) = K(v_) / J - (L(v_) L(n)^T + L(n) L(v_)^T) / J^2 - (n . v) dN^T (1 - n n^T) dN / J^2 with
v_ = v - n (n . v) and K(v) the second derivative of N . v. The sides e1, e2 are linear in f1, f2.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic.stencil import Derivatives, Stencil, edge_variables
from torchdismech.geometry.vec3 import Vec3
from torchdismech.magnetics.field import Field
from torchdismech.magnetics.stencil import by_components

__all__ = ["MagneticShellStencil", "plane_coordinates"]

Pair = tuple[Vec3, Vec3]  # the two parts of a gradient: by f1 and by f2, or by e1 and by e2
AXES = range(3)


class MagneticShellStencil(Stencil):
    """The energy density w of triangles.

    Its local variables: the sides e1 and e2; the sum of the corners x0 + x1 + x2, only in fields that vary in space.

    Its constants: volume (F, 1 or B), the coefficients p0, p1, p2 of `plane_coordinates` (3, F, 1), the components of
    the magnetisation along the frame at rest (3, F, 1 or B), and the uniform field (3, 1, B), or the time (B,) where
    the field is not uniform.

    Parameters
    ----------
    triangles : (F, 3) node indices.
    field : the magnetic field that the shell is in.
    """

    def __init__(self, triangles: np.ndarray, field: Field):
        corners = np.asarray(triangles).T
        variables = [*edge_variables(corners[0], corners[1]), *edge_variables(corners[0], corners[2])]
        if not field.uniform:
            one = np.ones(len(triangles))
            variables += [[(3 * corner + axis, one) for corner in corners] for axis in AXES]
        super().__init__(variables, ["magnetic_shells"])
        self.field = field

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        """Whether the field has its derivatives in closed form."""
        return self.field.closed_form

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return the energy density w (F, B), as a tuple of one strain."""
        _, plane, magnetisation, field_or_time = constants
        triangle = _Triangle(local, plane, magnetisation)
        if self.field.uniform:
            return (triangle.density(Vec3(*field_or_time)),)
        return (triangle.density(by_components(self.field(_middle(local), field_or_time))),)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return w, its gradient, and the function of its weighted second derivatives."""
        _, plane, magnetisation, field_or_time = constants
        triangle = _Triangle(local, plane, magnetisation)
        if self.field.uniform:
            return _in_uniform_field(triangle, Vec3(*field_or_time))
        return _in_space(triangle, self.field, _middle(local), field_or_time)


class _Triangle:
    """Triangles at a state: f1, f2, frame and magnetisation, in the symbols of the module's docstring.

    `inverse_area` is 1 / J, `inverse_s` is 1 / s, and `plane` has the coefficients p0, p1, p2 of `plane_coordinates`.
    """

    def __init__(self, local: list[Tensor], plane: Tensor, magnetisation: Tensor):
        e1, e2 = Vec3(*local[:3]), Vec3(*local[3:6])
        self.plane = plane
        self.f1, self.f2 = e1.times(plane[0]), e1.times(plane[1]) + e2.times(plane[2])
        normal = self.f1.cross(self.f2)
        area = torch.sqrt(normal.dot(normal))
        self.inverse_area = 1 / area
        self.n = normal.times(self.inverse_area)
        self.g = self.f1 + self.f2.cross(self.n)
        self.inverse_s = 1 / torch.sqrt(self.g.dot(self.g))
        self.r1, self.r2, self.r3 = magnetisation
        self.a = self.f1.times(self.r1) + self.f2.times(self.r2)
        self.b = self.f2.times(self.r1) - self.f1.times(self.r2)

    def magnetisation(self) -> Vec3:
        """Return the magnetisation R r as it is carried now."""
        in_plane = self.g.times(self.r1) + self.n.cross(self.g).times(self.r2)
        return in_plane.times(self.inverse_s) + self.n.times(self.r3)

    def density(self, field: Vec3) -> Tensor:
        """Return w (F, B) in a field at the triangles."""
        return -self.magnetisation().dot(field)

    def slopes(self, field: Vec3) -> Pair:
        """Return the derivatives of w by e1 and e2; they are linear in the field."""
        total, by_total = self._numerator(field)
        share = total * self.inverse_s**3
        tilt = self._area_gradient(self._in_plane(field), self.r3 * self.inverse_area)
        size = (self.g, self.n.cross(self.g))  # half the gradient of s^2
        by_f = [z.times(share) - t.times(self.inverse_s) - n for z, t, n in zip(size, by_total, tilt, strict=True)]
        return self._vectors_by_sides((by_f[0], by_f[1]))

    def curvatures(self, field: Vec3) -> dict[tuple[int, int], Tensor]:
        """Return the second derivatives of w by the six components of (e1, e2): {(i, j): (F, B)} for i <= j.

        They are the sum of p (x) q + q (x) p for the pairs (size, u) and (along, z), of the dyads in which h appears,
        of multiples of the unit matrix (`metric`, `straight`) and of K(v) (`twisted`). Vectors are converted from
        derivatives by f1, f2 to those by e1, e2 before the products are formed.
        """
        total, by_total = self._numerator(field)
        square, cubed = self.inverse_area * self.inverse_area, self.inverse_s**3
        around = -(field.cross(self.b).times(self.inverse_s) + field.times(self.r3))  # w = n . around - a . B / s
        up, in_plane = self.n.dot(around), self._in_plane(around)
        tilting = total * cubed * self.inverse_area - up * square  # coefficient of dN^T (1 - n n^T) dN
        # coefficient of the mixed derivatives of n . (B x b), by N and by b
        turning = -self.inverse_s * self.inverse_area
        turned, weights = self.n.cross(field), (-self.r2, self.r1)
        size, along = (self.g, self.n.cross(self.g)), self._area_gradient(self.n, 1.0)
        tilt, h = self._area_gradient(in_plane, -square), (self.f2, -self.f1)
        share = 1.5 * total * self.inverse_s * self.inverse_s
        u = (by_total[0] - size[0].times(share), by_total[1] - size[1].times(share))
        z = tuple(
            v - a.times(0.5 * tilting) - turned.times(turning * w) for v, a, w in zip(tilt, along, weights, strict=True)
        )
        size, u, along, z, h = (self._vectors_by_sides(pair) for pair in (size, u, along, z, h))  # type: ignore[arg-type]
        weights = self._scalars_by_sides(weights)
        p0, p1, p2 = self.plane
        stretching = total * cubed
        metric = {(0, 0): stretching * (p0 * p0 + p1 * p1), (0, 1): stretching * p1 * p2, (1, 1): stretching * p2 * p2}
        # the v of K(v), in the block by e1 and e2
        twisted = (in_plane.times(self.inverse_area) + self.n.times(stretching)).times(p0 * p2)
        blocks = {}
        for i, j in ((0, 0), (0, 1), (1, 1)):
            straight = metric[i, j] + tilting * h[i].dot(h[j])
            straight = straight - turning * (h[i].dot(field) * weights[j] + h[j].dot(field) * weights[i])
            pairs = [
                (size[i], u[j].times(cubed)),
                (u[i].times(cubed), size[j]),
                (along[i], z[j]),
                (z[i], along[j]),
                (h[j], field.times(turning * weights[i]) - h[i].times(tilting)),
                (field.times(turning * weights[j]), h[i]),
            ]
            blocks[i, j] = _matrix(pairs, straight, twisted if i != j else None)
        return {(i, j): blocks[i // 3, j // 3][i % 3][j % 3] for i in range(6) for j in range(i, 6)}

    # ---- parts of the derivatives, by f1 and f2 ----------------------------------------------------------------

    def _numerator(self, field: Vec3) -> tuple[Tensor, Pair]:
        """Return T and its derivatives by f1 and f2."""
        around = field.cross(self.b)
        turned = self.n.cross(field)
        tilt = self._area_gradient(self._in_plane(around), self.inverse_area)
        by_f1 = field.times(self.r1) + tilt[0] - turned.times(self.r2)
        by_f2 = field.times(self.r2) + tilt[1] + turned.times(self.r1)
        return self.a.dot(field) + self.n.dot(around), (by_f1, by_f2)

    def _in_plane(self, v: Vec3) -> Vec3:
        """Return the component of v in the triangle's plane."""
        return v - self.n.times(self.n.dot(v))

    def _area_gradient(self, v: Vec3, scale: Tensor | float) -> Pair:
        """Return scale L(v), where L(v) is the derivative of N . v by f1 and f2."""
        return self.f2.cross(v).times(scale), v.cross(self.f1).times(scale)

    def _vectors_by_sides(self, by_f: Pair) -> Pair:
        """Return derivatives by e1 and e2 from vectors of derivatives by f1 and f2 (chain rule)."""
        return by_f[0].times(self.plane[0]) + by_f[1].times(self.plane[1]), by_f[1].times(self.plane[2])

    def _scalars_by_sides(self, by_f: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """As `_vectors_by_sides`, with one scalar (F, B) by f1 and one by f2 in place of the vectors."""
        return by_f[0] * self.plane[0] + by_f[1] * self.plane[1], by_f[1] * self.plane[2]


def _in_uniform_field(triangle: _Triangle, field: Vec3) -> Derivatives:
    """Return w with its first and second derivatives by e1 and e2, in a uniform field."""
    first, second = triangle.slopes(field)

    def curved(weight: Tensor) -> list[Tensor]:
        return [weight * entry for entry in triangle.curvatures(field).values()]

    return (triangle.density(field),), [[*first.components(), *second.components()]], curved


def _in_space(triangle: _Triangle, field: Field, middle: Tensor, time: Tensor) -> Derivatives:
    """Return w with its first and second derivatives by e1, e2 and x0 + x1 + x2, in the field at the middle.

    The middle is a third of x0 + x1 + x2, hence the factors 1 / 3 and 1 / 9.
    """
    magnetisation = triangle.magnetisation()
    moment = magnetisation.stacked().transpose(0, 1)
    field_there, gradient, _ = field.derivatives(middle, time)
    value = by_components(field_there)
    # derivatives of the field by x, y, z of the sum
    columns = [by_components(gradient[..., k]).times(1 / 3) for k in AXES]
    first, second = triangle.slopes(value)
    by_sum = [-magnetisation.dot(column) for column in columns]

    def curved(weight: Tensor) -> list[Tensor]:
        _, _, bent = field.derivatives(middle, time, moment)
        assert bent is not None
        of_field, by_sides = bent.transpose(0, 1) / 9, triangle.curvatures(value)
        crossed = [[c for side in triangle.slopes(column) for c in side.components()] for column in columns]
        entries = []
        for i in range(9):
            for j in range(i, 9):
                if j < 6:
                    entries.append(by_sides[i, j])
                elif i < 6:
                    entries.append(crossed[j - 6][i])
                else:
                    entries.append(-of_field[..., i - 6, j - 6])
        return [weight * entry for entry in entries]

    return (triangle.density(value),), [[*first.components(), *second.components(), *by_sum]], curved


def plane_coordinates(nodes: Tensor, triangles: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return coefficients p (3, F) [1/m] that give f1 and f2 from the sides, and the frames at rest (3, F, 3).

    f1 = p0 e1, f2 = p1 e1 + p2 e2, for the plane in which e1 is (a, 0) and e2 is (b, c) at rest. A frame's axes are the
    direction of e1, the one at right angles in the plane, and the normal.
    """
    x = nodes[torch.as_tensor(triangles, device="cpu")]
    e1, e2 = x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]
    a = torch.linalg.vector_norm(e1, dim=-1)
    one = e1 / a.unsqueeze(-1)
    normal = torch.linalg.cross(e1, e2)
    normal = normal / torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
    two = torch.linalg.cross(normal, one)
    b, c = (e2 * one).sum(-1), (e2 * two).sum(-1)
    return torch.stack([1 / a, -b / (a * c), 1 / c]), torch.stack([one, two, normal])


def _middle(local: list[Tensor]) -> Tensor:
    """Return the middles (B, F, 3) of the triangles."""
    return torch.stack(local[6:9], dim=-1).transpose(0, 1) / 3


def _matrix(pairs: list[Pair], straight: Tensor, twisted: Vec3 | None) -> list[list[Tensor]]:
    """Return the 3 x 3 sum of p (x) q over all pairs (p, q), `straight` I, and the (e1, e2) block of K(twisted)."""
    parts = [(p.components(), q.components()) for p, q in pairs]
    matrix = [[sum(p[i] * q[j] for p, q in parts[1:]) + parts[0][0][i] * parts[0][1][j] for j in AXES] for i in AXES]
    for k in AXES:
        matrix[k][k] = matrix[k][k] + straight
    if twisted is not None:  # column j of the block is (unit vector j) x v
        v = twisted.components()
        for i, j, k, sign in ((0, 1, 2, 1), (0, 2, 1, -1), (1, 2, 0, 1)):
            matrix[i][j] = matrix[i][j] + sign * v[k]
            matrix[j][i] = matrix[j][i] - sign * v[k]
    return matrix

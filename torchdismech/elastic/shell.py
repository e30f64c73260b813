"""Bending of thin shells: stencils of hinges and of mid-edge normals, and the energy of a plate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.elastic.energy import Energy, Strain, add_constant, add_stiffness, batch_last
from torchdismech.elastic.stencil import Derivatives, Natural, Stencil, anchors, edge_variables, mapped
from torchdismech.errors import InputError
from torchdismech.geometry import shells
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.materials import Number
from torchdismech.robot.state import Control, State
from torchdismech.selection import first_of_run
from torchdismech.values import refuse_out_of_bounds

__all__ = ["HingeStencil", "MidEdgeStencil", "Plate", "shape_matrix"]

CURVATURES = ("curvature11", "curvature22", "curvature12")


class HingeStencil(Stencil):
    """The angle [rad] between the normals of two triangles that share an edge.

    It is positive where the surface is convex on the side of its normals, as the outside of a ball. Variables: the
    vectors from the edge's start to its end and to the opposite nodes of the two triangles. Angles beyond pi, where the
    triangles pass through each other, are out of range.

    Parameters
    ----------
    hinges : (K, 4) start and end of the edge, opposite nodes (see `geometry.surface.Surface`).
    numbers : (K,) indices of these hinges among all of the robot's, by which a control sets natural angles.
    """

    closed_form = True
    numbers: Tensor

    def __init__(self, hinges: np.ndarray, numbers: np.ndarray):
        start, end, first, second = np.asarray(hinges).T
        super().__init__([v for node in (end, first, second) for v in edge_variables(start, node)], ["hinge_angle"])
        self.register_buffer("numbers", torch.as_tensor(numbers, device="cpu"), persistent=False)

    def natural_of(self, control: Control, own: Natural) -> Natural:
        """Return the natural angles (B, K), those of the control if it sets them, else `own`."""
        angles = control.natural_hinge_angle
        return own if angles is None else (angles[:, self.numbers],)

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return (hinge angle,)."""
        return (shells.hinge_angle(*_vectors(local)),)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the angle and its derivatives in closed form."""
        angle, first, second = shells.hinge_angle_derivatives(*_vectors(local))
        return (angle,), [first], lambda weight: [weight * s for s in second]


class MidEdgeStencil(Stencil):
    r"""Curvatures of triangles by the normals at the middles of their sides (Grinspun et al. 2006).

    Every side k carries a unit normal N_k, given by an angle about the side (a dof that the two triangles at the side
    share) against a frame that is parallel transported with it. Let n be the triangle's normal, w_k = tan(angle from n
    to N_k), and l, A and t the rest lengths, area and rotated side vectors of the triangle. Then

        b = sum_k w_k / (A l_k)  t_k (x) t_k

    is its shape operator; the strains are its components in the plane of the triangle at rest (axis 1 along side 2).
    Curvature is positive where normals diverge, as on the outside of a ball. A side that is folded at rest is weighted
    by the square of the cosine of half its angle, so that small changes of the angle have the same effect at every
    fold.

    Three things differ from the papers. First, their w_k = (s_k xi_k - sin phi_k) / cos phi_k, linear in a scalar xi_k,
    agrees with ours to second order in the angles, but depends on the frame that xi is measured in; the tangent of a
    difference of two angles does not. So rotating a shell or building it curved does not create energy, normals do not
    depend on the history of steps, and a clamped normal stays where it is. Second, they take t_k from the current
    triangle; here it is that of the rest shape (stretching by eps changes curvatures by that fraction), so the energy
    depends on angles alone. Third, they leave the derivatives of t_k and cos phi_k out of the forces; here forces and
    matrix are exact derivatives of the energy.

    Parameters
    ----------
    triangles : (F, 3) node indices.
    edges, signs : (F, 3) the framed edge opposite to each node, and +1 where the triangle walks along it as stored,
        else -1.
    first_angle_dof : index in q of the angle of framed edge 0.
    shape : (F, 3, 3) the matrices w_k -> (b11, b22, b12) [1/m], from `shape_matrix`.
    hinges : (F, 3) index of the hinge at each side, -1 on the boundary, for natural hinge angles of a control.
    """

    closed_form = True
    edges: Tensor
    signs: Tensor
    shape: Tensor
    hinges: Tensor

    def __init__(
        self,
        triangles: np.ndarray,
        edges: np.ndarray,
        signs: np.ndarray,
        first_angle_dof: int,
        shape: Tensor,
        hinges: np.ndarray,
    ):
        a, b, c = np.asarray(triangles).T
        angles = [[(first_angle_dof + edges[:, k], signs[:, k])] for k in range(3)]
        super().__init__([*edge_variables(c, a), *edge_variables(a, b), *angles], CURVATURES)
        self.register_buffer("edges", torch.as_tensor(edges, device="cpu"), persistent=False)
        self.register_buffer("signs", torch.as_tensor(signs, dtype=torch.float64, device="cpu"), persistent=False)
        self._runs, self._reverses = tuple(map(first_of_run, edges.T)), bool((signs < 0).any())
        self.register_buffer("shape", shape)
        self.register_buffer("hinges", torch.as_tensor(hinges, device="cpu"), persistent=False)

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return the anchors of the three sides' frames, (3, F, B) each, and the shape matrices (3, 3, F, 1)."""
        return (
            *anchors(state, self.edges, self.signs if self._reverses else None, self._runs),
            self.shape.permute(1, 2, 0).unsqueeze(-1).contiguous(),
        )

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return the components (b11, b22, b12) [1/m]."""
        *frames, shape = constants
        return mapped(shape, self._normals(local, frames).slopes)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the strains and their derivatives in closed form."""
        *frames, shape = constants
        normals = self._normals(local, frames)
        by_slope = normals.first()
        columns = [mapped(shape, (by_slope[0][a], by_slope[1][a], by_slope[2][a])) for a in range(9)]
        first = [[column[i] for column in columns] for i in range(3)]

        def second(*weights: Tensor) -> list[Tensor]:
            w0, w1, w2 = (sum(weights[i] * shape[i, k] for i in range(3)) for k in range(3))
            return normals.second((w0, w1, w2))  # type: ignore[arg-type]

        return mapped(shape, normals.slopes), first, second

    def natural_at(self, hinge_angles: Tensor) -> tuple[Tensor, ...]:
        """Return the strains, each (B, F), of the shape whose hinges have the angles (B, H), half in each triangle."""
        slopes = torch.tan(0.5 * hinge_angles)
        slopes = torch.nn.functional.pad(slopes, (0, 1))  # index -1, a side on the boundary, gives slope 0
        b = torch.einsum("fik,bfk->ibf", self.shape, slopes[:, self.hinges])
        return b[0], b[1], b[2]

    def natural_of(self, control: Control, own: Natural) -> Natural:
        """Return the natural curvatures, each (B, F), of the hinge angles that a control sets; without these `own`."""
        angles = control.natural_hinge_angle
        return own if angles is None else self.natural_at(angles)

    @staticmethod
    def _normals(local: list[Tensor], frames: Sequence[Tensor]) -> shells.MidEdge:
        """Return the normals at the three sides; `frames` are anchors of their frames, 3 tangents, then 3 directors."""
        anchor = [Vec3(*vector.unbind(0)) for vector in frames]
        return shells.mid_edge(Vec3(*local[:3]), Vec3(*local[3:6]), local[6:], anchor[:3], anchor[3:])


def shape_matrix(nodes: Tensor, triangles: np.ndarray, folds: Tensor) -> Tensor:
    """Return the matrices (F, 3, 3) that take slopes w_k to (b11, b22, b12) [1/m] for triangles with rest `nodes`.

    b = sum_k c_k w_k l_k / A nu_k (x) nu_k with nu_k the outward unit normal of side k in the plane; axis 1 is along
    side 2 (node 0 to 1). Each triangle has half of the angle between the normals at a side, and w, the tangent of that,
    has the derivative 1 / cos^2 there. The factor c = cos^2 at rest cancels it: without it a fold of a right angle
    would be four times as stiff as the strips beside it.

    Parameters
    ----------
    folds : (F, 3) the angles [rad] at the sides at rest.
    """
    x = nodes[torch.as_tensor(triangles, device="cpu")]  # (F, 3, 3)
    sides = torch.stack([x[:, 2] - x[:, 1], x[:, 0] - x[:, 2], x[:, 1] - x[:, 0]], dim=1)
    length = torch.linalg.vector_norm(sides, dim=-1)
    double_area = torch.linalg.cross(sides[:, 1], sides[:, 2])
    area = 0.5 * torch.linalg.vector_norm(double_area, dim=-1)
    n = double_area / (2 * area)[:, None]
    one = sides[:, 2] / length[:, 2:]
    two = torch.linalg.cross(n, one)
    out = torch.linalg.cross(sides / length[..., None], n[:, None].expand_as(sides))
    c1, c2 = (out * one[:, None]).sum(-1), (out * two[:, None]).sum(-1)
    scale = length / area[:, None] * torch.cos(0.5 * folds) ** 2
    return torch.stack([scale * c1 * c1, scale * c2 * c2, scale * c1 * c2], dim=1)


class Plate(Energy):
    """psi = stiffness [(1 - nu) tr(b^2) + nu tr(b)^2], where b is the curvature (b11, b22, b12) less the natural one.

    Parameters
    ----------
    stiffness : E h^3 / (24 (1 - nu^2)), half the flexural rigidity; broadcasts against (B, F) [N m].
    poisson : nu, between -1 and 1, broadcasts against (B, F).
    """

    closed_form = True
    of_strains = CURVATURES
    per_robot = ("stiffness", "poisson")
    not_negative = ("stiffness",)
    open_intervals = {"poisson": (-1.0, 1.0)}  # psi is positive definite inside
    stiffness: nn.Parameter
    poisson: nn.Parameter

    def __init__(self, stiffness: Number, poisson: Number):
        super().__init__()
        add_stiffness(self, "stiffness", stiffness)
        ratio = add_constant(self, "poisson", poisson)
        if bool(ratio.isnan().any()):
            raise InputError(f"{type(self).__name__}.poisson: expected a number between -1 and 1, got nan")
        refuse_out_of_bounds(f"{type(self).__name__}.poisson", (self, "poisson"), ratio, {})

    def density(self, strain: Strain) -> Tensor:
        """Return psi [J/m^2]."""
        b11, b22, b12 = strain
        k, nu = batch_last(self.stiffness), batch_last(self.poisson)
        trace = b11 + b22
        return k * ((1 - nu) * (b11 * b11 + b22 * b22 + 2 * b12 * b12) + nu * trace * trace)

    def derivatives(self, strain: Strain) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the moments and the constant matrix of second derivatives."""
        b11, b22, b12 = strain
        k, nu = batch_last(self.stiffness), batch_last(self.poisson)
        own, other, shear = 2 * k, 2 * k * nu, 4 * k * (1 - nu)
        first = [own * b11 + other * b22, own * b22 + other * b11, shear * b12]
        return first, [[own, other, None], [other, own, None], [None, None, shear]]


def _vectors(local: list[Tensor]) -> tuple[Vec3, Vec3, Vec3]:
    return Vec3(*local[:3]), Vec3(*local[3:6]), Vec3(*local[6:9])

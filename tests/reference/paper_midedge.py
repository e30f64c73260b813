"""The papers' mid-edge bending, written with this library's hooks: what the reference files were made with.

It differs from the library's own (see `elastic.shell.MidEdgeStencil`) in four ways: the normals are given by scalars xi
along vectors tau0 that are fixed in space during a step and chosen anew from the average normals at the start of the
next, so that xi, and the clamps of held edges, slide with every step; the shape operator is a tensor in space, its
rest value too; c and t inside of it are taken from the present triangle; and their derivatives are left out of the
forces.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.shells import first_normal
from torchdismech.elastic import ElasticTerm, Energy, Stencil
from torchdismech.elastic.stencil import edge_variables
from torchdismech.geometry.frames import unit

COMPONENTS = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]


class PaperMidEdge(Stencil):
    """Strains: the six components of the shape operator in space.

    Parameters
    ----------
    surface : topology of the triangles.
    first_xi : index in q of the scalar of shell edge 0.
    area, length : (F,), (F, 3) rest areas of the triangles and rest lengths of their sides.
    """

    def __init__(self, surface, first_xi: int, area: Tensor, length: Tensor):
        a, b, c = surface.triangles.T
        xi = [[(first_xi + surface.sides[:, k], surface.signs[:, k])] for k in range(3)]
        super().__init__([*edge_variables(c, a), *edge_variables(a, b), *xi], [f"L{i}{j}" for i, j in COMPONENTS])
        self.surface, self.area, self.length = surface, area, length

    def constants(self, state, control):
        """Return tau0 of the sides (3, 3, F, B), as the triangles walk them."""
        tau = start_of_step_tau(self.surface, state.positions)[:, self.surface.sides]  # (B, F, 3, 3)
        return (tau.permute(2, 3, 1, 0) * torch.as_tensor(self.surface.signs.T, dtype=tau.dtype)[:, None, :, None],)

    def strain(self, local, *constants):
        """Return the components of sum_k c_k (s_k xi_k - f_k) t_k (x) t_k, c and t without derivatives."""
        e1, e2 = torch.stack(local[:3]), torch.stack(local[3:6])  # (3, F, B)
        operator = shape_operator([-e1 - e2, e1, e2], local[6:], constants[0], self.area[:, None], self.length.t())
        return tuple(operator[i, j] for i, j in COMPONENTS)


def shape_operator(sides, xi, tau, area, length) -> Tensor:
    """Return L (3, 3, F, B) of sides 3 x (3, F, B), signed xi 3 x (F, B), signed tau (3, 3, F, B) and rest sizes."""
    normal = torch.linalg.cross(sides[1], sides[2], dim=0)
    normal = normal / normal.norm(dim=0)
    total = 0
    for k in range(3):
        t = torch.linalg.cross(sides[k], normal, dim=0).detach()
        c = 1 / (area * length[k][:, None] * (t / t.norm(dim=0) * tau[k]).sum(0)).detach()
        total = total + c * (xi[k] - (normal * tau[k]).sum(0)) * t[:, None] * t[None]
    return total


def start_of_step_tau(surface, positions: Tensor) -> Tensor:
    """Return unit(edge x average normal of its triangles) (B, M, 3) for the edges as stored."""
    x = positions[:, surface.triangles]  # (B, F, 3, 3)
    normals = unit(torch.linalg.cross(x[:, :, 1] - x[:, :, 0], x[:, :, 2] - x[:, :, 0]))
    total = normals.new_zeros(len(positions), len(surface.edges), 3)
    for k in range(3):
        total.index_add_(1, torch.as_tensor(surface.sides[:, k]), normals)
    edge = positions[:, surface.edges[:, 1]] - positions[:, surface.edges[:, 0]]
    return unit(torch.linalg.cross(edge, total))


class PlateInSpace(Energy):
    """psi = k [(1 - nu) tr(D^2) + nu tr(D)^2] of D by its six components."""

    def __init__(self, stiffness, poisson):
        super().__init__()
        self.stiffness, self.poisson = stiffness, poisson

    def density(self, strain):
        """Return psi."""
        xx, yy, zz, xy, xz, yz = strain
        square = xx**2 + yy**2 + zz**2 + 2 * (xy**2 + xz**2 + yz**2)
        return self.stiffness * ((1 - self.poisson) * square + self.poisson * (xx + yy + zz) ** 2)


def rest_operator(surface, data, prefix: str) -> tuple[Tensor, ...]:
    """Return the components (F,) of the file's rest shape operators, which are tensors in space."""
    order = [{tuple(t): k for k, t in enumerate(data[prefix + "faces"].astype(int).tolist())}[tuple(t)]
             for t in surface.triangles.tolist()]  # fmt: skip
    t, c, f = data[prefix + "init_ts"], data[prefix + "init_cs"], data[prefix + "init_fs"]
    xi_of_edge = data[prefix + "q_init"].reshape(-1)[3 * len(data[prefix + "nodes0"]) :]
    xi = (xi_of_edge[data[prefix + "tri_xi_edges"].astype(int)] * data[prefix + "tri_sgn"]).T
    operator = np.einsum("kf,ikf,jkf->ijf", c * (xi - f), t, t)[:, :, order]
    return tuple(torch.as_tensor(operator[i, j]) for i, j in COMPONENTS)


def with_paper_midedge(model, data, prefix: str = "", poisson: float = 0.3):
    """Return the model, built with "midedge" bending, with the papers' bending in place of the library's."""
    surface = model.body.surface
    lengths = model.term("membrane").stencil.rest_length[surface.sides]
    stencil = PaperMidEdge(surface, first_normal(model.body), model.body.face_area, lengths)
    natural = None if not prefix else rest_operator(surface, data, prefix)
    energy = PlateInSpace(data[prefix + "kb"].item(), poisson)
    term = ElasticTerm("midedge", stencil, energy, measure=model.body.face_area, natural=natural)
    model.terms[[t.name for t in model.terms].index("midedge")] = term
    model._lay_out()
    return model

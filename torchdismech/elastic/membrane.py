"""Continuum membranes: the stencil of constant-strain triangles, and membrane materials.

Strains are the components (E11, E22, E12) of the Green-Lagrange strain E = (F^T F - 1) / 2 in the plane of each
triangle at rest, axis 1 along its side from node 0 to node 1; densities are in J per area at rest.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.elastic.energy import Energy, Strain, add_stiffness, batch_last
from torchdismech.elastic.shell import Plate
from torchdismech.elastic.stencil import Derivatives, Natural, Stencil, edge_variables, mapped
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.materials import Number, positive
from torchdismech.robot.state import Control, State

__all__ = ["MembraneStencil", "MooneyRivlin", "NeoHookean", "StVenantKirchhoff", "rest_metric"]

STRAINS = ("membrane11", "membrane22", "membrane12")


class MembraneStencil(Stencil):
    """The in-plane strain of triangles; variables: the sides e1, e2 from node 0 to nodes 1 and 2.

    Parameters
    ----------
    triangles : (F, 3) node indices.
    metric : (F, 3, 3) the matrices (e1.e1, e1.e2, e2.e2) -> (C11, C22, C12), from `rest_metric`.
    """

    closed_form = True
    metric: Tensor

    def __init__(self, triangles: np.ndarray, metric: Tensor):
        a, b, c = np.asarray(triangles).T
        super().__init__([*edge_variables(a, b), *edge_variables(a, c)], STRAINS)
        self.register_buffer("metric", metric)

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return the metric (3, 3, F, 1)."""
        return (self.metric.permute(1, 2, 0).unsqueeze(-1).contiguous(),)

    def natural_of(self, control: Control, own: Natural) -> Natural:
        """Return the natural strains, each (B, F), those of the control if it sets them, else `own`."""
        strains = control.natural_membrane_strain
        return own if strains is None else strains.unbind(-1)

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return (E11, E22, E12)."""
        e1, e2, metric = Vec3(*local[:3]), Vec3(*local[3:]), constants[0]
        c11, c22, c12 = mapped(metric, (e1.dot(e1), e1.dot(e2), e2.dot(e2)))
        return 0.5 * (c11 - 1), 0.5 * (c22 - 1), 0.5 * c12

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the strains and their derivatives in closed form; second derivatives are constant."""
        metric = constants[0]
        first = []
        for i in range(3):
            own, mixed, other = metric[i, 0], 0.5 * metric[i, 1], metric[i, 2]
            by_e1 = [own * a + mixed * b for a, b in zip(local[:3], local[3:], strict=True)]
            by_e2 = [mixed * a + other * b for a, b in zip(local[:3], local[3:], strict=True)]
            first.append(by_e1 + by_e2)

        def second(*weights: Tensor) -> list[Tensor]:
            own, mixed, other = mapped(metric.transpose(0, 1), weights)
            nothing = torch.zeros_like(own)
            # variables 0..2 are e1, 3..5 e2; only components along the same axis have second derivatives
            entries = {(0, 0): own, (0, 3): 0.5 * mixed, (3, 3): other}
            return [entries[a - a % 3, b - b % 3] if a % 3 == b % 3 else nothing for a, b in self.pairs]

        return self.strain(local, *constants), first, second


def rest_metric(nodes: Tensor, triangles: np.ndarray) -> Tensor:
    """Return the matrices (F, 3, 3) that map (e1.e1, e1.e2, e2.e2) to (C11, C22, C12), for triangles of rest `nodes`.

    In the plane of the triangle e1 = (a, 0) and e2 = (b, c) at rest.
    """
    x = nodes[torch.as_tensor(triangles, device="cpu")]
    e1, e2 = x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]
    a = torch.linalg.vector_norm(e1, dim=-1)
    b = (e1 * e2).sum(-1) / a
    c = torch.linalg.vector_norm(torch.linalg.cross(e1, e2), dim=-1) / a
    zero = torch.zeros_like(a)
    rows = [
        [1 / a**2, zero, zero],
        [(b / (a * c)) ** 2, -2 * b / (a * c**2), 1 / c**2],
        [-b / (a**2 * c), 1 / (a * c), zero],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


class StVenantKirchhoff(Plate):
    """psi = stiffness [(1 - nu) tr(E^2) + nu tr(E)^2]: Hooke's law for finite rotations and small strains.

    Parameters
    ----------
    stiffness : E h / (2 (1 - nu^2)), half the modulus of plane stress times thickness; broadcasts against (B, F) [N/m].
    poisson : nu, between -1 and 1, broadcasts against (B, F).
    """

    of_strains = STRAINS


class MooneyRivlin(Energy):
    """psi = c1 (I1 - 3) + c2 (I2 - 3) of an incompressible membrane, which thins as its area grows.

    With C = 1 + 2 E: I1 = tr C + 1 / det C and I2 = det C + tr C / det C. Small strains have Young's modulus
    6 (c1 + c2) / h and Poisson's ratio 1/2.

    Parameters
    ----------
    c1, c2 : moduli times thickness [N/m], broadcast against (B, F).
    """

    closed_form = True
    of_strains = STRAINS
    per_robot = ("c1", "c2")
    not_negative = ("c1", "c2")
    c1: nn.Parameter
    c2: nn.Parameter

    def __init__(self, c1: Number, c2: Number):
        super().__init__()
        add_stiffness(self, "c1", c1)
        add_stiffness(self, "c2", c2)

    def density(self, strain: Strain) -> Tensor:
        """Return psi [J/m^2]."""
        trace, area = _invariants(strain)
        c1, c2 = batch_last(self.c1), batch_last(self.c2)
        return c1 * (trace + 1 / area - 3) + c2 * (area + trace / area - 3)

    def derivatives(self, strain: Strain) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the derivatives of psi, by the chain rule over t = tr C and d = det C."""
        trace, area = _invariants(strain)
        c1, c2 = batch_last(self.c1), batch_last(self.c2)
        by_t, by_d = c1 + c2 / area, c2 - (c1 + c2 * trace) / area**2
        by_td, by_dd = -c2 / area**2, 2 * (c1 + c2 * trace) / area**3
        e11, e22, e12 = strain
        t = [2.0, 2.0, 0.0]
        d = [2 * (1 + 2 * e22), 2 * (1 + 2 * e11), -8 * e12]
        bent = [[0.0, 4.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, -8.0]]  # second derivatives of d
        first = [by_t * t[i] + by_d * d[i] for i in range(3)]
        second: list[list[Tensor | None]] = [
            [by_td * (t[i] * d[j] + t[j] * d[i]) + by_dd * d[i] * d[j] + by_d * bent[i][j] for j in range(3)]
            for i in range(3)
        ]
        return first, second


class NeoHookean(MooneyRivlin):
    """psi = mu h / 2 (tr C + 1 / det C - 3) of an incompressible membrane.

    Parameters
    ----------
    shear : shear modulus times thickness, E h / 3, broadcasts against (B, F) [N/m].
    """

    def __init__(self, shear: Number):
        modulus = positive(shear, "NeoHookean.shear")
        super().__init__(0.5 * modulus, torch.zeros_like(modulus))


def _invariants(strain: Strain) -> tuple[Tensor, Tensor]:
    """Return the trace and the determinant of C."""
    e11, e22, e12 = strain
    return 2 + 2 * (e11 + e22), (1 + 2 * e11) * (1 + 2 * e22) - 4 * e12**2

"""The pyramid's contact problem conditioned as in Azizkhani and Chen (eqs. 14-16), stage by stage, for comparisons.

`solve_contact` has its own conditioning, retries and a polish on the exact cone, and solves more. Here a problem gets
exactly the stages that are asked for and one attempt, so that the effect of each stage can be measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.solve.complementarity.cone import ConeLaw
from torchdismech.solve.complementarity.contact import ContactSolution
from torchdismech.solve.complementarity.fischer_burmeister import fischer_burmeister
from torchdismech.solve.complementarity.interior_point import interior_point
from torchdismech.solve.complementarity.lcp import DenseSystem, check_options
from torchdismech.solve.complementarity.problem import admitted, independent_contacts, without_padding
from torchdismech.solve.complementarity.pyramid import PyramidSystem, joined, pyramid_directions, pyramid_matrix

__all__ = ["Conditioning", "solve_conditioned"]

METHODS = ("interior_point", "fischer_burmeister")


@dataclass(frozen=True)
class Conditioning:
    """Stages of conditioning of the pyramid's complementarity problem, each for the whole batch or (B,) bool.

    Attributes
    ----------
    rank_selection : leave out contacts whose normals depend on those of others, together with their friction: QR with
        column pivoting of the normals whitened by the inertia, R_kk up to `rank_tolerance` R_11.
    equilibration : Ruiz scaling of rows and columns apart, by their Euclidean norms.
    regularisation : add `epsilon` to the diagonal at the normals.
    rank_tolerance, sweeps, epsilon : numbers of the three stages.
    """

    rank_selection: bool | Tensor = True
    equilibration: bool | Tensor = True
    regularisation: bool | Tensor = True
    rank_tolerance: float = 1e-6
    sweeps: int = 8
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 < self.rank_tolerance < 1:
            raise InputError(
                f"Conditioning.rank_tolerance: expected a number between 0 and 1, got {self.rank_tolerance}"
            )
        if self.sweeps < 1:
            raise InputError(f"Conditioning.sweeps: expected 1 or more, got {self.sweeps}")
        if not self.epsilon > 0:
            raise InputError(f"Conditioning.epsilon: expected a number above 0, got {self.epsilon}")


def solve_conditioned(
    delassus: Tensor,
    free: Tensor,
    mu: Tensor,
    active: Tensor,
    conditioning: Conditioning,
    method: str = "fischer_burmeister",
    directions: int = 4,
    tolerance: float = 1e-8,
    max_iterations: int = 50,
) -> ContactSolution:
    """Find contact impulses on the friction pyramid, with the given conditioning and in one attempt.

    Parameters
    ----------
    delassus, free, mu, active, directions, max_iterations : as for `solve_contact`; the first direction lies along
        tangent 1.
    method : "fischer_burmeister" or "interior_point", on the full matrix.
    tolerance : of |min(z_i, w_i)| of the problem that is solved: conditioned, and divided by the norm of b.

    Returns
    -------
    ContactSolution whose status says whether the conditioned problem was solved. Its residual is that of the problem as
    given, without dropped contacts; the velocities of these may be inward.
    """
    check_options("solve_conditioned", method, METHODS, tolerance, max_iterations)
    delassus, free, mu, active, finite = admitted(delassus, free, mu, active)
    selects, scales, softens = (
        torch.as_tensor(x, dtype=torch.bool, device=free.device).expand(len(free))
        for x in (conditioning.rank_selection, conditioning.equilibration, conditioning.regularisation)
    )
    # the pivots of the Cholesky factorisation are the squares of R_kk
    chosen = independent_contacts(delassus, active, conditioning.rank_tolerance**2, relative_to_first=True)
    kept = torch.where(selects[:, None], chosen, active)
    angle = torch.zeros_like(mu)
    system, present = _pyramid(delassus, free, mu, kept, pyramid_directions(angle, directions))
    matrix, q, back = _conditioned(system, present, kept, scales, softens, conditioning)
    if method == "fischer_burmeister":
        z, iterations = fischer_burmeister(matrix, q, torch.zeros_like(q), present, tolerance, max_iterations)
    else:
        first = torch.ones_like(q)
        z, iterations = interior_point(DenseSystem(matrix, q), first, first, present, 0.1 * tolerance, max_iterations)
    error = torch.minimum(z, (matrix @ z[..., None])[..., 0] + q)
    error = torch.where(present, error.abs(), 0.0).amax(1)
    impulses = system.impulse(torch.where(present, back * z.clamp(min=0.0), 0.0)).flatten(1)
    law = ConeLaw(delassus, free, mu, kept, free.new_ones(*mu.shape, 2), (angle, directions))
    goal = torch.full_like(error, tolerance)
    return ContactSolution.of(law, impulses, (active, kept, finite), goal, iterations, "pyramid", error)


def _pyramid(
    delassus: Tensor, free: Tensor, mu: Tensor, kept: Tensor, directions: Tensor
) -> tuple[PyramidSystem, Tensor]:
    """Return the pyramid's problem of the contacts that are kept (B, C), and which of its unknowns (B, m) count."""
    rubs = kept & (mu > 0)
    edges = torch.where(rubs[..., None, None], directions, 0.0)
    system = PyramidSystem(*without_padding(delassus, free, mu, kept), edges)
    return system, joined(kept, rubs[..., None].expand(-1, -1, directions.shape[3]), rubs)


def _conditioned(
    system: PyramidSystem, present: Tensor, kept: Tensor, scales: Tensor, softens: Tensor, conditioning: Conditioning
) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix (B, m, m) and vector (B, m) of the conditioned problem, and factors (B, m).

    Its solution times the factors is that of the original problem. Rows of the batch are equilibrated where `scales`
    (B,) is True, and regularised where `softens` (B,) is.
    """
    matrix = torch.where(present[:, :, None] & present[:, None], pyramid_matrix(system), 0.0)
    rows, columns = _equilibrated(matrix, conditioning.sweeps)
    rows, columns = (torch.where(scales[:, None], x, 1.0) for x in (rows, columns))
    matrix = rows[..., None] * matrix * columns[:, None]
    count, q = kept.shape[1], rows * torch.where(present, system.q, 0.0)
    matrix[:, :count, :count] += torch.diag_embed((conditioning.epsilon * (softens[:, None] & kept)).to(q))
    size = torch.linalg.vector_norm(q, dim=1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return matrix + torch.diag_embed((~present).to(q)), q / size, columns * size


def _equilibrated(matrix: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """Return the scales (B, m) of rows and columns that bring their Euclidean norms towards 1."""
    rows = columns = torch.ones_like(matrix[:, 0])
    for _ in range(sweeps):
        square = (rows[..., None] * matrix * columns[:, None]).square()
        by_row, by_column = square.sum(2), square.sum(1)
        rows = rows / torch.where(by_row > 0, by_row, 1.0) ** 0.25
        columns = columns / torch.where(by_column > 0, by_column, 1.0) ** 0.25
    return rows, columns

"""Linear complementarity problems (LCPs) of a batch, given by dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError, Status, check_choice, real_number, whole_number
from torchdismech.solve.complementarity.fischer_burmeister import fischer_burmeister
from torchdismech.solve.complementarity.interior_point import active_set_polished, interior_point

__all__ = ["LCP_METHODS", "DenseSystem", "LcpSolution", "solve_lcp", "status_of"]

LCP_METHODS = ("interior_point", "fischer_burmeister")
EQUILIBRATIONS = 6  # Ruiz iterations
STARTS = ((10.0, 0.1), (1.0, 1.0), (100.0, 0.1))  # first z_i and w_i / z_i of the scaled problem, in the order tried


@dataclass(frozen=True, eq=False)
class LcpSolution:
    """Solutions of a batch of linear complementarity problems.

    Attributes
    ----------
    z : (B, m); where the row did not converge the best iterate, zeros where its input is not finite.
    status : (B,) `Status` values: CONVERGED, MAX_ITERATIONS, NOT_FINITE.
    iterations : (B,) from all starts together.
    residual : (B,) largest |min(a_i z_i, w_i)|, with a_i the largest |entry| in row i of A: in the units of q; NaN
        where the input is not finite.
    """

    z: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor


def solve_lcp(
    matrix: Tensor,
    q: Tensor,
    method: str = "interior_point",
    tolerance: float = 1e-8,
    max_iterations: int = 60,
    acceptable: Tensor | None = None,
) -> LcpSolution:
    """Find z >= 0 with w = A z + q >= 0 and z_i w_i = 0, for each row of a batch.

    A need not be symmetric. Where A + A^T is positive semidefinite, a solution is found if w >= 0, z >= 0 is feasible
    at all. For other matrices (friction) a solution is likely to be found, not certain: look at the status.

    Parameters
    ----------
    matrix : (B, m, m) A.
    q : (B, m).
    method : "interior_point" (predictor-corrector, from up to three starts) or "fischer_burmeister" (semismooth Newton
        with Levenberg-Marquardt damping).
    tolerance : of the residual, relative to the largest |q_i| of the row, below 1.
    max_iterations : from each start.
    acceptable : (B,) residual, in the units of q, at which a row counts as solved and no further start is tried,
        although the first start has not met `tolerance`.

    Raises
    ------
    InputError
        Shapes or types that do not fit; an unknown method; a tolerance that is not between 0 and 1; no iterations.
    """
    _check_problem(matrix, q, acceptable)
    matrix, q = matrix.detach(), q.detach()
    check_options("solve_lcp", method, LCP_METHODS, tolerance, max_iterations)
    finite = torch.isfinite(matrix).flatten(1).all(1) & torch.isfinite(q).all(1)
    unit = torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
    matrix = torch.where(finite[:, None, None], matrix, unit)
    q = torch.where(finite[:, None], q, 0.0)
    goal = tolerance * q.abs().amax(1)
    acceptable = goal if acceptable is None else torch.maximum(goal, acceptable)
    z = torch.zeros_like(q)
    residual = _residual(matrix, q, z)
    iterations = torch.zeros_like(finite, dtype=torch.long)
    for k, start in enumerate(STARTS if method == "interior_point" else STARTS[:1]):
        rows = (residual > (acceptable if k else goal)).nonzero().flatten()
        if not len(rows):
            break
        z_of_rows, iterations_of_rows = _scaled_solution(
            matrix[rows], q[rows], method, start, tolerance, max_iterations
        )
        iterations[rows] += iterations_of_rows
        error = _residual(matrix[rows], q[rows], z_of_rows)
        better = error < residual[rows]  # False where it is NaN
        z[rows] = torch.where(better[:, None], z_of_rows, z[rows])
        residual[rows] = torch.where(better, error, residual[rows])
    status, residual = status_of(finite, residual, acceptable), torch.where(finite, residual, torch.nan)
    return LcpSolution(z, status, iterations, residual)


def _check_problem(matrix: Tensor, q: Tensor, acceptable: Tensor | None) -> None:
    """Refuse matrices and vectors of wrong shapes or types."""
    if q.ndim != 2 or not q.shape[1] or matrix.shape != (*q.shape, q.shape[1]):
        raise InputError(
            f"solve_lcp: expected A of shape (B, m, m) and q of shape (B, m) with m >= 1, got {tuple(matrix.shape)} "
            f"and {tuple(q.shape)}"
        )
    if acceptable is not None and acceptable.shape != q.shape[:1]:
        raise InputError(f"solve_lcp: expected acceptable of shape ({len(q)},), got {tuple(acceptable.shape)}")
    if not matrix.dtype == q.dtype == torch.float64:
        raise InputError(
            f"solve_lcp: A and q must be float64, got {matrix.dtype} and {q.dtype}; convert with .double()"
        )


def check_options(who: str, method: str, methods: tuple[str, ...], tolerance: float, max_iterations: int) -> None:
    """Refuse an unknown method, a tolerance by which nothing or everything is a solution, and no iterations."""
    check_choice(f"{who}: method", method, methods)
    if not 0 < real_number(tolerance, f"{who}: tolerance") < 1:
        raise InputError(
            f"{who}: tolerance: expected a number above 0 and below 1 (it is a fraction of the largest given number; "
            f"from 1 up zeros would count as the solution), got {tolerance}"
        )
    whole_number(max_iterations, f"{who}: max_iterations")


def status_of(finite: Tensor, residual: Tensor, tolerance: Tensor) -> Tensor:
    """Return the status (B,): NOT_FINITE for input that is not, CONVERGED within the tolerance, else MAX_ITERATIONS."""
    status = torch.where(residual <= tolerance, int(Status.CONVERGED), int(Status.MAX_ITERATIONS))
    return torch.where(finite, status, int(Status.NOT_FINITE))


def _residual(matrix: Tensor, q: Tensor, z: Tensor) -> Tensor:
    """Return the residual (B,) of z (B, m) as `LcpSolution` defines it."""
    w = (matrix @ z[..., None])[..., 0] + q
    return torch.minimum(matrix.abs().amax(2) * z, w).abs().amax(1)


class DenseSystem:
    """The map w = A z + q with a dense A (B, m, m), as `interior_point` takes it."""

    def __init__(self, matrix: Tensor, q: Tensor):
        self.matrix, self.q = matrix, q

    def product(self, z: Tensor) -> Tensor:
        """Return A z (B, m)."""
        return (self.matrix @ z[..., None])[..., 0]

    def rows(self, index: Tensor) -> DenseSystem:
        """Return the system of the rows with indices (R,)."""
        return DenseSystem(self.matrix[index], self.q[index])

    def factor(self, diagonal: Tensor) -> _DenseFactors:
        """Return a factorization of A + diag(diagonal), diagonal (B, m) positive."""
        return _DenseFactors(self.matrix, diagonal)


class _DenseFactors:
    """LU factors of A + diag(d), with rows divided by 1 + d so that pivots are chosen among comparable numbers."""

    def __init__(self, matrix: Tensor, diagonal: Tensor):
        self.scale = 1 / (1 + diagonal)
        scaled = self.scale[..., None] * (matrix + torch.diag_embed(diagonal))
        self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(scaled)

    def solve(self, right: Tensor) -> Tensor:
        """Return x (B, m) with (A + diag(d)) x = right."""
        return torch.linalg.lu_solve(self.factors, self.pivots, (self.scale * right)[..., None])[..., 0]


def _scaled_solution(matrix, q, method, start, tolerance, max_iterations) -> tuple[Tensor, Tensor]:
    """Return z (B, m) of the problem as given and the iterations (B,), solved after equilibration.

    Rows and columns of A are scaled by Ruiz's method, and q to a largest entry of 1.

    Parameters
    ----------
    start : one of `STARTS`; used by the interior-point method alone.
    """
    rows, columns = torch.ones_like(q), torch.ones_like(q)
    for _ in range(EQUILIBRATIONS):
        scaled = (rows[..., None] * matrix * columns[:, None]).abs()
        by_row, by_column = scaled.amax(2), scaled.amax(1)
        rows = rows / torch.where(by_row > 0, by_row, 1.0).sqrt()
        columns = columns / torch.where(by_column > 0, by_column, 1.0).sqrt()
    scaled = rows[..., None] * matrix * columns[:, None]
    magnitude = (rows * q).abs().amax(1, keepdim=True)
    system = DenseSystem(scaled, rows * q / magnitude)
    present = torch.ones_like(q, dtype=torch.bool)
    if method == "interior_point":
        z = torch.full_like(q, start[0])
        z, iterations = interior_point(system, z, start[1] * z, present, 0.1 * tolerance, max_iterations)
    else:
        z = torch.zeros_like(q)
        z, iterations = fischer_burmeister(scaled, system.q, z, present, 0.1 * tolerance, max_iterations)
    return columns * active_set_polished(system, z.clamp(min=0.0), present) * magnitude, iterations

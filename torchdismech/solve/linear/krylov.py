"""Conjugate gradients and BiCGStab for a batch: each robot has its own convergence.

Both solve for a correction, compute the true residual b - A x in the working precision, and iterate again from there if
it is not small enough. So rounding in the short recurrences, or a breakdown, costs iterations but never accuracy. A row
counts as solved only if its true residual meets the tolerance.

Y. Notay, Flexible conjugate gradients, SIAM J. Sci. Comput. 22, 2000.
H. A. van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13, 1992.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.solve.linear.base import Factor, IndexMap, Solver, check_rhs, full_pattern
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.solve.linear.product import make_product
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import banded_order

__all__ = ["BiCGStabSolver", "PCGSolver"]

CYCLES = 10  # largest number of starts from the true residual

Map = Callable[[Tensor], Tensor]


class KrylovSolver(Solver):
    """Base class of the two iterative solvers.

    The diagonal blocks of the matrix, factored, are the preconditioner (block Jacobi). The blocks are runs of
    `block_size` unknowns in the order of smallest bandwidth (the pattern's hint or reverse Cuthill-McKee), so that a
    block holds neighbours.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.
    tolerance : a row is solved when |b - A x| <= tolerance |b|. Rounding alone leaves about machine epsilon |A| |x|: on
        a rod whose stretching is 1e8 times stiffer than its mass / dt^2, 1e-9 |b|, also with a direct solver.
    max_iterations : of one solve.
    block_size : unknowns in a block of the block Jacobi preconditioner.
    product : "torch", or "torch-sparse" if that package is installed.
    """

    def __init__(
        self,
        pattern: Pattern,
        tolerance: float = 1e-8,
        max_iterations: int = 1000,
        block_size: int = 16,
        product: str = "torch",
    ):
        super().__init__(pattern)
        if not 0 < tolerance < 1 or max_iterations < 1 or block_size < 1:
            raise InputError(
                f"{self.name}: needs 0 < tolerance < 1, max_iterations >= 1 and block_size >= 1, "
                f"got {tolerance}, {max_iterations} and {block_size}"
            )
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self.full, mirror = full_pattern(pattern)
        self._mirror = IndexMap(mirror)
        self.product = make_product(product, self.full)
        block = banded_order(pattern).place // block_size
        inside = block[pattern.rows] == block[pattern.cols]
        self._inside = IndexMap(inside.nonzero()[0])
        # The pattern of the diagonal blocks alone falls apart into the blocks, which so become the solver's fronts.
        self._blocks = MultifrontalSolver(
            Pattern(pattern.n, pattern.rows[inside], pattern.cols[inside], pattern.symmetric)
        )

    def factor(self, values: Tensor, rows: Tensor | None = None, indefinite: bool = False) -> KrylovFactor:
        """Return the matrices with their preconditioners, ready for `solve`.

        Parameters
        ----------
        values : (nnz, B) float32 or float64, batch last.
        rows : (B,) bool, which robots to solve; None means all.
        indefinite : the (symmetric) matrices need not be positive definite: the diagonal blocks are factored by LU.

        Returns
        -------
        A factor whose `ok` is updated by each `solve`.
        """
        self._check(values, rows)
        values = values.detach()
        inside = values.index_select(0, self._inside.on(values.device))
        preconditioner = self._blocks.factor(inside, rows, indefinite=indefinite)
        usable = preconditioner.ok & torch.isfinite(values.sum(0))
        full = values.index_select(0, self._mirror.on(values.device)) if self.pattern.symmetric else values
        return KrylovFactor(self, full, preconditioner, usable)

    def describe(self, device: torch.device | str = "cpu") -> str:
        """Return one line for a person: the method and its sizes."""
        return f"{self.name}, n = {self.pattern.n}, {self.full.nnz} entries, tolerance {self.tolerance:g}"

    def memory(self, batch: int, device: torch.device | str = "cpu") -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds while solving."""
        return 8 * batch * (2 * self.full.nnz + 10 * self.pattern.n) + self._blocks.memory(batch, device)

    @abstractmethod
    def correction(
        self, multiply: Map, precondition: Map, rhs: Tensor, target: Tensor, running: Tensor, budget: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return an approximate solution d (n, B) of A d = rhs, and the number of iterations (B,).

        Parameters
        ----------
        multiply, precondition : x -> A x and r -> M^-1 r on (n, B).
        rhs : (n, B).
        target : (B,) norm of the recurred residual at which a row stops.
        running : (B,) rows to iterate; d is zero in the others.
        budget : (B,) largest number of iterations. A row also stops where its method breaks down.
        """


class KrylovFactor(Factor):
    """Matrices and a preconditioner; each `solve` iterates.

    Attributes
    ----------
    ok : (B,) before the first solve: whether the row can be iterated on at all; afterwards: whether the last solve met
        the tolerance.
    iterations : (B,) spent by the last solve.
    """

    def __init__(self, solver: KrylovSolver, values: Tensor, preconditioner: Factor, usable: Tensor):
        self.solver = solver
        self.preconditioner = preconditioner
        self.ok = self._usable = usable
        self.iterations = torch.zeros_like(usable, dtype=torch.long)
        self._values = values

    def solve(self, rhs: Tensor, transpose: bool = False) -> Tensor:
        """Return x (B, n) with A x = rhs, or A^T x = rhs; zeros in the rows that are not `ok`."""
        check_rhs(self.solver.name, rhs, self._values, (self._values.shape[1], self.solver.pattern.n))
        multiply = self.solver.product.bind(self._values, transpose)
        b = torch.where(self._usable, rhs.detach().t(), 0.0).contiguous()
        largest = b.abs().amax(0)
        unit = torch.where(largest == 0, 1.0, largest)  # squares of tiny numbers would underflow
        b = b / unit
        goal = self.solver.tolerance * _norm(b)
        x, residual = torch.zeros_like(b), b
        self.iterations = torch.zeros_like(self.iterations)
        for _ in range(CYCLES):
            size = _norm(residual)
            left = self.solver.max_iterations - self.iterations
            running = self._usable & (size > goal) & (left > 0)
            if not running.any():
                break
            scale = torch.where(running, size, 1.0)  # unit right-hand sides are far from underflow in float32, too
            step, spent = self.solver.correction(
                multiply, self._precondition(transpose), residual / scale, goal / scale, running, left
            )
            x = torch.where(running, x + scale * step, x)
            self.iterations = self.iterations + spent
            residual = torch.where(running, b - multiply(x), residual)
        self.ok = self._usable & (_norm(residual) <= goal)
        return torch.where(self.ok, x * unit, 0.0).t().contiguous()

    def _precondition(self, transpose: bool) -> Map:
        """Return the map r -> M^-1 r on (n, B)."""
        return lambda r: self.preconditioner.solve(r.t().contiguous(), transpose).t()


class PCGSolver(KrylovSolver):
    """Preconditioned conjugate gradients, for symmetric positive definite matrices.

    The step that makes directions conjugate uses the change of the residual (flexible CG), so that rounding in the
    preconditioner does no harm.
    """

    name = "pcg"
    solves_indefinite = False

    def __init__(self, pattern: Pattern, **options):
        if not pattern.symmetric:
            raise InputError("pcg: the pattern must be symmetric, got an unsymmetric one; use 'bicgstab'")
        super().__init__(pattern, **options)

    def factor(self, values: Tensor, rows: Tensor | None = None, indefinite: bool = False) -> KrylovFactor:
        """Return the matrices with their preconditioners; see `KrylovSolver.factor`. Refuse indefinite ones."""
        if indefinite:
            raise InputError("pcg: cannot solve with indefinite matrices; use 'bicgstab' or a direct solver")
        return super().factor(values, rows)

    def correction(
        self, multiply: Map, precondition: Map, rhs: Tensor, target: Tensor, running: Tensor, budget: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Iterate on A d = rhs from d = 0; a row whose matrix shows negative curvature stops where it is."""
        d, r = torch.zeros_like(rhs), rhs
        z = precondition(r)
        p, rz = z, _dot(r, z)
        spent = torch.zeros_like(running, dtype=torch.long)
        while True:
            running = running & (_norm(r) > target) & (spent < budget)
            if not running.any():
                return d, spent
            q = multiply(p)
            curvature = _dot(p, q)
            running = running & (curvature > 0) & (rz != 0)  # NaN > 0 is False
            alpha = rz / curvature
            previous = r
            d = torch.where(running, d + alpha * p, d)
            r = torch.where(running, r - alpha * q, r)
            z = precondition(r)
            beta = _dot(z, r - previous) / rz
            rz = _dot(r, z)
            p = torch.where(running, z + beta * p, p)
            spent = spent + running


class BiCGStabSolver(KrylovSolver):
    """BiCGStab with right preconditioning, for any matrices; a transposed solve iterates with A^T."""

    name = "bicgstab"

    def correction(
        self, multiply: Map, precondition: Map, rhs: Tensor, target: Tensor, running: Tensor, budget: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Iterate on A d = rhs from d = 0; a row that breaks down stops at its last good iterate."""
        d, r, shadow = torch.zeros_like(rhs), rhs, rhs
        p = v = torch.zeros_like(rhs)
        rho = alpha = omega = torch.ones_like(target)
        spent = torch.zeros_like(running, dtype=torch.long)
        while True:
            running = running & (_norm(r) > target) & (spent < budget)
            if not running.any():
                return d, spent
            previous, rho = rho, _dot(shadow, r)
            p = r + (rho / previous) * (alpha / omega) * (p - omega * v)
            y = precondition(p)
            v = multiply(y)
            alpha = rho / _dot(shadow, v)
            s = r - alpha * v
            z = precondition(s)
            t = multiply(z)
            tt = _dot(t, t)
            omega = torch.where(tt > 0, _dot(t, s) / tt, 0.0)  # tt = 0 if s = 0: the first half step solved it
            next_r = s - omega * t
            running = running & torch.isfinite(_norm(next_r))
            d = torch.where(running, d + alpha * y + omega * z, d)
            r = torch.where(running, next_r, r)
            spent = spent + running


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar products (B,) of vectors (n, B)."""
    return (a * b).sum(0)


def _norm(a: Tensor) -> Tensor:
    """Return the lengths (B,) of vectors (n, B)."""
    return torch.linalg.vector_norm(a, dim=0)

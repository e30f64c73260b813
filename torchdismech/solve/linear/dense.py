"""Dense Cholesky and LU: for tiny matrices, and as the reference that other solvers are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.linear.base import DirectSolver, IndexMap
from torchdismech.sparse import Pattern

__all__ = ["DenseSolver"]


class DenseSolver(DirectSolver):
    """Factor every matrix as a dense one.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.
    """

    name = "dense"

    def __init__(self, pattern: Pattern):
        super().__init__(pattern)
        self._lower = IndexMap(pattern.rows * pattern.n + pattern.cols)
        self._all = IndexMap(self.full.rows * pattern.n + self.full.cols)

    def describe(self, device: torch.device | str = "cpu") -> str:
        """Return one line for a person: the method and its sizes."""
        kind = "Cholesky" if self.pattern.symmetric else "LU"
        return f"dense {kind}, n = {self.pattern.n}"

    def memory(self, batch: int, device: torch.device | str = "cpu") -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds on a device."""
        return 8 * batch * self.pattern.n**2

    def _cholesky(self, values: Tensor, wanted: Tensor | None) -> _DenseCholesky:
        return _DenseCholesky(self._matrices(values, self._lower))

    def _lu(self, values: Tensor, wanted: Tensor | None) -> _DenseLU:
        return _DenseLU(self._matrices(values, self._all))

    def _matrices(self, values: Tensor, places: IndexMap) -> Tensor:
        """Return matrices (b, n, n) with the values (nnz, b) at these flat indices, zero elsewhere."""
        n, batch = self.pattern.n, values.shape[1]
        matrices = values.new_zeros(batch, n * n)
        matrices.index_copy_(1, places.on(values.device), values.t().contiguous())
        return matrices.view(batch, n, n)


class _DenseCholesky:
    def __init__(self, matrices: Tensor):
        self.lower, info = torch.linalg.cholesky_ex(matrices)
        # A NaN in a row of the lower triangle spreads to that row's pivot; not every LAPACK library reports it.
        self.ok = (info == 0) & torch.isfinite(self.lower.diagonal(dim1=1, dim2=2)).all(1)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        return torch.cholesky_solve(rhs.unsqueeze(2), self.lower).squeeze(2)


class _DenseLU:
    def __init__(self, matrices: Tensor):
        self.lu, self.pivots, info = torch.linalg.lu_factor_ex(matrices)
        self.ok = (info == 0) & torch.isfinite(self.lu.diagonal(dim1=1, dim2=2)).all(1)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        return torch.linalg.lu_solve(self.lu, self.pivots, rhs.unsqueeze(2), adjoint=transpose).squeeze(2)

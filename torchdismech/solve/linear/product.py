"""The product of a batch of sparse matrices with a batch of vectors, by two backends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import check_choice
from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse import Pattern, Scatter

__all__ = ["TorchProduct", "TorchSparseProduct", "make_product"]


class TorchProduct:
    """Gather, multiply, sum by a constant sparse matrix: plain torch, batch last throughout."""

    def __init__(self, pattern: Pattern):
        self._ends = (pattern.rows, pattern.cols)
        self._maps = (IndexMap(pattern.rows), IndexMap(pattern.cols))
        self._shape = (pattern.n, pattern.nnz)
        self._sums: dict[tuple, Scatter] = {}

    def bind(self, values: Tensor, transpose: bool) -> Callable[[Tensor], Tensor]:
        """Return the map from x (n, B) to A x (n, B), or A^T x, for matrices with values (nnz, B)."""
        gather = self._maps[0 if transpose else 1].on(values.device)
        total = self._sum(1 if transpose else 0, values)
        return lambda x: total(values * x.index_select(0, gather))

    def _sum(self, end: int, like: Tensor) -> Scatter:
        key = (end, like.dtype, like.device)
        if key not in self._sums:
            entries = np.arange(self._shape[1])
            scatter = Scatter(self._shape, self._ends[end], entries, np.ones(len(entries)), like.dtype)
            self._sums[key] = scatter.to(like.device)
        return self._sums[key]


class TorchSparseProduct:
    """torch-sparse's CSR kernel on the block-diagonal matrix of all robots."""

    def __init__(self, pattern: Pattern):
        try:
            import torch_sparse  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ImportError(
                "product 'torch-sparse' needs the package torch-sparse, which is not installed: "
                "`pip install torchdismech[sparse]`, or use product 'torch'"
            ) from error
        self._library = torch_sparse
        self._n = pattern.n
        plain = (pattern.rows, pattern.cols, np.arange(pattern.nnz))
        swap = np.lexsort((pattern.rows, pattern.cols))
        swapped = (pattern.cols[swap], pattern.rows[swap], swap)
        self._csr = [self._pointers(*entries) for entries in (plain, swapped)]

    def _pointers(self, rows: np.ndarray, cols: np.ndarray, order: np.ndarray) -> tuple[IndexMap, IndexMap, IndexMap]:
        """Return the end of each row, the columns, and the indices of the values, of entries sorted by row."""
        return IndexMap(np.cumsum(np.bincount(rows, minlength=self._n))), IndexMap(cols), IndexMap(order)

    def bind(self, values: Tensor, transpose: bool) -> Callable[[Tensor], Tensor]:
        """Return the map from x (n, B) to A x (n, B), or A^T x, for matrices with values (nnz, B)."""
        ends, cols, order = (m.on(values.device) for m in self._csr[transpose])
        nnz, batch = values.shape
        robot = torch.arange(batch, device=values.device)[:, None]
        matrix = self._library.SparseTensor(
            rowptr=torch.cat([ends.new_zeros(1), (robot * nnz + ends).flatten()]),
            col=(robot * self._n + cols).flatten(),
            value=values.index_select(0, order).t().flatten(),
            sparse_sizes=(batch * self._n, batch * self._n),
            is_sorted=True,
        )

        def multiply(x: Tensor) -> Tensor:
            return self._library.matmul(matrix, x.t().reshape(-1, 1)).view(batch, self._n).t()

        return multiply


PRODUCTS: dict[str, type[TorchProduct] | type[TorchSparseProduct]] = {
    "torch": TorchProduct,
    "torch-sparse": TorchSparseProduct,
}


def make_product(name: str, pattern: Pattern) -> TorchProduct | TorchSparseProduct:
    """Return the backend of that name for matrices of an unsymmetric pattern, in which both triangles are stored."""
    check_choice("product", name, PRODUCTS)
    return PRODUCTS[name](pattern)

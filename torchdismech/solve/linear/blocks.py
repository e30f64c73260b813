"""Elimination of block-tridiagonal matrices, block by block, all robots at once in torch.

A banded matrix cut into blocks of its bandwidth is block-tridiagonal: block k touches k - 1 and k + 1 only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.solve.linear.base import Decomposition, IndexMap, growth_limit
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import BandedOrder

__all__ = ["BlockElimination"]


class BlockElimination:
    """Layout of banded matrices in blocks, and their block factorisation.

    Parameters
    ----------
    pattern : the pattern of the matrices.
    full : the same pattern with both triangles.
    order : the order of the unknowns.

    Attributes
    ----------
    size, count : side of a block, at least the bandwidth, and number of blocks on the diagonal.
    """

    def __init__(self, pattern: Pattern, full: Pattern, order: BandedOrder):
        self.size = max(order.lower, order.upper, 1)
        self.count = -(-pattern.n // self.size)
        self.order = IndexMap(order.order)
        row, col = order.place[pattern.rows], order.place[pattern.cols]
        if pattern.symmetric:
            row, col = np.maximum(row, col), np.minimum(row, col)
        self._lower_places = IndexMap(self._places(row, col))
        self._full_places = IndexMap(self._places(order.place[full.rows], order.place[full.cols]))
        padded = np.arange(pattern.n, self.count * self.size)
        self._padding = IndexMap(self._places(padded, padded))

    def numbers(self, symmetric: bool) -> int:
        """Return how many numbers a factor of one matrix holds."""
        return (2 if symmetric else 3) * self.count * self.size**2

    def _places(self, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Return flat indices in [kind, block, row, col] storage; kind 0 diagonal, 1 below, 2 above the diagonal."""
        w = self.size
        kind = np.where(row // w == col // w, 0, np.where(row > col, 1, 2))
        return ((kind * self.count + np.minimum(row, col) // w) * w + row % w) * w + col % w

    def _filled(self, values: Tensor, places: IndexMap, kinds: int) -> Tensor:
        """Return the blocks (kinds, count, b, size, size); block k of kinds 1 and 2 couples blocks k and k + 1.

        Unknowns that fill up the last block get the identity.
        """
        batch, w = values.shape[1], self.size
        flat = values.new_zeros(kinds * self.count * w * w, batch)
        flat.index_copy_(0, places.on(values.device), values)
        flat.index_fill_(0, self._padding.on(values.device), 1.0)
        blocks = flat.view(kinds * self.count, w * w, batch).transpose(1, 2).contiguous()
        return blocks.view(kinds, self.count, batch, w, w)

    def cholesky(self, values: Tensor) -> Decomposition:
        """Return Cholesky factors of symmetric matrices with values (nnz of the pattern, b)."""
        return _BlockCholesky(self, *self._filled(values, self._lower_places, 2))

    def lu(self, values: Tensor) -> Decomposition:
        """Return LU factors of matrices with values (nnz of the full pattern, b)."""
        return _BlockLU(self, growth_limit(values), *self._filled(values, self._full_places, 3))

    def split(self, rhs: Tensor) -> list[Tensor]:
        """Return vectors (b, n) in the banded order, cut into pieces (b, size, 1), one per block."""
        ordered = rhs.index_select(1, self.order.on(rhs.device))
        padded = torch.nn.functional.pad(ordered, (0, self.count * self.size - rhs.shape[1]))
        return list(padded.unsqueeze(2).split(self.size, dim=1))

    def join(self, pieces: list[Tensor]) -> Tensor:
        """Return the vectors (b, n) that `split` cut into these pieces."""
        order = self.order.on(pieces[0].device)
        ordered = torch.cat(pieces, dim=1)[:, : len(order), 0]
        return torch.empty_like(ordered).index_copy_(1, order, ordered)


class _BlockCholesky:
    """A = L L^T; L has lower triangular blocks on the diagonal and full ones below."""

    def __init__(self, layout: BlockElimination, diagonal: Tensor, below: Tensor):
        self.layout = layout
        self.top: list[Tensor] = []
        self.below: list[Tensor] = []
        block, good = diagonal[0], []
        for k in range(layout.count):
            top, info = torch.linalg.cholesky_ex(block)
            good.append((info == 0) & torch.isfinite(top.diagonal(dim1=1, dim2=2)).all(1))
            self.top.append(top)
            if k + 1 < layout.count:
                self.below.append(torch.linalg.solve_triangular(top.mT, below[k], upper=True, left=False))
                block = torch.baddbmm(diagonal[k + 1], self.below[k], self.below[k].mT, alpha=-1)
        self.ok = torch.stack(good).all(0)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        x = self.layout.split(rhs)
        for k, top in enumerate(self.top):
            if k:
                x[k] = torch.baddbmm(x[k], self.below[k - 1], x[k - 1], alpha=-1)
            x[k] = torch.linalg.solve_triangular(top, x[k], upper=False)
        for k, top in reversed(list(enumerate(self.top))):
            if k + 1 < len(x):
                x[k] = torch.baddbmm(x[k], self.below[k].mT, x[k + 1], alpha=-1)
            x[k] = torch.linalg.solve_triangular(top.mT, x[k], upper=True)
        return self.layout.join(x)


class _BlockLU:
    """A = (D + C)(1 + W): reduced diagonal blocks D, blocks C below them, W_k = D_k^-1 times the block right of D_k.

    Rows are exchanged within the blocks only; `ok` reports matrices whose entries grow too much for that.
    """

    def __init__(self, layout: BlockElimination, limit: Tensor, diagonal: Tensor, below: Tensor, right: Tensor):
        self.layout = layout
        self.below = below
        self.lu: list[tuple[Tensor, Tensor]] = []
        self.above: list[Tensor] = []
        block, good = diagonal[0], []
        for k in range(layout.count):
            lu, pivots, info = torch.linalg.lu_factor_ex(block)
            good.append((info == 0) & torch.isfinite(lu.diagonal(dim1=1, dim2=2)).all(1))
            self.lu.append((lu, pivots))
            if k + 1 < layout.count:
                self.above.append(torch.linalg.lu_solve(lu, pivots, right[k]))
                block = torch.baddbmm(diagonal[k + 1], below[k], self.above[k], alpha=-1)
                good.append(block.abs().amax((1, 2)) <= limit)
        self.ok = torch.stack(good).all(0)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        x = self.layout.split(rhs)
        last = len(x) - 1
        for k, factors in enumerate(self.lu):
            if transpose and k:
                x[k] = torch.baddbmm(x[k], self.above[k - 1].mT, x[k - 1], alpha=-1)
            elif not transpose:
                if k:
                    x[k] = torch.baddbmm(x[k], self.below[k - 1], x[k - 1], alpha=-1)
                x[k] = torch.linalg.lu_solve(*factors, x[k])
        for k, factors in reversed(list(enumerate(self.lu))):
            if transpose:
                if k < last:
                    x[k] = torch.baddbmm(x[k], self.below[k].mT, x[k + 1], alpha=-1)
                x[k] = torch.linalg.lu_solve(*factors, x[k], adjoint=True)
            elif k < last:
                x[k] = torch.baddbmm(x[k], self.above[k], x[k + 1], alpha=-1)
        return self.layout.join(x)

"""Multifrontal Cholesky and LU for any topology, all robots at once.

Eliminating an unknown of a sparse matrix touches only its neighbours, so elimination can run in small dense matrices
(fronts) along a tree: a front sums the entries of its unknowns and what its children left over, eliminates its pivots,
and hands the rest, its contribution block, to its parent. The tree comes from nested dissection, so that many fronts
stand side by side; those of a level with about the same size are padded to one size and factored by one batched call.

I. S. Duff and J. K. Reid, The multifrontal solution of indefinite sparse symmetric linear equations, ACM TOMS 9, 1983.
A. George, Nested dissection of a regular finite element mesh, SIAM J. Numer. Anal. 10, 1973.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchdismech.solve.linear.base import DirectSolver, IndexMap, growth_limit
from torchdismech.solve.linear.fronts import Bucket, build_buckets, build_fronts
from torchdismech.sparse import Pattern

__all__ = ["MultifrontalSolver"]


class MultifrontalSolver(DirectSolver):
    """Eliminate along a tree of small dense fronts.

    LU exchanges rows only within the pivot block of a front. A matrix that needs exchanges across fronts is reported
    rather than solved badly: a robot whose entries grow by more than 1/sqrt(machine epsilon) is not `ok`.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.

    Attributes
    ----------
    stats : sizes of the elimination.
    """

    name = "multifrontal"

    def __init__(self, pattern: Pattern):
        super().__init__(pattern)
        self._fronts = build_fronts(pattern)
        self._buckets: dict[bool, list[Bucket]] = {}
        self._buckets[pattern.symmetric], self.stats = build_buckets(self._fronts, pattern)

    def describe(self, device: torch.device | str = "cpu") -> str:
        """Return one line for a person: the method and its sizes."""
        s = self.stats
        kind, work = ("Cholesky", s.multiplications) if self.pattern.symmetric else ("LU", 2 * s.multiplications)
        return (
            f"multifrontal {kind}, n = {self.pattern.n}: {s.fronts} fronts in {s.levels} levels ({s.buckets} batched "
            f"calls), largest front {s.largest}, fill {s.fill} of {self.pattern.nnz} entries, "
            f"{work / 1e6:.2g} million multiplications"
        )

    def memory(self, batch: int, device: torch.device | str = "cpu") -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds on a device."""
        return 8 * batch * sum(b.count * (b.p * b.p + (1 if b.symmetric else 2) * b.u * b.p) for b in self._own_buckets)

    @property
    def _own_buckets(self) -> list[Bucket]:
        return self._buckets[self.pattern.symmetric]

    def _cholesky(self, values: Tensor, wanted: Tensor | None) -> _Cholesky:
        return _Cholesky(self._buckets[True], values, self.pattern.n)

    def _lu(self, values: Tensor, wanted: Tensor | None) -> _LU:
        if False not in self._buckets:
            self._buckets[False] = build_buckets(self._fronts, self.full)[0]
        return _LU(self._buckets[False], values, self.pattern.n)


def _kept(bucket: Bucket, values: Tensor, rests: dict[int, Tensor]) -> Tensor:
    """Return the blocks (b, kept) of a bucket's fronts that the factor keeps, before their elimination.

    They are the entries of the matrix, ones on the diagonal of padding, and the rests of the children.

    Parameters
    ----------
    values : (b, nnz) of the matrices.
    rests : rest of each bucket that is factored already, by its index.
    """
    device = values.device
    kept = values.new_zeros(len(values), bucket.kept)
    kept.index_copy_(1, bucket.target.on(device), values.index_select(1, bucket.source.on(device)))
    if len(bucket.padding.array):
        kept.index_fill_(1, bucket.padding.on(device), 1.0)
    for update in bucket.children:
        _add(kept, rests[update.child], *update.kept)
    return kept


def _rest(bucket: Bucket, left: Tensor, right: Tensor, rests: dict[int, Tensor]) -> Tensor:
    """Return the rests (b, count * u * u) of a bucket's fronts: those of the children, minus left @ right.

    The rests of children that no later bucket needs are removed from `rests`.

    Parameters
    ----------
    left, right : (b, count, u, p) and (b, count, p, u).
    """
    passing = [update for update in bucket.children if len(update.passed[0].array)]
    size = (len(left), bucket.count * bucket.u**2)
    rest = left.new_zeros(size) if passing else left.new_empty(size)
    for update in passing:
        _add(rest, rests[update.child], *update.passed)
    left, right = left.flatten(0, 1), right.flatten(0, 1)
    # with beta 0 the product overwrites memory that was not initialised
    rest.view(len(left), bucket.u, bucket.u).baddbmm_(left, right, beta=1 if passing else 0, alpha=-1)
    for child in bucket.finished:
        del rests[child]
    return rest


def _add(blocks: Tensor, rest: Tensor, source: IndexMap, target: IndexMap) -> None:
    """Add entries `source` of a child's rest to places `target` of blocks (b, any) of its parents."""
    if len(source.array):
        blocks.index_add_(1, target.on(blocks.device), rest.index_select(1, source.on(blocks.device)))


def _block(kept: Tensor, bucket: Bucket, kind: int, rows: int, cols: int) -> Tensor:
    """Return the blocks (b, count, rows, cols) of one kind, of all fronts, as a view."""
    return kept[:, bucket.blocks[kind] : bucket.blocks[kind + 1]].view(len(kept), bucket.count, rows, cols)


def _sound(failed: list[Tensor], pivots: list[Tensor]) -> Tensor:
    """Return the matrices (b,) of which no front failed (info of (b, count) is 0) and all pivots are finite."""
    return (torch.cat(failed, dim=1) == 0).all(1) & torch.isfinite(torch.cat(pivots, dim=1)).all(1)


class _Tree(ABC):
    """Forward and backward substitution along the tree; a subclass says what one bucket does."""

    def __init__(self, buckets: list[Bucket], n: int):
        self.buckets = buckets
        self.n = n

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        # padding refers to one more unknown, which is always zero
        x = torch.nn.functional.pad(rhs, (0, 1))
        device = rhs.device
        for k, bucket in enumerate(self.buckets):
            pivots, boundary = bucket.pivots.on(device), bucket.boundary.on(device)
            mine = x.index_select(1, pivots).view(len(x), bucket.count, bucket.p, 1)
            mine, passed_on = self._forward(k, mine, transpose)
            x.index_copy_(1, pivots, mine.reshape(len(x), len(pivots)))
            if bucket.u:
                x.index_add_(1, boundary, passed_on.reshape(len(x), len(boundary)), alpha=-1)
        for k, bucket in reversed(list(enumerate(self.buckets))):
            pivots, boundary = bucket.pivots.on(device), bucket.boundary.on(device)
            mine = x.index_select(1, pivots).view(len(x), bucket.count, bucket.p, 1)
            above = x.index_select(1, boundary).view(len(x), bucket.count, bucket.u, 1)
            x.index_copy_(1, pivots, self._backward(k, mine, above, transpose).reshape(len(x), len(pivots)))
        return x[:, : self.n]

    @abstractmethod
    def _forward(self, k: int, mine: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        """Return the pivots' right-hand side after elimination, and what to subtract from the boundary's.

        Parameters
        ----------
        k : index of the bucket.
        mine : (b, count, p, 1) right-hand side of its pivots.
        """

    @abstractmethod
    def _backward(self, k: int, mine: Tensor, above: Tensor, transpose: bool) -> Tensor:
        """Return the solution for the pivots of bucket k, given that of the boundary, `above` (b, count, u, 1)."""


class _Cholesky(_Tree):
    """A = L L^T, stored per bucket as L of the pivots and the rows of L below them."""

    def __init__(self, buckets: list[Bucket], values: Tensor, n: int):
        super().__init__(buckets, n)
        values = values.t().contiguous()
        self.lower: list[tuple[Tensor, Tensor]] = []
        rests: dict[int, Tensor] = {}
        failed, pivots = [], []
        for k, bucket in enumerate(buckets):
            p, u = bucket.p, bucket.u
            kept = _kept(bucket, values, rests)
            top, info = torch.linalg.cholesky_ex(_block(kept, bucket, 0, p, p))
            failed.append(info)
            pivots.append(top.diagonal(dim1=2, dim2=3).flatten(1))
            below = torch.linalg.solve_triangular(top.mT, _block(kept, bucket, 1, u, p), upper=True, left=False)
            self.lower.append((top, below))
            rests[k] = _rest(bucket, below, below.mT, rests)
        self.ok = _sound(failed, pivots)

    def _forward(self, k: int, mine: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        top, below = self.lower[k]
        mine = torch.linalg.solve_triangular(top, mine, upper=False)
        return mine, below @ mine

    def _backward(self, k: int, mine: Tensor, above: Tensor, transpose: bool) -> Tensor:
        top, below = self.lower[k]
        return torch.linalg.solve_triangular(top.mT, mine - below.mT @ above, upper=True)


class _LU(_Tree):
    """LU of fronts: [[P, R], [C, .]] is stored as LU of P, C, and W = P^-1 R; its rest minus C W goes to the parent."""

    def __init__(self, buckets: list[Bucket], values: Tensor, n: int):
        super().__init__(buckets, n)
        limit = growth_limit(values)
        values = values.t().contiguous()
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        rests: dict[int, Tensor] = {}
        failed, diagonals, bounded = [], [], []
        for k, bucket in enumerate(buckets):
            p, u = bucket.p, bucket.u
            kept = _kept(bucket, values, rests)
            lu, pivots, info = torch.linalg.lu_factor_ex(_block(kept, bucket, 0, p, p))
            failed.append(info)
            diagonals.append(lu.diagonal(dim1=2, dim2=3).flatten(1))
            left = _block(kept, bucket, 1, u, p).contiguous()
            right = torch.linalg.lu_solve(lu, pivots, _block(kept, bucket, 2, p, u))
            self.parts.append((lu, pivots, left, right))
            rests[k] = _rest(bucket, left, right, rests)
            if u:
                bounded.append(rests[k].abs().amax(1) <= limit)
        self.ok = _sound(failed, diagonals)
        if bounded:
            self.ok &= torch.stack(bounded).all(0)

    def _forward(self, k: int, mine: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        lu, pivots, left, right = self.parts[k]
        if transpose:
            return mine, right.mT @ mine
        mine = torch.linalg.lu_solve(lu, pivots, mine)
        return mine, left @ mine

    def _backward(self, k: int, mine: Tensor, above: Tensor, transpose: bool) -> Tensor:
        lu, pivots, left, right = self.parts[k]
        if transpose:
            return torch.linalg.lu_solve(lu, pivots, mine - left.mT @ above, adjoint=True)
        return mine - right @ above

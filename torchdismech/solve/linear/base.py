"""Base classes of linear solvers and their factors, and what direct solvers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.native import taping
from torchdismech.rows import finite_columns
from torchdismech.sparse import Pattern

__all__ = [
    "Decomposition",
    "DirectFactor",
    "DirectSolver",
    "Factor",
    "IndexMap",
    "JoinedFactor",
    "Solver",
    "check_rhs",
    "full_pattern",
    "growth_limit",
]

# Unknowns of all robots together up to which a CPU selects rows only in ways that give the same bits as recorded steps,
# which factor all rows.
MAX_UNKNOWNS = 60_000
MOST_SELECTED = 0.75  # fraction of the rows beyond which all are factored: selecting values costs more than it saves


class IndexMap:
    """An index array, with a cached copy on each device where it has been used."""

    def __init__(self, array: np.ndarray):
        self.array = np.ascontiguousarray(array, dtype=np.int64)
        self._copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Return the indices as a long tensor on the device."""
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self.array).to(device)
        return self._copies[device]


def full_pattern(pattern: Pattern) -> tuple[Pattern, np.ndarray]:
    """Return the pattern with both triangles, and the index of each of its entries among the values of `pattern`.

    A symmetric pattern stores the lower triangle: with `full, source = full_pattern(pattern)`, `values[source]` are the
    values on `full`.
    """
    if not pattern.symmetric:
        return pattern, np.arange(pattern.nnz)
    full = Pattern.union(
        pattern.n,
        np.concatenate([pattern.rows, pattern.cols]),
        np.concatenate([pattern.cols, pattern.rows]),
        symmetric=False,
        order_hint=pattern.order_hint,
    )
    return full, pattern.position(np.maximum(full.rows, full.cols), np.minimum(full.rows, full.cols))


def growth_limit(values: Tensor) -> Tensor:
    """Return the size (b,) up to which entries may grow during an LU whose row exchanges are limited to blocks.

    The error of the solution is about machine epsilon times the growth: beyond 1/sqrt(epsilon), half the digits are
    gone.
    """
    return values.abs().amax(0) / torch.finfo(values.dtype).eps ** 0.5


class Factor(ABC):
    """Factorizations of a batch of matrices A, or matrices with preconditioners for iterative solvers.

    Attributes
    ----------
    ok : (B,) bool tensor, True where `solve` returns the solution. A direct factor knows it from the start; an
        iterative one sets it anew in each `solve`, so read it after solving.
    """

    ok: Tensor

    @abstractmethod
    def solve(self, rhs: Tensor, transpose: bool = False) -> Tensor:
        """Return x (B, n) with A x = rhs, or A^T x = rhs; zeros in the rows that are not `ok`."""


class JoinedFactor(Factor):
    """Two factors of disjoint rows of a batch as one; each returns zeros in the rows of the other."""

    def __init__(self, first: Factor, second: Factor):
        self.parts = (first, second)
        self.ok = first.ok | second.ok

    def solve(self, rhs: Tensor, transpose: bool = False) -> Tensor:
        """Return x (B, n) with A x = rhs, or A^T x = rhs; zeros in the rows that are not `ok`."""
        solution = self.parts[0].solve(rhs, transpose) + self.parts[1].solve(rhs, transpose)
        self.ok = self.parts[0].ok | self.parts[1].ok  # iterative factors set it in each solve
        return solution


class Solver(ABC):
    """The symbolic half of a linear solver: what follows from the pattern alone, and serves all matrices on it.

    Parameters
    ----------
    pattern : where the entries of the matrices stand.

    Attributes
    ----------
    solves_indefinite : whether `factor(values, rows, indefinite=True)` is supported for symmetric patterns; if not, it
        raises `InputError`.
    """

    name: str
    solves_indefinite = True

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self._diagonal = IndexMap(pattern.diagonal)

    def diagonal(self, device: torch.device) -> Tensor:
        """Return the indices (n,) of the diagonal entries among the values."""
        return self._diagonal.on(device)

    @abstractmethod
    def factor(self, values: Tensor, rows: Tensor | None = None, indefinite: bool = False) -> Factor:
        """Return the factor of the matrices with values (nnz, B).

        Parameters
        ----------
        rows : (B,) bool, the robots whose matrices are factored; None means all.
        indefinite : whether matrices of a symmetric pattern need not be positive definite.
        """

    def factor_any_sign(self, values: Tensor, rows: Tensor | None = None) -> tuple[Factor, Tensor]:
        """Return the factor of the matrices, and the rows (B,) that are `ok` although known to be indefinite.

        Solvers whose factorization takes indefinite matrices of a symmetric pattern at no extra cost return those as
        `ok`. By default, as in `factor`, only positive definite ones are, and no row is known to be indefinite.
        """
        factor = self.factor(values, rows)
        return factor, torch.zeros_like(factor.ok)

    @abstractmethod
    def describe(self, device: torch.device | str = "cpu") -> str:
        """Return one line for a person: the method, as it is on a device, and its sizes."""

    @abstractmethod
    def memory(self, batch: int, device: torch.device | str = "cpu") -> int:
        """Return an estimate of the bytes that a factor of `batch` float64 matrices holds on a device."""

    def _check(self, values: Tensor, rows: Tensor | None) -> None:
        """Refuse values or rows of the wrong shape or type."""
        if values.ndim != 2 or values.shape[0] != self.pattern.nnz:
            raise InputError(
                f"{self.name}: values must be (nnz, B) with nnz = {self.pattern.nnz}, got {tuple(values.shape)}"
            )
        if values.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{self.name}: values must be float32 or float64, got {values.dtype}")
        if rows is not None and (rows.shape != values.shape[1:] or rows.dtype != torch.bool):
            raise InputError(
                f"{self.name}: rows must be a bool tensor ({values.shape[1]},), got {rows.dtype} {tuple(rows.shape)}"
            )


def check_rhs(name: str, rhs: Tensor, like: Tensor, shape: tuple[int, int]) -> None:
    """Refuse a right-hand side that does not fit the factor."""
    if tuple(rhs.shape) != shape or rhs.dtype != like.dtype or rhs.device != like.device:
        raise InputError(
            f"{name}: rhs must be {like.dtype} {shape} on {like.device}, "
            f"got {rhs.dtype} {tuple(rhs.shape)} on {rhs.device}"
        )


class Decomposition(Protocol):
    """The numbers that a direct method computes: the factors of the b selected matrices."""

    ok: Tensor  # (b,) bool

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions; rows that are not ok may hold anything."""


class DirectFactor(Factor):
    """A decomposition of some rows of a batch, presented as a factor of the whole batch.

    Parameters
    ----------
    name : of the solver, for messages.
    parts : the decomposition of the selected matrices.
    selected : (b,) indices of the rows that the decomposition holds; None: all.
    wanted : (b,) which of these were asked for; None: all. The others are not `ok`.
    values : (nnz, B) of the whole batch.
    n : number of unknowns.
    """

    def __init__(
        self,
        name: str,
        parts: Decomposition,
        selected: Tensor | None,
        wanted: Tensor | None,
        values: Tensor,
        n: int,
    ):
        self.name = name
        self.parts = parts
        self.selected = selected
        self._shape = (values.shape[1], n)
        self._like = values.new_empty(0)
        self.ok = self.of_batch(parts.ok if wanted is None else parts.ok & wanted)

    def of_batch(self, flags: Tensor) -> Tensor:
        """Return flags (b,) of the selected rows as flags of the batch (B,), False in the other rows."""
        if self.selected is None:
            return flags
        return torch.zeros(self._shape[0], dtype=torch.bool, device=flags.device).index_copy(0, self.selected, flags)

    def solve(self, rhs: Tensor, transpose: bool = False) -> Tensor:
        """Return x (B, n) with A x = rhs, or A^T x = rhs; zeros in the rows that are not `ok`."""
        check_rhs(self.name, rhs, self._like, self._shape)
        rhs = rhs.detach()
        if self.selected is None:
            return torch.where(self.ok[:, None], self.parts.solve(rhs, transpose), 0.0)
        solution = self.parts.solve(rhs.index_select(0, self.selected), transpose)
        x = torch.zeros_like(rhs)
        x[self.selected] = torch.where(self.ok[self.selected][:, None], solution, 0.0)
        return x


class DirectSolver(Solver):
    """A direct method: Cholesky for symmetric patterns, LU with pivoting for the rest.

    A subclass computes the two decompositions from the values of the selected rows. For LU of a symmetric pattern the
    values are mirrored first, so `_lu` always sees the values of `self.full`.

    On a CPU only the rows asked for are factored: in large batches always, in small ones where the results are the same
    to the bit. On a GPU, and in recordings, no shape may depend on data and the host must not wait: there the
    decomposition gets all rows, and a method may skip those that are not wanted.
    """

    @cached_property
    def _both_triangles(self) -> tuple[Pattern, IndexMap]:
        """The pattern with both triangles, and its `source`, see `full_pattern`; computed for LU only."""
        full, mirror = full_pattern(self.pattern)
        return full, IndexMap(mirror)

    @property
    def full(self) -> Pattern:
        """The pattern with both triangles."""
        return self._both_triangles[0]

    @property
    def _mirror(self) -> IndexMap:
        """Index of each value on `full` among the values of `pattern`."""
        return self._both_triangles[1]

    def factor(self, values: Tensor, rows: Tensor | None = None, indefinite: bool = False) -> DirectFactor:
        """Return the factor of the selected matrices; in large batches on a CPU the others cost nothing.

        Parameters
        ----------
        values : (nnz, B) float32 or float64, batch last.
        rows : (B,) bool, the robots whose matrices are factored; None means all.
        indefinite : whether matrices of a symmetric pattern need not be positive definite. They are factored by LU with
            pivoting (about twice the work) unless the method has something better. Unsymmetric patterns always are.

        Returns
        -------
        A factor whose `ok` (B,) is False where the matrix is not positive definite (Cholesky), exactly singular (LU),
        holds a number that is not finite, or was not asked for.
        """
        if not self.pattern.symmetric:
            return self._factored(self._finite_lu, values, rows)
        return self._factored(self._indefinite if indefinite else self._cholesky, values, rows)

    def _factored(
        self, decompose: Callable[[Tensor, Tensor | None], Decomposition], values: Tensor, rows: Tensor | None
    ) -> DirectFactor:
        """Return the factor of the selected matrices by `decompose`, one of the methods below."""
        self._check(values, rows)
        values = values.detach()
        selected = None if rows is None else self._selected(values, rows)
        wanted = rows if selected is None or rows is None else rows[selected]
        chosen = values if selected is None else values.index_select(1, selected)
        return DirectFactor(self.name, decompose(chosen, wanted), selected, wanted, values, self.pattern.n)

    def _selected(self, values: Tensor, rows: Tensor) -> Tensor | None:
        """Return the indices (b,) of the rows to factor, which include those that `rows` (B,) selects; None for all."""
        batch = values.shape[1]
        if batch == 1 or values.device.type != "cpu" or taping() or torch.compiler.is_compiling():
            return None
        if batch * self.pattern.n > MAX_UNKNOWNS:
            return None if bool(rows.all()) else rows.nonzero().squeeze(1)
        fewest = self._fewest_alike(batch)
        count = batch if fewest is None else max(int(rows.sum()), fewest)
        if count > MOST_SELECTED * batch:
            return None
        return torch.sort(rows, descending=True, stable=True).indices[:count].sort().values

    def _fewest_alike(self, batch: int) -> int | None:
        """Return the least number of matrices that a CPU factors with the same bits as `batch` of them.

        None where the bits depend on the number of matrices, so that small batches are factored as a whole.
        """
        return None

    @abstractmethod
    def _cholesky(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        """Return Cholesky factors of the symmetric matrices with values (nnz, b).

        Rows (b,) that are not `wanted` may come back as anything; None means that all are.
        """

    def _indefinite(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        """Return factors of symmetric matrices with values (nnz, b) which need not be positive definite."""
        return self._finite_lu(values.index_select(0, self._mirror.on(values.device)), wanted)

    def _finite_lu(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        """Return LU factors as `_lu`, but not `ok` where a value is not finite.

        The checks of the pivots alone may miss such a value where it does not reach a pivot.
        """
        parts = self._lu(values, wanted)
        parts.ok = parts.ok & finite_columns(values)
        return parts

    @abstractmethod
    def _lu(self, values: Tensor, wanted: Tensor | None) -> Decomposition:
        """Return LU factors of the matrices with values (nnz of `self.full`, b); `wanted` as for `_cholesky`."""

"""Index maps that add gradients and Hessians of stencils, by local variables, into forces and matrix values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic.stencil import Stencil
from torchdismech.sparse import Pattern, Scatter, sorted_distinct

__all__ = ["PlacedHessians", "couplings", "force_scatter", "stencils_at_clamped_dofs", "stiffness_scatter"]


def couplings(stencil: Stencil, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, columns) of the entries that a stencil's stiffness has in the lower triangle, each once.

    `unknown` (n,) is each dof's number among the unknowns, -1 for clamped dofs.
    """
    n, keys = int(unknown.max()) + 1, [np.zeros(0, dtype=np.int64)]
    dofs = [unknown[d] for d in {d.tobytes(): d for v in stencil.variables for d, _ in v}.values()]
    for k, first in enumerate(dofs):
        for second in dofs[: k + 1]:
            row, col = np.maximum(first, second), np.minimum(first, second)
            keys.append((row * n + col)[col >= 0])
    distinct = sorted_distinct(np.concatenate(keys))
    return distinct // n, distinct % n


def stencils_at_clamped_dofs(stencil: Stencil, unknown: np.ndarray) -> Tensor:
    """Return the indices (K,) of those springs of a stencil that depend on a clamped dof."""
    reach = np.zeros(stencil.count, dtype=bool)
    for variable in stencil.variables:
        for dofs, _ in variable:
            reach |= unknown[dofs] < 0
    return torch.from_numpy(np.flatnonzero(reach))


@dataclass(frozen=True)
class PlacedHessians:
    """The map from a term's packed Hessians to the values of the sparse matrix.

    Packed Hessians are the second derivatives by pairs of local variables, one pair after the other, of all springs.

    Attributes
    ----------
    wanted : indices of the pairs of variables that contribute to the matrix; packed Hessians hold these only.
    count : number of entries (wanted pairs times springs) of the packed Hessians.
    places, sources, coefficients : of the sum values[places] += coefficients * packed[sources].
    """

    wanted: list[int]
    count: int
    places: np.ndarray
    sources: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def of(cls, stencil: Stencil, unknown: np.ndarray, pattern: Pattern) -> PlacedHessians:
        """Return the map for a stencil; `unknown` (n,) numbers the free dofs and is -1 for clamped ones."""
        places, sources, coefficients = _entries(stencil, unknown, pattern)
        pair, number = np.divmod(sources, max(stencil.count, 1))
        wanted = sorted_distinct(pair)
        packed = np.searchsorted(wanted, pair) * stencil.count + number
        return cls(wanted.tolist(), len(wanted) * stencil.count, places, packed, coefficients)


def _entries(stencil: Stencil, unknown: np.ndarray, pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (places, sources, coefficients) of the stiffness in the values of a pattern.

    A source is an index into the flattened Hessians of all pairs. There are hundreds of entries per spring, so they are
    built pair by pair, in small dtypes, to save memory.
    """
    places, sources, coefficients = [], [], []
    for packed, (i, j) in enumerate(stencil.pairs):
        for a, b in {(i, j), (j, i)}:
            for dof_a, weight_a in stencil.variables[a]:
                for dof_b, weight_b in stencil.variables[b]:
                    row, col = unknown[dof_a], unknown[dof_b]
                    keep = (row >= 0) & (col >= 0) & ((row >= col) | (not pattern.symmetric))
                    places.append(pattern.position(row[keep], col[keep]).astype(np.int32))
                    sources.append((packed * stencil.count + np.flatnonzero(keep)).astype(np.int32))
                    coefficients.append(_compact((weight_a * weight_b)[keep]))
    return np.concatenate(places), np.concatenate(sources), np.concatenate(coefficients)


def _compact(coefficients: np.ndarray) -> np.ndarray:
    """Return the coefficients as int8 where all are +1 or -1, else unchanged."""
    return coefficients.astype(np.int8) if (np.abs(coefficients) == 1).all() else coefficients


def force_scatter(stencils: Sequence[Stencil], n: int, dtype: torch.dtype) -> Scatter:
    """Return the `Scatter` that sums minus the gradients by local variables of all stencils into forces (n, B)."""
    targets, sources, weights = _nothing(), _nothing(), _nothing()
    start = 0
    for stencil in stencils:
        for variable in stencil.variables:
            for dof, weight in variable:
                targets.append(dof)
                sources.append(start + np.arange(stencil.count))
                weights.append(-weight)  # force is minus the gradient
            start += stencil.count
    return Scatter((n, start), np.concatenate(targets), np.concatenate(sources), np.concatenate(weights), dtype)


def stiffness_scatter(placed: Sequence[PlacedHessians], pattern: Pattern, dtype: torch.dtype) -> Scatter:
    """Return the `Scatter` that sums the concatenated packed Hessians into the values (nnz, B) of the matrix."""
    targets, sources, coefficients = _nothing(), _nothing(), _nothing()
    start = 0
    for of_term in placed:
        targets.append(of_term.places)
        sources.append(start + of_term.sources)
        coefficients.append(of_term.coefficients)
        start += of_term.count
    shape = (pattern.nnz, start)
    return Scatter(shape, np.concatenate(targets), np.concatenate(sources), np.concatenate(coefficients), dtype)


def _nothing() -> list[np.ndarray]:
    return [np.zeros(0, dtype=np.int32)]  # so that concatenating also works for robots without springs

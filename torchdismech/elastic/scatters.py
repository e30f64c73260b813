"""Where the gradients and Hessians of stencils go in forces and in the matrix."""

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
    """Return (rows, columns) of the stiffness among the unknowns: those of the lower triangle, each once.

    `unknown` (n,) numbers the free dofs and is -1 elsewhere.
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
    """Return the numbers (K,) of the stencils that reach a clamped dof."""
    reach = np.zeros(stencil.count, dtype=bool)
    for variable in stencil.variables:
        for dofs, _ in variable:
            reach |= unknown[dofs] < 0
    return torch.from_numpy(np.flatnonzero(reach))


@dataclass(frozen=True)
class PlacedHessians:
    """Where the packed Hessians of a term's stencils go in the values of a pattern.

    Attributes
    ----------
    wanted : the stencil's pairs of variables that reach the matrix; others are left out of the packed Hessians.
    count : entries (pairs times stencils) of the packed Hessians.
    places, sources, coefficients : values[places] += coefficients * packed[sources].
    """

    wanted: list[int]
    count: int
    places: np.ndarray
    sources: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def of(cls, stencil: Stencil, unknown: np.ndarray, pattern: Pattern) -> PlacedHessians:
        """Return where they go for unknowns (n,), -1 where clamped."""
        places, sources, coefficients = _entries(stencil, unknown, pattern)
        pair, number = np.divmod(sources, max(stencil.count, 1))
        wanted = sorted_distinct(pair)
        packed = np.searchsorted(wanted, pair) * stencil.count + number
        return cls(wanted.tolist(), len(wanted) * stencil.count, places, packed, coefficients)


def _entries(stencil: Stencil, unknown: np.ndarray, pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (places, sources, coefficients) of the stiffness in the values of a pattern.

    A source is an entry of the flattened Hessians, packed by all pairs. There are hundreds for each stencil: so they
    are small numbers, and made pair by pair.
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
    """Return them as small numbers where all are signs."""
    return coefficients.astype(np.int8) if (np.abs(coefficients) == 1).all() else coefficients


def force_scatter(stencils: Sequence[Stencil], n: int, dtype: torch.dtype) -> Scatter:
    """Return the sum of the gradients by the stencils' local variables into forces (n, B)."""
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
    """Return the sum of packed Hessians, one after the other, into the values (nnz, B) of the matrix."""
    targets, sources, coefficients = _nothing(), _nothing(), _nothing()
    start = 0
    for own in placed:
        targets.append(own.places)
        sources.append(start + own.sources)
        coefficients.append(own.coefficients)
        start += own.count
    shape = (pattern.nnz, start)
    return Scatter(shape, np.concatenate(targets), np.concatenate(sources), np.concatenate(coefficients), dtype)


def _nothing() -> list[np.ndarray]:
    return [np.zeros(0, dtype=np.int32)]  # arrays to concatenate, also where a robot has no springs

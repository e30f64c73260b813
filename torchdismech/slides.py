"""Nodes that slide along lines and in planes which no axes of space give.

A node that slides keeps three coordinates and three unknowns. With P the projection on the directions in which it may
move, its position is h + P (x - h) for unknowns x, where h is a point of the line or plane; it feels the part P f of a
force, and its rows and columns of a matrix K become P K P + s (I - P). So unknowns across the line move nothing, an
equation says that they stay, and nothing but these few rows differs from those of free nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.sparse import Pattern, Scatter

__all__ = ["Slides", "SlidingEntries"]


class Slides(nn.Module):
    """The projections of nodes that slide.

    Parameters
    ----------
    nodes : (S,) which.
    allowed : (S, 3, 3) the projection P of each on the directions in which it moves.

    Attributes
    ----------
    none : whether no node slides.
    """

    dofs: Tensor
    allowed: Tensor

    def __init__(self, nodes: np.ndarray, allowed: np.ndarray, dtype: torch.dtype):
        super().__init__()
        self.nodes, self.projections = nodes, allowed
        self.none = len(nodes) == 0  # a plain value: compiled code reads no arrays
        dofs = (3 * nodes[:, None] + np.arange(3)).reshape(-1)
        self.register_buffer("dofs", torch.as_tensor(dofs), persistent=False)
        self.register_buffer("allowed", torch.as_tensor(allowed, dtype=dtype), persistent=False)

    @property
    def n_across(self) -> int:
        """Number of unknowns too many: directions across lines and planes, but axes that are clamped anyway."""
        counted = np.einsum("sii->si", self.projections) > 0
        return int(counted.sum() - round(float(np.einsum("sii->", self.projections))))

    def motions(self, unknown: np.ndarray) -> Any:
        """Return independent motions of the unknowns as the columns of a scipy matrix (n_free, n_free - n_across).

        Nodes that slide have orthonormal ones along their lines.
        """
        from scipy.sparse import block_diag, csc_array, eye_array

        own = self.unknowns(unknown)
        others = np.setdiff1d(np.arange(int(unknown.max()) + 1), own)
        ways = [_ways(allowed)[unknown[3 * node : 3 * node + 3] >= 0] for node, allowed in self.by_node()]
        rows = np.concatenate([others, own])
        within = block_diag([eye_array(len(others)), *ways], format="csc")
        return csc_array(within)[np.argsort(rows)]

    def by_node(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each node that slides with its projection (3, 3)."""
        return zip(self.nodes.tolist(), self.projections, strict=True)

    def joined(self, moving: Tensor, held: Tensor | float) -> Tensor:
        """Return `moving` (B, n), of sliding nodes its part along their lines, across these that of `held` (B, n)."""
        there = moving.index_select(1, self.dofs)
        point = held.index_select(1, self.dofs) if isinstance(held, Tensor) else torch.full_like(there, held)
        way = (there - point).unflatten(1, (-1, 1, 3))
        return moving.index_copy(1, self.dofs, point + (self.allowed * way).sum(-1).flatten(1))

    def coupled(self, unknown: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries (rows, cols) of P K P for those of K (k,), both triangles of what P mixes."""
        if self.none:
            return rows, cols
        at = self.unknowns(unknown)
        rows, cols = np.concatenate([rows, at]), np.concatenate([cols, at])
        touched = np.isin(rows, at) | np.isin(cols, at)
        r, c, _, _ = self.sources(unknown, rows[touched], cols[touched])
        return np.concatenate([rows, r, c]), np.concatenate([cols, c, r])

    def unknowns(self, unknown: np.ndarray) -> np.ndarray:
        """Return the numbers of the unknowns of all nodes that slide."""
        numbers = unknown[(3 * self.nodes[:, None] + np.arange(3)).reshape(-1)]
        return numbers[numbers >= 0]

    def sources(self, unknown: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the entries (rows, cols, weights, number of the entry) of K that make those of P K P."""
        members, weights = self._members(unknown)
        r, c = members[rows][:, :, None], members[cols][:, None, :]
        product = weights[rows][:, :, None] * weights[cols][:, None, :]
        number = np.arange(len(rows))[:, None, None]
        whole = np.broadcast_arrays(r, c, product, number)
        return tuple(part.reshape(-1) for part in whole)

    def _members(self, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each unknown those that P mixes it with, and the weights, (n_unknown, 3)."""
        count = int(unknown.max()) + 1
        members, weights = np.repeat(np.arange(count)[:, None], 3, axis=1), np.zeros((count, 3))
        weights[:, 0] = 1
        for node, allowed in self.by_node():
            numbers = unknown[3 * node : 3 * node + 3]
            own = np.flatnonzero(numbers >= 0)
            padded = np.resize(own, 3)
            members[numbers[own]] = numbers[padded]
            weights[numbers[own]] = allowed[np.ix_(own, padded)] * (np.arange(3) < len(own))
        return members, weights


def _ways(allowed: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (3, k) that a projection (3, 3) leaves as they are."""
    sizes, axes = np.linalg.eigh(allowed)
    return axes[:, sizes > 0.5]


class SlidingEntries(nn.Module):
    """Makes P K P + s (I - P) of the values of K on a pattern; s is the mean size of K's diagonal at the node."""

    _touched: Tensor
    _diagonal: Tensor

    def __init__(self, slides: Slides, unknown: np.ndarray, pattern: Pattern):
        super().__init__()
        self._slides, self._unknown = (slides,), unknown  # the model's own, not registered a second time
        dtype, at = slides.allowed.dtype, slides.unknowns(unknown)
        touched = np.flatnonzero(np.isin(pattern.rows, at) | np.isin(pattern.cols, at))
        place = np.full(pattern.nnz, -1)
        place[touched] = np.arange(len(touched))
        r, c, weights, target = slides.sources(unknown, pattern.rows[touched], pattern.cols[touched])
        if pattern.symmetric:
            r, c = np.maximum(r, c), np.minimum(r, c)
        kept = weights != 0
        source = place[pattern.position(r[kept], c[kept])]
        self._turned = Scatter((len(touched),) * 2, target[kept], source, weights[kept], dtype)
        self.register_buffer("_touched", torch.as_tensor(touched), persistent=False)
        self._stiff = _stiffness(slides, unknown, pattern, place, dtype)
        self.register_buffer("_diagonal", torch.as_tensor(pattern.diagonal[at]), persistent=False)

    def on(self, pattern: Pattern) -> SlidingEntries:
        """Return the same for another pattern of these unknowns."""
        return SlidingEntries(self._slides[0], self._unknown, pattern).to(self._touched.device)

    def project(self, values: Tensor) -> None:
        """Make values (nnz, B) of K those of P K P, in place."""
        values.index_copy_(0, self._touched, self._turned(values.index_select(0, self._touched)))

    def hold(self, values: Tensor) -> None:
        """Make values (nnz, B) of K those of P K P + s (I - P), in place."""
        stiff = self._stiff(values.index_select(0, self._diagonal).abs())
        values.index_copy_(0, self._touched, self._turned(values.index_select(0, self._touched)) + stiff)


def _stiffness(slides: Slides, unknown: np.ndarray, pattern: Pattern, place: np.ndarray, dtype: torch.dtype) -> Scatter:
    """Return s (I - P) on the touched entries for the sizes of the diagonal's entries at the unknowns that slide.

    Parameters
    ----------
    place : (nnz,) the number of each entry among the touched ones, -1 for the others.
    """
    targets, sources, weights = [], [], []
    first = 0
    for node, allowed in slides.by_node():
        numbers = unknown[3 * node : 3 * node + 3]
        own = np.flatnonzero(numbers >= 0)
        i, j = (index.reshape(-1) for index in np.meshgrid(own, own, indexing="ij"))
        across = (np.eye(3) - allowed)[i, j]
        kept = (across != 0) & ((numbers[i] >= numbers[j]) | (not pattern.symmetric))
        entries = place[pattern.position(numbers[i[kept]], numbers[j[kept]])]
        targets.append(np.repeat(entries, len(own)))
        sources.append(np.tile(first + np.arange(len(own)), len(entries)))
        weights.append(np.repeat(across[kept] / len(own), len(own)))
        first += len(own)
    shape = (int((place >= 0).sum()), first)
    return Scatter(shape, np.concatenate(targets), np.concatenate(sources), np.concatenate(weights), dtype)

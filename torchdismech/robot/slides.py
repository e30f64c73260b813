"""Nodes that slide along lines or in planes that are not aligned with the axes.

A node that slides keeps three coordinates and three unknowns. With P the projection on the directions in which it may
move, its position is h + P (x - h) for unknowns x, where h is a point of the line or plane; a force f on it counts as
P f, and its rows and columns of a matrix K become P K P + s (I - P). So a change of x across the line moves nothing,
its equation holds it in place, and only these few rows differ from those of free nodes. The pattern contains which
unknowns P mixes, not by how much: directions may differ from robot to robot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.sparse import Pattern, Scatter

__all__ = ["Slides", "SlidingEntries"]


class Slides(nn.Module):
    """The projections P of nodes that slide.

    Parameters
    ----------
    nodes : (S,) indices of these nodes.
    projections : (S, 3, 3) or, per robot, (B, S, 3, 3): P of each node on the directions in which it moves; a node has
        as many such directions in all robots.
    dtype : of the projections.

    Attributes
    ----------
    none : whether no node slides.
    mixed : (S, 3, 3) bool, the entries of P that are not zero in some robot.
    dofs : (3 S,) indices in q of the nodes' coordinates.
    allowed : (9 S,) or (B, 9 S) the projections.
    """

    per_robot = ("allowed",)
    dofs: Tensor
    allowed: Tensor

    def __init__(self, nodes: np.ndarray, projections: np.ndarray, dtype: torch.dtype):
        super().__init__()
        self.nodes = nodes
        rows = 1 if projections.ndim == 3 else len(projections)
        self.mixed = (projections != 0).reshape(rows, len(nodes), 3, 3).any(0)
        self.none = len(nodes) == 0  # a plain bool, as torch.compile cannot read NumPy arrays
        dofs = (3 * nodes[:, None] + np.arange(3)).reshape(-1)
        self.register_buffer("dofs", torch.as_tensor(dofs, device="cpu"), persistent=False)
        shape = (9 * len(nodes),) if projections.ndim == 3 else (rows, 9 * len(nodes))
        self._exact = projections.reshape(shape)
        self.register_buffer("allowed", torch.as_tensor(self._exact, dtype=dtype, device="cpu"), persistent=False)

    def _apply(self, *args: Any, **kwargs: Any) -> Slides:
        """Convert the module. Numbers rounded to another dtype before would be no projections in a finer one."""
        super()._apply(*args, **kwargs)
        self.allowed = torch.as_tensor(self._exact, dtype=self.allowed.dtype, device=self.allowed.device)
        return self

    @property
    def n_idle_unknowns(self) -> int:
        """Number of unknowns that move nothing: directions across lines and planes, without axes that are clamped."""
        counted = np.einsum("sii->si", self.mixed)
        return int(counted.sum() - round(float(np.einsum("sii->", self.projections()[0]))))

    def projections(self) -> np.ndarray:
        """Return the projections as an array (1, S, 3, 3) or (B, S, 3, 3)."""
        allowed = torch.atleast_2d(self.allowed.detach()).cpu().numpy()
        return allowed.reshape(len(allowed), len(self.nodes), 3, 3)

    def motions(self, unknown: np.ndarray) -> Any:
        """Return a basis of one robot's motions as columns of a scipy matrix (n_free, n_free - n_idle_unknowns).

        A column moves one unknown, or a sliding node along its line; these directions are orthonormal.

        Parameters
        ----------
        unknown : (n,) number of each dof among the unknowns, -1 where it is clamped.
        """
        from scipy.sparse import block_diag, csc_array, eye_array

        sliding = self.unknowns(unknown)
        others = np.setdiff1d(np.arange(int(unknown.max()) + 1), sliding)
        (projections,) = self.projections()
        by_node = zip(self.nodes.tolist(), projections, strict=True)
        directions = [_directions(allowed)[unknown[3 * node : 3 * node + 3] >= 0] for node, allowed in by_node]
        rows = np.concatenate([others, sliding])
        within = block_diag([eye_array(len(others)), *directions], format="csc")
        return csc_array(within)[np.argsort(rows)]

    def projected(self, moving: Tensor, held: Tensor | float, robot: int | None = None) -> Tensor:
        """Return `moving` (B, n), but for sliding nodes `held` (B, n) plus the projected difference P (moving - held).

        With `robot`, all rows, however many, are of that robot and use its projections.
        """
        moved = moving.index_select(1, self.dofs)
        point = held.index_select(1, self.dofs) if isinstance(held, Tensor) else torch.full_like(moved, held)
        way = (moved - point).unflatten(1, (-1, 1, 3))
        allowed = self.allowed
        if robot is not None and allowed.ndim == 2:
            allowed = allowed[robot if len(allowed) > 1 else 0]
        allowed = allowed.unflatten(-1, (-1, 3, 3))
        return moving.index_copy(1, self.dofs, point + (allowed * way).sum(-1).flatten(1))

    def coupled(self, unknown: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries (rows, cols) of P K P for those of K (k,), in both triangles where P mixes entries."""
        if self.none:
            return rows, cols
        at = self.unknowns(unknown)
        rows, cols = np.concatenate([rows, at]), np.concatenate([cols, at])
        is_touched = np.isin(rows, at) | np.isin(cols, at)
        products = self.sources(unknown, rows[is_touched], cols[is_touched])
        return np.concatenate([rows, products.row, products.col]), np.concatenate([cols, products.col, products.row])

    def unknowns(self, unknown: np.ndarray) -> np.ndarray:
        """Return the numbers of the sliding nodes' unknowns."""
        numbers = self.numbers(unknown)
        return numbers[numbers >= 0]

    def numbers(self, unknown: np.ndarray) -> np.ndarray:
        """Return the numbers (S, 3) of the nodes' coordinates among the unknowns, -1 where one is clamped."""
        return unknown[3 * self.nodes[:, None] + np.arange(3)]

    def entries_of_nodes(self, unknown: np.ndarray, lower: bool) -> tuple[np.ndarray, ...]:
        """Return which entries of I - P are not zero: the node's number among these, then row and column, each (k,).

        With `lower`, only the lower triangle in the order of the unknowns.
        """
        numbers = self.numbers(unknown)
        row, col = numbers[:, :, None], numbers[:, None, :]
        return np.nonzero((row >= 0) & (col >= 0) & (self.mixed | np.eye(3, dtype=bool)) & ((row >= col) | (not lower)))

    def sources(self, unknown: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> Products:
        """Return the products whose sums are the entries (rows, cols) of P K P."""
        members, weights = self._members(unknown)
        r, c = members[rows][:, :, None], members[cols][:, None, :]
        left, right = weights[rows][:, :, None], weights[cols][:, None, :]
        entry = np.arange(len(rows))[:, None, None]
        columns = [part.reshape(-1) for part in np.broadcast_arrays(entry, r, c, left, right)]
        kept = (columns[3] >= 0) & (columns[4] >= 0)
        return Products(*(part[kept] for part in columns))

    def weights(self) -> Tensor:
        """Return the factors (1 + 9 S, 1) or (1 + 9 S, B) that `Products` refer to: 1, then the entries of all P."""
        allowed = self.allowed.reshape(-1, self.allowed.shape[-1]).t()
        return torch.cat([torch.ones_like(allowed[:1]), allowed])

    def _members(self, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the unknowns that P mixes each with, and the numbers of their weights (-1: none), both (n_free, 3)."""
        count = int(unknown.max()) + 1
        members = np.repeat(np.arange(count)[:, None], 3, axis=1)
        weights = np.repeat([[0, -1, -1]], count, axis=0)
        numbers = self.numbers(unknown)
        node, axis = np.nonzero(numbers >= 0)
        number, others = numbers[node, axis], numbers[node]
        mixed = self.mixed[node, axis] & (others >= 0)
        members[number] = np.where(mixed, others, number[:, None])
        weights[number] = np.where(mixed, 1 + (9 * node + 3 * axis)[:, None] + np.arange(3), -1)
        return members, weights


class Products(NamedTuple):
    """Products left * K[row, col] * right whose sums are the entries of P K P; each array is (k,).

    Attributes
    ----------
    entry : index of the entry of P K P that the product is part of.
    row, col : the entry of K.
    left, right : numbers of the two other factors in `Slides.weights`.
    """

    entry: np.ndarray
    row: np.ndarray
    col: np.ndarray
    left: np.ndarray
    right: np.ndarray


def _directions(allowed: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (3, k) that span the range of a projection (3, 3)."""
    sizes, axes = np.linalg.eigh(allowed)
    return axes[:, sizes > 0.5]


class SlidingEntries(nn.Module):
    """Turns the values of K on a pattern into those of P K P + s (I - P); s is the mean |K_ii| at the sliding node.

    Only entries in rows or columns of sliding nodes change; they are the *touched* ones. Those between two coordinates
    of one such node are the *stiff* ones, in which I - P is not zero.
    """

    _touched: Tensor
    _diagonal: Tensor
    _source: Tensor
    _left: Tensor
    _right: Tensor
    _stiff: Tensor
    _weight: Tensor
    _unit: Tensor

    def __init__(self, slides: Slides, unknown: np.ndarray, pattern: Pattern):
        super().__init__()
        self._slides, self._unknown = (slides,), unknown  # in a tuple, as the model has registered this module already
        dtype, at = slides.allowed.dtype, slides.unknowns(unknown)
        touched = np.flatnonzero(np.isin(pattern.rows, at) | np.isin(pattern.cols, at))
        place = np.full(pattern.nnz, -1)
        place[touched] = np.arange(len(touched))
        products = slides.sources(unknown, pattern.rows[touched], pattern.cols[touched])
        r, c = products.row, products.col
        if pattern.symmetric:
            r, c = np.maximum(r, c), np.minimum(r, c)
        self._sum = Scatter((len(touched), len(r)), products.entry, np.arange(len(r)), np.ones(len(r)), dtype)
        node, row, col = slides.entries_of_nodes(unknown, pattern.symmetric)
        numbers = slides.numbers(unknown)
        moves = numbers >= 0
        # for each stiff entry the mean over the unknowns of its node, which are in the order of `_diagonal`
        entry, axis = np.nonzero(moves[node])
        source = (np.cumsum(moves).reshape(moves.shape) - 1)[node[entry], axis]
        self._mean = Scatter((len(node), len(at)), entry, source, 1 / moves.sum(1)[node[entry]], dtype)
        buffers = {
            "_touched": touched,
            "_diagonal": pattern.diagonal[at],
            "_source": place[pattern.position(r, c)],
            "_left": products.left,
            "_right": products.right,
            "_stiff": pattern.position(numbers[node, row], numbers[node, col]),
            "_weight": 1 + 9 * node + 3 * row + col,
        }
        for name, array in buffers.items():
            self.register_buffer(name, torch.as_tensor(array, device="cpu"), persistent=False)
        self.register_buffer("_unit", torch.as_tensor(row == col, device="cpu")[:, None].to(dtype), persistent=False)

    def on(self, pattern: Pattern) -> SlidingEntries:
        """Return these entries for another sparsity pattern of the same unknowns."""
        return SlidingEntries(self._slides[0], self._unknown, pattern).to(self._touched.device)

    def project(self, values: Tensor) -> None:
        """Replace values (nnz, B) of K by those of P K P, in place."""
        weights = self._slides[0].weights()
        factors = weights.index_select(0, self._left) * weights.index_select(0, self._right)
        products = factors * values.index_select(0, self._touched).index_select(0, self._source)
        values.index_copy_(0, self._touched, self._sum(products))

    def constrain(self, values: Tensor) -> None:
        """Replace values (nnz, B) of K by those of P K P + s (I - P), in place; s keeps nodes on their lines."""
        sizes = self._mean(values.index_select(0, self._diagonal).abs())
        self.project(values)
        across = self._unit - self._slides[0].weights().index_select(0, self._weight)
        values.index_add_(0, self._stiff, across * sizes)

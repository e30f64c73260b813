"""Moving a network of edges by a step without the stretch that a straight-line move adds.

Turning an edge by an angle a along a straight line lengthens it by a factor 1/cos(a). In a stiff rod this second-order
stretch dominates the residual after a Newton step, and undoing it costs further iterations. Here every edge gets the
length that the step asks for to first order; where loops or clamps do not let all of them, in the least-squares sense.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from torch import Tensor, nn

from torchdismech.fused import Fused
from torchdismech.geometry.graphs import connected_parts
from torchdismech.geometry.vec3 import Vec3

__all__ = ["LengthPreservingMove"]

LARGEST_MAP = 2000  # nodes; a dense map needs 8 N^2 bytes and as much time, beyond this a banded factor takes its place
LARGEST_BAND = 50_000_000  # numbers; networks that need more get the plain move


class LengthPreservingMove(nn.Module):
    """q + step for twist angles; for nodes the closest move whose edges have length |e| + t . de.

    It is q + step for nodes, too, where that would take too much memory, and for large networks on a GPU.

    Parameters
    ----------
    edges : (E, 2) node indices.
    free : (N, 3) bool, which components of which nodes move.
    largest_map : nodes up to which the closest move is kept as a matrix.
    """

    edges: Tensor
    _ends: Tensor

    def __init__(self, edges: np.ndarray, free: np.ndarray, dtype: torch.dtype, largest_map: int = LARGEST_MAP):
        super().__init__()
        self.n_nodes = len(free)
        self.register_buffer("edges", torch.as_tensor(edges), persistent=False)
        dofs = (3 * np.asarray(edges).T[:, None] + np.arange(3)[:, None]).reshape(6, -1)
        self.register_buffer("_ends", torch.as_tensor(dofs), persistent=False)  # x, y, z of starts, then of ends
        # most clamps hold all three components, and then one map serves all
        chosen, map_of_axis = np.unique(free, axis=1, return_inverse=True)
        self._map_of_axis = map_of_axis.ravel().tolist()
        networks = [_Network(edges, column) for column in chosen.T] if len(edges) else []
        self.dense = self.n_nodes <= largest_map
        self.enabled = len(edges) > 0 and (self.dense or max(n.band_numbers for n in networks) <= LARGEST_BAND)
        self._missing = Fused(_missing_changes, "moves along edges")
        kind = _DenseShifts if self.dense else _BandedShifts
        self.shifts = nn.ModuleList(kind(network, dtype) for network in networks if self.enabled)

    def forward(self, q: Tensor, step: Tensor) -> Tensor:
        """Return q (B, n) moved by the step (B, n); the step of clamped dofs is taken as it is."""
        moved = q + step
        if not self.enabled or not (self.dense or q.device.type == "cpu"):
            return moved
        changes = self._missing(len(self.edges), q.t(), step.t(), self._ends)  # (3, E, B)
        moved[:, : 3 * self.n_nodes].unflatten(1, (self.n_nodes, 3)).add_(self._shifts(changes).permute(2, 1, 0))
        return moved

    def _shifts(self, changes: Tensor) -> Tensor:
        """Return the shifts (3, N, B) of nodes for wanted changes (3, E, B) of edges."""
        if len(self.shifts) == 1:
            return self.shifts[0](changes)
        return torch.stack([self.shifts[k](changes[axis]) for axis, k in enumerate(self._map_of_axis)])


def _missing_changes(q: Tensor, step: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what edges (E, B) lack of the vectors that they should become, by components, when q (n, B) moves by step.

    Parameters
    ----------
    ends : (6, E) the dofs x, y, z of the edges' starts, then of their ends.
    """
    dofs = ends.unbind(0)
    old, change = (Vec3(*(x[end] - x[start] for start, end in zip(dofs[:3], dofs[3:], strict=True))) for x in (q, step))
    new = old + change
    length = torch.sqrt(old.dot(old))
    along = old.dot(change) / length
    # a step that would shrink an edge to nothing is no step to follow: keep a tenth of it
    wanted = torch.maximum(length + along, 0.1 * length)
    return new.times(wanted / torch.sqrt(new.dot(new)) - 1).components()


class _Network:
    """The least-squares problem of a network: node shifts whose differences are closest to wanted edge changes.

    They are zero at fixed nodes. Parts of the network without a fixed node keep their mean position. Nodes without
    edges do not move.

    Parameters
    ----------
    edges, free : (E, 2) node indices and (N,) bool.

    Attributes
    ----------
    solved : nodes (K,) that are solved for.
    loose : the nodes of each part without a fixed node; one of them is not solved for, the mean is corrected after.
    """

    def __init__(self, edges: np.ndarray, free: np.ndarray):
        self.edges = edges
        self.n_nodes = len(free)
        part = connected_parts(self.n_nodes, edges)
        held = np.bincount(part, weights=~free) > 0
        nodes_of_part = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part))[:-1])
        self.loose = [nodes_of_part[number] for number in np.flatnonzero(~held)]
        solved = free & (np.bincount(np.ravel(edges), minlength=self.n_nodes) > 0)
        solved[[nodes[0] for nodes in self.loose]] = False
        self.solved = np.flatnonzero(solved)

    def inverse(self) -> np.ndarray:
        """Return the inverse (K, K) of the Laplacian of the nodes that are solved for."""
        rows, cols, data = self._laplacian()
        laplacian = np.zeros((self.n_nodes, self.n_nodes))
        np.add.at(laplacian, (rows, cols), data)
        factor = torch.linalg.cholesky(torch.from_numpy(laplacian[np.ix_(self.solved, self.solved)]))
        return torch.cholesky_inverse(factor).numpy()

    def _laplacian(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and summands of the Laplacian of all nodes."""
        start, end = self.edges.T
        ones = np.ones(2 * len(self.edges))
        rows, cols = np.concatenate([start, end, start, end]), np.concatenate([start, end, end, start])
        return rows, cols, np.concatenate([ones, -ones])

    @cached_property
    def _banded(self) -> tuple[np.ndarray, Any]:
        """The nodes that are solved for, in an order that gives their Laplacian a narrow band, and that as a matrix."""
        rows, cols, data = self._laplacian()
        matrix = scipy.sparse.coo_matrix((data, (rows, cols)), shape=(self.n_nodes, self.n_nodes)).tocsr()
        nodes = self.solved
        if len(nodes):
            nodes = nodes[scipy.sparse.csgraph.reverse_cuthill_mckee(matrix[nodes][:, nodes], symmetric_mode=True)]
        return nodes, matrix[nodes][:, nodes].tocoo()

    @property
    def band_numbers(self) -> int:
        """Numbers in the band of the Laplacian's Cholesky factor."""
        nodes, laplacian = self._banded
        return (int((laplacian.row - laplacian.col).max(initial=0)) + 1) * len(nodes)

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes that are solved for and the Laplacian's Cholesky factor in LAPACK's lower band storage."""
        nodes, laplacian = self._banded
        if not len(nodes):
            return nodes, np.zeros((1, 0))
        row, col, data = laplacian.row, laplacian.col, laplacian.data
        lower = row >= col
        band = np.zeros((self.band_numbers // len(nodes), len(nodes)))
        band[(row - col)[lower], col[lower]] = data[lower]
        return nodes, scipy.linalg.cholesky_banded(band, overwrite_ab=True, lower=True, check_finite=False)


def _summed_at_nodes(changes: Tensor, edges: Tensor, n_nodes: int) -> Tensor:
    """Return sums (.., N, B) of the changes (.., E, B) of edges: of those that end at a node minus those that start."""
    loads = changes.new_zeros(*changes.shape[:-2], n_nodes, changes.shape[-1])
    return loads.index_add(-2, edges[:, 1], changes).index_add(-2, edges[:, 0], changes, alpha=-1)


class _DenseShifts(nn.Module):
    """Node shifts by a matrix: of edges where there are no more of them than nodes, else of their sums at nodes."""

    map: Tensor
    edges: Tensor

    def __init__(self, network: _Network, dtype: torch.dtype):
        super().__init__()
        shifts = np.zeros((network.n_nodes, network.n_nodes))
        shifts[np.ix_(network.solved, network.solved)] = network.inverse()
        for nodes in network.loose:
            shifts[nodes] -= shifts[nodes].mean(0)
        self.of_edges = len(network.edges) <= network.n_nodes
        if self.of_edges:
            shifts = shifts[:, network.edges[:, 1]] - shifts[:, network.edges[:, 0]]
        self.register_buffer("map", torch.as_tensor(shifts, dtype=dtype), persistent=False)  # (N, E or N)
        self.register_buffer("edges", torch.as_tensor(network.edges), persistent=False)

    def forward(self, changes: Tensor) -> Tensor:
        """Return the shifts (.., N, B) of nodes for wanted changes (.., E, B) of edges."""
        return self.map @ (changes if self.of_edges else _summed_at_nodes(changes, self.edges, len(self.map)))


class _BandedShifts(nn.Module):
    """Node shifts by a banded factor, on a CPU."""

    solved: Tensor
    band: Tensor
    edges: Tensor

    def __init__(self, network: _Network, dtype: torch.dtype):
        super().__init__()
        self.n_nodes = network.n_nodes
        self.register_buffer("edges", torch.as_tensor(network.edges), persistent=False)
        nodes, band = network.band()
        self.register_buffer("solved", torch.as_tensor(nodes, dtype=torch.long), persistent=False)
        self.register_buffer("band", torch.as_tensor(band, dtype=dtype), persistent=False)
        self.loose = [torch.as_tensor(nodes) for nodes in network.loose]

    def forward(self, changes: Tensor) -> Tensor:
        """Return the shifts (.., N, B) of nodes for wanted changes (.., E, B) of edges."""
        loads = _summed_at_nodes(changes, self.edges, self.n_nodes)
        columns = loads.movedim(-2, 0)  # (N, .., B)
        rest = columns.shape[1:]
        columns = columns.reshape(self.n_nodes, -1)
        found = torch.ops.torchdismech.banded_solve(self.band, columns.index_select(0, self.solved))
        shifts = torch.zeros_like(columns).index_copy(0, self.solved, found)
        for nodes in self.loose:
            shifts = shifts.index_add(0, nodes, shifts[nodes].mean(0, keepdim=True).expand(len(nodes), -1), alpha=-1)
        return shifts.unflatten(1, rest).movedim(0, -2)


def _banded_solve(band: Tensor, rhs: Tensor) -> Tensor:
    """Return the solutions (m, K) with a Cholesky factor in LAPACK's lower band storage."""
    if not len(rhs):
        return rhs.clone()
    found = scipy.linalg.cho_solve_banded((band.numpy(), True), rhs.numpy(), check_finite=False)
    return torch.from_numpy(np.ascontiguousarray(found))


# An operator of torch, so that compiled graphs may hold it.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define("banded_solve(Tensor band, Tensor rhs) -> Tensor")
_OPERATORS.impl("banded_solve", _banded_solve, "CPU")
_OPERATORS.impl("banded_solve", lambda band, rhs: torch.empty_like(rhs), "Meta")

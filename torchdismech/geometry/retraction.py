"""Moving a network of edges by a step without the second-order stretch that a straight-line move adds.

Turning an edge by an angle a along a straight line lengthens it by a factor 1/cos(a). In a stiff rod this second-order
stretch dominates the residual after a Newton step, and undoing it costs further iterations. Here every edge gets the
length that the step asks for to first order; where loops or clamps make that impossible, in the least-squares sense.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from torch import Tensor, nn

from torchdismech.fused import Fused, traced
from torchdismech.geometry.graphs import connected_parts
from torchdismech.geometry.vec3 import Vec3
from torchdismech.native import function_of, in_threads

__all__ = ["LengthPreservingMove"]

LARGEST_MAP = 2000  # nodes; the dense matrix that GPUs multiply by needs 8 N^2 bytes, and time in proportion
LARGEST_BAND = 50_000_000  # numbers in the banded factor; networks that need more are moved by q + step
NUMBERS_A_THREAD = 1_000_000  # numbers of the result for which another thread pays, about 1 ms of work


class LengthPreservingMove(nn.Module):
    """q + step for twist angles; for nodes the closest move whose edges have length |e| + t . de.

    Nodes, too, move by q + step where the factor would take too much memory, and for large networks on a GPU.

    Parameters
    ----------
    edges : (E, 2) node indices.
    free : (N, 3) bool, which components of which nodes move.
    dtype : of the factors.
    largest_map : number of nodes up to which a dense matrix is stored for GPUs.
    """

    edges: Tensor
    _ends: Tensor

    def __init__(self, edges: np.ndarray, free: np.ndarray, dtype: torch.dtype, largest_map: int = LARGEST_MAP):
        super().__init__()
        self.n_nodes = len(free)
        self.register_buffer("edges", torch.as_tensor(edges, device="cpu"), persistent=False)
        dofs = (3 * np.asarray(edges).T[:, None] + np.arange(3)[:, None]).reshape(6, -1)
        # x, y, z of starts, then of ends
        self.register_buffer("_ends", torch.as_tensor(dofs, device="cpu"), persistent=False)
        # most clamps hold all three components, and then one factor serves the three axes
        chosen, map_of_axis = np.unique(free, axis=1, return_inverse=True)
        self._map_of_axis = map_of_axis.ravel().tolist()
        networks = [_Network(edges, column) for column in chosen.T] if len(edges) else []
        self.dense = self.n_nodes <= largest_map
        self.enabled = len(edges) > 0 and max(n.band_numbers for n in networks) <= LARGEST_BAND
        self.shifts = nn.ModuleList(_Shifts(network, dtype, self.dense) for network in networks if self.enabled)

    def forward(self, q: Tensor, step: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return q (B, n) moved by the step (B, n); clamped dofs move by the step exactly.

        Parameters
        ----------
        kept : (B,) 1 for robots that move so, 0 for those that get q + step; None: all move so.
        """
        moved = q + step
        if not self.enabled or not (self.dense or q.device.type == "cpu"):
            return moved
        of_robots = () if kept is None else (kept,)
        changes = _MISSING_CHANGES(len(self.edges), q.t(), step.t(), self._ends, *of_robots)  # (3, E, B)
        moved[:, : 3 * self.n_nodes].unflatten(1, (self.n_nodes, 3)).add_(self._shifts(changes).permute(2, 0, 1))
        return moved

    def _shifts(self, changes: Tensor) -> Tensor:
        """Return the shifts (N, 3, B) of nodes that fit wanted changes (3, E, B) of edge vectors."""
        if len(self.shifts) == 1:
            return self.shifts[0](changes).transpose(0, 1)
        return torch.stack([self.shifts[k](changes[axis]) for axis, k in enumerate(self._map_of_axis)], dim=1)


def _missing_changes(q: Tensor, step: Tensor, ends: Tensor, kept: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return how edge vectors have to change after q (n, B) + step to get the wanted lengths, by components (E, B).

    Parameters
    ----------
    ends : (6, E) the dofs x, y, z of the edges' starts, then of their ends.
    kept : (B,) 1 for robots whose edges have to change, 0 for others; None: all.
    """
    dofs = ends.unbind(0)
    old, change = (Vec3(*(x[end] - x[start] for start, end in zip(dofs[:3], dofs[3:], strict=True))) for x in (q, step))
    new = old + change
    length = torch.sqrt(old.dot(old))
    along = old.dot(change) / length
    # a step must not shrink an edge to nothing or below: it keeps a tenth of its length at least
    wanted = torch.maximum(length + along, 0.1 * length)
    missing = wanted / torch.sqrt(new.dot(new)) - 1
    return new.times(missing if kept is None else kept * missing).components()


class _Network:
    """The least-squares problem of a network: node shifts whose differences are closest to wanted edge changes.

    Shifts are zero at fixed nodes. Connected parts without a fixed node keep their mean position. Nodes without
    edges do not move.

    Parameters
    ----------
    edges, free : (E, 2) node indices and (N,) bool.

    Attributes
    ----------
    solved : (K,) nodes whose shifts are the unknowns.
    loose : the nodes of each part without a fixed node; the first one is held while the others are solved for, and the
        mean shift is subtracted afterwards.
    """

    def __init__(self, edges: np.ndarray, free: np.ndarray):
        self.edges, self._free = edges, free
        self.n_nodes = len(free)
        part = connected_parts(self.n_nodes, edges)
        held = np.bincount(part, weights=~free) > 0
        nodes_of_part = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part))[:-1])
        self.loose = [nodes_of_part[number] for number in np.flatnonzero(~held)]
        solved = free & (np.bincount(np.ravel(edges), minlength=self.n_nodes) > 0)
        solved[[nodes[0] for nodes in self.loose]] = False
        self.solved = np.flatnonzero(solved)

    @property
    def is_trees(self) -> bool:
        """Whether every edge can have its wanted length exactly: edges form trees with at most one fixed node each."""
        start, end = self.edges.T
        return int((self._free[start] | self._free[end]).sum()) == len(self.solved)

    def along_trees(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps along the trees (K, 3), and the nodes (N - K,) that stay, where the walks begin.

        A step is (node, node before it, edge between them), with ~edge for an edge that is stored towards the node
        before.
        """
        at_node: list[list[tuple[int, int]]] = [[] for _ in range(self.n_nodes)]
        for edge, (start, end) in enumerate(self.edges.tolist()):
            at_node[start].append((end, edge))
            at_node[end].append((start, ~edge))
        waits = np.zeros(self.n_nodes, dtype=bool)
        waits[self.solved] = True
        still, steps = np.flatnonzero(~waits), []
        reached = still.tolist()
        for before in reached:  # the list grows in the loop
            for node, edge in at_node[before]:
                if waits[node]:
                    waits[node] = False
                    steps.append((node, before, edge))
                    reached.append(node)
        return np.array(steps, dtype=np.int64).reshape(-1, 3), still

    def inverse(self) -> np.ndarray:
        """Return the inverse (K, K) of the Laplacian of the `solved` nodes."""
        rows, cols, data = self._laplacian()
        laplacian = np.zeros((self.n_nodes, self.n_nodes))
        np.add.at(laplacian, (rows, cols), data)
        factor = torch.linalg.cholesky(torch.from_numpy(laplacian[np.ix_(self.solved, self.solved)]))
        return torch.cholesky_inverse(factor).numpy()

    def _laplacian(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and summands of the Laplacian of all nodes, for a sum at repeated places."""
        start, end = self.edges.T
        ones = np.ones(2 * len(self.edges))
        rows, cols = np.concatenate([start, end, start, end]), np.concatenate([start, end, end, start])
        return rows, cols, np.concatenate([ones, -ones])

    @cached_property
    def _order(self) -> np.ndarray:
        """The `solved` nodes (K,) in an order that gives their Laplacian a narrow band.

        A chain that is numbered from end to end needs no search for one, nor the import that the search takes.
        """
        if self._reach(self.solved) <= 1:
            return self.solved
        rows, cols, data = self._laplacian()
        matrix = scipy.sparse.coo_matrix((data, (rows, cols)), shape=(self.n_nodes, self.n_nodes)).tocsr()
        graph = matrix[self.solved][:, self.solved]
        return self.solved[scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)]

    def _places(self, nodes: np.ndarray) -> np.ndarray:
        """Return for each node (N,) its position in `nodes`, -1 for those that are not in it."""
        places = np.full(self.n_nodes, -1)
        places[nodes] = np.arange(len(nodes))
        return places

    def _reach(self, nodes: np.ndarray) -> int:
        """Return the largest distance between the positions of an edge's ends in an order of nodes."""
        start, end = self._places(nodes)[self.edges].T
        return int(np.abs(start - end)[(start >= 0) & (end >= 0)].max(initial=0))

    @property
    def band_numbers(self) -> int:
        """Numbers in the band of the Laplacian's factor."""
        return (self._reach(self._order) + 1) * len(self._order)

    def factor(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the position (N,) of each node among the K unknowns, -1 for others, and the factor of their Laplacian.

        The factor is L D L^T by columns (K, reach + 1): the inverse of D's entry, then the entries of L below.
        """
        places = self._places(self._order)
        rows, cols, data = self._laplacian()
        row, col = places[rows], places[cols]
        lower = (row >= col) & (col >= 0)
        band = np.zeros((self._reach(self._order) + 1, len(self._order)))  # LAPACK's lower band storage
        np.add.at(band, ((row - col)[lower], col[lower]), data[lower])
        return places, np.ascontiguousarray((_chain_factor if len(band) <= 2 else _band_factor)(band).T)


def _chain_factor(band: np.ndarray) -> np.ndarray:
    """Return the factor of `_band_factor` for a band with at most one diagonal below the main one, without SciPy."""
    factor = band.copy()
    for k in range(band.shape[1]):
        pivot = factor[0, k]
        factor[0, k] = 1 / pivot
        if len(band) == 2 and k + 1 < band.shape[1]:
            factor[1, k] = band[1, k] / pivot
            factor[0, k + 1] -= factor[1, k] * band[1, k]
    return factor


def _band_factor(band: np.ndarray) -> np.ndarray:
    """Return L D L^T of a matrix in LAPACK's lower band storage: the inverses of D, below them the entries of L."""
    cholesky = scipy.linalg.cholesky_banded(band, lower=True, check_finite=False)
    factor = cholesky / cholesky[0]
    factor[0] = 1 / cholesky[0] ** 2
    return factor


def _summed_at_nodes(changes: Tensor, ends: Tensor, n_nodes: int) -> Tensor:
    """Return the sums (.., N, B) of edge changes (.., E, B) at nodes: plus where edges end, minus where they start."""
    loads = changes.new_zeros(*changes.shape[:-2], n_nodes, changes.shape[-1])
    return loads.index_add(-2, ends[:, 1], changes).index_add(-2, ends[:, 0], changes, alpha=-1)


class _Shifts(nn.Module):
    """Node shifts for wanted changes of edges: along trees or by a banded factor on a CPU, by a dense matrix on a GPU.

    For a rod the former take as many operations as it has nodes, the matrix the square of that.

    Parameters
    ----------
    network : of the edges.
    dense : whether the matrix is stored.
    """

    place: Tensor
    part: Tensor
    ends: Tensor
    step: Tensor
    still: Tensor
    factor: Tensor
    map: Tensor

    def __init__(self, network: _Network, dtype: torch.dtype, dense: bool):
        super().__init__()
        place, factor = network.factor()
        part = np.full(network.n_nodes, -1)
        for number, loose in enumerate(network.loose):
            part[loose] = number
        self.parts, self.of_edges = len(network.loose), len(network.edges) <= network.n_nodes
        self.moves = len(network.solved) > 0  # False for y of a planar robot
        for name, array in (("place", place), ("part", part), ("ends", network.edges)):
            kept = torch.as_tensor(np.ascontiguousarray(array), dtype=torch.long, device="cpu")
            self.register_buffer(name, kept, persistent=False)
        self.register_buffer("factor", torch.as_tensor(factor, dtype=dtype, device="cpu"), persistent=False)
        self.trees = network.is_trees
        for name, array in zip(("step", "still"), network.along_trees() if self.trees else (), strict=False):
            self.register_buffer(name, torch.as_tensor(array, device="cpu"), persistent=False)
        matrix = self._matrix(network) if dense else np.zeros((0, 0))
        self.register_buffer("map", torch.as_tensor(matrix, dtype=dtype, device="cpu"), persistent=False)  # (N, E or N)

    def forward(self, changes: Tensor) -> Tensor:
        """Return the shifts (.., N, B) of nodes for wanted changes (.., E, B) of edges."""
        if not self.moves:
            return changes.new_zeros(*changes.shape[:-2], len(self.part), changes.shape[-1])
        if not changes.is_cpu:
            return self.by_matrix(changes)
        if self.trees and function_of("tree_shifts", changes.dtype) is not None:
            of_trees = torch.ops.torchdismech.tree_shifts if traced() else _tree_shifts
            return of_trees(changes, self.step, self.still, self.part, self.parts)
        shifts = torch.ops.torchdismech.node_shifts if traced() else _node_shifts
        return shifts(changes, self.place, self.part, self.ends, self.factor, self.parts)

    def by_matrix(self, changes: Tensor) -> Tensor:
        """Return the shifts by the dense matrix of edge changes, or of their sums at nodes if edges outnumber nodes."""
        return self.map @ (changes if self.of_edges else _summed_at_nodes(changes, self.ends, len(self.map)))

    def _matrix(self, network: _Network) -> np.ndarray:
        shifts = np.zeros((network.n_nodes, network.n_nodes))
        shifts[np.ix_(network.solved, network.solved)] = network.inverse()
        for nodes in network.loose:
            shifts[nodes] -= shifts[nodes].mean(0)
        return shifts[:, network.edges[:, 1]] - shifts[:, network.edges[:, 0]] if self.of_edges else shifts


def _node_shifts(changes: Tensor, place: Tensor, part: Tensor, ends: Tensor, factor: Tensor, parts: int) -> Tensor:
    """Return the shifts (.., N, B) of nodes for wanted changes (.., E, B) of edges, on a CPU."""
    function = function_of("node_shifts", changes.dtype)
    if function is None:
        return _shifts_by_lapack(changes, place, part, ends, factor, parts)
    changes = changes.contiguous()
    edges, robots = changes.shape[-2:]
    axes, (solved, size) = changes[..., 0, 0].numel(), factor.shape
    shifts = changes.new_empty(*changes.shape[:-2], len(place), robots)
    sizes = (axes, robots, len(place), edges, solved, parts, size - 1)
    blocks = function_of("node_shift_blocks")(axes, robots)  # type: ignore[misc]
    arguments = (*sizes, place, part, ends, factor, changes, shifts)
    in_threads(function, arguments, blocks, shifts.numel() // NUMBERS_A_THREAD)
    return shifts


def _tree_shifts(changes: Tensor, step: Tensor, still: Tensor, part: Tensor, parts: int) -> Tensor:
    """Return the shifts (.., N, B) of nodes of trees for wanted changes (.., E, B) of edges, on a CPU."""
    function = function_of("tree_shifts", changes.dtype)
    assert function is not None  # `forward` has made sure
    changes = changes.contiguous()
    edges, robots = changes.shape[-2:]
    axes, nodes = changes[..., 0, 0].numel(), len(part)
    shifts = changes.new_empty(*changes.shape[:-2], nodes, robots)
    arguments = (axes, robots, nodes, edges, len(step), len(still), parts, step, still, part, changes, shifts)
    in_threads(function, arguments, robots, shifts.numel() // NUMBERS_A_THREAD)
    return shifts


def _shifts_by_lapack(changes: Tensor, place: Tensor, part: Tensor, ends: Tensor, factor: Tensor, parts: int) -> Tensor:
    """Return the shifts of `_node_shifts` by SciPy, where there is no compiled code."""
    loads = _summed_at_nodes(changes, ends, len(place)).movedim(-2, 0)  # (N, .., B)
    solved = place >= 0
    shifts = torch.zeros_like(loads)
    if len(factor):
        band = (factor / factor[:, :1].sqrt()).t().clone()  # Cholesky's factor in LAPACK's lower band storage
        band[0] = 1 / factor[:, 0].sqrt()
        rhs = torch.zeros_like(loads[solved].flatten(1)).index_copy(0, place[solved], loads[solved].flatten(1))
        solution = scipy.linalg.cho_solve_banded((band.numpy(), True), rhs.numpy(), check_finite=False)
        shifts[solved] = torch.from_numpy(solution)[place[solved]].view_as(loads[solved])
    for number in range(parts):
        shifts[part == number] -= shifts[part == number].mean(0)
    return shifts.movedim(0, -2)


# The functions are operators of torch, so that torch.compile can have them in a graph.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define(
    "node_shifts(Tensor changes, Tensor place, Tensor part, Tensor ends, Tensor factor, int parts) -> Tensor"
)
_OPERATORS.define("tree_shifts(Tensor changes, Tensor step, Tensor still, Tensor part, int parts) -> Tensor")
_OPERATORS.impl("node_shifts", _node_shifts, "CPU")
_OPERATORS.impl("tree_shifts", _tree_shifts, "CPU")
_OPERATORS.impl(
    "node_shifts",
    lambda changes, place, *_: changes.new_empty(*changes.shape[:-2], place.shape[0], changes.shape[-1]),
    "Meta",
)
_OPERATORS.impl(
    "tree_shifts",
    lambda changes, step, still, part, parts: changes.new_empty(*changes.shape[:-2], part.shape[0], changes.shape[-1]),
    "Meta",
)


_MISSING_CHANGES = Fused(_missing_changes, "moves along edges")

"""Orders in which to eliminate unknowns: of small bandwidth for chains, by nested dissection for everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use

from torchdismech.errors import InputError
from torchdismech.sparse.pattern import Pattern

__all__ = ["BandedOrder", "TreeNode", "banded_order", "nested_dissection"]

# Fraction of a graph's weight at either end in which no separator is sought, so that both sides keep at least as much.
_KEPT_END = 0.3
# Directions tried in the plane of the two smoothest modes of a graph: square and round shapes have no preferred one.
_DIRECTIONS = 4
# Breadth-first searches, each from the last vertex of the one before, to find a vertex at an end of a graph.
_SWEEPS = 3
# Below this many vertices a dense eigensolver is faster than shift-invert Lanczos (2 ms at 150).
_DENSE_MODES = 150
# An order is taken without a search if lower + upper is at most this multiple of a lower bound; a rod has 20 for 18.
_NEARLY = 1.15


@dataclass(frozen=True)
class BandedOrder:
    """An order of the unknowns, and the bandwidths of the matrix in that order.

    Attributes
    ----------
    order : (n,) the unknown at each position.
    place : (n,) the position of each unknown, the inverse of `order`.
    lower, upper : number of diagonals with entries below and above the main one. Both are the larger of the two for a
        symmetric pattern.
    """

    order: np.ndarray
    place: np.ndarray
    lower: int
    upper: int


def banded_order(pattern: Pattern) -> BandedOrder:
    """Return the narrowest of the pattern's hint, its own numbering and reverse Cuthill-McKee from several starts.

    On a tie the earlier of these is taken. The hint is taken without a search if it is near a lower bound (`_NEARLY`).
    """
    hint = None if pattern.order_hint is None else _with_bandwidths(pattern, np.asarray(pattern.order_hint))
    if hint is not None and hint.lower + hint.upper <= _NEARLY * _most_neighbours(pattern):
        return hint
    candidates = [np.arange(pattern.n), *_cuthill_mckee(_adjacency(pattern))]
    orders = [_with_bandwidths(pattern, order) for order in candidates]
    return min([hint, *orders] if hint is not None else orders, key=lambda o: o.lower + o.upper)


def _most_neighbours(pattern: Pattern) -> int:
    """Return the most other unknowns that one unknown shares entries with, a lower bound of lower + upper."""
    ends = [pattern.rows, pattern.cols] if pattern.symmetric else [pattern.rows]
    return int(np.bincount(np.concatenate(ends), minlength=1).max()) - len(ends)  # without the diagonal entry


def _cuthill_mckee(graph: scipy.sparse.csr_matrix) -> list[np.ndarray]:
    """Return three reverse Cuthill-McKee orders: of the graph, and of its groups of like vertices from two starts.

    The algorithm starts at a vertex with the fewest neighbours, which need not be at an end. In a shell with unknowns
    on its edges such vertices lie all along the border: for 450 nodes, 30 along one side, the order of the whole graph
    has bandwidth 232, that of the groups 96. For a shell that rods hold, bandwidth 164 becomes 133 with a start at a
    far vertex. None of the three is the best for all shells.
    """
    groups, members = _compressed(graph)
    walks = [scipy.sparse.csgraph.reverse_cuthill_mckee(groups, symmetric_mode=True), _from_far_vertices(groups)]
    whole = scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
    return [whole, *(np.concatenate([members[v] for v in walk]) for walk in walks)]


def _from_far_vertices(graph: scipy.sparse.csr_matrix) -> np.ndarray:
    """Return the reverse Cuthill-McKee order that begins in each component at a vertex far from most others."""
    m, degree = graph.shape[0], np.diff(graph.indptr)
    count, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    far = np.empty(count, dtype=np.int64)
    for k in range(count):
        vertices = np.flatnonzero(label == k)
        start = vertices[np.argmin(degree[vertices])]
        for _ in range(_SWEEPS):
            start = scipy.sparse.csgraph.breadth_first_order(graph, start, return_predecessors=False)[-1]
        far[k] = start
    # scipy starts at the vertex with the fewest neighbours: attach an extra vertex, with one neighbour, to the far one.
    hung = scipy.sparse.coo_matrix((np.ones(count, dtype=np.int32), (far, np.arange(count))), shape=(m, count))
    longer = scipy.sparse.bmat([[graph, hung], [hung.T, None]], format="csr")
    walk = scipy.sparse.csgraph.reverse_cuthill_mckee(longer, symmetric_mode=True)
    return walk[walk < m]


def _with_bandwidths(pattern: Pattern, order: np.ndarray) -> BandedOrder:
    order = np.ascontiguousarray(order, dtype=np.int64)  # compiled code reads it by its address
    place = np.empty(pattern.n, dtype=np.int64)
    place[order] = np.arange(pattern.n)
    distance = place[pattern.rows] - place[pattern.cols]
    lower, upper = int(distance.max(initial=0)), int(-distance.min(initial=0))
    if pattern.symmetric:
        lower = upper = max(lower, upper)
    return BandedOrder(order, place, lower, upper)


@dataclass(frozen=True)
class TreeNode:
    """Unknowns that are eliminated together, as a node of the elimination tree.

    Attributes
    ----------
    unknowns : indices of the unknowns.
    parent : index of the parent node, or -1 at a root. Parents come after their children.
    """

    unknowns: np.ndarray
    parent: int


def nested_dissection(pattern: Pattern, leaf_size: int) -> list[TreeNode]:
    """Return an elimination tree of separators: eliminating a node changes only unknowns of its ancestors.

    A graph is cut in two by a small set of vertices near its middle, then each half again, until a part has at most
    `leaf_size` unknowns. Two nodes neither of which is an ancestor of the other share no entry, so all nodes of a level
    can be eliminated at once. Unknowns with the same neighbours (the coordinates of a node) stay together.
    """
    graph, members = _compressed(_adjacency(pattern))
    weight = np.array([len(m) for m in members], dtype=np.int64)
    found: list[tuple[np.ndarray, int]] = []  # parents first
    waiting = [(np.arange(len(members)), -1)]
    while waiting:
        vertices, parent = waiting.pop()
        part = graph[vertices][:, vertices]
        count, label = scipy.sparse.csgraph.connected_components(part, directed=False)
        if count > 1:
            waiting += [(vertices[label == k], parent) for k in range(count)]
            continue
        split = None if weight[vertices].sum() <= leaf_size else _smallest_separator(part, weight[vertices])
        own = vertices if split is None else vertices[split == 0]
        if split is not None:
            waiting += [(vertices[split == side], len(found)) for side in (-1, 1)]
        found.append((np.concatenate([members[v] for v in own]), parent))
    last = len(found) - 1
    return [TreeNode(unknowns, last - parent if parent >= 0 else -1) for unknowns, parent in reversed(found)]


def _adjacency(pattern: Pattern) -> scipy.sparse.csr_matrix:
    """Return the symmetric adjacency matrix of the pattern, with ones off the diagonal."""
    if pattern.n == 0:
        raise InputError("cannot order a pattern without unknowns (is every dof clamped?); the dense solver takes it")
    off = pattern.rows != pattern.cols
    rows, cols = pattern.rows[off], pattern.cols[off]
    ones = np.ones(2 * len(rows), dtype=np.int32)
    graph = scipy.sparse.coo_matrix(
        (ones, (np.concatenate([rows, cols]), np.concatenate([cols, rows]))), shape=(pattern.n, pattern.n)
    ).tocsr()
    graph.data[:] = 1  # entries given from both sides were summed
    return graph


def _compressed(graph: scipy.sparse.csr_matrix) -> tuple[scipy.sparse.csr_matrix, list[np.ndarray]]:
    """Merge neighbouring vertices with the same neighbours; return the smaller graph and its vertices' members."""
    n = graph.shape[0]
    closed = (graph + scipy.sparse.identity(n, dtype=np.int32, format="csr")).tocsr()
    closed.sort_indices()
    groups: dict[bytes, list[int]] = {}
    for v in range(n):
        groups.setdefault(closed.indices[closed.indptr[v] : closed.indptr[v + 1]].tobytes(), []).append(v)
    members = [np.array(group, dtype=np.int64) for group in groups.values()]
    first = np.array([group[0] for group in members], dtype=np.int64)
    return graph[first][:, first].tocsr(), members


def _smallest_separator(graph: scipy.sparse.csr_matrix, weight: np.ndarray) -> np.ndarray | None:
    """Return each vertex's side, -1 or 1, or 0 in the separator, of a connected graph; None if none is found."""
    best, best_score = None, np.inf
    for height in _directions(graph):
        split = _minimum_cut(graph, weight, _heights_by_weight(height, weight))
        sides = [weight[split == side].sum() for side in (-1, 1)]
        if min(sides) == 0:
            continue
        imbalance = abs(sides[0] - sides[1]) / weight.sum()
        score = weight[split == 0].sum() * (1 + imbalance**2)
        if score < best_score:
            best, best_score = split, score
    return best


def _directions(graph: scipy.sparse.csr_matrix) -> list[np.ndarray]:
    """Return a few functions on the vertices that rise from one end of the graph to the other.

    They are combinations of the two lowest non-constant modes of the graph's Laplacian.
    """
    m = graph.shape[0]
    laplacian = scipy.sparse.csgraph.laplacian(graph.astype(np.float64)).tocsc()
    if m <= _DENSE_MODES:
        modes = np.linalg.eigh(laplacian.toarray())[1][:, 1:3]
    else:
        start = np.random.default_rng(0).normal(size=m)  # fixed, so that the order is reproducible
        values, vectors = scipy.sparse.linalg.eigsh(laplacian, k=3, sigma=-1e-3, v0=start)
        modes = vectors[:, np.argsort(values)[1:]]
    if modes.shape[1] < 2:
        return [modes[:, 0]] if modes.shape[1] else []
    angles = np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
    return [np.cos(a) * modes[:, 0] + np.sin(a) * modes[:, 1] for a in angles]


def _heights_by_weight(height: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the fraction of the total weight that lies below each vertex, with half of its own weight."""
    order = np.argsort(height, kind="stable")
    fraction = np.empty(len(height))
    fraction[order] = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    return fraction


def _minimum_cut(graph: scipy.sparse.csr_matrix, weight: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """Return the lightest vertex separator between the lowest and the highest vertices, as -1, 0, 1 for each vertex.

    It is a minimum cut. In the flow network a vertex v is an edge from v to m + v with its weight as capacity, larger
    away from the middle; a maximum flow from bottom to top saturates the separator.
    """
    m = graph.shape[0]
    source, sink, unlimited = 2 * m, 2 * m + 1, np.int32(2**30)
    capacity = np.rint(8 * weight * (1 + (4 * (fraction - 0.5)) ** 2)).astype(np.int32)
    neighbours = graph.tocoo()
    vertices = np.arange(m)
    bottom, top = vertices[fraction <= _end(fraction, 0)], vertices[fraction >= _end(fraction, 1)]
    tail = np.concatenate([vertices, m + neighbours.row, np.full(len(bottom), source), m + top])
    head = np.concatenate([m + vertices, neighbours.col, bottom, np.full(len(top), sink)])
    limit = np.full(len(tail), unlimited)
    limit[:m] = capacity
    network = scipy.sparse.csr_matrix((limit, (tail, head)), shape=(2 * m + 2, 2 * m + 2))
    residual = network - scipy.sparse.csgraph.maximum_flow(network, source, sink).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = np.zeros(2 * m + 2, dtype=bool)
    reached[scipy.sparse.csgraph.breadth_first_order(residual, source, return_predecessors=False)] = True
    split = np.where(reached[m : 2 * m], -1, 1)
    split[reached[:m] & ~reached[m : 2 * m]] = 0
    return split


def _end(fraction: np.ndarray, side: int) -> float:
    """Return the fraction at which the bottom (side 0) ends or the top (1) begins; each holds at least one vertex."""
    return max(_KEPT_END, fraction.min()) if side == 0 else min(1 - _KEPT_END, fraction.max())

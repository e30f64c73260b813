"""The order of a chain's nodes, told from the distances between them.

Two neighbours in a chain are never farther apart than the edge between them; two others come farther apart at some
time, unless the chain always stays folded. So over the largest distances of the whole recording, the shortest tree
that joins all nodes is the chain.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import minimum_spanning_tree

__all__ = ["apart", "edge_lengths", "followed", "path_through", "robust_wander", "wander"]

PAIR_NUMBERS = 10_000_000  # distances held at once


def edge_lengths(positions: np.ndarray) -> np.ndarray:
    """Return (T, N - 1) of (T, N, 3) [m]."""
    return np.linalg.norm(np.diff(positions, axis=1), axis=2)


def wander(positions: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each edge's length over its mean, (N - 1,)."""
    lengths = edge_lengths(positions)
    return lengths.std(0) / np.maximum(lengths.mean(0), np.finfo(float).tiny)


def robust_wander(positions: np.ndarray) -> np.ndarray:
    """Return `wander` as a few frames of gaps and spikes leave it: from the median distance to the median, (N - 1,)."""
    lengths = edge_lengths(positions)
    middle = np.nanmedian(lengths, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(lengths - middle), axis=0)  # the standard deviation, if it were normal
    return spread / np.maximum(middle, np.finfo(float).tiny)


def apart(positions: np.ndarray) -> np.ndarray:
    """Return how far apart each pair of nodes comes, (N, N) [m]: in all frames but the tenth with most, for spikes."""
    frames, nodes, _ = positions.shape
    stride = -(-frames * nodes**2 // PAIR_NUMBERS)
    some = positions[::stride]
    distances = np.linalg.norm(some[:, :, None] - some[:, None], axis=3)
    return np.nanquantile(distances, 0.9, axis=0)


def path_through(distances: np.ndarray) -> np.ndarray | None:
    """Return the nodes (N,) along the shortest tree that joins them, None where it branches.

    Of the two ends, the one with the lower number comes first.
    """
    nodes = len(distances)
    if not np.isfinite(distances).all():  # two nodes that are never seen together
        return None
    # the tree leaves out entries of zero, which two markers in one place would have
    tree = minimum_spanning_tree(np.maximum(distances, np.finfo(float).tiny)).tocoo()
    neighbours: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in zip(tree.row.tolist(), tree.col.tolist(), strict=True):
        neighbours[a].append(b)
        neighbours[b].append(a)
    if max(len(beside) for beside in neighbours) > 2:
        return None
    path = [next(node for node in range(nodes) if len(neighbours[node]) == 1)]
    while len(path) < nodes:
        path.append(next(node for node in neighbours[path[-1]] if node not in path[-2:]))
    return np.array(path)


def followed(positions: np.ndarray) -> np.ndarray:
    """Return (T, N) which entry of each frame is which node, the nodes numbered as in frame 0.

    Each frame's places are given to the nodes of the frame before such that they move least.
    """
    order = np.empty(positions.shape[:2], dtype=np.int64)
    order[0] = np.arange(positions.shape[1])
    for t in range(1, len(positions)):
        before = positions[t - 1, order[t - 1]]
        ways = ((before[:, None] - positions[t][None]) ** 2).sum(2)
        order[t] = linear_sum_assignment(ways)[1]
    return order

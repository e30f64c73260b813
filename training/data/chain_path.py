"""The order of a chain's nodes, told from the distances between them.

Two neighbours in a chain are never farther apart than the edge between them; two others come farther apart at some
time, unless the chain always stays folded. So the chain is the minimum spanning tree of the nodes by their largest
distances in the whole recording.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import minimum_spanning_tree

__all__ = ["apart", "edge_lengths", "followed", "path_through", "robust_wander", "wander"]

PAIR_NUMBERS = 10_000_000  # distances in memory at once: of longer recordings, frames are left out at even intervals


def edge_lengths(positions: np.ndarray) -> np.ndarray:
    """Return the lengths (T, N - 1) [m] of a chain's edges, for nodes (T, N, 3)."""
    return np.linalg.norm(np.diff(positions, axis=1), axis=2)


def wander(positions: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each edge's length over its mean, (N - 1,)."""
    lengths = edge_lengths(positions)
    return lengths.std(0) / np.maximum(lengths.mean(0), np.finfo(float).tiny)


def robust_wander(positions: np.ndarray) -> np.ndarray:
    """Return `wander` (N - 1,) by medians, which a few frames of gaps and spikes do not change."""
    lengths = edge_lengths(positions)
    middle = np.nanmedian(lengths, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(lengths - middle), axis=0)  # equal to a normal standard deviation
    return spread / np.maximum(middle, np.finfo(float).tiny)


def apart(positions: np.ndarray) -> np.ndarray:
    """Return the largest distance of each pair of nodes, (N, N) [m].

    It is the 0.9 quantile over the frames, since spikes would decide the maximum.
    """
    frames, nodes, _ = positions.shape
    stride = -(-frames * nodes**2 // PAIR_NUMBERS)
    some = positions[::stride]
    distances = np.linalg.norm(some[:, :, None] - some[:, None], axis=3)
    return np.nanquantile(distances, 0.9, axis=0)


def path_through(distances: np.ndarray) -> np.ndarray | None:
    """Return the nodes (N,) in their order along the minimum spanning tree for distances (N, N); None if it branches.

    Of the two ends, the one with the lower number comes first. None, too, where two nodes are never seen together.
    """
    nodes = len(distances)
    if not np.isfinite(distances).all():
        return None
    # scipy takes zeros as missing edges, and two markers in one place have a distance of zero
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
    """Return which entry of each frame is which node, (T, N), the nodes numbered as in frame 0.

    The entries of a frame are assigned to the nodes such that the squares of the moves since the frame before sum to
    the least.
    """
    order = np.empty(positions.shape[:2], dtype=np.int64)
    order[0] = np.arange(positions.shape[1])
    for t in range(1, len(positions)):
        before = positions[t - 1, order[t - 1]]
        ways = ((before[:, None] - positions[t][None]) ** 2).sum(2)
        order[t] = linear_sum_assignment(ways)[1]
    return order

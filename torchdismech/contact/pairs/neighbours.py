"""Neighbours: pairs of primitives that never touch, as they are near along the body and overlap as built."""

from __future__ import annotations

from itertools import product

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

__all__ = ["Neighbours", "adjacent", "paths_between"]

ROWS = 512  # nodes from which shortest paths are found at a time


class Neighbours(nn.Module):
    """Pairs of primitives that never touch, in all robots of a batch or in some.

    Parameters
    ----------
    keys : (X,) increasing int64 keys of pairs that are neighbours in all robots, see `adjacent`.
    others : (Y,) increasing int64 keys of pairs that are neighbours in some robots only.
    where : (B, Y) bool, in which robots these are; (1, 0) without others.
    """

    per_robot = ("where",)
    keys: Tensor
    others: Tensor
    where: Tensor

    def __init__(self, keys: Tensor, others: Tensor, where: Tensor):
        super().__init__()
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("others", others, persistent=False)
        self.register_buffer("where", where, persistent=False)

    @classmethod
    def of_all(cls, keys: Tensor) -> Neighbours:
        """Return the neighbours for keys of pairs that are neighbours in all robots."""
        return cls(keys, keys[:0], torch.zeros(1, 0, dtype=torch.bool, device="cpu"))

    @classmethod
    def of_robots(cls, always: Tensor, robot: Tensor, key: Tensor, robots: int) -> Neighbours:
        """Return the neighbours for pairs that are `always` neighbours, and others (K,) of so many robots.

        Parameters
        ----------
        always : (X,) increasing int64 keys.
        robot, key : (K,) number of the robot, and key, which is none of `always`, of each of the others.
        """
        others, place = torch.unique(key, return_inverse=True)
        where = torch.zeros(robots, len(others), dtype=torch.bool, device=key.device)
        where[robot, place] = True
        in_all = where.all(0)
        keys = torch.cat([always, others[in_all]]).sort().values
        return cls.of_all(keys) if bool(in_all.all()) else cls(keys, others[~in_all], where[:, ~in_all])

    def may_touch(self, robot: Tensor, key: Tensor) -> Tensor | None:
        """Return which pairs (K,) of robots (K,) and with keys (K,) may touch; None if all may.

        It only sorts out pairs that are neighbours in some robots: those of all robots are excluded by the broad phase.
        """
        if not len(self.others):
            return None
        at = torch.searchsorted(self.others, key).clamp_(max=len(self.others) - 1)
        return ~((self.others[at] == key) & self.where[robot % len(self.where), at])


def adjacent(primitives: ArrayLike, others: ArrayLike | None, links: ArrayLike, ring: int) -> Tensor:
    """Return the keys of pairs that are neighbours by topology, to exclude from contact.

    Neighbours share a node, or have nodes at most `ring` links apart.

    Parameters
    ----------
    primitives : (M, k) nodes of each: k = 1 points, 2 edges, 3 triangles.
    others : (M2, k2) nodes of the primitives of the second set; None: pairs are within the first, first < second.
    links : (L, 2) nodes that are one link apart.
    ring : how many links still count as near.

    Returns
    -------
    (X,) increasing int64 keys first * M2 + second (M2 = M for one set), on the CPU.
    """
    near, mesh = np.asarray(primitives), np.asarray(links)
    far = near if others is None else np.asarray(others)
    nodes = 1 + max((int(a.max()) for a in (near, far, mesh) if a.size), default=-1)
    reached, steps = _incidence(near, nodes), _incidence(mesh, nodes)
    for _ in range(ring):
        known = reached.nnz
        # to both ends of all links at a node, so to the node itself also; nodes without links stay
        reached = reached + reached @ steps.T @ steps
        if reached.nnz == known:
            break
    pairs = (reached @ _incidence(far, nodes).T).tocoo()
    first, second = pairs.row.astype(np.int64), pairs.col.astype(np.int64)
    if others is None:
        first, second = first[first < second], second[first < second]
    return torch.from_numpy(np.sort(first * len(far) + second))


def _incidence(primitives: np.ndarray, nodes: int) -> scipy.sparse.csr_array:
    """Return the matrix (M, nodes), true where a primitive has a node."""
    count, corners = primitives.shape
    rows = np.repeat(np.arange(count), corners)
    matrix = scipy.sparse.coo_array((np.ones(rows.size, dtype=bool), (rows, primitives.ravel())), shape=(count, nodes))
    return matrix.tocsr()


def paths_between(nodes: Tensor, split: int, links: np.ndarray, lengths: Tensor, limit: float) -> Tensor:
    """Return the lengths (K,) of the shortest paths along edges between the primitives of pairs [m].

    They are infinite beyond a limit [m].

    Parameters
    ----------
    nodes : (K, n) of the pairs; the first `split` of each are those of its first primitive.
    links, lengths : (L, 2) nodes that are joined by an edge, and the lengths (L,) of these edges [m].
    """
    columns = nodes.unbind(1)
    ends = [torch.stack(both, dim=1) for both in product(columns[:split], columns[split:])]
    pairs, of_links = torch.cat(ends).cpu().numpy(), lengths.cpu().numpy()
    shortest = _path_lengths(pairs, links, of_links, int(links.max()) + 1, limit).reshape(len(ends), -1).min(axis=0)
    return torch.as_tensor(shortest, dtype=lengths.dtype, device=lengths.device)


def _path_lengths(pairs: np.ndarray, links: np.ndarray, lengths: np.ndarray, count: int, limit: float) -> np.ndarray:
    """Return the lengths (P,) of the shortest paths along edges between nodes (P, 2); infinite beyond a limit [m].

    `count` is the number of nodes.
    """
    graph = scipy.sparse.csr_array((lengths, (links[:, 0], links[:, 1])), shape=(count, count))
    starts, row = np.unique(pairs[:, 0], return_inverse=True)
    lengths_of_paths = np.full(len(pairs), np.inf)
    for first in range(0, len(starts), ROWS):
        ways = scipy.sparse.csgraph.dijkstra(graph, directed=False, indices=starts[first : first + ROWS], limit=limit)
        here = (row >= first) & (row < first + ROWS)
        lengths_of_paths[here] = ways[row[here] - first, pairs[here, 1]]
    return lengths_of_paths

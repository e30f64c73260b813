"""Neighbours: pairs of primitives that never touch, as they are near along the body and overlap as built."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.pairs.broad_phase import adjacent

__all__ = ["NearNodes", "Neighbours"]

DETOUR = 2.0  # paths along edges may be so many times the reach, as they are not straight on triangles
EXACTLY = 1e-9  # relative: surfaces that just touch do not overlap
ROWS = 512  # nodes from which shortest paths are found at a time


class Neighbours(nn.Module):
    """Pairs of primitives that never touch, in all robots of a batch or in some.

    Parameters
    ----------
    keys : (X,) increasing int64 keys of pairs that are neighbours in all robots, see `broad_phase.adjacent`.
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

    def may_touch(self, robot: Tensor, key: Tensor) -> Tensor | None:
        """Return which pairs (K,) of robots (K,) and with keys (K,) may touch; None if all may.

        It only sorts out pairs that are neighbours in some robots: those of all robots are excluded by the broad phase.
        """
        if not len(self.others):
            return None
        at = torch.searchsorted(self.others, key).clamp_(max=len(self.others) - 1)
        return ~((self.others[at] == key) & self.where[robot % len(self.where), at])


class NearNodes:
    """Pairs of nodes whose surfaces overlap as built and that are near each other along the body.

    Two nodes are near if their distance is below the reach (two radii and the tolerance), and their shortest path along
    edges below twice the reach: on triangles such paths are not straight.

    Parameters
    ----------
    positions : (N, 3) as built [m].
    links : (L, 2) nodes that are joined by an edge.
    lengths : (L,) of these edges [m].
    reach : (1,) or (B,) of the robots [m].

    Attributes
    ----------
    pairs : (P, 2) nodes that are near for the largest reach, the smaller number first.
    """

    def __init__(self, positions: np.ndarray, links: np.ndarray, lengths: np.ndarray, reach: np.ndarray):
        self._reach, self._count = reach * (1 - EXACTLY), len(positions)
        self.pairs, self._least = np.zeros((0, 2), dtype=np.int64), np.zeros(0)
        most = float(self._reach.max())
        if len(links) and lengths.min() < most:
            self.pairs, self._least = _near(positions, links, lengths, most)

    def neighbours(self, first: np.ndarray, second: np.ndarray | None = None) -> Neighbours:
        """Return the pairs of primitives that share a node, or have two nodes that are near each other.

        Parameters
        ----------
        first : (M, k) nodes of the primitives of a set.
        second : (M2, k2) nodes of those of a second set, for pairs of one of each; None: pairs within the first set.
        """
        others = first if second is None else second
        keys = adjacent(first, second, self.pairs, 1)
        i, j = divmod(keys.numpy(), max(len(others), 1))
        near = torch.from_numpy(self._least_of(first[i], others[j]) <= self._reach[:, None])  # (1, X) or (B, X)
        some = ~near.all(0)
        return Neighbours(keys[~some], keys[some], near[:, some]) if bool(some.any()) else Neighbours.of_all(keys)

    def _least_of(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the least reach (X,) for which primitives with nodes (X, k) and (X, k2) are near.

        It is 0 if they share a node, and infinite if they have no nodes that are near for the largest reach.
        """
        keys = self.pairs[:, 0] * self._count + self.pairs[:, 1]
        order = np.argsort(keys)
        keys, least = np.append(keys[order], -1), np.append(self._least[order], np.inf)
        least_reach = np.full(len(first), np.inf)
        for a, b in product(first.T, second.T):
            key = np.minimum(a, b) * self._count + np.maximum(a, b)
            at = np.searchsorted(keys[:-1], key)
            reach = np.where(keys[at] == key, least[at], np.inf)
            least_reach = np.minimum(least_reach, np.where(a == b, 0.0, reach))
        return least_reach


def _near(positions: np.ndarray, links: np.ndarray, lengths: np.ndarray, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of nodes (P, 2) that are near for a reach `most`, and the least reach (P,) for which each is.

    Other arguments are as for `NearNodes`.
    """
    from scipy.spatial import cKDTree  # takes a tenth of a second to import

    close = cKDTree(positions).query_pairs(most, output_type="ndarray")
    close = close[np.argsort(close[:, 0], kind="stable")]
    ways = _path_lengths(close, links, lengths, len(positions), DETOUR * most)
    near = ways < np.inf
    apart = np.linalg.norm(positions[close[:, 0]] - positions[close[:, 1]], axis=1)
    return close[near], np.maximum(ways / DETOUR, apart)[near]


def _path_lengths(pairs: np.ndarray, links: np.ndarray, lengths: np.ndarray, count: int, limit: float) -> np.ndarray:
    """Return the lengths (P,) of the shortest paths along edges between nodes (P, 2); infinite beyond a limit [m]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    graph = csr_array((lengths, (links[:, 0], links[:, 1])), shape=(count, count))
    starts, row = np.unique(pairs[:, 0], return_inverse=True)
    lengths_of_paths = np.full(len(pairs), np.inf)
    for first in range(0, len(starts), ROWS):
        ways = dijkstra(graph, directed=False, indices=starts[first : first + ROWS], limit=limit)
        here = (row >= first) & (row < first + ROWS)
        lengths_of_paths[here] = ways[row[here] - first, pairs[here, 1]]
    return lengths_of_paths

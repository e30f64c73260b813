"""Which nodes are so near to each other along a robot that the surfaces there overlap as built."""

from __future__ import annotations

import numpy as np

__all__ = ["near_nodes"]

DETOUR = 2.0  # how much longer than straight a way along the edges of triangles may be
EXACTLY = 1e-9  # relative: surfaces that just touch do not overlap
ROWS = 512  # nodes whose ways are looked at together


def near_nodes(positions: np.ndarray, links: np.ndarray, lengths: np.ndarray, reach: float) -> np.ndarray:
    """Return the pairs of nodes (P, 2) that are less than `reach` apart, and on one piece, not far along its edges.

    Ways along the edges of triangles are no straight lines, so they count up to twice the reach.

    Parameters
    ----------
    positions : (N, 3) as built [m].
    links : (L, 2) nodes that an edge joins.
    lengths : (L,) of these edges [m].
    reach : [m].
    """
    from scipy.sparse import csr_array  # takes a tenth of a second to import
    from scipy.sparse.csgraph import dijkstra
    from scipy.spatial import cKDTree

    reach *= 1 - EXACTLY
    if not len(links) or lengths.min() >= reach:
        return np.zeros((0, 2), dtype=np.int64)
    close = cKDTree(positions).query_pairs(reach, output_type="ndarray")
    close = close[np.argsort(close[:, 0], kind="stable")]
    starts = np.unique(close[:, 0])
    graph = csr_array((lengths, (links[:, 0], links[:, 1])), shape=(len(positions),) * 2)
    found = []
    for first in range(0, len(starts), ROWS):
        some = starts[first : first + ROWS]
        ways = dijkstra(graph, directed=False, indices=some, limit=DETOUR * reach)
        here = close[np.isin(close[:, 0], some)]
        found.append(here[np.isfinite(ways[np.searchsorted(some, here[:, 0]), here[:, 1]])])
    return np.concatenate([np.zeros((0, 2), dtype=np.int64), *found])

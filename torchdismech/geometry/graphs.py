"""Connected parts and neighbours in a graph of nodes and links."""

from __future__ import annotations

import numpy as np

__all__ = ["connected_parts", "neighbours"]


def connected_parts(count: int, links: np.ndarray) -> np.ndarray:
    """Return the number (count,) of the connected part that each node belongs to.

    Parts are numbered in the order of their first nodes. SciPy has this function, too, but takes a tenth of a second to
    import, and each robot calls it before its first step.

    Parameters
    ----------
    links : (L, 2) node indices; the order of the two does not matter.
    """
    first = np.arange(count)  # some node of the same part, in the end its first one
    a, b = np.asarray(links).reshape(-1, 2).T
    while (first[a] != first[b]).any():
        for one, other in ((a, b), (b, a)):
            np.minimum.at(first, first[one], first[other])
        while (first[first] != first).any():
            first = first[first]
    return np.unique(first, return_inverse=True)[1].reshape(-1)


def neighbours(count: int, links: np.ndarray) -> np.ndarray:
    """Return the nodes (count, k) at the other ends of each node's links, filled up with -1; k is the most of a node.

    Parameters
    ----------
    links : (L, 2) node indices; the order of the two does not matter.
    """
    node, other = np.concatenate([links, links[:, ::-1]]).T
    order = np.argsort(node, kind="stable")
    of_each = np.bincount(node, minlength=count)
    table = np.full((count, int(of_each.max(initial=0))), -1)
    begins = np.cumsum(of_each) - of_each
    table[node[order], np.arange(len(node)) - begins[node[order]]] = other[order]
    return table

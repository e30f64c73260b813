"""Connected parts of graphs."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from torchdismech.geometry.graphs import connected_parts, neighbours


def chain(count: int) -> np.ndarray:
    """Return the links of nodes that follow each other."""
    return np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)


@pytest.mark.parametrize("count", [1, 2, 5, 50, 1000])
def test_parts_and_their_numbers_are_scipys(count):
    """Chains, also shuffled and turned around, random graphs, nodes without links."""
    generator = np.random.default_rng(count)
    shuffled = generator.permutation(count)[chain(count)]
    sparse = generator.integers(0, count, (int(0.6 * count), 2))
    for links in (chain(count), chain(count)[::-1, ::-1], shuffled, sparse, sparse[:0]):
        graph = coo_array((np.ones(len(links)), links.T), shape=(count, count))
        assert (connected_parts(count, links) == connected_components(graph, directed=False)[1]).all()


def test_no_nodes_have_no_parts():
    """An empty graph."""
    assert connected_parts(0, np.zeros((0, 2), dtype=np.int64)).shape == (0,)


def test_neighbours():
    """List the nodes at the other ends of links: a star, a chain, a node alone; nothing where there is nothing."""
    found = neighbours(7, np.array([[0, 1], [2, 0], [0, 3], [4, 5]]))
    listed = [sorted(row[row >= 0].tolist()) for row in found]
    assert listed == [[1, 2, 3], [0], [0], [0], [5], [4], []]
    assert neighbours(3, np.zeros((0, 2), dtype=np.int64)).shape == (3, 0)

"""Pairs that never touch, as they are neighbours by topology."""

import numpy as np
import pytest
import torch

from torchdismech.contact.pairs.neighbours import adjacent


def near_by_walking(primitives, others, links, ring):
    """Return the keys of near pairs by walking from every node, `ring` links at a time."""
    nodes = 1 + max(int(a.max()) for a in (primitives, others, links) if a.size)
    beside = [set() for _ in range(nodes)]
    for i, j in links.tolist():
        beside[i].add(j)
        beside[j].add(i)
    reached = []
    for start in range(nodes):
        near = {start}
        for _ in range(ring):
            near |= {b for a in near for b in beside[a]}
        reached.append(near)
    return [
        i * len(others) + j
        for i, one in enumerate(primitives.tolist())
        for j, another in enumerate(others.tolist())
        if (others is not primitives or i < j) and set().union(*(reached[a] for a in one)) & set(another)
    ]


@pytest.mark.parametrize("ring", [0, 1, 2, 3])
@pytest.mark.parametrize("corners", [(1, 2), (2, 2), (2, 3), (3, 1)])
def test_neighbours_are_those_that_a_walk_reaches(ring, corners):
    """Exclude what walking the links finds: points, edges and triangles, within a set and between two."""
    rng = np.random.default_rng(ring)
    for links in (rng.integers(0, 30, (25, 2)), np.stack([np.arange(29), np.arange(1, 30)], 1)):
        one, another = (rng.integers(0, 30, (15, k)) for k in corners)
        assert adjacent(one, None, links, ring).tolist() == near_by_walking(one, one, links, ring)
        assert adjacent(one, another, links, ring).tolist() == near_by_walking(one, another, links, ring)


def test_neighbours_in_small_and_empty_sets():
    """Exclude nothing where there is nothing, and take tensors as well as arrays."""
    empty = np.zeros((0, 2), dtype=int)
    edges = torch.tensor([[0, 1], [1, 2], [5, 6]])
    assert adjacent(empty, None, empty, 0).tolist() == []
    assert adjacent(edges, empty, empty, 0).tolist() == [] and adjacent(empty, edges, empty, 0).tolist() == []
    assert adjacent(edges, None, empty, 0).tolist() == [1]
    assert adjacent(edges, torch.tensor([[2], [6]]), empty, 0).tolist() == [1 * 2 + 0, 2 * 2 + 1]
    assert adjacent(edges, None, empty, 3).tolist() == [1]
    assert adjacent(edges, None, edges, 10**9).tolist() == [1]  # at once: no link leads further


def test_neighbours_on_a_large_mesh():
    """Take 30000 edges between 10000 nodes, far too many for a matrix that is not sparse."""
    n = 100
    i = np.arange(n * n).reshape(n, n)
    steps = [(i[:, :-1], i[:, 1:]), (i[:-1], i[1:]), (i[:-1, :-1], i[1:, 1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in steps])
    degree = np.bincount(edges.ravel())
    sharing = adjacent(edges, None, edges, 0)
    assert len(sharing) == (degree * (degree - 1) // 2).sum()
    assert len(adjacent(edges, None, edges, 1)) > len(sharing)

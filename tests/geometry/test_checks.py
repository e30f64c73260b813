"""Checks of geometry that arrays, files and the builder share."""

import numpy as np
import pytest

from torchdismech.errors import InputError
from torchdismech.geometry.checks import check_every_node_used, check_folds, check_rods

CORNER = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0]])

REFUSED = {
    "flat nodes": (CORNER.ravel(), [[0, 1]], r"shape \(N, 3\)"),
    "no nodes": (np.zeros((0, 3)), [[0, 1]], "N >= 1"),
    "not finite": ([[0, 0, 0], [np.nan, 0, 0]], [[0, 1]], "node 1 is not finite"),
    "triples": (CORNER, [[0, 1, 2]], r"shape \(E, 2\)"),
    "fractions": (CORNER, [[0.0, 1.0]], "integer"),
    "no such node": (CORNER, [[0, 1], [1, 3]], r"edge 1 \(nodes 1, 3\): there is no node 3"),
    "negative": (CORNER, [[-1, 1]], "there is no node -1"),
    "to itself": (CORNER, [[1, 1]], "edge 0 .* to itself"),
    "twice": (CORNER, [[0, 1], [1, 2], [1, 0]], "edge 2 .* was given before as edge 0"),
    "no length": ([[0, 0, 0], [1, 0, 0], [1, 0, 0]], [[0, 1], [1, 2]], "edge 1 .* zero length"),
}


@pytest.mark.parametrize(("nodes", "edges", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_rods_that_cannot_be_simulated_are_refused(nodes, edges, words):
    """Name the edge or node, and whose it is."""
    with pytest.raises(InputError, match=f"^the arm: .*{words}"):
        check_rods(np.asarray(nodes), np.asarray(edges), where="the arm")


def test_good_rods_pass():
    """Accept a chain, and short edges of a small robot."""
    check_rods(CORNER, np.array([[0, 1], [2, 1]]))
    check_rods(1e-9 * CORNER, np.array([[0, 1], [1, 2]]))


def test_folded_springs_are_refused():
    """Refuse two edges that run back onto each other, and accept a turn just short of it."""
    folded = np.array([[0.0, 0, 0], [1, 0, 0], [0.5, 0, 0]])
    spring = np.array([[0, 1, 2]])
    with pytest.raises(InputError, match="fold back onto each other at node 1"):
        check_folds(folded, spring)
    check_folds(folded + [[0, 0, 0], [0, 0, 0], [0, 0.01, 0]], spring)  # 1.1 degrees off
    check_folds(CORNER, spring)
    check_folds(CORNER, np.zeros((0, 3), dtype=int))


def test_lonely_nodes_are_refused():
    """Name nodes without mass."""
    with pytest.raises(InputError, match="2 of 5 nodes belong to no edge or triangle: node 1, 4 "):
        check_every_node_used(5, np.array([[0, 2], [2, 3]]))
    check_every_node_used(3, np.array([[0, 2], [2, 1]]))

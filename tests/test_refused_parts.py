"""What a builder is given by mistake, refused in the call that gives it."""

import math

import numpy as np
import pytest

from torchdismech import Circle, InputError, Material, RobotBuilder, arc, straight

SECTION, MATERIAL = Circle(2e-3), Material(1e6, 1000.0)


def rod():
    """Return a builder with a rod of four edges."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), SECTION, MATERIAL)
    return builder


@pytest.mark.parametrize("distance", [-1e-9, math.nan, math.inf, "1e-9", None, np.zeros(2)])
def test_a_join_distance_that_is_none(distance):
    """It was taken: below zero and NaN, so that nothing was joined, infinity, so that all was one node."""
    with pytest.raises(InputError, match=r"join_distance: expected a finite length from 0 up \[m\], got"):
        RobotBuilder(join_distance=distance)


def test_join_distances():
    """Take zero, and numbers of NumPy."""
    for distance in (0, 0.0, np.float32(1e-6)):
        assert RobotBuilder(join_distance=distance).join_distance == distance


CIRCLE = arc((0, 0, 0), (0.1, 0, 0), (0, 0, 1), 2 * math.pi, 21)
TWO_TRIANGLES = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda builder: builder.add_rod(CIRCLE, SECTION, MATERIAL), "rod: nodes 0 and 20 are in one place"),
        (
            lambda builder: builder.add_shell(TWO_TRIANGLES, [[0, 1, 2], [3, 5, 4]], 1e-3, MATERIAL),
            "shell: nodes [12] and [34] are in one place",
        ),
        (lambda builder: builder.add_nodes([[0, 0, 1], [0, 0, 0], [0, 0, 1]]), "nodes: nodes 0 and 2 are in one place"),
    ],
)
def test_two_nodes_of_a_call_in_one_place(add, message):
    """They were two nodes, although those of different calls are one there: the circle was open."""
    with pytest.raises(InputError, match=message + ".*nodes of one call are not joined; give the node once"):
        add(RobotBuilder())


def test_rings_are_closed_by_their_edges():
    """Build a circle of 20 edges by its indices, or by a node that was there before, and nodes close to each other."""
    ring = RobotBuilder()
    edges = [[k, (k + 1) % 20] for k in range(20)]
    ring.add_rods(CIRCLE[:20], edges, SECTION, MATERIAL)
    joined = RobotBuilder()
    joined.add_nodes(CIRCLE[:1])
    joined.add_rod(CIRCLE, SECTION, MATERIAL)
    for builder in (ring, joined):
        body = builder.finalize(compile=False).body
        assert body.n_nodes == body.n_edges == 20 and body.rods[0].closed
    fine = RobotBuilder(join_distance=1e-2)
    assert len(fine.add_rod(straight((0, 0, 0), (1e-3, 0, 0), 5), SECTION, MATERIAL)) == len(fine.nodes) == 5

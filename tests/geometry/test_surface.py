"""Edges, sides and hinges of triangulated surfaces."""

import numpy as np
import pytest

from torchdismech import meshes
from torchdismech.geometry.surface import find_surface

MESHES = {
    "triangle": np.array([[0, 1, 2]]),
    "two": np.array([[0, 1, 2], [2, 1, 3]]),
    "tetrahedron": np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]),
    "sheet": meshes.rectangle(1.0, 0.7, 0.2, "random", seed=3).triangles,
    "bell": meshes.hemisphere(1.0, 0.3).triangles,
}


@pytest.mark.parametrize("name", MESHES)
def test_sides_lie_opposite_to_their_nodes(name):
    """Find side k as the edge of the two other nodes, stored as it is walked where its sign is +1."""
    triangles = MESHES[name]
    surface = find_surface(triangles)
    for k in range(3):
        start, end = triangles[:, (k + 1) % 3], triangles[:, (k + 2) % 3]
        stored = surface.edges[surface.sides[:, k]]
        forward = surface.signs[:, k] > 0
        assert np.array_equal(stored, np.where(forward[:, None], np.stack([start, end], 1), np.stack([end, start], 1)))
    assert len(np.unique(np.sort(surface.edges, axis=1), axis=0)) == len(surface.edges)


@pytest.mark.parametrize("name", MESHES)
def test_hinges_join_two_triangles(name):
    """Find a hinge at each edge with two triangles, its first triangle walking the edge as it is stored."""
    triangles = MESHES[name]
    surface = find_surface(triangles)
    uses = np.bincount(surface.sides.reshape(-1))
    assert np.array_equal(np.flatnonzero(uses == 2), surface.hinge_edges)
    for hinge, pair in zip(surface.hinges, surface.hinge_triangles, strict=True):
        start, end, first, second = hinge.tolist()
        walked = [tuple(np.roll(triangles[f], -k)[:3]) for f in pair for k in range(3)]
        assert (start, end, first) in walked[:3] and (end, start, second) in walked[3:]
    of_sides = surface.hinge_of_sides()
    assert ((of_sides >= 0).sum() == 2 * len(surface.hinges)) and (of_sides[uses[surface.sides] == 1] == -1).all()


def test_euler_s_formula():
    """Count nodes - edges + triangles: 2 for a closed surface, 1 for a disc."""
    for name, number in (("tetrahedron", 2), ("sheet", 1), ("bell", 1)):
        triangles = MESHES[name]
        surface = find_surface(triangles)
        assert len(np.unique(triangles)) - len(surface.edges) + len(triangles) == number


def test_no_triangles():
    """Have nothing where there is nothing."""
    surface = find_surface(np.zeros((0, 3), dtype=np.int64))
    assert surface.edges.shape == (0, 2) and surface.hinges.shape == (0, 4) and surface.hinge_of_sides().shape == (0, 3)

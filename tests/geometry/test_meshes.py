"""Generated meshes: areas, winding, angles, counts, borders, repetition."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from torchdismech import InputError
from torchdismech.geometry.graphs import connected_parts
from torchdismech.geometry.mesh_checks import check_mesh
from torchdismech.geometry.meshes import Mesh, disc, hemisphere, hexagon, rectangle

# Areas are sums of a few thousand terms of size one, each rounded to 1e-16.
ROUNDING = 1e-12

RECTANGLES: dict[str, Callable[[], Mesh]] = {
    "equilateral": lambda: rectangle(2.0, 1.1, 0.1),
    "equilateral, one row": lambda: rectangle(2.0, math.sqrt(3) / 2, 1.0),
    "right": lambda: rectangle(2.0, 1.1, 0.1, "right"),
    "cross": lambda: rectangle(2.0, 1.1, 0.1, "cross"),
    "random": lambda: rectangle(2.0, 1.1, 0.1, "random", seed=3),
    "random, two triangles": lambda: rectangle(2.0, 1.1, 1.2, "random"),
    "rotated": lambda: rectangle(2.0, 1.1, 0.1, "rotated", angle=0.4),
    "rotated by nothing": lambda: rectangle(2.0, 1.1, 0.1, "rotated"),
}
ROUND: dict[str, Callable[[], Mesh]] = {
    "disc": lambda: disc(0.7, 0.1),
    "disc, random": lambda: disc(0.7, 0.1, "random", seed=5),
    "smallest disc": lambda: disc(1.0, 1.0),
    "smallest disc, random": lambda: disc(1.0, 1.0, "random"),
    "hexagon": lambda: hexagon(0.7, 5),
}
BELLS: dict[str, Callable[[], Mesh]] = {
    "hemisphere": lambda: hemisphere(0.7, 0.1),
    "hemisphere, random": lambda: hemisphere(0.7, 0.1, "random", seed=5),
    "smallest hemisphere": lambda: hemisphere(1.0, 1.0),
    "smallest hemisphere, random": lambda: hemisphere(1.0, 1.0, "random"),
}
ALL = RECTANGLES | ROUND | BELLS


def area_vectors(mesh: Mesh) -> np.ndarray:
    """Return normal times area (F, 3) of the triangles."""
    x = mesh.nodes[mesh.triangles]
    return 0.5 * np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])


def angles(mesh: Mesh) -> np.ndarray:
    """Return the angles (F, 3) of the triangles in degrees, by the law of cosines."""
    x = mesh.nodes[mesh.triangles]
    a, b, c = (np.linalg.norm(x[:, (k + 1) % 3] - x[:, (k + 2) % 3], axis=1) for k in range(3))
    cosines = [(q**2 + r**2 - p**2) / (2 * q * r) for p, q, r in ((a, b, c), (b, c, a), (c, a, b))]
    return np.degrees(np.arccos(np.stack(cosines, axis=1)))


def edges_of(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges (M, 2) and how many triangles each has."""
    sides = np.concatenate([mesh.triangles[:, [0, 1]], mesh.triangles[:, [1, 2]], mesh.triangles[:, [2, 0]]])
    return np.unique(np.sort(sides, axis=1), axis=0, return_counts=True)


def border_of(mesh: Mesh) -> np.ndarray:
    """Return the edges (.., 2) that have one triangle."""
    edges, counts = edges_of(mesh)
    return edges[counts == 1]


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_meshes_are_shells_without_holes(make):
    """Pass all checks without repair, in one body, with one border (Euler: nodes - edges + triangles = 1)."""
    mesh = make()
    assert mesh.nodes.dtype == np.float64 and mesh.triangles.dtype == np.int64
    checked = check_mesh(mesh.nodes, mesh.triangles)
    assert checked.repairs == [] and not connected_parts(len(mesh.nodes), edges_of(mesh)[0]).any()
    assert len(mesh.nodes) - len(edges_of(mesh)[0]) + len(mesh.triangles) == 1


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_no_angle_is_small(make):
    """Stay above 20 degrees."""
    assert angles(make()).min() > 20


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_same_call_gives_the_same_mesh(make):
    """Return the same numbers twice."""
    first, second = make(), make()
    assert np.array_equal(first.nodes, second.nodes) and np.array_equal(first.triangles, second.triangles)


@pytest.mark.parametrize("make", (RECTANGLES | ROUND).values(), ids=(RECTANGLES | ROUND).keys())
def test_flat_meshes_face_up(make):
    """Lie in the plane z = 0, counter-clockwise seen from +z."""
    mesh = make()
    assert (mesh.nodes[:, 2] == 0).all() and (area_vectors(mesh)[:, 2] > 0).all()


@pytest.mark.parametrize("make", RECTANGLES.values(), ids=RECTANGLES.keys())
def test_rectangles_are_filled_exactly(make):
    """Sum to the area of the rectangle, with border nodes exactly on its sides and in its corners."""
    mesh = make()
    length, width = mesh.nodes[:, 0].max(), mesh.nodes[:, 1].max()
    assert (mesh.nodes[:, :2].min(axis=0) == 0).all()
    assert abs(area_vectors(mesh)[:, 2].sum() - length * width) < ROUNDING
    x, y = mesh.nodes[:, 0], mesh.nodes[:, 1]
    sides = np.stack([x == 0, x == length, y == 0, y == width])
    for edge in border_of(mesh):
        assert sides[:, edge].all(axis=1).any()
    assert (sides.sum(axis=0) == 2).sum() == 4  # corners
    assert not sides[:, mesh.triangles].all(axis=2).any()  # no triangle with all nodes on one side


def test_rectangles_have_the_sides_asked_for():
    """Reach from the origin to (length, width) in every pattern."""
    for pattern in ("equilateral", "right", "cross", "random", "rotated"):
        mesh = rectangle(0.31, 0.17, 0.02, pattern)
        assert np.ptp(mesh.nodes, axis=0).tolist() == [0.31, 0.17, 0.0], pattern


@pytest.mark.parametrize("pattern", ["right", "cross", "random", "rotated"])
def test_border_nodes_are_evenly_spaced(pattern):
    """Find steps of 2 / 20 and 1.1 / 11 along the sides."""
    mesh = rectangle(2.0, 1.1, 0.1, pattern)
    steps = np.linalg.norm(np.diff(mesh.nodes[border_of(mesh)], axis=1), axis=2)
    assert len(steps) == 2 * (20 + 11)
    assert np.allclose(steps, 0.1, rtol=0, atol=1e-12)  # rounding of coordinates of size one


def test_equilateral_pattern_counts_and_angles():
    """Find rows of 2 n + 1 triangles, all equilateral but the halves at the ends, where the sizes allow it."""
    rows, columns = 6, 9
    mesh = rectangle(columns * 1.0, rows * math.sqrt(3) / 2, 1.0)
    assert len(mesh.triangles) == rows * (2 * columns + 1)
    assert len(mesh.nodes) == 4 * (columns + 1) + 3 * (columns + 2)
    whole = np.isclose(angles(mesh), 60, atol=1e-6).all(axis=1)  # arccos near 60 degrees: 1e-14 rad
    assert whole.sum() == rows * (2 * columns - 1)
    assert np.allclose(np.sort(angles(mesh)[~whole], axis=1), [30, 60, 90], atol=1e-6)
    assert len(rectangle(1.0, 0.9, 1.0).triangles) == 3


def diagonals(mesh: Mesh) -> np.ndarray:
    """Return the sign of the slope of all edges that are not along an axis, by the place of their lower end."""
    ends = mesh.nodes[edges_of(mesh)[0]]
    step = ends[:, 1] - ends[:, 0]
    return np.sign(step[:, 0] * step[:, 1])[np.abs(step[:, :2]).min(axis=1) > 1e-9]


def test_square_patterns():
    """Halve squares along rising diagonals only, or along rising and falling ones in turn."""
    right, cross = rectangle(4, 3, 1, "right"), rectangle(4, 3, 1, "cross")
    for mesh in (right, cross):
        assert len(mesh.nodes) == 20 and len(mesh.triangles) == 24
        assert np.allclose(np.sort(angles(mesh), axis=1), [45, 45, 90])
    assert diagonals(right).tolist() == [1] * 12
    assert sorted(diagonals(cross)) == [-1] * 6 + [1] * 6
    # With alternating diagonals a node inside meets four or eight edges, in turn.
    degree = np.bincount(edges_of(cross)[0].reshape(-1)).reshape(4, 5)
    assert degree[1, 1:4].tolist() == [8, 4, 8] and degree[2, 1:4].tolist() == [4, 8, 4]


def test_rotated_pattern_is_turned():
    """Find the directions of inner edges at the angle, and 60 degrees from it; all triangles there equilateral."""
    angle = 0.3
    mesh = rectangle(2.0, 2.0, 0.1, "rotated", angle=angle)
    centre = mesh.nodes[mesh.triangles].mean(axis=1)
    inside = (np.abs(centre[:, :2] - 1) < 0.7).all(axis=1)
    # Cocircular nodes do not occur among equilateral triangles, so their Delaunay triangulation is the grid itself.
    assert inside.sum() > 300 and np.allclose(angles(mesh)[inside], 60, atol=1e-6)
    x = mesh.nodes[mesh.triangles[inside]]
    step = x[:, 1] - x[:, 0]
    direction = np.arctan2(step[:, 1], step[:, 0]) - angle
    assert np.allclose(np.sin(3 * direction), 0, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_unstructured_meshes_have_no_slivers(seed):
    """Stay above 20 degrees and near the spacing for many seeds, sizes and angles."""
    rng = np.random.default_rng(seed)
    length, width = rng.uniform(0.9, 12, 2)
    meshes = [
        rectangle(length, width, 1.0, "random", seed=seed),
        rectangle(length, width, 1.0, "rotated", angle=rng.uniform(-3, 3)),
        disc(rng.uniform(1, 6), 1.0, "random", seed=seed),
        hemisphere(rng.uniform(1, 5), 1.0, "random", seed=seed),
    ]
    for mesh in meshes:
        assert angles(mesh).min() > 20
        assert check_mesh(mesh.nodes, mesh.triangles).repairs == []
        edges = edges_of(mesh)[0]
        lengths = np.linalg.norm(mesh.nodes[edges[:, 1]] - mesh.nodes[edges[:, 0]], axis=1)
        assert lengths.min() > 0.4 and lengths.max() < 2.2 and 0.75 < lengths.mean() < 1.35


def test_seed_changes_random_meshes_only_inside():
    """Move nodes inside with the seed, and none on the border."""
    for make in (
        lambda seed: rectangle(2.0, 1.1, 0.1, "random", seed=seed),
        lambda seed: disc(1.0, 0.1, "random", seed=seed),
        lambda seed: hemisphere(1.0, 0.2, "random", seed=seed),
    ):
        meshes = [make(seed) for seed in (0, 1, 2)]
        borders = [mesh.nodes[np.unique(border_of(mesh))] for mesh in meshes]
        for k in (1, 2):
            assert np.array_equal(borders[0], borders[k])
            assert not np.array_equal(meshes[0].nodes, meshes[k].nodes)


def test_random_meshes_are_unstructured():
    """Meet inner nodes with five, six and seven edges."""
    mesh = rectangle(2.0, 1.1, 0.1, "random", seed=3)
    degree = np.bincount(edges_of(mesh)[0].reshape(-1))
    inner = np.setdiff1d(np.arange(len(mesh.nodes)), border_of(mesh))
    assert {5, 6, 7} <= set(degree[inner])


def polygon_area(corners: int, radius: float) -> float:
    """Return the area of a regular polygon with corners on a circle."""
    return 0.5 * corners * radius**2 * math.sin(2 * math.pi / corners)


@pytest.mark.parametrize("pattern", ["regular", "random"])
def test_discs_fill_their_polygon(pattern):
    """Sum to the area of the polygon, all border nodes on the circle, the others inside."""
    mesh = disc(0.7, 0.1, pattern)
    rim = np.unique(border_of(mesh))
    assert len(rim) == (42 if pattern == "regular" else 44)
    distance = np.linalg.norm(mesh.nodes, axis=1)
    assert np.allclose(distance[rim], 0.7, rtol=1e-15, atol=0)
    assert (np.delete(distance, rim) < 0.7 - 0.03).all()
    assert abs(area_vectors(mesh)[:, 2].sum() - polygon_area(len(rim), 0.7)) < ROUNDING


def test_regular_rings_have_the_right_counts():
    """Find 6 n^2 triangles and 1 + 3 n (n + 1) nodes in discs and hexagons."""
    for n in (1, 2, 3, 8):
        for mesh in (disc(1.0, 1.0 / n), hexagon(1.0, n), hemisphere(1.0, 0.5 * math.pi / n if n > 1 else 1.0)):
            divisions = 2 if mesh.nodes[:, 2].any() and n == 1 else n
            assert len(mesh.triangles) == 6 * divisions**2
            assert len(mesh.nodes) == 1 + 3 * divisions * (divisions + 1)


def test_hexagon_is_equilateral():
    """Find equilateral triangles only, the exact area, and a corner on +x."""
    mesh = hexagon(0.7, 5)
    assert np.allclose(angles(mesh), 60, atol=1e-6)  # arccos of rounded cosines
    assert abs(area_vectors(mesh)[:, 2].sum() - 1.5 * math.sqrt(3) * 0.7**2) < ROUNDING
    corner = mesh.nodes[mesh.nodes[:, 0].argmax()]
    assert corner.tolist() == [0.7, 0.0, 0.0]
    steps = np.diff(mesh.nodes[border_of(mesh)], axis=1)
    assert len(steps) == 30 and np.allclose(np.linalg.norm(steps, axis=2), 0.14)


@pytest.mark.parametrize("make", BELLS.values(), ids=BELLS.keys())
def test_hemispheres_stand_on_their_rim(make):
    """Lie on the sphere, the rim exactly in the plane z = 0, the apex on top, the normals pointing out."""
    mesh = make()
    radius = np.linalg.norm(mesh.nodes[0])
    assert np.allclose(np.linalg.norm(mesh.nodes, axis=1), radius, rtol=4e-16 * 4, atol=0)  # a few roundings
    rim = np.unique(border_of(mesh))
    assert (mesh.nodes[rim, 2] == 0).all() and (np.delete(mesh.nodes[:, 2], rim) > 0).all()
    outward = (area_vectors(mesh) * mesh.nodes[mesh.triangles].mean(axis=1)).sum(axis=1)
    assert (outward > 0).all()


def test_hemispheres_approach_the_sphere():
    """Approach the area 2 pi r^2 and the volume 2/3 pi r^3 quadratically with the spacing."""
    for pattern in ("regular", "random"):
        errors = []
        for spacing in (0.2, 0.1):
            mesh = hemisphere(1.0, spacing, pattern)
            vectors = area_vectors(mesh)
            volume = (vectors * mesh.nodes[mesh.triangles[:, 0]]).sum() / 3
            errors.append([1 - np.linalg.norm(vectors, axis=1).sum() / (2 * np.pi), 1 - 1.5 * volume / np.pi])
        assert (np.array(errors) > 0).all()  # chords lie inside
        ratio = np.array(errors[0]) / errors[1]
        assert (ratio > 3).all() and (ratio < 5).all()  # 4 but for the rounding of counts
        assert max(errors[1]) < 0.01
    assert hemisphere(1.0, 0.1).nodes[0].tolist() == [0.0, 0.0, 1.0]


def test_size_only_scales_the_mesh():
    """Return the same triangles for a robot 1024 times smaller; a power of two, so that every sum rounds alike."""
    scale = 2.0**-10
    large = rectangle(2.0, 1.1, 0.1, "random", seed=3)
    small = rectangle(2.0 * scale, 1.1 * scale, 0.1 * scale, "random", seed=3)
    assert np.allclose(large.nodes, small.nodes / scale, rtol=0, atol=1e-12)
    # The order of the triangles, and which corner is first, is for the library of the triangulation to choose.
    sets = [{frozenset(corners) for corners in mesh.triangles.tolist()} for mesh in (large, small)]
    assert sets[0] == sets[1]


# name: (call, argument that is named, words of the message)
REFUSALS = {
    "length": (lambda: rectangle(0.0, 1, 0.1), "length", "positive finite length in m, got 0.0"),
    "width": (lambda: rectangle(1, -1, 0.1), "width", "got -1"),
    "nan": (lambda: rectangle(1, float("nan"), 0.1), "width", "got nan"),
    "infinite": (lambda: rectangle(float("inf"), 1, 0.1), "length", "got inf"),
    "spacing": (lambda: rectangle(1, 1, 0), "spacing", "got 0"),
    "large spacing": (lambda: rectangle(4, 1, 1.2), "spacing", "expected at most 1.1547"),
    "millimetres": (lambda: rectangle(400.0, 400.0, 0.02), "spacing", "makes some 9e+08 triangles"),
    "millimetres of a bell": (lambda: hemisphere(40.0, 0.002), "spacing", "makes some 6e+09 triangles"),
    "pattern": (lambda: rectangle(1, 1, 0.1, "hexagonal"), "pattern", "'right', 'cross', 'random', 'rotated'"),
    "angle elsewhere": (lambda: rectangle(1, 1, 0.1, "right", angle=0.1), "angle", "pattern 'right'"),
    "angle": (lambda: rectangle(1, 1, 0.1, "rotated", angle=float("inf")), "angle", "finite"),
    "seed elsewhere": (lambda: rectangle(1, 1, 0.1, seed=1), "seed", "pattern 'equilateral'"),
    "seed of a turned grid": (lambda: rectangle(1, 1, 0.1, "rotated", seed=1), "seed", "'rotated'"),
    "negative seed": (lambda: rectangle(1, 1, 0.1, "random", seed=-1), "seed", "whole number from 0 up, got -1"),
    "broken seed": (lambda: disc(1, 0.1, "random", seed=1.5), "seed", "got 1.5"),
    "radius": (lambda: disc(-1, 0.1), "radius", "got -1"),
    "disc spacing": (lambda: disc(1, 1.1), "spacing", "at most the radius 1"),
    "disc pattern": (lambda: disc(1, 0.1, "cross"), "pattern", "'regular', 'random'"),
    "disc seed": (lambda: disc(1, 0.1, seed=2), "seed", "'regular'"),
    "bell": (lambda: hemisphere(1, 2), "spacing", "at most the radius"),
    "bell radius": (lambda: hemisphere(float("nan"), 2), "radius", "got nan"),
    "side": (lambda: hexagon(0, 2), "side", "got 0"),
    "divisions": (lambda: hexagon(1, 0), "divisions", "whole number from 1 up, got 0"),
    "broken divisions": (lambda: hexagon(1, 2.0), "divisions", "got 2.0"),
}


@pytest.mark.parametrize(("call", "argument", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_impossible_numbers_are_refused(call, argument, words):
    """Name the argument, what was expected and what came."""
    with pytest.raises(InputError) as refusal:
        call()
    message = str(refusal.value)
    assert message.startswith(f"{argument}: ") and words in message, message

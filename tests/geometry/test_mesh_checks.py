"""Checks of triangle meshes: every fault by name, the repair of the winding, meshes that are fine."""

import time

import numpy as np
import pytest

from torchdismech import InputError
from torchdismech.geometry.mesh_checks import check_mesh, triangle_problem
from torchdismech.geometry.meshes import hemisphere, rectangle

# Node 0 with four neighbours on the axes and one above.
STAR = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1]]
PYRAMID = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1]]
NAN, INF = float("nan"), float("inf")


def strip(turns: int, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and triangles of a closed strip that turns by so many half turns; turns = 1: a Moebius strip."""
    around = np.arange(count) * 2 * np.pi / count
    nodes = []
    for side in (-0.3, 0.3):
        reach = 1 + side * np.cos(turns * around / 2)
        nodes.append(np.stack([reach * np.cos(around), reach * np.sin(around), side * np.sin(turns * around / 2)], 1))
    triangles = []
    for k in range(count):
        low, high = k, k + count
        next_low, next_high = (k + 1, k + 1 + count) if k + 1 < count else ((count, 0) if turns % 2 else (0, count))
        triangles += [[low, next_low, high], [next_low, next_high, high]]
    return np.concatenate(nodes), np.array(triangles)


def moved(node: int, *place: float) -> list[list[float]]:
    """Return the star with a node at another place."""
    return [list(place) if k == node else x for k, x in enumerate(STAR)]


# name: (nodes, triangles, words of the message)
FAULTS = {
    "nodes in a row": ([0, 0, 0], PYRAMID, ["expected nodes of shape (N, 3)", "got shape (3,)"]),
    "two coordinates": ([[0, 0], [1, 0], [0, 1]], [[0, 1, 2]], ["shape (N, 3)", "got shape (3, 2)"]),
    "no nodes": (np.zeros((0, 3)), [[0, 1, 2]], ["N >= 1"]),
    "nodes of text": ([["a", "b", "c"]] * 3, [[0, 1, 2]], ["expected real numbers", "<U1"]),
    "complex nodes": (np.ones((3, 3), dtype=complex), [[0, 1, 2]], ["expected real numbers", "complex128"]),
    "nodes of truth": (np.ones((3, 3), dtype=bool), [[0, 1, 2]], ["expected real numbers", "bool"]),
    "triangles in a row": (STAR, [0, 1, 2], ["expected triangles of shape (F, 3)", "got shape (3,)"]),
    "quads": (STAR, [[0, 1, 2, 3]], ["expected triangles of shape (F, 3)", "got shape (1, 4)"]),
    "no triangles": (STAR, np.zeros((0, 3), dtype=int), ["F >= 1", "got shape (0, 3)"]),
    "broken indices": (STAR, [[0.0, 1.0, 2.0]], ["expected integer node indices", "float64"]),
    "indices of truth": (STAR, np.ones((1, 3), dtype=bool), ["expected integer node indices", "bool"]),
    "not a number": (moved(3, 0, NAN, 0), PYRAMID, ["node 3 is not finite"]),
    "infinite": (moved(4, -INF, 0, 0), PYRAMID, ["node 4 is not finite"]),
    "missing node": (STAR, [*PYRAMID, [0, 1, 6]], ["triangle 4 (nodes 0, 1, 6)", "no node 6", "0 to 5"]),
    "negative index": (STAR, [[0, 1, -1]], ["triangle 0 (nodes 0, 1, -1)", "no node -1"]),
    "node twice": (STAR, [*PYRAMID, [1, 5, 1]], ["triangle 4 (nodes 1, 5, 1) names a node twice"]),
    "one node only": (STAR, [[2, 2, 2]], ["triangle 0 (nodes 2, 2, 2) names a node twice"]),
    "twice": (
        STAR,
        [*PYRAMID, [0, 2, 3]],
        ["triangle 4 (nodes 0, 2, 3)", "given before as triangle 1 (nodes 0, 2, 3)"],
    ),
    "twice, rolled": (STAR, [*PYRAMID, [3, 0, 2]], ["triangle 4", "given before as triangle 1"]),
    "twice, turned": (STAR, [*PYRAMID, [3, 2, 0]], ["triangle 4", "given before as triangle 1"]),
    "all at one place": (np.ones((3, 3)), [[0, 1, 2]], ["triangle 0 (nodes 0, 1, 2) has no area"]),
    "two at one place": (moved(5, 1, 0, 0), [*PYRAMID, [1, 4, 5]], ["triangle 4 (nodes 1, 4, 5) has no area"]),
    "two nearly at one place": (moved(5, 1, 0, 1e-13), [*PYRAMID, [1, 4, 5]], ["triangle 4", "has no area"]),
    "on a line": (STAR, [[0, 1, 2], [3, 0, 1]], ["triangle 1 (nodes 3, 0, 1) has no area", "on one line"]),
    "needle": (moved(0, 0.5, 0.5 + 1e-10, 0), [[0, 1, 2]], ["triangle 0", "has no area", "1e-09"]),
    "tiny in a large robot": (
        [*(1e-6 * np.array(STAR[:5])), [1e8, 0, 0]],
        [*PYRAMID, [1, 2, 5]],
        ["triangle 0", "has no area"],
    ),
    "too large": (moved(5, 1e308, -1e308, 1e308), [[0, 1, 5], [2, 1, 5]], ["node 5 is farther than 1e+09 m"]),
    "three at an edge": (STAR, [[0, 1, 2], [1, 0, 4], [0, 1, 5]], ["edge (0, 1) of triangles 0, 1, 2", "at 1 of 7"]),
    "three at two edges": (
        STAR,
        [[0, 1, 2], [1, 0, 4], [0, 1, 5], [0, 2, 3], [0, 2, 5]],
        ["edge (0, 1) of triangles 0, 1, 2", "edge (0, 2) of triangles 0, 3, 4", "at 2 of 10"],
    ),
    "two wings": (STAR, [[0, 1, 2], [0, 3, 4]], ["node 0 between triangles 0 and 1", "single node"]),
    "wings of more": (
        [*STAR, [2, 1, 0], [-2, -1, 0]],
        [[0, 1, 2], [0, 3, 4], [1, 6, 2], [3, 7, 4]],
        ["node 0 between triangles 0 and 1", "give each part a node of its own"],
    ),
    "two bells at their tops": (
        [*STAR, *[[x, y, 2] for x, y, _ in STAR[1:5]]],
        [*PYRAMID, *[[0, a + 5 if a else 0, b + 5 if b else 0] for _, a, b in PYRAMID]],
        ["node 0 between triangles 0, 1, 2, 3 and 4, 5, 6, 7"],
    ),
    "Moebius": (*strip(1), ["cannot be oriented", "triangle 0 (nodes 0, 1, 6)", "Moebius"]),
    "three half turns": (*strip(3), ["cannot be oriented"]),
    "unused node": ([*STAR, [3, 3, 3]], [*PYRAMID, [1, 2, 5]], ["1 of 7 nodes", "node 6", "no triangle"]),
}
# Faults of single arrays come before nodes that no triangle names, faults between triangles after it.
USES_ALL = {"unused node", "Moebius", "three half turns"}


@pytest.mark.parametrize(("nodes", "triangles", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_refused_by_name(request, nodes, triangles, words):
    """Name the place, the element and what is wrong with it."""
    allow = request.node.callspec.id not in USES_ALL
    with pytest.raises(InputError) as refusal:
        check_mesh(nodes, triangles, where="arm.obj", allow_unused=allow)
    message = str(refusal.value)
    assert message.startswith("arm.obj: ") and all(w in message for w in words), message


def test_many_faults_are_counted():
    """Name fifty of many crowded edges and give the number of the others."""
    nodes = np.concatenate([np.array(STAR) + [3 * k, 0, 0] for k in range(60)])
    triangles = np.concatenate([np.array([[0, 5, 1], [0, 5, 2], [0, 5, 3]]) + 6 * k for k in range(60)])
    with pytest.raises(InputError, match="at 60 of 420.*; and 10 more"):
        check_mesh(nodes, triangles, allow_unused=True)


def test_default_place_is_a_shell():
    """Begin with the word shell where no place is given."""
    with pytest.raises(InputError, match="^shell: triangle 0"):
        check_mesh(STAR, [[0, 1, 9]])


def test_good_meshes_pass_unchanged():
    """Find nothing to repair in generated meshes and in strips with two sides; keep every triangle."""
    for mesh in (rectangle(2, 1, 0.2), rectangle(2, 1, 0.2, "random", seed=1), hemisphere(1, 0.3)):
        checked = check_mesh(mesh.nodes, mesh.triangles)
        assert checked.repairs == []
        assert checked.triangles.dtype == np.int64 and np.array_equal(checked.triangles, mesh.triangles)
    for turns in (0, 2):
        assert check_mesh(*strip(turns)).repairs == []


def test_closed_surfaces_and_whole_numbers_pass():
    """Accept a tetrahedron from lists of whole numbers."""
    checked = check_mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]])
    assert checked.repairs == []


def test_scale_and_place_do_not_matter():
    """Accept thin triangles, robots of a micrometre and of a kilometre, and robots far from the origin."""
    nodes = np.array([[0, 0, 0], [1, 0, 0], [0.5, 1e-7, 0]])
    for scale in (1e-6, 1.0, 1e3):
        assert check_mesh(scale * nodes, [[0, 1, 2]]).repairs == []
    assert check_mesh(nodes + 100.0, [[0, 1, 2]]).repairs == []


def test_unused_nodes_may_be_allowed():
    """Accept nodes without triangles where rods may use them."""
    assert check_mesh(STAR, PYRAMID, allow_unused=True).repairs == []


def test_mixed_winding_is_repaired_and_reported():
    """Turn the triangles that disagree with the first of their body, and no others."""
    mesh = rectangle(2, 1, 0.1, "random", seed=4)
    turned = np.random.default_rng(0).random(len(mesh.triangles)) < 0.4
    turned[0] = False
    mixed = np.where(turned[:, None], mesh.triangles[:, ::-1], mesh.triangles)
    before = mixed.copy()
    checked = check_mesh(mesh.nodes, mixed)
    expected = f"{turned.sum()} of {len(turned)} triangles were turned so that each body is wound as its first triangle"
    assert checked.repairs == [expected]
    assert np.array_equal(mixed, before)  # the caller's array is left alone
    assert np.array_equal(checked.triangles[~turned], mesh.triangles[~turned])
    x = mesh.nodes[checked.triangles]
    assert (np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])[:, 2] > 0).all()
    assert check_mesh(mesh.nodes, checked.triangles).repairs == []


def test_each_body_keeps_the_winding_of_its_first_triangle():
    """Let two bodies be wound in opposite directions."""
    mesh = rectangle(1, 1, 0.25)
    count, faces = len(mesh.nodes), len(mesh.triangles)
    nodes = np.concatenate([mesh.nodes, mesh.nodes + [0, 0, 1], mesh.nodes + [0, 0, 2]])
    triangles = np.concatenate([mesh.triangles, mesh.triangles[:, ::-1] + count, mesh.triangles + 2 * count])
    checked = check_mesh(nodes, triangles)
    assert checked.repairs == [] and np.array_equal(checked.triangles, triangles)
    triangles[faces + 1] = triangles[faces + 1, ::-1]
    checked = check_mesh(nodes, triangles)
    assert checked.repairs[0].startswith(f"1 of {3 * faces} triangles were turned")
    x = nodes[checked.triangles]
    upward = np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])[:, 2] > 0
    assert upward.tolist() == [True] * faces + [False] * faces + [True] * faces


def test_order_of_triangles_does_not_matter():
    """Find the same faults and orientation when the triangles of a closed surface come in any order."""
    nodes, triangles = strip(2, count=20)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(triangles))
        checked = check_mesh(nodes, triangles[order])
        assert checked.repairs == []


def test_problems_count_from_where_the_file_counts():
    """Return the first triangle at fault, with names that count from one."""
    triangles = np.array([[0, 1, 2], [3, 3, 1], [2, 1, 0]])
    triangle, text = triangle_problem(np.array(STAR), triangles, first_index=1)
    assert triangle == 1 and text.startswith("triangle 2 (nodes 4, 4, 2) names")
    triangle, text = triangle_problem(np.array(STAR), triangles[[0, 2]], first_index=1)
    assert triangle == 1 and "triangle 2 (nodes 3, 2, 1) was given before as triangle 1 (nodes 1, 2, 3)" in text


def test_large_meshes_are_checked_quickly():
    """Check 20 000 triangles in less than a second (0.04 s on one slow core; the margin is for a busy machine)."""
    mesh = rectangle(1, 1, 0.01, "right")
    assert len(mesh.triangles) == 20_000
    start = time.perf_counter()
    check_mesh(mesh.nodes, mesh.triangles)
    assert time.perf_counter() - start < 1.0

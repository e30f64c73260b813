"""Checks of triangle meshes, shared by files and the builder; each refusal names the triangle, edge or node.

A shell has to be a manifold: at most two triangles at an edge, one fan of triangles around a node, and two sides that
can be told apart (no Moebius strip). Winding that is only inconsistent is repaired, and the repair is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdismech.errors import InputError
from torchdismech.geometry.checks import (
    SHORTEST_EDGE,
    Elements,
    array_of,
    as_array,
    check_every_node_used,
    check_nodes,
    missing_node,
    namer,
    repetitions,
)
from torchdismech.geometry.graphs import connected_parts
from torchdismech.values import Given

__all__ = ["CheckedMesh", "check_mesh", "check_triangles", "triangle_problem"]

# Smallest height over longest edge; below it the normal of a triangle is mostly rounding noise.
SMALLEST_HEIGHT = 1e-9
# Number of faulty elements that a message names; it gives only the number of the others.
MOST_NAMED = 50


@dataclass(frozen=True)
class CheckedMesh:
    """Triangles that can be simulated, and the repairs that this took.

    Attributes
    ----------
    triangles : (F, 3) int64, each connected body wound consistently, as its first triangle.
    repairs : one sentence for each kind of change; empty if nothing was changed.
    """

    triangles: np.ndarray
    repairs: list[str]


def check_mesh(nodes: Given, triangles: Elements, where: str = "shell", allow_unused: bool = False) -> CheckedMesh:
    """Refuse a triangle mesh that cannot be simulated as a shell; turn triangles that are wound inconsistently.

    Parameters
    ----------
    nodes : (N, 3) positions [m].
    triangles : (F, 3) integer array, 0-based indices of nodes, F >= 1.
    where : what the messages start with (a file, a call).
    allow_unused : whether nodes may belong to no triangle (they may belong to rods).

    Raises
    ------
    InputError
        Arrays of a wrong shape or type; nodes that are not finite; an index out of range; a triangle that names a node
        twice, stands twice (in any winding) or has no area; an edge of more than two triangles; parts that touch in a
        single node; a surface that cannot be oriented; nodes in no triangle, unless they are allowed.
    """
    points, corners = check_triangles(nodes, triangles, where)
    if not allow_unused:
        check_every_node_used(len(points), corners, where, "triangle")
    pairs, opposed = _neighbours(corners, len(points), where)
    _refuse_single_node_contacts(corners, pairs, where)
    turned = _orientation(corners, pairs // 3, opposed, where)
    repairs = []
    if turned.any():
        repairs.append(
            f"{turned.sum()} of {len(corners)} triangles were turned so that each body is wound as its first triangle"
        )
        corners = np.where(turned[:, None], corners[:, [0, 2, 1]], corners)
    return CheckedMesh(corners, repairs)


def check_triangles(nodes: Given, triangles: Elements, where: str = "shell") -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays as float64 and int64, refusing faults of single triangles, as `check_mesh` does.

    It is for a part of a surface: how triangles join is checked once all parts are there.
    """
    points, corners = array_of(nodes, where), as_array(triangles)
    check_nodes(points, where)
    if corners.ndim != 2 or corners.shape[1] != 3 or len(corners) == 0:
        raise InputError(f"{where}: expected triangles of shape (F, 3) with F >= 1, got shape {corners.shape}")
    if not np.issubdtype(corners.dtype, np.integer):
        raise InputError(f"{where}: expected integer node indices in the triangles, got an array of {corners.dtype}")
    if problem := triangle_problem(points, corners):
        raise InputError(f"{where}: {problem[1]}")
    return points, corners.astype(np.int64)


def triangle_problem(nodes: np.ndarray, triangles: np.ndarray, first_index: int = 0) -> tuple[int, str] | None:
    """Return the first triangle that is at fault, with a sentence that says why; None where there is none.

    Only faults of single triangles and repetitions are found. Indices in the sentence count from `first_index`. The
    arrays must have the right shapes and the nodes be finite.
    """
    name = namer("triangle", triangles, first_index)
    if missing := missing_node(len(nodes), triangles, name, first_index):
        return missing
    problems = []
    twice = (triangles == np.roll(triangles, 1, axis=1)).any(axis=1)
    if twice.any():
        k = int(np.flatnonzero(twice)[0])
        problems.append((k, f"{name(k)} names a node twice; expected three different nodes: remove it"))
    again, first = repetitions(triangles)
    if len(again):
        k, before = int(again[0]), int(first[0])
        problems.append(
            (k, f"{name(k)} was given before as {name(before)}: each triangle may stand once, remove one of them")
        )
    flat = np.flatnonzero(_has_no_area(nodes, triangles) & ~twice)
    if len(flat):
        k = int(flat[0])
        problems.append(
            (
                k,
                f"{name(k)} has no area: its nodes are on one line (height below {SMALLEST_HEIGHT:g} of its longest "
                f"edge) or at one place, at {nodes[triangles[k]].tolist()}: move a node or remove the triangle",
            )
        )
    return min(problems, default=None)


def _listed(names: list[str]) -> str:
    """Return the names in one line; beyond `MOST_NAMED`, only the number of the others."""
    rest = len(names) - MOST_NAMED
    return "; ".join(names[:MOST_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _has_no_area(nodes: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Return for each triangle (F,) whether its nodes are at one place or on one line, up to rounding."""
    size = np.ptp(nodes, axis=0).max()
    if size == 0:
        return np.ones(len(triangles), dtype=bool)
    x = nodes[triangles] / size
    sides = np.roll(x, -1, axis=1) - x  # (F, 3, 3)
    lengths = np.linalg.norm(sides, axis=2)
    longest = np.maximum(lengths.max(axis=1), np.finfo(np.float64).tiny)
    u, v = sides[:, 0] / longest[:, None], sides[:, 1] / longest[:, None]
    height = np.linalg.norm(np.cross(u, v), axis=1)  # smallest height over longest edge
    # written so that NaN counts as a fault
    return ~((height >= SMALLEST_HEIGHT) & (lengths.min(axis=1) > SHORTEST_EDGE))


def _neighbours(triangles: np.ndarray, n_nodes: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (H, 2) of sides at inner edges, and (H,) whether they are walked in opposite directions.

    They are if the triangles are wound consistently. Side k of triangle f, from node k + 1 to node k + 2, is number
    3 f + k.
    """
    start, end = np.roll(triangles, -1, axis=1).reshape(-1), np.roll(triangles, -2, axis=1).reshape(-1)
    key = np.minimum(start, end) * n_nodes + np.maximum(start, end)
    order = np.argsort(key, kind="stable")
    edges, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    crowded = np.flatnonzero(counts > 2)
    if len(crowded):
        names = []
        for e in crowded:
            owners = ", ".join(str(side // 3) for side in order[first[e] : first[e] + counts[e]])
            names.append(f"edge ({edges[e] // n_nodes}, {edges[e] % n_nodes}) of triangles {owners}")
        raise InputError(
            f"{where}: expected at most two triangles at an edge, got more at {len(crowded)} of {len(edges)}: "
            f"{_listed(names)}: remove triangles, or give the parts nodes of their own"
        )
    inner = first[counts == 2]
    pairs = np.stack([order[inner], order[inner + 1]], axis=1)
    return pairs, start[pairs[:, 0]] == end[pairs[:, 1]]


def _refuse_single_node_contacts(triangles: np.ndarray, pairs: np.ndarray, where: str) -> None:
    """Refuse nodes around which the triangles form more than one fan."""
    # Corners (a triangle at a node) are nodes of a graph; an inner edge joins its two triangles' corners at either end.
    # A connected part of the graph is a fan.
    corner = triangles.reshape(-1)
    base, side = pairs // 3 * 3, pairs % 3
    ends = [base + (side + k) % 3 for k in (1, 2)]  # corners at the start and at the end of both sides
    same = corner[ends[0][:, 0]] == corner[ends[0][:, 1]]  # both sides start at the same node
    partner = [np.where(same, ends[k][:, 1], ends[1 - k][:, 1]) for k in (0, 1)]
    joined = np.concatenate([np.stack([ends[k][:, 0], partner[k]], axis=1) for k in (0, 1)])
    fan = connected_parts(len(corner), joined)
    node_of_fan = np.zeros(fan.max() + 1, dtype=np.int64)
    node_of_fan[fan] = corner
    fans = np.bincount(node_of_fan, minlength=int(corner.max()) + 1)
    touching = np.flatnonzero(fans > 1)
    if len(touching):
        names = []
        for node in touching:
            here = np.flatnonzero(corner == node)
            members = [here[fan[here] == part] // 3 for part in np.unique(fan[here])]
            names.append(f"node {node} between triangles " + " and ".join(", ".join(map(str, m)) for m in members))
        raise InputError(
            f"{where}: parts of the surface touch in a single node, where bending is undefined: {_listed(names)}: "
            "give each part a node of its own, or join them by an edge"
        )


def _orientation(triangles: np.ndarray, neighbours: np.ndarray, opposed: np.ndarray, where: str) -> np.ndarray:
    """Return for each triangle (F,) whether it has to be turned so that each body is wound as its first triangle."""
    # Each triangle is in the graph twice, as it is (f) and turned (F + f); links join neighbours whose windings are
    # consistent. If the two copies of a body are connected, a walk on it leads to the other side of the surface.
    count = len(triangles)
    f, g = neighbours.T
    other = np.where(opposed, 0, count)
    fitting = np.concatenate([np.stack([f, g + other], axis=1), np.stack([f + count, g + count - other], axis=1)])
    label = connected_parts(2 * count, fitting)
    one_sided = np.flatnonzero(label[:count] == label[count:])
    if len(one_sided):
        name = namer("triangle", triangles)(int(one_sided[0]))
        raise InputError(
            f"{where}: the surface of {name} cannot be oriented: it has one side only, as a Moebius strip; cut it "
            "along a row of edges (give the two sides of the cut nodes of their own)"
        )
    body = connected_parts(count, neighbours)
    first = np.full(int(body.max()) + 1, count)
    np.minimum.at(first, body, np.arange(count))
    return label[:count] != label[first[body]]

"""Checks of rod geometry, shared by files, arrays and the builder; each refusal names the node or edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, listed, requires_gradients, shown

__all__ = [
    "LARGE",
    "SHORTEST_EDGE",
    "Indices",
    "array_of",
    "as_array",
    "check_every_node_used",
    "check_folds",
    "check_nodes",
    "check_rods",
    "checked_indices",
    "distinct_indices",
    "edge_problem",
    "missing_node",
    "namer",
    "refuse_trained_shape",
    "repetitions",
]

Indices = Sequence[int] | np.ndarray | Tensor  # of nodes, edges or triangles; or a mask of bool over all of them
Elements = Sequence[Sequence[int]] | np.ndarray | Tensor  # node indices, such as edges (E, 2) or triangles (T, 3)

# An edge shorter than this fraction of the robot's size has no direction: its nodes are at one place up to rounding.
SHORTEST_EDGE = 1e-12
# m; float64 numbers of this size are 1e-7 m apart, and areas or volumes of much larger ones overflow
LARGEST_COORDINATE = 1e9
LARGE = 10.0  # m; a robot larger than this has probably been given in millimetres
# 1 + cos of the angle between two edges of a spring; below it (within 1.4e-4 rad of a fold) the curvature is past 1e4
# and its derivatives lose half of their digits.
SMALLEST_FOLD = 1e-8


def checked_indices(given: Indices | Elements, count: int, where: str) -> np.ndarray:
    """Return the indices (k,) chosen among `count` nodes, edges or triangles, by indices or by a mask (count,) of bool.

    Refused are an empty choice, indices out of range, and anything else: NumPy would take a mask of another length for
    the numbers 0 and 1, and round fractions to whole numbers.
    """
    index = as_array(given)
    if index.dtype == bool and index.shape == (count,):
        index = np.flatnonzero(index)
    if index.dtype == bool:
        got = f"a mask of shape {index.shape}"
    elif not index.size:
        got = "none"
    elif index.dtype.kind not in "iu":
        got = shown(given)
    else:
        wrong = index[(index < 0) | (index >= count)]
        if not len(wrong):
            return index.astype(np.int64).reshape(-1)
        got = str(wrong.tolist()[:10])
    if not count:
        raise InputError(f"{where}: there is nothing to choose from yet; add rods and shells first")
    raise InputError(f"{where}: expected indices 0 to {count - 1} or a mask ({count},), at least one; got {got}")


def distinct_indices(given: Indices, count: int, where: str) -> np.ndarray:
    """Return the indices (k,) chosen by indices or a mask, as `checked_indices`; refuse indices that come twice."""
    index = checked_indices(given, count, where)
    if len(np.unique(index)) < len(index):
        raise InputError(f"{where}: expected indices, each once, got {index.tolist()}")
    return index


def as_array(given: Indices | Elements) -> np.ndarray:
    """Return a caller's choice as an array; as an array of one object where it makes no array of numbers."""
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy()
    try:
        converts_itself = isinstance(given, np.ndarray | str) or not isinstance(given, Iterable)
        return np.asarray(given if converts_itself else list(given))  # NumPy makes one object of a set or a generator
    except (TypeError, ValueError):
        return np.array([None])


def array_of(given: object, where: str) -> np.ndarray:
    """Return a caller's geometry as an array in float64; refuse what is no numbers, and tensors that require gradients.

    NumPy would keep the real parts of complex numbers alone, and take True for 1.
    """
    refuse_trained_shape(given, where)
    try:
        array = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError) as error:  # rows of different lengths
        raise InputError(f"{where}: expected an array of numbers, got {shown(given)}") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: expected real numbers, got an array of {array.dtype}")
    return array.astype(np.float64)


def refuse_trained_shape(given: object, where: str) -> None:
    """Refuse tensors that require gradients, also inside lists, as geometry of robots and obstacles."""
    if requires_gradients(given):
        raise InputError(
            f"{where}: got a tensor that requires gradients; robots and obstacles are built of its numbers alone, so "
            "gradients by it would be missing. Give it detached, and differentiate by what runs are given: where nodes "
            "begin, initial_state(q=model.posture(nodes)); rest shapes, Control(rest_length=..., "
            "natural_curvature=...); where clamps are, Control(pose=...); or by what the model holds, "
            "trainable.shifted(model, names); see docs/gradients.md"
        )


def check_nodes(nodes: np.ndarray, where: str) -> None:
    """Refuse nodes that are no finite (N, 3) array with N >= 1, or that are farther than 1e9 m from the origin."""
    if nodes.ndim != 2 or nodes.shape[1] != 3 or len(nodes) == 0:
        raise InputError(f"{where}: expected nodes of shape (N, 3) with N >= 1, got shape {tuple(nodes.shape)}")
    bad = np.flatnonzero(~np.isfinite(nodes).all(axis=1))
    if len(bad):
        raise InputError(f"{where}: node {bad[0]} is not finite: {nodes[bad[0]].tolist()}")
    far = np.flatnonzero(np.abs(nodes).max(axis=1) > LARGEST_COORDINATE)
    if len(far):
        raise InputError(
            f"{where}: node {far[0]} is farther than {LARGEST_COORDINATE:g} m from the origin, where positions lose "
            f"the digits that edges are made of: {nodes[far[0]].tolist()}"
        )


def check_rods(nodes: np.ndarray, edges: np.ndarray, where: str = "rods") -> None:
    """Refuse rod edges that cannot be simulated.

    Parameters
    ----------
    nodes : (N, 3) positions [m].
    edges : (E, 2) integer array, 0-based indices of nodes.
    where : what the messages start with (a file, a call).

    Raises
    ------
    InputError
        Nodes that are not finite; an index out of range; an edge from a node to itself; an edge given twice (in
        either direction); an edge without length.
    """
    nodes, edges = np.asarray(nodes, dtype=np.float64), np.asarray(edges)
    check_nodes(nodes, where)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise InputError(f"{where}: expected edges of shape (E, 2), got shape {tuple(edges.shape)}")
    if len(edges) and not np.issubdtype(edges.dtype, np.integer):
        raise InputError(f"{where}: expected integer node indices in the edges, got {edges.dtype}")
    if len(edges) and (problem := edge_problem(nodes, edges)):
        raise InputError(f"{where}: {problem[1]}")


def edge_problem(nodes: np.ndarray, edges: np.ndarray, first_index: int = 0) -> tuple[int, str] | None:
    """Return the first edge that is at fault, with a sentence that says why; None where there is none.

    Indices in the sentence count from `first_index`. The arrays must have the right shapes and the nodes be finite.
    """
    name = namer("edge", edges, first_index)
    if missing := missing_node(len(nodes), edges, name, first_index):
        return missing
    problems = []
    to_itself = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if len(to_itself):
        problems.append((int(to_itself[0]), f"{name(to_itself[0])} goes from a node to itself"))
    again, first = repetitions(edges)
    if len(again):
        k = int(again[0])
        problems.append((k, f"{name(k)} was given before as {name(first[0])}: each edge may stand once"))
    lengths = np.linalg.norm(nodes[edges[:, 1]] - nodes[edges[:, 0]], axis=1)
    size = np.ptp(nodes, axis=0).max()
    short = np.flatnonzero((lengths <= SHORTEST_EDGE * size) & (edges[:, 0] != edges[:, 1]))
    if len(short):
        k = int(short[0])
        problems.append((k, f"{name(k)} has zero length: both nodes are at {nodes[edges[k, 0]].tolist()}"))
    return min(problems, default=None)


def missing_node(
    count: int, elements: np.ndarray, name: Callable[[int], str], first_index: int
) -> tuple[int, str] | None:
    """Return the first of the elements (K, k) with an index beyond `count` nodes, and a sentence; None without one."""
    outside = (elements < 0) | (elements >= count)
    if not outside.any():
        return None
    k = int(np.flatnonzero(outside.any(axis=1))[0])
    missing, last = int(elements[k][outside[k]][0]) + first_index, first_index + count - 1
    return k, f"{name(k)}: there is no node {missing}; nodes are numbered {first_index} to {last}"


def namer(kind: str, elements: np.ndarray, first_index: int = 0) -> Callable[[int], str]:
    """Return a function that names element k for messages by its index and nodes: "edge 3 (nodes 3, 4)"."""

    def name(k: int) -> str:
        nodes = ", ".join(str(int(i) + first_index) for i in elements[k])
        return f"{kind} {k + first_index} (nodes {nodes})"

    return name


def repetitions(elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements, of (K, k), that have the nodes of an earlier one, in any order, and that earlier one."""
    nodes = np.sort(elements, axis=1)
    order = np.lexsort(nodes.T)  # stable: equal elements stay in the order of the file
    new = np.ones(len(order), dtype=bool)
    new[1:] = (nodes[order][1:] != nodes[order][:-1]).any(axis=1)
    first = np.empty_like(order)
    first[order] = order[new][np.cumsum(new) - 1]
    again = np.flatnonzero(first != np.arange(len(order)))
    return again, first[again]


def check_folds(nodes: np.ndarray, springs: np.ndarray, where: str = "rods") -> None:
    """Refuse springs whose two edges fold back onto each other, where curvature is infinite.

    Parameters
    ----------
    nodes : (N, 3) positions [m].
    springs : (S, 3) node triples (before, centre, after).
    """
    nodes, springs = np.asarray(nodes, dtype=np.float64), np.asarray(springs).reshape(-1, 3)
    entering = nodes[springs[:, 1]] - nodes[springs[:, 0]]
    leaving = nodes[springs[:, 2]] - nodes[springs[:, 1]]
    lengths = np.linalg.norm(entering, axis=1) * np.linalg.norm(leaving, axis=1)
    folded = np.flatnonzero(1 + (entering * leaving).sum(axis=1) / lengths < SMALLEST_FOLD)
    if len(folded):
        before, centre, after = (int(i) for i in springs[folded[0]])
        raise InputError(
            f"{where}: the edges ({before}, {centre}) and ({centre}, {after}) fold back onto each other "
            f"at node {centre}: the curvature there is infinite; move a node"
        )


def check_every_node_used(
    count: int, elements: np.ndarray, where: str = "rods", kind: str = "edge or triangle"
) -> None:
    """Refuse nodes 0 .. count - 1 that are in no element of this kind: without mass their motion is undefined."""
    unused = np.flatnonzero(np.bincount(np.asarray(elements, dtype=np.int64).reshape(-1), minlength=count) == 0)
    if len(unused):
        raise InputError(
            f"{where}: {len(unused)} of {count} nodes belong to no {kind}: node {listed(unused.tolist())} (counted "
            "from 0); without mass their motion is undefined: remove them or connect them"
        )

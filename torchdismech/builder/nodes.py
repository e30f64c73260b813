"""The nodes of a robot: which of the points that are added are nodes already, which are new, and which a box has."""

from __future__ import annotations

import numpy as np

from torchdismech.errors import InputError, warn

__all__ = ["joined_nodes", "nearest", "nodes_in_box"]

ONE_PLACE = 1e-9  # of the size of what is built: nodes nearer to each other differ by rounding
# direction in which points are sorted to find near ones: a little less than 1 long, so that none nearer than a reach
# is missed, and across no plane that anyone builds in
SWEEP = np.array([0.5367, 0.6381, 0.5493])
# of the robot's extent, by which boxes are wider than they are written. Coordinates of files in float32 are off by 6e-8
# of their size, those that were scaled by 1e-16; the edges of robots are longer than this by far
MARGIN = 1e-6
FEW_DISTANCES = 20_000  # between points and nodes up to which all are found, in a millisecond


def joined_nodes(
    nodes: np.ndarray, points: np.ndarray, join_distance: float, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (N, 3) with those points (P, 3) behind them that are new, and which node each point is (P,).

    Two new ones in one place are refused; of shells, which may be slit there, warned of.
    """
    distance, index = nearest(points, nodes)
    new = distance > join_distance
    _refuse_one_place(points, np.flatnonzero(new), where)
    numbers = len(nodes) + np.cumsum(new) - 1
    return np.concatenate([nodes, points[new]]), np.where(new, numbers, index)


def _refuse_one_place(points: np.ndarray, new: np.ndarray, where: str) -> None:
    """Refuse two new points, by their indices (K,), in one place; warn where they are a shell's."""
    twice = _in_one_place(points[new])
    if twice is None:
        return
    a, b = new[list(twice)].tolist()
    told = (
        f"{where}: nodes {a} and {b} are in one place, {points[a].tolist()}, and nodes of one call are not "
        "joined; give the node once, with its index in each of its"
    )
    if where != "shell":
        raise InputError(f"{told} edges (add_rods), or move one of them")
    warn(
        f"{told} triangles, or, if the shell is slit there, warnings.filterwarnings('ignore', 'shell: nodes .* "
        "in one place')"
    )


def nearest(points: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far (P,) points are from the nearest of some nodes, and which that is; infinity without nodes."""
    if not len(nodes):
        return np.full(len(points), np.inf), np.zeros(len(points), dtype=np.int64)
    if len(points) * len(nodes) <= FEW_DISTANCES:
        distances = np.linalg.norm(points[:, None] - nodes, axis=2)
        index = distances.argmin(1)
        return distances[np.arange(len(points)), index], index
    from scipy.spatial import cKDTree  # takes a tenth of a second to import

    return cKDTree(nodes).query(points)


def _in_one_place(points: np.ndarray) -> tuple[int, int] | None:
    """Return two of some points (P, 3) that are in one place, or None.

    Such points are near each other along the direction `SWEEP`, in which hardly any others come as near.
    """
    if len(points) < 2:
        return None
    reach = ONE_PLACE * np.ptp(points, axis=0).max()
    along = (points - points[0]) @ SWEEP
    order = np.argsort(along)
    for steps in range(1, len(points)):
        pairs = np.sort(np.stack([order[:-steps], order[steps:]], axis=1), axis=1)
        pairs = pairs[np.abs(along[pairs[:, 1]] - along[pairs[:, 0]]) <= reach]
        if not len(pairs):
            return None
        near = pairs[np.linalg.norm(points[pairs[:, 1]] - points[pairs[:, 0]], axis=1) <= reach]
        if len(near):
            return int(near[0, 0]), int(near[0, 1])
    return None


def nodes_in_box(nodes: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which of the nodes (N, 3) lie in a box between two corners (3,), or on its faces.

    Those that are outside by a millionth of the robot's extent count, too: rounding alone puts them there.
    """
    if not len(nodes):
        return np.zeros(0, dtype=np.int64)
    margin = MARGIN * np.ptp(nodes, axis=0).max()
    return np.flatnonzero(((nodes >= low - margin) & (nodes <= high + margin)).all(axis=1))

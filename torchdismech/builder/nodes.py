"""Node numbering of a builder: added points merged with existing nodes, nearest nodes, and nodes inside boxes."""

from __future__ import annotations

import numpy as np

from torchdismech.errors import InputError, warn

__all__ = ["JOIN_DISTANCE", "joined_nodes", "nearest", "nodes_in_box"]

JOIN_DISTANCE = 1e-9  # m: nodes of two parts that are nearer to each other are one node
ONE_PLACE = 1e-9  # times the extent of the added points: points nearer to each other differ only by rounding
# Points are sorted by their coordinate along this direction to find near ones. It is a little shorter than 1, so that
# two points within reach are also within reach along it, and is normal to no plane that anyone is likely to build in.
SWEEP = np.array([0.5367, 0.6381, 0.5493])
# Boxes are enlarged by this times the robot's extent. Coordinates from files in float32 have relative errors of 6e-8,
# those that were scaled 1e-16; the edges of robots are far longer than the margin.
MARGIN = 1e-6
FEW_DISTANCES = 20_000  # up to so many pairs of a point and a node all distances are computed, in a millisecond


def joined_nodes(
    nodes: np.ndarray, points: np.ndarray, join_distance: float, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (N, 3) followed by those of the points (P, 3) that are no nodes yet, and each point's node (P,).

    Two new points in the same place are refused; for shells, which may be slit there, they cause a warning.
    """
    distance, index = nearest(points, nodes)
    new = distance > join_distance
    _refuse_one_place(points, np.flatnonzero(new), where)
    numbers = len(nodes) + np.cumsum(new) - 1
    return np.concatenate([nodes, points[new]]), np.where(new, numbers, index)


def _refuse_one_place(points: np.ndarray, new: np.ndarray, where: str) -> None:
    """Refuse two points in the same place among the new ones, indices (K,); warn if they belong to a shell."""
    twice = _in_one_place(points[new])
    if twice is None:
        return
    a, b = new[list(twice)].tolist()
    message = (
        f"{where}: nodes {a} and {b} are in one place, {points[a].tolist()}, and nodes of one call are not "
        "joined; give the node once, with its index in each of its"
    )
    if where != "shell":
        raise InputError(f"{message} edges (add_rods), or move one of them")
    warn(
        f"{message} triangles, or, if the shell is slit there, warnings.filterwarnings('ignore', 'shell: nodes .* "
        "in one place')"
    )


def nearest(points: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each point's distance (P,) to its nearest node, and that node's index; infinity and 0 without nodes."""
    if not len(nodes):
        return np.full(len(points), np.inf), np.zeros(len(points), dtype=np.int64)
    if len(points) * len(nodes) <= FEW_DISTANCES:
        distances = np.linalg.norm(points[:, None] - nodes, axis=2)
        index = distances.argmin(1)
        return distances[np.arange(len(points)), index], index
    from scipy.spatial import cKDTree  # takes a tenth of a second to import

    return cKDTree(nodes).query(points)


def _in_one_place(points: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of two of the points (P, 3) that are in the same place, or None.

    Only pairs that are near each other along the direction `SWEEP` are compared, which are hardly any others.
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
    """Return the indices of the nodes (N, 3) in a box between two corners (3,), or on its faces.

    Nodes that are outside by at most a millionth of the robot's extent count as inside: rounding puts them there.
    """
    if not len(nodes):
        return np.zeros(0, dtype=np.int64)
    margin = MARGIN * np.ptp(nodes, axis=0).max()
    return np.flatnonzero(((nodes >= low - margin) & (nodes <= high + margin)).all(axis=1))

"""Contact forces as arrows: one at each node that something touches, for the sum of the forces there."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.trajectory import Trajectory
from torchdismech.view.surfaces import vertex_normals

__all__ = ["COLOUR", "LEAST_FORCE", "LONGEST_ARROW", "VERTICES", "Arrows", "ContactForces"]

COLOUR = (200, 40, 40)
LONGEST_ARROW = 0.3  # of the robots' size
RADIUS, HEAD = 0.004, 0.01  # of the shaft and of the head, of the robots' size
LEAST_FORCE = 1e-3  # of the largest force: what is smaller has no arrow
SIDES = 8
VERTICES = 2 + 3 * SIDES  # of an arrow: foot and tip, and three rings


class ContactForces:
    """The contact forces on nodes that a run has stored.

    Rows are those of the trajectory, one for each frame.

    Attributes
    ----------
    largest : the largest force of all frames, robots and nodes [N].

    Raises
    ------
    InputError
        The run has no contacts, or comes from a version that kept their sums only.
    """

    def __init__(self, trajectory: Trajectory):
        if not trajectory.contact:
            raise InputError("--contact: the run has no contact forces: nothing may touch in it")
        if "node_force" not in trajectory.contact:
            why = "the file is of an earlier version, which did not keep where forces act"
            raise InputError(f"--contact: {why}: run it again")
        self._trajectory, self._forces = trajectory, trajectory.contact["node_force"]  # (T, B, N, 3)
        self._sizes = np.stack([np.linalg.norm(np.nan_to_num(frame.numpy()), axis=-1) for frame in self._forces])
        self.largest = float(self._sizes.max(initial=0.0))

    def nodes(self, rows: np.ndarray, robots: np.ndarray) -> np.ndarray:
        """Return the nodes (K,) on which a force is large enough to be shown, in any of some rows and robots."""
        return np.flatnonzero((self._sizes[np.ix_(rows, robots)] > LEAST_FORCE * self.largest).any((0, 1)))

    def forces(self, rows: np.ndarray, robots: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return the forces (T, R, K, 3) [N] on some nodes of some robots in some rows; 0 where they are not known."""
        return np.nan_to_num(self._chosen(self._forces, rows, robots, nodes))

    def places(self, rows: np.ndarray, robots: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return the positions (T, R, K, 3) [m] of some nodes of some robots in some rows."""
        return self._chosen(self._trajectory.positions, rows, robots, nodes)

    def _chosen(self, of_nodes: Tensor, rows: np.ndarray, robots: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return np.stack([of_nodes[int(row)].numpy()[np.ix_(robots, nodes)] for row in rows])


class Arrows:
    """Arrows of the contact forces of some robots, as triangles.

    Parameters
    ----------
    forces : the contact forces of the run.
    rows, robots : the rows (T,) of the trajectory and the robots (R,) that are shown.
    size : size of all that is shown [m]; the arrow of the largest force is `LONGEST_ARROW` times as long.

    Attributes
    ----------
    scale : length of an arrow over its force [m/N].
    count : number of arrows in each frame, including those too short to be seen, which are collapsed to points.
    faces : (F, 3) triangles of all arrows of a frame.
    said : text for a legend: the force of the longest arrow.
    """

    def __init__(self, forces: ContactForces, rows: np.ndarray, robots: np.ndarray, size: float):
        self._forces, self._rows, self._robots, self._size = forces, rows, robots, size
        self._nodes = forces.nodes(rows, robots)
        self.scale = LONGEST_ARROW * size / forces.largest if forces.largest else 0.0  # m/N
        self.count = len(robots) * len(self._nodes)
        self.faces = (_faces() + VERTICES * np.arange(self.count)[:, None, None]).reshape(-1, 3).astype(np.int32)
        self.said = f"longest arrow {forces.largest:.3g} N"

    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest components (3,) of the arrows along each axis [m], to make room for them."""
        vectors = self.scale * self._forces.forces(self._rows, self._robots, self._nodes).reshape(-1, 3)
        return vectors.min(0, initial=0.0), vectors.max(0, initial=0.0)

    def vertices(self, index: slice, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vertices [m] and unit normals, (T, V, 3) float32, in some of the frames.

        Parameters
        ----------
        index : which of the rows.
        offsets : (R, 3) by which the robots are moved [m].
        """
        rows = self._rows[index]
        vectors = self.scale * self._forces.forces(rows, self._robots, self._nodes)
        feet = self._forces.places(rows, self._robots, self._nodes) + offsets[:, None]
        vertices = _arrows(feet, vectors, self._size)  # (T, R, K, V, 3)
        normals = vertex_normals(vertices, _faces())
        return tuple(x.reshape(len(rows), -1, 3).astype(np.float32) for x in (vertices, normals))  # type: ignore[return-value]


def _arrows(feet: np.ndarray, vectors: np.ndarray, size: float) -> np.ndarray:
    """Return the vertices (..., V, 3) of arrows with `feet` and `vectors`, (..., 3).

    Arrows of forces that are too small to be shown are collapsed to points.
    """
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    direction = vectors / np.where(length > 0, length, 1.0)
    across = np.cross(direction, np.eye(3)[np.abs(direction).argmin(-1)])
    across /= np.maximum(np.linalg.norm(across, axis=-1, keepdims=True), 1e-12)
    angle = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = (
        np.cos(angle)[:, None] * across[..., None, :]
        + np.sin(angle)[:, None] * np.cross(direction, across)[..., None, :]
    )
    shown = (length > LEAST_FORCE * LONGEST_ARROW * size)[..., None]
    neck = (np.maximum(length - 2.5 * HEAD * size, 0.5 * length) * direction)[..., None, :]
    parts = [np.zeros_like(neck), RADIUS * size * ring, neck + RADIUS * size * ring, neck + HEAD * size * ring]
    vertices = np.concatenate([*parts, vectors[..., None, :]], axis=-2)
    return feet[..., None, :] + np.where(shown, vertices, 0.0)


def _faces() -> np.ndarray:
    """Return the triangles (F, 3) of an arrow, counter-clockwise seen from outside: foot, head, shaft, collar."""
    k = np.arange(SIDES)
    a, b = 1 + k, 1 + (k + 1) % SIDES
    foot, tip = np.zeros(SIDES, dtype=int), np.full(SIDES, 1 + 3 * SIDES)
    triangles = [np.stack([foot, b, a], axis=1), np.stack([a + 2 * SIDES, b + 2 * SIDES, tip], axis=1)]
    for first in (0, SIDES):
        low, high = first, first + SIDES
        triangles += [np.stack([a + low, b + low, b + high], axis=1), np.stack([a + low, b + high, a + high], axis=1)]
    return np.concatenate(triangles)

"""Forces of contacts as arrows.

What a run keeps of contact are sums: the force of each obstacle on a robot and, of a robot that comes in several parts,
that of the robot's other parts on each. So there is one arrow for each of them. That of an obstacle begins at the
middle of the nodes that are nearest to it, that of a part at the middle of the part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from torchdismech.contact import Obstacle
from torchdismech.errors import InputError
from torchdismech.trajectory import Trajectory
from torchdismech.view.surfaces import vertex_normals

__all__ = ["COLOUR", "LEAST", "LONGEST", "Arrows", "ContactForces"]

COLOUR = (200, 40, 40)
LONGEST = 0.3  # of the robots' size
RADIUS, HEAD = 0.006, 0.014  # of the shaft and of the head, of the robots' size
LEAST = 1e-3  # of the largest force: what is smaller has no arrow
NEAR = 0.02  # of the robot's size: nodes that are so much farther than the nearest one count less by a factor of e
SIDES = 8


class ContactForces:
    """The forces of contacts that a run keeps.

    Parameters
    ----------
    trajectory : the run.
    obstacles : those that are known; the arrows of others begin at the middle of all nodes.

    Attributes
    ----------
    names : of the obstacles and parts, K of them.
    largest : of all forces in all frames and robots [N].

    Raises
    ------
    InputError
        The run has no contacts.
    """

    def __init__(self, trajectory: Trajectory, obstacles: Sequence[Obstacle]):
        kept = {name.removeprefix("force/"): x for name, x in trajectory.contact.items() if name.startswith("force/")}
        if not kept:
            raise InputError("--contact: the run has no contact forces: nothing may touch in it")
        self.names, self._trajectory = list(kept), trajectory
        self._forces = np.stack([x.numpy() for x in kept.values()], axis=2)  # (T, B, K, 3)
        self._obstacles = {obstacle.name: obstacle for obstacle in obstacles}
        self._part = _parts(trajectory)
        self.largest = float(np.linalg.norm(np.nan_to_num(self._forces), axis=-1).max(initial=0.0))

    def forces(self, rows: np.ndarray, robots: np.ndarray) -> np.ndarray:
        """Return the forces (T, R, K, 3) on some robots in some rows of the trajectory [N]."""
        return np.nan_to_num(self._forces[np.ix_(rows, robots)])

    def places(self, rows: np.ndarray, robots: np.ndarray) -> np.ndarray:
        """Return where the arrows of these forces begin, (T, R, K, 3) [m]."""
        return np.stack([self._places(int(row))[robots] for row in rows])

    def _places(self, row: int) -> np.ndarray:
        """Return the places (B, K, 3) in one row."""
        x = self._trajectory.positions[row]
        weights = [self._weights(name, x, self._trajectory.time[row]) for name in self.names]
        return np.stack([((w / w.sum(1, keepdim=True))[..., None] * x).sum(1).numpy() for w in weights], axis=1)

    @torch.no_grad()
    def _weights(self, name: str, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return how much each node (B, N) counts for the place of a force."""
        obstacle = self._obstacles.get(name)
        if obstacle is not None:
            moved = 0.0 if obstacle.path is None else obstacle.path.at(time.expand(len(x)))[0].unsqueeze(1)
            distance = obstacle.shape.distance(x - moved)
            size = (x.amax(1) - x.amin(1)).amax(1, keepdim=True)
            nearest = distance.amin(1, keepdim=True)
            return torch.exp((nearest - distance) / (NEAR * size))
        counts = np.ones(x.shape[1])
        if name.removeprefix("part").isdecimal():
            counts = self._part == int(name.removeprefix("part"))
        return torch.as_tensor(counts).to(x).expand(len(x), -1)

    @property
    def unknown(self) -> list[str]:
        """Names of obstacles whose place is not known."""
        return [n for n in self.names if n not in self._obstacles and not n.removeprefix("part").isdecimal()]


class Arrows:
    """Arrows of the contact forces of some robots, as triangles.

    Parameters
    ----------
    forces : of the run.
    rows, robots : which frames (T,) and robots (R,).
    size : of what is shown [m]: the largest force is `LONGEST` of it.

    Attributes
    ----------
    faces : (F, 3) of all arrows of a frame.
    said : what their length means.
    """

    def __init__(self, forces: ContactForces, rows: np.ndarray, robots: np.ndarray, size: float):
        self._forces, self._rows, self._robots, self._size = forces, rows, robots, size
        self.scale = LONGEST * size / forces.largest if forces.largest else 0.0  # m/N
        count = len(robots) * len(forces.names)
        own = _faces()
        self.faces = (own + (own.max() + 1) * np.arange(count)[:, None, None]).reshape(-1, 3).astype(np.int32)
        self.said = f"longest arrow {forces.largest:.3g} N"

    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far (3,) arrows reach beyond where they begin, down and up each axis [m]."""
        ways = self.scale * self._forces.forces(self._rows, self._robots).reshape(-1, 3)
        return ways.min(0, initial=0.0), ways.max(0, initial=0.0)

    def vertices(self, index: slice, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vertices [m] and unit normals, (T, V, 3) float32, in some of the frames; robots moved by offsets."""
        rows = self._rows[index]
        ways = self.scale * self._forces.forces(rows, self._robots)
        places = self._forces.places(rows, self._robots) + offsets[:, None]
        vertices = _arrows(places, ways, self._size)  # (T, R, K, V, 3)
        normals = vertex_normals(vertices, _faces())
        return tuple(x.reshape(len(rows), -1, 3).astype(np.float32) for x in (vertices, normals))  # type: ignore[return-value]


def _arrows(places: np.ndarray, ways: np.ndarray, size: float) -> np.ndarray:
    """Return the vertices (..., V, 3) of arrows from places on the ways (..., 3); short ones are points."""
    length = np.linalg.norm(ways, axis=-1, keepdims=True)
    along = ways / np.where(length > 0, length, 1.0)
    across = np.cross(along, np.eye(3)[np.abs(along).argmin(-1)])
    across /= np.maximum(np.linalg.norm(across, axis=-1, keepdims=True), 1e-12)
    angle = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = (
        np.cos(angle)[:, None] * across[..., None, :] + np.sin(angle)[:, None] * np.cross(along, across)[..., None, :]
    )
    shown = (length > LEAST * LONGEST * size)[..., None]
    neck = (np.maximum(length - 2.5 * HEAD * size, 0.5 * length) * along)[..., None, :]
    parts = [np.zeros_like(neck), RADIUS * size * ring, neck + RADIUS * size * ring, neck + HEAD * size * ring]
    vertices = np.concatenate([*parts, ways[..., None, :]], axis=-2)
    return places[..., None, :] + np.where(shown, vertices, 0.0)


def _faces() -> np.ndarray:
    """Return the triangles of an arrow, counter-clockwise seen from outside: foot, shaft, collar, head."""
    k = np.arange(SIDES)
    a, b = 1 + k, 1 + (k + 1) % SIDES
    foot, tip = np.zeros(SIDES, dtype=int), np.full(SIDES, 1 + 3 * SIDES)
    triangles = [np.stack([foot, b, a], axis=1), np.stack([a + 2 * SIDES, b + 2 * SIDES, tip], axis=1)]
    for first in (0, SIDES):
        low, high = first, first + SIDES
        triangles += [np.stack([a + low, b + low, b + high], axis=1), np.stack([a + low, b + high, a + high], axis=1)]
    return np.concatenate(triangles)


def _parts(trajectory: Trajectory) -> np.ndarray:
    """Return the number (N,) of the part that each node belongs to, counted as reports count them."""
    sides = trajectory.triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    start, end = np.concatenate([trajectory.rod_edges, sides]).T
    count = trajectory.positions.shape[2]
    return connected_components(coo_matrix((np.ones(len(start)), (start, end)), shape=(count, count)), directed=False)[
        1
    ]

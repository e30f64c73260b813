"""Surfaces of robots and obstacles in the frames of a trajectory: what movies, exports and the page all show."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchdismech.contact import HalfSpace
from torchdismech.errors import positive_number
from torchdismech.model.appearance import Thing
from torchdismech.robot.body import Sections
from torchdismech.trajectory import Trajectory
from torchdismech.view.colours import Scale, distinct
from torchdismech.view.obstacles import floor_of, obstacle_displacement, surface_of
from torchdismech.view.tubes import Profile, Tubes

__all__ = ["ObstacleSurface", "RobotSurface", "circles", "guessed_radius", "vertex_normals"]

DEFAULT_RADIUS = 0.25  # radius of rods with unknown sections, over the median edge length
STRIPE = 0.35  # brightness of the stripe along the first director, over that of the rest
OBSTACLE = np.array([150, 150, 150], dtype=np.uint8)


def circles(edges: int, radius: float) -> Sections:
    """Return round sections of one radius [m] for all edges."""
    width = np.full(edges, 2 * positive_number(radius, "radius", "a positive number of metres"))
    return Sections(width, width, np.ones(edges, dtype=bool))


def guessed_radius(trajectory: Trajectory) -> float:
    """Return a quarter of the median edge length [m]: the radius of rods whose sections are not known."""
    edges = trajectory.rod_edges
    x = trajectory.positions[0].numpy()
    lengths = np.linalg.norm(x[:, edges[:, 1]] - x[:, edges[:, 0]], axis=-1)
    return DEFAULT_RADIUS * float(np.median(lengths))


class RobotSurface:
    """The surfaces of robots of a run: tubes along their rods, and their triangles.

    Parameters
    ----------
    trajectory : the run.
    sections : sections of the rods.
    robots : (R,) the robots of the batch that are shown.

    Attributes
    ----------
    faces : (F, 3) triangles of the vertices, the same in all frames.
    node : (V,) the node to which each vertex belongs.
    dark : (V,) whether a vertex belongs to the stripe along the first director.
    half : (R, E, 2) half of the sizes of the rods' sections along both directors [m].
    shell : (F,) whether a triangle is of a shell, which is seen from both sides.
    """

    def __init__(self, trajectory: Trajectory, sections: Sections, robots: np.ndarray):
        self.trajectory, self.robots = trajectory, robots
        of_all = (trajectory.batch, len(sections.round))
        height, width = (np.broadcast_to(x, of_all)[robots] for x in (sections.height, sections.width))
        self.half = 0.5 * np.stack([height, width], axis=-1)
        kinds = ((sections.round, Profile.round()), (~sections.round, Profile.rectangle()))
        edges = trajectory.rod_edges
        self._tubes = [(np.flatnonzero(k), Tubes(edges, np.flatnonzero(k), p)) for k, p in kinds if k.any()]
        self._shell_nodes, shell_faces = np.unique(trajectory.triangles, return_inverse=True)
        self._shell_faces = shell_faces.reshape(-1, 3).astype(np.int32)
        parts = [tubes.faces for _, tubes in self._tubes] + [self._shell_faces]
        sizes = [len(tubes.node) for _, tubes in self._tubes]
        first = np.cumsum([0, *sizes]).astype(np.int32)
        self.faces = np.concatenate([faces + start for faces, start in zip(parts, first, strict=True)])
        self.node = np.concatenate([*(tubes.node for _, tubes in self._tubes), self._shell_nodes]).astype(np.int64)
        stripes = [tubes.dark for _, tubes in self._tubes]
        self.dark = np.concatenate([*stripes, np.zeros(len(self._shell_nodes), dtype=bool)])
        self.shell = np.arange(len(self.faces)) >= len(self.faces) - len(self._shell_faces)

    def vertices(self, frames: np.ndarray, directors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vertices [m] and unit normals, (T, R, V, 3) float32, in some frames with their directors."""
        x = self.trajectory.positions.numpy()[np.ix_(frames, self.robots)].astype(np.float64)
        parts = [tubes.vertices(x, directors, self.half[:, of]) for of, tubes in self._tubes]
        sheet = x[..., self._shell_nodes, :]
        parts.append((sheet, vertex_normals(sheet, self._shell_faces)))
        vertices, normals = (np.concatenate(arrays, axis=-2) for arrays in zip(*parts, strict=True))
        return vertices.astype(np.float32), normals.astype(np.float32)

    def coloured_by_robot(self) -> np.ndarray:
        """Return colours (R, V, 3) uint8, one for each robot, with darker stripes."""
        by_robot = np.broadcast_to(distinct(len(self.robots))[:, None], (len(self.robots), len(self.node), 3))
        return self._striped(by_robot)

    def coloured(self, values: np.ndarray, scale: Scale) -> np.ndarray:
        """Return colours (..., V, 3) uint8 for values at the nodes (..., N), with darker stripes."""
        return self._striped(scale.colours(values)[..., self.node, :])

    def _striped(self, colours: np.ndarray) -> np.ndarray:
        return np.where(self.dark[:, None], STRIPE * colours, colours).round().astype(np.uint8)


def vertex_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Return unit normals (..., V, 3) at vertices: the mean of their triangles' normals, weighted by area."""
    a, b, c = (vertices[..., faces[:, k], :] for k in range(3))
    across = np.cross(b - a, c - a)
    total = np.zeros_like(vertices)
    for corner in range(3):
        place: Any = (..., faces[:, corner], slice(None))
        np.add.at(total, place, across)
    length = np.linalg.norm(total, axis=-1, keepdims=True)
    return total / np.where(length > 0, length, 1.0)


class ObstacleSurface:
    """The surface of an obstacle; a half-space is shown by a rectangle below all that the robots reach.

    Parameters
    ----------
    obstacle : its name, shape and path.
    robot, batch : the robot whose obstacle it is, and the number of robots; the obstacle may differ between them.
    low, high : (3,) corners of a box around the robots, for the rectangle [m].
    """

    def __init__(self, obstacle: Thing, robot: int, batch: int, low: np.ndarray, high: np.ndarray):
        self.name = obstacle.name
        self._obstacle, self._robot, self._batch = obstacle, robot, batch
        shape = obstacle.shape
        if isinstance(shape, HalfSpace):
            corners = floor_of(shape, np.zeros(3), robot, low, high)
            vertices, faces = corners, np.array([[0, 1, 2], [0, 2, 3]])
        else:
            vertices, faces = (np.asarray(x) for x in surface_of(shape, robot))
        self.vertices = vertices.astype(np.float32)
        self.faces = faces.astype(np.int32)
        self.normals = vertex_normals(vertices, faces).astype(np.float32)
        self.colours = np.broadcast_to(OBSTACLE, vertices.shape).copy()

    @property
    def moves(self) -> bool:
        """Whether the obstacle moves over time."""
        return self._obstacle.path is not None

    @torch.no_grad()
    def displacements(self, times: np.ndarray) -> np.ndarray:
        """Return the displacements (T, 3) [m] of the obstacle at some times (T,) [s]."""
        displacements = [obstacle_displacement(self._obstacle, self._robot, self._batch, float(time)) for time in times]
        return np.stack(displacements).astype(np.float32)

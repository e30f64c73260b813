"""Robots and markers as triangle meshes, for TensorBoard and for movies."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
import trimesh
from torch import Tensor

from torchdismech.geometry.frames import first_director, unit
from torchdismech.view.raster import Camera, Triangles, draw
from torchdismech.view.surfaces import vertex_normals
from torchdismech.view.tubes import Profile, Tubes

__all__ = ["Solid", "box", "drawn", "movie"]

SIMULATED, MEASURED = (60, 120, 216), (90, 90, 90)
THICKNESS = 0.006  # radius of a tube over the robot's extent
BALL = 0.012  # radius of a marker over the robot's extent
NOTHING = np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True)
class Solid:
    """A triangle mesh: vertices (V, 3) [m], faces (F, 3), colours (V, 3) uint8."""

    vertices: np.ndarray
    faces: np.ndarray
    colours: np.ndarray

    def triangles(self) -> Triangles:
        """Return the mesh with normals, to be drawn from both sides."""
        both = np.ones(len(self.faces), dtype=bool)
        return Triangles(self.vertices, vertex_normals(self.vertices, self.faces), self.colours, self.faces, both)


def drawn(nodes: Tensor, edges: Tensor, triangles: Tensor, markers: Tensor, valid: Tensor, extent: float) -> Solid:
    """Return the mesh of a simulated robot (blue) with the measured markers (grey).

    Parameters
    ----------
    nodes : (N, 3) [m]; edges : (E, 2); triangles : (F, 3), of the robot.
    markers : (M, 3) [m]; valid : (M,) bool, which of them were seen.
    extent : size of the robot [m], by which tubes and balls are scaled.
    """
    x = nodes.double().numpy()
    seen = markers.double().numpy()[valid.numpy()]
    parts = [
        _tubes(x, edges.numpy(), THICKNESS * extent),
        (x, triangles.numpy()) if len(triangles) else NOTHING,
        _balls(seen, BALL * extent),
    ]
    first = np.cumsum([0, *(len(vertices) for vertices, _ in parts)])
    of_parts = zip((SIMULATED, SIMULATED, MEASURED), parts, strict=True)
    colours = [np.tile(np.array(colour, dtype=np.uint8), (len(v), 1)) for colour, (v, _) in of_parts]
    faces = np.concatenate([f + k for (_, f), k in zip(parts, first, strict=False)])
    return Solid(np.concatenate([v for v, _ in parts]), faces, np.concatenate(colours))


def _tubes(x: np.ndarray, edges: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices and faces of tubes around edges, of a radius [m]."""
    if not len(edges):
        return NOTHING
    tubes = Tubes(edges, np.arange(len(edges)), Profile.round())
    across = first_director(unit(torch.as_tensor(x[edges[:, 1]] - x[edges[:, 0]], device="cpu")))
    return tubes.vertices(x, across.numpy(), np.full((len(edges), 2), radius))[0], tubes.faces


def _balls(markers: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices and faces of balls at markers, of a radius [m]."""
    ball = trimesh.creation.icosphere(subdivisions=0, radius=radius)
    vertices = markers[:, None] + np.asarray(ball.vertices)
    faces = np.asarray(ball.faces) + len(ball.vertices) * np.arange(len(markers))[:, None, None]
    return vertices.reshape(-1, 3), faces.reshape(-1, 3)


def movie(solids: list[Solid], low: Tensor, high: Tensor, seconds: float, size: tuple[int, int] = (320, 240)) -> bytes:
    """Return a movie of solids as a GIF.

    Parameters
    ----------
    low, high : (3,) corners of a box around all of them [m].
    seconds : between two frames.
    size : width and height [pixels].
    """
    from PIL import Image

    camera = Camera.finding(low.numpy(), high.numpy(), -60.0, 18.0, *size)
    pictures = [Image.fromarray(draw(camera, solid.triangles())).quantize(64) for solid in solids]
    file = io.BytesIO()
    duration = max(round(1000 * seconds), 20)  # [ms]; browsers slow down frames that are shorter
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)
    return file.getvalue()


def box(*points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper corner (3,) of a box around all finite points among points (..., 3)."""
    flat = torch.cat([x.reshape(-1, 3) for x in points])
    flat = flat[flat.isfinite().all(1)]
    return flat.amin(0).double(), flat.amax(0).double()

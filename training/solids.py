"""Robots and markers as triangles: for meshes in TensorBoard and for movies."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.view.raster import Camera, Triangles, draw

__all__ = ["Solid", "box", "drawn", "movie"]

SIDES = 6  # of a tube
SIMULATED, MEASURED = (60, 120, 216), (90, 90, 90)
THICKNESS = 0.006  # radius of a tube over the robot's extent
BALL = 0.012  # radius of a marker over the robot's extent
OCTAHEDRON = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=np.float64)
OCTANTS = np.array([[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5], [3, 1, 5], [0, 3, 5]])


@dataclass(frozen=True)
class Solid:
    """Triangles: vertices (V, 3) [m], faces (F, 3), colours (V, 3) uint8."""

    vertices: np.ndarray
    faces: np.ndarray
    colours: np.ndarray

    def triangles(self) -> Triangles:
        """Return them with normals, to be drawn from both sides."""
        corners = self.vertices[self.faces]
        across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normals = np.zeros_like(self.vertices)
        for k in range(3):
            np.add.at(normals, self.faces[:, k], across)
        size = np.linalg.norm(normals, axis=1, keepdims=True)
        both = np.ones(len(self.faces), dtype=bool)
        return Triangles(self.vertices, normals / np.maximum(size, 1e-30), self.colours, self.faces, both)


def drawn(nodes: Tensor, edges: Tensor, triangles: Tensor, markers: Tensor, valid: Tensor, extent: float) -> Solid:
    """Return a simulated robot (blue) with the measured markers (grey).

    Parameters
    ----------
    nodes : (N, 3) [m]; edges : (E, 2); triangles : (F, 3), of the robot.
    markers : (M, 3) [m]; valid : (M,) bool, which of them were seen.
    extent : of the robot [m].
    """
    x = nodes.double().numpy()
    seen = markers.double().numpy()[valid.numpy()]
    parts = [_tubes(x, edges.numpy(), THICKNESS * extent), _sheet(x, triangles.numpy()), _balls(seen, BALL * extent)]
    first = np.cumsum([0, *(len(vertices) for vertices, _ in parts)])
    of_parts = zip((SIMULATED, SIMULATED, MEASURED), parts, strict=True)
    colours = [np.tile(np.array(colour, dtype=np.uint8), (len(v), 1)) for colour, (v, _) in of_parts]
    faces = np.concatenate([f + k for (_, f), k in zip(parts, first, strict=False)])
    return Solid(np.concatenate([v for v, _ in parts]), faces, np.concatenate(colours))


def _tubes(x: np.ndarray, edges: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices and faces of a prism along each edge."""
    start, end = x[edges[:, 0]], x[edges[:, 1]]
    tangent = (end - start) / np.maximum(np.linalg.norm(end - start, axis=1, keepdims=True), 1e-30)
    least = np.eye(3)[np.abs(tangent).argmin(1)]
    one = np.cross(tangent, least)
    one /= np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-30)
    angle = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = np.cos(angle)[:, None] * one[:, None] + np.sin(angle)[:, None] * np.cross(tangent, one)[:, None]
    vertices = np.stack([start, end], axis=1)[:, :, None] + radius * ring[:, None]  # (E, 2, SIDES, 3)
    k, after = np.arange(SIDES), (np.arange(SIDES) + 1) % SIDES
    quad = np.concatenate([np.stack([k, after, SIDES + after], 1), np.stack([k, SIDES + after, SIDES + k], 1)])
    faces = quad + 2 * SIDES * np.arange(len(edges))[:, None, None]
    return vertices.reshape(-1, 3), faces.reshape(-1, 3)


def _sheet(x: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (x, triangles) if len(triangles) else (np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64))


def _balls(markers: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    vertices = markers[:, None] + radius * OCTAHEDRON
    faces = OCTANTS + len(OCTAHEDRON) * np.arange(len(markers))[:, None, None]
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
    duration = max(round(1000 * seconds), 20)  # shorter ones are shown slower
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)
    return file.getvalue()


def box(*points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners of a box around points (..., 3), those that are finite."""
    flat = torch.cat([x.reshape(-1, 3) for x in points])
    flat = flat[flat.isfinite().all(1)]
    return flat.amin(0).double(), flat.amax(0).double()

"""Surfaces of obstacles as triangles, and obstacles in figures: as sections with a picture's plane, or as surfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact import Box, Capsule, Cylinder, HalfSpace, Sphere
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.errors import InputError
from torchdismech.geometry.frames import first_director
from torchdismech.model.appearance import Thing

__all__ = ["View", "draw_obstacle", "floor_of", "obstacle_displacement", "surface_of"]

GRID = 200  # points along each side of the picture at which a section is looked for
MARGIN = 0.05  # of the picture's size: how far a floor reaches beyond what stands on it


@dataclass(frozen=True)
class View:
    """A picture in which a robot is drawn already.

    Attributes
    ----------
    plot : the axes of matplotlib.
    axes : the two or three coordinates that the picture shows.
    factor : factor from metres to the unit of the picture.
    through : (3,) a point of the plane that a flat picture shows [m].
    """

    plot: Any
    axes: tuple[int, ...]
    factor: float
    through: np.ndarray


def draw_obstacle(view: View, obstacle: Thing, robot: int, batch: int, time: float, colour: Any) -> None:
    """Draw the obstacle of a robot, out of a batch, where it is at a time [s]."""
    displacement = obstacle_displacement(obstacle, robot, batch, time)
    if len(view.axes) == 2:
        _draw_section(view, obstacle.shape, displacement, robot, batch, colour)
    else:
        _draw_surface(view, obstacle.shape, displacement, robot, colour)


def obstacle_displacement(obstacle: Thing, robot: int, batch: int, time: float) -> np.ndarray:
    """Return the displacement (3,) [m] of the obstacle of a robot, out of a batch, at a time [s]."""
    if obstacle.path is None:
        return np.zeros(3)
    times = obstacle.path.times.new_full((batch,), time)
    return obstacle.path.displacement(times)[robot].cpu().numpy()


@torch.no_grad()
def _draw_section(view: View, shape: Shape, displacement: np.ndarray, robot: int, batch: int, colour: Any) -> None:
    """Shade the section of an obstacle with the plane of a flat picture."""
    plot, limits = view.plot, np.array([view.plot.get_xlim(), view.plot.get_ylim()])
    middle, reach = limits.mean(1), np.ptp(limits, axis=1).max()  # the picture is widened to equal scales later
    grid = np.meshgrid(*(np.linspace(m - reach, m + reach, GRID) for m in middle))
    points = np.tile(view.through, (GRID * GRID, 1))
    points[:, view.axes] = np.stack([g.ravel() for g in grid], axis=1) / view.factor
    like = next(t for t in (*shape.parameters(), *shape.buffers()) if t.is_floating_point())
    local = torch.as_tensor(points - displacement, device="cpu").to(like)
    distance = shape.distance(local.expand(batch, -1, -1))[robot].cpu().numpy().reshape(GRID, GRID)
    if distance.min() >= 0 or distance.max() <= 0:
        return  # no part of the obstacle is near, or it is everywhere
    data_limits = plot.dataLim.frozen()
    plot.contourf(*grid, distance, levels=[-np.inf, 0.0], colors=[colour], alpha=0.3, zorder=0)
    plot.contour(*grid, distance, levels=[0.0], colors=[colour], linewidths=1.0, zorder=0)
    plot.dataLim.set(data_limits)  # the obstacle does not widen the picture
    plot.autoscale_view()


def _draw_surface(view: View, shape: Shape, displacement: np.ndarray, robot: int, colour: Any) -> None:
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    plot = view.plot
    if isinstance(shape, HalfSpace):
        limits = np.array([plot.get_xlim(), plot.get_ylim(), plot.get_zlim()])
        faces = floor_of(shape, displacement, robot, *(limits.T / view.factor))[None]
    else:
        vertices, triangles = surface_of(shape, robot)
        faces = (vertices + displacement)[triangles]
    corners = view.factor * faces
    lines = 0.0 if len(faces) == 1 else 0.2
    plot.add_collection3d(
        Poly3DCollection(corners, facecolors=[colour], edgecolors=[colour], lw=lines, alpha=0.25, shade=len(faces) > 1)
    )
    plot.auto_scale_xyz(*corners.reshape(-1, 3).T, had_data=True)


def floor_of(shape: HalfSpace, displacement: np.ndarray, robot: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the corners (4, 3) [m] of a rectangle in the plane of a half-space, below a whole box.

    Parameters
    ----------
    displacement : (3,) by which the half-space has moved [m].
    low, high : (3,) corners of the box [m].
    """
    normal = torch.nn.functional.normalize(_of_robot(shape.normal, robot, 1), dim=0)
    across = first_director(normal)
    first, second, up = (v.cpu().numpy() for v in (across, torch.linalg.cross(normal, across), normal))
    if abs(up).max() == 1:  # of a plane across an axis, the sides are along the other axes
        first, second = np.roll(abs(up), 1), np.roll(abs(up), 2)
    point = _of_robot(shape.point, robot, 1).cpu().numpy() + displacement
    corners = np.stack(np.meshgrid(*np.stack([low, high], axis=1)), axis=-1).reshape(-1, 3) - point
    sides = []
    for direction in (first, second):
        extent = corners @ direction
        more = MARGIN * np.ptp(extent)
        sides.append((extent.min() - more, extent.max() + more))
    (a, b), (c, d) = sides
    return np.array([point + x * first + y * second for x, y in ((a, c), (b, c), (b, d), (a, d))])


def surface_of(shape: Shape, robot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices (V, 3) [m] and triangles (F, 3) of the obstacle of a robot, before it moves."""
    if isinstance(shape, Mesh):
        return shape.vertices.cpu().numpy(), shape.triangles.cpu().numpy()
    import trimesh

    if isinstance(shape, Sphere):
        mesh = trimesh.creation.icosphere(subdivisions=2, radius=_of_robot(shape.radius, robot, 0).item())
        return mesh.vertices + _of_robot(shape.center, robot, 1).cpu().numpy(), mesh.faces
    if isinstance(shape, Capsule | Cylinder):
        start, end = (_of_robot(x, robot, 1).cpu().numpy() for x in (shape.start, shape.end))
        length, radius = np.linalg.norm(end - start), _of_robot(shape.radius, robot, 0).item()
        flat = isinstance(shape, Cylinder)
        mesh = (
            trimesh.creation.cylinder(radius, length, sections=32)
            if flat
            else trimesh.creation.capsule(length, radius, count=[16, 16])
        )
        turn = trimesh.geometry.align_vectors((0, 0, 1), (end - start) / length)[:3, :3]
        return (mesh.vertices - mesh.vertices.mean(0)) @ turn.T + (start + end) / 2, mesh.faces
    if isinstance(shape, Box):
        mesh = trimesh.creation.box(_of_robot(shape.size, robot, 1).cpu().numpy())
        turn = trimesh.transformations.rotation_matrix
        rotation = _of_robot(shape.rotation, robot, 1).cpu().numpy()
        angle = np.linalg.norm(rotation)
        matrix = turn(angle, rotation)[:3, :3] if angle > 0 else np.eye(3)
        return mesh.vertices @ matrix.T + _of_robot(shape.center, robot, 1).cpu().numpy(), mesh.faces
    raise InputError(f"a picture cannot show an obstacle of the shape {type(shape).__name__}")


def _of_robot(parameter: Tensor, robot: int, dims: int) -> Tensor:
    """Return a parameter of a shape for one robot: a number (dims = 0) or a vector (dims = 1)."""
    value = parameter.detach()
    if value.dim() > dims:
        value = value[robot % len(value)]
    return value.reshape(-1)[0] if dims == 0 else value

"""An obstacle bounded by a closed triangle mesh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.obstacles.directions import identity, outer_square, polar, rounding
from torchdismech.contact.obstacles.nearest import NearestTriangle
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shape_parameters import refuse_other_rotation
from torchdismech.contact.obstacles.walls import through_walls
from torchdismech.errors import InputError, path_of, positive_number
from torchdismech.forces.base import vector
from torchdismech.geometry.checks import Elements, array_of
from torchdismech.geometry.graphs import connected_parts
from torchdismech.geometry.mesh_checks import check_mesh
from torchdismech.geometry.mesh_files import mesh_in_file
from torchdismech.geometry.quaternions import rotation_of_vector
from torchdismech.values import Given

__all__ = ["Mesh"]

# Length of the sum of the unit normals at an edge or a vertex, below which its triangles count as folded together.
SMALLEST_PSEUDONORMAL = 1e-9


class Mesh(Shape):
    """A rigid body bounded by triangles; all robots of a batch have the same one.

    Parameters
    ----------
    vertices : (V, 3) [m].
    triangles : (F, 3) indices of vertices, wound so that their normals point out of the body.
    where : beginning of error messages.

    Raises
    ------
    InputError
        A surface that is not closed, not consistently wound or wound inwards (so are closed cavities), or that is
        faulty in another way (see `geometry.mesh_checks.check_mesh`); triangles folded onto each other.

    Notes
    -----
    The sign of a distance follows from the pseudonormal of the nearest face, edge or vertex (Baerentzen and Aanaes
    2005), which is right everywhere if the surface does not intersect itself; that is not checked. The normal is that
    of the nearest face, or the direction from the nearest edge or vertex (inside: to it); on an edge or vertex itself
    it is that of a face. The curvature is 0 for a face, (1 - n n - e e)/d for an edge along e and (1 - n n)/d for a
    vertex, so it jumps where the nearest feature changes. The normal jumps where two features that do not touch are
    equally near.

    The nearest triangle is found without looking at all of them, see `nearest.py`.
    """

    walled = True
    vertices: Tensor
    triangles: Tensor
    pseudonormals: Tensor
    size: Tensor

    def __init__(self, vertices: Given, triangles: Elements, where: str = "Mesh"):
        super().__init__()
        x, corners = _checked(vertices, triangles, where)
        normals = _pseudonormals(x, corners, where)
        self.register_buffer("vertices", torch.from_numpy(x))
        self.register_buffer("triangles", torch.from_numpy(corners))
        self.register_buffer("pseudonormals", torch.from_numpy(normals))
        self.register_buffer("size", torch.tensor(np.ptp(x, axis=0), device="cpu"))
        self.nearest = NearestTriangle(x, corners)

    @classmethod
    def from_file(
        cls, path: str | Path, scale: float = 1.0, rotation: Given = (0.0, 0.0, 0.0), position: Given = (0.0, 0.0, 0.0)
    ) -> Mesh:
        """Read the surface from a file (stl, obj, ply, off, glb, gltf); vertices at one place are merged.

        Lines and points beside the triangles are left out.

        Parameters
        ----------
        scale : what one unit of the file is in metres, 1e-3 if it is in millimetres.
        rotation : (3,) rotation vector (axis times angle) from the file's axes to the world's [rad].
        position : (3,) of the file's origin [m].

        Raises
        ------
        InputError
            The file cannot be read, its surface is refused (see the class), the scale is not above 0, or rotation and
            position are no finite vectors; the message names the file.
        """
        path = path_of(path, "Mesh.from_file")
        scale = positive_number(scale, f"{path}: scale")
        turn, origin = _one_vector(rotation, f"{path}: rotation"), _one_vector(position, f"{path}: position")
        refuse_other_rotation(turn, f"{path}: rotation")
        vertices, triangles = mesh_in_file(path, only_triangles=False)
        corners = scale * vertices[triangles].reshape(-1, 3) + 0.0  # so that -0.0 becomes 0.0
        vertices, triangles = np.unique(corners, axis=0, return_inverse=True)
        placed = vertices @ rotation_of_vector(turn).numpy().T + origin.numpy()
        return cls(placed, triangles.reshape(-1, 3), where=str(path))

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the signed distances from the surface with normals and curvatures."""
        triangle = self.nearest(points.detach().reshape(-1, 3)).reshape(points.shape[:-1])
        corners = self.vertices[self.triangles[triangle]]  # (B, N, 3, 3)
        feature, start, axis = _nearest_feature(points.detach(), corners, self.pseudonormals[triangle, 0])
        pseudonormal = self.pseudonormals[triangle, feature]
        from_start = points - start
        on_face, on_edge = feature == 0, ((feature > 0) & (feature < 4)).to(points.dtype)[..., None]
        away = from_start - on_edge * (from_start * axis).sum(-1, keepdim=True) * axis
        length, direction, inverse = polar(away, rounding(self.size.amax()), pseudonormal)
        # where a vector is too short, `polar` has taken the component along the pseudonormal, which is signed already
        inside = (inverse > 0) & ((away.detach() * pseudonormal).sum(-1) < 0)
        sign = torch.where(inside, -1.0, 1.0).to(points.dtype)
        curved = torch.where(on_face, 0.0, sign * inverse)[..., None, None]
        curvature = curved * (identity(points) - outer_square(direction) - on_edge[..., None] * outer_square(axis))
        distance = torch.where(on_face, (from_start * pseudonormal).sum(-1), sign * length)
        normal = torch.where(on_face[..., None], pseudonormal, sign[..., None] * direction)
        return distance, normal, curvature

    def passed(self, start: Tensor, end: Tensor, distances: tuple[Tensor, Tensor]) -> Tensor:
        """Return which points (K,) pass through a wall, however thin; see `walls.through_walls`."""
        return through_walls(self, start, end, distances)

    @property
    def depth(self) -> Tensor:
        """Half the smallest side of the box around the mesh: an upper bound of the largest depth, often generous."""
        return self.size.amin() / 2

    @property
    def width(self) -> Tensor:
        """The second smallest side of the box around the mesh."""
        return self.size.sort().values[1]


def _nearest_feature(points: Tensor, corners: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the feature of its nearest triangle (face, edge or corner) to which each point is nearest.

    Parameters
    ----------
    points : (..., 3).
    corners : (..., 3, 3) of each point's triangle.
    normal : (..., 3) of each point's triangle.

    Returns
    -------
    feature : (...) 0 for the face, 1 + k for the edge from corner k to the next one, 4 + k for corner k.
    start : (..., 3) a point of that feature: corner k, or corner 0 for the face.
    axis : (..., 3) direction of the edge; that of some edge where the feature is no edge.
    """
    edges = corners.roll(-1, -2) - corners
    lengths = edges.norm(dim=-1, keepdim=True)
    axes = edges / lengths
    relative = points.unsqueeze(-2) - corners
    along = (relative * axes).sum(-1, keepdim=True)
    out_of_triangle = torch.linalg.cross(axes, normal.unsqueeze(-2).expand_as(axes))
    outside = (relative * out_of_triangle).sum(-1)  # (..., 3) distance beyond each edge in the plane of the triangle
    nearest = torch.minimum(along.clamp(min=0), lengths)
    edge = (relative - nearest * axes).square().sum(-1).argmin(-1)  # (...)
    s, length = (t.squeeze(-1).gather(-1, edge[..., None]).squeeze(-1) for t in (along, lengths))
    corner = torch.where(s <= 0, edge, (edge + 1) % 3)
    feature = torch.where((s > 0) & (s < length), 1 + edge, 4 + corner)
    # Directly above an edge between two coplanar triangles, rounding could put a point outside of both, and give it
    # the curvature of an edge.
    height = (relative[..., 0, :] * normal).sum(-1).abs()
    on_face = outside.amax(-1) <= rounding(lengths.amax((-2, -1)) + height)
    feature = torch.where(on_face, 0, feature)
    start = torch.where(feature == 0, 0, torch.where(feature < 4, edge, corner))
    return feature, _row(corners, start), _row(axes, edge)


def _row(matrices: Tensor, index: Tensor) -> Tensor:
    """Return the row `index` (...) of each matrix (..., 3, 3)."""
    return matrices.gather(-2, index[..., None, None].expand(*index.shape, 1, 3)).squeeze(-2)


def _one_vector(given: Given, where: str) -> Tensor:
    """Return a vector (3,) of float64; refuse other shapes, as all robots have the same mesh."""
    found = vector(given, where)
    if found.shape != (3,):
        raise InputError(
            f"{where}: expected 3 numbers, as all robots have the same mesh, got shape {tuple(found.shape)}"
        )
    return found.double()


def _checked(vertices: Given, triangles: Elements, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices (V, 3) and triangles (F, 3) as arrays; refuse any but closed surfaces that are wound outwards."""
    x = array_of(vertices, where)
    checked = check_mesh(x, triangles, where)
    if checked.repairs:
        raise InputError(f"{where}: expected consistently wound triangles; it would take this: {checked.repairs[0]}")
    corners = checked.triangles
    start, end = corners.reshape(-1), np.roll(corners, -1, axis=1).reshape(-1)
    open_edges = np.setdiff1d(start * len(x) + end, end * len(x) + start)
    if len(open_edges):
        first = divmod(int(open_edges[0]), len(x))
        raise InputError(
            f"{where}: expected a closed surface (watertight), got {len(open_edges)} edges with a triangle on one side "
            f"only, the first from vertex {first[0]} to {first[1]} (counted from 0): close the holes"
        )
    volumes = _volumes(x, corners)
    if volumes.min() <= 0:
        raise InputError(
            f"{where}: expected triangles wound outwards, so that each closed surface has a positive volume, got "
            f"{volumes.min():.6g}: reverse its triangles (closed cavities inside a body are not supported)"
        )
    return x, corners


def _volumes(x: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Return the signed volume [m^3] of each connected closed surface."""
    part = connected_parts(len(x), np.concatenate([triangles[:, :2], triangles[:, 1:]]))
    u, v, w = ((x - x.mean(axis=0))[triangles[:, k]] for k in range(3))
    return np.bincount(part[triangles[:, 0]], (u * np.cross(v, w)).sum(axis=1) / 6, minlength=part.max() + 1)


def _pseudonormals(x: np.ndarray, triangles: np.ndarray, where: str) -> np.ndarray:
    """Return the pseudonormals (F, 7, 3) of each triangle: unit vectors of its face, three edges and three corners.

    Edge k leads from corner k to the next one.
    """
    p = x[triangles]
    edges = np.roll(p, -1, axis=1) - p
    axes = edges / np.linalg.norm(edges, axis=2, keepdims=True)
    face = np.cross(axes[:, 0], axes[:, 1])
    face /= np.linalg.norm(face, axis=1, keepdims=True)
    # Edges: the unweighted sum of the two faces' normals. The other triangle has the same edge reversed.
    start, end = triangles.reshape(-1), np.roll(triangles, -1, axis=1).reshape(-1)
    order = np.argsort(start * len(x) + end)
    reverse = order[np.searchsorted((start * len(x) + end)[order], end * len(x) + start)]
    edge = face[:, None] + face[reverse // 3].reshape(-1, 3, 3)
    # Vertices: weighted by the triangles' angles there.
    back = np.roll(axes, 1, axis=1)
    sine, cosine = np.linalg.norm(np.cross(back, axes), axis=2), -(back * axes).sum(axis=2)
    weighted = np.arctan2(sine, cosine)[:, :, None] * face[:, None]
    vertex = np.stack([np.bincount(start, weighted[..., k].reshape(-1), minlength=len(x)) for k in range(3)], axis=1)
    normals = np.concatenate([face[:, None], edge, vertex[triangles]], axis=1)
    lengths = np.linalg.norm(normals, axis=2, keepdims=True)
    if lengths.min() < SMALLEST_PSEUDONORMAL:
        f = int(np.argmin(lengths.min(axis=(1, 2))))
        raise InputError(
            f"{where}: expected a body with a thickness, got triangles folded onto each other at triangle {f} "
            f"(vertices {triangles[f].tolist()}, counted from 0)"
        )
    return normals / lengths

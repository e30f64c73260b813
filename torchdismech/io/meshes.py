"""Shells in mesh files: read as `geometry.mesh_files` does, and written through trimesh.

Units and axes are as in the file, unless a scale is given; no axis is turned upwards. Nodes and triangles keep the
order of the file, with two exceptions: STL and glTF cannot share a node between triangles with different normals or
textures and so repeat it; in these formats nodes at exactly the same place are merged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError, path_of, positive_number, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.geometry.mesh_checks import check_mesh, check_triangles
from torchdismech.geometry.mesh_files import READ_SUFFIXES, check_suffix, mesh_in_file
from torchdismech.io.dismech import Geometry

__all__ = ["READ_SUFFIXES", "WRITE_SUFFIXES", "read_mesh", "write_mesh"]

WRITE_SUFFIXES = (".obj", ".stl", ".ply", ".off", ".glb")
# Formats that repeat a node for each normal or texture there: nodes at the same place are merged.
MERGED = (".stl", ".glb", ".gltf")
# Two nodes whose distance is less than this part of the shortest side at either are taken for one node that rounding or
# noise has split.
SAME_PLACE = 1e-3
# So many digits after the point that positions of robots in metres are read back as they were.
WRITE_OPTIONS: dict[str, dict[str, Any]] = {".obj": {"digits": 17, "include_normals": False}, ".off": {"digits": 17}}


def read_mesh(path: str | Path, scale: float = 1.0) -> Geometry:
    """Read a shell from a mesh file: obj, stl, ply, off, glb or gltf.

    `scale` is what one unit of the file is in metres, 1e-3 if it is in millimetres. A warning names a mesh that is then
    more than 10 m across.

    Several meshes in one file are placed as the file says and joined into one set of triangles; convex polygons
    are cut into triangles. Colours, textures and normals are not read. The winding is that of the file.

    Raises
    ------
    InputError
        Named with the file: it is missing, empty, broken or of an unknown kind; it holds no triangles, or lines or
        points beside them, or a concave polygon; its triangles do not form a shell (see `check_mesh`); nodes at the
        same place in a format that does not have to repeat them, or apart by noise alone in one that does: the shell
        would be cut there; or the scale is not above 0.
    """
    path = path_of(path, "read_mesh")
    scale = positive_number(scale, f"{path}: scale")
    nodes, triangles = mesh_in_file(path)
    repeats_nodes = path.suffix.lower() in MERGED
    if repeats_nodes:
        nodes, triangles = check_triangles(*_merged(nodes, triangles), where=str(path))
        _refuse_cracks(path, nodes, triangles)  # before check_mesh, which would only say that parts touch in a node
    check_mesh(nodes, triangles, where=str(path))
    if not repeats_nodes:
        _refuse_repeated_nodes(path, nodes)
    _warn_of_millimetres(path, scale * np.ptp(nodes, axis=0).max())
    return Geometry(scale * nodes, np.zeros((0, 2), dtype=np.int64), triangles)


def _warn_of_millimetres(path: Path, extent: float) -> None:
    if extent > LARGE:
        warn(
            f"{path}: the mesh is {extent:.4g} m across. If it is in millimetres say scale=1e-3 (in a scene: [robot] "
            "scale = 1e-3)"
        )


def write_mesh(path: str | Path, nodes: np.ndarray, triangles: np.ndarray) -> None:
    """Write a shell to a mesh file: obj, stl, ply, off or glb.

    obj and off keep 17 digits after the point; stl, ply and glb hold single precision.

    Parameters
    ----------
    nodes : (N, 3) positions [m].
    triangles : (F, 3) indices of nodes.

    Raises
    ------
    InputError
        An unknown kind of file, a file that cannot be written, triangles that `read_mesh` would refuse.
    """
    import trimesh

    path = path_of(path, "write_mesh")
    check_suffix(path, WRITE_SUFFIXES)
    check_mesh(nodes, triangles, where=f"write_mesh({path.name})")
    suffix = path.suffix.lower()
    mesh = trimesh.Trimesh(np.asarray(nodes, dtype=np.float64), np.asarray(triangles), process=False)
    try:
        mesh.export(path, file_type=suffix[1:], **WRITE_OPTIONS.get(suffix, {}))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _merged(nodes: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and triangles with nodes at exactly the same place merged into the first of them."""
    first = _first_at_place(nodes)
    kept = first == np.arange(len(nodes))
    return nodes[kept], (np.cumsum(kept) - 1)[first][triangles]


def _refuse_repeated_nodes(path: Path, nodes: np.ndarray) -> None:
    first = _first_at_place(nodes)
    again = np.flatnonzero(first != np.arange(len(nodes)))
    if len(again):
        raise InputError(
            f"{path}: {len(again)} nodes are at the place of another, the first is node {again[0]} at that of node "
            f"{first[again[0]]} (counted from 0): the shell would be cut there; merge them in the program that wrote "
            "the file"
        )


def _refuse_cracks(path: Path, nodes: np.ndarray, triangles: np.ndarray) -> None:
    """Refuse nodes that only noise keeps apart: the triangles there look connected, and are not."""
    sides = np.sort(triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    if len(triangles) > 1 and len(np.unique(sides, axis=0)) == len(sides):
        raise InputError(
            f"{path}: none of the {len(triangles)} triangles shares a side with another: nodes that should be one are "
            "apart, by noise perhaps; merge them in the program that wrote the file"
        )
    lengths = np.linalg.norm(nodes[sides[:, 1]] - nodes[sides[:, 0]], axis=1)
    shortest = np.full(len(nodes), np.inf)
    np.minimum.at(shortest, sides.reshape(-1), np.repeat(lengths, 2))
    shortest[np.isinf(shortest)] = 0.0  # nodes of no triangle count as near to none; `check_mesh` refuses them
    from scipy.spatial import KDTree  # takes a tenth of a second to import

    distance, neighbour = (found[:, 1] for found in KDTree(nodes).query(nodes, k=2))
    near = np.flatnonzero(distance < SAME_PLACE * np.minimum(shortest, shortest[neighbour]))
    if len(near):
        node = int(near[0])
        raise InputError(
            f"{path}: node {node} is {distance[node]:.3g} m from node {neighbour[node]} (counted from 0), next to "
            f"nothing beside the sides there, {shortest[node]:.3g} m: the shell would be cut there; merge them in the "
            "program that wrote the file"
        )


def _first_at_place(nodes: np.ndarray) -> np.ndarray:
    """Return for each node (N,) the first node at exactly the same place."""
    # Adding 0.0 makes -0.0 and 0.0 the same.
    _, first, inverse = np.unique(nodes + 0.0, axis=0, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]

"""Triangles in mesh files of the usual formats, read through trimesh.

Units and axes are as in the file. Several meshes in one file are placed as the file says and joined into one set of
triangles; convex polygons are cut into triangles. Nodes and triangles keep the order of the file. Colours, textures and
normals are not read.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import numpy as np

from torchdismech.errors import InputError, shown
from torchdismech.geometry.checks import missing_node, namer
from torchdismech.geometry.mesh_checks import check_triangles
from torchdismech.values.given import NUMBER

__all__ = ["READ_SUFFIXES", "check_suffix", "mesh_in_file"]

READ_SUFFIXES = (".obj", ".stl", ".ply", ".off", ".glb", ".gltf")
OBJ_INDEX = re.compile(r"-?\d{1,18}", re.ASCII)
OPPOSITE = -0.7  # cosine between normals of triangles that lie on one another, in polygons that are not quite flat


def mesh_in_file(path: Path, only_triangles: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (N, 3) and the triangles (F, 3) of a mesh file, F at least 1.

    Parameters
    ----------
    only_triangles : whether lines and points beside the triangles are refused; else they are left out.

    Raises
    ------
    InputError
        Named with the file: it is missing, empty, broken or of an unknown kind; it holds no triangles, or a concave
        polygon.
    """
    suffix = path.suffix.lower()
    check_suffix(path, READ_SUFFIXES)
    content = _content(path)
    if suffix == ".obj":
        content = _plain_obj(path, content, only_triangles)
    if suffix == ".stl":
        _refuse_cut_stl(path, content)
    nodes, triangles = _joined(path, _loaded(path, suffix, content), only_triangles)
    if only_triangles and suffix == ".ply" and _ply_elements(content).get("edge", 0):
        raise InputError(f"{path}: expected triangles only, got edges beside them: remove the edges")
    said_nodes, said_faces = _said_counts(suffix, content)
    _refuse_missing(path, said_nodes, said_faces, nodes, triangles)
    if said_faces is not None and said_faces < len(triangles):
        _refuse_concave_polygons(path, *check_triangles(nodes, triangles, where=str(path)))
    return nodes, triangles


def check_suffix(path: Path, known: tuple[str, ...]) -> None:
    """Refuse a file whose name does not end in one of the `known` suffixes."""
    if path.suffix.lower() not in known:
        raise InputError(f"{path}: expected a mesh file that ends in {', '.join(known)}, got {path.suffix!r}")


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not content.strip():
        raise InputError(f"{path}: the file is empty; expected a triangle mesh")
    return content


def _plain_obj(path: Path, content: bytes, only_faces: bool) -> bytes:
    """Return an obj file with only its vertices and faces, so that normals, textures and groups cannot split it."""
    vertices, faces, places = [], [], []
    # as bytes, of which only line ends end a line: as text the letter "Å" would in Latin-1
    lines = content.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").splitlines()
    for number, line in enumerate((line.decode("latin-1") for line in lines), start=1):
        key, *fields = line.split("#", 1)[0].split() or [""]
        if key == "v":
            vertices.append(_obj_vertex(f"{path}:{number}", fields))
        elif key == "f":
            faces.append(_obj_face(f"{path}:{number}", fields, len(vertices)))
            places.append(number)
        elif key in ("l", "p") and only_faces:
            raise InputError(f"{path}:{number}: expected a shell of faces (f) only, got lines or points: {shown(line)}")
    for number, corners in zip(places, faces, strict=True):  # faces may stand before their vertices
        if max(corners) > len(vertices):
            raise InputError(
                f"{path}:{number}: there is no vertex {max(corners)}; vertices are numbered 1 to {len(vertices)}"
            )
    return "\n".join(vertices + ["f " + " ".join(map(str, corners)) for corners in faces]).encode()


def _obj_vertex(where: str, fields: list[str]) -> str:
    numbers = fields[:3]  # what follows the third number is a weight or a colour
    if len(numbers) < 3 or not all(map(NUMBER.fullmatch, numbers)):
        raise InputError(f"{where}: expected three numbers of a vertex, got {shown(' '.join(fields))}")
    return "v " + " ".join(repr(float(number)) for number in numbers)


def _obj_face(where: str, fields: list[str], count: int) -> list[int]:
    """Return a face's vertices, counted from 1; in the file -1 is the latest of the `count` vertices so far."""
    numbers = [field.split("/")[0] for field in fields]
    if len(numbers) < 3 or not all(OBJ_INDEX.fullmatch(number) and int(number) for number in numbers):
        got = shown(" ".join(fields))
        raise InputError(f"{where}: expected three or more vertices of a face, counted from 1, got {got}")
    corners = [int(number) + (count + 1) * (int(number) < 0) for number in numbers]
    if min(corners) < 1:
        raise InputError(f"{where}: the face counts back past the first vertex: {shown(' '.join(fields))}")
    return corners


def _refuse_cut_stl(path: Path, content: bytes) -> None:
    """Refuse a binary stl file that is shorter than it declares: trimesh would call it a broken text file."""
    stated = int.from_bytes(content[80:84], "little")
    if b"\0" in content and len(content) < 84 + 50 * stated:  # no text holds a byte that is zero
        raise InputError(
            f"{path}: the file says it has {stated} triangles, which take {84 + 50 * stated} bytes, and has "
            f"{len(content)}: it is cut off"
        )


def _loaded(path: Path, suffix: str, content: bytes):
    """Return the file as a `trimesh.Scene`, with nodes and faces in the order of the file, none merged or dropped."""
    import trimesh

    # trimesh reads from the path, as a gltf file names other files beside it; an obj file has been simplified
    source = io.BytesIO(content) if suffix == ".obj" else str(path)
    try:
        with warnings.catch_warnings():
            # Of text that is not a number numpy only warns, and drops all numbers after it.
            warnings.simplefilter("error", DeprecationWarning)
            return trimesh.load_scene(
                source, file_type=suffix[1:], process=False, maintain_order=True, skip_materials=True, fix_texture=False
            )
    except Exception as error:  # trimesh raises errors of any kind for broken files
        # trimesh imports this package to guess the encoding of what it takes for text
        guesses = isinstance(error, ModuleNotFoundError) and error.name == "charset_normalizer"
        cause = "it is neither text nor binary" if guesses else f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: not a readable {suffix[1:]} file: {cause}") from error


def _joined(path: Path, scene, only_triangles: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (N, 3) and triangles (F, 3) of all meshes of a `trimesh.Scene`, each transformed to its place."""
    import trimesh

    nodes, triangles, first = [np.zeros((0, 3))], [np.zeros((0, 3), dtype=np.int64)], 0
    order = {name: k for k, name in enumerate(scene.geometry)}  # as in the file; the scene's graph has another order
    for name in sorted(scene.graph.nodes_geometry, key=lambda name: order[scene.graph[name][1]]):
        place, geometry = scene.graph[name]
        mesh = scene.geometry[geometry]
        if not isinstance(mesh, trimesh.Trimesh):
            if not only_triangles:
                continue
            raise InputError(
                f"{path}: expected triangles only, got {geometry!r}, a {type(mesh).__name__} (points or lines)"
            )
        x = np.asarray(mesh.vertices, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != 3:
            raise InputError(f"{path}: expected nodes of three coordinates, got numbers of shape {x.shape}")
        faces = np.asarray(mesh.faces, dtype=np.int64).reshape(-1, 3)  # without faces trimesh returns shape (0,)
        if not np.array_equal(place, np.eye(4)):  # a product with the identity would still round
            x = x @ place[:3, :3].T + place[:3, 3]
            if np.linalg.det(place[:3, :3]) < 0:
                faces = faces[:, ::-1]  # a reflection reverses the winding
        nodes.append(x)
        triangles.append(faces + first)
        first += len(x)
    return np.concatenate(nodes), np.concatenate(triangles)


def _refuse_missing(
    path: Path, said_nodes: int | None, said_faces: int | None, nodes: np.ndarray, triangles: np.ndarray
) -> None:
    """Refuse a file that was read incompletely: without nodes or faces that it declares, or nodes that triangles name.

    Parameters
    ----------
    said_nodes, said_faces : the numbers that the file declares; None where it does not.
    """
    if said_nodes is not None and said_nodes != len(nodes):
        raise InputError(f"{path}: the file says it has {said_nodes} nodes, {len(nodes)} could be read")
    if said_faces is not None and said_faces > len(triangles):  # a polygon gives more than one triangle
        raise InputError(f"{path}: the file says it has {said_faces} faces, only {len(triangles)} could be read")
    if not len(triangles):
        raise InputError(f"{path}: the file holds no triangles; expected a triangle mesh")
    if missing := missing_node(len(nodes), triangles, namer("triangle", triangles), 0):
        raise InputError(f"{path}: {missing[1]}")


def _said_counts(suffix: str, content: bytes) -> tuple[int | None, int | None]:
    """Return the numbers of nodes and faces that the file itself declares or lists; None where it does not tell."""
    if suffix == ".obj":
        keys = [line[:1] for line in content.splitlines()]
        return keys.count(b"v"), keys.count(b"f")
    if suffix == ".ply":
        counts = _ply_elements(content)
        return counts.get("vertex", 0), counts.get("face", 0)
    if suffix == ".off":
        words = re.sub(rb"#.*", b"", content).split()
        return int(words[1]), int(words[2])
    if suffix == ".stl":
        binary = len(content) >= 84 and len(content) == 84 + 50 * int.from_bytes(content[80:84], "little")
        return None, None if binary else len(re.findall(rb"\bfacet\s+normal\b", content, re.IGNORECASE))
    return None, None


def _ply_elements(content: bytes) -> dict[str, int]:
    """Return how many elements of each name the header of a ply file declares."""
    header = content.split(b"end_header")[0].decode("latin-1")
    return {name: int(n) for name, n in re.findall(r"^element[ \t]+(\w+)[ \t]+(\d+)", header, re.MULTILINE)}


def _refuse_concave_polygons(path: Path, nodes: np.ndarray, triangles: np.ndarray) -> None:
    """Refuse polygons of which trimesh made triangles that lie on one another.

    It cuts each polygon into a fan from its first corner, which is right for convex ones only: p0 p1 p2, p0 p2 p3, ...;
    of a quadrangle the triangles are p0 p1 p2 and p2 p3 p0. A cut is therefore the third side of a triangle and the
    first side of the next one, or in a quadrangle the third side of both. Where the polygon is concave, the normals of
    two triangles at a cut point in opposite directions. Sides of two polygons may look like a cut, too, as where a
    prism's walls begin at the last side of its bottom, but seldom meet at so sharp an angle.
    """
    x = nodes[triangles]
    normals = np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    sides = triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)
    walked, back = sides @ [len(nodes), 1], sides @ [1, len(nodes)]
    order = np.argsort(walked, kind="stable")
    other = order[np.minimum(np.searchsorted(walked[order], back), len(order) - 1)]
    side = np.arange(len(sides))
    cut = (walked[other] == back) & (side % 3 == 2) & ((other == side + 1) | (other % 3 == 2))
    against = np.flatnonzero(cut & ((normals[side // 3] * normals[other // 3]).sum(axis=1) < OPPOSITE))
    if len(against):
        a, b = sides[against[0]]
        raise InputError(
            f"{path}: the triangles at the edge between nodes {a} and {b} (counted from 0) lie on one another, as "
            "those that a concave polygon is cut into from its first corner on: triangulate the mesh in the program "
            "that wrote the file"
        )

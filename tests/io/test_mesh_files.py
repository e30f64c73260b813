"""Mesh files: round trips through each format, variants of obj, scenes of several meshes, faults by file."""

import json
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import trimesh

from torchdismech import InputError
from torchdismech.geometry.meshes import hemisphere, rectangle
from torchdismech.io.meshes import WRITE_SUFFIXES, read_mesh, write_mesh
from torchdismech.io.scene import read_geometry
from torchdismech.io.schema.robot import Robot

SQUARE = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=np.float64)
HALVES = np.array([[0, 1, 2], [0, 2, 3]])
# Nodes of these formats keep their digits; the others hold 24 bits.
EXACT = {".obj", ".off"}


def single(nodes: np.ndarray) -> np.ndarray:
    """Return the nodes rounded to single precision."""
    return nodes.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("suffix", WRITE_SUFFIXES)
@pytest.mark.parametrize("shape", ["plate", "bell"])
def test_shells_come_back_as_they_were_written(tmp_path, suffix, shape):
    """Read the same triangles, in their order and winding, at the same places; write one file only."""
    mesh = rectangle(0.1, 0.06, 0.01, "random", seed=3) if shape == "plate" else hemisphere(0.05, 0.01)
    path = tmp_path / f"shell{suffix}"
    write_mesh(path, mesh.nodes, mesh.triangles)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    geometry = read_mesh(path)
    assert geometry.nodes.dtype == np.float64 and geometry.triangles.dtype == np.int64
    assert geometry.rod_edges.shape == (0, 2) and geometry.rod_edges.dtype == np.int64
    assert geometry.nodes.shape == mesh.nodes.shape and geometry.triangles.shape == mesh.triangles.shape
    if suffix == ".stl":  # knows places only: nodes are numbered as they appear
        assert np.array_equal(geometry.nodes[geometry.triangles], single(mesh.nodes)[mesh.triangles])
    else:
        assert np.array_equal(geometry.triangles, mesh.triangles)
        if suffix in EXACT:  # 17 digits after the point
            assert np.allclose(geometry.nodes, mesh.nodes, rtol=0, atol=2e-17)
        else:
            assert np.array_equal(geometry.nodes, single(mesh.nodes))


def test_names_may_be_in_capitals_and_text(tmp_path):
    """Read a suffix in capitals and a path given as text."""
    path = tmp_path / "SHELL.OBJ"
    write_mesh(str(path), SQUARE, HALVES)
    assert np.array_equal(read_mesh(str(path)).triangles, HALVES)


OBJ_VERTICES = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\n"
# All of them are the square in two halves, its nodes in this order.
OBJ_VARIANTS = {
    "plain": OBJ_VERTICES + "f 1 2 3\nf 1 3 4\n",
    "texture and normals": OBJ_VERTICES
    + "vt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\nvn 0 0 1\nvn 1 0 0\nf 1/1/1 2/2/1 3/3/1\nf 1/4/2 3/2/2 4/1/2\n",
    "normals that differ": OBJ_VERTICES + "vn 0 0 1\nvn 1 0 0\nf 1//1 2//1 3//1\nf 1//2 3//2 4//2\n",
    "materials": "mtllib none.mtl\n" + OBJ_VERTICES + "usemtl red\nf 1 2 3\nusemtl blue\nf 1 3 4\n",
    "groups and objects": "o a\n" + OBJ_VERTICES + "g one\ns 1\nf 1 2 3\no b\ng two\nf 1 3 4\n",
    "counted backwards": "v 0 0 0\nv 1 0 0\nv 1 1 0\nf -3 -2 -1\nv 0 1 0\nf -4 -2 -1\n",
    "colours and weights": "v 0 0 0 1\nv 1 0 0 .1 .2 .3\nv 1 1 0\nv 0 1 0\nf 1 2 3\nf 1 3 4\n",
    "lines continued": OBJ_VERTICES + "f 1 \\\n2 3\nf 1 3 \\\n 4\n",
    "CRLF, comments, blanks": "# a\r\n" + OBJ_VERTICES.replace("\n", " # b\r\n") + "\r\n  f 1 2 3\r\nf\t1 3  4 # c",
    "faces first": "f 1 2 3\nf 1 3 4\n" + OBJ_VERTICES,
    # of which bytes are ends of lines in Latin-1
    "letters of other languages": "# in Å: l 1 2\ng 全 l\n" + OBJ_VERTICES + "f 1 2 3 # Å f 1 2\nf 1 3 4\n",
    "CR alone": (OBJ_VERTICES + "f 1 2 3\nf 1 3 4\n").replace("\n", "\r"),
    "a vertex continued": "v 0 0 \\\n0\nv\\\n 1 0 0\nv 1 1 0\nv 0 1 0\nf 1 2 3\nf 1 3 4\n",
}


@pytest.mark.parametrize("text", OBJ_VARIANTS.values(), ids=OBJ_VARIANTS.keys())
def test_obj_files_keep_nodes_and_triangles(tmp_path, text):
    """Neither split nor merge nor reorder what normals, textures, materials and groups would split."""
    path = tmp_path / "square.obj"
    path.write_bytes(text.encode())
    geometry = read_mesh(path)
    assert np.array_equal(geometry.nodes, SQUARE) and np.array_equal(geometry.triangles, HALVES)


def test_obj_vertices_that_appear_late_keep_their_place(tmp_path):
    """Keep the order of vertices even if the faces name them in another one, and all digits."""
    path = tmp_path / "square.obj"
    path.write_text("v 0.1234567890123456789 0 0\nv 0 1 0\nv 1 1 0\nv 1 0 0\nf 4 3 1\nf 3 2 1\n")
    geometry = read_mesh(path)
    assert geometry.nodes[0, 0] == 0.1234567890123456789 and geometry.nodes[3].tolist() == [1, 0, 0]
    assert geometry.triangles.tolist() == [[3, 2, 0], [2, 1, 0]]


PENTAGON, ITS_PARTS = [1, 4, 5, 6, 2], [[1, 4, 6, 2], [4, 5, 6]]


def polygons_in(path, nodes, faces):
    """Return the path of a file of polygons, by its suffix obj, off or ply in text."""
    rows = "\n".join(" ".join(map(str, node)) for node in nodes)
    counted = "\n".join(" ".join(map(str, [len(face), *face])) for face in faces)
    text = {
        ".obj": "\n".join(["v " + row for row in rows.splitlines()])
        + "".join("\nf " + " ".join(str(i + 1) for i in face) for face in faces),
        ".off": f"OFF\n{len(nodes)} {len(faces)} 0\n{rows}\n{counted}\n",
        ".ply": f"ply\nformat ascii 1.0\nelement vertex {len(nodes)}\nproperty double x\nproperty double y\n"
        f"property double z\nelement face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
        f"{rows}\n{counted}\n",
    }[path.suffix]
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("suffix", "parts"),
    [(".obj", [PENTAGON]), (".ply", [PENTAGON]), (".obj", ITS_PARTS), (".ply", ITS_PARTS), (".off", ITS_PARTS)],
)
def test_polygons_are_cut_into_triangles(tmp_path, suffix, parts):
    """Keep nodes and area of a square and a pentagon, or a square and a triangle in its place, that share an edge."""
    nodes = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 0], [2.5, 0.5, 0], [2, 1, 0]]
    faces = [[0, 1, 2, 3], *parts]
    geometry = read_mesh(polygons_in(tmp_path / f"polygons{suffix}", nodes, faces))
    x = geometry.nodes[geometry.triangles]
    area = 0.5 * np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])[:, 2]
    assert np.array_equal(geometry.nodes, nodes) and len(area) == 5
    assert (area > 0).all() and abs(area.sum() - 2.25) < 1e-15


@pytest.mark.parametrize("suffix", [".obj", ".off", ".ply"])
@pytest.mark.parametrize("lift", [0, 0.01], ids=["flat", "not quite flat"])
@pytest.mark.parametrize(
    "corners",
    [[[0, 0], [2, 0], [2, 1], [1, 1], [1, 2], [0, 2]], [[0, 0], [1, 0], [0.1, 0.1], [0, 1]]],
    ids=["L", "dart"],
)
def test_concave_polygons_are_cut_rightly_or_refused(tmp_path, suffix, lift, corners):
    """Keep the area, begun at whichever corner, or refuse the polygon: an L had a third more, without a word."""
    nodes = np.array([[*corner, lift * (k == 2)] for k, corner in enumerate(corners)])
    x, y = np.array(corners).T
    area = 0.5 * (x * np.roll(y, -1) - np.roll(x, -1) * y).sum()
    refused = 0
    for first in range(len(corners)):
        path = polygons_in(tmp_path / f"polygon{suffix}", nodes, [list(np.roll(range(len(corners)), -first))])
        try:
            mesh = read_mesh(path)
        except InputError as error:
            assert "as those that a concave polygon is cut into" in str(error)
            refused += 1
            continue
        a, b, c = np.moveaxis(mesh.nodes[mesh.triangles], 1, 0)
        assert 0.5 * np.abs(np.cross(b - a, c - a)[:, 2]).sum() == pytest.approx(
            area, rel=1e-12
        )  # a few sums in doubles
    assert 0 < refused < len(corners)


@pytest.mark.parametrize("suffix", [".obj", ".off", ".ply"])
def test_sharp_edges_between_polygons_are_no_cuts(tmp_path, suffix):
    """Read a wedge of two quadrangles that meet at 10 degrees, and a flat pyramid of triangles on one."""
    wedge = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0], [0.98, 0, 0.17], [0.98, 1, 0.17]])
    for faces in ([[0, 1, 2, 3], [1, 0, 4, 5]], [[1, 2, 3, 0], [0, 4, 5, 1]], [[2, 3, 0, 1], [5, 1, 0, 4]]):
        assert len(read_mesh(polygons_in(tmp_path / f"wedge{suffix}", wedge, faces)).triangles) == 4
    pyramid = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0], [0.5, 0.5, 0.1]])
    faces = [[0, 1, 2, 3], [0, 4, 1], [1, 4, 2], [2, 4, 3], [3, 4, 0]]
    assert len(read_mesh(polygons_in(tmp_path / f"pyramid{suffix}", pyramid, faces)).triangles) == 6


@pytest.mark.parametrize("top", [0.6, 1.0], ids=["frustum", "prism"])
def test_walls_on_the_last_side_of_a_polygon_are_no_cuts(tmp_path, top):
    """Read a pentagon with walls at right or sharper angles, turned in space; the first begins at its last side."""
    angle = 0.4 * np.pi * np.arange(5)
    ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    walls = [[k, (k + 4) % 5, (k + 4) % 5 + 5, k + 5] for k in range(5)]
    for turn in np.linspace(0.1, 3, 8):
        about_x = np.array([[1, 0, 0], [0, np.cos(turn), -np.sin(turn)], [0, np.sin(turn), np.cos(turn)]])
        nodes = np.concatenate([ring, [top, top, 1] * ring + [0, 0, 1]]) @ about_x.T
        path = polygons_in(tmp_path / "walls.obj", nodes, [[0, 1, 2, 3, 4], *walls])
        assert len(read_mesh(path).triangles) == 13


def test_nodes_of_no_triangle_are_called_so(tmp_path):
    """Name them as what they are also in a format whose nodes may be apart by noise."""
    mesh = trimesh.Trimesh(np.concatenate([SQUARE, [[2, 0, 0], [3, 0, 0]]]), HALVES, process=False)
    mesh.export(tmp_path / "spare.glb")
    with pytest.raises(InputError, match="2 of 6 nodes belong to no triangle: node 4, 5"):
        read_mesh(tmp_path / "spare.glb")


def test_stl_text_is_read_and_its_nodes_merged(tmp_path):
    """Read a text stl, merge nodes at exactly the same place (-0 is 0), and refuse those that noise keeps apart."""
    mesh = rectangle(0.1, 0.06, 0.02)
    path = tmp_path / "plate.stl"
    path.write_text(trimesh.Trimesh(mesh.nodes, mesh.triangles, process=False).export(file_type="stl_ascii"))
    geometry = read_mesh(path)
    assert len(geometry.nodes) == len(mesh.nodes)
    assert np.array_equal(geometry.nodes[geometry.triangles], mesh.nodes[mesh.triangles])
    path.write_text(stl_text([SQUARE[HALVES[0]], np.where(SQUARE == 0, -0.0, SQUARE)[HALVES[1]]]))
    assert len(read_mesh(path).nodes) == 4
    path.write_text(stl_text([SQUARE[HALVES[0]], SQUARE[HALVES[1]] + [1e-12, 0, 0]]))
    with pytest.raises(InputError, match="none of the 2 triangles shares a side with another"):
        read_mesh(path)
    halves = SQUARE[HALVES]
    halves[1][HALVES[1] == HALVES[0][0]] += [1e-12, 0, 0]  # one corner of the two that are shared: the other one holds
    path.write_text(stl_text(list(halves)))
    with pytest.raises(InputError, match="none of the 2 triangles shares a side with another"):
        read_mesh(path)
    corners = mesh.nodes[mesh.triangles]
    corners[0] += [0, 0, 1e-9]
    path.write_text(stl_text(list(corners)))
    with pytest.raises(InputError, match=r"node \d+ is 1e-09 m from node \d+ \(counted from 0\), next to nothing"):
        read_mesh(path)


def stl_text(triangles: list[np.ndarray]) -> str:
    """Return a text stl of triangles (3, 3)."""
    lines = ["solid shell"]
    for corners in triangles:
        vertices = [f"vertex {x!r} {y!r} {z!r}" for x, y, z in corners.tolist()]
        lines += ["facet normal 0 0 0", "outer loop", *vertices, "endloop", "endfacet"]
    return "\n".join([*lines, "endsolid shell", ""])


def test_glb_with_repeated_nodes_is_merged(tmp_path):
    """Join triangles that the format had to separate for their normals."""
    path = tmp_path / "square.glb"
    trimesh.Trimesh(SQUARE[HALVES].reshape(-1, 3), np.arange(6).reshape(2, 3), process=False).export(path)
    geometry = read_mesh(path)
    assert np.array_equal(geometry.nodes, SQUARE) and np.array_equal(geometry.triangles, HALVES)


@pytest.mark.filterwarnings("ignore:.*m across")
def test_scenes_are_placed_and_joined(tmp_path):
    """Move, turn and mirror the meshes of a scene as it says; winding follows a mirror."""
    square = trimesh.Trimesh(SQUARE, HALVES, process=False)
    scene = trimesh.Scene()
    up, mirror = np.eye(4), np.diag([-1.0, 1.0, 1.0, 1.0])
    up[2, 3] = 5
    mirror[0, 3] = -10
    scene.add_geometry(square, node_name="a", geom_name="square")
    scene.add_geometry(square, node_name="b", geom_name="square", transform=up)
    scene.add_geometry(square, node_name="c", geom_name="square", transform=mirror)
    scene.export(tmp_path / "scene.glb")
    geometry = read_mesh(tmp_path / "scene.glb")
    assert geometry.nodes.shape == (12, 3) and geometry.triangles.shape == (6, 3)
    x = geometry.nodes[geometry.triangles]
    normals = 0.5 * np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])
    assert sorted(set(geometry.nodes[:, 2])) == [0, 5] and geometry.nodes[:, 0].min() == -11
    left = x[:, :, 0].max(axis=1) < 0
    assert left.sum() == 2
    # The mirror maps up to up, so the triangles have to be wound anew.
    assert np.array_equal(normals, np.tile([0, 0, 0.5], (6, 1)))


@pytest.mark.filterwarnings("ignore:.*m across")
def test_meshes_of_a_scene_keep_the_order_of_the_file(tmp_path):
    """Join twelve meshes in the order in which they were added."""
    scene = trimesh.Scene()
    for k in range(12):
        scene.add_geometry(trimesh.Trimesh(SQUARE + [2 * k, 0, 0], HALVES, process=False), geom_name=f"part {k}")
    scene.export(tmp_path / "parts.glb")
    geometry = read_mesh(tmp_path / "parts.glb")
    assert geometry.nodes[::4, 0].tolist() == [2 * k for k in range(12)]


@pytest.mark.filterwarnings("ignore:.*m across")
def test_units_and_axes_are_those_of_the_file(tmp_path):
    """Neither scale nor turn, though glTF calls y upward and metres its unit."""
    nodes = np.array([[0, 0, 0], [1000, 0, 0], [0, 2000, 0], [0, 0, 3000]], dtype=np.float64)
    triangles = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2]])
    for suffix in (".glb", ".obj", ".ply"):
        write_mesh(tmp_path / f"corner{suffix}", nodes, triangles)
        assert np.array_equal(read_mesh(tmp_path / f"corner{suffix}").nodes, nodes)


def test_gltf_with_its_buffers_is_read(tmp_path):
    """Read a gltf file that names its data."""
    files = trimesh.Scene(trimesh.Trimesh(SQUARE, HALVES, process=False)).export(file_type="gltf")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = (tmp_path / "model.gltf").rename(tmp_path / "square.gltf")
    geometry = read_mesh(path)
    assert np.array_equal(geometry.nodes, SQUARE) and np.array_equal(geometry.triangles, HALVES)
    for buffer in tmp_path.glob("*.bin"):
        buffer.unlink()
    with pytest.raises(InputError, match="square.gltf: not a readable gltf file"):
        read_mesh(path)


def test_what_a_gltf_file_does_not_have_is_named(tmp_path):
    """Name a corner that there is not, and nodes without a third coordinate: both ended in errors of NumPy."""
    for name, content in trimesh.Trimesh(SQUARE, HALVES, process=False).export(file_type="gltf").items():
        (tmp_path / name).write_bytes(content)
    about = json.loads((tmp_path / "model.gltf").read_text())
    corners = next(entry for entry in about["accessors"] if entry["type"] == "SCALAR")
    buffer = tmp_path / about["buffers"][about["bufferViews"][corners["bufferView"]]["buffer"]]["uri"]
    buffer.write_bytes(struct.pack("<I", 9) + buffer.read_bytes()[4:])
    with pytest.raises(InputError, match=r"model.gltf: triangle 0 \(nodes 9, .*there is no node 9"):
        read_mesh(tmp_path / "model.gltf")
    (tmp_path / "model.gltf").write_text(json.dumps(about).replace("VEC3", "VEC2"))
    with pytest.raises(InputError, match=r"model.gltf: expected nodes of three coordinates, got .* shape \(4, 2\)"):
        read_mesh(tmp_path / "model.gltf")


def test_winding_is_that_of_the_file(tmp_path):
    """Leave mixed winding to the robot, which repairs and reports it; accept several bodies."""
    path = tmp_path / "mixed.obj"
    path.write_text(OBJ_VERTICES + "v 0 0 1\nv 1 0 1\nv 1 1 1\nf 1 2 3\nf 1 4 3\nf 5 6 7\n")
    assert read_mesh(path).triangles.tolist() == [[0, 1, 2], [0, 3, 2], [4, 5, 6]]


def ply(vertices: str, faces: str, n_vertices: int, n_faces: int) -> bytes:
    """Return a text ply file."""
    return (
        f"ply\nformat ascii 1.0\nelement vertex {n_vertices}\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {n_faces}\nproperty list uchar int vertex_indices\nend_header\n{vertices}{faces}"
    ).encode()


CORNERS = "0 0 0\n1 0 0\n1 1 0\n"
BINARY_STL = b" " * 80 + struct.pack("<I", 2) + b"\0" * 60
# name: (file, content, words)
BROKEN = {
    "unknown suffix": ("shell.step", b"x", ["expected a mesh file that ends in .obj, .stl, .ply", "got '.step'"]),
    "no suffix": ("shell", b"x", ["expected a mesh file", "got ''"]),
    "empty": ("shell.obj", b"", ["the file is empty"]),
    "blank": ("shell.stl", b" \n\n", ["the file is empty"]),
    "words": ("shell.obj", b"hello\nworld\n", ["no triangles"]),
    "obj of points": ("shell.obj", OBJ_VERTICES.encode(), ["points"]),
    "obj of a line": ("shell.obj", (OBJ_VERTICES + "f 1 2 3\nl 1 4\n").encode(), [".obj:6: expected a shell of faces"]),
    "obj, two coordinates": ("shell.obj", b"v 0 0\n", [".obj:1: expected three numbers of a vertex, got '0 0'"]),
    "obj, word": ("shell.obj", b"v 0 0 0\nv 0 zero 0\n", [".obj:2: expected three numbers", "'0 zero 0'"]),
    "obj, two corners": ("shell.obj", (OBJ_VERTICES + "f 1 2\n").encode(), [".obj:5: expected three or more vertices"]),
    "obj, corner 0": ("shell.obj", (OBJ_VERTICES + "f 0 1 2\n").encode(), [".obj:5: ", "counted from 1, got '0 1 2'"]),
    "obj, broken corner": ("shell.obj", (OBJ_VERTICES + "f 1 2 3.5\n").encode(), [".obj:5: ", "got '1 2 3.5'"]),
    "obj, too far back": ("shell.obj", (OBJ_VERTICES + "f -1 -2 -5\n").encode(), [".obj:5: the face counts back"]),
    "obj, missing node": (
        "shell.obj",
        (OBJ_VERTICES + "f 1 2 9\n").encode(),
        [".obj:5: there is no vertex 9", "1 to 4"],
    ),
    "obj, unused node": ("shell.obj", (OBJ_VERTICES + "f 1 2 3\n").encode(), ["1 of 4 nodes belong to no triangle"]),
    "obj, not finite": ("shell.obj", b"v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", ["node 0 is not finite"]),
    "obj, cut": (
        "shell.obj",
        (OBJ_VERTICES + "v 0 0 0\nv 1 1 -0\nf 1 2 3\nf 5 6 4\n").encode(),
        ["2 nodes are at the place of another", "node 4 at that of node 0"],
    ),
    "ply, no header": ("shell.ply", b"nothing", ["not a readable ply file"]),
    "ply of points": ("shell.ply", ply(CORNERS, "", 3, 0), ["expected triangles only", "PointCloud"]),
    "ply, missing node": ("shell.ply", ply(CORNERS, "3 0 1 7\n", 3, 1), ["triangle 0 (nodes 0, 1, 7)", "no node 7"]),
    "ply, face is missing": ("shell.ply", ply(CORNERS, "3 0 1 2\n", 3, 2), ["it has 2 faces, only 1 could be read"]),
    "ply, nodes are missing": ("shell.ply", ply(CORNERS, "3 0 1 2\n", 5, 1), ["it has 5 nodes, 4 could be read"]),
    "ply with edges": (
        "shell.ply",
        ply(CORNERS, "3 0 1 2\n0 1\n", 3, 1).replace(
            b"end_header", b"element edge 1\nproperty int vertex1\nproperty int vertex2\nend_header"
        ),
        ["got edges beside them"],
    ),
    "ply, cut off": ("shell.ply", ply(CORNERS[:7], "", 3, 1), ["shell.ply: "]),
    "off, no header": ("shell.off", b"3 1 0\n" + CORNERS.encode() + b"3 0 1 2\n", ["not a readable off file"]),
    "off, nodes are missing": ("shell.off", b"OFF\n9 1 0\n" + CORNERS.encode() + b"3 0 1 2\n", ["shell.off: "]),
    "off, face is missing": ("shell.off", b"OFF\n3 2 0\n" + CORNERS.encode() + b"3 0 1 2\n", ["has 2 faces, only 1"]),
    "off of points": ("shell.off", b"OFF\n3 0 0\n" + CORNERS.encode(), ["no triangles"]),
    "stl, cut off": ("shell.stl", BINARY_STL, ["has 2 triangles, which take 184 bytes, and has 144: it is cut off"]),
    "stl, not text at its end": ("shell.stl", BINARY_STL + b"\x93\xff", ["take 184 bytes, and has 146: it is cut off"]),
    "stl of other bytes": ("shell.stl", bytes(range(128, 256)), []),  # the words are up to what guesses encodings
    "stl of nothing": ("shell.stl", b" " * 79 + b"x" + struct.pack("<I", 0), ["no triangles"]),
    "stl, text cut off": (
        "shell.stl",
        stl_text([SQUARE[HALVES[0]]])[:-25].encode(),
        ["it has 1 faces, only 0 could be read"],
    ),
    "stl, word": (
        "shell.stl",
        stl_text([SQUARE[HALVES[0]]]).replace("1.0 1.0", "1.0 one").encode(),
        ["not a readable stl file"],
    ),
    "stl, no area": ("shell.stl", stl_text([SQUARE[[0, 1, 1]]]).encode(), ["triangle 0 (nodes 0, 1, 1) names"]),
    "glb of garbage": ("shell.glb", b"\x93NUMPY" * 20, ["not a readable glb file"]),
    "gltf of garbage": ("shell.gltf", b"{]", ["not a readable gltf file"]),
    "gltf of nothing": ("shell.gltf", json.dumps({"asset": {"version": "2.0"}}).encode(), ["no triangles"]),
}


@pytest.mark.parametrize(("name", "content", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_are_refused_by_name(tmp_path, name, content, words):
    """Name the file and what is wrong with it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        read_mesh(path)
    message = str(refusal.value)
    assert message.startswith(str(path)) and all(w in message for w in words), message
    assert "ModuleNotFoundError" not in message, message


def test_every_way_to_cut_a_file_is_refused(tmp_path):
    """Refuse each format when its last part is missing."""
    mesh = rectangle(0.1, 0.06, 0.02)
    for suffix in WRITE_SUFFIXES:
        path = tmp_path / f"plate{suffix}"
        write_mesh(path, mesh.nodes, mesh.triangles)
        content = path.read_bytes()
        for part in (0.3, 0.6, 0.9):
            path.write_bytes(content[: int(part * len(content))])
            with pytest.raises(InputError, match=f"plate{suffix}"):
                read_mesh(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    """Name a file that is not there, and a folder in its place."""
    with pytest.raises(InputError, match="shell.obj: cannot be read: No such file"):
        read_mesh(tmp_path / "shell.obj")
    (tmp_path / "folder.obj").mkdir()
    with pytest.raises(InputError, match="folder.obj: cannot be read"):
        read_mesh(tmp_path / "folder.obj")


def test_points_beside_triangles_are_refused(tmp_path):
    """Refuse a scene that holds more than triangles."""
    scene = trimesh.Scene([trimesh.Trimesh(SQUARE, HALVES, process=False), trimesh.PointCloud(SQUARE + 3)])
    scene.export(tmp_path / "mixed.glb")
    with pytest.raises(InputError, match="mixed.glb: expected triangles only, got .*PointCloud"):
        read_mesh(tmp_path / "mixed.glb")


def test_what_cannot_be_written_is_refused(tmp_path):
    """Name an unknown suffix, a folder that is not there, triangles that are no shell; write nothing then."""
    with pytest.raises(InputError, match=r"ends in .obj, .stl, .ply, .off, .glb, got '.gltf'"):
        write_mesh(tmp_path / "shell.gltf", SQUARE, HALVES)
    with pytest.raises(InputError, match="shell.obj: cannot be written: No such file"):
        write_mesh(tmp_path / "nowhere" / "shell.obj", SQUARE, HALVES)
    with pytest.raises(InputError, match=r"write_mesh\(shell.obj\): triangle 1 \(nodes 0, 2, 9\): there is no node 9"):
        write_mesh(tmp_path / "shell.obj", SQUARE, [[0, 1, 2], [0, 2, 9]])
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize("scale", [0, -1e-3, np.nan, np.inf, "1e-3", None])
def test_a_scale_that_is_none(tmp_path, scale):
    """Zero, numbers below it and NaN were taken: one place, a mirrored mesh, no places at all."""
    write_mesh(tmp_path / "square.obj", SQUARE, HALVES)
    with pytest.raises(InputError, match="square.obj: scale: expected a finite number above 0, got"):
        read_mesh(tmp_path / "square.obj", scale)


def test_millimetres(tmp_path):
    """Read a plate of 120 mm as it stands, with a warning, and in metres, without; scenes say it by robot.scale."""
    mesh = rectangle(120.0, 80.0, 40.0)
    write_mesh(tmp_path / "plate.stl", mesh.nodes, mesh.triangles)
    with pytest.warns(UserWarning, match=r"plate.stl: the mesh is 120 m across.*scale=1e-3"):
        assert np.ptp(read_mesh(tmp_path / "plate.stl").nodes[:, 0]) == 120
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nodes = read_mesh(tmp_path / "plate.stl", scale=1e-3).nodes
        np.testing.assert_allclose(np.ptp(nodes, axis=0), [0.12, 0.08, 0.0])
        robot = Robot(file="plate.stl", scale=1e-3)
        assert np.array_equal(read_geometry(tmp_path / "scene.toml", robot).nodes, nodes)
    rod = Robot(nodes=[[0.0, 0.0, 0.0], [100.0, 0.0, 0.0]], rod_edges=[[0, 1]], scale=1e-3)
    assert np.ptp(read_geometry(tmp_path / "scene.toml", rod).nodes) == 0.1

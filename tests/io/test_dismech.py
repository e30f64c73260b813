"""The DiSMech text format: every variant is read, every fault is named by file and line."""

from pathlib import Path

import numpy as np
import pytest

from torchdismech import Geometry, InputError, read_dismech, write_dismech

INPUTS = Path(__file__).resolve().parents[3] / "shared" / "inputs"
NEEDS_INPUTS = pytest.mark.skipif(
    not INPUTS.is_dir(), reason="DiSMech's own files are not in this repository: ../shared/inputs"
)

# nodes, rod edges, triangles, counted by hand with grep
SIZES = {
    "caterpillar__horizontal_rod_n3.txt": (3, 2, 0),
    "gripping__gripping_rod_n49.txt": (49, 48, 0),
    "knot__input.txt": (301, 300, 0),
    "parachute__hexparachute_n6_python.txt": (188, 66, 216),
    "pneunet__input_straight_horizontal.txt": (51, 50, 0),
    "pneunet__input_straight_horizontal_shorter.txt": (51, 50, 0),
    "rodCantilever__horizontal_rod_n101.txt": (101, 100, 0),
    "rodCantilever__horizontal_rod_n21.txt": (21, 20, 0),
    "rodCantilever__horizontal_rod_n51.txt": (51, 50, 0),
    "rodContact__input_straight_inclined_smaller_n21.txt": (21, 20, 0),
    "shellCantilever__equilateral_mesh_20.txt": (123, 0, 199),
    "shellCantilever__equilateral_mesh_40.txt": (446, 0, 800),
    "squarePlate__random_mesh_4.txt": (29, 0, 40),
    "stingRay__stingray_n10_python.txt": (121, 0, 200),
    "stingRay__stingray_n4_python.txt": (25, 0, 32),
}


@NEEDS_INPUTS
@pytest.mark.parametrize("name", SIZES)
def test_public_files_are_read_whole(name):
    """Find as many nodes, edges and triangles as the file has rows, with indices from 0."""
    geometry = read_dismech(INPUTS / name)
    nodes, edges, triangles = SIZES[name]
    assert geometry.nodes.shape == (nodes, 3) and geometry.nodes.dtype == np.float64
    assert geometry.rod_edges.shape == (edges, 2) and geometry.triangles.shape == (triangles, 3)
    indices = np.concatenate([geometry.rod_edges.ravel(), geometry.triangles.ravel()])
    assert indices.dtype == np.int64 and indices.min() == 0 and indices.max() == nodes - 1


@NEEDS_INPUTS
def test_list_of_public_files_is_complete():
    """Meet no file in the folder that the test above does not read."""
    assert {path.name for path in INPUTS.glob("*.txt")} == set(SIZES)


@NEEDS_INPUTS
def test_numbers_of_a_public_file_are_exact():
    """Read coordinates with all their digits."""
    nodes = read_dismech(INPUTS / "knot__input.txt").nodes
    assert nodes[2].tolist() == [5.545536988999999916e-06, -1.383766142199999993e-01, -2.498588979999999404e-02]


def test_all_ways_to_write_a_file_give_the_same(tmp_path):
    """Read headers in any case and age, comments, blank lines, both separators, exponents, CRLF and a BOM."""
    variants = {
        "plain": "*Nodes\n0,0,0\n1,0,0\n1,2.5,0\n*Edges\n1,2\n2,3\n",
        "old headers": "*rodNodes\n0,0,0\n1,0,0\n1,2.5,0\n*rodEdges\n1,2\n2,3\n",
        "capitals": "*NODES\n0,0,0\n1,0,0\n1,2.5,0\n*eDGES\n1,2\n2,3\n",
        "comments": "# a rod\n\n*Nodes # first\n0,0,0 # origin\n\n1,0,0\n1,2.5,0\n#*Triangles\n*Edges\n1,2\n\n2,3\n\n",
        "blanks": "*Nodes\n 0 0\t0\n  1 0 0 \n1  2.5  0\n*Edges\n1 2\n2\t3\n",
        "both": "*Nodes\n0, 0 , 0\n1 ,0, 0,\n1, 2.5, 0\n*Edges\n1, 2\n2, 3\n",
        "exponents": "*Nodes\n0.,-0,+0e0\n1E0,.0,0\n10.0e-1,25e-1,0\n*Edges\n1,2.0\n2e0,3\n",
        "edges first": "*Edges\n1,2\n2,3\n*Nodes\n0,0,0\n1,0,0\n1,2.5,0\n",
        "crlf": "*Nodes\r\n0,0,0\r\n1,0,0\r\n1,2.5,0\r\n*Edges\r\n1,2\r\n2,3\r\n",
        "mark": "\ufeff*Nodes\n0,0,0\n1,0,0\n1,2.5,0\n*Edges\n1,2\n2,3",
    }
    for name, text in variants.items():
        path = tmp_path / f"{name}.txt"
        path.write_bytes(text.encode())
        geometry = read_dismech(path)
        assert geometry.nodes.tolist() == [[0, 0, 0], [1, 0, 0], [1, 2.5, 0]], name
        assert geometry.rod_edges.tolist() == [[0, 1], [1, 2]], name
        assert geometry.triangles.shape == (0, 3), name


NODES = "*Nodes\n0,0,0\n1,0,0\n1,1,0\n"
# name: (file, line or None, words that say what is wrong)
MALFORMED = {
    "empty": ("", None, "empty"),
    "only comments": ("# nothing\n\n", None, "empty"),
    "no nodes": ("*Edges\n1,2\n", None, "no *Nodes"),
    "nodes without rows": ("*Nodes\n*Edges\n1,2\n", 1, "is empty"),
    "nodes only": (NODES, None, "expected an *Edges"),
    "unknown header": (NODES + "*Edge\n1,2\n", 5, "unknown header '*Edge'"),
    "shell headers of another program": ("*shellNodes\n0,0,0\n", 1, "unknown header '*shellNodes'"),
    "repeated section": (NODES + "*Edges\n1,2\n*Nodes\n0,0,0\n", 7, "second section of nodes"),
    "both kinds of nodes": (NODES + "*rodNodes\n0,0,0\n", 5, "second section of nodes"),
    "data before a header": ("0,0,0\n" + NODES, 1, "data before a header"),
    "two coordinates": ("*Nodes\n0,0\n", 2, "expected 3 numbers in the section of nodes, got 2"),
    "four coordinates": ("*Nodes\n0,0,0,0\n", 2, "expected 3 numbers"),
    "empty field": ("*Nodes\n0,,0\n", 2, "expected a number in the section of nodes, got ''"),
    "word": ("*Nodes\n0,zero,0\n", 2, "got 'zero'"),
    "semicolons": ("*Nodes\n0;0;0\n", 2, "expected 3 numbers"),
    "number of another language": ("*Nodes\n1_0,0,0\n", 2, "got '1_0'"),
    "nan": ("*Nodes\n0,nan,0\n", 2, "finite"),
    "infinite": ("*Nodes\n0,0,-inf\n", 2, "finite"),
    "too large": ("*Nodes\n0,0,1e999\n", 2, "finite"),
    "index zero": (NODES + "*Edges\n0,1\n", 6, "a whole number from 1, got '0'"),
    "negative index": (NODES + "*Edges\n1,-2\n", 6, "a whole number from 1, got '-2'"),
    "broken index": (NODES + "*Edges\n1,1.5\n", 6, "a whole number from 1, got '1.5'"),
    "missing node": (NODES + "*Edges\n1,2\n2,4\n", 7, "there is no node 4; nodes are numbered 1 to 3"),
    "three ends": (NODES + "*Edges\n1,2,3\n", 6, "expected 2 numbers in the section of edges, got 3"),
    "edge to itself": (NODES + "*Edges\n1,2\n2,2\n", 7, "goes from a node to itself"),
    "edge twice": (NODES + "*Edges\n1,2\n2,3\n1,2\n", 8, "was given before as edge 1"),
    "edge twice, reversed": (NODES + "*Edges\n1,2\n2,3\n\n2,1\n", 9, "was given before as edge 1"),
    "no length": ("*Nodes\n0,0,0\n1,0,0\n1,0,0\n*Edges\n1,2\n2,3\n", 7, "zero length"),
    "triangle of two": (NODES + "*Triangles\n1,2\n", 6, "expected 3 numbers in the section of triangles"),
    "triangle, missing node": (NODES + "*Triangles\n1,2,9\n", 6, "there is no node 9"),
    "triangle, node twice": (NODES + "*Triangles\n1,2,2\n", 6, "names a node twice"),
    "triangle twice": (NODES + "*Triangles\n1,2,3\n2,3,1\n", 7, "was given before as triangle 1 (nodes 1, 2, 3)"),
    "triangle twice, turned": (NODES + "*Triangles\n1,2,3\n\n3,2,1\n", 8, "was given before as triangle 1"),
    "triangle without area": ("*Nodes\n0,0,0\n1,0,0\n2,0,0\n*Triangles\n1,2,3\n", 6, "has no area"),
    "binary": (b"\x93NUMPY\xff\xfe", None, "not a text file"),
}


@pytest.mark.parametrize(("content", "line", "words"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_files_are_refused_by_line(tmp_path, content, line, words):
    """Name the file, the line and what was expected there."""
    path = tmp_path / "arm.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as refusal:
        read_dismech(path)
    message = str(refusal.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: ") and words in message, message


def test_missing_files_and_folders_are_refused(tmp_path):
    """Name a file that is not there, and a folder in its place."""
    with pytest.raises(InputError, match="arm.txt: cannot be read"):
        read_dismech(tmp_path / "arm.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_dismech(tmp_path)


def test_what_is_written_is_read(tmp_path):
    """Read back all digits of nodes, edges and triangles; leave out what there is none of."""
    random = np.random.default_rng(0)
    nodes = random.normal(size=(5, 3))
    both = Geometry(nodes, np.array([[3, 4]]), np.array([[0, 1, 2], [2, 1, 3]]))
    rods = Geometry(nodes[:2], np.array([[0, 1]]), np.zeros((0, 3), dtype=np.int64))
    for geometry in (both, rods):
        write_dismech(tmp_path / "robot.txt", geometry)
        found = read_dismech(tmp_path / "robot.txt")
        for name in ("nodes", "rod_edges", "triangles"):
            assert np.array_equal(getattr(found, name), getattr(geometry, name))
    assert "Triangles" not in (tmp_path / "robot.txt").read_text()

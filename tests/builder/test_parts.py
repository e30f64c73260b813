"""Warnings of parts that go through each other and are not joined."""

import re
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from torchdismech import Circle, Material, RobotBuilder, meshes
from torchdismech.cli import app

RADII = torch.tensor([[2e-3], [1e-3]], dtype=torch.float64)  # m, of two robots
MATERIAL = Material(1e6, 1000.0)


def crossing(height: float, middle: bool = False) -> RobotBuilder:
    """Return two rods that cross at this height above each other [m], in the middle of edges or of nodes."""
    builder = RobotBuilder()
    along = np.linspace(-0.1, 0.1, 6 if middle else 5)[:, None]
    builder.add_rod(along * [1, 0, 0], Circle(RADII), MATERIAL, name="bridge")
    builder.add_rod(along * [0, 1, 0] + [0, 0, height], Circle(3e-3), MATERIAL)
    return builder


def messages(builder: RobotBuilder) -> list[str]:
    """Return what is warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        builder.finalize()
    return [str(each.message) for each in said]


@pytest.mark.parametrize(("height", "middle"), [(1e-6, False), (0.0, True), (0.9e-3, True)])
def test_rods_that_go_through_each_other_are_warned_of(height, middle):
    """Name the two parts once, with their nodes, where axes come nearer than the thinner rod is thick."""
    (said,) = messages(crossing(height, middle))
    last = 6 if middle else 5
    assert f"part0 ('bridge', {last} nodes from 0 on) and part1 ({last} nodes from {last} on) go through" in said
    near = [int(k) for k in re.search(r"near nodes (\d+) and (\d+)", said).groups()]
    assert near[0] in (1, 2) and near[1] in (last + 1, last + 2)


def test_what_is_joined_or_lies_apart_is_not():
    """Say nothing of rods with a node in common, of ropes that lie on each other, and of one part alone."""
    assert messages(crossing(0.0)) == []
    # robots differ: in the second one the rod is 1 mm thick, which is what counts
    assert messages(crossing(1.1e-3, True)) == [] and messages(crossing(5e-3)) == []


def test_rods_that_end_on_a_triangle_are_warned_of():
    """Find the end of a rod between the nodes of a shell; say nothing where it is at a node."""
    sheet = meshes.rectangle(0.1, 0.1, 0.05)
    for place, count in ((sheet.nodes[sheet.triangles[3]].mean(0), 1), (sheet.nodes[sheet.triangles[3][0]], 0)):
        builder = RobotBuilder()
        builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, MATERIAL, name="sheet")
        builder.add_rod(np.linspace(place, place + [0, 0, 0.1], 4), Circle(1e-3), MATERIAL, name="mast")
        said = messages(builder)
        assert len(said) == count and all("'sheet'" in each and "'mast'" in each for each in said)


def test_the_warning_can_be_silenced():
    """Do as the message says."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "robot: .* not joined")
        crossing(0.0, True).finalize()


def test_check_lists_the_parts(tmp_path):
    """Print which parts no edge joins, by name, and how many more there are."""
    nodes = [[0.01 * k, 0.1 * row, 0.0] for row in range(8) for k in range(2)]
    edges = [[2 * row, 2 * row + 1] for row in range(8)]
    scene = tmp_path / "scene.toml"
    scene.write_text(
        f"[robot]\nnodes = {nodes}\nrod_edges = {edges}\n[rod]\nname = 'rope'\n"
        "section = {shape = 'circle', radius = 1e-3}\nyoungs = 1e6\ndensity = 1000.0\n"
        "[simulation]\ndt = 0.01\nduration = 0.1\n"
    )
    printed = CliRunner().invoke(app, ["check", str(scene)]).stdout
    line = re.search(r"^bodies +(.*)$", printed, flags=re.MULTILINE)[1]
    assert line.startswith("8 that no edge joins: part0 ('rope', 2 nodes from 0 on), part1 ('rope', 2 nodes from 2 on)")
    assert line.endswith(", and 2 more")

"""`torchdismech follow`: the table on the screen, the file, and what is refused."""

import csv
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command_line import printed, refuse_other_files
from torchdismech import follow
from torchdismech.io.following import POINTS, scene_paths
from torchdismech.io.scene import load_scene

ANGLES = [math.radians(-30 + 6 * k) for k in range(11)]
NODES = [[round(math.sin(a), 12), 0.0, round(math.cos(a), 12)] for a in ANGLES]
SCENE = f"""
[robot]
nodes = {NODES}
rod_edges = {[[k, k + 1] for k in range(10)]}
planar = true
[rod]
section = {{shape = "circle", radius = 0.01}}
youngs = 1e7
density = 1000.0
[[clamp]]
nodes = [0, 10]
[[point_force]]
nodes = [5]
force = [0, 0, -10.0]
[simulation]
SIMULATION
[batch]
size = 5
[batch.randomize]
"rod.youngs" = {{uniform = [1e7, 2e7]}}
"""
SIMULATIONS = {"in time": "dt = 0.01\nduration = 0.1", "static": 'integrator = "static"'}


@pytest.fixture(params=SIMULATIONS)
def scene(tmp_path, request) -> Path:
    """Return the path of a scene of arches that snap through under their load, in time or static."""
    path = tmp_path / "scene.toml"
    path.write_text(SCENE.replace("SIMULATION", SIMULATIONS[request.param]))
    return path


called = partial(printed, "follow")


def test_prints_where_paths_turn(scene):
    """Show four robots' first limit points as `follow` has them; write nothing."""
    before = set(scene.parent.iterdir())
    lines = called(scene, "--steps", 40).splitlines()
    setup = load_scene(scene).build("cpu")
    path = follow(setup.model, setup.state, steps=40)
    assert lines[0].split("  ")[0] == "robot" and "turns at" in lines[0]
    for robot in range(4):
        limits = path.limits(robot)
        assert len(limits) and f"{limits[0].item():.5g}" in lines[1 + robot]
    assert "1 more robots" in lines[5]
    assert set(scene.parent.iterdir()) == before


TWISTED = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]]
rod_edges = [[0, 1], [1, 2]]
[rod]
section = {shape = "circle", radius = 0.005}
youngs = 1e6
density = 1000.0
[[clamp]]
nodes = [0]
direction = "rest"
[[clamp]]
nodes = [2]
direction = "rest"
[[move]]
nodes = [2]
rotation = {axis = [1, 0, 0], center = [0, 0, 0], rate = 20.0}
stop = 0.1
[[move]]
nodes = [2]
rotation = {axis = [1, 0, 0], center = [0, 0, 0], rate = 20.0}
start = 0.1
[simulation]
dt = 0.01
duration = 0.3
"""


def test_clamps_that_have_turned_by_half_a_turn_are_refused(tmp_path):
    """Turn a clamp by less, as the scene does by then; say by how much it has turned, in all moves, and what to do."""
    path = tmp_path / "twisted.toml"
    path.write_text(TWISTED)
    said = called(path, "--steps", 1, status=2)
    assert (
        "clamp.1 of robot 0 has turned by 6 rad at 0.3 s: expected less than half a turn" in said and "--time" in said
    )
    assert "there" in called(path, "--length", 1, "--time", 0.15)
    scene = load_scene(path)
    reached = scene_paths(scene, scene.build("cpu"), 1.0, 100, 1.0, 0.15).states[-1]
    assert reached.twist[0, 3].item() == pytest.approx(3.0, rel=1e-12)  # of the second clamp: rounding


def test_writes_a_table(scene):
    """Write the points of all robots with all digits; replace the file only if asked to, and no other file."""
    out = scene.parent / "path.csv"
    assert f"wrote {out}" in called(scene, "--steps", 6, "--out", out)
    with out.open() as file:
        header, *rows = csv.reader(file)
    assert header == POINTS and len(rows) == 5 * 7
    setup = load_scene(scene).build("cpu")
    path = follow(setup.model, setup.state, steps=6)
    found = np.array([[float(row[2]), float(row[9])] for row in rows]).reshape(5, 7, 2)
    crown = np.stack([state.positions[:, 5, 2].numpy() for state in path.states])
    assert {row[6] for row in rows} == {"5"}  # the crown moves the most
    assert np.array_equal(found, np.stack([path.load_factor.numpy(), crown], axis=-1).swapaxes(0, 1))
    called(scene, "--steps", 6, "--out", out, "--overwrite", "--node", 2)
    assert ",2," in out.read_text().splitlines()[1]
    refuse_other_files(called, scene, out, "table of points")


def test_loads_are_those_of_a_time(tmp_path):
    """Take the scene's end, or the time that is given: a force that begins late does nothing before."""
    path = tmp_path / "scene.toml"
    late = SCENE.replace("-10.0]", "-10.0]\nstart = 0.05").replace("SIMULATION", SIMULATIONS["in time"])
    path.write_text(late)
    assert called(path, "--steps", 3) != called(path, "--steps", 3, "--time", 0.0)
    assert called(path, "--steps", 3) == called(path, "--steps", 3, "--time", 0.07)


def test_refuses(scene, tmp_path):
    """Name the argument, and a node that is not there or is of no use."""
    assert "follow.length" in called(scene, "--length", 2, status=2)
    assert "--time: expected a finite number of seconds from 0 on, got -5" in called(scene, "--time", -5, status=2)
    assert "pass that, too" in called(scene, "--node", 1, status=2)
    out = tmp_path / "path.csv"
    assert "a node from 0 to 10, got 11" in called(scene, "--node", 11, "--out", out, status=2)
    assert not out.exists()


def test_a_path_that_cannot_go_on_fails(scene, monkeypatch):
    """Say which, where and why, with exit status 3."""

    def passed(candidates, after):
        return after.positions[:, 5, 2] < torch.tensor([0.99, -1, -1, -1, -1])

    monkeypatch.setattr("torchdismech.integrate.candidates.ContactCandidates.passed", passed)
    floor = '[[obstacle]]\nshape = "plane"\npoint = [0, 0, 0]\nnormal = [0, 0, 1]\nstiffness = 100.0\n'
    scene.write_text(scene.read_text() + floor)
    said = called(scene, "--steps", 60, status=3)
    assert "robot 0: its path ends at the load factor" in said and "passed_through" in said and "robot 1:" not in said


def test_a_rod_that_may_turn_about_its_axis_is_told_what_holds_it(tmp_path):
    """Say that a hinged rod in space is free, and which key of its clamps keeps it from turning."""
    path = tmp_path / "scene.toml"
    path.write_text(SCENE.replace("planar = true", "").replace("SIMULATION", SIMULATIONS["static"]))
    said = called(path, status=3)
    assert "robot 0: its path has no start: singular" in said
    assert 'a rod whose clamps hold nodes alone may turn about its own axis: give one direction="rest"' in said

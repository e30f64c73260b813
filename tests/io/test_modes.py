"""`torchdismech modes`: the table on the screen, the file, and what is refused."""

import csv
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests import scenes
from tests.cli.command_line import printed, refuse_other_files
from torchdismech.integrate.equilibria import settling
from torchdismech.io.modes import HEADER

SCENE = (
    scenes.rod(4, youngs=1e7)
    + """
[[clamp]]
nodes = [0]
direction = "rest"
[environment]
gravity = [0, 0, -1.0]
mass_damping = 0.5
[simulation]
SIMULATION
[batch]
size = 6
[batch.randomize]
"rod.youngs" = {uniform = [1e7, 3e7]}
"""
)
SIMULATIONS = {"in time": "dt = 0.01\nduration = 0.1", "static": 'integrator = "static"\nload_steps = 2'}


@pytest.fixture(params=SIMULATIONS)
def scene(tmp_path, request) -> Path:
    """Return the path of a scene, in time or static."""
    path = tmp_path / "scene.toml"
    path.write_text(SCENE.replace("SIMULATION", SIMULATIONS[request.param]))
    return path


called = partial(printed, "modes")


def test_prints_modes_and_writes_nothing(scene):
    """Show the first four robots' modes, bending in pairs; leave the folder as it was."""
    before = set(scene.parent.iterdir())
    lines = called(scene, "--count", 3, "--settle").splitlines()
    assert lines[0].split("  ")[0] == "robot" and "frequency [Hz]" in lines[0]
    rows = [line.split() for line in lines[1:13]]
    assert [row[:2] for row in rows] == [[str(r), str(m)] for r in range(4) for m in range(3)]
    assert "2 more robots" in lines[13] and "not balanced" in lines[14]
    assert float(lines[14].split()[-2]) < 1e-7  # N, settled to the tolerance
    first, second = float(rows[0][2]), float(rows[1][2])
    assert 1 < first <= second < 1.01 * first  # in two planes, one of them bent a little by the weight
    assert float(rows[0][3]) == pytest.approx(0.5 / (4 * math.pi * first), rel=1e-3)  # five digits are printed
    assert rows[0][5:7] == ["node", "4"]
    assert set(scene.parent.iterdir()) == before


def test_writes_a_table(scene):
    """Write all robots with all digits; replace the file only if asked to, and no other file."""
    out = scene.parent / "modes.csv"
    said = called(scene, "--count", 2, "--out", out)
    assert f"wrote {out}" in said
    with out.open() as file:
        header, *rows = csv.reader(file)
    assert header == HEADER and len(rows) == 12
    frequency = np.array([float(row[2]) for row in rows])
    assert (frequency > 0).all() and len(set(frequency[::2])) == 6
    called(scene, "--out", out, "--overwrite")
    refuse_other_files(called, scene, out, "table of modes")


def test_starts_where_the_scene_does(scene):
    """Say that the start of a scene in time is no equilibrium; settle a static one by itself."""
    unbalanced = float(called(scene).splitlines()[-1].split()[-2])
    static = "static" in scene.read_text()
    assert (unbalanced < 1e-7) if static else (unbalanced > 1e-2)


def test_refuses_more_modes_than_there_are(scene):
    """Have 16 free dofs: four nodes and the angles of four edges."""
    assert "from 1 to 16" in called(scene, "--count", 17, status=2)


def test_what_does_not_settle_fails(tmp_path, monkeypatch):
    """End with status 3 where no equilibrium is found."""
    monkeypatch.setattr(settling, "MAX_STEPS", 0)
    path = tmp_path / "scene.toml"
    simulation = SIMULATIONS["static"] + "\nmax_iterations = 1"
    path.write_text(SCENE.replace("SIMULATION", simulation).replace("-1.0]", "-300.0]"))
    assert "max_iterations" in called(path, status=3)


def test_rigid_motions_do_not_grow(tmp_path):
    """Print the growth rate 0 of what is free to move, without a sign."""
    path = tmp_path / "free.toml"
    text = scenes.rod(4, youngs=1e7).replace("[robot]", "[robot]\nplanar = true")
    path.write_text(text + "[simulation]\ndt = 0.01\nduration = 0.1\n")
    rows = [line.split() for line in called(path, "--count", 3).splitlines()[1:4]]
    assert [row[4] for row in rows] == ["0", "0", "0"]

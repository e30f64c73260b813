"""Malformed scenes: the file itself, its tables and keys, the code and the files that it names."""

import pytest
from typer.testing import CliRunner

from tests.io.refusals import assert_refused, refused
from tests.io.scene_texts import FILES, rod, scene_text
from torchdismech.cli import app
from torchdismech.io.scene import load_scene

MALFORMED = {
    # the file itself
    "not toml": ("[robot\nfile = 1", "not TOML", "line 1"),
    "not text": (b"\xff\xfe\x00", "not a text file"),
    "empty": ("", "robot: missing"),
    "config of a fit": ('name = "one"\n[data]\n[robot]\n[[stages]]\n', "is the config of a fit: expected a scene"),
    "table twice": ("[robot]\n[robot]\n", "not TOML"),
    "integer of 5000 digits": (f"a = {'9' * 5000}", "an integer has too many digits; expected numbers within 64 bits"),
    "integer of 4000 digits": (scene_text(batch=f"seed = {'9' * 4000}"), "batch.seed: expected less than"),
    "float of 4000 digits": (scene_text(rod=rod(youngs="9" * 4000)), "rod.youngs: expected a", "got 9999", "..."),
    "deep lists": ("a = " + "[" * 5000 + "]" * 5000, "tables or lists are nested more than 20 deep"),
    "deep tables": ("robot" + ".a" * 1000 + " = 1", "tables or lists are nested more than 20 deep"),
    "key without end": ("a" * 100_000 + " = 1", "aaa ... aaa", "unknown key"),
    "key that steers a terminal": ('"\\u001b[2J" = 1', "\\x1b[2J: unknown key"),
    "text without end": (scene_text(robot=f'file = "{"a" * 100_000}"'), "robot.file: expected text of at most 1000"),
    "name that no disk takes": (scene_text(robot=f'file = "{"a" * 900}"'), "robot.file: cannot be read: ", "too long"),
    # tables and keys
    "no simulation": (scene_text(simulation=None), "simulation: missing"),
    "no rod": (scene_text(rod=None), "rod: rod edge 0 (nodes [0, 1]) belongs to no [[rod]] table"),
    "unknown table": (scene_text(enviroment="viscosity = 0.1"), "enviroment: unknown key", "'environment'"),
    "misspelt key": (scene_text(rod=rod(youngs=None, yougns="1e6")), "rod.yougns: unknown key", "'youngs'"),
    "unknown key in a section": (
        scene_text(rod=rod(section='{shape = "circle", radius = 1e-3, width = 1e-3}')),
        "rod.section.width: unknown key; expected one of shape, radius",
    ),
    "table instead of a number": (scene_text(simulation="dt = {}\nduration = 0.1"), "simulation.dt", "got {}"),
    "number instead of a table": ("robot = 1\n", "robot:", "got 1"),
    "one table for several": (
        scene_text(clamp=None) + "[clamp]\nnodes = [0]\n",
        "clamp: expected a list of tables: write [[clamp]] in place of [clamp]",
    ),
    "key of another table": (
        scene_text(gravity="earth = 9.81"),
        "gravity: unknown key; did you mean environment.gravity?",
    ),
    "table as a key of the one before": (
        scene_text(simulation="dt = 1e-2\nduration = 0.1\nobstacle = [3]"),
        "simulation.obstacle: unknown key; obstacle is a table of its own, [[obstacle]]; expected one of integrator",
    ),
    "law left out": (
        scene_text(membrane="shear = 1.0"),
        "membrane.law: missing; expected 'neo_hookean' or 'mooney_rivlin' (the material)",
    ),
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)


def test_good_scene_is_accepted(folder):
    """Accept the scene that all cases start from, so that each is refused for its own fault."""
    path = folder / "scene.toml"
    path.write_text(scene_text())
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output


def test_missing_scene_is_refused(tmp_path):
    """Name a scene file that is not there."""
    assert "nowhere.toml: cannot be read" in refused(tmp_path / "nowhere.toml")


def test_all_faults_are_named_at_once(folder):
    """Name two faults in two lines."""
    path = folder / "scene.toml"
    path.write_text(scene_text(rod=rod(youngs="-1.0", density="0.0")))
    lines = refused(path).strip().splitlines()
    assert len(lines) == 2 and "rod.youngs" in lines[0] and "rod.density" in lines[1]


def test_code_runs_only_when_allowed(folder):
    """Refuse a Python file without --allow-code, and with it name what is wrong in it."""
    path = folder / "scene.toml"
    for name, words in {
        "raises.py:act": "actuation.python: {}raises.py does not run: RuntimeError in line 1: no",
        "nothing.py:act": "actuation.python: {}nothing.py has no 'act' that can be called",
        "absent.py:act": "actuation.python: no such file: {}absent.py",
    }.items():
        path.write_text(scene_text(actuation=f'python = "{name}"'))
        command = ["simulate", str(path), "--out", str(folder / "run.h5"), "--no-progress"]
        result = CliRunner().invoke(app, command)
        there = (folder / name.partition(":")[0]).exists()
        assert result.exit_code == 2 and ("pass --allow-code" in result.stderr) == there
        result = CliRunner().invoke(app, [*command, "--allow-code"])
        assert result.exit_code == 2 and words.format(f"{folder}/") in result.stderr, result.output


FUNCTIONS = {
    "None": ("act of {}act.py has to return a Control, such as control.replace(...), got NoneType",),
    "time": ("act of {}act.py has to return a Control, such as control.replace(...), got Tensor",),
    "control.replace(natural_twist=0.0)": (
        "act of {}act.py raised InputError in line 2: Control.natural_twist: expected a tensor",
        "got float",
    ),
    "control.replace(natural_twist=time)": ("act of {}act.py returned what does not fit the robot", "shape (1, 2)"),
    "1 / 0": ("act of {}act.py raised ZeroDivisionError in line 2: division by zero",),
}


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_what_a_function_may_not_return_is_refused(folder, tmp_path, expression):
    """Name file and function, and what came, in one sentence."""
    path = folder / "scene.toml"
    (folder / "act.py").write_text(f"def act(time, model, control):\n    return {expression}\n")
    path.write_text(scene_text(actuation='python = "act.py:act"'))
    command = ["simulate", str(path), "--out", str(tmp_path / "run.h5"), "--no-progress", "--allow-code"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {path}: actuation.python: "), result.output
    assert len(result.stderr.splitlines()) == 1
    for words in FUNCTIONS[expression]:
        assert words.format(f"{folder}/") in result.stderr


def test_byte_order_mark_is_accepted(folder):
    """Read a scene as editors on Windows write it."""
    path = folder / "scene.toml"
    path.write_bytes(b"\xef\xbb\xbf" + scene_text().encode())
    assert load_scene(path).text == scene_text()


@pytest.mark.parametrize("link", [False, True], ids=["named", "by a link"])
def test_files_outside_of_the_folder_are_not_shown(tmp_path, link):
    """Read a file from elsewhere, but quote nothing of it where it is not what was expected."""
    (tmp_path / "secret.txt").write_text("*Nodes\n0,0,0\npassword\n")
    inside = tmp_path / "scenes"
    inside.mkdir()
    name = "secret.txt" if link else "../secret.txt"
    if link:
        (inside / name).symlink_to(tmp_path / "secret.txt")
    path = inside / "scene.toml"
    path.write_text(scene_text(robot=f'file = "{name}"'))
    said = refused(path)
    assert f"robot.file: line 3 of {inside}/{name} is not what was expected there; it lies outside" in said
    path.write_text(scene_text(actuation=f'natural_twist = "{name}"'))
    assert "password" not in said + refused(path)
    (tmp_path / "secret.txt").write_text(FILES["arm.txt"])
    path.write_text(scene_text(robot=f'file = "{name}"'))
    assert len(load_scene(path).geometry.nodes) == 3

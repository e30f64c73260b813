"""The command line around runs: the demo, programs that it starts, what it says of itself."""

import subprocess
import sys

import h5py
import pytest

from tests.cli.command_line import call
from torchdismech import Trajectory, __version__
from torchdismech.io.demo import FILES, copied_scene, refuse_changed


def empty_trajectory(path):
    """Write a file that has the parts of a trajectory, with nothing in them."""
    with h5py.File(path, "w") as file:
        for name in ("time", "step", "positions", "state", "topology"):
            file.create_group(name)


def test_the_demo_leaves_a_scene_and_a_run(tmp_path):
    """Leave a scene to change, the run of 64 robots and a picture."""
    folder = tmp_path / "demo"
    said = call("demo", "--out", folder, "--steps", 1, "--device", "cpu").output
    assert {*FILES, "demo.h5", "demo.png"} <= {path.name for path in folder.iterdir()}
    assert Trajectory.load(folder / "demo.h5").batch == 64 and "next:" in said


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_the_demo_never_replaces_a_scene_that_was_changed(tmp_path, name, options):
    """Refuse the folder before anything in it is written, whatever is to be replaced, and say how to run the scene."""
    empty_trajectory(tmp_path / "demo.h5")
    (tmp_path / name).write_bytes(b"# mine \xff\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = call("demo", "--out", tmp_path, "--steps", 1, *options, status=2).stderr
    assert f"{name} is there already, changed" in said and f"simulate {tmp_path / FILES[0]}" in " ".join(said.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_demo_runs_again_in_its_folder(tmp_path):
    """Replace the run where it is asked for, as the scene was not changed."""
    for options in ([], ["--overwrite"]):
        call("demo", "--out", tmp_path, "--steps", 1, "--device", "cpu", *options)
    assert refuse_changed(tmp_path) is None and copied_scene(tmp_path) == tmp_path / FILES[0]


def test_a_second_demo_is_told_how_to_go_on(tmp_path):
    """Refuse to replace the run of the first, in words that hold for the demo: it has no --resume."""
    empty_trajectory(tmp_path / "demo.h5")
    said = call("demo", "--out", tmp_path, status=2).stderr
    assert "--overwrite" in said and "--resume" not in said
    assert not (tmp_path / FILES[0]).exists()


def test_a_demo_that_cannot_be_written_is_refused(tmp_path):
    """Say in one sentence that a file is in the place of the folder."""
    (tmp_path / "demo").write_text("a file")
    assert "name another folder" in call("demo", "--out", tmp_path / "demo", status=2).stderr


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_programs_answer_for_themselves(command):
    """Hand options through, --help among them."""
    assert f"{command} [OPTIONS]" in call(command, "--help").output


def test_refusals_of_a_program_come_through(tmp_path):
    """End with the program's own sentence and exit status."""
    assert "error:" in call("train", tmp_path / "missing.toml", status=2).stderr


def test_a_missing_program_is_named(monkeypatch):
    """Say what is missing where training/ is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "training is not installed" in call("train", "fit.toml", status=2).stderr


def test_a_missing_package_is_named(monkeypatch):
    """Say which extra brings what a program needs."""

    def without(**_):
        raise ModuleNotFoundError(name="safetensors")

    monkeypatch.setattr("training.fit.app", without)
    assert "torchdismech[train]" in call("train", "fit.toml", status=2).stderr


def test_the_version_says_what_runs_here():
    """Name version, torch, device, compiler and solvers."""
    said = call("--version").output
    assert __version__ in said
    assert all(word in said for word in ("torch ", "device", "compiler", "banded"))


def test_warnings_are_one_line():
    """Print a warning by its words, without the file and the line of Python that gave it."""
    code = "import warnings\nfrom torchdismech.cli.ending import refusing\nrefusing(lambda: warnings.warn('words'))()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "warning: words\n"


def test_help_imports_nothing_heavy():
    """Answer --help without torch, and without rich's tables: that is what takes long."""
    code = (
        "import sys\nfrom torchdismech.cli import app\n"
        "try:\n    app(['--help'])\nfinally:\n    assert not {'torch', 'numpy', 'rich.markdown'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "simulate" in done.stdout, done.stderr

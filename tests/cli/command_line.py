"""The command line as the tests call it."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from typer.testing import CliRunner

from tests import scenes
from torchdismech.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]


CPU = torch.device("cpu")


SCENE = (
    scenes.falling(4, 0.25)
    + """\
[batch]
size = 3
[batch.randomize]
"rod.youngs" = {uniform = [1e6, 3e6]}
[output]
every = 10
"""
)


def call(*arguments, status: int = 0):
    """Return what a command printed, after checking its exit status."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def printed(command: str, *arguments, status: int = 0) -> str:
    """Return what a command printed on the CPU, after a look at its exit status."""
    return call(command, *arguments, "--device", "cpu", status=status).output


def refuse_other_files(called: Callable[..., str], scene: Path, out: Path, table: str) -> None:
    """Look whether a command refuses at once to write its table over another file, or where there is no place.

    `called` is the command, which has written its table, as messages call it, to `out`.
    """
    assert "pass --overwrite" in called(scene, "--out", out, status=2)
    out.write_text("my notes")
    assert f"no {table}" in called(scene, "--out", out, "--overwrite", status=2)
    assert "is the scene" in called(scene, "--out", scene, "--overwrite", status=2)
    missing, folder = scene.parent / "nowhere", scene.parent
    said = called(scene, "--out", missing / "table.csv", status=2)
    assert f"there is no folder {missing}" in said and "load factor" not in said and "frequency" not in said
    assert "is a folder" in called(scene, "--out", folder, status=2)
    assert out.read_text() == "my notes"


def simulate(scene, out, *arguments, status: int = 0):
    """Simulate without a progress bar on the CPU and return what was printed."""
    return call("simulate", scene, "--out", out, "--no-progress", "--device", "cpu", *arguments, status=status)


def assert_same_file(a: Path, b: Path) -> None:
    """Compare all datasets of two trajectory files bitwise."""

    def datasets(path):
        found = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, item: found.update({name: item[()]}) if hasattr(item, "dtype") else None)
        return found

    ours, theirs = datasets(a), datasets(b)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), name

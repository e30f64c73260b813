"""The command line as the tests call it."""

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

"""Rollouts in several processes: the file of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchdismech import Trajectory

ROOT = Path(__file__).parents[1]
SCENE = """
[robot]
nodes = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.3, 0.0, 0.0]]
rod_edges = [[0, 1], [1, 2], [2, 3]]
[rod]
section = {shape = "circle", radius = 5e-3}
youngs = 1e6
density = 1000.0
[[clamp]]
nodes = [0, 1]
[environment]
gravity = [0.0, 0.0, -9.81]
[simulation]
dt = 0.01
duration = 0.06
force_tolerance = 1e-12
relative_tolerance = 1e-12
[batch]
size = 5
seed = 3
[batch.randomize]
"rod.youngs" = { uniform = [8e5, 2e6] }
[output]
every = 2
"""


@pytest.fixture
def scene(tmp_path) -> Path:
    """Return a scene of five robots of unlike stiffness."""
    path = tmp_path / "scene.toml"
    path.write_text(SCENE)
    return path


def simulate(count: int, *arguments: str, expected: int = 0) -> str:
    """Run the command line in so many processes and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m"]
    if count > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    command += ["torchdismech", "simulate", *arguments, "--no-progress"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode == 0) == (expected == 0), done.stderr[-5000:]
    return done.stdout + done.stderr


def compared(found: Trajectory, expected: Trajectory) -> None:
    """Hold a sharded run against that of one process."""
    assert torch.equal(found.step, expected.step)
    assert torch.equal(found.status, expected.status)
    assert found.batch == expected.batch == 5
    for name, values in expected.randomized.items():
        assert torch.equal(found.randomized[name], values)
    # kernels round alike whatever the batch, but the linear solver may be another for few robots: residuals of 1e-12 N
    # at stiffnesses of 1 N/m and more
    assert torch.allclose(found.positions, expected.positions, rtol=0, atol=1e-11)
    assert torch.allclose(found.state.q, expected.state.q, rtol=0, atol=1e-11)
    for name, values in expected.energies.items():
        assert torch.allclose(found.energies[name], values, rtol=1e-8, atol=1e-14)


def test_shared_robots_give_the_file_of_one_process(scene, tmp_path):
    """Divide five robots among one, two and three processes; stop after four steps and go on with another number."""
    one, two, three = (tmp_path / f"{k}.h5" for k in (1, 2, 3))
    simulate(1, str(scene), "--out", str(one))
    said = simulate(2, str(scene), "--shard", "--out", str(two))
    assert said.count("5 robots") <= 1  # one process reports
    compared(Trajectory.load(two), Trajectory.load(one))
    simulate(3, str(scene), "--shard", "--out", str(three), "--steps", "4")
    simulate(2, str(scene), "--shard", "--out", str(three), "--resume", str(three))
    compared(Trajectory.load(three), Trajectory.load(one))


@pytest.mark.parametrize(
    ("count", "arguments", "message"),
    [
        (1, ["--shard"], "torchrun --nproc-per-node 2"),
        (2, [], "would write one file"),
        (6, ["--shard"], "6 processes for 5 robots"),
    ],
)
def test_wrong_numbers_of_processes_are_refused(scene, tmp_path, count, arguments, message):
    """Say what to do."""
    assert message in simulate(count, str(scene), "--out", str(tmp_path / "x.h5"), *arguments, expected=2)

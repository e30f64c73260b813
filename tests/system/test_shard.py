"""Rollouts in several processes: the file of one, whatever happens."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests import scenes
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
from torchdismech.cli.options import device_of
from torchdismech.cli.runs import check_divisible
from torchdismech.io.scene import Setup, load_scene
from torchdismech.runs.rollout import rollout
from torchdismech.system.processes import Processes
from torchdismech.trajectory import OwnerMark

ROOT = Path(__file__).parents[2]
# Robot 4 falls so fast that three iterations are too few for its third step.
SCENE = (
    scenes.falling(3, 0.06, "[0.0, 0.0, -9.81]")
    + """\
max_iterations = 3
force_tolerance = 1e-12
relative_tolerance = 1e-12
[batch]
size = 5
seed = 3
[batch.randomize]
"rod.youngs" = { uniform = [8e5, 2e6] }
"environment.gravity.2" = { values = [-9.81, -9.81, -9.81, -9.81, -40.0] }
[output]
every = 2
"""
)
SUMMARY = "4 of 5 robots"
# The command line with something wrong in the second step of process 1.
FAULTY = """
import os, signal
from torchdismech.cli import app
from torchdismech.integrate import ImplicitEuler

step, taken = ImplicitEuler.step, []

def faulty(self, *arguments):
    taken.append(1)
    if os.environ["RANK"] == "1" and len(taken) == 2:
        {fault}
    return step(self, *arguments)

ImplicitEuler.step = faulty
app()
"""


@pytest.fixture
def one(scene, tmp_path) -> Path:
    """Return the file that one process writes."""
    path = tmp_path / "one.h5"
    result = alone(scene, path)
    assert result.exit_code == 3 and SUMMARY in result.output
    return path


def alone(scene: Path, out: Path, *flags: str):
    """Simulate in this process and return how it ended."""
    return CliRunner().invoke(app, ["simulate", str(scene), "--out", str(out), "--no-progress", *flags])


def start(count: int, scene: Path, out: Path, *flags: str, program: tuple[str, ...] = ("-m", "torchdismech")):
    """Start a simulation in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return subprocess.Popen(
        [*launcher, *program, "simulate", str(scene), "--shard", "--out", str(out), "--no-progress", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background ignores interrupts, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def shared(*arguments, good: bool = False, **options) -> tuple[str, str]:
    """Simulate in several processes and return what they printed; torchrun's own words go to stderr."""
    process = start(*arguments, **options)
    try:
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert (process.returncode == 0) == good, err
    return out, err


def assert_same(found: Path, expected: Path) -> None:
    """Hold the file of several processes against that of one."""
    with h5py.File(found) as ours, h5py.File(expected) as theirs:
        names: list[str] = []
        theirs.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert "state/q" in names and dict(ours.attrs) == dict(theirs.attrs)
        for name in names:
            if "checksum" in name:  # of numbers that are the same up to rounding
                continue
            assert_close(torch.as_tensor(ours[name][()]), torch.as_tensor(theirs[name][()]), name)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    """Hold numbers against those of another batch size: integers and draws are the same, others up to rounding.

    How a sum over elements is grouped depends on the number of robots (the sparse product and the sum of energies take
    robots in groups). That is 1e-16 m in a step here, and divided by dt twice 1e-12 m/s^2 in accelerations.
    """
    if name.startswith("randomized") or not theirs.is_floating_point():
        assert torch.equal(ours, theirs), name
    else:
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-11), name


# ---- the same numbers --------------------------------------------------------------------------------------------


def test_shared_robots_give_the_file_of_one_process(scene, one, tmp_path):
    """Divide five robots among two processes: the same file and report, said once."""
    two = tmp_path / "two.h5"
    said, errors = shared(2, scene, two)
    assert said.count(SUMMARY) == 1 and errors.count("robot 4 failed in one of the steps 3 to 4") == 1
    assert_same(two, one)


@pytest.mark.slow
def test_another_number_of_processes_goes_on(scene, one, tmp_path):
    """Stop one process after four steps, go on with three: the file of one process without a stop."""
    three = tmp_path / "three.h5"
    assert alone(scene, three, "--steps", "4").exit_code == 3
    shared(3, scene, three, "--resume", str(three))
    assert_same(three, one)


def run(setup: Setup) -> Trajectory:
    """Return the trajectory of a scene in this process."""
    return rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule, every=setup.every)


def star(arms: int, nodes: int) -> str:
    """Return nodes and edges of a star in the x-y plane."""
    points, edges = [[0.0, 0.0, 0.0]], []
    for arm in range(arms):
        angle = 2 * math.pi * arm / arms
        for k in range(nodes):
            edges.append([len(points) - 1 if k else 0, len(points)])
            points.append([0.05 * (k + 1) * math.cos(angle), 0.05 * (k + 1) * math.sin(angle), 0.0])
    return f"nodes = {points}\nrod_edges = {edges}"


def test_motion_does_not_depend_on_the_part(scene):
    """Cut 40 robots where one alone would take another solver and another way to sum up forces."""
    text = re.sub(r"nodes = \[\[.*\nrod_edges.*", star(20, 8), SCENE, count=1)
    scene.write_text(re.sub('"environment.gravity.2".*', "", text).replace("max_iterations = 3", ""))
    assert load_scene(scene, {"batch.size": 1}).build().model.solvers.of(1).name == "banded"
    scene_of_all = load_scene(scene, {"batch.size": 40})
    whole, first, rest = (s.build() for s in (scene_of_all, *map(scene_of_all.part, (slice(0, 1), slice(1, 40)))))
    assert [s.model.solvers.of(s.state.batch).name for s in (whole, first, rest)] == ["multifrontal"] * 3
    expected, found = run(whole), [run(first), run(rest)]
    assert not expected.failed.any()
    for name in ("positions", "velocities", "twist", "iterations", "residual"):
        assert_close(torch.cat([getattr(t, name) for t in found], 1), getattr(expected, name), name)


@pytest.mark.parametrize(("count", "world"), [(5, 2), (7, 3), (8, 8), (100, 7)])
def test_robots_are_divided_evenly(count, world):
    """Give each robot to one process, in order, and no process two more than another."""
    shares = [list(range(count))[Processes(rank, world).own(count)] for rank in range(world)]
    assert sum(shares, []) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# ---- what is refused, and bad ends -------------------------------------------------------------------------------


def test_wrong_numbers_of_processes_are_refused(scene, tmp_path, monkeypatch):
    """Say what to do without torchrun, with torchrun and no --shard, and with more processes than robots."""
    out = tmp_path / "x.h5"
    result = alone(scene, out, "--shard")
    assert result.exit_code == 2 and "torchrun --nproc-per-node 2 -m torchdismech simulate" in result.stderr
    scene.write_text(re.sub('"environment.gravity.2".*', "", SCENE))
    _, errors = shared(2, scene, out, "--batch", "1")
    assert errors.count("error: --shard: 2 processes for 1 robots: start at most 1") == 1  # refused by all, said by one
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = alone(scene, out)
    assert result.exit_code == 2 and "2 processes would write one file" in result.stderr
    assert not out.exists()


def test_file_that_another_run_writes_is_refused(scene, tmp_path):
    """Start two processes on a file that a run has: both end, one says why, and the file is left alone."""
    out = tmp_path / "out.h5"
    with OwnerMark(out):
        _, errors = shared(2, scene, out)
    assert errors.count(f"error: {out}: process {os.getpid()} on ") == 1
    assert not out.exists()


def test_function_that_may_tell_robots_apart_is_refused(scene, tmp_path):
    """Do not hand a function for five robots a part of them."""
    (tmp_path / "act.py").write_text("")
    scene.write_text(SCENE + '[actuation]\npython = "act.py:act"\n')
    with pytest.raises(InputError, match="actuation.python names may tell robots apart: use one process"):
        check_divisible(load_scene(scene), Processes(0, 2))


def test_each_process_has_a_device_of_its_own(monkeypatch):
    """Give the processes of a machine its CUDA devices in order, and refuse more processes than devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("auto") == "cuda:1" and device_of("cpu") == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="process 2 has no CUDA device of its own, there are 2"):
        device_of("cuda")


def test_first_failure_stops_all(scene, tmp_path):
    """Throw at the failure of a robot of the second process: message and file are those of one process."""
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    thrown = alone(scene, one, "--throw")
    assert thrown.exit_code == 3 and thrown.stderr.startswith("failed: steps 3 to 4: robot 4: max_iterations")
    said, errors = shared(2, scene, two, "--throw")
    assert said == "" and errors.count(thrown.stderr) == 1 and "Traceback" not in errors.split(thrown.stderr)[0]
    assert Trajectory.load(two).step.tolist() == [0, 2]
    assert_same(two, one)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ArithmeticError('no luck')", "failed: process 1: ArithmeticError: no luck"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "Signal 9", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), signal.SIGINT)", "go on with --resume", marks=pytest.mark.slow),
    ],
    ids=["error", "death", "interrupt"],
)
def test_trouble_in_one_process_ends_all(scene, one, tmp_path, fault, said):
    """End all processes soon, with a word on why; the file holds what was done, and a run can go on from it."""
    program, out = tmp_path / "faulty.py", tmp_path / "out.h5"
    program.write_text(FAULTY.format(fault=fault))
    began = time.monotonic()
    printed, errors = shared(2, scene, out, program=(str(program),))
    assert time.monotonic() - began < 150  # some 5 s on an idle machine; processes wait for each other up to a day
    assert errors.count(said) == 1 and SUMMARY not in printed
    if said == "Signal 9" and not out.exists():
        return  # torchrun ended the first process, too, before its first frame was on the disk
    assert Trajectory.load(out).step.tolist() == [0]
    assert alone(scene, out, "--resume", str(out)).exit_code == 3
    assert_same(out, one)


def children(process: int) -> list[int]:
    """Return the processes that a process started; none where the system does not say."""
    table = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in table.read_text().split()] if table.exists() else []


def runs(process: int) -> bool:
    """Return whether a process is still there, as more than an entry that nobody has read yet."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_stops_all(scene, tmp_path, number):
    """Interrupt torchrun: the processes stop at the same frame, one says how to go on, and none is left."""
    scene.write_text(SCENE.replace("duration = 0.06", "duration = 60.0"))
    out = tmp_path / "out.h5"
    process = start(2, scene, out, "--no-compile")
    try:
        deadline = time.monotonic() + 120
        while not (out.exists() and len(Trajectory.load(out).time) > 3) and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = children(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode != 0 and errors.count(f"go on with --resume {out}") == 1
    assert len(workers) in (0, 2) and not any(map(runs, workers))
    with h5py.File(out) as file:
        assert 3 < len(file["time"]) < 3000 and np.isfinite(file["time"][()]).all()

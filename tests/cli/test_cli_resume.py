"""Runs that are resumed: after failures, signals, kills, with something changed; files that are not written over."""

import dataclasses
import errno
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

from tests.cli.command_line import CPU, REPOSITORY, SCENE, assert_same_file, call, simulate
from tests.trajectory.writers import Ending
from torchdismech import State, Trajectory, compilation
from torchdismech.integrate.recorded import recording
from torchdismech.io.scene import load_scene
from torchdismech.io.scene.assemble import build_model
from torchdismech.robot.state import tensor_fields
from torchdismech.trajectory import OwnerMark, partial

# ---- resume ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", ["implicit_euler", "implicit_midpoint", "newmark"])
@pytest.mark.parametrize("first", [10, 20], ids=["stopped at 10", "stopped at 20"])
def test_resumed_run_is_bitwise_the_uninterrupted_one(scene, tmp_path, integrator, first):
    """Stop a run and go on: every number of the file is that of a run in one go."""
    scene.write_text(SCENE.replace("dt = 0.01", f'integrator = "{integrator}"\ndt = 0.01'))
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    simulate(scene, whole)
    simulate(scene, parts, "--steps", first)
    printed = call("simulate", scene, "--resume", parts, "--no-progress").stdout
    assert f"for the steps from {first}" in printed
    assert_same_file(whole, parts)


def test_resumed_run_remembers(scene, tmp_path):
    """Go on with the internal variables of the file; refuse a file that has none."""
    law = '[[inelastic]]\nlaw = "dahl"\nEI1 = 1e-3\nEI2 = 1e-3\nlimit = 0.1\n'
    whole, parts, without = (tmp_path / f"{name}.h5" for name in ("whole", "parts", "without"))
    simulate(scene, without, "--steps", 10)
    scene.write_text(SCENE + law)
    simulate(scene, whole)
    simulate(scene, parts, "--steps", 10)
    simulate(scene, parts, "--resume", parts)
    assert float(Trajectory.load(whole).state.internal.abs().max()) > 0.01
    assert_same_file(whole, parts)
    refused = call("simulate", scene, "--resume", without, "--force-resume", status=2)
    assert "has 0 internal variables" in refused.stderr


@pytest.mark.parametrize(("flag", "first"), [([], 10), ([], 20), (["--no-compile"], 20)])
def test_resumed_run_is_compiled_where_one_in_one_go_is(scene, tmp_path, monkeypatch, flag, first):
    """Decide by all steps of the scene, not by those that are left: say so in both runs, or not where it is refused."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(recording, "MAX_NUMBERS", 0)  # these would not be compiled
    # four evaluations a step are expected: 25 steps are enough, 24 are not
    monkeypatch.setattr(compilation, "THRESHOLD", 98 * build_model(load_scene(scene)).compilation.cost.of(3, CPU))
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    said = simulate(scene, whole, *flag).stderr
    assert ("compiling what a step of 3 robots" in said) == (not flag)
    said = simulate(scene, parts, *flag, "--steps", first).stderr
    assert "compiling" not in said
    said = simulate(scene, parts, *flag, "--resume", parts).stderr
    assert ("compiling what a step of 3 robots" in said) == (not flag)
    assert_same_file(whole, parts)


def test_resume_between_stored_frames_comes_back_into_step(scene, tmp_path):
    """Stop after 15 of 25 steps, every 10th stored: the resumed file has all frames of a run in one go, and step 15."""
    whole, parts, resumed = (tmp_path / f"{name}.h5" for name in ("whole", "parts", "resumed"))
    simulate(scene, whole)
    simulate(scene, parts, "--steps", 15)
    simulate(scene, resumed, "--resume", parts)
    a, b = Trajectory.load(whole), Trajectory.load(resumed)
    assert b.step.tolist() == [0, 10, 15, 20, 25]
    same = [0, 1, 3, 4]
    for name in ("time", "positions", "velocities", "twist"):
        assert torch.equal(getattr(a, name), getattr(b, name)[same]), name
    assert all(torch.equal(getattr(a.state, name), getattr(b.state, name)) for name in tensor_fields(State))
    assert Trajectory.load(parts).step.tolist() == [0, 10, 15], "the file that was resumed from has changed"


def test_failed_robots_stay_failed_when_resumed(scene, tmp_path):
    """Resume a run in which a robot failed: as in a run in one go it stays where it was, with its reason."""
    text = SCENE.replace(
        '"rod.youngs" = {uniform = [1e6, 3e6]}', '"environment.gravity.2" = {values = [-9.8, -1e7, -9.8]}'
    )
    scene.write_text(text.replace("duration = 0.25", "duration = 0.25\nmax_iterations = 4"))
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    simulate(scene, whole, status=3)
    simulate(scene, parts, "--steps", 10, status=3)
    call("simulate", scene, "--resume", parts, "--no-progress", status=3)
    assert_same_file(whole, parts)


def started(folder: Path, scene: Path, out: Path, *flags: str) -> subprocess.Popen:
    """Start a real simulation in a process of its own."""
    command = [sys.executable, "-m", "torchdismech", "simulate", str(scene)]
    return subprocess.Popen(
        [*command, "--out", str(out), "--device", "cpu", "--no-progress", *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background ignores interrupts, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def signal_after(process: subprocess.Popen, out: Path, rows: int, number: signal.Signals) -> str:
    """Send a signal once the file has so many rows, and return what the process said."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if out.exists() and len(Trajectory.load(out).time) >= rows:
            process.send_signal(number)
            break
        time.sleep(0.002)
    return process.communicate()[1]


@pytest.mark.slow
def test_killed_run_resumes_to_the_numbers_of_an_uninterrupted_one(scene, tmp_path):
    """Kill a real run with SIGKILL twice, resume each time: the file is bitwise that of a run in one go."""
    scene.write_text(SCENE.replace("every = 10", "every = 1").replace("duration = 0.25", "duration = 2.0"))
    whole, killed = tmp_path / "whole.h5", tmp_path / "killed.h5"
    simulate(scene, whole)
    done = 0
    for _ in range(2):
        process = started(tmp_path, scene, killed, *(["--resume", str(killed)] if done else []))
        errors = signal_after(process, killed, done + 21, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, errors
        partial = Trajectory.load(killed)
        done = len(partial.time) - 1
        assert 20 <= done < 200
        assert torch.equal(partial.positions, Trajectory.load(whole).positions[: done + 1])
    call("simulate", scene, "--resume", killed, "--no-progress", "--device", "cpu")
    assert_same_file(whole, killed)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, "stopped by the keyboard"), (signal.SIGTERM, "stopped by SIGTERM")],
    ids=["SIGINT", "SIGTERM"],
)
def test_run_stopped_by_a_signal_says_how_to_go_on(scene, tmp_path, number, words):
    """Interrupt a run: it leaves a file of the frames so far, says so in one sentence, and has its own exit status."""
    scene.write_text(SCENE.replace("every = 10", "every = 1").replace("duration = 0.25", "duration = 30.0"))
    out = tmp_path / "run.h5"
    process = started(tmp_path, scene, out)
    errors = signal_after(process, out, 5, number)
    assert process.returncode == 128 + number, errors
    done = Trajectory.load(out).state_step
    assert errors == f"{words}: {out} holds {done} of 3000 steps; go on with --resume {out}\n"
    with h5py.File(out) as file:
        assert np.isfinite(file["time"][()]).all() and 5 <= len(file["time"]) < 3000


def test_disk_that_fills_up_stops_a_run_that_can_go_on(scene, tmp_path, monkeypatch):
    """Let a write of the file be the last that the disk takes: exit status 2, a sentence, and frames to go on from."""
    full, whole = tmp_path / "full", tmp_path / "whole.h5"
    out = full / "run.h5"
    full.mkdir()

    def run(path: Path, last_write: int, status: int = 0):
        with monkeypatch.context() as patch:
            patch.setattr(partial, "FileIO", Ending)
            patch.setattr(Ending, "failure", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            patch.setattr(Ending, "left", last_write)
            return simulate(scene, path, "--overwrite", status=status), last_write - Ending.left

    _, writes = run(whole, 10**9)
    for last_write in (1, 60):  # while the file is made
        said = run(out, last_write, status=2)[0].stderr
        assert said == f"error: {out}: cannot be written: No space left on device\n" and os.listdir(full) == []
    for last_write in (writes - 50, writes - 14):  # in a row, and in the last state
        said = run(out, last_write, status=2)[0].stderr
        assert said.startswith(f"error: {out}: cannot be written any further: No space") and said.count("\n") == 1
        assert f"--resume {out} goes on from them" in said and os.listdir(full) == ["run.h5"]
        call("simulate", scene, "--resume", out, "--no-progress", "--device", "cpu")
        assert_same_file(whole, out)


def test_file_that_is_written_is_left_alone(scene, tmp_path):
    """Refuse to simulate into, and to resume, what another run writes."""
    out = tmp_path / "run.h5"
    simulate(scene, out, "--steps", 10)
    before = out.read_bytes()
    with OwnerMark(out):
        assert "writes it already" in simulate(scene, out, "--overwrite", status=2).stderr
        assert "writes it already" in simulate(scene, out, "--resume", out, status=2).stderr
    assert out.read_bytes() == before


def test_what_cannot_be_resumed_is_refused(scene, tmp_path):
    """Refuse to go on with a finished run, with another scene, geometry or batch, and with what is no run."""
    out = tmp_path / "run.h5"
    simulate(scene, out, "--steps", 10)

    def refused(text: str = SCENE, *flags) -> str:
        scene.write_text(text)
        before = out.read_bytes()
        result = call("simulate", scene, "--resume", out, "--no-progress", *flags, status=2)
        assert out.read_bytes() == before and "Traceback" not in result.output
        return result.stderr

    assert "has 10 steps already" in refused(SCENE, "--steps", 10)
    assert "simulation.dt was 0.01 and is 0.005" in refused(SCENE.replace("dt = 0.01", "dt = 0.005"))
    assert "environment.viscosity was None and is 0.1" in refused(SCENE.replace("-9.81]", "-9.81]\nviscosity = 0.1"))
    assert "batch.size was 3 and is 4 by --batch;" in refused(SCENE, "--batch", 4)
    assert "batch.seed was 0 and is 1 by --seed;" in refused(SCENE, "--seed", 1)
    assert "has 10 steps already" in refused(SCENE, "--steps", 10, "--seed", 0)  # as by default
    written_out = SCENE.replace("dt = 0.01\n", "dt = 0.01\nline_search = true\n")
    written_out = written_out.replace("youngs", 'natural = "initial"\nyoungs', 1)
    assert "has 10 steps already" in refused(written_out, "--steps", 10)  # defaults, too
    assert "simulation.line_search was True and is False" in refused(written_out.replace("= true", "= false"))
    assert "output.every was 10 and is 5" in refused(SCENE.replace("every = 10", "every = 5"))
    out.write_text("not a run")
    assert "not a trajectory file" in refused()
    out.unlink()
    assert "no such file" in call("simulate", scene, "--resume", out, status=2).stderr


def test_equilibria_are_not_resumed(scene, tmp_path):
    """Say of an equilibrium that there is no more of it, not that there are steps to be had."""
    scene.write_text(SCENE.replace("dt = 0.01\nduration = 0.25", 'integrator = "static"'))
    out = tmp_path / "run.h5"
    simulate(scene, out)
    said = call("simulate", scene, "--resume", out, "--no-progress", status=2).stderr
    assert "has the equilibrium already: nothing to do; run the scene without --resume" in said and "steps" not in said


def test_runs_of_arms_are_not_resumed_by_scenes(scene, tmp_path):
    """Refuse the run of a pneumatic arm, whose state is no robot's of a scene, also where it is forced."""
    from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
    from torchdismech.runs.rollout import rollout

    arm = PneumaticArm([0.15], [1.0], 0.04, 265.0, 125.0)
    rollout(arm, arm.initial_state(), ArmIntegrator(dt=2e-3), 1).save(tmp_path / "arm.h5")
    refused = call("simulate", scene, "--resume", tmp_path / "arm.h5", "--force-resume", status=2)
    assert "another kind of robot: it does not fit" in refused.stderr


def test_changed_geometry_is_not_resumed(scene, tmp_path):
    """Refuse to go on when the file with the geometry has changed under the same name."""
    geometry = "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,{z}\n*Edges\n1,2\n2,3\n"
    (tmp_path / "arm.txt").write_text(geometry.format(z=0))
    text = re.sub(r"nodes = \[\[.*\nrod_edges.*", 'file = "arm.txt"', SCENE, count=1)
    scene.write_text(text)
    out = tmp_path / "run.h5"
    simulate(scene, out, "--steps", 10)
    (tmp_path / "arm.txt").write_text(geometry.format(z=0.01))
    said = call("simulate", scene, "--resume", out, status=2).stderr
    assert "robot.file (arm.txt) has changed, the nodes have changed" in said


ARM = "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n0.3,0,0\n0.3,0.1,0\n*Edges\n1,2\n2,3\n3,4\n4,5\n"


WAY = "0, 0,0,0\n1, 0,0,0.1\n"


BEND = "def bend(time, model, control):\n    return control\n"


CHANGES = {
    "reversed edge": ("arm.txt", ARM.replace("4,5\n", "5,4\n"), "rod edge 3 had the nodes [3, 4] and has [4, 3]"),
    "rewired": ("arm.txt", ARM.replace("4,5\n", "3,5\n"), "[3, 4] and has [2, 4], the springs have changed"),
    "one edge more": ("arm.txt", ARM + "3,5\n", "there were 4 rod edges and are 5"),
    "table": ("way.csv", WAY.replace("1, 0", "1, 1"), "move.0.file (way.csv) has changed;"),
    "function": ("bend.py", BEND.replace("return", "return  "), "actuation.python (bend.py) has changed;"),
}  # fmt: skip


@pytest.fixture
def arm(scene, tmp_path):
    """Return the file of a part of a run whose geometry and actuation are in files."""
    for name, content in (("arm.txt", ARM), ("way.csv", WAY), ("bend.py", BEND)):
        (tmp_path / name).write_text(content)
    text = re.sub(r"nodes = \[\[.*\nrod_edges.*", 'file = "arm.txt"', SCENE, count=1)
    scene.write_text(text + '[actuation]\npython = "bend.py:bend"\n[[move]]\nnodes = [0]\nfile = "way.csv"\n')
    simulate(scene, tmp_path / "run.h5", "--steps", 10, "--allow-code")
    return tmp_path / "run.h5"


@pytest.mark.parametrize(("file", "content", "words"), CHANGES.values(), ids=CHANGES)
def test_another_robot_or_file_is_not_resumed(scene, tmp_path, arm, file, content, words):
    """Refuse to go on with changed files or another topology, and name what differs."""
    (tmp_path / file).write_text(content)
    before = arm.read_bytes()
    said = call("simulate", scene, "--resume", arm, "--no-progress", "--allow-code", status=2).stderr
    assert "is a run of another robot or other files: " in said and words in said
    assert said.endswith("; --force-resume goes on all the same\n") and arm.read_bytes() == before


def test_changed_scene_is_resumed_where_forced(scene, tmp_path, arm):
    """Go on with a changed table and stiffness if asked to, but not with a state of another size, or other rows."""
    forced = ("simulate", scene, "--resume", arm, "--no-progress", "--allow-code", "--force-resume")
    text = scene.read_text()
    scene.write_text(text + "[floor]\nheight = -1.0\nstiffness = 1.0\n")
    assert "its rows do not fit" in call(*forced, status=2).stderr
    scene.write_text(text)
    (tmp_path / "arm.txt").write_text(ARM + "3,5\n")
    assert "has 19 degrees of freedom, and" in call(*forced, status=2).stderr
    (tmp_path / "arm.txt").write_text(ARM)
    (tmp_path / "way.csv").write_text(WAY.replace("1, 0", "1, 1"))
    scene.write_text(text.replace("density = 1000.0", "density = 1100.0"))
    assert "for the steps from 10" in call(*forced).stdout
    assert Trajectory.load(arm).step.tolist() == [0, 10, 20, 25]
    assert "--force-resume: says how to go on" in call("simulate", scene, "--force-resume", status=2).stderr


def test_file_that_does_not_say_what_its_robot_was_is_not_resumed(scene, arm):
    """Refuse a file of an older version, and one whose attributes are damaged, by one sentence."""
    again = ("simulate", scene, "--resume", arm, "--no-progress", "--allow-code")
    run = Trajectory.load(arm)
    others = {name: text for name, text in run.attributes.items() if name not in ("files", "version", "dtype", "units")}
    for given, words in (
        ({"files": "{"}, "attribute 'files' is damaged"),
        ({"files": "[]"}, "is damaged: expected a table"),
        ({}, "does not say what its files were"),
    ):
        dataclasses.replace(run, attributes=others | given).save(arm)
        assert words in call(*again, status=2).stderr


def test_inputs_are_not_written_over(scene, tmp_path, arm):
    """Refuse --out where it is the scene or a file that it names, also through a link, whatever is asked."""
    (tmp_path / "link.h5").symlink_to(scene)
    names = {"scene.toml": "the scene", "link.h5": "the scene", "arm.txt": "the file of robot.file"}
    names |= {"way.csv": "the file of move.0.file", "bend.py": "the file of actuation.python"}
    for name, what in names.items():
        before = (tmp_path / name).read_bytes()
        said = simulate(scene, tmp_path / name, "--allow-code", "--overwrite", status=2).stderr
        assert f"{name}: is {what} of this very command" in said and (tmp_path / name).read_bytes() == before


def test_other_files_are_not_written_over(scene, tmp_path, arm):
    """Refuse what is no trajectory in any case, and a trajectory unless asked; a resumed run stays in its file."""
    notes, other = tmp_path / "notes.h5", tmp_path / "other.h5"
    notes.write_text("")
    for path in (notes, Path("/dev/null")):
        assert (
            "is there already, and no trajectory"
            in simulate(scene, path, "--allow-code", "--overwrite", status=2).stderr
        )
    other.write_bytes(arm.read_bytes())
    said = simulate(scene, other, "--allow-code", status=2).stderr
    assert "choose another name, go on with its run by --resume, or pass --overwrite" in said
    assert "or pass --overwrite" in simulate(scene, other, "--allow-code", "--resume", arm, status=2).stderr
    assert other.read_bytes() == arm.read_bytes()
    simulate(scene, other, "--allow-code", "--resume", arm, "--overwrite")
    for out in ((), ("--out", arm)):
        again = ("simulate", scene, "--allow-code", "--resume", arm, "--overwrite", *out)
        assert "goes on in its own file" in call(*again, status=2).stderr
    simulate(scene, arm, "--allow-code", "--resume", arm)
    assert_same_file(other, arm)

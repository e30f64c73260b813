"""The command line: simulate, check, plot; resumed runs; exit statuses."""

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
from typer.testing import CliRunner

from tests import scenes
from tests.trajectory.writers import Ending
from torchdismech import State, Trajectory, compilation
from torchdismech.cli import app
from torchdismech.integrate import recording
from torchdismech.io.assemble import build_model
from torchdismech.io.scene import load_scene
from torchdismech.state import tensor_fields
from torchdismech.trajectory import OwnerMark, partial

REPOSITORY = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
SCENE = (
    scenes.rod(4)
    + scenes.CLAMP
    + """
[environment]
gravity = [0, 1.0, -9.81]
[simulation]
dt = 0.01
duration = 0.25
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


def test_simulate_writes_a_trajectory_and_a_summary(scene, tmp_path):
    """Find the frames, the scene and what was drawn in the file, and the table on the screen."""
    out = tmp_path / "run.h5"
    printed = simulate(scene, out).stdout
    with h5py.File(out) as file:
        assert file["time"][()].tolist() == pytest.approx([0, 0.1, 0.2, 0.25])
        assert file["step"][()].tolist() == [0, 10, 20, 25]
        assert file["positions"].shape == (4, 3, 5, 3) and file["velocities"].shape == (4, 3, 5, 3)
        assert file["twist"].shape == (4, 3, 4) and file["newton/status"][()].tolist() == [[0] * 3] * 4
        assert file["newton/iterations"][0].tolist() == [0] * 3 and (file["newton/iterations"][1:] > 0).all()
        assert {"kinetic", "stretch", "bend", "twist"} <= set(file["energy"])
        assert file["randomized/rod.youngs"].shape == (3,) and file.attrs["scene"] == SCENE
        assert file["state/step"][()] == 25
    tip = torch.linalg.vector_norm((p := Trajectory.load(out).positions)[-1, :, -1] - p[0, :, -1], dim=-1)
    assert f"{tip.min():.6g} to {tip.max():.6g} m (node 4)" in printed
    for words in (
        "simulated time",
        "0.25 s in 25 steps",
        "robot-steps/s",
        "Newton iterations",
        "3 of 3 robots",
        str(out),
    ):
        assert words in printed
    rate = float(re.search(r"robot-steps/s\s+([\d,]+)", printed)[1].replace(",", ""))
    wall = float(re.search(r"wall time\s+([\d.]+)", printed)[1])
    assert rate * wall == pytest.approx(75, rel=0.2)  # the time is printed with two digits after the point


def test_flags_take_the_place_of_the_file(scene, tmp_path):
    """Set batch, steps and seed from the command line."""
    out = tmp_path / "run.h5"
    simulate(scene, out, "--batch", 2, "--steps", 4, "--seed", 5, "--max-substeps", 2)
    few = Trajectory.load(out)
    assert few.step.tolist() == [0, 4] and few.batch == 2
    simulate(scene, out, "--steps", 4, "--seed", 5, "--overwrite")
    assert torch.equal(Trajectory.load(out).randomized["rod.youngs"][:2], few.randomized["rod.youngs"])
    simulate(scene, out, "--steps", 4, "--seed", 6, "--overwrite")
    assert not torch.equal(Trajectory.load(out).randomized["rod.youngs"][:2], few.randomized["rod.youngs"])


def test_without_out_the_file_is_named_after_the_scene(scene, tmp_path, monkeypatch):
    """Write scene.h5 into the current folder."""
    monkeypatch.chdir(tmp_path)
    call("simulate", "scene.toml", "--steps", 1, "--no-progress")
    assert (tmp_path / "scene.h5").is_file()


def test_failed_robots_are_named_with_their_reason(scene, tmp_path):
    """Shake one of three robots so hard that its step fails: it is named with step and reason; the others run."""
    text = SCENE.replace(
        '"rod.youngs" = {uniform = [1e6, 3e6]}', '"environment.gravity.2" = {values = [-9.8, -1e7, -9.8]}'
    )
    scene.write_text(
        text.replace("duration = 0.25", "duration = 0.25\nmax_iterations = 4").replace("every = 10", "every = 1")
    )
    out = tmp_path / "run.h5"
    result = simulate(scene, out, status=3)
    assert "2 of 3 robots" in result.stdout
    assert re.search(r"^robot 1 failed in step 1: \w+ \(.+\)$", result.stderr.strip()), result.stderr
    trajectory = Trajectory.load(out)
    assert trajectory.failed.tolist() == [False, True, False] and len(trajectory.time) == 26
    thrown = simulate(scene, out, "--throw", "--overwrite", status=3)
    assert thrown.stderr.startswith("failed: step 1: robot 1:") and "Traceback" not in thrown.output


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


@pytest.mark.parametrize(("flag", "first"), [([], 10), ([], 20), (["--no-compile"], 20)])
def test_resumed_run_is_compiled_where_one_in_one_go_is(scene, tmp_path, monkeypatch, flag, first):
    """Decide by all steps of the scene, not by those that are left: say so in both runs, or not where it is refused."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(recording, "LARGEST", 0)  # these would not be compiled
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
    assert "batch.size was 3 and is 4" in refused(SCENE, "--batch", 4)
    assert "output.every was 10 and is 5" in refused(SCENE.replace("every = 10", "every = 5"))
    out.write_text("not a run")
    assert "not a trajectory file" in refused()
    out.unlink()
    assert "no such file" in call("simulate", scene, "--resume", out, status=2).stderr


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


def test_file_that_does_not_say_what_its_robot_was_is_not_resumed(scene, tmp_path, arm):
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


# ---- what is there already ---------------------------------------------------------------------------------------


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
    simulate(scene, arm, "--allow-code", "--resume", arm)
    assert_same_file(other, arm)


def test_pictures_are_not_written_over(scene, tmp_path):
    """Refuse to draw over the run and over what is no picture, and over a picture unless asked."""
    out, picture = tmp_path / "run.h5", tmp_path / "run.png"
    simulate(scene, out, "--steps", 1)
    out.rename(tmp_path / "odd.png")
    said = call("plot", tmp_path / "odd.png", status=2).stderr
    assert "odd.png: is the run of this very command" in said
    picture.write_text("notes")
    for flags in ([], ["--overwrite"]):
        assert "no picture" in call("plot", tmp_path / "odd.png", "--out", picture, *flags, status=2).stderr
    picture.unlink()
    call("plot", tmp_path / "odd.png", "--out", picture)
    assert "or pass --overwrite" in call("plot", tmp_path / "odd.png", "--out", picture, status=2).stderr
    call("plot", tmp_path / "odd.png", "--out", picture, "--overwrite")


def test_endless_runs_are_refused_unless_insisted(scene, tmp_path):
    """Say what so many steps or robots take, refuse them, and accept them on demand."""
    said = simulate(scene, tmp_path / "x.h5", "--steps", 10**12, status=2).stderr
    assert "simulation.duration: 1000000000000 steps take at least 1,157 days" in said and "--insist" in said
    said = simulate(scene, tmp_path / "x.h5", "--batch", 10**9, status=2).stderr
    assert "batch.size: 1000000000 robots of 5 nodes take at least" in said and "--insist" in said
    scene.write_text(SCENE.replace("duration = 0.25", "duration = 1e10"))
    assert "1000000000000 steps" in call("check", scene, "--insist").stdout


# ---- check, plot and the rest ------------------------------------------------------------------------------------


def test_check_prints_what_will_run(scene):
    """Print sizes, solver, memory and what is drawn, and every spring if asked."""
    printed = call("check", scene, "--device", "cpu").stdout
    lines = dict(re.findall(r"^(\S+(?: \S+)*)  +(.*)$", printed, flags=re.MULTILINE))
    assert lines["nodes"] == "5" and lines["rod edges"] == "4 (rods: 1)" and lines["springs"] == "3"
    assert lines["dofs"] == "19, of which free 12" and lines["robots"].startswith("3, in space, on cpu")
    assert lines["integrator"] == "implicit_euler, 25 steps of 0.01 s"
    assert re.search(r"\w+", lines["solver"]) and re.fullmatch(r"about [\d.]+ KiB .*", lines["memory"])
    assert lines["kernels"] == "eager, after some steps recorded, which is faster than compiled"
    assert lines["drawn"].startswith("rod.youngs from 1.")
    springs = call("check", scene, "--springs").stdout
    assert springs.strip().endswith("0: 0 1 2\n1: 1 2 3\n2: 2 3 4")
    assert "4, in space" in call("check", scene, "--batch", 4).stdout


@pytest.mark.parametrize(
    ("line", "threshold", "largest", "expected"),
    [
        ("", 0.0, 0, "compiled before the first step, as from 0 steps on"),
        ("", 0.0, 4000, "eager, after some steps recorded, which is faster than compiled"),
        ("compile = true", 1e9, 4000, "compiled"),
        ("compile = false", 0.0, 0, "eager"),
    ],
)
def test_check_says_what_is_compiled(scene, monkeypatch, line, threshold, largest, expected):
    """Print what would run, by the scene's setting and its length, without compiling it."""
    monkeypatch.setattr("torchdismech.io.report.THRESHOLD", threshold)
    monkeypatch.setattr(recording, "LARGEST", largest)
    monkeypatch.setattr(torch, "compile", None)
    scene.write_text(SCENE.replace("[simulation]", f"[simulation]\n{line}"))
    assert re.search(rf"^kernels +{expected}$", call("check", scene, "--device", "cpu").stdout, flags=re.MULTILINE)


def test_check_says_why_nothing_is_compiled(scene, monkeypatch):
    """Print the reason where there is no compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(recording, "LARGEST", 0)
    assert re.search(r"^kernels +eager: .*no-such-compiler", call("check", scene).stdout, flags=re.MULTILINE)


def test_check_does_not_run_code(scene, tmp_path):
    """Check a scene with a Python function without touching the file that it names."""
    (tmp_path / "act.py").write_text("raise RuntimeError('was run')")
    scene.write_text(SCENE + '[actuation]\npython = "act.py:act"\n')
    assert re.search(r"over time +act\.py:act \(not run\)", call("check", scene).stdout)
    (tmp_path / "act.py").unlink()
    assert "actuation.python: no such file" in call("check", scene, status=2).stderr


def test_plot_draws_a_picture(scene, tmp_path):
    """Write a PNG beside the run, or where asked, of the robot and node asked for."""
    out = tmp_path / "run.h5"
    simulate(scene, out)
    assert str(tmp_path / "run.png") in call("plot", out).stdout
    call("plot", out, "--node", 2, "--robot", 1, "--out", tmp_path / "other.png")
    for name in ("run.png", "other.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    again = ("plot", out, "--overwrite")
    assert "robot: expected a number 0 to 2" in call(*again, "--robot", 3, status=2).stderr
    assert "node: expected a number 0 to 4" in call(*again, "--node", 5, status=2).stderr
    assert "no such file" in call("plot", tmp_path / "none.h5", status=2).stderr
    assert "ends in .png" in call("plot", out, "--out", tmp_path / "run.bmp2", status=2).stderr


def test_plot_names_the_missing_extra(scene, tmp_path, monkeypatch):
    """Say how to install matplotlib where it is missing."""
    out = tmp_path / "run.h5"
    simulate(scene, out, "--steps", 1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'torchdismech[view]'" in call("plot", out, status=2).stderr


def test_device_is_checked(scene):
    """Refuse an unknown device, and CUDA where there is none."""
    assert "expected auto, cpu or cuda, got 'tpu'" in call("check", scene, "--device", "tpu", status=2).stderr
    if not torch.cuda.is_available():
        assert "no CUDA device" in call("check", scene, "--device", "cuda", status=2).stderr


def test_help_needs_no_run():
    """Print help for the program and each command."""
    assert {"simulate", "check", "plot"} <= set(call("--help").stdout.split())
    for command in ("simulate", "check", "plot"):
        assert "--" in call(command, "--help").stdout


def test_demo_scene_is_good():
    """Accept the demo's scene and run its first steps."""
    demo = REPOSITORY / "torchdismech" / "demo" / "scene.toml"
    printed = call("check", demo).stdout
    assert "64, in space" in printed and "rod.youngs from" in printed

"""The command line: simulate, check, plot; resumed runs; exit statuses."""

import re
import signal
import sys

import h5py
import pytest
import torch

from tests.cli.command_line import REPOSITORY, SCENE, call, simulate
from torchdismech import Trajectory
from torchdismech.integrate.recorded import recording
from torchdismech.native import library
from torchdismech.system import interrupts


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


def test_any_key_of_the_scene_may_be_set(scene, tmp_path):
    """Set numbers, lists, text and tables by --set, in all commands that take a scene."""
    out = tmp_path / "run.h5"
    changes = ["simulation.dt=5e-3", "rod.density = 900", "environment.gravity=[0, 0, 0]", "simulation.integrator=bdf2"]
    changes.append("batch.randomize={}")
    arguments = [argument for change in changes for argument in ("--set", change)]
    simulate(scene, out, *arguments)
    run = Trajectory.load(out)
    assert run.time[-1] == pytest.approx(0.25) and run.step[-1] == 50 and not run.randomized
    assert (run.positions == run.positions[0]).all()  # without gravity it does not fall
    assert "bdf2, 50 steps of 0.005 s" in call("check", scene, *arguments).stdout
    soft, stiff = (
        call("modes", scene, "--settle", "--set", "batch.randomize={}", "--set", f"rod.youngs={youngs}").stdout
        for youngs in (1e6, 4e6)
    )
    assert soft != stiff


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "rod.density"], "--set: expected KEY=VALUE, got 'rod.density'"),
        (["--set", "=3"], "--set: expected KEY=VALUE"),
        (["--set", "rod.young=1e6"], "rod.young: unknown key; did you mean 'youngs'?"),
        (["--set", "rod.density=heavy"], "rod.density: expected a number"),
        (["--set", "rod.density=900\nb=1"], "rod.density: expected a number"),  # no second key by the back door
        (["--set", "rod.youngs=2e6"], "rod.youngs: is given, and [batch.randomize] draws it"),
        (["--set", "rod.0.youngs=2e6"], "rod.0.youngs: is given, and [batch.randomize] draws it"),
        (["--set", "batch.size=2", "--batch", 3], "--batch: --set gives batch.size already: leave one out"),
        (["--set", "rod.density=1", "--set", "rod.density=2"], "--set: --set gives rod.density already"),
        (["--set", "simulation.duration=0.1", "--steps", 4], "simulation.duration: is given, and so is the number"),
    ],
)
def test_keys_that_cannot_be_set_are_refused(scene, tmp_path, arguments, problem):
    """Say what is wrong with a setting; one that something else would hide is not ignored."""
    assert problem in simulate(scene, tmp_path / "run.h5", *arguments, status=2).stderr
    assert not (tmp_path / "run.h5").exists()


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


# ---- what is there already ---------------------------------------------------------------------------------------


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
    photograph = tmp_path / "run.jpg"  # matplotlib could write it, and nothing here would know it again
    assert "ends in .png" in call("plot", tmp_path / "odd.png", "--out", photograph, status=2).stderr
    assert not photograph.exists()


@pytest.mark.parametrize("flags", [[], ["--energies"]])
def test_a_signal_while_a_picture_is_written_leaves_nothing(flags, scene, tmp_path, monkeypatch):
    """Let signals raise while plots are written, so that the folder of a half-written picture is removed."""
    out = tmp_path / "run.h5"
    simulate(scene, out, "--steps", 1)
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(interrupts._process, "asked", None)

    def interrupted(*_, **__):
        interrupts._answer(signal.SIGINT, None)  # ends the process where signals do not raise

    pytest.importorskip("matplotlib")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", interrupted)
    assert interrupts.sentence(signal.SIGINT) in call("plot", out, *flags, status=130).stderr
    assert set(tmp_path.iterdir()) == before


def test_endless_runs_are_refused_unless_insisted(scene, tmp_path):
    """Say what so many steps or robots take, refuse them, and accept them on demand."""
    said = simulate(scene, tmp_path / "x.h5", "--steps", 10**12, status=2).stderr
    assert "simulation.duration: 1000000000000 steps take at least 1,157 days" in said and "--insist" in said
    said = simulate(scene, tmp_path / "x.h5", "--batch", 10**9, status=2).stderr
    assert "batch.size: 1000000000 robots of 5 nodes take at least" in said and "--insist" in said
    scene.write_text(SCENE.replace("duration = 0.25", "duration = 1e10"))
    assert "1000000000000 steps" in call("check", scene, "--insist").stdout


WAVERING = """
from torchdismech import Control
import torch

def made(model, dt):
    return lambda state, control, model: Control(force=torch.zeros(3, 2, dtype=torch.float64))

def act(time, model, control):
    return None
"""


@pytest.mark.parametrize("table", ["[controller]\npython = 'act.py:made'", "[actuation]\npython = 'act.py:act'"])
def test_a_run_that_is_refused_at_its_first_step_leaves_the_file(scene, tmp_path, table):
    """Refuse the first control: an older run stays in its file, and where there was none there is none."""
    (tmp_path / "act.py").write_text(WAVERING)
    out, other = tmp_path / "run.h5", tmp_path / "other.h5"
    simulate(scene, out, "--steps", 1)
    before = out.read_bytes()
    scene.write_text(f"{SCENE}\n{table}\n")
    assert "act.py" in simulate(scene, out, "--overwrite", "--allow-code", status=2).stderr
    assert out.read_bytes() == before
    simulate(scene, other, "--allow-code", status=2)
    assert not other.exists()


# ---- check, plot and the rest ------------------------------------------------------------------------------------


def test_check_prints_what_will_run(scene):
    """Print sizes, solver, memory and what is drawn, and every spring if asked."""
    printed = call("check", scene, "--device", "cpu").stdout
    lines = dict(re.findall(r"^(\S+(?: \S+)*)  +(.*)$", printed, flags=re.MULTILINE))
    assert lines["nodes"] == "5" and lines["rod edges"] == "4 (rods: 1)" and lines["springs"] == "3"
    assert lines["dofs"] == "19, of which free 12" and lines["robots"].startswith("3, in space, on cpu")
    assert lines["clamps"] == "clamp0 (2 nodes: 0, 1)"
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
    monkeypatch.setattr(recording, "MAX_NUMBERS", largest)
    monkeypatch.setattr(torch, "compile", None)
    scene.write_text(SCENE.replace("[simulation]", f"[simulation]\n{line}"))
    assert re.search(rf"^kernels +{expected}$", call("check", scene, "--device", "cpu").stdout, flags=re.MULTILINE)


def test_check_says_that_plain_torch_is_asked_for(scene, monkeypatch):
    """Promise neither recordings nor compiled code."""
    monkeypatch.setattr("torchdismech.io.report.in_plain_torch", lambda: True)
    assert re.search(r"^kernels +plain torch, as TORCHDISMECH_PLAIN asks$", call("check", scene).stdout, re.MULTILINE)


def test_check_says_why_nothing_is_compiled(scene, monkeypatch):
    """Print the reason where there is no compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(recording, "MAX_NUMBERS", 0)
    assert re.search(r"^kernels +eager: .*no-such-compiler", call("check", scene).stdout, flags=re.MULTILINE)


def test_without_compiled_code_check_and_version_say_so(scene, monkeypatch, tmp_path):
    """Say why there is none and what it costs, once, and promise no recorded steps, which need it."""
    monkeypatch.setattr(library, "outcome", None)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = r"no compiled code, and steps on a CPU take up to 80 times as long without it: no C\+\+ compiler is found"
    assert re.search(rf"^compiler +{said}", call("--version").stdout, flags=re.MULTILINE)
    monkeypatch.setattr(library, "outcome", None)
    with pytest.warns(RuntimeWarning, match=f"there is {said}") as warned:
        checked = call("check", scene).stdout
    assert len(warned) == 1
    assert re.search(r"^kernels +eager: no C\+\+ compiler is found", checked, flags=re.MULTILINE)


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
    assert "'auto', 'cpu', 'cuda', got 'tpu'" in call("check", scene, "--device", "tpu", status=2).stderr
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

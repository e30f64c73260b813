"""Signals at many moments of a command: what it says, its exit status, and what it leaves.

`python -m tests.attacks.signals 20` from the repository's root sends SIGINT and SIGTERM at 20 moments each, from the
first line of the program to the last frame, to a simulation, to a resumed one and to a plot, and prints a table.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests import scenes
from torchdismech import Trajectory

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SCENE = (
    scenes.falling(4, 3.0)
    + """\
[batch]
size = 3
[output]
every = 3
"""
)
PATIENCE = 600  # s


def started(folder: Path, *arguments: str) -> subprocess.Popen:
    """Start the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "torchdismech", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background ignores interrupts, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_the_program(process: subprocess.Popen) -> None:
    """Wait until Python has begun to run the program: before that it dies of signals in its own way."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        time.sleep(0.5)
        return
    both = sum(1 << (number - 1) for number in SIGNALS)
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) & both == both:
            return
        time.sleep(0.001)


def stopped(folder: Path, arguments: Sequence[str], number: signal.Signals, delay: float) -> tuple[int, str]:
    """Return the exit status of a command that gets a signal so long after its start, and what it said."""
    process = started(folder, *arguments)
    wait_for_the_program(process)
    time.sleep(delay)
    process.send_signal(number)
    said = process.communicate(timeout=PATIENCE)[1]
    return process.returncode, said


def simulate(out: str, *more: str) -> list[str]:
    """Return the arguments of a simulation."""
    return ["simulate", "scene.toml", "--out", out, "--device", "cpu", "--no-progress", *more]


def fault(folder: Path, number: signal.Signals, status: int, said: str) -> str | None:
    """Return what is wrong with the end of a command, apart from its file; None where nothing is."""
    word = {signal.SIGINT: "stopped by the keyboard: ", signal.SIGTERM: "stopped by SIGTERM: "}[number]
    if status != 128 + number:
        return f"exit status {status}: {said}"
    if not said.startswith(word) or len(said.splitlines()) != 1:
        return f"said {said!r}"
    hidden = [file.name for file in folder.iterdir() if file.name.startswith(".")]
    return f"left {hidden}" if hidden else None


def same(a: Path, b: Path) -> bool:
    """Return whether two trajectories are the same in every bit."""
    x, y = Trajectory.load(a), Trajectory.load(b)
    fields = ("step", "time", "positions", "velocities", "twist", "iterations", "residual", "status")
    pairs = [(getattr(x, name), getattr(y, name)) for name in fields]
    fields = ("q", "velocity", "acceleration", "director", "tangent", "reference_twist", "time")
    pairs += [(getattr(x.state, name), getattr(y.state, name)) for name in fields]
    return all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in pairs)


def attack_on_a_run(folder: Path, number: signal.Signals, delay: float) -> str:
    """Stop a simulation, look at its file and go on with it: return "good", "late" (it had ended), or what is wrong."""
    out = folder / "run.h5"
    out.unlink(missing_ok=True)
    status, said = stopped(folder, simulate("run.h5"), number, delay)
    if status == 0:
        return "late"
    problem = fault(folder, number, status, said)
    if problem is not None:
        return problem
    if not out.exists():
        return "good" if "nothing was written" in said else f"no file, and said {said!r}"
    steps = Trajectory.load(out).state_step
    if f"run.h5 holds {steps} of 300 steps; go on with --resume run.h5" not in said:
        return "good" if "run.h5 holds all 300 steps" in said and same(out, folder / "whole.h5") else f"said {said!r}"
    process = started(folder, *simulate("run.h5", "--resume", "run.h5"))
    errors = process.communicate(timeout=PATIENCE)[1]
    if process.returncode != 0:
        return f"not resumed: {errors}"
    return "good" if same(out, folder / "whole.h5") else "another trajectory"


def attack_on_a_resumed_run(folder: Path, number: signal.Signals, delay: float) -> str:
    """Stop a simulation that goes on with another: what it began with is whole, or a longer run is there."""
    out = folder / "run.h5"
    out.write_bytes((folder / "half.h5").read_bytes())
    status, said = stopped(folder, simulate("run.h5", "--resume", "run.h5"), number, delay)
    if status == 0:
        return "late"
    steps = Trajectory.load(out).state_step
    if steps < 150 or ("is as it was" in said and out.read_bytes() != (folder / "half.h5").read_bytes()):
        return f"lost steps: {steps}, {said!r}"
    return fault(folder, number, status, said) or "good"


def attack_on_a_plot(folder: Path, number: signal.Signals, delay: float) -> str:
    """Stop a plot: there is a whole picture, or none."""
    picture = folder / "run.png"
    picture.unlink(missing_ok=True)
    status, said = stopped(folder, ["plot", "whole.h5", "--out", "run.png"], number, delay)
    if status == 0:
        return "late"
    if picture.exists() and not picture.read_bytes().endswith(b"IEND\xaeB`\x82"):
        return "half of a picture"
    return fault(folder, number, status, said) or "good"


ATTACKS = {
    "simulate": (attack_on_a_run, simulate("other.h5", "--overwrite")),
    "resume": (attack_on_a_resumed_run, simulate("other.h5", "--overwrite", "--resume", "half.h5")),
    "plot": (attack_on_a_plot, ["plot", "whole.h5", "--out", "other.png", "--overwrite"]),
}


def prepare(folder: Path) -> None:
    """Write the scene, its whole run and one of half the steps."""
    (folder / "scene.toml").write_text(SCENE)
    for arguments in (simulate("whole.h5"), simulate("half.h5", "--steps", "150")):
        process = started(folder, *arguments)
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said


def seconds(folder: Path, arguments: list[str]) -> float:
    """Return how long a command takes that nothing stops, from the first line of the program on."""
    process = started(folder, *arguments)
    wait_for_the_program(process)
    began = time.perf_counter()
    process.communicate(timeout=PATIENCE)
    return time.perf_counter() - began


def tried(folder: Path, moments: int) -> Iterator[tuple[str, signal.Signals, Counter[str]]]:
    """Yield how often what came of the signals at so many moments, evenly from start to end of each command."""
    prepare(folder)
    for name, (attack, alone) in ATTACKS.items():
        span = seconds(folder, alone)
        for number in SIGNALS:
            outcomes = [attack(folder, number, span * k / moments) for k in range(moments)]
            yield name, number, Counter(outcomes)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for command, number, outcomes in tried(Path(folder), int(sys.argv[1])):
            print(f"{command:<10} {number.name:<8} {dict(outcomes)}", flush=True)

"""The main ratios against their bars, in a few minutes: ``make benchmark-check``.

Rods beside PyElastica and chains beside Pinocchio in the same run, so that the machine's speed cancels; shells and the
parachute in milliseconds of one core, which does not; a backward pass beside its forward pass; the time from the import
to the first step of the demo; the demo beside processes that keep all cores busy. Every batch is held to its residual:
a run in which a robot did not converge counts as missed. Prints a table and ends with 1, naming what fell below its
bar. Pass names, or parts of names, to measure only these.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from benchmarks import rigid, rods, shells
from benchmarks.jobs import ROOT
from benchmarks.machine import machine
from benchmarks.peers import Cantilever, measure_peer
from torchdismech import ImplicitEuler, Status, trainable, unroll

STEPS, DT = 100, 1e-2  # of the rods: one second
REPEATS = 3
DEMO = ROOT / "torchdismech" / "demo" / "scene.toml"
FIRST_STEP = f"""
from torchdismech.io.scene import load_scene
setup = load_scene({str(DEMO)!r}).build()
setup.integrator.step(setup.model, setup.state)
"""


@dataclass(frozen=True)
class Bar:
    """What is measured and what it has to reach.

    Attributes
    ----------
    name, unit : for the table.
    value : the bar; `least` says whether it is to be reached from above or from below.
    measure : returns what was found; NaN where a robot did not converge.
    """

    name: str
    unit: str
    value: float
    least: bool
    measure: Callable[[], float]

    def met(self, found: float) -> bool:
        """Return whether the bar was met; NaN is not."""
        return found >= self.value if self.least else found <= self.value


def bars() -> Iterator[Bar]:
    """Yield what is measured."""
    for youngs, few, many in ((1e6, 3.0, 40.0), (1e7, 10.0, 120.0)):
        for batch, value in ((1, few), (256, many)):
            name = f"rods, E = {youngs:g}, B = {batch}: rate over PyElastica's"
            yield Bar(name, "x", value, True, partial(rod_ratio, youngs, batch))
    yield Bar(
        "rods, E = 1e6, B = 256: robot-steps a second", "1/s", 3500.0, True, lambda: 1 / rod_run(1e6, 256).step_cost
    )
    for case, value in zip(shells.CASES, (10.0, 25.0, 9.0), strict=True):
        yield Bar(f"{case}, B = 64: step of a robot", "ms", value, False, partial(shell_step, case))
    yield Bar("rods, B = 64, eager: forward and backward over forward", "x", 2.0, False, backward_ratio)
    for kind, segments, value in (("plane", 5, 2.5), ("plane", 20, 1.0), ("space", 5, 1.0)):
        name = f"forward dynamics, {kind}, n = {segments}, B = {rigid.EVALUATED}: over pin.aba's"
        yield Bar(name, "x", value, True, partial(dynamics_ratio, kind, segments))
    for segments, value in ((3, 10.0), (5, 10.0), (10, 30.0)):
        name = f"pendulum, n = {segments}, B = {rigid.BATCH}: rate over Pinocchio's and scipy's"
        yield Bar(name, "x", value, True, partial(pendulum_ratio, segments))
    name = f"pendulum, n = 5, B = {rigid.BATCH}: forward and backward over forward"
    yield Bar(name, "x", 2.5, False, lambda: rigid.passes(5, rigid.BATCH)[2])
    yield Bar("demo: import to the end of the first step", "s", 3.0, False, first_step)
    yield Bar("demo: beside a spinning process on each core, over alone", "x", 3.0, False, busy_ratio)


@cache
def rod_run(youngs: float, batch: int) -> rods.Run:
    """Return the run of a batch of cantilevers with compiled kernels."""
    run = rods.measure(rods.Case(youngs, batch, "compiled", STEPS, DT))
    print(
        f"  {run.linear_solver}, {1e6 * run.step_cost:.0f} us a robot-step, first step {run.first_step_seconds:.0f} s"
    )
    return run


@cache
def peer_rate(youngs: float) -> float:
    """Return the simulated seconds per CPU second of PyElastica at its usual step."""
    return statistics.median(measure_peer(Cantilever(), youngs, STEPS * DT)[0].rate for _ in range(REPEATS))


def rod_ratio(youngs: float, batch: int) -> float:
    """Return how many times as fast as PyElastica a robot of the batch is."""
    run = rod_run(youngs, batch)
    return run.rate / peer_rate(youngs) if run.converged_rows == batch else float("nan")


def shell_step(case: str) -> float:
    """Return what a step of one robot of 64 costs with compiled kernels [ms]."""
    run = shells.measured(case, 64, compile=True, blocks=3)
    print(f"  {run.solver}, residuals to {run.worst_residual:.1e}, first step {run.compile_s:.0f} s")
    return run.step_ms if run.converged == 64 else float("nan")


def backward_ratio() -> float:
    """Return the time of a forward and a backward pass over that of a rollout without gradients."""
    model = rods.cantilever_model(rods.Case(1e6, 64, "eager", 1, DT))
    stiffness = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
    integrator = ImplicitEuler(DT, relative_tolerance=rods.RELATIVE_TOLERANCE)
    converged = []

    def seconds(backward: bool) -> float:
        start = model.initial_state(batch=64)
        start = start if backward else start.detach()
        began = time.process_time()
        with torch.set_grad_enabled(backward):
            run = unroll(model, start, integrator, 10)
            loss = run.positions[-1, :, -1].square().mean()
        if backward:
            loss.backward()
            converged.append(
                bool((run.status == Status.CONVERGED).all()) and all(p.grad is not None for p in stiffness.parameters())
            )
        return time.process_time() - began

    seconds(True)
    both, forward = (statistics.median(seconds(b) for _ in range(REPEATS)) for b in (True, False))
    return both / forward if all(converged) else float("nan")


def dynamics_ratio(kind: str, segments: int) -> float:
    """Return how many times as fast as Pinocchio's the accelerations of a robot of the batch are."""
    (peer,), (ours,) = rigid.peer_dynamics_rows(kind, segments), rigid.dynamics_rows(kind, segments)
    return peer.seconds / ours.seconds


def pendulum_ratio(segments: int) -> float:
    """Return the rate of a batch of pendulums over the best peer's; NaN where a tip is off by more than 1 mm."""
    peer = min(rigid.peer_pendulum_rows(segments, rigid.OF_PEERS), key=lambda row: row.seconds)
    (ours,) = rigid.pendulum_rows(segments, rigid.BATCH, rigid.DURATION)
    right = ours.drift is not None and ours.drift <= rigid.ALLOWED and ours.converged == rigid.BATCH
    return ours.rate / peer.rate if right else float("nan")


def first_step() -> float:
    """Return the wall seconds of a new process that imports, builds the demo and takes its first step."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", FIRST_STEP], check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def busy_ratio() -> float:
    """Return how many times as long as alone the demo takes where other processes want all cores, as users start it."""
    # as a newcomer's shell is: `benchmarks` runs on one thread
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "demo.h5"
        demo = [sys.executable, "-m", "torchdismech", "simulate", str(DEMO), "--out", str(out), "--no-progress"]

        def seconds() -> float:
            began = time.perf_counter()
            subprocess.run(demo, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            out.unlink()
            return time.perf_counter() - began

        ratios = []
        for _ in range(REPEATS):  # in turns, so that what else the machine does slows both alike
            alone = seconds()
            with spinning(os.cpu_count() or 1):
                ratios.append(seconds() / alone)
    return statistics.median(ratios)


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Let so many processes do nothing but keep a core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    """Measure, print a table and return how the check ended."""
    torch.set_num_threads(1)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    wanted, below = sys.argv[1:], []
    for bar in bars():
        if wanted and not any(part in bar.name for part in wanted):
            continue
        found = bar.measure()
        sign = ">=" if bar.least else "<="
        print(
            f"{bar.name:58} {found:8.3g} {bar.unit:4} {sign} {bar.value:g} {'' if bar.met(found) else 'MISSED'}",
            flush=True,
        )
        if not bar.met(found):
            below.append(bar.name)
    print(f"missed {len(below)}: " + "; ".join(below) if below else "all bars are met")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())

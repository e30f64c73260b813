"""Check the main figures against the bars that they have to reach, in some minutes: ``make benchmark-check``.

Rods are measured beside PyElastica and chains beside Pinocchio in the same run, so that the machine's speed cancels.
Milliseconds of one core, and the seconds to the first step, are scaled to a reference core, on which PyElastica takes
35 us for a step of 100 elements; that step is measured, too. Steps run as users get them: eagerly, and recorded after
the first ones, which are not timed. Further figures are backward passes over forward ones, the time from the import to
the first step of the demo, and the demo beside processes that keep all cores busy. A run in which a robot did not
converge counts as missed. Prints a table and ends with 1, naming what missed its bar. Pass names, or parts of names, to
measure only these.
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
from torch import Tensor

from benchmarks import contact, rigid, rods, shells, thrown
from benchmarks.jobs import ROOT
from benchmarks.machine import machine
from benchmarks.peers import PYELASTICA_DT, Cantilever, measure_peer
from torchdismech import Control, ImplicitEuler, Model, State, Status, forces, trainable, unroll
from torchdismech.contact import HalfSpace, Obstacle, Penalty

STEPS, DT = 100, 1e-2  # of the rods: one second
REPEATS = 3
OF_PEER = 35e-6  # s that PyElastica takes for a step of 100 elements on the reference core
DEMO = ROOT / "torchdismech" / "demo" / "scene.toml"
FIRST_STEP = f"""
import time
from torchdismech import State  # programs begin with the library's public names
from torchdismech.io.scene import load_scene
setup = load_scene({str(DEMO)!r}).build()
setup.integrator.step(setup.model, setup.state)
print(time.process_time())  # since the process began
"""


@dataclass(frozen=True)
class Bar:
    """A figure that is measured, and the value that it has to reach.

    Attributes
    ----------
    name, unit : for the table.
    value : the bar; least : whether the figure has to be at least the bar, rather than at most.
    measure : returns the figure; NaN where a robot did not converge.
    """

    name: str
    unit: str
    value: float
    least: bool
    measure: Callable[[], float]

    def met(self, found: float) -> bool:
        """Return whether a figure meets the bar; NaN does not."""
        return found >= self.value if self.least else found <= self.value


def bars() -> Iterator[Bar]:
    """Yield all bars."""
    for youngs, few, many in ((1e6, 8.0, 75.0), (1e7, 25.0, 230.0)):
        for batch, value in ((1, few), (256, many)):
            name = f"rods, E = {youngs:g}, B = {batch}: rate over PyElastica's"
            yield Bar(name, "x", value, True, partial(rod_ratio, youngs, batch))
    yield Bar("rods, E = 1e6, B = 1: step", "ms", 3.0, False, lambda: scaled(rod_run(1e6, 1).step_cost))
    for case, value in zip(shells.CASES, (10.0, 25.0, 9.0), strict=True):
        yield Bar(f"{case}, B = 64: step of a robot", "ms", value, False, partial(shell_step, case))
    for case, value in (("rods", 3.0), ("rods, rough", 4.0)):
        name = f"contact: {case}, 410 pairs, B = 64: step of a robot"
        yield Bar(name, "ms", value, False, partial(contact_step, case))
    yield Bar("contact: rods thrown on a rough floor, B = 256: step of a robot", "ms", 0.5, False, thrown_step)
    for batch in (64, 256):
        name = f"rods, trained stiffness, B = {batch}: forward and backward over forward"
        yield Bar(name, "x", 1.6 if batch == 256 else 2.0, False, partial(backward_ratio, batch, False))
    name = "rods on a floor with a learned force, B = 64: forward and backward over forward"
    yield Bar(name, "x", 2.0, False, partial(backward_ratio, 64, True))
    for kind, segments, value in (("plane", 5, 2.5), ("plane", 20, 1.0), ("space", 5, 1.0)):
        name = f"forward dynamics, {kind}, n = {segments}, B = {rigid.EVALUATED}: over pin.aba's"
        yield Bar(name, "x", value, True, partial(dynamics_ratio, kind, segments))
    for segments, value in ((3, 10.0), (5, 10.0), (10, 30.0)):
        name = f"pendulum, n = {segments}, B = {rigid.BATCH}: rate over Pinocchio's and scipy's"
        yield Bar(name, "x", value, True, partial(pendulum_ratio, segments))
    name = f"pendulum, n = 5, B = {rigid.BATCH}: forward and backward over forward"
    yield Bar(name, "x", 2.5, False, lambda: rigid.passes(5, rigid.BATCH)[2])
    yield Bar("demo: import to the end of the first step", "s", 1.5, False, first_step)
    yield Bar("demo: beside a spinning process on each core, over alone", "x", 3.0, False, busy_ratio)


@cache
def rod_run(youngs: float, batch: int) -> rods.Run:
    """Return the run of a batch of cantilevers."""
    run = rods.measure(rods.Case(youngs, batch, "eager", STEPS, DT))
    print(f"  {run.linear_solver}, {1e6 * run.step_cost:.0f} us a robot-step, {run.iterations_mean:.2f} iterations")
    return run


@cache
def peer_rate(youngs: float) -> float:
    """Return the simulated seconds per CPU second of PyElastica at its usual step."""
    return statistics.median(measure_peer(Cantilever(), youngs, STEPS * DT)[0].rate for _ in range(REPEATS))


def rod_ratio(youngs: float, batch: int) -> float:
    """Return how many times as fast as PyElastica a robot of the batch is."""
    run = rod_run(youngs, batch)
    return run.rate / peer_rate(youngs) if run.converged_rows == batch else float("nan")


@cache
def slowness() -> float:
    """Return the time that PyElastica takes here for a step of 100 elements, over that on the reference core."""
    seconds = PYELASTICA_DT[1e6] / peer_rate(1e6)
    print(f"  PyElastica takes {1e6 * seconds:.0f} us for a step of 100 elements")
    return seconds / OF_PEER


def scaled(seconds: float) -> float:
    """Return CPU seconds of this core as milliseconds of the reference core."""
    return 1e3 * seconds / slowness()


def shell_step(case: str) -> float:
    """Return the cost of a robot-step of 64 shells [ms]."""
    run = shells.measured(case, 64, compile=False, blocks=3)
    print(f"  {run.solver}, residuals to {run.worst_residual:.1e}")
    return scaled(1e-3 * run.step_ms) if run.converged == 64 else float("nan")


def contact_step(case: str) -> float:
    """Return the cost of a robot-step of 64 robots whose parts touch each other [ms]."""
    model, push = contact.case_of(case)(True, False, "cpu")
    run = contact.stepped(model, push, 64, 10)
    print(f"  {run.active:.0f} pairs, {run.iterations:.2f} iterations")
    return scaled(run.seconds) if run.converged == 64 else float("nan")


def thrown_step() -> float:
    """Return the mean cost of a robot-step of 256 rods that are thrown on a rough floor [ms]."""
    _, times, iterations, converged = thrown.stepped(256, 100)
    print(f"  {iterations.mean():.2f} iterations, {iterations.max():.0f} in the worst robot")
    return scaled(statistics.mean(times) / 256) if converged == 256 else float("nan")


class Push(forces.LocalForce):
    """A learned force: a perceptron on the velocities of nodes."""

    records = True

    def __init__(self) -> None:
        super().__init__(reach=0)
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the forces (B, N, 3) on the nodes."""
        return 1e-3 * self.network(state.node_velocities)


def trained(batch: int, learned: bool) -> tuple[Model, list[Tensor]]:
    """Return cantilevers whose stiffness is trained, or rods that fall on a floor with a learned force as well."""
    builder = rods.cantilever_builder(rods.Case(1e6, batch, "eager", 1, DT))
    if learned:
        builder.add_force(Push())
        below = HalfSpace((0.0, 0.0, -0.05), (0.0, 0.0, 1.0))
        builder.add_contact(Obstacle(below, Penalty(50.0, 1e-3)))
    model = builder.finalize(compile=False)
    trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
    return model, [parameter for parameter in model.parameters() if parameter.requires_grad]


def backward_ratio(batch: int, learned: bool) -> float:
    """Return the time of a forward and a backward pass over that of a rollout without gradients."""
    model, parameters = trained(batch, learned)
    integrator = ImplicitEuler(DT, relative_tolerance=rods.RELATIVE_TOLERANCE)
    start = model.initial_state(batch=batch).detach()
    converged, steps = [], 20

    def seconds(backward: bool) -> float:
        began = time.process_time()
        with torch.set_grad_enabled(backward):
            run = unroll(model, start, integrator, steps)
            loss = run.positions[-1, :, -1].square().mean()
        if backward:
            gradients = torch.autograd.grad(loss, parameters)
            converged.append(bool((run.status == Status.CONVERGED).all()) and all(g.abs().max() > 0 for g in gradients))
        return time.process_time() - began

    seconds(False), seconds(True), seconds(False)  # warm up, until steps are recorded and loops compiled
    times = [(seconds(True), seconds(False)) for _ in range(REPEATS)]
    both, forward = (statistics.median(passes) for passes in zip(*times, strict=True))
    print(f"  {1e6 * forward / steps / batch:.0f} us a robot-step forward, {1e6 * both / steps / batch:.0f} both")
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
    """Return the CPU seconds of a new process that imports, builds the demo and takes its first step, scaled.

    Python finds the package compiled to bytecode, as it does for users from the second time on. The least of some
    times counts: whatever else the machine does makes such a cold start longer.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times, walls = [], []
    with tempfile.TemporaryDirectory() as directory:
        environment["PYTHONPYCACHEPREFIX"] = directory
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", FIRST_STEP], env=environment, check=True, capture_output=True)
            times.append(float(done.stdout.split()[-1]))
            walls.append(time.perf_counter() - began)
    least, wall = min(times[1:]), min(walls[1:])
    print(f"  {least:.2f} s of CPU time here, {wall:.2f} s of wall time until the process has ended")
    return 1e-3 * scaled(least)


def busy_ratio() -> float:
    """Return the time of the demo, started as users do, while other processes keep all cores busy, over that alone."""
    # without the limits of threads that `benchmarks` sets, as in a user's shell
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
        for _ in range(REPEATS):  # in turns, so that other load of the machine slows both alike
            alone = seconds()
            with spinning(os.cpu_count() or 1):
                ratios.append(seconds() / alone)
    return statistics.median(ratios)


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Run so many processes that do nothing but keep a core busy each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    """Measure, print a table and return the exit status."""
    torch.set_num_threads(1)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    wanted, below = sys.argv[1:], []
    for bar in bars():
        if wanted and not any(part in bar.name for part in wanted):
            continue
        found = bar.measure()
        sign = ">=" if bar.least else "<="
        print(
            f"{bar.name:78} {found:8.3g} {bar.unit:4} {sign} {bar.value:g} {'' if bar.met(found) else 'MISSED'}",
            flush=True,
        )
        if not bar.met(found):
            below.append(bar.name)
    print(f"missed {len(below)}: " + "; ".join(below) if below else "all bars are met")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())

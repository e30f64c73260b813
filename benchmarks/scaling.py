"""Measure the cost of many and of large robots: time, memory, and the estimate of memory that chunks are chosen by.

``python -m benchmarks.scaling`` prints a table, ``--quick`` a smaller one, ``--json FILE`` writes the figures. Each
case runs in a process of its own.

Rods are cantilevers (radius 1 cm, 1000 kg/m^3, 1 MPa; 1 m long, the large one 1 cm an edge), shells squares of 0.4 m
(2 mm, 10 MPa) held at one side; Young's modulus differs by up to 10 % within a batch. All are released under gravity:
implicit Euler with dt = 10 ms to 1e-6 of the force scale.
"""

import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from benchmarks.jobs import ROOT
from benchmarks.machine import machine, now, peak_bytes
from benchmarks.rods import converged_rows, iterations_of, worst_residual, youngs_of_batch
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    State,
    StepInfo,
    forces,
    meshes,
    straight,
)
from torchdismech.integrate.chunks import chunk_size
from torchdismech.model.step_memory import step_bytes

T = TypeVar("T")

GRAVITY = (0.0, 0.0, -9.81)
DT = 1e-2
TOLERANCE = 1e-6
LONG = 1000  # nodes, beyond which an edge of a rod is 1 cm rather than the rod 1 m


@dataclass(frozen=True)
class Case:
    """Settings of a measurement.

    Attributes
    ----------
    kind : "rod" of `size` nodes, or a shell of about `size` triangles by its bending, "hinge" or "midedge".
    gradient : whether each step has a backward pass, to the velocities before it.
    """

    kind: str
    size: int
    batch: int
    steps: int
    gradient: bool = False

    @property
    def name(self) -> str:
        """Name of the case in the table."""
        what = f"rod, {self.size} nodes" if self.kind == "rod" else f"shell, {self.size} triangles, {self.kind}"
        return what + (", with backward" if self.gradient else "")


FULL = [
    Case("rod", 25, 100_000, 3),
    Case("rod", 25, 100_000, 2, gradient=True),
    Case("rod", 101, 10_000, 3),
    Case("rod", 101, 10_000, 2, gradient=True),
    Case("hinge", 800, 1_000, 2),
    Case("rod", 10_000, 1, 10),
    Case("hinge", 100_000, 1, 3),
    Case("midedge", 20_000, 1, 3),
]
QUICK = [
    Case("rod", 25, 5_000, 3),
    Case("rod", 101, 1_000, 3),
    Case("rod", 101, 1_000, 2, gradient=True),
    Case("hinge", 800, 64, 2),
    Case("rod", 10_000, 1, 5),
    Case("hinge", 5_000, 1, 3),
    Case("midedge", 5_000, 1, 3),
]


@dataclass(frozen=True)
class Cost:
    """Cost of a case; times are CPU time on one thread.

    Attributes
    ----------
    at_a_time : robots that are stepped at a time.
    build_s, analysis_s, start_s : times of making the model, its solver, and the initial state.
    step_ms : median of the steps after the first.
    iterations : of Newton's method, mean.
    residual : the largest at an accepted iterate over the step's force scale.
    converged : robots that converged in every step.
    state_mb : memory of the state.
    step_mb : growth of the process while it steps, at its peak.
    estimate_mb : the library's estimate for a step of as many robots as are stepped at a time.
    peak_mb : of the process, building and libraries included.
    """

    case: str
    batch: int
    at_a_time: int
    build_s: float
    analysis_s: float
    start_s: float
    step_ms: float
    iterations: float
    residual: float
    converged: int
    state_mb: float
    step_mb: float
    estimate_mb: float
    peak_mb: float


def model_of(case: Case) -> Model:
    """Return the model of a case."""
    builder = RobotBuilder()
    youngs = youngs_of_batch(1e6 if case.kind == "rod" else 1e7, case.batch)
    if case.kind == "rod":
        length = 0.01 * case.size if case.size > LONG else 1.0
        builder.add_rod(straight((0, 0, 0), (length, 0, 0), case.size), Circle(0.01), Material(youngs, 1000.0, 0.5))
        builder.clamp(nodes=[0, 1])
    else:
        mesh = meshes.rectangle(0.4, 0.4, 0.4 / round((case.size / 2) ** 0.5), "right")
        builder.add_shell(
            mesh.nodes, mesh.triangles, 2e-3, Material(youngs, 1200.0, 0.3), case.kind, membrane="springs"
        )
        builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity(GRAVITY))
    return builder.finalize(compile=False)


def measured(case: Case) -> Cost:
    """Return the cost of a case, measured in this process."""
    torch.set_num_threads(1)
    model, build = timed(lambda: model_of(case))
    integrator = ImplicitEuler(DT, relative_tolerance=TOLERANCE)
    at_a_time = chunk_size(model, case.batch, integrator)
    _, analysis = timed(lambda: model.solvers.of(at_a_time))
    state, start = timed(lambda: model.initial_state(batch=case.batch))
    peak = peak_bytes()
    forget_peak()
    before = resident_bytes()
    times, infos = [], []
    for _ in range(case.steps):
        (state, info), seconds = timed(functools.partial(stepped, model, state, case.gradient))
        times.append(seconds)
        infos.append(info)
    return Cost(
        case=case.name,
        batch=case.batch,
        at_a_time=at_a_time,
        build_s=build,
        analysis_s=analysis,
        start_s=start,
        step_ms=1e3 * statistics.median(times[1:]),
        iterations=float(iterations_of(infos).mean()),
        residual=worst_residual(infos),
        converged=converged_rows(infos),
        state_mb=sum(t.numel() * t.element_size() for t in state.fields()) / 1e6,
        step_mb=(peak_bytes() - before) / 1e6,
        estimate_mb=step_bytes(model, at_a_time) / 1e6,
        peak_mb=max(peak, peak_bytes()) / 1e6,
    )


def stepped(model: Model, state: State, gradient: bool) -> tuple[State, StepInfo]:
    """Return the state after a step and its `StepInfo`; with `gradient` a backward pass is taken, and thrown away."""
    integrator = ImplicitEuler(DT, relative_tolerance=TOLERANCE)
    if not gradient:
        return integrator.step(model, state)
    velocity = state.velocity.clone().requires_grad_()
    after, info = integrator.step(model, state.replace(velocity=velocity))
    after.q.square().sum().backward()
    return after.detach(), info


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a function, and the CPU seconds that it takes."""
    began = now()
    result = function()
    return result, now() - began


def resident_bytes() -> int:
    """Return the resident size of this process in bytes; its peak where the system does not say."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return peak_bytes()
    return int(status.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Reset the peak memory of this process, where the system can, and give unused memory back to the system."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5", encoding="ascii")


# ---- all of them -------------------------------------------------------------------------------------------------


def run(case: Case) -> Cost:
    """Return the cost of a case, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


HEADER = (
    "| case | B | at a time | build s | analysis s | start s | ms a step | us a robot-step | iterations | residual "
    "| converged | state MB | step MB | estimate MB | peak MB |\n" + "|---" * 15 + "|"
)


def line(cost: Cost) -> str:
    """Return a line of the table."""
    cells = [
        cost.case,
        f"{cost.batch:,}",
        cost.at_a_time,
        f"{cost.build_s:.2f}",
        f"{cost.analysis_s:.2f}",
        f"{cost.start_s:.2f}",
        f"{cost.step_ms:,.0f}",
        f"{1e3 * cost.step_ms / cost.batch:,.0f}",
        f"{cost.iterations:.2f}",
        f"{cost.residual:.0e}",
        f"{cost.converged:,}",
        *(f"{size:,.0f}" for size in (cost.state_mb, cost.step_mb, cost.estimate_mb, cost.peak_mb)),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller cases, a minute or two")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(asdict(measured(Case(**json.loads(arguments.case))))))
        return
    print(", ".join(f"{name} {value}" for name, value in machine().items()), HEADER, sep="\n", flush=True)
    costs = []
    for case in QUICK if arguments.quick else FULL:
        costs.append(run(case))
        print(line(costs[-1]), flush=True)
    if arguments.json is not None:
        figures = {"machine": machine(), "costs": [asdict(cost) for cost in costs]}
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

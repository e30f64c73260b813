"""What a step of a rod costs: a moving cantilever, many robots in one batch, beside PyElastica on the same rod.

``python -m benchmarks.rods`` (or ``make benchmark-rods``) prints the tables and writes them as JSON.

The rod: 1 m long, 1 cm thick in radius, 1000 kg/m^3, Poisson's ratio 0.5, horizontal, its first two nodes and the twist
of their edge clamped, released under gravity for one second. Implicit Euler with dt = 1e-2 s against position Verlet
with the steps of `peers`. In a batch the first robot has the nominal Young's modulus E and the others
E (1 + 0.1 u), u uniform in [-1, 1] with a fixed seed: no two robots move in lock-step.

Time is process CPU time on one thread, after a warm-up. Compiling is told apart, as wall time of the first step: the
cache is empty when the benchmark starts, so a shape that comes for the first time shows a cold compile and a repeated
one a warm one.

Read the costs next to the tips: implicit Euler damps the motion (an error of first order in dt, 0.2 m at 1e-2 s),
Verlet does not. `--integrator midpoint --dt 4e-3` compares at like accuracy: tips within 5 mm.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import machine, peak_bytes
from benchmarks.peers import (
    PYELASTICA_DT,
    PYELASTICA_LARGEST_DT,
    Cantilever,
    PeerRun,
    pyelastica_cantilever,
)
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    RobotBuilder,
    State,
    Status,
    StepInfo,
    forces,
    straight,
)
from torchdismech.integrate import Integrator

RELATIVE_TOLERANCE = 1e-6  # of the step's force scale
INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint}
SPREAD = 0.1  # of Young's modulus within a batch
SEED = 0
REPEAT_BELOW = 10.0  # CPU seconds: cheaper runs are repeated and their median taken


@dataclass(frozen=True)
class Case:
    """What is measured: which rod, how many of them, stepped how."""

    youngs: float  # Pa, nominal
    batch: int
    mode: str  # "eager" or "compiled"
    steps: int
    dt: float  # s
    integrator: str = "euler"
    solver: str = "auto"
    rod: Cantilever = Cantilever()

    @property
    def robot_steps(self) -> int:
        """Steps times robots."""
        return self.steps * self.batch


@dataclass(frozen=True)
class Run:
    """What one batch of cantilevers cost, and what says that its steps were honest."""

    case: Case
    linear_solver: str  # the one that was chosen
    repeats: int
    cpu_seconds: float  # median over the repeats
    first_step_seconds: float  # wall time of initial state and first step: compiling, where there is any
    iterations_mean: float  # Newton iterations of a robot in a step
    iterations_max: int
    worst_residual: float  # after the last iteration, over the step's force scale; all robots, all steps
    converged_rows: int  # robots that converged in every step
    tip: tuple[float, float, float]  # m, of the nominal robot
    tip_z_range: tuple[float, float]  # m, over the batch
    state_bytes_per_robot: float  # what a robot's State takes
    peak_bytes_per_robot: float  # growth of the process's peak by this run, over the batch; 0 if an earlier run peaked

    @property
    def rate(self) -> float:
        """Simulated seconds per CPU second, summed over the robots."""
        return self.case.robot_steps * self.case.dt / self.cpu_seconds

    @property
    def step_cost(self) -> float:
        """CPU seconds of one robot-step."""
        return self.cpu_seconds / self.case.robot_steps


def youngs_of_batch(youngs: float, batch: int) -> Tensor:
    """Return Young's moduli (B, 1) in Pa: the nominal one first, then spread around it."""
    noise = 2 * torch.rand(batch, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)) - 1
    noise[0] = 0
    return youngs * (1 + SPREAD * noise)


def cantilever_model(case: Case) -> Model:
    """Return the model of a batch of cantilevers."""
    rod = case.rod
    builder = RobotBuilder()
    builder.add_rod(
        straight((0.0, 0.0, 0.0), (rod.length, 0.0, 0.0), rod.nodes),
        section=Circle(rod.radius),
        material=Material(youngs=youngs_of_batch(case.youngs, case.batch), density=rod.density, poisson=0.5),
    )
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0.0, 0.0, -rod.gravity)))
    return builder.finalize(solver=case.solver, compile=case.mode == "compiled")


def measure(case: Case) -> Run:
    """Step a batch of cantilevers and return the cost; the first two steps are done once more, before, to warm up."""
    torch.compiler.reset()  # each run compiles for itself, as a user's process would
    peak = peak_bytes()
    model = cantilever_model(case)
    integrator = INTEGRATORS[case.integrator](dt=case.dt, relative_tolerance=RELATIVE_TOLERANCE)

    wall = time.perf_counter()
    start = model.initial_state(batch=case.batch)
    state, _ = integrator.step(model, start)
    first_step_seconds = time.perf_counter() - wall
    integrator.step(model, state)

    costs: list[float] = []
    while not costs or (costs[0] < REPEAT_BELOW and len(costs) < 3):
        state, infos, cost = timed_steps(integrator, model, start, case.steps)
        costs.append(cost)

    iterations = torch.stack([info.iterations for info in infos]).double()
    residual = torch.stack([info.residual / info.force_scale for info in infos])
    converged = torch.stack([info.status == int(Status.CONVERGED) for info in infos]).all(0)
    tips = state.positions[:, -1]
    return Run(
        case=case,
        linear_solver=model.solver_for(case.batch).name,
        repeats=len(costs),
        cpu_seconds=statistics.median(costs),
        first_step_seconds=first_step_seconds,
        iterations_mean=float(iterations.mean()),
        iterations_max=int(iterations.max()),
        worst_residual=float(residual.max()),
        converged_rows=int(converged.sum()),
        tip=(float(tips[0, 0]), float(tips[0, 1]), float(tips[0, 2])),
        tip_z_range=(float(tips[:, 2].min()), float(tips[:, 2].max())),
        state_bytes_per_robot=state_bytes(state) / case.batch,
        peak_bytes_per_robot=(peak_bytes() - peak) / case.batch,
    )


def timed_steps(integrator: Integrator, model: Model, state: State, steps: int) -> tuple[State, list[StepInfo], float]:
    """Return the state after some steps, what each step reported, and the CPU seconds of all."""
    infos = []
    cpu = time.process_time()
    for _ in range(steps):
        state, info = integrator.step(model, state)
        infos.append(info)
    return state, infos, time.process_time() - cpu


def state_bytes(state: State) -> int:
    """Return the bytes of the tensors of a state."""
    tensors = [getattr(state, field.name) for field in fields(state)]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def measure_peer(rod: Cantilever, youngs: float, duration: float) -> list[PeerRun]:
    """Run PyElastica at its usual and at its largest stable step; return both, each the median of three."""
    scale = rod.length / (rod.nodes - 1) / 0.01  # the stable step follows the element's length
    runs = []
    for table in (PYELASTICA_DT, PYELASTICA_LARGEST_DT):
        dt = table[youngs] * min(1.0, scale)
        repeats = [pyelastica_cantilever(rod, youngs, duration, dt) for _ in range(3)]
        runs.append(sorted(repeats, key=lambda run: run.cpu_seconds)[1])
    return runs


def fitted_exponent(runs: Sequence[Run], *, per_iteration: bool) -> float:
    """Return p of cost ~ nodes^p by least squares in logarithms; of a robot-step, or of a Newton iteration in it."""
    costs = [run.step_cost / (run.iterations_mean if per_iteration else 1.0) for run in runs]
    return float(np.polyfit(np.log([run.case.rod.nodes for run in runs]), np.log(costs), 1)[0])


def tip_text(tip: tuple[float, float, float]) -> str:
    """Return a tip's x and z for a table: the motion is planar."""
    return f"{tip[0]:+.4f} {tip[2]:+.4f}"


def print_peers(peers: Sequence[PeerRun]) -> None:
    """Print a line for each run of the peer."""
    print(f"\n{'peer':>12} {'E [Pa]':>8} {'dt [s]':>8} {'CPU [s]':>8} {'sim s/CPU s':>12}   tip x z [m]")
    for run in peers:
        print(
            f"{run.name:>12} {run.youngs:8.0e} {run.dt:8.1e} {run.cpu_seconds:8.3f} {run.rate:12.3f}   "
            f"{tip_text(run.tip)}"
        )


def print_header(chosen: argparse.Namespace) -> None:
    """Print the head of the table of runs."""
    print(f"\n{INTEGRATORS[chosen.integrator].__name__}, dt = {chosen.dt:g} s")
    print(
        f"{'mode':>9} {'E [Pa]':>8} {'nodes':>5} {'B':>5} {'CPU [s]':>8} {'us/rob-step':>11} {'sim s/CPU s':>11} "
        f"{'x peer':>7} {'x peer*':>7} {'Newton':>10} {'residual':>9} {'converged':>10} {'first [s]':>9} "
        f"{'peak/rob':>9} {'state/rob':>9}   tip x z [m]"
    )


def print_run(run: Run, peers: Sequence[PeerRun]) -> None:
    """Print a line of the table: peer is PyElastica at its usual step, peer* at its largest stable one."""
    case = run.case
    ratios = [f"{run.rate / peer.rate:7.2f}" for peer in peers if peer.youngs == case.youngs] or ["", ""]
    print(
        f"{case.mode:>9} {case.youngs:8.0e} {case.rod.nodes:5d} {case.batch:5d} {run.cpu_seconds:8.2f} "
        f"{1e6 * run.step_cost:11.0f} {run.rate:11.3f} {ratios[0]:>7} {ratios[1]:>7} "
        f"{run.iterations_mean:6.2f}/{run.iterations_max:<3d} {run.worst_residual:9.1e} "
        f"{run.converged_rows:5d}/{case.batch:<4d} {run.first_step_seconds:9.1f} "
        f"{run.peak_bytes_per_robot / 1024:6.0f} kB {run.state_bytes_per_robot / 1024:6.0f} kB   {tip_text(run.tip)}",
        flush=True,
    )


def as_json(run: Run | PeerRun) -> dict[str, Any]:
    """Return a run's fields and its rate."""
    return {**asdict(run), "rate": run.rate}


def arguments() -> argparse.Namespace:
    """Return the command line's choices."""
    parser = argparse.ArgumentParser(description="What a step of a rod costs, beside PyElastica.")
    parser.add_argument("--youngs", type=float, nargs="+", default=[1e6, 1e7], choices=sorted(PYELASTICA_DT))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 256, 1024])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--integrator", default="euler", choices=sorted(INTEGRATORS))
    parser.add_argument("--dt", type=float, default=1e-2, help="s")
    parser.add_argument("--duration", type=float, default=1.0, help="s")
    parser.add_argument("--solver", default="auto", help="name of a linear solver")
    parser.add_argument("--nodes", type=int, nargs="*", default=[26, 51, 101, 201, 401], help="of the scaling table")
    parser.add_argument("--scaling-batch", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("out/rods.json"))
    parser.add_argument("--quick", action="store_true", help="0.2 s, batches up to 16, eager, three lengths")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.batch = [batch for batch in chosen.batch if batch <= 16]
        chosen.duration = 0.2
        chosen.modes, chosen.nodes, chosen.scaling_batch = ["eager"], [26, 51, 101], 16
    return chosen


def measure_batches(chosen: argparse.Namespace, peers: Sequence[PeerRun]) -> list[Run]:
    """Measure and print every mode, modulus and batch that was asked for, small batches first."""
    runs = []
    steps = round(chosen.duration / chosen.dt)
    for mode, youngs, batch in itertools.product(chosen.modes, chosen.youngs, sorted(chosen.batch)):
        runs.append(measure(Case(youngs, batch, mode, steps, chosen.dt, chosen.integrator, chosen.solver)))
        print_run(runs[-1], peers)
    return runs


def measure_lengths(chosen: argparse.Namespace) -> list[Run]:
    """Measure and print rods of more and more nodes, 20 steps each at the first modulus, in the last mode."""
    runs = []
    for nodes in chosen.nodes:
        rod = Cantilever(nodes=nodes)
        case = Case(
            chosen.youngs[0],
            chosen.scaling_batch,
            chosen.modes[-1],
            20,
            chosen.dt,
            chosen.integrator,
            chosen.solver,
            rod,
        )
        runs.append(measure(case))
        print_run(runs[-1], [])
    return runs


def main() -> None:
    """Measure, print the tables and write the JSON file."""
    chosen = arguments()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine()}
    print("\n".join(f"{key}: {value}" for key, value in report["machine"].items()))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # compile times are those of a first run
        peers = [run for youngs in chosen.youngs for run in measure_peer(Cantilever(), youngs, chosen.duration)]
        print_peers(peers)
        print_header(chosen)
        runs = measure_batches(chosen, peers)
        lengths = measure_lengths(chosen)
    report["peers"] = [as_json(run) for run in peers]
    report["runs"] = [as_json(run) for run in runs]
    report["lengths"] = [as_json(run) for run in lengths]
    if len(lengths) > 1:
        report["exponent_step"] = fitted_exponent(lengths, per_iteration=False)
        report["exponent_iteration"] = fitted_exponent(lengths, per_iteration=True)
        print(f"cost of a robot-step ~ nodes^{report['exponent_step']:.2f}", end=", ")
        print(f"of a Newton iteration of a robot ~ nodes^{report['exponent_iteration']:.2f}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()

"""Cost of a step of a rod: a moving cantilever, many robots in one batch; `peers` has the same rod.

``python -m benchmarks rods`` (or ``make benchmark-rods``) prints the table.

The rod: 1 m long, radius 1 cm, 1000 kg/m^3, Poisson's ratio 0.5, horizontal, its first two nodes and the twist of their
edge clamped, released under gravity for one second. Implicit Euler with dt = 1e-2 s against position Verlet with the
steps of `peers`. In a batch the first robot has the nominal Young's modulus E and the others E (1 + 0.1 u), u uniform
in [-1, 1] with a fixed seed, so that no two robots move alike.

Time is process CPU time on one thread, after a warm-up. Compiling is given apart, as wall time of the first step.

Read the costs next to the distances of the tips from a fine solution: implicit Euler damps the motion (an error of
first order in dt, 0.2 m at 1e-2 s), Verlet does not. The midpoint rule at 4 ms has a similar accuracy.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import now, peak_bytes, warm_up
from benchmarks.peers import PYELASTICA_DT, Cantilever, case_name, drift
from benchmarks.table import Row
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
EXACT = 1e-12  # of the force scale: tolerance of reference solutions, which have the same steps
REPEAT_BELOW = 10.0  # CPU seconds: cheaper runs are repeated and their median taken


@dataclass(frozen=True)
class Case:
    """Settings of a measurement: the rod, the batch, and how it is stepped."""

    youngs: float  # Pa, nominal
    batch: int
    mode: str  # "eager" or "compiled"
    steps: int
    dt: float  # s
    integrator: str = "euler"
    rod: Cantilever = Cantilever()
    device: str = "cpu"

    @property
    def robot_steps(self) -> int:
        """Steps times robots."""
        return self.steps * self.batch


@dataclass(frozen=True)
class Run:
    """Cost of one batch of cantilevers, with residuals and convergence of its steps."""

    case: Case
    linear_solver: str  # the one that was chosen
    cpu_seconds: float  # median of the repeats; wall time on a GPU
    first_step_seconds: float  # wall time of initial state and first step: compiling, where there is any
    iterations_mean: float  # Newton iterations of a robot in a step
    iterations_max: int
    worst_residual: float  # after the last iteration, over the step's force scale; all robots, all steps
    converged_rows: int  # robots that converged in every step
    tip: tuple[float, float, float]  # m, of the nominal robot
    peak_mb: float  # of the process so far

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


def cantilever_model(case: Case, *loads: forces.Force) -> Model:
    """Return the model of a batch of cantilevers under gravity and further loads."""
    builder = cantilever_builder(case, *loads)
    return builder.finalize(compile=case.mode == "compiled", device=case.device)


def cantilever_builder(case: Case, *loads: forces.Force) -> RobotBuilder:
    """Return the builder of a batch of cantilevers under gravity and further loads."""
    rod = case.rod
    builder = RobotBuilder()
    builder.add_rod(
        straight((0.0, 0.0, 0.0), (rod.length, 0.0, 0.0), rod.nodes),
        section=Circle(rod.radius),
        material=Material(youngs=youngs_of_batch(case.youngs, case.batch), density=rod.density, poisson=0.5),
    )
    builder.clamp(nodes=[0, 1])
    for force in (forces.Gravity((0.0, 0.0, -rod.gravity)), *loads):
        builder.add_force(force)
    return builder


def measure(case: Case) -> Run:
    """Step a batch of cantilevers and return the cost.

    All steps are taken once before, so that everything that some step needs is compiled or recorded.
    """
    torch.compiler.reset()  # each run compiles for itself, as a user's process would
    model = cantilever_model(case)
    integrator = INTEGRATORS[case.integrator](dt=case.dt, relative_tolerance=RELATIVE_TOLERANCE)

    wall = time.perf_counter()
    start = model.initial_state(batch=case.batch)
    integrator.step(model, start)
    first_step_seconds = time.perf_counter() - wall
    warm_up(integrator, model, start)
    timed_steps(integrator, model, start, case.steps)

    costs: list[float] = []
    while not costs or (costs[0] < REPEAT_BELOW and len(costs) < 3):
        state, infos, cost = timed_steps(integrator, model, start, case.steps)
        costs.append(cost)

    iterations = iterations_of(infos)
    tips = state.positions[:, -1]
    return Run(
        case=case,
        linear_solver=model.solvers.of(case.batch).name,
        cpu_seconds=statistics.median(costs),
        first_step_seconds=first_step_seconds,
        iterations_mean=float(iterations.mean()),
        iterations_max=int(iterations.max()),
        worst_residual=worst_residual(infos),
        converged_rows=converged_rows(infos),
        tip=(float(tips[0, 0]), float(tips[0, 1]), float(tips[0, 2])),
        peak_mb=peak_bytes(case.device) / 1e6,
    )


def timed_steps(integrator: Integrator, model: Model, state: State, steps: int) -> tuple[State, list[StepInfo], float]:
    """Return the state after some steps, the `StepInfo` of each, and the seconds of all."""
    infos = []
    began = now(model.device.type)
    for _ in range(steps):
        state, info = integrator.step(model, state)
        infos.append(info)
    return state, infos, now(model.device.type) - began


def iterations_of(infos: Sequence[StepInfo]) -> Tensor:
    """Return the Newton iterations of each robot in each step, (steps, B)."""
    return torch.stack([info.iterations for info in infos]).double()


def worst_residual(infos: Sequence[StepInfo]) -> float:
    """Return the largest residual of all robots and steps, over the step's force scale."""
    return max(float((info.residual / info.force_scale).max()) for info in infos)


def converged_rows(infos: Sequence[StepInfo]) -> int:
    """Return the number of robots that converged in every step."""
    return int(torch.stack([info.status == Status.CONVERGED for info in infos]).all(0).sum())


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the batches, lengths and integrators to be measured."""
    if quick:
        return [job(1e6, batch, "eager", duration=0.2) for batch in (1, 16)]
    found = [job(*what, "eager") for what in product(PYELASTICA_DT, (1, 256, 1024))]
    found += [job(1e6, batch, "compiled") for batch in (1, 256)]
    found += [job(youngs, 256, "eager", integrator="midpoint", dt=4e-3) for youngs in PYELASTICA_DT]
    found += [job(1e6, 256, "eager", duration=0.2, nodes=nodes) for nodes in (26, 201, 401)]
    if cuda:
        for mode in ("eager", "compiled"):
            found += [job(1e6, batch, mode, device="cuda") for batch in (1, 1024, 8192)]
            found += [job(1e6, 65536, mode, duration=0.2, nodes=25, device="cuda")]
    return found


def job(youngs: float, batch: int, mode: str, **settings: float | str) -> Job:
    """Return the job of one batch; further settings as those of `rows`."""
    given = {"integrator": "euler", "dt": 1e-2, "nodes": 101, "device": "cpu", **settings}
    name = case_name(Cantilever(nodes=int(given["nodes"])), youngs)
    by = who(mode, str(given["device"]), str(given["integrator"]), float(given["dt"]))
    return Job("rods", name, batch, by, {"youngs": youngs, "batch": batch, "mode": mode, **settings})


def who(mode: str, device: str, integrator: str, dt: float) -> str:
    """Return the table's name of how rods are stepped."""
    return f"{mode}, {device}" + ("" if integrator == "euler" else f", {integrator}, dt = {1e3 * dt:g} ms")


def rows(
    youngs: float,
    batch: int,
    mode: str,
    duration: float = 1.0,
    dt: float = 1e-2,
    integrator: str = "euler",
    nodes: int = 101,
    device: str = "cpu",
) -> list[Row]:
    """Return the row of one batch of cantilevers."""
    torch.set_num_threads(1)
    rod = Cantilever(nodes=nodes)
    run = measure(Case(youngs, batch, mode, round(duration / dt), dt, integrator, rod=rod, device=device))
    right = measure_tip(Case(youngs, 1, "eager", run.case.steps, dt, integrator, rod=rod))
    return [
        Row(
            case_name(rod, youngs),
            batch,
            who(mode, device, integrator, dt),
            dt,
            run.step_cost,
            residual=run.worst_residual,
            error=float(np.linalg.norm(np.subtract(run.tip, right))),
            drift=drift(rod, youngs, duration, run.tip),
            converged=run.converged_rows,
            compile_s=run.first_step_seconds,
            peak_mb=run.peak_mb,
            note=f"{run.iterations_mean:.2f} ({run.iterations_max}) iterations, {run.linear_solver}",
        )
    ]


def measure_tip(case: Case) -> tuple[float, float, float]:
    """Return the last tip [m] of the nominal robot with every step solved to `EXACT`."""
    model = cantilever_model(case)
    integrator = INTEGRATORS[case.integrator](dt=case.dt, relative_tolerance=EXACT)
    state, infos, _ = timed_steps(integrator, model, model.initial_state(batch=case.batch), case.steps)
    if converged_rows(infos) < case.batch:
        raise RuntimeError(f"a step of the reference was not solved to {EXACT:g}: {case}")
    x, y, z = state.positions[0, -1].tolist()
    return x, y, z

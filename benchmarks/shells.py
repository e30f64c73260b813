"""Cost of a step of a shell: a falling plate by hinges and by mid-edge normals, and a parachute, in batches.

``python -m benchmarks shells`` (or ``make benchmark-shells``) prints the table.

The plate: 0.4 m x 0.4 m, 2 mm thick, E = 10 MPa, 1200 kg/m^3, nu = 0.3, 441 nodes and 800 triangles, held at one side
and let go under gravity. The parachute: a hexagonal canopy of 1 m with hinges, six ropes of ten edges tied to it
(joints pinned), a payload of 0.13 kg, gravity and drag: 188 nodes. Both with dt = 1e-2 s by implicit Euler, each step
to a residual of 1e-6 of its force scale. In a batch Young's modulus is spread by 10 % around the nominal one, so that
no two robots move alike.

Times are process CPU time on one thread, medians over blocks of steps after a warm-up. A factorisation with its solve,
and an evaluation of force and matrix, are measured at the last state.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import median_seconds, now, peak_bytes, warm_up
from benchmarks.rods import EXACT, converged_rows, iterations_of, worst_residual, youngs_of_batch
from benchmarks.table import Row, short
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    State,
    forces,
    meshes,
    straight,
)
from torchdismech.solve.progress import matrix_values

DT = 1e-2  # s
RELATIVE_TOLERANCE = 1e-6  # of the step's force scale
BLOCK = 5  # steps that are timed together
GRAVITY = (0.0, 0.0, -9.81)


@dataclass(frozen=True)
class Run:
    """Cost of one batch, with residuals and convergence of its steps."""

    unknowns: int
    solver: str
    step_ms: float  # per robot
    factor_ms: float  # factor and solve, per robot
    assembly_ms: float  # force and matrix, per robot
    compile_s: float  # wall time of the first step: compiling, where there is any
    iterations_mean: float
    iterations_max: int
    worst_residual: float  # over the step's force scale; all robots, all steps
    converged: int  # robots that converged in every step
    nodes_at_end: Tensor  # (N, 3) of the nominal robot
    peak_mb: float  # of the process so far


def plate(bending: str, batch: int, compile: bool, device: str) -> Model:
    """Return plates held at one side."""
    mesh = meshes.rectangle(0.4, 0.4, 0.02, "right")
    builder = RobotBuilder()
    material = Material(youngs_of_batch(1e7, batch), 1200.0, 0.3)
    builder.add_shell(mesh.nodes, mesh.triangles, 2e-3, material, bending, membrane="springs")
    builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity(GRAVITY))
    return builder.finalize(compile=compile, device=device)


def parachute(batch: int, compile: bool, device: str) -> Model:
    """Return parachutes about to fall."""
    canopy = meshes.hexagon(1.0, 6)
    payload = np.array([0.0, 0.0, -2.0])
    scale = youngs_of_batch(1.0, batch)
    builder = RobotBuilder(joints="pinned")
    builder.add_shell(canopy.nodes, canopy.triangles, 1e-3, Material(1e9 * scale, 1500.0, 0.3), "hinge")
    for k in range(6):
        corner = np.array([np.cos(k * np.pi / 3), np.sin(k * np.pi / 3), 0.0])
        builder.add_rod(straight(payload, corner, 11), Circle(1e-3), Material(1e7 * scale, 1500.0, 0.5))
    builder.add_mass(builder.add_nodes(payload[None]).tolist(), 0.13)
    builder.add_force(forces.Gravity(GRAVITY))
    builder.add_force(forces.Drag(1.0, 10.0))
    return builder.finalize(compile=compile, device=device)


CASES: dict[str, Callable[[int, bool, str], Model]] = {
    "plate, hinges": lambda batch, compile, device: plate("hinge", batch, compile, device),
    "plate, mid-edge normals": lambda batch, compile, device: plate("midedge", batch, compile, device),
    "parachute": parachute,
}


def measured(
    case: str, batch: int, compile: bool, blocks: int, device: str = "cpu", tolerance: float = RELATIVE_TOLERANCE
) -> Run:
    """Step a batch and return its cost."""
    torch.compiler.reset()
    model = CASES[case](batch, compile, device)
    integrator = ImplicitEuler(DT, relative_tolerance=tolerance)
    began = time.perf_counter()
    state, _ = integrator.step(model, model.initial_state(batch=batch))
    first = time.perf_counter() - began
    warm_up(integrator, model, state)
    ahead = state
    for _ in range(BLOCK):  # so that everything that some step needs is compiled or recorded
        ahead, _ = integrator.step(model, ahead)
    times, infos = [], []
    for _ in range(blocks):
        began = now(device)
        for _ in range(BLOCK):
            state, info = integrator.step(model, state)
            infos.append(info)
        times.append((now(device) - began) / (BLOCK * batch))
    counts = iterations_of(infos)
    factor, assembly = parts(model, integrator, state)
    return Run(
        unknowns=model.unknowns.count,
        solver=model.solvers.of(batch).describe(),
        step_ms=1e3 * statistics.median(times),
        factor_ms=1e3 * factor,
        assembly_ms=1e3 * assembly,
        compile_s=first,
        iterations_mean=float(counts.mean()),
        iterations_max=int(counts.max()),
        worst_residual=worst_residual(infos),
        converged=converged_rows(infos),
        nodes_at_end=state.positions[0].cpu(),
        peak_mb=peak_bytes(device) / 1e6,
    )


@torch.no_grad()
def parts(model: Model, integrator: ImplicitEuler, state: State) -> tuple[float, float]:
    """Return the seconds per robot of a factorisation with its solve, and of an evaluation of force and matrix."""
    equations = integrator.equations(model, state)
    equations.prepare()
    x, weight = state.q[:, model.unknowns.index], model.unknowns.residual_weight()
    solver, device = model.solvers.of(state.batch), model.device.type
    values = matrix_values(equations, x, solver, weight)
    factor = median_seconds(lambda: solver.factor(values).solve(x), device)
    assembly = median_seconds(lambda: matrix_values(equations, x, solver, weight), device)
    return factor / state.batch, assembly / state.batch


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the batches to be measured."""
    if quick:
        return [job(case, 1, "eager", "cpu", 2) for case in CASES]
    found = [job(case, batch, "eager", "cpu", 6) for case, batch in product(CASES, (1, 64))]
    found += [job(case, 64, "compiled", "cpu", 6) for case in CASES]
    if cuda:
        found += [job(*what, "cuda", 6) for what in product(CASES, (1, 1024), ("eager", "compiled"))]
    return found


def job(case: str, batch: int, mode: str, device: str, blocks: int) -> Job:
    """Return the job of one batch."""
    settings = {"case": case, "batch": batch, "mode": mode, "device": device, "blocks": blocks}
    return Job("shells", case, batch, f"{mode}, {device}", settings)


def rows(case: str, batch: int, mode: str, device: str, blocks: int) -> list[Row]:
    """Return the row of one batch."""
    torch.set_num_threads(1)
    run = measured(case, batch, mode == "compiled", blocks, device)
    right = measured(case, 1, False, blocks, tolerance=EXACT)
    if not right.converged:
        raise RuntimeError(f"{case}: a step of the reference was not solved to {EXACT:g}")
    return [
        Row(
            case,
            batch,
            f"{mode}, {device}",
            DT,
            1e-3 * run.step_ms,
            residual=run.worst_residual,
            error=float((run.nodes_at_end - right.nodes_at_end).norm(dim=-1).max()),
            converged=run.converged,
            compile_s=run.compile_s,
            peak_mb=run.peak_mb,
            note=f"{run.iterations_mean:.2f} ({run.iterations_max}) iterations, {run.unknowns} unknowns; "
            f"factor + solve {run.factor_ms:.2f} ms, force + matrix {run.assembly_ms:.2f} ms; {short(run.solver)}",
        )
    ]

"""What a step of a shell costs: a falling plate by hinges and by mid-edge normals, and a parachute, in batches.

``python -m benchmarks.shells`` prints the table, ``--out`` writes it as JSON; ``--compile`` compiles the kernels
(told apart from the steps), ``--quick`` takes fewer steps.

The plate: 0.4 m x 0.4 m, 2 mm thick, E = 10 MPa, 1200 kg/m^3, nu = 0.3, 441 nodes and 800 triangles, held at one side
and let go under gravity. The parachute: a hexagonal canopy of 1 m with hinges, six ropes of ten edges tied to it
(joints pinned), a payload of 0.13 kg, gravity and drag: 188 nodes. Both with dt = 1e-2 s by implicit Euler, each step
to a residual of 1e-6 of its force scale. In a batch Young's modulus is spread by 10 % around the nominal one, so no two
robots move in lock-step.

Times are process CPU time on one thread (set OMP_NUM_THREADS=1), medians over blocks of steps after a warm-up. What a
factorisation with its solve and what an evaluation of force and matrix cost is measured at the last state.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import machine
from benchmarks.rods import youngs_of_batch
from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, State, Status, forces, meshes, straight

DT = 1e-2  # s
RELATIVE_TOLERANCE = 1e-6  # of the step's force scale
BATCHES = (1, 16, 64)
BLOCK = 5  # steps that are timed together
GRAVITY = (0.0, 0.0, -9.81)


@dataclass(frozen=True)
class Run:
    """What one batch cost, and what says that its steps were honest."""

    case: str
    batch: int
    compiled: bool
    nodes: int
    triangles: int
    unknowns: int
    solver: str
    step_ms: float  # per robot
    iteration_ms: float  # per robot and Newton iteration
    factor_ms: float  # factor and solve, per robot
    assembly_ms: float  # force and matrix, per robot
    compile_s: float  # wall time of the first step where there is anything to compile
    iterations_mean: float
    iterations_max: int
    worst_residual: float  # over the step's force scale; all robots, all steps
    converged: int  # robots that converged in every step


def plate(bending: str, batch: int, compile: bool) -> Model:
    """Return plates held at one side."""
    mesh = meshes.rectangle(0.4, 0.4, 0.02, "right")
    builder = RobotBuilder()
    material = Material(youngs_of_batch(1e7, batch), 1200.0, 0.3)
    builder.add_shell(mesh.nodes, mesh.triangles, 2e-3, material, bending)
    builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity(GRAVITY))
    return builder.finalize(compile=compile)


def parachute(batch: int, compile: bool) -> Model:
    """Return parachutes about to fall."""
    canopy = meshes.hexagon(1.0, 6)
    payload = np.array([0.0, 0.0, -2.0])
    scale = youngs_of_batch(1.0, batch)
    builder = RobotBuilder(joints="pinned")
    builder.add_shell(canopy.nodes, canopy.triangles, 1e-3, Material(1e9 * scale, 1500.0, 0.3))
    for k in range(6):
        corner = np.array([np.cos(k * np.pi / 3), np.sin(k * np.pi / 3), 0.0])
        builder.add_rod(straight(payload, corner, 11), Circle(1e-3), Material(1e7 * scale, 1500.0, 0.5))
    builder.add_mass(builder.add_nodes(payload[None]).tolist(), 0.13)
    builder.add_force(forces.Gravity(GRAVITY))
    builder.add_force(forces.Drag(1.0, 10.0))
    return builder.finalize(compile=compile)


CASES: dict[str, Callable[[int, bool], Model]] = {
    "plate, hinges": lambda batch, compile: plate("hinge", batch, compile),
    "plate, mid-edge normals": lambda batch, compile: plate("midedge", batch, compile),
    "parachute": parachute,
}


def measured(case: str, batch: int, compile: bool, blocks: int) -> Run:
    """Step a batch and return what it cost."""
    torch.compiler.reset()
    model = CASES[case](batch, compile)
    integrator = ImplicitEuler(DT, relative_tolerance=RELATIVE_TOLERANCE)
    began = time.perf_counter()
    state, _ = integrator.step(model, model.initial_state(batch=batch))
    first = time.perf_counter() - began
    times, iterations, worst = [], [], 0.0
    converged = torch.ones(batch, dtype=torch.bool)
    for _ in range(blocks):
        began = time.process_time()
        for _ in range(BLOCK):
            state, info = integrator.step(model, state)
            iterations.append(info.iterations)
            converged &= info.status == Status.CONVERGED
            worst = max(worst, float((info.residual / info.force_scale).max()))
        times.append((time.process_time() - began) / (BLOCK * batch))
    counts = torch.stack(iterations).double()
    step, mean = statistics.median(times), counts.mean().item()
    factor, assembly = parts(model, integrator, state)
    return Run(
        case=case,
        batch=batch,
        compiled=compile,
        nodes=model.body.n_nodes,
        triangles=len(model.triangles),
        unknowns=model.n_free,
        solver=model.solver_for(batch).describe(),
        step_ms=1e3 * step,
        iteration_ms=1e3 * step / mean,
        factor_ms=1e3 * factor,
        assembly_ms=1e3 * assembly,
        compile_s=first if compile else 0.0,
        iterations_mean=mean,
        iterations_max=int(counts.max()),
        worst_residual=worst,
        converged=int(converged.sum()),
    )


@torch.no_grad()
def parts(model: Model, integrator: ImplicitEuler, state: State) -> tuple[float, float]:
    """Return the seconds a robot of a factorisation with its solve, and of an evaluation of force and matrix."""
    balance = integrator._balance(model, model.start_step(state), state.q, DT)
    x = state.q[:, model.free_index]
    solver = model.solver_for(state.batch)

    def timed(work: Callable[[], Tensor | tuple[Tensor, Tensor]]) -> float:
        times = []
        for _ in range(5):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        return statistics.median(times) / state.batch

    residual, values = balance.residual_and_matrix(x)
    return timed(lambda: solver.factor(values).solve(residual)), timed(lambda: balance.residual_and_matrix(x))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="numbers of robots")
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--compile", action="store_true", help="compile the kernels")
    parser.add_argument("--quick", action="store_true", help="10 steps instead of 30")
    parser.add_argument("--out", type=Path, help="write the runs as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()['date']}, {machine()['cpu']}, torch {torch.__version__}")
    print(
        f"{'case':24}{'B':>4}{'ms/step':>9}{'ms/iter':>9}{'factor':>8}{'assembly':>9}{'iterations':>12}"
        f"{'residual':>10}{'converged':>10}"
    )
    runs = []
    for case in options.case:
        for batch in options.batch:
            run = measured(case, batch, options.compile, 2 if options.quick else 6)
            runs.append(run)
            print(
                f"{run.case:24}{run.batch:4}{run.step_ms:9.2f}{run.iteration_ms:9.2f}{run.factor_ms:8.2f}"
                f"{run.assembly_ms:9.2f}{run.iterations_mean:8.2f} ({run.iterations_max}){run.worst_residual:10.1e}"
                f"{run.converged:7}/{run.batch}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "runs": [asdict(r) for r in runs]}, indent=1))


if __name__ == "__main__":
    main()

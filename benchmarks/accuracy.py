"""Cost against accuracy: our steps and those of dismech-newton, which has no tolerance, at equal errors.

``python -m benchmarks.accuracy`` prints cost and error for every tolerance and every number of iterations;
``make benchmark`` takes from these the costs of errors of 1e-5 m and 1e-6 m.

Both step the same cantilevers (`benchmarks.rods`) by implicit Euler with dt = 1e-2 s for half a second: same masses,
gravity, clamp, stiffnesses and frames. The error is the largest distance of a tip, over all steps and robots, from the
same steps solved in float64 to a relative tolerance of 1e-12. Our steps get cheaper with a larger tolerance, the peer's
with fewer iterations; its state is in float32, so its error stays near 1e-6 m.

Times are process CPU time on one thread, without compiling and building, which are given apart.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import ROOT, Job
from benchmarks.machine import machine, peak_bytes, warm_up
from benchmarks.peers import Cantilever, NotInstalled
from benchmarks.rods import Case, cantilever_model, converged_rows, worst_residual, youngs_of_batch
from benchmarks.table import Row, duration
from torchdismech import ImplicitEuler, Model

YOUNGS, DT, STEPS = 1e6, 1e-2, 50
ROBOTS = ((101, 1), (101, 256), (25, 1024))  # nodes, batch
TARGETS = (1e-5, 1e-6)  # m
TOLERANCES = (1e-3, 1e-4, 3e-5, 1e-5, 1e-6)  # of the step's force scale
ITERATIONS = (2, 3, 4, 6, 8, 12, 16)  # of the peer
PEER = "dismech-newton"
PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True)
class Point:
    """Cost and error of one tolerance, or of one number of iterations."""

    who: str
    effort: str
    seconds: float  # of a robot-step
    error: float  # m
    residual: float | None = None  # largest, over the step's force scale
    converged: int | None = None  # robots that converged in every step


@dataclass(frozen=True)
class Sweep:
    """All points of one simulator for one batch."""

    nodes: int
    batch: int
    points: list[Point]
    compile_s: float
    build_s: float
    peak_mb: float

    def cheapest(self, target: float) -> Point | None:
        """Return the cheapest point with at most this error [m]; None without."""
        right = [point for point in self.points if point.error <= target]
        return min(right, key=lambda point: point.seconds) if right else None


def stepped(model: Model, batch: int, tolerance: float, steps: int) -> tuple[Tensor, float, float, int]:
    """Return the tips (steps, B, 3), CPU seconds, largest relative residual and number of robots that converged."""
    integrator = ImplicitEuler(DT, relative_tolerance=tolerance)
    state, tips, infos = model.initial_state(batch=batch), [], []
    warm_up(integrator, model, state)
    began = time.process_time()
    for _ in range(steps):
        state, info = integrator.step(model, state)
        tips.append(state.positions[:, -1])
        infos.append(info)
    seconds = time.process_time() - began
    return torch.stack(tips), seconds, worst_residual(infos), converged_rows(infos)


def case(nodes: int, batch: int, mode: str) -> Case:
    """Return the case of `benchmarks.rods` with so many nodes and robots."""
    return Case(YOUNGS, batch, mode, STEPS, DT, rod=Cantilever(nodes=nodes))


def reference(nodes: int, batch: int, steps: int) -> Tensor:
    """Return the tips (steps, B, 3) of the same steps, solved to 1e-12; all robots have to get there."""
    tips, _, _, converged = stepped(cantilever_model(case(nodes, batch, "eager")), batch, 1e-12, steps)
    if converged < batch:
        raise RuntimeError(f"the reference failed for {batch - converged} of {batch} robots")
    return tips


def ours(nodes: int, batch: int, mode: str, steps: int, tolerances: Sequence[float] = TOLERANCES) -> Sweep:
    """Measure our steps at every tolerance."""
    began = time.perf_counter()
    model = cantilever_model(case(nodes, batch, mode))
    built = time.perf_counter()
    stepped(model, batch, 1e-6, 1)
    compiled = time.perf_counter()
    stepped(model, batch, 1e-6, 1)
    runs = [stepped(model, batch, tolerance, steps) for tolerance in tolerances]
    peak = peak_bytes() / 1e6
    right = reference(nodes, batch, steps)
    points = [
        Point(
            mode,
            f"tolerance {tolerance:g}",
            seconds / (steps * batch),
            float((tips - right).norm(dim=-1).max()),
            residual,
            converged,
        )
        for tolerance, (tips, seconds, residual, converged) in zip(tolerances, runs, strict=True)
    ]
    return Sweep(nodes, batch, points, compiled - built, built - began, peak)


def newton(nodes: int, batch: int, steps: int, iterations: Sequence[int] = ITERATIONS, exact: bool = False) -> Sweep:
    """Measure dismech-newton at numbers of iterations, until an error reaches the last target.

    `exact` takes its Gauss-Newton iterations with a factorisation each instead of ADMM.
    """
    rod = Cantilever(nodes=nodes)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, reference(nodes, batch, steps).numpy())
        file.flush()
        found = run_peer(
            {
                **asdict(rod),
                "youngs": youngs_of_batch(YOUNGS, batch).flatten().tolist(),
                "dt": DT,
                "iterations": list(iterations),
                "exact": exact,
                "reference": file.name,
                "target": min(TARGETS),
            }
        )
    who = f"{PEER} {found['version']}" + (", exact" if exact else "")
    points = [Point(who, f"{run['iterations']} iterations", run["seconds"], run["error"]) for run in found["runs"]]
    return Sweep(nodes, batch, points, found["compile_s"], found["build_s"], found["peak_mb"])


def run_peer(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job of `peer_newton` by the peer's own Python, and return what it measured.

    Raises
    ------
    NotInstalled : if that Python or the package is not there.
    RuntimeError : if it fails in another way.
    """
    if not PEER_PYTHON.exists():
        raise NotInstalled(f"{PEER}: no {PEER_PYTHON.parent.parent.name}; `make peers` makes it")
    command = [str(PEER_PYTHON), "-m", "benchmarks.peer_newton"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(job), capture_output=True, text=True)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode:
        raise (NotInstalled if "ModuleNotFoundError" in last else RuntimeError)(f"{PEER}: {last}")
    return json.loads(done.stdout)


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the jobs, for us and for the peer; on a CPU only, as the peer's solver for GPUs is an extra."""
    return [
        Job(
            "accuracy",
            case_name(nodes, min(TARGETS)),
            batch,
            who,
            {"nodes": nodes, "batch": batch, "who": who, "steps": 20 if quick else STEPS},
            peer=who == PEER,
        )
        for nodes, batch in (ROBOTS[:1] if quick else ROBOTS)
        for who in (PEER, "eager")
    ]


def case_name(nodes: int, target: float) -> str:
    """Return the table's name of a rod whose tip may be off by so much [m]."""
    return f"rod, {nodes} nodes, tip within {target:g} m"


def rows(nodes: int, batch: int, who: str, steps: int = STEPS) -> list[Row]:
    """Return a row for each target error: the cheapest point that reaches it, of mode or peer `who`."""
    torch.set_num_threads(1)
    sweep = newton(nodes, batch, steps) if who == PEER else ours(nodes, batch, who, steps)
    found = []
    for target in TARGETS:
        name, point = case_name(nodes, target), sweep.cheapest(target)
        if point is None:
            best = min(point.error for point in sweep.points)
            found.append(Row(name, batch, who, peer=who == PEER, note=f"not reached: {best:.1e} m at best"))
            continue
        found.append(
            Row(
                name,
                batch,
                point.who if who == PEER else f"{who}, cpu",
                DT,
                point.seconds,
                who == PEER,
                point.residual,
                point.error,
                converged=point.converged,
                compile_s=sweep.compile_s,
                peak_mb=sweep.peak_mb,
                note=point.effort + (", no tolerance of its own" if who == PEER else ""),
            )
        )
    return found


def print_sweep(sweep: Sweep) -> None:
    """Print a line for each point."""
    print(
        f"\n{sweep.nodes} nodes, B = {sweep.batch}: built in {sweep.build_s:.1f} s, first step {sweep.compile_s:.1f} s"
    )
    for point in sweep.points:
        print(f"{point.who:34} {point.effort:16} {duration(point.seconds):>8} a robot-step, tip {point.error:.1e} m")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=101)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--modes", nargs="*", default=["eager"], choices=["eager", "compiled"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--exact", action="store_true", help=f"{PEER}'s Gauss-Newton iterations, too")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for mode in chosen.modes:
        print_sweep(ours(chosen.nodes, chosen.batch, mode, chosen.steps))
    for exact in (False, True) if chosen.exact else (False,):
        print_sweep(newton(chosen.nodes, chosen.batch, chosen.steps, exact=exact))


if __name__ == "__main__":
    main()

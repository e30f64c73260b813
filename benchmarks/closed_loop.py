"""What a closed loop costs: a snake that follows another one's curvature, beside the same snake without the loop.

``python -m benchmarks closed_loop`` prints the rows. The snake of `studies/shape_tracking` with 101 nodes, the PI law
with feed-forward on its curvature; its reference is stored at each step. The open loop plays the same natural curvature
from a table. In a batch Young's modulus differs by 10 % from robot to robot. Both are stepped in turns in one process;
times are process CPU time on one thread.

The peer, `peer_swimmer`, is the same loop round one planar rod in NumPy: two unknowns a node, nothing of space or
twist. Then the rod of `studies/shape_regulation`, one robot, beside real time.
"""

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks import peer_swimmer
from benchmarks.jobs import Job
from benchmarks.machine import peak_bytes
from benchmarks.rods import youngs_of_batch
from benchmarks.table import Row
from studies.shape_regulation import shape_regulation
from studies.shape_tracking import shape_tracking as snake
from torchdismech import Control, ImplicitEuler, Model, Status, rollout
from torchdismech.control import PI, Strains, Table

CASE, REGULATION = "snake in a closed loop, 101 nodes", "regulation of a shape, 51 nodes"
NODES, TOLERANCE = 101, 1e-9  # N
KP, KI = 0.5, 50.0  # 1, 1/s
REPEATS = 5


def integrator(tolerance: float = TOLERANCE) -> ImplicitEuler:
    """Return the integrator of all snakes."""
    return ImplicitEuler(snake.STEP, force_tolerance=tolerance, relative_tolerance=0)


def swimmers(batch: int, mode: str) -> Model:
    """Return a batch of snakes."""
    model = snake.build(youngs_of_batch(snake.YOUNGS, batch), nodes=NODES)
    model.compilation.setting = mode == "compiled"
    return model


def reference(steps: int) -> tuple[Strains, Table]:
    """Return the strains that are controlled and what they shall be, for so many steps and one more."""
    model = snake.build(nodes=NODES)
    model.compilation.setting = False
    strains = Strains(model, ["curvature"])
    course = snake.swum(model, strains, duration=(steps + 1) * snake.STEP, schedule=snake.wave)
    return strains, snake.stored(course)


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the batches to be measured."""
    if quick:
        return [Job("closed_loop", CASE, 4, "eager, cpu", {"batch": 4, "mode": "eager", "steps": 5})]
    own = [
        Job("closed_loop", CASE, batch, f"{mode}, cpu", {"batch": batch, "mode": mode, "steps": 100})
        for batch, mode in ((1, "eager"), (256, "eager"), (256, "compiled"))
    ]
    regulation = [Job("closed_loop", REGULATION, 1, "eager, cpu", {"batch": 0, "mode": "eager", "steps": 400})]
    peer = Job("closed_loop", CASE, 1, "NumPy", {"batch": 1, "mode": "numpy", "steps": 100}, peer=True)
    return [peer, *own, *regulation]


def rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return the rows of a batch with and without the loop, that of the peer, or that of regulation (batch 0)."""
    torch.set_num_threads(1)
    if mode == "numpy":
        return [peer_row(steps)]
    return own_rows(batch, mode, steps) if batch else [regulation_row(mode, steps)]


def timed(model: Model, batch: int, steps: int, **driven) -> tuple[Tensor, Tensor, float]:
    """Return where a rollout ends (B, N, 3), the status of its robots and its CPU time [s]."""
    start = model.initial_state(batch)
    began = time.process_time()
    run = rollout(model, start, integrator(), steps, every=steps, **driven)
    return run.positions[-1], run.status[-1], time.process_time() - began


def own_rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return what open and closed loop cost, stepped in turns with the peer, and the ratios of all three."""
    strains, table = reference(steps)
    model = swimmers(batch, mode)
    voronoi = model.term("bend_twist").scale
    assert voronoi is not None

    def played(time: Tensor, model: Model) -> Control:
        bent = table(time) * voronoi
        return Control(natural_curvature=torch.stack([bent, torch.zeros_like(bent)], dim=-1))

    controller = PI(model, strains, table, snake.STEP, KP, KI, True)
    ways: dict[str, dict[str, Any]] = {"open": {"schedule": played}, "closed": {"controller": controller}}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    status: dict[str, Tensor] = {}
    first: dict[str, float] = {}
    peer: list[float] = []
    for repeat in range(REPEATS + 1):  # the first warms up, and compiles
        for name, way in ways.items():
            began = time.perf_counter()
            _, status[name], cost = timed(model, batch, steps if repeat or mode == "compiled" else 2, **way)
            if repeat:
                costs[name].append(cost / (steps * batch))
            else:
                first[name] = time.perf_counter() - began
        if repeat:
            peer.append(peer_run(table, steps).seconds / steps)
    ratio, faster = (
        statistics.median(other / c for other, c in zip(others, costs["closed"], strict=True))
        for others in (costs["open"], peer)
    )
    notes = {"open": "", "closed": f"{ratio:.3f} x the steps a second of the open loop, {faster:.1f} x the peer's"}
    return [
        Row(
            CASE if name == "closed" else CASE.replace("a closed", "an open"),
            batch,
            f"{mode}, cpu",
            snake.STEP,
            statistics.median(costs[name]),
            converged=int((status[name] == Status.CONVERGED).sum()),
            compile_s=first[name] if mode == "compiled" else None,
            peak_mb=peak_bytes() / 1e6,
            note=notes[name],
        )
        for name in ways
    ]


def peer_run(table: Table, steps: int) -> peer_swimmer.Followed:
    """Return a run of the peer."""
    return peer_swimmer.followed(steps, table.values.numpy(), snake.STEP, KP, KI, TOLERANCE)


def peer_row(steps: int) -> Row:
    """Return what the peer costs, and how far its snake ends from ours, each step solved well."""
    strains, table = reference(steps)
    model = swimmers(1, "eager")
    controller = PI(model, strains, table, snake.STEP, KP, KI, True)
    ours = rollout(model, model.initial_state(), integrator(1e-12), steps, every=steps, controller=controller)
    runs = [peer_run(table, steps) for _ in range(REPEATS)]
    error = abs(runs[0].nodes - ours.positions[-1, 0][:, [0, 2]].numpy()).max()
    seconds = statistics.median(run.seconds for run in runs) / steps
    note = f"{runs[0].iterations:.2f} iterations, to {TOLERANCE:.0e} N"
    return Row(
        CASE, 1, "NumPy", snake.STEP, seconds, peer=True, error=float(error), peak_mb=peak_bytes() / 1e6, note=note
    )


def regulation_row(mode: str, steps: int) -> Row:
    """Return what a step of the regulation example costs with one robot."""
    model = shape_regulation.build()
    model.compilation.setting = mode == "compiled"
    controller = shape_regulation.loop(model)
    costs, dt = [], shape_regulation.STEP
    for repeat in range(REPEATS + 1):
        start = model.initial_state()
        began = time.process_time()
        run = rollout(model, start, ImplicitEuler(dt), steps, every=steps, controller=controller)
        if repeat:
            costs.append((time.process_time() - began) / steps)
    note = f"{float(run.iterations.sum()) / steps:.2f} iterations"
    return Row(
        REGULATION, 1, f"{mode}, cpu", dt, statistics.median(costs), converged=int(not run.failed.any()), note=note
    )

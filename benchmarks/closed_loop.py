"""Cost of a closed loop: a snake that follows another one's curvature, beside the same snake without the loop.

``python -m benchmarks closed_loop`` prints the rows. The snake of `studies/shape_tracking` with 101 nodes, the PI law
with feed-forward on its curvature; its reference is stored at each step. The open loop plays the same natural curvature
from a table. In a batch Young's modulus differs by 10 % from robot to robot. Both are stepped in turns in one process;
times are process CPU time on one thread.

The peers, `peer_swimmer`, are the same loop round one rod of PyElastica, and round one planar rod in NumPy, which has
two unknowns a node, no third dimension and no twist. A step of a peer is one of the loop. A further row is the rod of
`studies/shape_regulation`, one robot, to be compared with real time.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
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
FEW = 10  # steps of PyElastica between two runs of ours


def integrator(tolerance: float = TOLERANCE) -> ImplicitEuler:
    """Return the integrator of all snakes."""
    return ImplicitEuler(snake.STEP, force_tolerance=tolerance, relative_tolerance=0)


def swimmers(batch: int, mode: str) -> Model:
    """Return a batch of snakes."""
    model = snake.build(youngs_of_batch(snake.YOUNGS, batch), nodes=NODES)
    model.compilation.setting = mode == "compiled"
    return model


def reference(steps: int) -> tuple[Strains, Table]:
    """Return the controlled strains and the table of their reference values, for `steps` + 1 steps."""
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
    peers = [
        Job("closed_loop", CASE, 1, who, {"batch": 1, "mode": who, "steps": 100}, peer=True)
        for who in ("NumPy", "PyElastica")
    ]
    return [*peers, *own, *regulation]


def rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return the rows of a batch with and without the loop, that of a peer, or that of regulation (batch 0)."""
    torch.set_num_threads(1)
    if mode in ("NumPy", "PyElastica"):
        return [numpy_row(steps)] if mode == "NumPy" else pyelastica_rows(steps)
    return own_rows(batch, mode, steps) if batch else [regulation_row(mode, steps)]


def timed(model: Model, batch: int, steps: int, **driven) -> tuple[Tensor, Tensor, float]:
    """Return where a rollout ends (B, N, 3), the status of its robots and its CPU time [s]."""
    start = model.initial_state(batch)
    began = time.process_time()
    run = rollout(model, start, integrator(), steps, every=steps, **driven)
    return run.positions[-1], run.status[-1], time.process_time() - began


def loops(model: Model, strains: Strains, table: Table) -> dict[str, dict[str, Any]]:
    """Return the arguments of `rollout` for an open loop, which plays the table, and a closed one, which follows it."""
    voronoi = model.term("bend_twist").scale
    assert voronoi is not None

    def played(time: Tensor, model: Model) -> Control:
        bent = table(time) * voronoi
        return Control(natural_curvature=torch.stack([bent, torch.zeros_like(bent)], dim=-1))

    controller = PI(model, strains, table, snake.STEP, KP, KI, True)
    return {"open": {"schedule": played}, "closed": {"controller": controller}}


def own_rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return the rows of open and closed loop, stepped in turns with the peers, with the ratios of their costs."""
    strains, table = reference(steps)
    model = swimmers(batch, mode)
    ways = loops(model, strains, table)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    status: dict[str, Tensor] = {}
    first: dict[str, float] = {}
    peers: dict[str, list[float]] = {"NumPy": [], "PyElastica": []}
    for repeat in range(REPEATS + 1):  # the first warms up, and compiles
        for name, way in ways.items():
            began = time.perf_counter()
            _, status[name], cost = timed(model, batch, steps if repeat or mode == "compiled" else 2, **way)
            if repeat:
                costs[name].append(cost / (steps * batch))
            else:
                first[name] = time.perf_counter() - began
        if repeat:
            peers["NumPy"].append(numpy_run(table, steps).seconds / steps)
            peers["PyElastica"].append(pyelastica_run(table, FEW).seconds / FEW)
    ratios = {
        who: statistics.median(other / c for other, c in zip(others, costs["closed"], strict=True))
        for who, others in (("the open loop", costs["open"]), *peers.items())
    }
    closed = "steps a second: " + ", ".join(f"{ratio:.3g} x {who}" for who, ratio in ratios.items())
    notes = {"open": "", "closed": closed}
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


def numpy_run(table: Table, steps: int) -> peer_swimmer.Followed:
    """Return a run of the NumPy peer."""
    return peer_swimmer.followed(steps, table.values.numpy(), snake.STEP, KP, KI, TOLERANCE)


def pyelastica_run(table: Table, steps: int, step: float = peer_swimmer.PYELASTICA_LARGEST_DT) -> peer_swimmer.Followed:
    """Return a run of PyElastica, by default at its largest stable step."""
    return peer_swimmer.pyelastica_followed(steps, table.values.numpy(), snake.STEP, step)


def ours_after(strains: Strains, table: Table, steps: int, Kp: float, Ki: float) -> np.ndarray:
    """Return our nodes (N, 2) [m] after so many steps, each solved to 1e-12 N."""
    model = swimmers(1, "eager")
    controller = PI(model, strains, table, snake.STEP, Kp, Ki, True)
    run = rollout(model, model.initial_state(), integrator(1e-12), steps, every=steps, controller=controller)
    return run.positions[-1, 0][:, [0, 2]].numpy()


def numpy_row(steps: int) -> Row:
    """Return the row of the NumPy peer: its cost, and how far its snake ends from ours."""
    strains, table = reference(steps)
    runs = [numpy_run(table, steps) for _ in range(REPEATS)]
    note = f"{runs[0].iterations:.2f} iterations, to {TOLERANCE:.0e} N"
    return peer_row("NumPy", runs, steps, ours_after(strains, table, steps, KP, KI), note)


def pyelastica_rows(steps: int) -> list[Row]:
    """Return PyElastica's rows at its usual and its largest stable step: cost, and how far it ends from ours."""
    strains, table = reference(steps)
    ours = ours_after(strains, table, steps, *peer_swimmer.PYELASTICA_GAINS)
    note = "Kp = {:g}, Ki = {:g} 1/s".format(*peer_swimmer.PYELASTICA_GAINS)
    return [
        peer_row(f"PyElastica, dt = {1e6 * step:.1f} us", [pyelastica_run(table, steps, step)], steps, ours, note)
        for step in (peer_swimmer.PYELASTICA_DT, peer_swimmer.PYELASTICA_LARGEST_DT)
    ]


def peer_row(who: str, runs: Sequence[peer_swimmer.Followed], steps: int, ours: np.ndarray, note: str) -> Row:
    """Return the row of a peer."""
    seconds = statistics.median(run.seconds for run in runs) / steps
    error = float(abs(runs[0].nodes - ours).max())
    return Row(CASE, 1, who, snake.STEP, seconds, peer=True, error=error, peak_mb=peak_bytes() / 1e6, note=note)


def regulation_row(mode: str, steps: int) -> Row:
    """Return the row of a step of `studies/shape_regulation` with one robot."""
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

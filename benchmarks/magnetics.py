"""Cost of a magnetic field: a beam of 40 nodes, beside the same rod without the field and beside plain NumPy.

``python -m benchmarks magnetics`` prints the rows. The beam of `studies/magnetic_beam`, clamped, in a field of 3 T
that turns once in 6.28 s, with a force of 0.5 N on its tip, which is all that moves it where there is no field.
Implicit Euler, dt = 10 ms, each step to a residual of 1e-6 N. In a batch Young's modulus differs by 10 % from robot
to robot.

Both rods are stepped in turns in one process, with the peer; times are process CPU time on one thread. The peer,
`peer_numpy`, steps one planar rod, which has two unknowns a node, no third dimension and no twist.
"""

import statistics
import time

import numpy as np
import torch

from benchmarks.jobs import Job
from benchmarks.machine import peak_bytes
from benchmarks.peer_numpy import PlanarRod
from benchmarks.rods import converged_rows, iterations_of, timed_steps, worst_residual, youngs_of_batch
from benchmarks.table import Row
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    State,
    forces,
    magnetics,
    straight,
)

CASE = "magnetic beam, 40 nodes"
NODES, RADIUS, YOUNGS, DENSITY, DAMPING = 40, 1e-2, 1e8, 10.0, 0.1  # m, Pa, kg/m^3, 1/s
MAGNETISATION, FIELD, TIP_FORCE = 1000.0, 3.0, 0.5  # A/m, T, N
DT, TOLERANCE = 1e-2, 1e-6  # s, N
EXACT = 1e-10  # N
REPEATS = 5


def beam(batch: int, mode: str, magnetised: bool) -> Model:
    """Return a batch of beams."""
    builder = RobotBuilder(planar=True)
    nodes = straight((-0.5, 0.0, 0.0), (0.5, 0.0, 0.0), NODES)
    builder.add_rod(nodes, Circle(RADIUS), Material(youngs_of_batch(YOUNGS, batch), DENSITY))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.MassDamping(DAMPING))
    builder.add_force(forces.PointForce([NODES - 1], (0.0, 0.0, TIP_FORCE)))
    if magnetised:
        field = magnetics.Rotating(FIELD, 1 / (2 * np.pi))
        builder.add_force(magnetics.Magnetic((MAGNETISATION, 0.0, 0.0), field))
    return builder.finalize(compile=mode == "compiled")


def integrator(tolerance: float = TOLERANCE) -> ImplicitEuler:
    """Return the integrator of all rods."""
    return ImplicitEuler(DT, force_tolerance=tolerance, relative_tolerance=0)


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the batches to be measured."""
    if quick:
        return [Job("magnetics", CASE, 4, "eager, cpu", {"batch": 4, "mode": "eager", "steps": 10})]
    own = [
        Job("magnetics", CASE, 256, f"{mode}, cpu", {"batch": 256, "mode": mode, "steps": 100})
        for mode in ("eager", "compiled")
    ]
    return [Job("magnetics", CASE, 1, "NumPy", {"batch": 1, "mode": "numpy", "steps": 100}, peer=True), *own]


def rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return the rows of a batch with and without the field, or that of the peer."""
    torch.set_num_threads(1)
    return [peer_row(steps)] if mode == "numpy" else own_rows(batch, mode, steps)


def own_rows(batch: int, mode: str, steps: int) -> list[Row]:
    """Return the rows of both rods, stepped in turns with the peer; notes compare with the peer and without a field."""
    rods = {magnetised: beam(batch, mode, magnetised) for magnetised in (False, True)}
    first, ends = {}, {}
    costs: dict[bool, list[float]] = {False: [], True: []}
    peer: list[float] = []
    for magnetised, model in rods.items():
        began = time.perf_counter()
        integrator().step(model, model.initial_state(batch=batch))
        first[magnetised] = time.perf_counter() - began
    for repeat in range(REPEATS + 1):  # the first warms up
        for magnetised, model in rods.items():
            state, infos, cost = timed_steps(integrator(), model, model.initial_state(batch=batch), steps)
            ends[magnetised] = (state, infos)
            if repeat:
                costs[magnetised].append(cost / (steps * batch))
        if repeat:
            peer.append(peer_run(steps)[1] / steps)
    faster = statistics.median(p / own for p, own in zip(peer, costs[True], strict=True))
    more = statistics.median(w / o for w, o in zip(costs[True], costs[False], strict=True))
    found = []
    for magnetised in (False, True):
        state, infos = ends[magnetised]
        exact = exact_end(batch, magnetised, steps)
        iterations = iterations_of(infos)
        said = f"{iterations.mean():.2f} ({int(iterations.max())}) iterations"
        found.append(
            Row(
                CASE if magnetised else f"{CASE}, no field",
                batch,
                f"{mode}, cpu",
                DT,
                statistics.median(costs[magnetised]),
                residual=worst_residual(infos),
                error=float((state.positions - exact.positions).norm(dim=-1).max()),
                converged=converged_rows(infos),
                compile_s=first[magnetised],
                peak_mb=peak_bytes() / 1e6,
                note=f"{said}; {more:.2f} x the time without the field, {faster:.1f} x NumPy" if magnetised else said,
            )
        )
    return found


def exact_end(batch: int, magnetised: bool, steps: int) -> State:
    """Return the state after so many steps, each solved to `EXACT`."""
    model = beam(batch, "eager", magnetised)
    state, infos, _ = timed_steps(integrator(EXACT), model, model.initial_state(batch=batch), steps)
    if converged_rows(infos) < batch:
        raise RuntimeError(f"a step of the reference was not solved to {EXACT:g} N")
    return state


def peer_run(steps: int, tolerance: float = TOLERANCE) -> tuple[np.ndarray, float, list[int], float]:
    """Return the peer's last nodes (N, 2) [m], its CPU seconds, iterations of each step and worst residual [N]."""
    nodes = straight((-0.5, 0.0, 0.0), (0.5, 0.0, 0.0), NODES)[:, [0, 2]]
    load = np.zeros_like(nodes)
    load[-1, 1] = TIP_FORCE
    magnetisation = np.broadcast_to([MAGNETISATION, 0.0], (NODES - 1, 2))
    rod = PlanarRod(nodes, RADIUS, YOUNGS, DENSITY, DAMPING, magnetisation, load, held=2)
    x, v, iterations, worst = nodes.copy(), np.zeros_like(nodes), [], 0.0
    began = time.process_time()
    for step in range(steps):
        time_at_end = DT * (step + 1)
        field = FIELD * np.array([np.cos(time_at_end), np.sin(time_at_end)])
        x, v, count, residual = rod.step(x, v, field, DT, tolerance)
        iterations.append(count)
        worst = max(worst, residual)
    return x, time.process_time() - began, iterations, worst


def peer_row(steps: int) -> Row:
    """Return the row of the peer: its cost, and how far it ends from our rod."""
    peer_run(3)
    runs = [peer_run(steps) for _ in range(REPEATS)]
    x, _, iterations, worst = runs[-1]
    model = beam(1, "eager", True)
    exact, _, _ = timed_steps(integrator(EXACT), model, model.initial_state(batch=1), steps)
    ours = exact.positions[0][:, [0, 2]].numpy()
    seconds = statistics.median(cost for _, cost, _, _ in runs) / steps
    said = f"{np.mean(iterations):.2f} ({max(iterations)}) iterations, to {worst:.0e} N"
    error = float(np.linalg.norm(x - ours, axis=1).max())
    return Row(CASE, 1, "NumPy", DT, seconds, peer=True, error=error, peak_mb=peak_bytes() / 1e6, note=said)

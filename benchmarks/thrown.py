"""Rods thrown on a rough floor, none like another: what a batch pays for its worst robot.

``python -m benchmarks thrown``. 256 rods of 9 nodes, with different Young's moduli from 1e4 to 1e8 Pa, velocities and
spins, fall on a floor by penalty (200 N/m within 1 mm) with friction of 0.4, which has its full size at 1 mm/s. dt is
2 ms, implicit Euler, each step to a residual of 1e-6 of its force scale. First contacts come after 10 ms. Times are
process CPU time on one thread, the mean over all steps, so that expensive ones count.
"""

import math
import statistics

import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import now, peak_bytes, warm_up
from benchmarks.rods import EXACT, converged_rows, iterations_of
from benchmarks.table import Row
from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, State, forces, straight
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty

DT = 2e-3  # s
RELATIVE_TOLERANCE = 1e-6  # of the step's force scale
NODES, LENGTH, RADIUS = 9, 0.2, 5e-3  # m


def thrown(batch: int) -> tuple[Model, State]:
    """Return the model and the initial state of the thrown rods, the same for every call."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    youngs = 10 ** (4 + 4 * torch.rand(batch, 1, generator=generator, dtype=torch.float64))
    builder = RobotBuilder()
    points = straight([0.0, 0.0, 0.02], [LENGTH, 0.0, 0.02], NODES)
    builder.add_rod(points, Circle(RADIUS), Material(youngs, 1000.0, 0.4))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    floor = HalfSpace((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    builder.add_contact(Obstacle(floor, Penalty(200.0, 1e-3), Friction(0.4, 1e-3)))
    model = builder.finalize(compile=False)
    along = 0.5 * random(batch, 1, 3) + torch.tensor([0.0, 0.0, -0.5])
    spin = 5 * random(batch, 1, 3)
    arms = (model.nodes - model.nodes.mean(0)).expand(batch, -1, 3)
    velocity = torch.zeros(batch, model.n_dofs, dtype=torch.float64)
    velocity[:, : 3 * NODES] = (along + torch.linalg.cross(spin.expand(batch, NODES, 3), arms)).flatten(1)
    return model, model.initial_state(velocity=velocity)


def stepped(batch: int, steps: int, tolerance: float = RELATIVE_TOLERANCE) -> tuple[State, list[float], Tensor, int]:
    """Return the state after the steps, CPU time of each [s], iterations (steps, B), and number of converged robots."""
    model, state = thrown(batch)
    integrator = ImplicitEuler(DT, relative_tolerance=tolerance)
    times, infos = [], []
    warm_up(integrator, model, state)
    for _ in range(steps):
        began = now("cpu")
        state, info = integrator.step(model, state)
        times.append(now("cpu") - began)
        infos.append(info)
    return state, times, iterations_of(infos), converged_rows(infos)


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the one job."""
    batch, steps = (8, 4) if quick else (256, 100)
    return [Job("thrown", "contact: thrown rods", batch, "eager, cpu", {"batch": batch, "steps": steps})]


def rows(batch: int, steps: int) -> list[Row]:
    """Return the row of the batch."""
    torch.set_num_threads(1)
    state, times, iterations, converged = stepped(batch, steps)
    peak = peak_bytes("cpu") / 1e6
    exact = stepped(batch, steps, EXACT)[0]
    nodes = slice(0, 3 * NODES)
    error = (state.q - exact.q)[:, nodes].unflatten(1, (-1, 3)).norm(dim=-1).amax(1)
    spread = iterations.flatten().quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    return [
        Row(
            "contact: thrown rods",
            batch,
            "eager, cpu",
            DT,
            statistics.mean(times) / batch,
            # the motion is chaotic: some rods end far off, so the median rod counts
            error=float(error.median()) if math.isfinite(float(error.max())) else math.nan,
            converged=converged,
            peak_mb=peak,
            note=f"iterations: {iterations.mean():.2f} on average, {spread[0]:.0f} in the median, {spread[1]:.0f} at "
            f"the 99th percentile, {iterations.max():.0f} in the worst robot; in the median step "
            f"{1e3 * statistics.median(times) / batch:.3g} ms a robot; error: of the median robot",
        )
    ]

"""Cost of contact: bundles of rods, a folded sheet and a rod on a floor, beside the same runs without contact.

``python -m benchmarks contact`` (or ``make benchmark-contact``) prints the table.

The rods: six of 0.1 m, r = 2 mm, E = 1 MPa, 17 nodes each, side by side at small angles and pushed together. The sheet:
1 mm thick, E = 1 MPa, folded once (that is its rest shape), its two layers pushed together. The floor: a rod of 0.5 m,
r = 5 mm, 101 nodes, dropped on it. All by penalty with a tolerance of 1 mm and dt = 2 ms, implicit Euler, each step to
a residual of 1e-6 of its force scale; rough: Coulomb friction of 0.3, saturated at 10 mm/s. Every robot of a batch
starts with other velocities. Without contact the same robots start alike and pass through each other.

Times are process CPU time on one thread, medians of steps after a warm-up. An active pair is one closer than the
tolerance; its cost is the difference of both runs over the number of active pairs. The broad phase, the forces of
contact with their matrix, and factor and solve are measured at the last state.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import median_seconds, now, peak_bytes, warm_up
from benchmarks.rods import EXACT, converged_rows, iterations_of, worst_residual
from benchmarks.table import Row, short
from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, State, forces, straight
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.integrate.recorded.recording import records_eager_steps
from torchdismech.model.mechanics import Gains

DT = 2e-3  # s
RELATIVE_TOLERANCE = 1e-6  # of the step's force scale
TOLERANCE = 1e-3  # m
WARM_UP = 3  # steps: the first finds patterns and solvers
GRAVITY = (0.0, 0.0, -9.81)
BATCHES = {  # of each case; a sheet of 60 x 60 nodes has 17500 edges and triangles
    "floor": (1, 16, 64),
    "floor, rough": (1, 16, 64),
    "rods": (1, 16, 64),
    "rods, rough": (1, 16, 64),
    "sheet, 20 x 20": (1, 16),
    "sheet, 40 x 40": (1,),
    "sheet, 60 x 60": (1,),
}


@dataclass(frozen=True)
class Run:
    """Cost of one batch with and without contact, with residuals and convergence of its steps."""

    solver: str
    active: float  # pairs a robot
    step_ms: float  # per robot
    free_step_ms: float  # per robot, without contact
    broad_ms: float  # broad phase of a step, per robot
    forces_ms: float  # forces of contact with their matrix, once, per robot
    factor_ms: float  # factor and solve, per robot
    iterations: float
    free_iterations: float
    worst_residual: float  # over the step's force scale; all robots, all steps
    converged: int  # robots that converged in every step
    error: float  # m, largest distance of a node from the same steps solved to EXACT
    compile_s: float
    peak_mb: float  # of the process after the steps with contact

    @property
    def pair_us(self) -> float:
        """Microseconds that contact adds to a step for each active pair."""
        return 1e3 * (self.step_ms - self.free_step_ms) / max(self.active, 1.0)

    @property
    def broad_share(self) -> float:
        """Share of a step that the broad phase takes."""
        return self.broad_ms / self.step_ms


def rods(touching: bool, rough: bool, compile: bool, device: str) -> tuple[Model, Tensor]:
    """Return six rods side by side and the velocity (1, n) that pushes them together."""
    radius, length, nodes = 2e-3, 0.1, 17
    apart, random = 2 * radius + 0.5 * TOLERANCE, np.random.default_rng(1)
    builder = RobotBuilder()
    for i in range(2):
        for j in range(3):
            y, z = (i + 0.5 * (j % 2)) * apart, 0.87 * j * apart
            (a, b), shift = random.uniform(-0.06e-3, 0.06e-3, 2), random.uniform(-1.5e-3, 1.5e-3)
            points = straight([shift, y - a, z - b], [shift + length, y + a, z + b], nodes)
            points = points + 1e-5 * random.standard_normal(points.shape)
            ids = builder.add_rod(points, Circle(radius), Material(1e6, 1000.0, 0.4))
            builder.clamp(nodes=ids[:1].tolist())
    builder.add_force(forces.Gravity(GRAVITY))
    if touching:
        builder.add_contact(SelfContact(Penalty(50.0, TOLERANCE), friction(rough)))
    model = builder.finalize(compile=compile, device=device)
    return model, velocity(model, lambda x: -5.0 * (x - x.mean(0)) * torch.tensor([0.0, 1.0, 1.0], device=x.device))


def sheet(side: int, touching: bool, rough: bool, compile: bool, device: str) -> tuple[Model, Tensor]:
    """Return a folded sheet of `side` x `side` nodes and the velocity (1, n) that pushes its layers together."""
    thickness, edge = 1e-3, 0.01
    builder = RobotBuilder()
    nodes = folded(side, edge, thickness + 0.5 * TOLERANCE, 0.6 * edge)
    builder.add_shell(nodes, squares(side), thickness, Material(1e6, 1200.0, 0.3), "hinge")
    builder.clamp(nodes=list(range(side)))
    if touching:
        builder.add_contact(SelfContact(Penalty(20.0, TOLERANCE), friction(rough)))
    model = builder.finalize(compile=compile, device=device)
    upper = torch.arange(side * side, device=device) >= side * (side // 2)
    speed = torch.where(upper, -0.01, 0.01)[:, None]
    return model, velocity(model, lambda x: speed * torch.tensor([0.0, 0.0, 1.0], device=device))


def floor(touching: bool, rough: bool, compile: bool, device: str) -> tuple[Model, Tensor]:
    """Return a rod just above a floor and its velocity (1, n)."""
    builder = RobotBuilder()
    builder.add_rod(straight([0.0, 0.0, 5.5e-3], [0.5, 0.0, 6e-3], 101), Circle(5e-3), Material(1e6, 1000.0, 0.4))
    builder.add_force(forces.Gravity(GRAVITY))
    if touching:
        half_space = HalfSpace((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
        builder.add_contact(Obstacle(half_space, Penalty(50.0, TOLERANCE), friction(rough)))
    model = builder.finalize(compile=compile, device=device)
    return model, velocity(model, lambda x: torch.tensor([0.05, 0.0, -0.05], device=device).expand_as(x))


def friction(rough: bool) -> Friction | None:
    """Return the friction of a rough case; None of a smooth one."""
    return Friction(0.3, 0.01) if rough else None


def velocity(model: Model, of_nodes: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the velocity (1, n) that a function of the positions (N, 3) gives the free nodes."""
    spread = torch.zeros(model.n_dofs, dtype=model.dtype, device=model.device)
    spread[: 3 * model.body.n_nodes] = of_nodes(model.nodes).flatten().to(model.dtype)
    return (spread * model.free)[None]


def folded(side: int, edge: float, gap: float, bend: float) -> np.ndarray:
    """Return the nodes (side^2, 3) of a sheet in two layers `gap` apart, with a bend of radius `bend` between them."""
    random = np.random.default_rng(1)
    along = edge * np.arange(side)
    flat = 0.5 * (along[-1] - np.pi * bend)
    turn = np.clip((along - flat) / bend, 0, np.pi)
    x = flat - np.abs(np.maximum(flat - along, along - flat - np.pi * bend).clip(0)) + bend * np.sin(turn)
    z = bend * (1 - np.cos(turn))
    closed = np.clip((flat - x) / (4 * edge), 0, 1)
    closed = closed**2 * (3 - 2 * closed)
    z = z * (1 - closed) + closed * gap * (turn > 1)
    nodes = np.stack(np.broadcast_arrays(x[:, None], along[None], z[:, None]), axis=-1).copy()
    # disturbed, so that no two edges lie exactly on each other
    nodes[1:-1, 1:-1, :2] += 0.15 * edge * random.uniform(-1, 1, (side - 2, side - 2, 2))
    nodes[..., 2] += 0.02e-3 * random.uniform(-1, 1, (side, side))
    return nodes.reshape(-1, 3)


def squares(side: int) -> np.ndarray:
    """Return the triangles (F, 3) of side x side nodes in rows, squares halved along the same diagonal."""
    number = np.arange(side * side).reshape(side, side)
    a, b, c, d = (x.ravel() for x in (number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]))
    return np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])


def case_of(name: str) -> Callable[[bool, bool, str], tuple[Model, Tensor]]:
    """Return the function that builds a case from: whether it has contact, whether to compile, the device."""
    kind, _, rest = name.partition(", ")
    rough = "rough" in rest
    if kind == "sheet":
        side = int(rest.split()[0])
        return lambda touching, compile, device: sheet(side, touching, rough, compile, device)
    build = {"rods": rods, "floor": floor}[kind]
    return lambda touching, compile, device: build(touching, rough, compile, device)


@dataclass(frozen=True)
class Steps:
    """Steps of a batch: the state after them, and their cost."""

    state: State
    ahead: Tensor  # (B, n) end of the last step as extrapolated from its start, for the broad phase
    first_s: float  # wall time of the first step: compiling, where there is any
    seconds: float  # median, per robot
    iterations: float
    active: float
    worst_residual: float
    converged: int


def stepped(model: Model, push: Tensor, batch: int, steps: int, tolerance: float = RELATIVE_TOLERANCE) -> Steps:
    """Step a batch of robots that start with velocities of their own."""
    device = model.device.type
    generator = torch.Generator().manual_seed(0)
    scale = 1 + 0.1 * torch.randn(batch, 1, generator=generator, dtype=torch.float64)
    state = model.initial_state(velocity=scale.to(device) * push)
    integrator = ImplicitEuler(DT, relative_tolerance=tolerance)
    times, infos, ahead = [], [], state.q
    if records_eager_steps(model, integrator, state.q):
        warm_up(integrator, model, state)
    first = time.perf_counter()
    for step in range(WARM_UP + steps):
        ahead = state.q + DT * state.velocity
        began = now(device)
        state, info = integrator.step(model, state)
        times.append((now(device) - began) / batch)
        infos.append(info)
        if step == 0:
            first = time.perf_counter() - first
    active = [info.contact["active"].double().mean().item() if info.contact else 0.0 for info in infos[WARM_UP:]]
    means = (float(iterations_of(infos[WARM_UP:]).mean()), statistics.mean(active))
    seconds = statistics.median(times[WARM_UP:])
    return Steps(state, ahead, first, seconds, *means, worst_residual(infos), converged_rows(infos))


@torch.no_grad()
def parts(model: Model, run: Steps) -> tuple[float, float, float, str]:
    """Return the seconds per robot of broad phase, contact forces with matrix, factor and solve; and the solver."""
    state, batch, device = run.state, run.state.batch, model.device.type
    slack = model.body.node_contact_radius().mean() + torch.zeros_like(state.time)

    def timed(work: Callable[[], object]) -> float:
        return median_seconds(work, device) / batch

    contact = model.self_contacts
    pairs = model.contact.may_touch(state.q, run.ahead, slack)
    start = model.start_step(state, None, DT, pairs)
    solver = model.solvers.of(batch, pairs)
    at = (state.q, state.velocity, state.time)
    force, values = model.mechanics.force_and_stiffness(start, *at, Gains(1.0, 1 / DT, 1 / DT**2))
    residual = model.unknowns.of_dofs(force)
    factor = timed(lambda: solver.factor(values).solve(residual))
    if pairs is None:
        obstacle = model.obstacles[0]
        return 0.0, timed(lambda: obstacle.derivatives(state, start.control)), factor, solver.describe()
    nodes = [q[:, : 3 * model.body.n_nodes].unflatten(1, (-1, 3)) for q in (state.q, run.ahead)]
    broad = timed(lambda: contact.pairs(nodes[0], nodes[1], slack))
    own = values.new_zeros(model.layout.pattern.nnz, batch)
    forces_time = timed(lambda: pairs.force_and_values(contact, state.q, state.velocity, own, 1.0, 1 / DT))
    return broad, forces_time, factor, solver.describe()


def measured(name: str, batch: int, steps: int, compile: bool, device: str) -> Run:
    """Run a case with and without contact and return its cost."""
    build = case_of(name)
    model, push = build(True, compile, device)
    run = stepped(model, push, batch, steps)
    peak = peak_bytes(device) / 1e6
    broad, forces_time, factor, solver = parts(model, run)
    free = stepped(*build(False, compile, device), batch, steps)
    right = stepped(*build(True, False, "cpu"), batch, steps, EXACT)
    if right.converged < batch:
        raise RuntimeError(f"{name}: a step of the reference was not solved to {EXACT:g}")
    nodes = slice(0, 3 * model.body.n_nodes)
    return Run(
        solver=solver,
        active=run.active,
        step_ms=1e3 * run.seconds,
        free_step_ms=1e3 * free.seconds,
        broad_ms=1e3 * broad,
        forces_ms=1e3 * forces_time,
        factor_ms=1e3 * factor,
        iterations=run.iterations,
        free_iterations=free.iterations,
        worst_residual=run.worst_residual,
        converged=run.converged,
        error=float((run.state.q.cpu() - right.state.q)[:, nodes].unflatten(1, (-1, 3)).norm(dim=-1).max()),
        compile_s=run.first_s,
        peak_mb=peak,
    )


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the cases and batches to be measured."""
    if quick:
        return [job(case, 1, "eager", "cpu", 4) for case in ("floor", "rods")]
    found = [job(case, batch, "eager", "cpu", 10) for case in BATCHES for batch in BATCHES[case]]
    if cuda:
        found += [job(case, 1024, "eager", "cuda", 10) for case in ("floor", "floor, rough", "rods", "rods, rough")]
    return found


def job(case: str, batch: int, mode: str, device: str, steps: int) -> Job:
    """Return the job of one batch."""
    settings = {"case": case, "batch": batch, "mode": mode, "device": device, "steps": steps}
    return Job("contact", f"contact: {case}", batch, f"{mode}, {device}", settings)


def rows(case: str, batch: int, mode: str, device: str, steps: int) -> list[Row]:
    """Return the row of one batch."""
    torch.set_num_threads(1)
    run = measured(case, batch, steps, mode == "compiled", device)
    return [
        Row(
            f"contact: {case}",
            batch,
            f"{mode}, {device}",
            DT,
            1e-3 * run.step_ms,
            residual=run.worst_residual,
            error=run.error,
            converged=run.converged,
            compile_s=run.compile_s,
            peak_mb=run.peak_mb,
            note=f"{run.iterations:.2f} iterations ({run.free_iterations:.2f} and {run.free_step_ms:.3g} ms without "
            f"contact); {run.active:.0f} pairs, {run.pair_us:.3g} us each; broad phase {run.broad_share:.0%}, "
            f"forces + matrix {run.forces_ms:.2f} ms, factor + solve {run.factor_ms:.2f} ms; {short(run.solver)}",
        )
    ]

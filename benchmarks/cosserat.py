"""Py-DiSMech's own comparison with PyElastica, at equal errors: cantilevers, helices and a snake.

``python -m benchmarks cosserat`` prints the table. The paper's table of run times has cantilevers of 1e5, 1e6 and
1e7 Pa, a snake of 1e6 Pa in a viscous fluid, and helices of 1e7 and 1e9 Pa. Its text leaves out most sizes; those below
are the project's own, such that PyElastica is stable with the steps that the paper gives for it, or with larger ones.

**What is equal.** Nodes, rest shape, masses at the nodes, EA, EI, GJ, gravity, clamps, fluid, and the couples that bend
the snake. PyElastica's rods shear (G = E / 3, its factor 27/28) and their sections have rotary inertia in bending;
ours do neither. Curvature is an angle in its rods and twice a tangent of half of it in ours. Nothing is damped but by
the snake's fluid, which acts on elements there and on nodes here. So each simulator is held against **its own** fine
solution: what is compared is the cost of its steps in time. The distance of the two fine solutions is given, too.

**Equal error.** All nodes are compared every 50 ms. The largest distance from the fine solution, over the largest
displacement of a node in it, has to stay below `BOUND`. Each simulator takes the largest step that does. PyElastica's
is the largest stable one, and far within the bound; that is what explicit steps cost. Ours are those of implicit Euler,
the midpoint rule, Newmark's or BDF2, or the next smaller ones, whichever are cheapest for the batch. How exactly each
step is solved is chosen in the same way, as an error of the solution shows in the motion like one of the step. The same
steps are taken in single precision, too: its rounding leaves a larger residual, which the row shows, and the same
error. PyElastica has double precision only.

Time is process CPU time on one thread, medians of runs in turns; building, compiling and warming up come before. A run
is timed without a look at what is between its beginning and its end: the nodes that are compared come from another run
of the same steps, with the same bits. In a batch Young's moduli differ by up to 10 %, each robot has a fine solution of
its own, and the error is that of the worst one; what counts for one robot is right for all of these, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from itertools import pairwise, product
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import now
from benchmarks.peers import pyelastica_simulator, pyelastica_stepped
from benchmarks.rods import converged_rows, iterations_of, youngs_of_batch
from benchmarks.table import Row
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    Newmark,
    RobotBuilder,
    forces,
    helix,
    straight,
)
from torchdismech.integrate.integrator import Integrator

DENSITY, GRAVITY = 1000.0, 9.81  # kg/m^3, m/s^2
SAMPLE = 0.05  # s between the times at which nodes are compared
# Share of the largest displacement. The models themselves differ by as much (see `rows`), and no soft robot's stiffness
# is known better; a smaller bound would measure digits that nobody uses.
BOUND = 1e-2
INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark, "bdf2": BDF2}
TOLERANCES = (1e-6, 1e-3, 1e-2)  # relative tolerances of our steps; looser ones leave robots unmoved in short steps
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # steps in `SAMPLE`: dt from 50 ms to 0.4 ms
PEER_LADDER, PEER_TRIALS = 0.95, 50  # ratio of a step size of PyElastica's to the one tried before; number of trials
PEER_FINE = 2  # steps in the time `Rod.crossing` of its fine solution: enough where errors are far below the bound
REPEATS = 3
KINDS = (
    ("cantilever", 1e5),
    ("cantilever", 1e6),
    ("cantilever", 1e7),
    ("helix", 1e7),
    ("helix", 1e9),
    ("snake", 1e6),
)
BATCHES = (1, 256)

# The snake: a wave of natural curvature that travels along it, in a fluid of this viscosity
VISCOSITY = 1.0  # Pa s
CURVATURE, WAVES, PERIOD, RAMP = 3.0, 1.0, 1.0, 0.25  # 1/m, along the body, s, s over which the wave grows


@dataclass(frozen=True)
class Rod:
    """A round rod that both simulate.

    Attributes
    ----------
    name : name in the table.
    youngs, radius : [Pa], [m].
    nodes : (N, 3) at rest [m].
    duration : [s].
    snake : whether it swims in a fluid, free and without weight, rather than hang from a clamp.
    planar : whether it moves in the x-z plane; ours then has no y and no twist, as Py-DiSMech can, too.
    """

    name: str
    youngs: float
    radius: float
    nodes: np.ndarray = field(repr=False)
    duration: float = 0.5
    snake: bool = False
    planar: bool = True

    @cached_property
    def length(self) -> float:
        """Length at rest [m]."""
        return float(np.linalg.norm(np.diff(self.nodes, axis=0), axis=1).sum())

    @property
    def edge(self) -> float:
        """Length of an edge [m]."""
        return self.length / (len(self.nodes) - 1)

    @cached_property
    def along(self) -> Tensor:
        """Positions of the inner nodes along a straight rod (N - 2,), as parts of its length."""
        return torch.as_tensor(self.nodes[1:-1, 0] / self.length)

    @property
    def samples(self) -> int:
        """Number of times at which nodes are compared."""
        return round(self.duration / SAMPLE)

    @property
    def bending(self) -> float:
        """EI [N m^2]."""
        return self.youngs * np.pi * self.radius**4 / 4

    @property
    def crossing(self) -> float:
        """Time [s] in which a wave crosses an edge, or shear the radius if less; explicit steps blow up near it."""
        return min(self.edge * np.sqrt(DENSITY / self.youngs), self.radius * np.sqrt(3 * DENSITY / self.youngs))


@dataclass(frozen=True)
class Course:
    """The motion of a batch of our rods.

    Attributes
    ----------
    track : nodes (T, B, N, 3) after each `SAMPLE` [m].
    converged : number of robots that converged in every step.
    residual : the largest residual over the force scale among the last steps before each sample.
    iterations : mean number of Newton iterations of a step.
    """

    track: np.ndarray
    converged: int
    residual: float
    iterations: float


class Way(NamedTuple):
    """How we take steps: an integrator, its steps in `SAMPLE`, and the relative tolerance to which each is solved."""

    scheme: str
    steps: int
    tolerance: float

    def integrator(self) -> Integrator:
        """Return the integrator."""
        return INTEGRATORS[self.scheme](dt=SAMPLE / self.steps, relative_tolerance=self.tolerance)


FINE = Way("midpoint", 256, 1e-6)


def rod_of(kind: str, youngs: float) -> Rod:
    """Return a rod of the comparison: "cantilever", "helix" or "snake" of this Young's modulus [Pa]."""
    name = f"{kind}, {youngs:.0e} Pa".replace("e+0", "e")
    if kind == "helix":
        # four turns of 4 cm, 20 cm high at rest; it sags by 5 cm (1e9 Pa) or 20 cm (1e7 Pa) in equilibrium
        shape = helix((0, 0, 0), (0.04, 0, 0), (0, 0, -1), 8 * np.pi, 0.2, 100)
        return Rod(name, youngs, {1e7: 5e-3, 1e9: 1e-3}[youngs], shape, planar=False)
    shape = straight((0, 0, 0), (1, 0, 0), 101)
    if kind == "cantilever":
        return Rod(name, youngs, 0.01, shape)
    if kind == "snake":
        return Rod(name, youngs, 0.01, shape, duration=1.0, snake=True)
    raise ValueError(f"there is no {kind}")


# ---- PyElastica ----------------------------------------------------------------------------------------------------


def peer_simulator(rod: Rod) -> Any:
    """Return PyElastica's simulator of the rod."""
    forcings = snake_forcings(rod) if rod.snake else ()
    gravity = 0.0 if rod.snake else GRAVITY
    return pyelastica_simulator(rod.nodes, rod.radius, DENSITY, rod.youngs, gravity, not rod.snake, forcings)


def snake_forcings(rod: Rod) -> list[tuple[str, dict[str, Any]]]:
    """Return PyElastica's fluid, and its couples that travel along the body, as names and arguments of its classes.

    Its wave is sin(2 pi t / T - k s + phase) with s from 1 at the first node to 0 at the last: k < 0 runs to the last.
    """
    muscles = {
        "base_length": rod.length,
        "b_coeff": np.zeros(0),  # of a spline along the body, which is not used
        "period": PERIOD,
        "wave_number": -2 * np.pi * WAVES,
        "phase_shift": -2 * np.pi * WAVES,
        "direction": np.array([0.0, -rod.bending * CURVATURE, 0.0]),
        "rest_lengths": np.full(len(rod.nodes) - 1, rod.length / (len(rod.nodes) - 1)),
        "ramp_up_time": RAMP,
    }
    return [("MuscleTorques", muscles), ("SlenderBodyTheory", {"dynamic_viscosity": VISCOSITY})]


def peer_track(rod: Rod, count: int) -> np.ndarray:
    """Return the nodes (T, 1, N, 3) of PyElastica's rod at the samples, with `count` steps in each `SAMPLE`.

    Where the steps blow up the track ends with nodes that are not finite.
    """
    simulator, track = peer_simulator(rod), []
    for sample in range(rod.samples):
        with np.errstate(all="ignore"):  # the track shows where it blows up
            pyelastica_stepped(simulator, SAMPLE / count, count, sample * SAMPLE)
        track.append(simulator.rod.position_collection.T[None].copy())
        if not np.isfinite(track[-1]).all():
            break
    return np.stack(track)


def peer_seconds(rod: Rod, count: int) -> float:
    """Return the CPU time [s] of all of PyElastica's steps, after a warm-up on another rod."""
    pyelastica_stepped(peer_simulator(rod), SAMPLE / count, 20)
    return pyelastica_stepped(peer_simulator(rod), SAMPLE / count, count * rod.samples)


def peer_steps(rod: Rod, fine: np.ndarray) -> int:
    """Return the fewest steps in `SAMPLE` with which PyElastica is within the bound."""
    for trial in range(PEER_TRIALS):
        count = int(np.ceil(SAMPLE / rod.crossing / PEER_LADDER**trial))
        if error(rod, peer_track(rod, count), fine) <= BOUND:
            return count
    raise RuntimeError(f"PyElastica is not within {BOUND:g} of its fine solution with {count} steps: {rod}")


# ---- ours ----------------------------------------------------------------------------------------------------------


def model_of(rod: Rod, batch: int) -> Model:
    """Return the model of a batch of rods whose Young's moduli differ."""
    builder = RobotBuilder(planar=rod.planar)
    builder.add_rod(rod.nodes, Circle(rod.radius), Material(youngs_of_batch(rod.youngs, batch), DENSITY, poisson=0.5))
    if rod.snake:
        normal = 4 * np.pi * VISCOSITY / np.log(rod.length / rod.radius)
        builder.add_force(forces.Resistive(normal / 2, normal))
    else:
        builder.clamp(nodes=[0, 1])
        builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    return builder.finalize()


def wave(time: Tensor, rod: Rod) -> Tensor:
    """Return the natural curvatures (..., S, 2) of a snake at times (...)."""
    phase = 2 * torch.pi * (time[..., None] / PERIOD - WAVES * rod.along.to(time))
    bent = CURVATURE * rod.edge * (time / RAMP).clamp(0, 1)[..., None] * phase.sin()
    # along x the first director of a rod is z, and the first curvature bends to it
    return torch.stack([bent, torch.zeros_like(bent)], dim=-1)


def plan(rod: Rod, integrator: Integrator, start: Tensor, count: int) -> list[Control]:
    """Return the controls of so many steps of a snake from the times (B,), each at the time of the step's forces."""
    steps = torch.arange(count, dtype=start.dtype)[:, None] + integrator.scheme.time
    return [Control(natural_curvature=curvature) for curvature in wave(start + steps * integrator.dt, rod)]


def controls_of(rod: Rod, way: Way, start: Tensor) -> list[Control] | None:
    """Return the control of each step of a run that begins at times (B,); None for a rod that nothing drives."""
    return plan(rod, way.integrator(), start, rod.samples * way.steps) if rod.snake else None


def course(rod: Rod, model: Model, batch: int, way: Way) -> Course:
    """Return the motion of a batch."""
    integrator, state = way.integrator(), model.initial_state(batch=batch)
    track, infos = [], []
    controls = controls_of(rod, way, state.time)
    for sample in range(rod.samples):
        own = None if controls is None else controls[sample * way.steps : (sample + 1) * way.steps]
        state, info = integrator.steps(model, state, way.steps, own)
        infos.append(info)
        track.append(state.positions)
    residual, scale = (torch.stack([getattr(info, name) for info in infos]) for name in ("residual", "force_scale"))
    worst = float((residual / scale)[scale > 0].max())  # nothing pulls at a snake before its wave begins: no scale
    iterations = float(iterations_of(infos).sum(0).mean()) / (rod.samples * way.steps)
    return Course(torch.stack(track).numpy(), converged_rows(infos), worst, iterations)


def seconds(rod: Rod, model: Model, batch: int, way: Way) -> float:
    """Return the CPU time [s] of all steps of a batch in one call, after runs in which they are recorded."""
    integrator, state = way.integrator(), model.initial_state(batch=batch)
    controls, costs = controls_of(rod, way, state.time), []
    for _ in range(3):
        began = now()
        integrator.steps(model, state, rod.samples * way.steps, controls)
        costs.append(now() - began)
    return costs[-1]


def fine_track(rod: Rod, model: Model, batch: int) -> np.ndarray:
    """Return the nodes (T, B, N, 3) of a batch at the samples, by small steps: the fine solution."""
    found = course(rod, model, batch, FINE)
    if found.converged < batch:
        raise RuntimeError(f"a step of the fine solution did not converge: {rod}")
    return found.track


def right_ways(rod: Rod, models: dict[int, Model], fine: np.ndarray) -> list[Way]:
    """Return the ways within the bound for all robots: each integrator and tolerance with the fewest steps that are.

    They come with the next numbers of steps, too. Those that cost one robot more than twice as much as the cheapest are
    left out.
    """
    found: list[Way] = []
    for scheme, tolerance in product(INTEGRATORS, TOLERANCES):
        for counts in pairwise(LADDER):
            largest, next_smaller = (Way(scheme, count, tolerance) for count in counts)
            if is_right(rod, models, largest, fine):
                found += [largest, next_smaller] if is_right(rod, models, next_smaller, fine) else [largest]
                break
    if not found:
        raise RuntimeError(f"not within {BOUND:g} of the fine solution with {LADDER[-2]} steps: {rod}")
    cost = {way: min(seconds(rod, models[1], 1, way) for _ in range(REPEATS)) for way in found}
    return [way for way in found if cost[way] <= 2 * min(cost.values())]


def is_right(rod: Rod, models: dict[int, Model], way: Way, fine: np.ndarray) -> bool:
    """Return whether the steps of all robots converge, alone and in a batch, and lead them within the bound."""
    runs = ((batch, course(rod, model, batch, way)) for batch, model in models.items())  # begins with one robot
    return all(run.converged == batch and error(rod, run.track, fine[:, :batch]) <= BOUND for batch, run in runs)


def cheapest(rod: Rod, model: Model, batch: int, ways: list[Way]) -> Way:
    """Return the way that costs a batch least, as larger steps may take more iterations than they save."""
    return min(ways, key=lambda way: min(seconds(rod, model, batch, way) for _ in range(REPEATS)))


# ---- both ----------------------------------------------------------------------------------------------------------


def error(rod: Rod, track: np.ndarray, fine: np.ndarray) -> float:
    """Return the largest distance of nodes (T, B, N, 3) over their robot's largest displacement, of the worst robot.

    It is infinite where steps blew up.
    """
    if not np.isfinite(track).all():
        return float("inf")
    distance = np.linalg.norm(track - fine, axis=-1).max((0, 2))
    return float((distance / np.linalg.norm(fine - rod.nodes, axis=-1).max((0, 2))).max())


def displacement(rod: Rod, track: np.ndarray) -> float:
    """Return the largest displacement of a node of the first robot from its place at rest [m]."""
    return float(np.linalg.norm(track[:, 0] - rod.nodes, axis=-1).max())


def in_turns(runs: list[Callable[[], float]]) -> list[float]:
    """Return the median seconds of each run; they take turns, so that other load of the machine slows all alike."""
    return [median(of_one) for of_one in zip(*([run() for run in runs] for _ in range(REPEATS)), strict=True)]


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the rods of the comparison; each job measures PyElastica and us, and neither on a GPU."""
    return [
        Job("cosserat", rod_of(kind, youngs).name, 1, "PyElastica", {"kind": kind, "youngs": youngs}, peer=True)
        for kind, youngs in (KINDS[:1] if quick else KINDS)
    ]


def rows(kind: str, youngs: float) -> list[Row]:
    """Return PyElastica's row and ours: alone, in a batch, and the batch in single precision with the same steps."""
    torch.set_num_threads(1)
    rod, most = rod_of(kind, youngs), BATCHES[-1]
    models = {batch: model_of(rod, batch) for batch in BATCHES}
    fine = fine_track(rod, models[most], most)
    peer_fine = peer_track(rod, int(np.ceil(PEER_FINE * SAMPLE / rod.crossing)))
    count = peer_steps(rod, peer_fine)
    right = right_ways(rod, models, fine)
    chosen = {batch: cheapest(rod, model, batch, right) for batch, model in models.items()}

    single = model_of(rod, most).to(torch.float32)
    cases = [*((batch, chosen[batch], models[batch]) for batch in BATCHES), (most, chosen[most], single)]
    ours = [partial(seconds, rod, model, batch, way) for batch, way, model in cases]
    peer, *found = in_turns([partial(peer_seconds, rod, count), *ours])
    apart = f"of {displacement(rod, fine):.2g} m; the models are {error(rod, fine[:, :1], peer_fine):.1e} apart"
    return [
        peer_row(rod, count, peer, peer_fine, apart),
        *(our_row(rod, *case, cost, fine) for case, cost in zip(cases, found, strict=True)),
    ]


def peer_row(rod: Rod, count: int, cost: float, fine: np.ndarray, apart: str) -> Row:
    """Return PyElastica's row."""
    wrong = error(rod, peer_track(rod, count), fine)
    return Row(
        rod.name,
        1,
        f"PyElastica {version('pyelastica')}, dt = {1e6 * SAMPLE / count:.3g} us",
        SAMPLE / count,
        cost / (count * rod.samples),
        peer=True,
        drift=wrong * displacement(rod, fine),
        note=f"error {wrong:.1e} {apart}",
    )


def our_row(rod: Rod, batch: int, way: Way, model: Model, cost: float, fine: np.ndarray) -> Row:
    """Return the row of a batch of ours."""
    run, precision = course(rod, model, batch, way), "" if model.dtype == torch.float64 else ", single precision"
    wrong = error(rod, run.track, fine[:, :batch])
    return Row(
        rod.name,
        batch,
        f"{'plane' if rod.planar else 'space'}, {way.scheme}, dt = {1e3 * SAMPLE / way.steps:.3g} ms{precision}",
        SAMPLE / way.steps,
        cost / (way.steps * rod.samples * batch),
        residual=run.residual,
        drift=wrong * displacement(rod, fine),
        converged=run.converged,
        note=f"error {wrong:.1e}, tolerance {way.tolerance:g}, {run.iterations:.2f} iterations",
    )

"""The cantilever of `benchmarks.rods` in other public simulators, measured in the same way.

PyElastica (``pip install pyelastica``): Cosserat rods with shear, stepped explicitly by position Verlet.
dismech-newton runs in a Python of its own: `peer_newton`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.jobs import Job
from benchmarks.machine import peak_bytes
from benchmarks.table import Row


class NotInstalled(RuntimeError):
    """A peer is not installed: the message says which, and how to get it."""


@dataclass(frozen=True)
class Cantilever:
    """A horizontal rod clamped at its first two nodes, falling under gravity; its other end is the tip."""

    nodes: int = 101
    length: float = 1.0  # m, along x
    radius: float = 0.01  # m
    density: float = 1000.0  # kg/m^3
    gravity: float = 9.81  # m/s^2, along -z

    @property
    def force_scale(self) -> float:
        """The rod's weight [N], to compare residuals with."""
        return self.density * np.pi * self.radius**2 * self.length * self.gravity


# Where the tips (x, z) of the cantilever are after one second, for Young's moduli in Pa:
# rods.measure(rods.Case(youngs, 1, "eager", 4000, 2.5e-4, "midpoint")).tip
FINE_TIP = {1e6: (-0.6492, -0.0468), 1e7: (-0.2979, -0.5464)}


def case_name(rod: Cantilever, youngs: float) -> str:
    """Return the table's name of a cantilever."""
    return f"rod, {rod.nodes} nodes, E = {youngs:.0e} Pa".replace("e+0", "e")


def drift(rod: Cantilever, youngs: float, duration: float, tip: tuple[float, float, float]) -> float | None:
    """Return how far a tip is from that of a fine solution [m]; None for rods and durations without one."""
    if rod != Cantilever() or duration != 1.0:
        return None
    x, z = FINE_TIP[youngs]
    return float(np.hypot(tip[0] - x, tip[2] - z))


@dataclass(frozen=True)
class PeerRun:
    """The result of one run of a peer: its steps, its cost and its last tip."""

    name: str
    version: str
    youngs: float  # Pa
    dt: float  # s
    steps: int
    cpu_seconds: float
    simulated_seconds: float
    tip: tuple[float, float, float]  # m

    @property
    def rate(self) -> float:
        """Simulated seconds per CPU second."""
        return self.simulated_seconds / self.cpu_seconds


# Time steps in s by Young's modulus in Pa, for 101 nodes. The usual ones leave a wide margin. The largest are just
# below where the undamped run blows up (3e-4 at 1e6 Pa, 9e-5 at 1e7 Pa): the peer at its fastest, known only after
# a search. The tip moves by less than 1e-5 m between the two: space, not time, limits the accuracy.
PYELASTICA_DT = {1e6: 3e-5, 1e7: 9e-6}
PYELASTICA_LARGEST_DT = {1e6: 2.5e-4, 1e7: 8e-5}


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the jobs of PyElastica, which has no GPU version."""
    rod, duration = Cantilever(), 0.2 if quick else 1.0
    return [
        Job("peers", case_name(rod, youngs), 1, "PyElastica", {"youngs": youngs, "duration": duration}, peer=True)
        for youngs in ((1e6,) if quick else PYELASTICA_DT)
    ]


def rows(youngs: float, duration: float) -> list[Row]:
    """Return PyElastica's rows at its usual and at its largest stable step."""
    rod = Cantilever()
    return [
        Row(
            case_name(rod, youngs),
            1,
            f"PyElastica {run.version}, dt = {1e6 * run.dt:.0f} us",
            run.dt,
            run.cpu_seconds / run.steps,
            peer=True,
            drift=drift(rod, youngs, duration, run.tip),
            peak_mb=peak_bytes() / 1e6,
        )
        for run in measure_peer(rod, youngs, duration)
    ]


def measure_peer(rod: Cantilever, youngs: float, duration: float) -> list[PeerRun]:
    """Run PyElastica at its usual and at its largest stable step; return both, each the median of three."""
    scale = rod.length / (rod.nodes - 1) / 0.01  # the stable step follows the element's length
    runs = []
    for table in (PYELASTICA_DT, PYELASTICA_LARGEST_DT):
        dt = table[youngs] * min(1.0, scale)
        repeats = [pyelastica_cantilever(rod, youngs, duration, dt) for _ in range(3)]
        runs.append(sorted(repeats, key=lambda run: run.cpu_seconds)[1])
    return runs


def pyelastica_cantilever(rod: Cantilever, youngs: float, duration: float, dt: float) -> PeerRun:
    """Simulate the cantilever without damping by PyElastica; return its cost and its tip.

    The first node and the directors of the first element are fixed: in a rod without shear, that is the first
    two nodes and the twist of their edge. Building the rod and compiling the kernels is not timed: a few steps of an
    equal rod come first.

    Parameters
    ----------
    youngs
        Young's modulus in Pa; the shear modulus is a third of it (Poisson's ratio 0.5).
    duration, dt
        Simulated time and time step in s; dt is shrunk so that it divides the duration.
    """
    steps = int(np.ceil(duration / dt * (1.0 - 1e-12)))
    dt = duration / steps
    pyelastica_stepped(_pyelastica_cantilever(rod, youngs), dt, 20)
    simulator = _pyelastica_cantilever(rod, youngs)
    cpu_seconds = pyelastica_stepped(simulator, dt, steps)
    x, y, z = (float(value) for value in simulator.rod.position_collection[:, -1])
    return PeerRun("pyelastica", version("pyelastica"), youngs, dt, steps, cpu_seconds, duration, (x, y, z))


def _pyelastica_cantilever(rod: Cantilever, youngs: float) -> Any:
    """Return PyElastica's simulator of the cantilever."""
    nodes = np.zeros((rod.nodes, 3))
    nodes[:, 0] = np.linspace(0.0, rod.length, rod.nodes)
    return pyelastica_simulator(nodes, rod.radius, rod.density, youngs, rod.gravity)


def pyelastica_simulator(
    nodes: np.ndarray,
    radius: float,
    density: float,
    youngs: float,
    gravity: float,
    clamped: bool = True,
    forcings: Sequence[tuple[str, dict[str, Any]]] = (),
) -> Any:
    """Return PyElastica's simulator of a round rod that is at rest in the shape of its nodes; `rod` is the rod in it.

    Parameters
    ----------
    nodes : (N, 3) [m]; no edge may be along z.
    radius, density, youngs : in m, kg/m^3, Pa; the shear modulus is a third of Young's.
    gravity : along -z [m/s^2].
    clamped : whether the first node and the directors of the first element are held.
    forcings : names of PyElastica's classes of forcings, and what each is made with.
    """
    import elastica

    class Simulator(elastica.BaseSystemCollection, elastica.Constraints, elastica.Forcing):
        """A rod that may be held and pulled."""

        rod: Any

    length = float(np.linalg.norm(np.diff(nodes, axis=0), axis=1).sum())
    directors = _directors(nodes)
    rod = elastica.CosseratRod.straight_rod(
        len(nodes) - 1,
        nodes[0].copy(),
        directors[2, :, 0].copy(),
        directors[0, :, 0].copy(),
        length,
        radius,
        density,
        youngs_modulus=youngs,
        shear_modulus=youngs / 3.0,
        position=nodes.T.copy(),
        directors=directors,
    )
    rod.rest_kappa[:] = rod.kappa
    simulator = Simulator()
    simulator.rod = rod
    simulator.append(rod)
    if clamped:
        simulator.constrain(rod).using(
            elastica.OneEndFixedBC, constrained_position_idx=(0,), constrained_director_idx=(0,)
        )
    if gravity:
        simulator.add_forcing_to(rod).using(elastica.GravityForces, acc_gravity=np.array([0.0, 0.0, -gravity]))
    for name, settings in forcings:
        simulator.add_forcing_to(rod).using(getattr(elastica, name), **settings)
    simulator.finalize()
    return simulator


def _directors(nodes: np.ndarray) -> np.ndarray:
    """Return directors (3, 3, N - 1), first index: d1 horizontal, d2, and d3 along the edges."""
    tangent = np.diff(nodes, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1)[:, None]
    first = np.cross(tangent, [0.0, 0.0, 1.0])
    first /= np.linalg.norm(first, axis=1)[:, None]
    return np.stack([first.T, np.cross(tangent, first).T, tangent.T])


def pyelastica_stepped(simulator: Any, dt: float, steps: int, time_before: float = 0.0) -> float:
    """Step a simulator of PyElastica on from a time [s]; return the process CPU time that it took [s]."""
    import elastica

    stepper, now = elastica.PositionVerlet(), np.float64(time_before)
    began = time.process_time()
    for _ in range(steps):
        now = stepper.step(simulator, now, np.float64(dt))
    return time.process_time() - began

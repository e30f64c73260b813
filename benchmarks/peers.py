"""The benchmark's rod in other public simulators, measured in the same process and in the same way.

PyElastica (``pip install pyelastica``): Cosserat rods with shear, stepped explicitly by position Verlet.
dismech-newton runs in a Python of its own: `peer_newton`.
"""

import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.jobs import Job
from benchmarks.machine import peak_bytes
from benchmarks.table import Row


class NotInstalled(RuntimeError):
    """A peer is not there: the message says which and how to get it."""


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
        """The rod's weight in N: what a residual in newtons may be compared with."""
        return self.density * np.pi * self.radius**2 * self.length * self.gravity


# Where the tips (x, z) of the cantilever are after one second, for Young's moduli in Pa:
# rods.measure(rods.Case(youngs, 1, "eager", 4000, 2.5e-4, "midpoint")).tip
FINE_TIP = {1e6: (-0.6492, -0.0468), 1e7: (-0.2979, -0.5464)}


def case_name(rod: Cantilever, youngs: float) -> str:
    """Return the table's name of a cantilever."""
    return f"rod, {rod.nodes} nodes, E = {youngs:.0e} Pa".replace("e+0", "e")


def drift(rod: Cantilever, youngs: float, duration: float, tip: tuple[float, float, float]) -> float | None:
    """Return how far a tip is from that of far smaller steps [m]; None for rods and times of which it is not known."""
    if rod != Cantilever() or duration != 1.0:
        return None
    x, z = FINE_TIP[youngs]
    return float(np.hypot(tip[0] - x, tip[2] - z))


@dataclass(frozen=True)
class PeerRun:
    """What one run of a peer gave: its steps, its cost and where its tip ended."""

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
    """Return what is to be measured of PyElastica, which knows no GPU."""
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
    import elastica

    steps = int(np.ceil(duration / dt * (1.0 - 1e-12)))
    dt = duration / steps
    stepper = elastica.PositionVerlet()

    def advance(simulator: Any, count: int) -> None:
        now = np.float64(0.0)
        for _ in range(count):
            now = stepper.step(simulator, now, np.float64(dt))

    warm_up, _ = _pyelastica_simulator(rod, youngs)
    advance(warm_up, 20)
    simulator, system = _pyelastica_simulator(rod, youngs)
    start = time.process_time()
    advance(simulator, steps)
    cpu_seconds = time.process_time() - start
    x, y, z = (float(value) for value in system.position_collection[:, -1])
    return PeerRun("pyelastica", version("pyelastica"), youngs, dt, steps, cpu_seconds, duration, (x, y, z))


def _pyelastica_simulator(rod: Cantilever, youngs: float) -> tuple[Any, Any]:
    """Return PyElastica's simulator of the cantilever and the rod in it."""
    import elastica

    class Simulator(elastica.BaseSystemCollection, elastica.Constraints, elastica.Forcing):
        """A rod that may be held and pulled."""

    system = elastica.CosseratRod.straight_rod(
        rod.nodes - 1,
        np.zeros(3),
        np.array([1.0, 0.0, 0.0]),
        np.array([0.0, 0.0, 1.0]),
        rod.length,
        rod.radius,
        rod.density,
        youngs_modulus=youngs,
        shear_modulus=youngs / 3.0,
    )
    simulator = Simulator()
    simulator.append(system)
    simulator.constrain(system).using(
        elastica.OneEndFixedBC, constrained_position_idx=(0,), constrained_director_idx=(0,)
    )
    simulator.add_forcing_to(system).using(elastica.GravityForces, acc_gravity=np.array([0.0, 0.0, -rod.gravity]))
    simulator.finalize()
    return simulator, system

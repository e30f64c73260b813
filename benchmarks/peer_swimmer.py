"""The peers of `benchmarks.closed_loop`: a loop as a user may write it round other rods, a snake in a viscous fluid.

One is in plain NumPy: the rod of `peer_numpy`, with natural curvature and a linear resistive force, -L (c_t t t^T + c_n
(I - t t^T)) v on each node, t along the chord of its neighbours; implicit Euler, Newton's method with SciPy's banded
solver. The other is PyElastica's rod with its own slender-body force, which is the same resistance where c_t is half of
c_n. The loop is the PI law with feed-forward of `torchdismech.control`, without limits.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_banded

from benchmarks.peer_numpy import PlanarRod, band_of, outer
from benchmarks.peers import pyelastica_simulator, pyelastica_stepped
from studies.shape_tracking import shape_tracking as snake


@dataclass(frozen=True)
class Followed:
    """Last nodes (N, 2) [m] of a run, CPU seconds of all steps, and mean Newton iterations of implicit ones."""

    nodes: np.ndarray
    seconds: float
    iterations: float = 0.0


class Swimmer(PlanarRod):
    """A rod that is free in its plane.

    Parameters
    ----------
    nodes : (N, 2) at rest, along a line [m].
    """

    def __init__(self, nodes: np.ndarray):
        nothing = np.zeros((len(nodes) - 1, 2))
        super().__init__(nodes, snake.RADIUS, snake.YOUNGS, snake.DENSITY, 0.0, nothing, np.zeros_like(nodes), held=0)
        self.share = np.zeros(len(nodes))
        self.share[:-1] += 0.5 * self.length
        self.share[1:] += 0.5 * self.length
        count = np.arange(len(nodes))
        self.before, self.after = np.maximum(count - 1, 0), np.minimum(count + 1, len(nodes) - 1)
        self.voronoi = 0.5 * (self.length[1:] + self.length[:-1])

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Return the curvature at the inner nodes (N - 2,) [1/m], positive towards z."""
        t = np.diff(x, axis=0) / np.linalg.norm(np.diff(x, axis=0), axis=1)[:, None]
        cross = t[:-1, 0] * t[1:, 1] - t[:-1, 1] * t[1:, 0]
        return 2 * cross / (1 + (t[:-1] * t[1:]).sum(1)) / self.voronoi

    def resistance(self, x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the resistance (N, 2), and its derivatives (N, 2, 2) by the velocity and by the chord."""
        chord = x[self.after] - x[self.before]
        span = np.linalg.norm(chord, axis=1)
        t = chord / span[:, None]
        tt, eye = outer(t, t), np.eye(2)
        excess = snake.TANGENTIAL - snake.NORMAL
        by_velocity = self.share[:, None, None] * (snake.NORMAL * eye + excess * tt)
        along = (t * v).sum(1)
        by_tangent = (self.share * excess)[:, None, None] * (along[:, None, None] * eye + outer(t, v))
        return (by_velocity @ v[..., None])[..., 0], by_velocity, by_tangent @ ((eye - tt) / span[:, None, None])

    def swim(self, x: np.ndarray, v: np.ndarray, dt: float, tolerance: float) -> tuple[np.ndarray, np.ndarray, int]:
        """Return positions and velocities after a step, and its iterations."""
        new, count = x + dt * v, np.arange(len(x))
        for iteration in range(50):
            speed = (new - x) / dt
            gradient, blocks = self.elastic(new, np.zeros(2))
            drag, by_velocity, by_chord = self.resistance(new, speed)
            residual = (self.mass[:, None] * (speed - v) / dt + gradient + drag).ravel()
            if np.linalg.norm(residual) < tolerance:
                return new, speed, iteration
            own, first, second = blocks
            own = own + by_velocity / dt
            own[:, [0, 1], [0, 1]] += (self.mass / dt**2)[:, None]
            band = band_of(own, first, second)
            _add(band, count, self.after, by_chord)
            _add(band, count, self.before, -by_chord)
            new = new - solve_banded((5, 5), band, residual, check_finite=False).reshape(-1, 2)
        raise RuntimeError("not solved after 50 iterations")


def _add(band: np.ndarray, rows: np.ndarray, columns: np.ndarray, blocks: np.ndarray) -> None:
    """Add blocks (k, 2, 2), at nodes of these rows and columns, to a matrix stored by bands of five."""
    for i in range(2):
        for j in range(2):
            row, column = 2 * rows + i, 2 * columns + j
            np.add.at(band, (5 + row - column, column), blocks[:, i, j])


def followed(steps: int, reference: np.ndarray, dt: float, Kp: float, Ki: float, tolerance: float) -> Followed:
    """Return the run of a snake in NumPy that follows the curvatures `reference` (steps + 1, N - 2) [1/m]."""
    nodes = np.stack([np.linspace(0, snake.LENGTH, reference.shape[1] + 2), np.zeros(reference.shape[1] + 2)], axis=1)
    rod = Swimmer(nodes)
    x, v, integral, iterations = nodes.copy(), np.zeros_like(nodes), np.zeros(reference.shape[1]), 0
    began = time.process_time()
    for step in range(steps):
        error = reference[step] - rod.curvature(x)
        integral = integral + dt * error
        rod.natural = (reference[step + 1] + Kp * error + Ki * integral) * rod.voronoi
        x, v, count = rod.swim(x, v, dt, tolerance)
        iterations += count
    return Followed(x, time.process_time() - began, iterations / steps)


# Steps of PyElastica for 101 nodes: one that leaves a margin, and the largest with which this snake does not blow up
# within 0.5 s, found by a search over whole hundreds of steps in 5 ms (with 900 it does). With more than a little
# feedback a rod that only the fluid damps begins to shake, and coils (Kp = 0.5; our own steps of 5 ms damp it).
PYELASTICA_DT, PYELASTICA_LARGEST_DT = snake.STEP / 2000, snake.STEP / 1000
PYELASTICA_GAINS = 0.1, 10.0  # Kp [1], Ki [1/s]


def pyelastica_followed(steps: int, reference: np.ndarray, dt: float, step: float) -> Followed:
    """Return the run of PyElastica's snake that follows `reference` (steps + 1, N - 2) [1/m], by steps of `step` [s].

    Building it and compiling its kernels is not timed.
    """
    (Kp, Ki), nodes = PYELASTICA_GAINS, np.zeros((reference.shape[1] + 2, 3))
    nodes[:, 0] = np.linspace(0, snake.LENGTH, len(nodes))
    parts = round(dt / step)
    pyelastica_stepped(_pyelastica_swimmer(nodes), dt / parts, 20)
    simulator = _pyelastica_swimmer(nodes)
    rod, integral, seconds = simulator.rod, np.zeros(reference.shape[1]), 0.0
    for k in range(steps):
        began = time.process_time()
        error = reference[k] - rod.kappa[0]
        integral = integral + dt * error
        rod.rest_kappa[0] = reference[k + 1] + Kp * error + Ki * integral
        seconds += time.process_time() - began
        seconds += pyelastica_stepped(simulator, dt / parts, parts, k * dt)
    return Followed(rod.position_collection[[0, 2]].T.copy(), seconds)


def _pyelastica_swimmer(nodes: np.ndarray) -> Any:
    """Return PyElastica's simulator of the snake; its fluid resists by 4 pi mu / ln(L / r), by half along the rod."""
    assert snake.NORMAL == 2 * snake.TANGENTIAL
    viscosity = snake.NORMAL * np.log(snake.LENGTH / snake.RADIUS) / (4 * np.pi)
    fluid = [("SlenderBodyTheory", {"dynamic_viscosity": viscosity})]
    return pyelastica_simulator(nodes, snake.RADIUS, snake.DENSITY, snake.YOUNGS, 0.0, clamped=False, forcings=fluid)

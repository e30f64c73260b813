"""The peer of `benchmarks.magnetics`: one planar discrete elastic rod in plain NumPy, as a user may write it.

Stretching, bending by kappa = 2 tan(phi / 2), a magnetic couple and mass-proportional damping; implicit Euler; forces
and matrices of all edges at once, Newton's method with SciPy's banded solver. Positions (N, 2) are x and z.
"""

import numpy as np
from scipy.linalg import solve_banded


def turned(v: np.ndarray) -> np.ndarray:
    """Return vectors (.., 2) turned by a right angle, from x to z."""
    return np.stack([-v[..., 1], v[..., 0]], axis=-1)


def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a b^T (.., 2, 2)."""
    return a[..., :, None] * b[..., None, :]


class PlanarRod:
    """A magnetised rod whose first nodes are held.

    Parameters
    ----------
    nodes : (N, 2) at rest, where it is straight [m].
    radius, youngs, density, damping : [m], [Pa], [kg/m^3], [1/s].
    magnetisation : (N - 1, 2) [A/m].
    load : (N, 2) on the nodes [N].
    held : number of nodes.

    Attributes
    ----------
    natural : (N - 2,) natural kappa of the inner nodes, as integrated over their lengths.
    """

    def __init__(self, nodes, radius, youngs, density, damping, magnetisation, load, held):
        self.nodes, self.held, self.load, self.damping = nodes, held, load, damping
        edges = np.diff(nodes, axis=0)
        self.length = np.linalg.norm(edges, axis=1)
        self.rest_direction = edges / self.length[:, None]
        area = np.pi * radius**2
        self.stretching = youngs * area
        self.bending = youngs * np.pi * radius**4 / 4 / (0.5 * (self.length[1:] + self.length[:-1]))
        self.moment = (area * self.length)[:, None] * magnetisation
        self.natural = np.zeros(len(nodes) - 2)
        half = 0.5 * density * area * self.length
        self.mass = np.zeros(len(nodes))
        self.mass[:-1] += half
        self.mass[1:] += half

    def elastic(self, x: np.ndarray, field: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return the gradient (N, 2) of elastic and magnetic energy, and its matrix by blocks (N - k, 2, 2)."""
        e = np.diff(x, axis=0)
        length = np.sqrt((e * e).sum(1))
        t = e / length[:, None]
        n = turned(t)
        g = n / length[:, None]  # of the edge's angle by e
        # stretching
        strain = length / self.length - 1
        slope = (self.stretching * strain)[:, None] * t
        tt = outer(t, t)
        diagonal = (self.stretching / self.length)[:, None, None] * tt
        diagonal += (self.stretching * strain / length)[:, None, None] * (np.eye(2) - tt)
        # bending: energy 1/2 k (kappa - natural)^2 of the angle between edges
        cross = t[:-1, 0] * t[1:, 1] - t[:-1, 1] * t[1:, 0]
        kappa = 2 * cross / (1 + (t[:-1] * t[1:]).sum(1))
        rate = 1 + 0.25 * kappa**2
        bent = kappa - self.natural
        moment = self.bending * bent * rate
        stiffness = self.bending * rate * (rate + 0.5 * kappa * bent)
        by_angle = np.zeros(len(e))
        by_angle[1:] += moment
        by_angle[:-1] -= moment
        twice = np.zeros(len(e))
        twice[1:] += stiffness
        twice[:-1] += stiffness
        # magnetisation, carried along by the edge
        r, s = self.rest_direction, t
        cosine, sine = (r * s).sum(1), r[:, 0] * s[:, 1] - r[:, 1] * s[:, 0]
        moment = cosine[:, None] * self.moment + sine[:, None] * turned(self.moment)
        by_angle -= turned(moment) @ field
        twice += moment @ field
        # by angles to edges: d2 theta / de2 = - (t n^T + n t^T) / l^2
        slope += by_angle[:, None] * g
        tn = outer(t, n)
        diagonal += twice[:, None, None] * outer(g, g)
        diagonal -= (by_angle / length**2)[:, None, None] * (tn + tn.transpose(0, 2, 1))
        coupled = -stiffness[:, None, None] * outer(g[:-1], g[1:])
        gradient = np.zeros_like(x)
        gradient[1:] += slope
        gradient[:-1] -= slope
        return gradient, _on_nodes(diagonal, coupled)

    def step(self, x, v, field, dt, tolerance) -> tuple[np.ndarray, np.ndarray, int, float]:
        """Return positions and velocities after a step of implicit Euler, its iterations and its residual [N]."""
        inertia = self.mass * (1 / dt**2 + self.damping / dt)
        new = x + dt * v
        new[: self.held] = x[: self.held]
        for iteration in range(50):
            gradient, (diagonal, first, second) = self.elastic(new, field)
            residual = self.mass[:, None] * ((new - x) / dt - v) / dt + gradient - self.load
            residual += (self.damping * self.mass)[:, None] * (new - x) / dt
            free = residual[self.held :].ravel()
            worst = float(np.linalg.norm(free))
            if worst < tolerance:
                return new, (new - x) / dt, iteration, worst
            diagonal[:, [0, 1], [0, 1]] += inertia[:, None]
            band = band_of(diagonal[self.held :], first[self.held :], second[self.held :])
            new[self.held :] -= solve_banded((5, 5), band, free, check_finite=False).reshape(-1, 2)
        raise RuntimeError(f"not solved: residual of {worst:g} N after 50 iterations")


def _on_nodes(diagonal: np.ndarray, coupled: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the blocks of nodes with themselves, the next and the one after that, from those of edges."""
    own = np.zeros((len(diagonal) + 1, 2, 2))
    own[1:] += diagonal
    own[:-1] += diagonal
    own[1:-1] -= coupled + coupled.transpose(0, 2, 1)
    first = -diagonal
    first[:-1] += coupled
    first[1:] += coupled
    return own, first, -coupled


def band_of(own: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix of blocks as LAPACK stores bands of five."""
    band = np.zeros((11, 2 * len(own)))
    for blocks, ahead in ((own, 0), (first, 1), (second, 2)):
        for i in range(2):
            for j in range(2):
                above = 2 * ahead + j - i  # column less row
                columns = slice(2 * ahead + j, None, 2)
                band[5 - above, columns] = blocks[:, i, j]
                if ahead:
                    rows = slice(i, 2 * len(blocks) + i, 2)
                    band[5 + above, rows] = blocks[:, i, j]
    return band

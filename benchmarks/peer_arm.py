"""The peer of `benchmarks.arm`: the pneumatic arm, one robot in plain NumPy.

The paper's equations as they stand: Jacobians point by point along the chain, velocity terms by a central difference of
the Jacobians along the motion, the pyramid's complementarity problem (11)-(13) by Lemke's method (Cottle, Pang and
Stone, "The Linear Complementarity Problem", 4.4). The step is the same linearly implicit one.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["PeerArm", "lemke"]

SERIES = 12


class PeerArm:
    """One hanging arm above a half-space; parameters as in `studies.pneumatic_arm.scenarios`."""

    lengths, masses = np.full(3, 0.15), np.array([1.17, 0.54, 0.265])
    radius, stiffness, damping, plate, mu = 0.04, 265.0, 125.0, 0.05, 0.5
    gravity = np.array([0.0, 0.0, -9.81])

    def __init__(self, disks: int, normal: np.ndarray | None = None, point: np.ndarray | None = None):
        nodes, weights = np.polynomial.legendre.leggauss(3)
        self.gauss, self.weights = (nodes + 1) / 2, weights / 2
        self.shares = np.arange(1, disks + 2) / (disks + 1)
        angle = 2 * np.pi * np.arange(3) / 3
        across = -2 / (3 * self.radius) * np.stack([np.cos(angle), np.sin(angle)])
        self.to_shape = np.vstack([np.full(3, 1 / 3), across])
        self.base = np.diag([-1.0, 1.0, -1.0])
        self.normal, self.point = normal, point

    def frames(self, q: np.ndarray, shares: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Return position, rotation, Jacobian and angular Jacobian of points at these shares of each section."""
        place, turn = np.zeros(3), self.base
        moved, spun = np.zeros((3, 9)), np.zeros((3, 9))
        found: list[tuple[np.ndarray, ...]] = []
        for k in range(3):
            own = slice(3 * k, 3 * k + 3)
            shape = self.to_shape @ q[own]
            s, u = self.lengths[k] + shape[0], shape[1:]
            for xi in (*shares, 1.0):
                local, rotation, by_shape, rate = _arc(s, u, xi)
                reach = turn @ local
                jacobian = moved - _skew(reach) @ spun
                jacobian[:, own] += turn @ by_shape @ self.to_shape
                angular = spun.copy()
                angular[:, own] += turn @ rate @ self.to_shape[1:]
                found.append((place + reach, turn @ rotation, jacobian, angular))
            place, turn, moved, spun = found.pop()
        return found

    def equations(self, q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mass matrix M (9, 9), and C v + G (9,) of velocity terms and gravity."""
        mass, bias = np.zeros((9, 9)), np.zeros(9)
        here = self.frames(q, self.gauss)
        h = 1e-5
        ahead, behind = self.frames(q + h * v, self.gauss), self.frames(q - h * v, self.gauss)
        for i, (_, _, jacobian, _) in enumerate(here):
            m = self.masses[i // 3] * self.weights[i % 3]
            mass += m * jacobian.T @ jacobian
            pulled = (ahead[i][2] - behind[i][2]) @ v / (2 * h) - self.gravity
            bias += m * jacobian.T @ pulled
        return mass, bias

    def step(self, q: np.ndarray, v: np.ndarray, force: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray, int]:
        """Return elongations and rates after a step, and how many contacts bore load."""
        mass, bias = self.equations(q, v)
        inertia = mass + (h * self.damping + h * h * self.stiffness) * np.eye(9)
        load = force - bias - self.stiffness * (q + h * v) - self.damping * v
        v = v + h * np.linalg.solve(inertia, load)
        if self.normal is None:
            return q + h * v, v, 0
        rows, starts = self._contacts(q, v, h)
        if not rows:
            return q + h * v, v, 0
        jacobian = np.concatenate(rows)
        shared = np.linalg.solve(inertia, jacobian.T)
        impulse, _ = self.friction(jacobian @ shared, np.concatenate(starts))
        return q + h * (v + shared @ impulse), v + shared @ impulse, int((impulse[::3] > 0).sum())

    def _contacts(self, q: np.ndarray, v: np.ndarray, h: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return Jacobians (normal, tangents) and contact-free velocities of plates that would touch in the step."""
        n = self.normal
        assert n is not None and self.point is not None
        other = np.array([0.0, 1.0, 0.0])
        first = np.cross(other, n)
        frame = np.stack([n, first / np.linalg.norm(first), other])
        rows, starts = [], []
        for place, turn, jacobian, angular in self.frames(q, self.shares):
            down = -(turn[:, :2].T @ n)
            arm = turn[:, :2] @ (self.plate * down / max(np.linalg.norm(down), 1e-300))
            gap = n @ (place + arm - self.point)
            moved = frame @ (jacobian - _skew(arm) @ angular)
            start = moved @ v
            start[0] += (gap if gap > 0 else 0.2 * gap) / h
            if start[0] < 0:
                rows.append(moved)
                starts.append(start)
        return rows, starts

    def friction(self, delassus: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the contact impulses (normal, tangents) for a friction pyramid of four sides, and whether found."""
        count = len(start) // 3
        spread = np.zeros((3 * count, 6 * count))  # impulses of the unknowns: normals, 4 weights each, slacks
        for i in range(count):
            spread[3 * i, i] = 1.0
            spread[3 * i + 1 : 3 * i + 3, count + 4 * i : count + 4 * i + 4] = [[1, 0, -1, 0], [0, 1, 0, -1]]
        matrix = spread.T @ delassus @ spread
        for i in range(count):
            weights, slack = slice(count + 4 * i, count + 4 * i + 4), 5 * count + i
            matrix[weights, slack] = 1.0
            matrix[slack, i], matrix[slack, weights] = self.mu, -1.0
        z, solved = lemke(matrix, spread.T @ start)
        return spread @ z, solved


def lemke(matrix: np.ndarray, q: np.ndarray, most: int = 1000) -> tuple[np.ndarray, bool]:
    """Return z >= 0 with w = A z + q >= 0 and z w = 0, and whether it was found."""
    size = len(q)
    if q.min() >= 0:
        return np.zeros(size), True
    table = np.hstack([np.eye(size), -matrix, -np.ones((size, 1)), q[:, None]])
    basis = np.arange(size)  # w_i are 0 .. size - 1, z_i follow, the artificial unknown is the last
    row, entering = int(q.argmin()), 2 * size
    for _ in range(most):
        table[row] /= table[row, entering]
        others = np.arange(size) != row
        table[others] -= np.outer(table[others, entering], table[row])
        leaving, basis[row] = basis[row], entering
        if leaving == 2 * size:
            z = np.zeros(2 * size + 1)
            z[basis] = table[:, -1]
            return z[size : 2 * size], True
        entering = leaving + size if leaving < size else leaving - size
        column = table[:, entering]
        usable = column > 1e-12
        if not usable.any():
            return np.zeros(size), False
        ratios = np.where(usable, table[:, -1] / np.where(usable, column, 1.0), np.inf)
        tied = np.flatnonzero(ratios <= ratios.min() + 1e-14)
        artificial = tied[basis[tied] == 2 * size]
        row = int(artificial[0]) if len(artificial) else int(tied[0])
    return np.zeros(size), False


def _arc(s: float, u: np.ndarray, xi: float) -> tuple[np.ndarray, ...]:
    """Return point, rotation, derivative of the point by (s, u) and angular rate by u, in the section's first frame."""
    q = xi * xi * (u @ u)
    a, b, c, da, db = _functions(q)
    x, y = u
    local = s * xi * np.array([xi * b * x, xi * b * y, a])
    turn = _skew(xi * np.array([-y, x, 0.0]))
    square = turn @ turn
    by_bend = np.vstack(
        [s * xi * xi * (b * np.eye(2) + 2 * db * xi * xi * np.outer(u, u)), 2 * s * xi**3 * da * u[None]]
    )
    rate = (np.eye(3) + b * turn + c * square)[:, :2] @ np.array([[0.0, -xi], [xi, 0.0]])
    return local, np.eye(3) + a * turn + b * square, np.column_stack([local / s, by_bend]), rate


def _functions(q: float) -> tuple[float, float, float, float, float]:
    """Return a = sin x / x, b = (1 - cos x) / q, c = (1 - a) / q at q = x^2, and the derivatives of a and b by q."""
    if q < 1:
        a = b = c = da = db = 0.0
        for k in range(SERIES, -1, -1):
            sign = (-1) ** k
            a, b, c = (sign / math.factorial(2 * k + j) + q * z for j, z in ((1, a), (2, b), (3, c)))
            if k:
                da, db = (k * sign / math.factorial(2 * k + j) + q * z for j, z in ((1, da), (2, db)))
        return a, b, c, da, db
    x = math.sqrt(q)
    a, b = math.sin(x) / x, (1 - math.cos(x)) / q
    c = (1 - a) / q
    return a, b, c, (c - b) / 2, (a - 2 * b) / (2 * q)


def _skew(v: np.ndarray) -> np.ndarray:
    return np.array([[0.0, -v[2], v[1]], [v[2], 0.0, -v[0]], [-v[1], v[0], 0.0]])

r"""One arm as CasADi expressions: pose and velocity of its end plate, and the forces on its chambers.

The formulas are those of `arcs`; the numbers are a PneumaticArm's own. Functions of the bend x are power series in x^2,
without sines: TERMS terms are exact to rounding up to x = STEEPEST, so they have no singularities and no branches.
Forces follow from the point masses by directional derivatives (`jtimes`), without a whole Jacobian:

    M a + C v + G = sum over points of  m (dp/dq)^T (p'' - g).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.planning.casadi import casadi
from torchdismech.errors import InputError

__all__ = ["STEEPEST", "ArmExpressions", "bend_series"]

TERMS = 16  # of the series
STEEPEST = 4.5  # [rad] largest bend: there the first term left out is below 1e-16
Expression = Any  # of CasADi, which has no types


def bend_series(square: Expression) -> tuple[Expression, Expression, Expression]:
    """Return sin x / x, (1 - cos x) / x^2 and (x - sin x) / x^3 by x^2, for x up to STEEPEST."""

    def total(first: int) -> Expression:
        value = 0.0
        for k in reversed(range(TERMS)):
            value = (-1) ** k / math.factorial(2 * k + first) + square * value
        return value

    return total(1), total(2), total(3)


class ArmExpressions:
    """Expressions of one arm; q, v and a are columns (n,) of elongations, their rates and their accelerations.

    Parameters
    ----------
    arm : its constants are copied, as they are now.

    Raises
    ------
    InputError
        The constants are given for several robots.
    """

    def __init__(self, arm: PneumaticArm):
        if (arm.batch or 1) > 1:
            raise InputError(f"planning: expected an arm whose constants are those of one robot, got {arm.batch}")
        with torch.no_grad():
            zero = arm.length.new_zeros(1, arm.n_dofs)
            self.to_shapes = _as_array(arm.to_shapes().reshape(3 * arm.sections, arm.n_dofs))
            self.lengths = _as_array(arm.shape(zero)[0, :, 0])
            self.base = _as_array(arm.base.reshape(3))
            self.frame = _as_array(arm.base_frame().reshape(3, 3))
            self.gravity = _as_array(arm.gravity.reshape(3))
            self.masses = _as_array(arm.point_masses()[..., 0])
            self.shares = _as_array(arm.mass_shares())
            self.stiffness, self.damping = (
                _as_array(value.expand_as(zero)[0]) for value in (arm.stiffness, arm.damping)
            )
            self.plate_radius = float(arm.plate_radius.reshape(()))
        self.sections, self.n_dofs = arm.sections, arm.n_dofs

    def shapes(self, q: Expression) -> Expression:
        """Return length and bend (s, ux, uy) of all sections in one column (3 S,)."""
        rest = np.zeros(3 * self.sections)
        rest[::3] = self.lengths
        return casadi().mtimes(self.to_shapes, q) + rest

    def steepest(self, low: float, high: float) -> float:
        """Return the largest bend of any section for elongations of its chambers from `low` to `high` [m], in rad."""
        angle = np.linspace(0, 2 * np.pi, 361)
        bend_rates = self.to_shapes.reshape(self.sections, 3, -1)[:, 1:].transpose(0, 2, 1) @ [
            np.cos(angle),
            np.sin(angle),
        ]
        return float((high - low) * np.maximum(bend_rates, 0).sum(1).max())

    def end(self, q: Expression) -> tuple[Expression, Expression]:
        """Return the middle (3,) [m] and the frame (3, 3) of the end plate; z is along the arm."""
        middle, turn = self.base, self.frame
        shapes = self.shapes(q)
        for section in range(self.sections):
            local, rotation = _arc(shapes[3 * section : 3 * section + 3], 1.0)
            middle, turn = middle + turn @ local, turn @ rotation
        return middle, turn

    def spin(self, q: Expression, v: Expression) -> Expression:
        """Return the angular velocity (3,) of the end plate [rad/s]."""
        ca = casadi()
        shapes, rates = self.shapes(q), ca.mtimes(self.to_shapes, v)
        turn, total = self.frame, ca.SX.zeros(3)
        for section in range(self.sections):
            shape, rate = (x[3 * section : 3 * section + 3] for x in (shapes, rates))
            w, dw = ca.vertcat(-shape[2], shape[1], 0), ca.vertcat(-rate[2], rate[1], 0)
            _, b, c = bend_series(ca.dot(w, w))
            once = ca.cross(w, dw)
            total = total + turn @ (dw + b * once + c * ca.cross(w, once))
            turn = turn @ _arc(shape, 1.0)[1]
        return total

    def points(self, q: Expression) -> Expression:
        """Return the positions of all point masses in one column (3 S G,) [m]."""
        origin, turn, points = self.base, self.frame, []
        shapes = self.shapes(q)
        for section in range(self.sections):
            shape = shapes[3 * section : 3 * section + 3]
            points += [origin + turn @ _arc(shape, share)[0] for share in self.shares]
            local, rotation = _arc(shape, 1.0)
            origin, turn = origin + turn @ local, turn @ rotation
        return casadi().vertcat(*points)

    def inertial(self, q: Expression, v: Expression, a: Expression) -> Expression:
        """Return M a + C v + G (n,) [N]; q has to be a symbol."""
        ca = casadi()
        points = self.points(q)
        velocity = ca.jtimes(points, q, v)
        felt = ca.jtimes(points, q, a) + ca.jtimes(velocity, q, v) - np.tile(self.gravity, points.numel() // 3)
        return ca.jtimes(points, q, np.repeat(self.masses.reshape(-1), 3) * felt, True)

    def springs(self, q: Expression, v: Expression) -> Expression:
        """Return K q + B v (n,) [N]."""
        return self.stiffness * q + self.damping * v

    def carried(self, q: Expression, point: Expression, force: Expression) -> Expression:
        """Return J^T f (n,) [N] of a force (3,) on the end plate at a point (3,); q has to be a symbol."""
        ca = casadi()
        v = ca.SX.sym("v", self.n_dofs)
        return ca.gradient(ca.dot(force, self.velocity(q, v, point)), v)

    def velocity(self, q: Expression, v: Expression, point: Expression) -> Expression:
        """Return the velocity (3,) of the end plate at a point (3,) [m/s]; q has to be a symbol."""
        ca = casadi()
        middle = self.end(q)[0]
        return ca.jtimes(middle, q, v) + ca.cross(self.spin(q, v), point - middle)


def _arc(shape: Expression, share: float) -> tuple[Expression, Expression]:
    """Return the point (3,) and the rotation (3, 3) at a share of a section, seen from its first frame."""
    ca = casadi()
    s, u = shape[0], share * shape[1:3]
    a, b, _ = bend_series(ca.dot(u, u))
    w = ca.skew(ca.vertcat(-u[1], u[0], 0))
    return share * s * ca.vertcat(b * u, a), ca.SX.eye(3) + a * w + b * (w @ w)


def _as_array(values: torch.Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()

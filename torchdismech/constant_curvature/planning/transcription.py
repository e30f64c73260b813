r"""The equations of one step of a plan: implicit Euler of arm and ball, contact by complementarity, and the cost.

All terms are evaluated at the end of the step (Azizkhani and Chen, equations 17 to 20): with the force f on the plate,

    q+ = q + h v+,    M (v+ - v) = h (tau - C v - K q - B v - G + J^T f),
    I (w+ - w) = h (torque of -f - D w),    o+ = exp(h w+) o,

and 0 <= a complementary to b >= 0 for gap and normal force, the margin mu f_n - sum f_t and the slip, and f_t and the
sliding D^T v + slip along each of the friction directions D. Each complementary quantity is an unknown of its own, so
that the products, relaxed to a b <= eps (Scholtes), are those of two unknowns with bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdismech.constant_curvature.planning.ball import Ball, Touch, quaternion_after, touch
from torchdismech.constant_curvature.planning.casadi import casadi
from torchdismech.constant_curvature.planning.expressions import ArmExpressions
from torchdismech.constant_curvature.planning.program import Layout, StepFunctions

__all__ = ["PAIRS", "PlannedStep", "Task"]

PAIRS = {"gap": "normal", "margin": "slip", "sliding": "tangential"}  # pairs of complementary unknowns
Expression = Any  # of CasADi, which has no types


@dataclass(frozen=True)
class Task:
    """What is planned: an arm turns a ball.

    Attributes
    ----------
    arm, ball : the models of both.
    target : (4,) the ball's orientation at the end (w, x, y, z).
    h : duration of a step [s].
    directions : number of friction directions.
    thickness : of the end plate [m].
    """

    arm: ArmExpressions
    ball: Ball
    target: np.ndarray
    h: float
    directions: int = 10
    thickness: float = 0.01

    def touch(self, q: Expression) -> Touch:
        """Return gap, normal and closest point of the end plate and the ball."""
        return touch(self.ball, *self.arm.end(q), self.arm.plate_radius, self.thickness, self.arm.frame)

    def around(self, tangents: Expression) -> Expression:
        """Return the friction directions D (3, d), evenly spaced in the tangent plane."""
        angle = 2 * np.pi * np.arange(self.directions) / self.directions
        return tangents @ np.stack([np.cos(angle), np.sin(angle)])

    def error(self, orientation: Expression) -> Expression:
        """Return the error of an orientation, 1 - (o . target)^2."""
        return 1 - casadi().dot(orientation, casadi().DM(self.target)) ** 2


class PlannedStep:
    """Unknowns, constraints and cost of one step.

    Parameters
    ----------
    task : what is planned.
    moving : whether the arm obeys its dynamics, driven by forces on its chambers; else it moves without forces.
    """

    def __init__(self, task: Task, moving: bool):
        self.task, self.moving = task, moving
        arm, d = task.arm, task.directions
        sizes = {"q": arm.n_dofs, "v": arm.n_dofs, "orientation": 4, "spin": 3, "normal": 1, "tangential": d}
        sizes |= {"slip": 1, "gap": 1, "margin": 1, "sliding": d}
        self.layout = Layout(sizes | ({"force": arm.n_dofs} if moving else {}))

    def functions(self) -> StepFunctions:
        """Return what a step adds to the program; its parameter is an extra weight of the orientation error."""
        ca = casadi()
        before, now = self.layout.symbols("0"), self.layout.symbols()
        last_weight = ca.SX.sym("last")
        constraints = ca.vertcat(*self.defects(before, now).values(), *self.definitions(now), *self.products(now))
        return StepFunctions(
            ca.vertcat(*before.values()),
            ca.vertcat(*now.values()),
            last_weight,
            self.cost(before, now, last_weight),
            constraints,
        )

    def defects(self, before: dict[str, Expression], now: dict[str, Expression]) -> dict[str, Expression]:
        """Return the defects of the equations of motion by name: rate [m/s], force [N], spin [rad/s], orientation."""
        task, ca = self.task, casadi()
        arm, ball, h = task.arm, task.ball, task.h
        q, v = now["q"], now["v"]
        contact, force = task.touch(q), self.contact_force(now)
        torque = ca.cross(ball.radius * contact.normal, force) - ball.damping * now["spin"]
        defects = {
            "rate": (q - before["q"]) / h - v,
            "spin": now["spin"] - before["spin"] - h / ball.inertia * torque,
            "orientation": now["orientation"] - quaternion_after(before["orientation"], now["spin"], h),
        }
        if self.moving:
            load = arm.inertial(q, v, (v - before["v"]) / h) + arm.springs(q, v) - arm.carried(q, contact.point, force)
            defects["force"] = load - now["force"]
        return defects

    def contact_force(self, now: dict[str, Expression]) -> Expression:
        """Return the force (3,) of the ball on the plate [N]."""
        contact = self.task.touch(now["q"])
        return self.task.around(contact.tangents) @ now["tangential"] - contact.normal * now["normal"]

    def definitions(self, now: dict[str, Expression]) -> list[Expression]:
        """Return the unknowns gap, friction margin and sliding minus the expressions that define them."""
        task, ca = self.task, casadi()
        contact = task.touch(now["q"])
        surface = ca.cross(now["spin"], -task.ball.radius * contact.normal)
        relative = task.arm.velocity(now["q"], now["v"], contact.point) - surface
        return [
            now["gap"] - contact.gap,
            now["margin"] - (task.ball.friction * now["normal"] - ca.sum1(now["tangential"])),
            now["sliding"] - (task.around(contact.tangents).T @ relative + now["slip"]),
        ]

    def products(self, now: dict[str, Expression]) -> list[Expression]:
        """Return the products of complementary unknowns."""
        return [now[first] * now[second] for first, second in PAIRS.items()]

    def cost(self, before: dict[str, Expression], now: dict[str, Expression], last_weight: Expression) -> Expression:
        """Return the step's part of the cost (equation 20), in which K q replaces the forces of kinematic motions."""
        task, ca = self.task, casadi()

        def square(x: Expression) -> Expression:
            return ca.sumsqr(x)

        error = task.error(now["orientation"])
        force = now["force"] if self.moving else task.arm.stiffness * now["q"]
        running = (
            10 * error
            - 1e-3 * now["normal"]
            + 0.2 * square(now["normal"] - before["normal"])
            + 1e-3 * square(now["v"] - before["v"])
            + 1e-3 * square(now["spin"] - before["spin"])
            + 1e-2 * square(force)
            + 10 * (square(now["orientation"]) - 1) ** 2
        )
        return task.h * running + last_weight * error

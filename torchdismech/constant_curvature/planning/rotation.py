"""Plans in which an arm turns a ball to an orientation: its end plate rolls and slides on the ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.planning.ball import Ball
from torchdismech.constant_curvature.planning.casadi import casadi
from torchdismech.constant_curvature.planning.checks import finite_numbers
from torchdismech.constant_curvature.planning.expressions import STEEPEST, ArmExpressions
from torchdismech.constant_curvature.planning.plan import Plan
from torchdismech.constant_curvature.planning.solving import IPOPT, Limits, Motion
from torchdismech.constant_curvature.planning.transcription import Task
from torchdismech.errors import (
    InputError,
    finite_number,
    positive_number,
    refuse_other_kind,
    refuse_other_model,
    whole_number,
)

__all__ = ["plan_rotation", "refuse_other_models", "rotation_about", "touching_start"]

ELONGATIONS = (-0.05, 0.15)  # default bounds [m]


def rotation_about(axis: str | Sequence[float], degrees: float) -> Tensor:
    """Return the quaternion (4,) (w, x, y, z) of a rotation about "x", "y", "z" or a vector (3,)."""
    vector = {"x": (1, 0, 0), "y": (0, 1, 0), "z": (0, 0, 1)}.get(axis, axis) if isinstance(axis, str) else axis
    expected = "x, y, z or a vector of three finite numbers and some length"
    along = torch.tensor(finite_numbers(vector, "axis", expected, 3), dtype=torch.float64, device="cpu")
    if not bool(along.any()):
        raise InputError(f"axis: expected {expected}, got {axis!r}")
    half = math.radians(finite_number(degrees, "degrees")) / 2
    return torch.cat([along.new_tensor([math.cos(half)]), math.sin(half) * along / along.norm()])


def plan_rotation(
    arm: PneumaticArm,
    ball: Ball,
    target: Tensor | Sequence[float],
    *,
    steps: int = 100,
    duration: float = 4.0,
    elongations: tuple[float, float] = ELONGATIONS,
    least_normal: float = 0.1,
    directions: int = 10,
    thickness: float = 0.01,
    relaxations: Sequence[float] = (1e-3, 1e-5, 1e-7),
    start: Tensor | Sequence[float] | None = None,
    max_iterations: int = 1500,
    progress: bool = False,
) -> Plan:
    """Return forces on the chambers of one arm that turn a ball, and the motion that follows.

    The ball starts at the orientation (1, 0, 0, 0), and all is at rest. First a kinematic motion is sought, in which
    the arm needs no forces to move. With forces by inverse dynamics it is the guess for the plan itself, which obeys
    the dynamics. IPOPT solves both for smaller and smaller relaxations of the complementarity conditions, each starting
    from the solution before. `transcription` has the equations.

    Parameters
    ----------
    arm : without obstacles; its constants are copied as they are now.
    target : (4,) orientation of the ball at the end, a quaternion (w, x, y, z) of any length; see `rotation_about`.
    steps, duration : number of steps N, and their total time [s].
    elongations : bounds on those of all chambers [m]; a section has to bend by less than 4.5 rad within them.
    least_normal : lower bound of the normal force between plate and ball [N]; 0 lets them part.
    directions : number of friction directions, three or more.
    thickness : of the plate, behind its end face [m].
    relaxations : the successive eps, each below the one before [SI units].
    start : (n,) elongations at the beginning [m]; by default those of `touching_start`.
    max_iterations : most iterations of IPOPT for each relaxation.
    progress : show a line that counts iterations.

    Returns
    -------
    Plan
        Look at `converged` first, then at `error` and `residuals`.

    Raises
    ------
    InputError
        CasADi is not installed; values that are no numbers or out of range; an arm with obstacles, or with constants of
        several robots.
    """
    refuse_other_models("plan_rotation", arm, ball)
    for name, number, least in (
        ("steps", steps, 1),
        ("directions", directions, 3),
        ("max_iterations", max_iterations, 1),
    ):
        whole_number(number, name, least)
    duration, thickness = positive_number(duration, "duration"), positive_number(thickness, "thickness")
    least_normal, relaxations = positive_number(least_normal, "least_normal", or_zero=True), _relaxations(relaxations)
    elongations = _bounds(elongations)
    _check_elongations(arm, elongations)
    task = Task(ArmExpressions(arm), ball, _unit(target), duration / steps, directions, thickness)
    if start is None:
        start = touching_start(arm, ball, elongations=elongations, least_normal=least_normal, thickness=thickness)[0]
    first = _elongations(start, arm.n_dofs, elongations)
    limits = Limits(elongations, least_normal, max_iterations)
    kinematic, dynamic = (Motion(task, moving, first, steps, limits) for moving in (False, True))
    motion, stages = kinematic.solved(kinematic.straightforward(), relaxations, False, progress)
    values, last_stages = dynamic.solved(dynamic.with_forces(motion), relaxations, True, progress)
    return dynamic.plan(values, stages + last_stages)


def touching_start(
    arm: PneumaticArm,
    ball: Ball,
    *,
    elongations: tuple[float, float] = ELONGATIONS,
    least_normal: float = 0.1,
    thickness: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """Return elongations (n,) [m] and forces (n,) [N] of an arm at rest whose plate presses against the ball.

    The centre of the end plate touches the ball at its lowest point, seen along the base's z axis. The plate is
    perpendicular to that axis, and presses with the force `least_normal`. Of all such equilibria it is the one with the
    least sum of squared forces on the chambers. It may be unstable.

    Raises
    ------
    InputError
        CasADi is not installed; values that are no numbers or out of range; an arm with obstacles, or with constants of
        several robots; no elongations within the bounds bring the plate there.
    """
    refuse_other_models("touching_start", arm, ball)
    ca, expressions = casadi(), ArmExpressions(arm)
    elongations, least_normal = _bounds(elongations), positive_number(least_normal, "least_normal", or_zero=True)
    thickness = positive_number(thickness, "thickness")
    q = ca.SX.sym("q", arm.n_dofs)
    task = Task(expressions, ball, np.array([1.0, 0, 0, 0]), 1.0, thickness=thickness)
    middle, turn = expressions.end(q)
    up = expressions.frame[:, 2]
    lowest = np.array(ball.center) - ball.radius * up
    forces_of_hold = _holding_forces(task, q, least_normal)
    program = {
        "x": q,
        "f": ca.sumsqr(forces_of_hold),
        "g": ca.vertcat(middle - lowest, expressions.frame[:, :2].T @ turn[:, 2]),
    }
    solver = ca.nlpsol("start", "ipopt", program, {"ipopt": {**IPOPT, "tol": 1e-10}, "print_time": False})
    # all sections equally long, and slightly bent: a straight arm prefers no direction of bending
    elongation = float(np.linalg.norm(lowest - expressions.base) - expressions.lengths.sum()) / arm.sections
    solution = solver(
        x0=np.clip(elongation, *elongations) + 1e-3 * np.cos(np.arange(arm.n_dofs)),
        lbx=elongations[0],
        ubx=elongations[1],
        lbg=0,
        ubg=0,
    )
    status = solver.stats()["return_status"]
    if status != "Solve_Succeeded":
        raise InputError(
            f"Ball.center: expected a ball whose lowest point the end plate can touch with elongations from "
            f"{elongations[0]} to {elongations[1]} m, got {tuple(ball.center)} ({status}); move the ball, widen the "
            "bounds, or give a start"
        )
    rest = np.array(solution["x"]).reshape(-1)
    forces = np.array(ca.Function("held", [q], [forces_of_hold])(rest)).reshape(-1)
    return torch.from_numpy(rest), torch.from_numpy(forces)


def _holding_forces(task: Task, q: Any, normal: float) -> Any:
    """Return the forces on the chambers (n,) that hold the arm at rest with its plate pressed against the ball [N]."""
    arm, zero = task.arm, casadi().SX.zeros(task.arm.n_dofs)
    contact = task.touch(q)
    return arm.inertial(q, zero, zero) + arm.springs(q, zero) - arm.carried(q, contact.point, -contact.normal * normal)


def _unit(target: Tensor | Sequence[float]) -> np.ndarray:
    """Return the target as a unit quaternion (4,); refuse anything else than four numbers, not all zero."""
    expected = "a quaternion (w, x, y, z) of finite numbers and some length"
    values = np.array(finite_numbers(target, "target", expected, 4))
    if not values.any():
        raise InputError(f"target: expected {expected}, got {target}")
    return values / np.linalg.norm(values)


def _elongations(start: Tensor | Sequence[float], count: int, bounds: tuple[float, float]) -> np.ndarray:
    """Return the initial elongations (n,) [m]; refuse other counts, and numbers out of the bounds."""
    expected = f"({count},) elongations from {bounds[0]} to {bounds[1]} m"
    values = np.array(finite_numbers(start, "start", expected, count))
    if not ((values >= bounds[0]) & (values <= bounds[1])).all():
        raise InputError(f"start: expected {expected}, got {start}")
    return values


def refuse_other_models(caller: str, arm: PneumaticArm, ball: Ball) -> None:
    """Refuse models other than arms without obstacles, and other than balls."""
    refuse_other_model(caller, arm, PneumaticArm)
    refuse_other_kind(f"{caller}: ball", ball, Ball, "a Ball")
    if len(arm.obstacles):
        raise InputError(f"{caller}: expected an arm without obstacles, as a plan knows none but the ball")


def _relaxations(values: object) -> tuple[float, ...]:
    """Return the relaxations; refuse others than falling finite numbers above 0."""
    relaxations = finite_numbers(values, "relaxations", "finite numbers above 0")
    if not relaxations or min(relaxations) <= 0:
        raise InputError(f"relaxations: expected finite numbers above 0, got {values!r}")
    if any(after >= before for before, after in zip(relaxations, relaxations[1:], strict=False)):
        raise InputError(f"relaxations: expected each below the one before, got {values!r}")
    return relaxations


def _bounds(values: object) -> tuple[float, float]:
    """Return the lower and upper bound of elongations [m]; refuse anything else."""
    low, high = finite_numbers(values, "elongations", "a lower and an upper bound [m]", 2)
    if low >= high:
        raise InputError(f"elongations: expected a lower and an upper bound [m], got {values!r}")
    return low, high


def _check_elongations(arm: PneumaticArm, elongations: tuple[float, float]) -> None:
    """Refuse bounds [m] within which a section may lose its length, or bend beyond the range of the power series."""
    low, high = elongations
    default = ", the default," if elongations == ELONGATIONS else ""
    if float(arm.length.min()) + low <= 0:
        raise InputError(
            f"elongations: at {low} m{default} a section of {float(arm.length.min())} m has no length left"
        )
    bend = ArmExpressions(arm).steepest(low, high)
    if bend > STEEPEST:
        raise InputError(
            f"elongations: expected bounds within which a section bends by less than {STEEPEST:.3g} rad, the range of "
            f"the series that plans use, got {elongations!r}{default} with {bend:.3g} rad"
        )

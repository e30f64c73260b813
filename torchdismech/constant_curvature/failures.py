"""Why a step of a pneumatic arm failed, robot by robot, and a warning of arms that begin inside obstacles."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.posture import Posture
from torchdismech.constant_curvature.state import ArmState
from torchdismech.errors import Status, warn

__all__ = ["long_enough", "passed_through", "status_after", "status_before", "warn_of_overlap"]

DEEP = 0.1  # part of a plate's radius: deeper than by rounding, or by the rocking of a plate that lies flat


def status_after(
    status: Tensor, unsolved: Tensor, singular: Tensor, passed: Tensor, collapsed: Tensor, not_finite: Tensor
) -> Tensor:
    """Return the status (B,) of robots after a step: the first reason, in the order below, that applies to a robot.

    Parameters
    ----------
    status : (B,) status before the step; one other than CONVERGED is left as it is.
    unsolved : (B,) bool, as all that follow: the contact problem was not solved.
    singular : the mass matrix has no Cholesky factor.
    passed : a plate may have passed through an obstacle.
    collapsed : a section has no length left.
    not_finite : the step led to numbers that are not finite.
    """
    reasons = {
        Status.CONTACT_UNSOLVED: unsolved,
        Status.SINGULAR: singular,
        Status.PASSED_THROUGH: passed,
        Status.COLLAPSED: collapsed,
        Status.NOT_FINITE: not_finite,
    }
    for reason, rows in reasons.items():
        status = torch.where((status == Status.CONVERGED) & rows, int(reason), status)
    return status


def status_before(model: PneumaticArm, state: ArmState, force: Tensor) -> Tensor:
    """Return the status (B,) of rows before their step: NOT_FINITE, COLLAPSED, or CONVERGED where it can be made."""
    with torch.no_grad():
        finite = torch.isfinite(state.q + state.velocity + force).all(1)
        status = torch.where(long_enough(model, state.q), int(Status.CONVERGED), int(Status.COLLAPSED))
        return torch.where(finite, status, int(Status.NOT_FINITE))


def long_enough(model: PneumaticArm, q: Tensor) -> Tensor:
    """Return whether all sections of a robot have a length above zero, bool (B,)."""
    return (model.shape(q)[..., 0] > 0).all(1)


def passed_through(model: PneumaticArm, before: Posture, after: Posture, time: Tensor, until: Tensor) -> Tensor:
    """Return whether a plate of a robot may have passed through an obstacle, bool (B,).

    That is where a plate moved in the step, as seen from the obstacle, by more than the largest depth that a point can
    have inside an obstacle near by (half its thickness): it may have come out on the other side without a gap below
    zero at either end.

    Parameters
    ----------
    time, until : (B,) when the step begins and ends [s].
    """
    passed = torch.zeros(before.starts.shape[2], dtype=torch.bool, device=before.starts.device)
    if not len(model.obstacles):
        return passed
    middle, frames = model.plates(before)
    end, end_frames = model.plates(after)
    radius = model.plate_radius
    turned = radius * torch.linalg.matrix_norm(end_frames - frames)
    for obstacle in model.obstacles:
        displacement = obstacle.displacement(time)
        obstacle_motion = obstacle.displacement(until) - displacement
        distance = torch.linalg.vector_norm(end - middle - obstacle_motion[:, None], dim=2) + turned
        thin = distance > obstacle.shape.depth
        if bool(thin.any()):
            near = obstacle.shape.distance(middle - displacement[:, None]) - radius < distance
            passed = passed | (thin & near).any(1)
    return passed


@torch.no_grad()
def warn_of_overlap(arm: PneumaticArm, state: ArmState) -> None:
    """Warn where the middle of a plate lies inside an obstacle by more than `DEEP` times the plate's radius.

    Such an arm would be thrown out.
    """
    middles = state.positions[:, 1:]
    for obstacle in arm.obstacles:
        gap = obstacle.shape.distance(middles - obstacle.displacement(state.time)[:, None])
        if not bool((gap < -DEEP * arm.plate_radius).any()):
            continue
        robot, plate = divmod(int(gap.argmin()), arm.n_plates)
        warn(
            f"obstacle {obstacle.name!r} ({type(obstacle.shape).__name__}): plate {plate} of robot {robot} begins "
            f"inside of it, {-float(gap.min()):.3g} m deep; it will be thrown out, or its steps fail. Move the arm "
            "out, or look at where the obstacle is and which way it faces",
            RuntimeWarning,
            once=True,
        )

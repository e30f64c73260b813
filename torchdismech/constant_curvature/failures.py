"""Why a step of a pneumatic arm failed, robot by robot."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.state import ArmState
from torchdismech.errors import Status

__all__ = ["long_enough", "status_after", "status_before"]


def status_after(
    status: Tensor, unsolved: Tensor, singular: Tensor, passed: Tensor, collapsed: Tensor, lost: Tensor
) -> Tensor:
    """Return the status (B,) of robots after a step: the first of these (B,) that holds for a robot says why it failed.

    Parameters
    ----------
    status : before the step.
    unsolved : the contact problem was not solved.
    singular : the mass matrix has no Cholesky factor.
    passed : a plate may have passed through an obstacle.
    collapsed : a section has no length left.
    lost : the step led to numbers that are not finite.
    """
    reasons = {
        Status.CONTACT_UNSOLVED: unsolved,
        Status.SINGULAR: singular,
        Status.PASSED_THROUGH: passed,
        Status.COLLAPSED: collapsed,
        Status.NOT_FINITE: lost,
    }
    for reason, rows in reasons.items():
        status = torch.where((status == Status.CONVERGED) & rows, int(reason), status)
    return status


def status_before(model: PneumaticArm, state: ArmState, force: Tensor) -> Tensor:
    """Return the status (B,) of rows before their step: whether their numbers can be computed with."""
    with torch.no_grad():
        finite = torch.isfinite(state.q + state.velocity + force).all(1)
        status = torch.where(long_enough(model, state.q), int(Status.CONVERGED), int(Status.COLLAPSED))
        return torch.where(finite, status, int(Status.NOT_FINITE))


def long_enough(model: PneumaticArm, q: Tensor) -> Tensor:
    """Return the robots (B,) whose sections all have a length above zero."""
    return (model.shape(q)[..., 0] > 0).all(1)

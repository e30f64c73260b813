"""Why a step failed, where what its caller set tells: said by name, after the failure, so that steps take no longer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.inspection import cause_in_hooks
from torchdismech.model import Model
from torchdismech.state import Control, State

__all__ = ["cause_of_failure"]


@torch.no_grad()
def cause_of_failure(
    model: Model, state: State, controls: Sequence[Control], acting: Control, info: StepInfo, dt: float
) -> str | None:
    """Return what made the step of a robot fail, by name, where controls, forces or energies of users did; else None.

    Nothing is read where there are none of them.

    Parameters
    ----------
    controls : of the step, and of those that were taken at once with it, as the caller gave them.
    acting : that of the first step, its poses written into `clamped_q`.
    dt : how long a step is [s].
    """
    given = controls[0].tensors() or controls[0].values
    if not (given or model.has_user_hooks):
        return None
    failed = ~info.converged
    if not bool(failed.any()):
        return None
    taken = controls[: info.count] if isinstance(info, SeveralSteps) else controls[:1]
    for number, control in enumerate(taken):
        if cause := _not_finite(model, control, failed, state.time + (number + 1) * dt):
            return cause
    return cause_in_hooks(model, state, acting, failed, info.status, dt)


def _not_finite(model: Model, control: Control, rows: Tensor, time: Tensor) -> str | None:
    """Return what of a control is not finite for some robots (B,) at the times (B,); None where all is."""
    for name, value in {**control.tensors(), **{f"values[{k!r}]": v for k, v in control.values.items()}}.items():
        if name == "clamped_q":  # of free dofs nothing is read
            value = value[:, model.body.clamped.dofs]
        off = ~torch.isfinite(value).expand(len(rows), *value.shape[1:]).flatten(1).all(1) & rows
        if bool(off.any()):
            robot = int(off.nonzero()[0])
            own = value[robot] if value.dim() else value
            what = "NaN" if bool(own.isnan().any()) else "an infinite number"
            return (
                f"Control.{name} of robot {robot} at t = {float(time[robot]):g} s holds {what}: look at what makes it, "
                "a schedule, a controller or its network"
            )
    return None

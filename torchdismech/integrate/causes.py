"""Why a step failed, where what its caller set tells: said by name, after the failure, so that steps take no longer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.inspection import cause_in_hooks
from torchdismech.model import Model
from torchdismech.state import Control, State

__all__ = ["cause_of_failure"]

HALF = 170.0  # degrees: a clamp that turns by more in a step has lost its way, or nearly so


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
    return cause_in_hooks(model, state, acting, failed, info.status, dt) or _far(model, state, acting, failed)


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


def _far(model: Model, state: State, acting: Control, rows: Tensor) -> str | None:
    """Return which clamp turns by half a turn in the step, for some robots (B,); None where none does.

    By poses it is where tangents are turned back that there are no numbers for angles.
    """
    if acting.clamped_q is None:
        return None
    clamped = model.body.clamped
    nodes, edges, held = clamped.counts
    parts = [3 * nodes, edges, 3 * held]
    before, after = (q[:, clamped.dofs].split(parts, dim=1) for q in (state.q, acting.clamped_q))
    angle = (after[1] - before[1]).abs().nan_to_num(math.pi)
    directions = [x[2].unflatten(1, (held, 3)) for x in (before, after)]
    bend = torch.linalg.vecdot(*directions).clamp(-1, 1).acos()
    turned = torch.rad2deg(torch.cat([angle, bend], dim=1)).where(rows[:, None], 0.0)
    if not turned.numel() or not bool((most := turned.max()) > HALF):
        return None
    robot, part = divmod(int(turned.argmax()), turned.shape[1])
    number = int(torch.cat([clamped.clamp[nodes : nodes + edges], clamped.clamp[nodes + 2 * edges :]])[part])
    return (
        f"clamp {number} of robot {robot} turns by {float(most):.0f} degrees in this step, where less than 180 can be "
        "followed: turn it in more steps; quaternions of poses are (w, x, y, z), (1, 0, 0, 0) is no turn"
    )

"""Why a step failed, where what the caller or a user's code gave tells it by name.

It is looked for after the failure, so that steps that succeed take no longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.actuation import Tendons
from torchdismech.errors import Status, warn
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.model import Model
from torchdismech.model.faults import what_is_wrong
from torchdismech.model.not_finite import LOOK, what_is_not_finite
from torchdismech.model.user_code import parts_of_users
from torchdismech.robot.state import Control, State, tensor_fields
from torchdismech.rows import finite_rows
from torchdismech.values import per_robot

__all__ = ["cause_in_users_code", "cause_of_failure", "warn_of_lost"]

HALF = 170.0  # degrees: a clamp that turns by more in a step has lost its way, or nearly so
# Degrees: where edges meet at a corner, their frames' turn against each other is known up to whole turns, and a clamp
# that turns by more in a step may take it across half a turn on the way, where the energy jumps.
FAR_TURN = 60.0
ROBOTS_LOOKED_AT = 3  # failed robots for which users' code is examined, at most
# statuses of searches that may have met numbers that are not finite: at their start, or later, as a line search
# shortens steps there
LOST = (Status.NOT_FINITE, Status.MAX_ITERATIONS, Status.LINE_SEARCH_FAILED)


@torch.no_grad()
def cause_of_failure(
    model: Model,
    state: State,
    after: State,
    controls: Sequence[Control],
    posed_control: Control,
    info: StepInfo,
    dt: float,
) -> str | None:
    """Return why the step of a robot failed, where controls or users' forces or energies are to blame; else None.

    Without controls and users' code nothing is read. On a GPU, which would be waited for in each step, nothing is read
    without users' code.

    Parameters
    ----------
    state, after : before the step and after it.
    controls : of the step, and of those that were taken at once with it, as the caller gave them.
    posed_control : of the first step, with its poses written into `clamped_q`. Its `values` stand in the model.
    info : how the steps went.
    dt : length of a step [s].
    """
    checks_controls = state.q.is_cpu and bool(controls[0].tensors() or controls[0].values)
    if not (checks_controls or model.has_user_hooks):
        return None
    failed = ~info.converged
    if not bool(failed.any()):
        return None
    taken = controls[: info.count] if isinstance(info, SeveralSteps) else controls[:1]
    # robots that fail stay where they are, so their time tells in which of several steps they failed
    step = ((after.time - state.time) / dt).round() if len(taken) > 1 else torch.zeros_like(state.time)
    for number, control in enumerate(taken):
        failed_here, clamped = failed & (step == number), model.body.clamped.dofs
        if cause := control.not_finite(failed_here, state.time + (number + 1) * dt, clamped):
            return cause
        if cause := _tendon_pulled_in(model, control, failed_here):
            return cause
    failed_in_first = failed & (step == 0)
    cause = cause_in_users_code(model, state, posed_control, failed_in_first, info.status, dt)
    return cause or _far_motion(model, state, posed_control, failed_in_first)


def cause_in_users_code(
    model: Model, state: State, control: Control, rows: Tensor, status: Tensor | None = None, dt: float = 0.0
) -> str | None:
    """Return what is wrong with a user's force or energy at the states of some robots (B,), by name; None: nothing.

    Parameters
    ----------
    status : (B,) of the step that failed: where its search may have met numbers that are not finite, users' code is
        also evaluated near where the step led.
    dt : length of that step [s].
    """
    if not model.has_user_hooks or not bool(rows.any()):
        return None
    parts = parts_of_users(model.forces, model.terms)
    for robot in rows.nonzero().flatten()[:ROBOTS_LOOKED_AT].tolist():
        row = slice(robot, robot + 1)
        robot_state, control_row, robot_rows = state.rows(row), control.rows(row), rows[row]
        lost = status is not None and int(status[robot]) in LOST
        states = [robot_state, _ahead(robot_state, dt)] if lost else [robot_state]
        if not all(bool(torch.isfinite(tensor).all()) for tensor in control_row.tensors().values()):
            states = []  # the control is not finite, so users' code is not to blame for what is not
        with apart_from_checkpoints(), per_robot(model).rows(robot, 1).in_place():
            for at in states:
                if not_finite := what_is_not_finite(parts, robot_state, at, control_row, robot_rows):
                    return f"{not_finite}, where positions and velocities are finite; {LOOK}"
            if fault := what_is_wrong(parts, robot_state, control_row, robot_rows):
                return fault
    return None


def _ahead(state: State, dt: float) -> State:
    """Return the state to which velocities lead within dt [s], near the first iterate of a step."""
    return state.replace(q=state.q + dt * state.velocity, time=state.time + dt)


@torch.no_grad()
def warn_of_lost(model: Model, state: State) -> None:
    """Warn of a state with numbers that are not finite, and of users' code that gave them.

    The accelerations of a first state are those of the forces, so a force or an energy that is not finite where
    positions and velocities are shows there first.
    """
    lost = _what_is_lost(state)
    if lost is None:
        return
    rows = finite_rows([state.q, state.velocity]) & ~finite_rows([state.acceleration])
    control = Control(clamped_q=state.q, force=torch.zeros_like(state.q))
    cause = cause_in_users_code(model, state, control, rows)
    warn(f"{lost}: its steps fail; {cause or 'look at what made the state'}", RuntimeWarning)


def _what_is_lost(state: State) -> str | None:
    """Return which number of a state is not finite, of the first robot that has one; None if all are finite."""
    for name, value in zip(tensor_fields(state), state.fields(), strict=True):
        not_finite = ~torch.isfinite(value.detach().flatten(1) if value.dim() > 1 else value.detach()[:, None])
        if bool(not_finite.any()):
            robot, number = not_finite.nonzero()[0].tolist()
            where = f", number {number}" * (value.dim() > 1)
            if name in ("q", "velocity") and number < 3 * state.n_nodes:
                where = f" ({'xyz'[number % 3]} of node {number // 3})"
            what = "NaN" if bool(value[robot].isnan().any()) else "an infinite number"
            return f"State.{name} of robot {robot}{where} holds {what}"
    return None


def _tendon_pulled_in(model: Model, control: Control, rows: Tensor) -> str | None:
    """Return which tendon a control pulls in by more than its length, for some robots (B,); None if none."""
    if not bool(rows.any()):
        return None
    for name, value in control.values.items():
        force, attribute = model.places[name]
        if isinstance(force, Tendons) and attribute == "pull":
            pull = value.expand(len(rows), -1) if value.dim() else value.expand(len(rows), 1)
            if problem := force.problem_of_pull(torch.where(rows[:, None], pull, 0.0)):
                return f"Control.values[{name!r}]: {problem}"
    return None


def _far_motion(model: Model, state: State, control: Control, rows: Tensor) -> str | None:
    """Return which clamp turns or moves too far in the step, for some robots (B,); None if none does."""
    if control.clamped_q is None or not len(model.body.clamped.dofs):
        return None
    clamped = model.body.clamped
    nodes, edges, tangents = clamped.counts
    before, after = (
        q[:, clamped.dofs].split([3 * nodes, edges, 3 * tangents], dim=1) for q in (state.q, control.clamped_q)
    )
    # poses give NaN for angles where they turn tangents back
    angle = (after[1] - before[1]).abs().nan_to_num(math.pi)
    bend = torch.linalg.vecdot(*(x[2].unflatten(1, (tangents, 3)) for x in (before, after))).clamp(-1, 1).acos()
    turns = torch.rad2deg(torch.cat([angle, bend], dim=1))
    clamps_of_turns = torch.cat([clamped.clamp[nodes : nodes + edges], clamped.clamp[nodes + 2 * edges :]])
    if farthest := _first_above(turns, torch.full_like(state.time, FAR_TURN), rows, clamps_of_turns):
        robot, number, value = farthest
        limit = "less than 180 can be followed" if value > HALF else "corners and joints may not follow"
        return (
            f"clamp {number} of robot {robot} turns by {value:.0f} degrees in this step, where {limit}: turn it in "
            "more steps (Static: load_steps); quaternions of poses are (w, x, y, z), (1, 0, 0, 0) is no turn"
        )
    distances = (after[0] - before[0]).unflatten(1, (nodes, 3)).norm(dim=2)
    size = (state.positions.amax(1) - state.positions.amin(1)).norm(dim=1)
    if farthest := _first_above(distances, size, rows, clamped.clamp[:nodes]):
        robot, number, value = farthest
        return (
            f"clamp {number} of robot {robot} moves by {value:.3g} m in this step, and the robot is "
            f"{float(size[robot]):.3g} m long: move it in more steps; poses and clamped_q say where it is, in m, not "
            "how far it moves"
        )
    return None


def _first_above(values: Tensor, limit: Tensor, rows: Tensor, numbers: Tensor) -> tuple[int, int, float] | None:
    """Return robot, clamp and value where one of `values` (B, k) is farthest above the limit (B,) of its robot.

    None where none is above it.

    Parameters
    ----------
    rows : (B,) robots to look at.
    numbers : (k,) the clamp of each value.
    """
    over = (values - limit[:, None]).where(rows[:, None], -1.0)
    if not over.numel() or not bool(over.max() > 0):
        return None
    robot, part = divmod(int(over.argmax()), over.shape[1])
    return robot, int(numbers[part]), float(values[robot, part])

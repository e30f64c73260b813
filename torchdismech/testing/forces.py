"""check_force: checks a force's shape, derivatives, symmetry, potential and independence of robots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from torchdismech.forces import Force
from torchdismech.model import Model
from torchdismech.robot.state import Control, State, control_of
from torchdismech.testing.report import Check, Report, Slope, comparison, difference_step, slope, stacked
from torchdismech.testing.robots import alone_check, prepare_check

__all__ = ["check_force"]


def check_force(force: Force, model: Model, state: State, control: Control | None = None) -> Report:
    """Check a force at a state (B, n) that moves and is deformed.

    A force that does not belong to a model yet is bound to this model's robot, so a force that `finalize` refuses can
    be checked, too.

    Checks: shape; finite; the same result twice; derivatives by position and velocity against differences over ALL
    dofs, which reveals a dependence outside the declared blocks; symmetry of the derivatives, and the force as minus
    the gradient of its potential, if claimed (for free dofs only), or of its Rayleigh function; each robot gives the
    same result alone as in a batch with different robots (identical robots, as at the start of a run, are made slightly
    different for that).
    Derivatives by autograd are not checked at held tangents, for which no step needs them.
    """
    control = control_of(control)
    prepare_check("check_force", force, model, state, control)
    report = Report(f"{type(force).__name__}{' (explicit)' if force.explicit else ''}: {state.batch} robots")
    value = force(state, control).detach()
    wrong = value.shape != state.q.shape
    report.checks.append(Check("force is (B, n)", float(wrong), 0.0))
    if wrong:
        return report
    report.checks.append(Check("finite", float((~torch.isfinite(value)).sum()), 0.0))
    report.checks.append(comparison("the same twice", force(state, control).detach(), value, 0.0))
    if not force.explicit:
        by_q, by_velocity = _dense_derivatives(force, state, control)
        looked_at = slice(None if force.closed_form else model.body.first_held)
        for name, matrix, variable in (("position", by_q, "q"), ("velocity", by_velocity, "velocity")):
            slopes = _force_differences(force, state, control, variable)
            matrix, expected, doubt = (found[:, looked_at, looked_at] for found in (matrix, *slopes))
            report.checks.append(comparison(f"derivative by {name}", matrix, expected, doubt=doubt))
            if force.symmetric:
                moves = model.free[looked_at]
                felt, off = (found[:, moves][:, :, moves] for found in (matrix, doubt))
                report.checks.append(comparison(f"... symmetric, as claimed ({name})", felt, felt.mT, 1e-9, off))
    if force.conservative:
        slopes = _slopes(lambda q: force.potential(state.replace(q=q), control), state.q)
        found, rise, doubt = (x[:, model.free] for x in (value, *slopes))
        report.checks.append(comparison("minus the gradient of its potential", found, -rise, doubt=doubt))
    if force.has_rayleigh:
        rise, doubt = _slopes(
            lambda velocity: force.rayleigh(state.replace(velocity=velocity), control), state.velocity
        )
        report.checks.append(comparison("minus the gradient of its Rayleigh function", value, -rise, doubt=doubt))
    report.checks.append(alone_check(force, force, state, control))
    return report


def _dense_derivatives(force: Force, state: State, control: Control) -> Iterator[Tensor]:
    """Yield the dense derivatives (B, n, n) by position, then by velocity, summed from the blocks."""
    derivatives = force.derivatives(state, control)
    for kind in range(2):
        dense = state.q.new_zeros(*state.q.shape, state.q.shape[1])
        for block, values in zip(force.blocks(), derivatives, strict=True):
            entries = values[kind]
            if entries is None:
                continue
            shape = (len(block.rows), block.rows.shape[1], block.cols.shape[1])
            rows = torch.as_tensor(block.rows, device="cpu")[:, :, None].expand(shape).flatten()
            cols = torch.as_tensor(block.cols, device="cpu")[:, None, :].expand(shape).flatten()
            for robot in range(state.batch):
                dense[robot].index_put_((rows, cols), entries[robot].detach().flatten(), accumulate=True)
        yield dense


def _force_differences(force: Force, state: State, control: Control, variable: str) -> Slope:
    """Return the derivatives (B, n, n) of the force by `variable` ("q" or "velocity"), from differences."""
    return _slopes(lambda at: force(state.replace(**{variable: at}), control), getattr(state, variable))


def _slopes(function: Callable[[Tensor], Tensor], at: Tensor) -> Slope:
    """Return the derivatives (B, .., n) of a function by each of its variables (B, n), from differences."""

    def along(k: int, by: float) -> Tensor:
        moved = at.clone()
        moved[:, k] += by
        return function(moved)

    return stacked([slope(partial(along, k), difference_step(at)) for k in range(at.shape[1])], dim=-1)

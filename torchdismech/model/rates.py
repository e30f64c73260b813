"""Rates of angles without inertia, such that dissipation balances the torques on them.

Frames of joints and normals of edges between triangles have no mass, so where something dissipates as they turn, their
rates follow from those of the nodes: with C the derivative of the damping torque by the rates, C times the change of
the rates is the torque that is still unbalanced.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from torchdismech.elastic.term_constants import PresentRate
from torchdismech.model.mechanics import Gains, Mechanics
from torchdismech.model.solvers import Solvers
from torchdismech.robot.state import Control, State
from torchdismech.robot.unknowns import Unknowns
from torchdismech.solve.linear import Factor, Solver, solved_at_root

__all__ = ["with_balanced_rates"]

ROUNDS = 30  # most Newton iterations; one is enough for linear laws
HALVINGS = 6  # most halvings of a Newton step that removes less than half of the torque that it should
FALLS = 0.99  # iterations go on while the torque of some robot falls below this fraction of that before
RESTS = 64  # units in the last place of a matrix entry; damping that is not larger is rounding of the difference


def with_balanced_rates(
    mechanics: Mechanics, unknowns: Unknowns, solvers: Solvers, state: State, control: Control
) -> Tensor:
    """Return the velocity (B, n) of a state with rates of angles without inertia that balance the torques on them.

    Rates that nothing damps are left as they are. Autograd can differentiate the result.
    """
    if not unknowns.some_algebraic or all(term.dissipation is None for term in mechanics.terms):
        return state.velocity

    def torque(velocity: Tensor) -> Tensor:
        return unknowns.of_dofs(_force(mechanics, state.replace(velocity=velocity), control))

    def turned(velocity: Tensor, change: Tensor) -> Tensor:
        return velocity + unknowns.into_dofs(change, torch.zeros_like(velocity))

    solver, velocity = solvers.of(state.batch), state.velocity
    with torch.no_grad():
        for _ in range(ROUNDS):
            factor, damped = _damping(mechanics, solver, state.replace(velocity=velocity), control)
            unbalanced = torch.where(damped, torque(velocity), 0.0)
            change = factor.solve(unbalanced)
            before, fraction = unbalanced.norm(dim=1), torch.ones_like(unbalanced[:, :1])
            for _ in range(HALVINGS):
                after = torch.where(damped, torque(turned(velocity, fraction * change)), 0.0).norm(dim=1)
                far = after[:, None] > (1 - 0.5 * fraction) * before[:, None]
                if not bool(far.any()):
                    break
                fraction = torch.where(far, 0.5 * fraction, fraction)
            velocity = turned(velocity, fraction * change)
            if not bool((after < FALLS * before).any()):
                break
    balanced = unknowns.where_algebraic(velocity, state.velocity)
    if not torch.is_grad_enabled():
        return balanced
    unbalanced = torch.where(damped, torque(balanced), 0.0)
    return (
        turned(balanced, solved_at_root(factor.solve, partial(factor.solve, transpose=True), unbalanced))
        if unbalanced.requires_grad
        else balanced
    )


def _force(mechanics: Mechanics, state: State, control: Control) -> Tensor:
    """Return the force (B, n) at a state, without contact between parts, which exerts no torque on these angles."""
    start = mechanics.start(state, control, None, None, rate=PresentRate())
    return mechanics.force(start, state.q, state.velocity, state.time)


def _matrix(mechanics: Mechanics, state: State, control: Control, time: float) -> Tensor:
    """Return the matrix -dF/dq - dF/dvelocity / time at a state, (nnz, B), with its damping over `time` [s].

    For how damping gets into dF/dq see `PresentRate`.
    """
    start = mechanics.start(state, control, None, None, rate=PresentRate(time))
    gains = Gains(velocity=1 / time)
    return mechanics.force_and_stiffness(start, state.q, state.velocity, state.time, gains)[1]


def _damping(mechanics: Mechanics, solver: Solver, state: State, control: Control) -> tuple[Factor, Tensor]:
    """Return the factor of the damping matrix of angles without inertia, and which unknowns (B, n_free) it damps."""
    # the matrix over 1 s contains the whole damping, that over 2 s half of it; all else is the same in both
    with_damping, with_half = (_matrix(mechanics, state, control, time) for time in (1.0, 2.0))
    damping, diagonal = 2 * (with_damping - with_half), solver.diagonal(with_damping.device)
    rounding = RESTS * torch.finfo(damping.dtype).eps * with_damping[diagonal].abs()
    between = mechanics.layout.between_algebraic
    damped = between[diagonal] & (damping[diagonal] > rounding)
    damping = torch.where(between, damping, 0.0)
    damping[diagonal] = torch.where(damped, damping[diagonal], 1.0)
    return solver.factor(damping), damped.t()

"""Rates of angles without inertia: those at which what dissipates balances the torques on these angles.

Frames of joints and normals of edges between triangles have no mass, so their rates follow from those of the nodes,
where something dissipates as they turn: with C the derivative of the damping by the rates, C times the change of the
rates is the torque that is left.
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

ROUNDS = 30  # of Newton's method: one is enough of laws that are linear
HALVINGS = 6  # of a step that leaves more than half of the torque that it is to take off
FALLS = 0.99  # as long as a round leaves less than this part of the torque of some robot, there is another one
RESTS = 64  # units in the last place of the matrices: damping that is no more is rounding of what it is told from


def with_balanced_rates(
    mechanics: Mechanics, unknowns: Unknowns, solvers: Solvers, state: State, control: Control
) -> Tensor:
    """Return the velocity (B, n) of a state, with the rates of angles without inertia that balance the torques on them.

    Rates that nothing damps are left as they are. Autograd follows.
    """
    if not unknowns.some_algebraic or all(term.dissipation is None for term in mechanics.terms):
        return state.velocity

    def torque(velocity: Tensor) -> Tensor:
        return unknowns.picked(_force(mechanics, state.replace(velocity=velocity), control))

    def turned(velocity: Tensor, change: Tensor) -> Tensor:
        return velocity + unknowns.expand(change, torch.zeros_like(velocity))

    solver, velocity = solvers.of(state.batch), state.velocity
    with torch.no_grad():
        for _ in range(ROUNDS):
            factor, damped = _damping(mechanics, solver, state.replace(velocity=velocity), control)
            left = torch.where(damped, torque(velocity), 0.0)
            change = factor.solve(left)
            before, fraction = left.norm(dim=1), torch.ones_like(left[:, :1])
            for _ in range(HALVINGS):
                after = torch.where(damped, torque(turned(velocity, fraction * change)), 0.0).norm(dim=1)
                far = after[:, None] > (1 - 0.5 * fraction) * before[:, None]
                if not bool(far.any()):
                    break
                fraction = torch.where(far, 0.5 * fraction, fraction)
            velocity = turned(velocity, fraction * change)
            if not bool((after < FALLS * before).any()):
                break
    found = unknowns.where_algebraic(velocity, state.velocity)
    if not torch.is_grad_enabled():
        return found
    left = torch.where(damped, torque(found), 0.0)
    return (
        turned(found, solved_at_root(factor.solve, partial(factor.solve, transpose=True), left))
        if left.requires_grad
        else found
    )


def _force(mechanics: Mechanics, state: State, control: Control) -> Tensor:
    """Return the force (B, n) at a state, without that of parts on each other, which turns no such angle."""
    start = mechanics.start(state, control, None, None, rate=PresentRate())
    return mechanics.force(start, state.q, state.velocity, state.time)


def _matrix(mechanics: Mechanics, state: State, control: Control, time: float) -> Tensor:
    """Return minus the derivative of the force at a state by position over a time [s], (nnz, B), see `PresentRate`."""
    start = mechanics.start(state, control, None, None, rate=PresentRate(time))
    gains = Gains(velocity=1 / time)
    return mechanics.force_and_stiffness(start, state.q, state.velocity, state.time, gains)[1]


def _damping(mechanics: Mechanics, solver: Solver, state: State, control: Control) -> tuple[Factor, Tensor]:
    """Return the factor of the damping between angles without inertia, and which unknowns (B, n_free) it damps."""
    # over 1 s a matrix has all of the damping in it, over 2 s half of it; the rest is the same in both
    whole, half = (_matrix(mechanics, state, control, time) for time in (1.0, 2.0))
    damping, diagonal = 2 * (whole - half), solver.diagonal(whole.device)
    rounding = RESTS * torch.finfo(damping.dtype).eps * whole[diagonal].abs()
    between = mechanics.layout.between_algebraic
    damped = between[diagonal] & (damping[diagonal] > rounding)
    damping = torch.where(between, damping, 0.0)
    damping[diagonal] = torch.where(damped, damping[diagonal], 1.0)
    return solver.factor(damping), damped.t()

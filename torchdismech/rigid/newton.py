"""Roots of a block of stages: simplified Newton iterations, and Newton's method where they do not converge.

The matrix of the simplified iterations holds inertia, dampers and springs in the middle of the stages. It is symmetric,
and factored once, in O(n) like the mass matrix. The terms that it leaves out (Coriolis terms, gravity, the change of
inertia) are not stiff in cables: in steps of a hundredth of a second, each iteration gains three digits. For robots
where it does not converge, such as fast or loosely twisting chains in space, Newton's method follows, with the exact
matrix, dense, and damped steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.rigid.dynamics import Factor
from torchdismech.rigid.stages import Stages

__all__ = ["Root", "solved", "still_to_come"]

SIMPLIFIED = 12  # simplified iterations before Newton's method
SMOOTH = 0.03  # [rad] the guess is the first iterate if it turns joints by less than this in a step; else zero is
DIVERGING = 2.0  # simplified iterations end where a step is more than this many times the one before
TRIALS = 10  # trials of a Newton step, each half as long as the one before
DECREASE = 0.25  # part of the predicted decrease of the next step's size that a trial has to reach


@dataclass(frozen=True)
class Root:
    """The solution of a block of stages, row by row converged or not.

    Attributes
    ----------
    acceleration : (J, s, B) of the stages [rad/s^2].
    status, iterations : (B,) `Status` values, and number of iterations.
    change : (B,) largest change of an angle in the last iteration [rad].
    factor : the factored matrix of the simplified iterations.
    """

    acceleration: Tensor
    status: Tensor
    iterations: Tensor
    change: Tensor
    factor: Factor


@torch.no_grad()
def solved(stages: Stages, guess: Tensor, running: Tensor, tolerance: float, max_iterations: int) -> Root:
    """Return the root of a block of stages, starting at a guess (J, 1, B), or at zero in rows where that is large.

    Rows that are not `running` stay where they start. A row has converged when an iteration changed angles by no more
    than the tolerance [rad], or all further ones together would: in simplified iterations as estimated from the last
    two, in Newton's method from the next step by the same matrix.
    """
    # larger accelerations come from stiff springs, and die out long before the end of the step
    smooth = stages.angle_per_acceleration * guess.abs().amax((0, 1)) < SMOOTH
    start = torch.where(smooth, guess, 0.0).expand_as(stages.q).contiguous()
    root = _simplified(stages, start, running, tolerance, min(SIMPLIFIED, max_iterations))
    unsolved = running & (root.status != Status.CONVERGED)
    if max_iterations <= SIMPLIFIED or not bool(unsolved.any()):
        return root
    rows = unsolved.nonzero()[:, 0]
    exact = _newton(stages.rows(rows), start[..., rows], tolerance, max_iterations - SIMPLIFIED)
    return dataclasses.replace(
        root,
        acceleration=root.acceleration.index_copy(2, rows, exact.acceleration),
        status=root.status.index_copy(0, rows, exact.status),
        iterations=root.iterations.index_add(0, rows, exact.iterations),
        change=root.change.index_copy(0, rows, exact.change),
    )


def _simplified(stages: Stages, start: Tensor, running: Tensor, tolerance: float, max_iterations: int) -> Root:
    """Return the root by simplified iterations with one factored matrix; some rows may not converge."""
    block, acceleration = stages.block, start
    factor = stages.factor(start)
    status = torch.where(running, int(Status.MAX_ITERATIONS), int(Status.CONVERGED))
    iterations = torch.zeros_like(status)
    change = last_size = torch.zeros_like(start[0, 0])
    active = running
    for _ in range(max_iterations):
        step = block.joined(factor.solve(block.split(stages.residual(acceleration))))
        size = stages.angle_per_acceleration * step.abs().amax((0, 1))
        acceleration = torch.where(active, acceleration - step, acceleration)
        iterations = iterations + active
        change = torch.where(active, size, change)
        finite = torch.isfinite(size)
        done = (still_to_come(size, last_size) <= tolerance) | (size <= tolerance)
        status = torch.where(active & done, int(Status.CONVERGED), status)
        status = torch.where(active & ~finite, int(Status.NOT_FINITE), status)
        diverges = (last_size > 0) & (size > DIVERGING * last_size)
        active = active & finite & ~done & ~diverges
        if not bool(active.any()):
            break
        last_size = size
    return Root(acceleration, status, iterations, change, factor)


def _newton(stages: Stages, start: Tensor, tolerance: float, max_iterations: int) -> Root:
    """Return the root by Newton's method with the exact matrix, in damped steps.

    A step is halved until the next one, by the same matrix, would be shorter; the last trial is taken in any case.
    """
    acceleration = start
    status = torch.full(start.shape[2:], int(Status.MAX_ITERATIONS), device=start.device)
    iterations, change = torch.zeros_like(status), torch.zeros_like(start[0, 0])
    active = torch.ones_like(status, dtype=torch.bool)
    factor = stages.factor(start)
    for _ in range(max_iterations):
        lu, pivots, info = torch.linalg.lu_factor_ex(stages.matrix(acceleration))
        step = _dense_solved(lu, pivots, stages.residual(acceleration))
        size = stages.angle_per_acceleration * step.abs().amax((0, 1))
        iterations, change = iterations + active, torch.where(active, size, change)
        sound = torch.isfinite(size) & (info == 0)
        status = torch.where(active & ~sound, int(Status.NOT_FINITE), status)
        active = active & sound
        share = torch.ones_like(size)
        for _ in range(TRIALS):
            trial = acceleration - share * step
            further = stages.angle_per_acceleration * _dense_solved(lu, pivots, stages.residual(trial)).abs().amax(
                (0, 1)
            )
            shorter = (further <= (1 - DECREASE * share) * size) | (size <= tolerance)
            if bool((shorter | ~active).all()):
                break
            share = torch.where(shorter, share, 0.5 * share)
        acceleration = torch.where(active, trial, acceleration)
        done = active & (share == 1) & ((further <= tolerance) | (size <= tolerance))
        status = torch.where(done, int(Status.CONVERGED), status)
        active = active & ~done
        if not bool(active.any()):
            break
    return Root(acceleration, status, iterations, change, factor)


def _dense_solved(lu: Tensor, pivots: Tensor, right: Tensor) -> Tensor:
    """Return x (J, s, B) with A x = right for LU factors of matrices A (B, J s, J s)."""
    columns = right.permute(2, 0, 1).reshape(right.shape[2], -1, 1)
    return torch.linalg.lu_solve(lu, pivots, columns).view(-1, *right.shape[:2]).permute(1, 2, 0)


def still_to_come(size: Tensor, last_size: Tensor) -> Tensor:
    """Return the estimated sum of all further steps' sizes (B,), from the last two sizes; infinity where they grow."""
    rate = size / last_size
    return torch.where(size == 0, 0.0, torch.where(rate < 1, size * rate / (1 - rate), torch.inf))

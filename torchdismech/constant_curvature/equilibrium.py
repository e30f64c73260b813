"""Equilibria of pneumatic arms without obstacles, by Newton's method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.autograd import AutogradOn
from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.failures import long_enough
from torchdismech.errors import InputError, Status, refuse_other_model, whole_number

__all__ = ["equilibrium"]

HALVINGS = 20  # trials of a step, each half as long as the one before
BALANCED = 1e-10  # tolerance of the residual, as a part of 1 N plus the largest residual at the start
ROUNDING = 16.0  # residuals below this many units of rounding of the largest force may be rounding alone


def equilibrium(
    arm: PneumaticArm, q: Tensor, force: Tensor | None = None, iterations: int = 50
) -> tuple[Tensor, Tensor]:
    """Return elongations (B, n) at rest near a guess, under gravity and a force on the chambers, and a status (B,).

    Newton's method on K l + G(l) = force, without obstacles; the step is halved until the residual gets smaller. It
    finds stable and unstable equilibria alike. No gradients pass through it.

    A row has converged where its residual is at most 1e-10 of the sum of 1 N and its residual at the start. It has also
    converged where the residual is within rounding and the last whole step was at most the square root of the machine
    precision times the shortest section: with chambers of little stiffness, a residual within rounding may be far from
    the equilibrium.

    Parameters
    ----------
    q : (B, n) where the search starts [m].
    force : (B, n) on the chambers [N]; none by default.
    iterations : of Newton's method, at most; rows that take more have the status MAX_ITERATIONS, those in which no part
        of a step reduces the residual LINE_SEARCH_FAILED. Where a section has no length left the status is COLLAPSED.

    Raises
    ------
    InputError
        Elongations or forces of another shape or dtype than the arm's, no whole number of iterations.
    """
    refuse_other_model("equilibrium", arm, PneumaticArm)
    whole_number(iterations, "equilibrium: iterations")
    given = {"equilibrium: q": q} if force is None else {"equilibrium: q": q, "equilibrium: force": force}
    arm.refuse_other_coordinates(**given)
    for name, value in given.items():
        if value.dtype != arm.dtype:
            raise InputError(f"{name}: expected {arm.dtype}, as the arm is, got {value.dtype}")
    force = torch.zeros_like(q) if force is None else force

    def residual(x: Tensor) -> Tensor:
        return arm.dynamics(x, torch.zeros_like(x)).bias + arm.stiffness * x - force

    with torch.no_grad():
        error = residual(q)
        goal = BALANCED * (1 + error.abs().amax(1))
        at_rest = error.abs().amax(1) <= goal
        searching = ~at_rest & torch.isfinite(error).all(1)
        stuck = torch.zeros_like(searching)
        for _ in range(iterations):
            if not bool(searching.any()):
                break
            q, error, step, improved = _newton_step(residual, q, error, searching)
            at_rest = (error.abs().amax(1) <= goal) | _within_rounding(arm, q, force, error, step)
            stuck = stuck | (searching & ~at_rest & ~improved)
            searching = searching & ~at_rest & improved
    status = torch.where(at_rest, int(Status.CONVERGED), int(Status.MAX_ITERATIONS))
    status = torch.where(stuck, int(Status.LINE_SEARCH_FAILED), status)
    status = torch.where(long_enough(arm, q), status, int(Status.COLLAPSED))
    return q, torch.where(torch.isfinite(error).all(1), status, int(Status.NOT_FINITE))


def _within_rounding(arm: PneumaticArm, q: Tensor, force: Tensor, error: Tensor, step: Tensor) -> Tensor:
    """Return the rows (B,) whose residual is within rounding and whose last whole step (B, n) was short."""
    precision = torch.finfo(q.dtype).eps
    largest = (arm.stiffness * q.abs() + force.abs() + error.abs()).amax(1)
    short = step.abs().amax(1) <= precision**0.5 * arm.length.amin(-1)
    return (error.abs().amax(1) <= ROUNDING * precision * largest) & short


def _newton_step(
    residual: Callable[[Tensor], Tensor], q: Tensor, error: Tensor, searching: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q (B, n) and its residual after one Newton step, halved until the residual gets smaller than `error`.

    Also return the whole step (B, n), before halving, and the rows (B,) that moved: those that are `searching`, except
    where no part of the step makes the residual smaller.
    """
    step = torch.linalg.solve_ex(_jacobian(residual, q), error[..., None])[0][..., 0]
    size = error.square().sum(1)
    share = torch.ones_like(size)
    for _ in range(HALVINGS):
        trial = residual(q - share[:, None] * step)
        better = trial.square().sum(1) < size  # False where it is NaN
        if bool((better | ~searching).all()):
            break
        share = torch.where(better, share, 0.5 * share)
    improved = searching & better
    q = torch.where(improved[:, None], q - share[:, None] * step, q)
    return q, torch.where(improved[:, None], trial, error), step, improved


@AutogradOn()
def _jacobian(residual: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    """Return the derivatives (B, n, n) of the residual by q (B, n)."""
    leaf = q.detach().requires_grad_(True)
    residuals = residual(leaf)
    return torch.stack(
        [torch.autograd.grad(residuals[:, k].sum(), leaf, retain_graph=True)[0] for k in range(q.shape[1])], 1
    )

"""Postures in which pneumatic arms are at rest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.failures import long_enough
from torchdismech.errors import InputError, Status, whole_number

__all__ = ["equilibrium"]

HALVINGS = 20  # of a step
BALANCED = 1e-10  # of 1 N and the largest residual at the start: what counts as balanced


def equilibrium(
    arm: PneumaticArm, q: Tensor, force: Tensor | None = None, iterations: int = 50
) -> tuple[Tensor, Tensor]:
    """Return elongations (B, n) at rest near a guess, under gravity and a force on the chambers, and a status (B,).

    Newton's method on K l + G(l) = force, without obstacles; the step is halved until the residual gets smaller. It
    finds stable and unstable equilibria alike.

    Parameters
    ----------
    q : (B, n) where the search starts [m].
    force : (B, n) on the chambers [N]; none by default.
    iterations : of Newton's method, at most; rows that take more have the status MAX_ITERATIONS. Where a section has no
        length left the status is COLLAPSED. No gradients pass.

    Raises
    ------
    InputError
        Elongations or forces of another shape or dtype than the arm's, no whole number of iterations.
    """
    whole_number(iterations, "equilibrium: iterations")
    force = torch.zeros_like(q) if force is None else force
    _refuse_unlike(arm, q, force)

    def residual(x: Tensor) -> Tensor:
        return arm.dynamics(x, torch.zeros_like(x)).bias + arm.stiffness * x - force

    with torch.no_grad():
        error = residual(q)
        goal = BALANCED * (1 + error.abs().amax(1))
        for _ in range(iterations):
            if bool((error.abs().amax(1) <= goal).all()):
                break
            q, error = _nearer(residual, q, error)
    status = torch.where(error.abs().amax(1) <= goal, int(Status.CONVERGED), int(Status.MAX_ITERATIONS))
    status = torch.where(long_enough(arm, q), status, int(Status.COLLAPSED))
    return q, torch.where(torch.isfinite(error).all(1), status, int(Status.NOT_FINITE))


def _refuse_unlike(arm: PneumaticArm, q: Tensor, force: Tensor) -> None:
    """Refuse elongations and forces of another number, shape or dtype than the arm's."""
    for name, value in (("q", q), ("force", force)):
        if value.shape != (len(q), arm.n_dofs) or value.dtype != arm.dtype or arm.batch not in (None, len(q)):
            rows = arm.batch or ("B" if name == "q" else len(q))
            found = f"{tuple(value.shape)} in {value.dtype}"
            raise InputError(f"equilibrium: {name}: expected ({rows}, {arm.n_dofs}) in {arm.dtype}, got {found}")


def _nearer(residual: Callable[[Tensor], Tensor], q: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return q (B, n) after a step of Newton's method, halved until the residual `error` gets smaller, and that.

    Rows in which no part of the step helps stay where they are.
    """
    step = torch.linalg.solve_ex(_slopes(residual, q), error[..., None])[0][..., 0]
    size = error.square().sum(1)
    part = torch.ones_like(size)
    for _ in range(HALVINGS):
        trial = residual(q - part[:, None] * step)
        worse = ~(trial.square().sum(1) < size)
        if not bool(worse.any()):
            break
        part = torch.where(worse, 0.5 * part, part)
    good = (trial.square().sum(1) < size)[:, None]  # False where it is NaN
    return torch.where(good, q - part[:, None] * step, q), torch.where(good, trial, error)


@torch.enable_grad()
def _slopes(residual: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    """Return the derivatives (B, n, n) of the residual by q (B, n)."""
    at = q.detach().requires_grad_(True)
    left = residual(at)
    return torch.stack([torch.autograd.grad(left[:, k].sum(), at, retain_graph=True)[0] for k in range(q.shape[1])], 1)

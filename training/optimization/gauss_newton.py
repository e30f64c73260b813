"""Gauss-Newton steps to the optimum of a few numbers, which gradient descent finds slowly where they correlate.

A step solves the equations of `evidence.py`, damped as Levenberg (1944) and Marquardt (1963) did: the damping is made
ten times larger until no number moves by more than two of its units, none leaves its bounds, and the loss of the same
windows is lower.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.loss import summed_loss
from training.optimization.evidence import normal_equations
from training.optimization.residuals import FittedNumber, Residual, prior_of, stays_in_bounds
from training.robots.physics import PhysicsSystem

__all__ = ["GaussNewtonStep", "gauss_newton_step"]

FARTHEST = 2.0  # most units that a number moves in one step, a factor of seven: no linear model holds beyond
FIRST, HARDER, TRIES = 1e-3, 10.0, 13  # first damping, factor of its growth, number of trials
LITTLE = 1e-5  # share of the loss: a step that lowers it by less is the last one


@dataclass(frozen=True)
class GaussNewtonStep:
    """The result of a step.

    Attributes
    ----------
    before, after : mean loss of the windows before and after the step [m], priors included.
    good : (B,) bool: windows that were predicted to their end with every number a little higher and lower; others do
        not count.
    start : (B, S) fitted starts after the step; None without.
    """

    before: float
    after: float
    good: Tensor
    start: Tensor | None

    @property
    def settled(self) -> bool:
        """Whether the loss fell by so little that a further step would bring next to nothing."""
        return self.before - self.after <= LITTLE * self.before


@torch.no_grad()
def gauss_newton_step(residual: Residual, numbers: list[FittedNumber], scale: float, weight: float) -> GaussNewtonStep:
    """Move the numbers of a system by one damped step, and return its result; they stay if no step lowers the loss.

    Parameters
    ----------
    scale : c of the loss [m].
    weight : weight of the constants' priors: the share of all measured coordinates that the windows have.
    """
    system, at = residual.system, residual.linearized(numbers)
    prior = prior_of(numbers, weight, at.residual)
    equations = normal_equations(at.residual, at.jacobian, scale, prior, at.starts)
    start, good = residual.window.start, at.good
    per_measurement = scale / at.measured.sum().clamp_min(1)
    before = per_measurement * summed_loss(at.residual, system, scale, weight, start)
    damping = FIRST
    for _ in range(TRIES):
        step, start_step = equations.step(damping)
        damping *= HARDER
        if not bool(step.abs().max() <= FARTHEST) or not stays_in_bounds(system, numbers, step.tolist()):
            continue
        moved = None if start is None else start + start_step
        _move(system, numbers, step)
        off, still_good = Residual(system, residual.window.replace(start=moved))()
        after = per_measurement * summed_loss(torch.where(good[:, None, None], off, 0.0), system, scale, weight, moved)
        if bool((after < before) & (still_good | ~good).all()):
            return GaussNewtonStep(float(before), float(after), good, moved)
        _move(system, numbers, -step)
    return GaussNewtonStep(float(before), float(before), good, start)


def _move(system: PhysicsSystem, numbers: list[FittedNumber], step: Tensor) -> None:
    """Move numbers by a step (P,) in their units."""
    for number, move in zip(numbers, step.tolist(), strict=True):
        system.entries[number.entry].parameter.data.view(-1)[number.index] += move * number.unit

"""Newton's method for robots with friction: the slip velocity is let down to its own value in stages.

Friction rises to its full size within the slip velocity, in a step within a way of dt times that: perhaps a nanometre.
Iterates jump over it, from sliding forward to sliding backward, and the residual's norm does not tell which way to go.
With a slip velocity that is large against all velocities, friction is a drag and a step is solved at once. From there
the root is followed: that of a contact that sticks moves in proportion to the slip velocity, so one linear step by the
derivative of the root leads to the next, ten times nearer.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.balance import Balance
from torchdismech.solve.newton import Root, newton

__all__ = ["eased_newton", "is_sharp"]

SHARP = 1e4  # velocities over the slip velocity from which on plain iterates hardly ever find the root

FACTORS = (1e4, 1e3, 1e2, 10.0, 1.0)  # of the slip velocity, stage by stage: a crawler's steps fail with fewer
COARSER = 10.0  # the tolerance of stages before the last
DIFFERENCE = 1e-4  # of the slip velocity, for the derivative by it: friction's law is a polynomial, or as smooth


def eased_newton(
    balance: Balance, x: Tensor, solver, tolerance: Tensor, weight: Tensor, max_iterations: int, running: Tensor
) -> Root:
    """Find x as `newton` does, by way of larger slip velocities; a stage that fails is passed over."""
    iterations = torch.zeros_like(running, dtype=torch.long)
    for factor, following in zip(FACTORS, (*FACTORS[1:], None), strict=True):
        eased = _at_slip(balance, factor)
        held_to = tolerance if following is None else COARSER * tolerance
        root = newton(eased, x, solver, held_to, weight, max_iterations, running=running)
        iterations = iterations + root.iterations
        if following is not None:
            found = running & (root.status == Status.CONVERGED)
            x = root.x + (following / factor - 1) * _by_slip(balance, eased, factor, root.x, solver, found)
    return dataclasses.replace(root, iterations=iterations)


def is_sharp(balance: Balance) -> bool:
    """Return whether the friction of some robot is so sharp that it is to be eased in at once."""
    speed = balance.start.state.velocity[:, : 3 * balance.model.body.n_nodes].abs().amax(1, keepdim=True)
    return any(bool((speed > SHARP * slip).any()) for slip in balance.model.slip_velocities())


def _at_slip(balance: Balance, factor: float) -> Balance:
    """Return the equations with all slip velocities multiplied."""
    eased = copy.copy(balance)
    eased.model = balance.model.with_slip(factor)
    return eased


def _by_slip(balance: Balance, eased: Balance, factor: float, x: Tensor, solver, rows: Tensor) -> Tensor:
    """Return the derivative (B, m) of the root x by the logarithm of the slip velocity; zero in other rows."""
    residual, values = eased.residual_and_matrix(x)
    further = _at_slip(balance, factor * (1 + DIFFERENCE)).residual(x)
    factored = solver.factor(values, rows=rows)
    change = factored.solve((residual - further) / DIFFERENCE)
    return torch.where((rows & factored.ok)[:, None], change, 0.0)

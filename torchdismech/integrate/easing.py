"""Newton's method for robots with friction: the slip velocity is let down to its own value in stages.

Friction rises to its full size within the slip velocity, in a step within a way of dt times that: perhaps a nanometre.
Iterates jump over it, from sliding forward to sliding backward, and the residual's norm does not tell which way to go.
With a slip velocity that is large against all velocities, friction is a drag and a step is solved at once. From there
the root is followed: that of a contact that sticks moves in proportion to the slip velocity, so one linear step by the
derivative of the root leads to the next, ten times nearer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.solve.newton import newton
from torchdismech.solve.search import NewtonOptions, Root

__all__ = ["eased_newton", "is_sharp", "sharp_robots"]

SHARP = 1e4  # velocities over the slip velocity from which on plain iterates hardly ever find the root

FACTORS = (1e4, 1e3, 1e2, 10.0, 1.0)  # of the slip velocity, stage by stage: a crawler's steps fail with fewer
COARSER = 10.0  # the tolerance of stages before the last
DIFFERENCE = 1e-4  # of the slip velocity, for the derivative by it: friction's law is a polynomial, or as smooth


def eased_newton(equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor) -> Root:
    """Find x as `newton` does, by way of larger slip velocities; a stage that fails is passed over."""
    iterations = torch.zeros_like(running, dtype=torch.long)
    slips = equations.model.contact.with_slip
    for factor, following in zip(FACTORS, (*FACTORS[1:], None), strict=True):
        held_to = options.tolerance if following is None else COARSER * options.tolerance
        with slips(factor).in_place():
            root = newton(equations, x, options.with_tolerance(held_to), running)
        iterations = iterations + root.iterations
        if following is not None:
            found = running & (root.status == Status.CONVERGED)
            x = root.x + (following / factor - 1) * _by_slip(equations, factor, root.x, options, found)
    return dataclasses.replace(root, iterations=iterations)


def is_sharp(equations: StepEquations) -> bool:
    """Return whether the friction of some robot is so sharp that it is to be eased in at once."""
    return bool(sharp_robots(equations).any())


def sharp_robots(equations: StepEquations) -> Tensor:
    """Return the robots (B,) with friction, of those that have some, that is to be eased in at once."""
    model = equations.model
    speed = equations.start.state.velocity[:, : 3 * model.body.n_nodes].abs().amax(1, keepdim=True)
    sharp = [(speed > SHARP * slip).any(1) for slip in model.contact.slip_velocities()]
    return torch.stack(sharp).any(0)


def _by_slip(equations: StepEquations, factor: float, x: Tensor, options: NewtonOptions, rows: Tensor) -> Tensor:
    """Return the derivative (B, m) of the root x by the logarithm of the slip velocity; zero in other rows."""
    slips = equations.model.contact.with_slip
    with slips(factor).in_place():
        residual, values = equations.residual_and_matrix(x)
    with slips(factor * (1 + DIFFERENCE)).in_place():
        further = equations.residual(x)
    factored = options.solver.factor(values, rows=rows)
    change = factored.solve((residual - further) / DIFFERENCE)
    return torch.where((rows & factored.ok)[:, None], change, 0.0)

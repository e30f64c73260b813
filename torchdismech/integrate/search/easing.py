"""Newton's method for robots with friction, by continuation: the slip velocity is lowered to its value in stages.

Friction rises to its full size within the slip velocity; in a step that is a way of dt times this velocity, perhaps a
nanometre. Iterates jump over it, from sliding forward to sliding backward, and the residual's norm does not tell which
way to go. With a slip velocity that is large against all velocities, friction is a drag and a step is solved at once.
From there the root is followed: that of a contact that sticks moves in proportion to the slip velocity, so one linear
step by the derivative of the root leads to the next stage, at a slip velocity ten times smaller, or less where the root
turns off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.solve.newton import newton
from torchdismech.solve.relaxed import relaxed_newton
from torchdismech.solve.search import NewtonOptions, Root

__all__ = ["eased_newton"]

EASIEST, FREE = 1e4, 1e8  # times the slip velocity: where easing begins; where next to no friction is left
LONGEST, SHORTEST = 10.0, 1.25  # factors from one stage to the next: smaller ones after a stage that failed
STAGES = 24  # after the first one, at most; stages that failed count, too
PATIENCE = 2  # times the iterations of other stages: what a first stage by relaxed steps may take
COARSER = 10.0  # times the tolerance: that of stages before the last
DIFFERENCE = 1e-4  # of the slip velocity, for the derivative by it: friction's law is a polynomial, or as smooth


def eased_newton(
    equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor, briefly: bool = False
) -> Root:
    """Find x as `newton` does, by way of larger slip velocities, each row by stages of its own.

    A stage that fails is tried again with a slip velocity nearer to the one that was solved last. Where the first stage
    fails, in which friction is a light drag, the cause is that the robot buckles as it touches: then it begins with
    next to no friction, or by relaxed steps, unless it is to end `briefly`.
    """
    easing = _Easing(equations, options, running)
    easing.begin(EASIEST, x, newton)
    if not briefly:
        first_ahead = first_iterate(equations, True)
        easing.begin(FREE, first_ahead, newton)
        easing.begin(EASIEST, first_ahead, _relaxed)
    for _ in range(STAGES):
        if not bool(easing.going.any()):
            break
        easing.take_stage()
    return easing.ended()


def _relaxed(equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor) -> Root:
    patient = dataclasses.replace(options, max_iterations=PATIENCE * options.max_iterations)
    return relaxed_newton(equations, x, patient, equations.inertia(), running)


class _Easing:
    """How far friction has been eased in, row by row.

    Attributes
    ----------
    root : where the last stages ended; its iterations are those of all stages.
    factor : (B, 1) times the slip velocity, in the last stage that was solved; infinite before the first.
    going : (B,) rows that take another stage.
    """

    def __init__(self, equations: StepEquations, options: NewtonOptions, running: Tensor):
        self.equations, self.options, self.running = equations, options, running
        start = first_iterate(equations, False)
        # the last root, and its derivative by the logarithm of the slip velocity
        self.x, self.change = start, torch.zeros_like(start)
        self.factor = torch.full_like(options.tolerance, torch.inf)[:, None]
        self.ratio = torch.full_like(self.factor, LONGEST)
        self.going = torch.zeros_like(running)
        status = torch.where(running, int(Status.MAX_ITERATIONS), int(Status.CONVERGED))
        unknown = torch.full_like(options.tolerance, torch.inf)
        self.root = Root(start, status, torch.zeros_like(status), unknown, options.tolerance)

    def begin(self, factor: float, x: Tensor, search: Callable[..., Root]) -> None:
        """Take the first stage in the rows that have not begun, from x (B, n_free) and by this search."""
        waiting = self.running & ~self.going
        if bool(waiting.any()):
            solved = self._solved_stage(torch.full_like(self.factor, factor), x, waiting, search)
            self.going = self.going | solved

    def take_stage(self) -> None:
        """Take a stage with a smaller slip velocity in all rows that go on."""
        factor = (self.factor / self.ratio).clamp_min(1.0)
        first_iterates = self.x + torch.where(self.going[:, None], factor / self.factor - 1, 0.0) * self.change
        solved = self._solved_stage(factor, first_iterates, self.going, newton)[:, None]
        self.ratio = torch.where(solved, (self.ratio**2).clamp_max(LONGEST), self.ratio.sqrt())
        self.going = self.going & ((self.factor > 1) & (self.ratio > SHORTEST)).squeeze(1)

    def ended(self) -> Root:
        """Return where rows ended; those that did not get down to the slip velocity itself are not solved."""
        short = self.running & (self.factor > 1).squeeze(1) & (self.root.status == Status.CONVERGED)
        return dataclasses.replace(self.root, status=torch.where(short, int(Status.MAX_ITERATIONS), self.root.status))

    def _solved_stage(
        self, factor: Tensor, first_iterates: Tensor, rows: Tensor, search: Callable[..., Root]
    ) -> Tensor:
        """Take a stage in some rows (B,) with factors (B, 1) and return the rows (B,) that were solved."""
        factor = torch.where(rows[:, None], factor, 1.0)
        tolerance = torch.where(factor.squeeze(1) == 1, 1.0, COARSER) * self.options.tolerance
        with self.equations.with_slips(factor):
            stage = search(self.equations, first_iterates, self.options.with_tolerance(tolerance), rows)
        self.root = self.root.followed_by(stage, rows)
        solved = rows & (stage.status == Status.CONVERGED)
        self.x = torch.where(solved[:, None], stage.x, self.x)
        self.factor = torch.where(solved[:, None], factor, self.factor)
        unfinished = solved & (factor > 1).squeeze(1)
        if bool(unfinished.any()):
            self.change = torch.where(unfinished[:, None], self._by_slip(factor, unfinished), self.change)
        return solved

    def _by_slip(self, factor: Tensor, rows: Tensor) -> Tensor:
        """Return the derivative (B, n_free) of the roots by the logarithm of the slip velocity, zero in other rows."""
        with self.equations.with_slips(factor):
            residual, values = self.equations.residual_and_matrix(self.x)
        with self.equations.with_slips(factor * (1 + DIFFERENCE)):
            further = self.equations.residual(self.x)
        factored = self.options.solver.factor(values, rows=rows)
        change = factored.solve((residual - further) / DIFFERENCE)
        return torch.where((rows & factored.ok)[:, None], change, 0.0)

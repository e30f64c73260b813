"""Equilibria with contact constraints that are minima: Newton's method down the potential energy, past saddles.

A step d and the loads p after it solve the quadratic program of least r . d + d . A d / 2 with no gap g + J d below
zero (sequential quadratic programming). Here r is the gradient of the potential V, and A the derivative of r - J^T p,
raised until it is positive definite. How far to go along d is judged by the exact penalty function (Han, 1977; Powell)

    V + c sum max(0, -g),

which falls along d if the price c of an overlap is above every load.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.constrained import ConstrainedSearch
from torchdismech.solve.linear import Factor
from torchdismech.solve.newton import ENOUGH, HIDDEN
from torchdismech.solve.search import Iterate, NewtonOptions

__all__ = ["DescendingSearch"]

DEAR = 2.0  # of the largest load: the price of an overlap
SMALLEST_STEP = 2.0**-20


class DescendingSearch(ConstrainedSearch):
    """Newton steps that go down the potential, to a minimum; for other loads than constraints that have one.

    `price` (B,) [N] is what each metre of overlap adds to the penalty function [J].
    """

    descends = True

    def __init__(self, equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor):
        super().__init__(equations, x, options, running)
        self.price = torch.zeros_like(self.at.norm)

    def _line_search(
        self, at: Iterate, step: Tensor, residual: Tensor, factor: Factor, rows: Tensor
    ) -> tuple[Iterate, Tensor]:
        """Return the iterate along the step where the penalty function has fallen enough, and where (B,) it has."""
        self.price = torch.maximum(self.price, DEAR * self.constraints.largest(self.constraints.load[:, 0]))
        overlap, potential = self._overlap(at.x), self.equations.potential_at(at.x)
        value = potential + self.price * overlap
        slope = (self._residual_without_loads(at.x, residual) * step).sum(1) - self.price * overlap
        fraction = self._reach(step).clamp(max=1)
        # rows in which rounding hides that it falls
        near = -slope < HIDDEN * (potential.abs() + torch.finfo(slope.dtype).tiny)
        x, found, searching = at.x, ~rows, rows
        while True:
            x = torch.where(searching[:, None], self._along(at, step, fraction), x)
            there = self._value(x)
            fallen = there <= value + ENOUGH * fraction * slope
            if bool((searching & ~fallen & near).any()):
                norm = self.options.norm(self.equations.residual(x))
                fallen = fallen | (near & ((norm < self.options.norm(residual)) | (norm <= self.tolerance)))
            found = found | (searching & fallen & torch.isfinite(there))
            searching = ~found & (fraction > SMALLEST_STEP) & self.options.line_search
            if not bool(searching.any()):
                break
            fraction = torch.where(searching, 0.5 * fraction, fraction)
        x = self._extended(at, step, fraction, x, rows & found, value, slope)
        return Iterate.of(self.equations, x, self.options), found

    def _extended(
        self, at: Iterate, step: Tensor, fraction: Tensor, x: Tensor, rows: Tensor, value: Tensor, slope: Tensor
    ) -> Tensor:
        """Return points (B, n_free) farther along the step, in rows where the penalty function bends downwards.

        There it falls by more than its slope promises, as on the way off a saddle: matrices that were raised by too
        much make steps that are too short. So their length is doubled as long as the function falls and overlaps do not
        grow, as their price would depend on loads to come.

        Parameters
        ----------
        fraction, x : (B,) part of the step that was found good, and the points there.
        rows : (B,) rows to look at.
        value, slope : (B,) of the penalty function at the iterate, along the step.
        """
        here, most = self._value(x), self._reach(step)
        going = rows & self.options.line_search
        while bool((going := going & (here < value + fraction * slope) & (2 * fraction <= most)).any()):
            longer = torch.where(going[:, None], self._along(at, step, 2 * fraction), x)
            there = self._value(longer)
            going = going & (there < here) & (self._overlap(longer) <= self._overlap(x))
            x, here = torch.where(going[:, None], longer, x), torch.where(going, there, here)
            fraction = torch.where(going, 2 * fraction, fraction)
        return x

    def _along(self, at: Iterate, step: Tensor, fraction: Tensor) -> Tensor:
        """Return the points (B, n_free) at fractions (B,) of steps."""
        return self.equations.advanced(at.x, fraction[:, None] * step)

    def _reach(self, step: Tensor) -> Tensor:
        """Return the part (B,) of steps that moves some node by the trust radius."""
        farthest = (step / self.options.weight).abs().amax(1)
        return self.equations.trust_radius() / torch.where(farthest > 0, farthest, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        """Return the penalty function (B,) at x (B, n_free)."""
        return self.equations.potential_at(x) + self.price * self._overlap(x)

    def _residual_without_loads(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the residual (B, n_free) at x without the loads of the contacts."""
        return residual + self.equations.model.unknowns.on_unknowns(self.constraints.force(self.equations.full(x)))

    def _overlap(self, x: Tensor) -> Tensor:
        """Return the sum (B,) of all overlaps [m], without those of clamped nodes."""
        contacts = self.equations.contacts_at(x)
        moves = self.constraints.moved_by(self.equations.model.free, contacts)
        return self.constraints.sum(torch.where(moves, -contacts.gap, 0.0).clamp_min(0))

"""Relaxed Newton's method (pseudo-transient continuation): slower, but not trapped in minima of the residual's norm."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.noise import lengths, settled, short_length
from torchdismech.solve.search import (
    RUNNING,
    DividingSearch,
    Iterate,
    NewtonOptions,
    Root,
    System,
    judged,
)

__all__ = ["relaxed_newton"]

LARGEST_GROWTH = 2.0  # of the residual in a relaxed step; beyond it the step is taken back and relaxed more
FASTEST_RELAXATION = 0.1  # the least factor by which the relaxation falls in a step


def relaxed_newton(system: System, x: Tensor, options: NewtonOptions, inertia: Tensor, running: Tensor) -> Root:
    """Return the root as `newton` does, by steps whose matrix has a multiple of `inertia` added to its diagonal.

    The multiple follows the residual's norm, from 1 down to 0 at the root (pseudo-transient continuation, Kelley and
    Keyes, SIAM J. Numer. Anal. 1998). The norm may rise on the way, so this gets past minima of the norm that are no
    roots, where Newton's method with a line search ends. It takes some tens of iterations. A row within the rounding
    noise counts as solved once its relaxed steps are short.

    Parameters
    ----------
    inertia : (m, 1) or (m, B), not negative, so large that the matrix with it is well conditioned.
    Others as for `newton`.
    """
    return _RelaxedSearch.begun(system, x, options, inertia, running).root()


class _RelaxedSearch(DividingSearch):
    """Search by Newton steps whose matrix has `relaxation` (B,) times the inertia added to its diagonal.

    Attributes
    ----------
    relaxation : (B,) multiple of the inertia.
    length : (B,) of the last step, infinite where it was taken back.
    short : (B,) see `noise.short_length`.
    """

    def __init__(self, system: System, options: NewtonOptions, inertia: Tensor, at: Iterate, status: Tensor):
        self.system, self.options, self.inertia, self.at, self.status = system, options, inertia, at, status
        self.tolerance = options.with_tolerance_above_noise(at.x, at.values).tolerance
        self.length, self.short = torch.full_like(at.norm, torch.inf), short_length(system, at.x)
        self.iterations = torch.zeros_like(status)
        self.relaxation = torch.ones_like(at.norm)

    @classmethod
    def begun(
        cls, system: System, x: Tensor, options: NewtonOptions, inertia: Tensor, running: Tensor
    ) -> _RelaxedSearch:
        """Return the search at its first iterate x (B, m)."""
        at = Iterate.of(system, x, options)
        status = torch.where(running, RUNNING, int(Status.CONVERGED))
        return cls(system, options, inertia, at, judged(status, at.norm, options.tolerance))

    def of_rows(self, rows: Tensor, system: System) -> _RelaxedSearch:
        """Return a search of the rows with indices (R,) alone, which goes on from this one's present state."""
        inertia = self.inertia if self.inertia.shape[1] == 1 else self.inertia.index_select(1, rows)
        options = self.options.rows(rows, system.solver())
        part = _RelaxedSearch(system, options, inertia, self.at.rows(rows), self.status[rows])
        part.tolerance, part.iterations = self.tolerance[rows], self.iterations[rows]
        part.length, part.relaxation = self.length[rows], self.relaxation[rows]
        return part

    def round(self) -> bool:
        """Try a relaxed step in each row that runs; return whether some row still runs."""
        at, active = self.at, self.status == RUNNING
        step, solved = self._step(active)
        moved = torch.where(solved[:, None], self.system.advanced(at.x, step), at.x)
        trial = Iterate.of(self.system, moved, self.options)
        growth = trial.norm / at.norm
        good = solved & (growth < LARGEST_GROWTH)  # False where it is NaN
        change = torch.where(good, growth.clamp(FASTEST_RELAXATION, LARGEST_GROWTH), LARGEST_GROWTH**2)
        self.relaxation = torch.where(active, self.relaxation * change, self.relaxation)
        self.at = at.merged(trial, good)
        self.iterations = self.iterations + active
        if self.options.noise_at_each_iterate:
            self.tolerance = self.options.with_tolerance_above_noise(self.at.x, self.at.values).tolerance
        length = torch.where(good, lengths(step, self.options.weight), torch.inf)
        near = active & good & settled(self.at.norm, length, self.length, self.tolerance, self.short)
        self.length = length
        status = torch.where(near, int(Status.CONVERGED), judged(self.status, self.at.norm, self.options.tolerance))
        spent = (status == RUNNING) & (self.iterations >= self.options.max_iterations)
        self.status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
        return bool((self.status == RUNNING).any())

    def _step(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return the relaxed steps (B, m), zeros in rows without one, and the rows (B,) that have one."""
        values = self.at.values.clone()
        values[self.options.diagonal] += self.relaxation * self.inertia
        factor = self.options.solver.factor(values, rows=active)
        step = factor.solve(-self.at.residual)
        solved = active & factor.ok
        return torch.where(solved[:, None], step, 0.0), solved

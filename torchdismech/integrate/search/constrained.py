"""Newton's method with contact constraints: each iteration finds the contacts' loads along with the step.

It finds them by the active set (`active_set.py`), where that succeeds, else by a complementarity problem
(`delassus.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.active_set import ActiveSet, ActiveSetStep
from torchdismech.integrate.search.closed_contacts import uses_active_sets
from torchdismech.integrate.search.delassus import Delassus
from torchdismech.solve.linear import Factor, JoinedFactor, shifted_factor
from torchdismech.solve.search import RUNNING, Iterate, NewtonOptions, RootSearch

__all__ = ["ConstrainedSearch"]

SMALLEST_STEP = 2.0**-10
# Of the largest entry of a matrix: added to the diagonal where contacts alone hold a part. The loads of a pile of rods
# are found with 1e-7 to 1e-5; below, gaps without loads are so large that differences of them are lost.
SUPPORT = 1e-7


class ConstrainedSearch(RootSearch):
    """Newton's method, each of whose iterations first finds the loads of the contacts.

    It finds x and loads with |weight * r(x)| <= tolerance and no contact violated; the loads are left in
    `equations.constraints.load`. Parameters are those of `solve.newton.newton`.

    Attributes
    ----------
    descends : whether steps are to go down the potential.
    violation : (B,) [m] by how much contacts break their laws; infinite before the first step.
    """

    descends = False

    def __init__(self, equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor):
        assert equations.constraints is not None
        self.equations, self.constraints = equations, equations.constraints
        load = self.constraints.load
        self.constraints.load = torch.where(running[self.constraints.robot].unsqueeze(1), 0.0, load)
        self.at = Iterate.of(equations, x, options)
        self._options_without_noise = options
        self._allow_noise()
        self.violation = torch.full_like(self.at.norm, torch.inf)
        self.status = self._judged(torch.where(running, RUNNING, int(Status.CONVERGED)))
        self.iterations = torch.zeros_like(self.status)

    def _allow_noise(self) -> None:
        """Set the tolerance: as asked for, but not below the rounding noise at the iterate."""
        self.options = self._options_without_noise.with_tolerance_above_noise(self.at.x, self.at.values)
        self.tolerance = self.options.tolerance

    def round(self) -> bool:
        """Take a step; return whether some row still runs."""
        active = self.status == RUNNING
        self.at, violation, outcome = self._step(self.at, active)
        self.violation = torch.where(active, violation, self.violation)
        self.iterations = self.iterations + active
        if self.options.noise_at_each_iterate:
            self._allow_noise()
        status = self._judged(torch.where(active & (outcome != RUNNING), outcome, self.status))
        spent = (status == RUNNING) & (self.iterations >= self.options.max_iterations)
        self.status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
        return bool((self.status == RUNNING).any())

    def _judged(self, status: Tensor) -> Tensor:
        """Return the status (B,), changed for running rows that are solved or whose residual is not finite."""
        done = (self.at.norm <= self.tolerance) & (self.violation <= self.constraints.tolerance)
        status = torch.where((status == RUNNING) & ~torch.isfinite(self.at.norm), int(Status.NOT_FINITE), status)
        return torch.where((status == RUNNING) & done, int(Status.CONVERGED), status)

    def _step(self, at: Iterate, active: Tensor) -> tuple[Iterate, Tensor, Tensor]:
        """Return the next iterate, the violation of contacts (B,) [m], and RUNNING or why a row cannot go on (B,)."""
        constraints, before = self.constraints, self.constraints.load
        factor = self._factored(at, active)
        outcome = torch.where(active & ~factor.ok, int(Status.SINGULAR), RUNNING)
        q = self.equations.full(at.x)
        delassus = Delassus(self.equations, constraints, q, factor, active)
        # without loads: the residual contains the present ones
        free = factor.solve(-(at.residual + delassus.forces_of(before)))
        by_active_set, active_set = ActiveSetStep.none(at, constraints), None
        if uses_active_sets(self.equations, constraints):
            active_set = ActiveSet(self.equations, at, delassus, self.tolerance, self.descends)
            # semismooth rounds, the first attempt at a step in time, have begun with a guess, and have failed
            guesses = not self.equations.scheme.inertial
            by_active_set = active_set.from_loads(free, active & factor.ok, guesses)
        delassus.rows = active & ~by_active_set.rows
        loads, solved = delassus.loads(q, free, before)
        if active_set is not None and bool((lost := delassus.rows & factor.ok & ~solved).any()):
            # Only where the laws of contact hold at the iterate: elsewhere the search is still on its way, and which
            # contacts touch is chance. An arch that a ball has dented would stay upright by such steps, where it should
            # give way sideways.
            near = delassus.violation(q, lost) <= constraints.tolerance
            others = active_set.from_touching(lost & near)
            by_active_set, solved = by_active_set.with_others(others), solved | others.rows
        loads = torch.where(by_active_set.rows[constraints.robot].unsqueeze(1), by_active_set.load, loads)
        outcome = torch.where(active & ~solved & (outcome == RUNNING), int(Status.CONTACT_UNSOLVED), outcome)
        going = active & (outcome == RUNNING)
        constraints.load = torch.where(going[constraints.robot].unsqueeze(1), loads, before)
        step = torch.where(
            by_active_set.rows[:, None], by_active_set.step, free + factor.solve(delassus.forces_of(loads))
        )
        step = torch.where(going[:, None], step, 0.0)
        residual = at.residual - delassus.forces_of(constraints.load - before)
        there, found = self._line_search(at, step, residual, factor, going)
        outcome = torch.where(going & ~found, int(Status.LINE_SEARCH_FAILED), outcome)
        return there, delassus.violation(self.equations.full(there.x), by_active_set.rows), outcome

    def _factored(self, at: Iterate, active: Tensor) -> Factor:
        """Return the factor of the iterate's matrix, changed in steps until it is positive definite.

        Where it is no more than singular, as for robots that contacts alone keep from falling, a small shift of the
        diagonal is enough. A large load on a curved surface may make it indefinite by its geometric stiffness, and such
        a matrix says nothing of how contacts respond to loads: then that stiffness is left out. If it is indefinite
        without, too, as for a rod under strong compression, the diagonal is raised further.
        """
        solver, weight, equations = self.options.solver, self.options.weight, self.equations
        factor = solver.factor(at.values, rows=active)
        lost = active & ~factor.ok
        if not solver.pattern.symmetric or not bool(lost.any()):
            return factor
        factor = JoinedFactor(factor, shifted_factor(solver, at.values, weight, lost, SUPPORT, shifts=1))
        lost = active & ~factor.ok
        if not bool(lost.any()):
            return factor
        values = equations.without_geometric_stiffness(at.values, at.x)
        factor = JoinedFactor(factor, solver.factor(values, rows=lost))
        lost = active & ~factor.ok
        return JoinedFactor(factor, shifted_factor(solver, values, weight, lost)) if bool(lost.any()) else factor

    def _line_search(
        self, at: Iterate, step: Tensor, residual: Tensor, factor: Factor, rows: Tensor
    ) -> tuple[Iterate, Tensor]:
        """Return the iterate along the step, halved until it is good enough, and the rows (B,) where one was found.

        The tests are those of `solve.newton`, with the new loads held: the norm falls below that of `residual` (B,
        n_free) at the old iterate, or the next correction by the same factor is shorter.
        """
        size, start = self._size(step / self.options.weight), self.options.norm(residual)
        fraction, found, searching = torch.ones_like(start), ~rows, rows
        x = at.x
        while True:
            x = torch.where(searching[:, None], self.equations.advanced(at.x, fraction[:, None] * step), x)
            trial = Iterate.of(self.equations, x, self.options)
            good = (trial.norm < start) | (trial.norm <= self.options.tolerance) | (not self.options.line_search)
            if bool((searching & ~good).any()):
                correction = self._size(factor.solve(-trial.residual) / self.options.weight)
                good = good | (correction < (1 - 0.5 * fraction) * size)
            found = found | (searching & good & torch.isfinite(trial.norm))
            searching = ~found & (fraction > SMALLEST_STEP) & self.options.line_search
            if not bool(searching.any()):
                return trial, found
            fraction = torch.where(searching, 0.5 * fraction, fraction)

    @staticmethod
    def _size(vector: Tensor) -> Tensor:
        return torch.linalg.vector_norm(vector, dim=1)

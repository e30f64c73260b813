"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchdismech.errors import Status

__all__ = ["Root", "System", "newton", "relaxed_newton", "rounding_noise", "shifted_factor"]

RUNNING = -1
SMALLEST_STEP = 2.0**-12  # below this fraction of the Newton step a line search gives up ...
SMALLEST_DESCENT = 2.0**-20  # ... where a potential judges it: nearly singular matrices give steps too long by far
ROUNDING = 2.0  # units in the last place of each product (diagonal entry) x (unknown) that count as noise in a residual
LARGEST_GROWTH = 2.0  # of the residual in a relaxed step; beyond it the step is taken back and relaxed more
FASTEST_RELAXATION = 0.1  # the least factor by which the relaxation falls in a step
SHIFTS = 12  # how often a matrix that is not positive definite is shifted, tenfold each time


class System(Protocol):
    """Equations r(x) = 0 of a batch, with their matrix dr/dx on the solver's pattern."""

    def residual(self, x: Tensor) -> Tensor:
        """Return r (B, m)."""
        ...

    def residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return r (B, m) and the values (nnz, B) of dr/dx."""
        ...

    def advanced(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x moved by the step (B, m): x + step, to first order."""
        ...

    def potential(self, x: Tensor) -> Tensor | None:
        """Return a potential (B,) whose gradient is r, or None where there is none or none is wanted.

        With a potential a step is judged by it, the matrix is shifted until it is positive definite, and so only minima
        are found. Without, the norm of r judges, and any root may be found.
        """
        ...


@dataclass(frozen=True)
class Root:
    """Where Newton's method ended.

    Attributes
    ----------
    x : (B, m) the last accepted iterates; rows that did not run are as they came.
    status : (B,) `Status` values; rows that did not run are CONVERGED.
    iterations : (B,) Newton steps begun.
    residual : (B,) norm of the residual at x.
    tolerance : (B,) what the residual was held against: as asked for, but not below the rounding noise at x.
    """

    x: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor


def newton(
    system: System,
    x: Tensor,
    solver,
    tolerance: Tensor,
    weight: Tensor,
    max_iterations: int,
    line_search: bool = True,
    running: Tensor | None = None,
) -> Root:
    """Find x with |weight * r(x)| <= tolerance for each row.

    A Newton step is taken whole where it reduces the residual's norm. Where it does not, it may still be a good step
    (stiff directions make the norm rise before it falls): it is taken if the next, simplified Newton correction, with
    the same matrix, is shorter than this one; failing that, the step is halved until one of the two tests holds.

    Parameters
    ----------
    x : (B, m) first iterate.
    solver : linear solver on the pattern of the matrix.
    tolerance : (B,); weight : (m,).
    line_search : False takes every Newton step whole.
    running : (B,) rows to solve; the others are left alone.
    """
    status = torch.full((x.shape[0],), RUNNING, dtype=torch.long, device=x.device)
    if running is not None:
        status[~running] = Status.CONVERGED
    at = _Iterate(x, *system.residual_and_matrix(x), weight)
    status = _judged(status, at.norm, tolerance)
    # noise excuses an iterate that Newton's method improved, not the first one
    tolerance = torch.maximum(tolerance, rounding_noise(at.x, at.values, solver, weight))
    search = _Search(system, solver, weight, tolerance, max_iterations, line_search)
    at, status, iterations = search.run(at, status)
    return Root(at.x, status, iterations, at.norm, tolerance)


def relaxed_newton(
    system: System,
    x: Tensor,
    solver,
    tolerance: Tensor,
    weight: Tensor,
    inertia: Tensor,
    max_iterations: int,
    running: Tensor,
) -> Root:
    """Find x as `newton` does, by steps of the matrix with a multiple of `inertia` added to its diagonal.

    The multiple follows the residual's norm, from 1 down to 0 at the root (pseudo-transient continuation, Kelley and
    Keyes, SIAM J. Numer. Anal. 1998). The norm may rise on the way: so this gets past minima of the norm that are no
    roots, where Newton's method with a line search ends. It takes some tens of iterations.

    Parameters
    ----------
    inertia : (m, 1) or (m, B), not negative: such that the matrix with it is well conditioned.
    Others as for `newton`.
    """
    status = torch.where(running, RUNNING, int(Status.CONVERGED))
    iterations = torch.zeros_like(status)
    at = _Iterate(x, *system.residual_and_matrix(x), weight)
    status = _judged(status, at.norm, tolerance)
    tolerance = torch.maximum(tolerance, rounding_noise(at.x, at.values, solver, weight))
    diagonal = torch.as_tensor(solver.pattern.diagonal, device=x.device)
    relaxation = torch.ones_like(at.norm)
    for _ in range(max_iterations):
        active = status == RUNNING
        if not bool(active.any()):
            break
        values = at.values.clone()
        values[diagonal] += relaxation * inertia
        factor = solver.factor(values, rows=active)
        step = factor.solve(-at.residual)
        solved = active & factor.ok
        moved = torch.where(solved[:, None], system.advanced(at.x, torch.where(solved[:, None], step, 0.0)), at.x)
        trial = _Iterate(moved, *system.residual_and_matrix(moved), weight)
        growth = trial.norm / at.norm
        good = solved & (growth < LARGEST_GROWTH)  # False where it is NaN
        change = torch.where(good, growth.clamp(FASTEST_RELAXATION, LARGEST_GROWTH), LARGEST_GROWTH**2)
        relaxation = torch.where(active, relaxation * change, relaxation)
        at = at.merged(trial, good)
        iterations += active
        status = _judged(status, at.norm, tolerance)
    status = torch.where(status == RUNNING, int(Status.MAX_ITERATIONS), status)
    return Root(at.x, status, iterations, at.norm, tolerance)


def _judged(status: Tensor, norm: Tensor, tolerance: Tensor) -> Tensor:
    """Return the status with running rows marked that converged or stopped being finite."""
    running = status == RUNNING
    status = torch.where(running & (norm <= tolerance), int(Status.CONVERGED), status)  # NaN <= tolerance is False
    return torch.where(running & ~torch.isfinite(norm), int(Status.NOT_FINITE), status)


class _Iterate:
    """A point x with its residual, matrix and weighted residual norm."""

    def __init__(self, x: Tensor, residual: Tensor, values: Tensor, weight: Tensor):
        self.x = x
        self.residual = residual
        self.values = values
        self.norm = torch.linalg.vector_norm(residual * weight, dim=1)

    def merged(self, other: _Iterate, take: Tensor) -> _Iterate:
        """Return this with the rows where `take` (B,) holds replaced by those of `other`."""
        merged = copy.copy(self)
        merged.x = torch.where(take[:, None], other.x, self.x)
        merged.residual = torch.where(take[:, None], other.residual, self.residual)
        merged.values = torch.where(take, other.values, self.values)
        merged.norm = torch.where(take, other.norm, self.norm)
        return merged


def rounding_noise(x: Tensor, values: Tensor, solver, weight: Tensor) -> Tensor:
    """Return the norm (B,) below which a residual is rounding noise: no iterate can be told from the root there.

    An angle feels the rounding of the positions around it: it counts as large as they are over the length that weighs
    it.
    """
    diagonal = values[torch.as_tensor(solver.pattern.diagonal, device=values.device)].t()
    angle = weight != 1
    positions = torch.where(angle, 0.0, x).abs().amax(1, keepdim=True)
    size = torch.where(angle, torch.maximum(x.abs(), weight * positions), x)
    noise = torch.linalg.vector_norm(weight * diagonal * size, dim=1) * (ROUNDING * torch.finfo(x.dtype).eps)
    return torch.nan_to_num(noise, nan=0.0, posinf=0.0)


class _Search:
    """Newton steps with a line search, each row at its own pace.

    A round tries one point in every row that runs: the whole step from a new iterate, half of the step that failed
    there, or a step by another factor where the matrix was not positive definite. So no row waits for another's line
    search, and a batch takes as many evaluations as its slowest row alone.
    """

    def __init__(self, system: System, solver, weight: Tensor, tolerance: Tensor, max_iterations: int, enabled: bool):
        self.system = system
        self.solver = solver
        self.weight = weight
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self.enabled = enabled

    def run(self, at: _Iterate, status: Tensor) -> tuple[_Iterate, Tensor, Tensor]:
        """Return the last accepted iterates, (B,) `Status` values and iterations."""
        iterations = torch.zeros_like(status)
        fraction = torch.ones_like(at.norm)  # of the Newton step that is tried next
        indefinite = torch.zeros_like(status, dtype=torch.bool)  # rows whose matrix Cholesky has refused
        solved, direction = indefinite, torch.zeros_like(at.x)  # which rows have a Newton step, and the steps
        renew, repairs = True, False  # whether some row has no step yet, and one whose matrix is indefinite
        last = False  # whether this round is expected to be the last
        more = bool((status == RUNNING).any())
        while more:
            active = status == RUNNING
            iterations = iterations + (active & (fraction == 1) & ~indefinite)
            potential = self.system.potential(at.x)
            if renew:
                factor, direction, solved = self._directions(at, active, indefinite, direction, solved)
                if repairs:
                    lost = active & indefinite & ~solved
                    direction, solved = self._repaired(at, lost, direction, solved, potential is not None)
            going = active & solved
            step = torch.where(going[:, None], fraction[:, None] * direction, 0.0)
            x = torch.where(going[:, None], self.system.advanced(at.x, step), at.x)
            trial = self._evaluated(x, at, active, last)
            good = going & self._reduced(at, trial, direction, potential, fraction)
            more_to_do = active & (trial.norm > self.tolerance) & (iterations < self.max_iterations)
            # as Newton's method converges quadratically, the next norm is about this one by the square of their ratio
            close = trial.norm**3 <= self.tolerance * at.norm**2
            # the one transfer that the host waits for in a round where all goes well
            flags = [(active & ~good).any(), more_to_do.any(), (close | ~more_to_do).all()]
            bad, more, last = torch.stack(flags).tolist()
            if not bad:
                at, fraction, indefinite = trial, torch.ones_like(fraction), torch.zeros_like(indefinite)
                status = _judged(status, at.norm, self.tolerance)
                status = torch.where((status == RUNNING) & ~more_to_do, int(Status.MAX_ITERATIONS), status)
                renew, repairs = True, False
                continue
            if potential is None:
                good = good | (going & ~indefinite & self._nearer(factor, trial, direction, fraction))
            at = at.merged(trial, good)
            # only rows that moved: noise excuses an iterate that Newton's method improved
            status = torch.where(good, _judged(status, at.norm, self.tolerance), status)
            refused, failed = active & ~solved, going & ~good
            fraction = torch.where(good, 1.0, torch.where(failed, 0.5 * fraction, fraction))
            out = failed & (fraction < (SMALLEST_STEP if potential is None else SMALLEST_DESCENT))
            status = torch.where(out, int(Status.LINE_SEARCH_FAILED), status)
            status = torch.where(refused & indefinite, int(Status.SINGULAR), status)
            spent = good & (status == RUNNING) & (iterations >= self.max_iterations)
            status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
            indefinite = (indefinite | refused) & ~good
            running = status == RUNNING
            flags = [running.any(), (running & (good | refused)).any(), (running & indefinite & ~solved).any()]
            more, renew, repairs = torch.stack(flags).tolist()
        return at, status, iterations

    def _evaluated(self, x: Tensor, at: _Iterate, active: Tensor, last: bool) -> _Iterate:
        """Return the iterate at x; without a matrix of its own where all rows converge, which no one would look at."""
        if last:
            trial = _Iterate(x, self.system.residual(x), at.values, self.weight)
            if bool((~active | (trial.norm <= self.tolerance)).all()):
                return trial
        return _Iterate(x, *self.system.residual_and_matrix(x), self.weight)

    def _directions(self, at: _Iterate, active: Tensor, indefinite: Tensor, direction: Tensor, solved: Tensor):
        """Return the factor of the rows that are not indefinite, the steps (B, m) and the rows (B,) that have one."""
        factor = self.solver.factor(at.values, rows=active & ~indefinite)
        found = factor.solve(-at.residual)
        ok = active & ~indefinite & factor.ok  # read after solving: iterative solvers know it only then
        # rows whose matrix is indefinite keep the step that they have
        return factor, torch.where(ok[:, None], found, direction), ok | (solved & indefinite)

    def _repaired(self, at: _Iterate, lost: Tensor, direction: Tensor, solved: Tensor, descend: bool):
        """Return the steps and the rows that have one, with steps for the rows whose matrix is not positive definite.

        Without a potential the exact Newton direction of the indefinite matrix is right: it reduces the residual. With
        one, the matrix is shifted until it is positive definite, so that the direction descends.
        """
        if not descend and self.solver.solves_indefinite:
            factor = self.solver.factor(at.values, rows=lost, indefinite=True)
        else:
            factor = shifted_factor(self.solver, at.values, lost)
        found = factor.solve(-at.residual)
        repaired = lost & factor.ok
        return torch.where(repaired[:, None], found, direction), solved | repaired

    def _reduced(self, at: _Iterate, trial: _Iterate, direction: Tensor, potential, fraction: Tensor) -> Tensor:
        """Return the rows (B,) whose residual norm (or potential, where there is one) fell."""
        if not self.enabled:
            return torch.isfinite(trial.norm)
        fell = (trial.norm < at.norm) | (trial.norm <= self.tolerance)
        if potential is not None:
            slope = (at.residual * direction).sum(1)
            lower = self.system.potential(trial.x) <= potential + 1e-4 * fraction * slope
            # near a minimum rounding hides the descent of the potential; there a falling residual is the sharper test
            near = -slope < 1e-8 * (potential.abs() + 1e-300)
            fell = lower | (fell & near)
        return fell & torch.isfinite(trial.norm)

    def _nearer(self, factor, trial: _Iterate, direction: Tensor, fraction: Tensor) -> Tensor:
        """Return the rows (B,) from where the next step by the same factor is shorter than this one.

        It says so where the matrix is definite only: an indefinite one says nothing of what is near.
        """
        correction = factor.solve(-trial.residual)
        shorter = self._size(correction) < (1 - 0.5 * fraction) * self._size(direction)
        return shorter & factor.ok & torch.isfinite(trial.norm)

    def _size(self, step: Tensor) -> Tensor:
        """Return the length (B,) of steps; twist angles count by the arc at the length that weighs torques."""
        return torch.linalg.vector_norm(step / self.weight, dim=1)


def shifted_factor(solver, values: Tensor, rows: Tensor):
    """Return the factor of some rows' symmetric matrices, their diagonals raised until they are positive definite."""
    diagonal = torch.as_tensor(solver.pattern.diagonal, device=values.device)
    scale = values[diagonal].abs().amax(0)
    shift, missing = torch.zeros_like(scale), rows
    for k in range(SHIFTS):
        shift = torch.where(missing, 10.0 ** (k - SHIFTS + 1) * scale, shift)
        shifted = values.clone()
        shifted[diagonal] += shift
        factor = solver.factor(shifted, rows=rows)
        factor.solve(torch.zeros_like(shifted[diagonal].t()))  # iterative solvers know only then whether it worked
        missing = missing & ~factor.ok
        if not bool(missing.any()):
            break
    return factor

"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchdismech.errors import Status

__all__ = [
    "Iterate",
    "NewtonOptions",
    "Progress",
    "Root",
    "System",
    "begun",
    "matrix_values",
    "newton",
    "plain_round",
    "relaxed_newton",
    "resumed",
    "rounding_noise",
    "shifted_factor",
]

RUNNING = -1
SMALLEST_STEP = 2.0**-12  # below this fraction of the Newton step a line search gives up ...
SMALLEST_DESCENT = 2.0**-20  # ... where a potential judges it: nearly singular matrices give steps too long by far
ROUNDING = 2.0  # units in the last place of each product (diagonal entry) x (unknown) that count as noise in a residual
LARGEST_GROWTH = 2.0  # of the residual in a relaxed step; beyond it the step is taken back and relaxed more
FASTEST_RELAXATION = 0.1  # the least factor by which the relaxation falls in a step
SHIFTS = 14  # how often a matrix that is not positive definite is shifted, tenfold each time ...
LEAST_SHIFT = 1e-11  # ... from this part of its largest entry on; what presses an edge inside out takes more than once


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

    def compiled(self, function: Callable) -> Callable:
        """Return the function of this system and tensors, compiled as a whole if it can be and is wanted."""
        ...

    def potential(self, x: Tensor) -> Tensor | None:
        """Return a potential (B,) whose gradient is r, or None where there is none or none is wanted.

        With a potential a step is judged by it, the matrix is shifted until it is positive definite, and so only minima
        are found. Without, the norm of r judges, and any root may be found.
        """
        ...

    def trust_radius(self) -> Tensor | float:
        """Return how far a step that descends the potential may change an unknown, in units of unknown / weight."""
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


@dataclass(frozen=True)
class NewtonOptions:
    """How a search for roots goes.

    Attributes
    ----------
    solver : linear solver on the pattern of the matrix.
    weight : (m,) of the unknowns' residuals in its norm.
    tolerance : (B,) the norm up to which a row counts as solved.
    max_iterations : Newton steps, at most.
    line_search : False takes every Newton step whole.
    """

    solver: Any
    weight: Tensor
    tolerance: Tensor
    max_iterations: int
    line_search: bool = True

    def with_tolerance(self, tolerance: Tensor) -> NewtonOptions:
        """Return these with another tolerance (B,)."""
        return dataclasses.replace(self, tolerance=tolerance)

    @property
    def diagonal(self) -> Tensor:
        """Where the diagonal of the matrix stands in its values."""
        return self.solver.diagonal(self.weight.device)

    def norm(self, residual: Tensor) -> Tensor:
        """Return the weighted norm (B,) of residuals (B, m)."""
        return _norm(residual, self.weight)


def newton(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None = None) -> Root:
    """Find x with |weight * r(x)| <= tolerance for each row.

    A Newton step is taken whole where it reduces the residual's norm. Where it does not, it may still be a good step
    (stiff directions make the norm rise before it falls): it is taken if the next, simplified Newton correction, with
    the same matrix, is shorter than this one; failing that, the step is halved until one of the two tests holds.

    Parameters
    ----------
    x : (B, m) first iterate.
    running : (B,) rows to solve; the others are left alone.
    """
    at, tolerance = begun(system, x, options, running)
    return resumed(system, at, options.with_tolerance(tolerance))


def relaxed_newton(system: System, x: Tensor, options: NewtonOptions, inertia: Tensor, running: Tensor) -> Root:
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
    at = Iterate.of(system, x, options)
    status = _judged(status, at.norm, options.tolerance)
    tolerance = torch.maximum(options.tolerance, rounding_noise(x, at.values, options.diagonal, options.weight))
    relaxation = torch.ones_like(at.norm)
    for _ in range(options.max_iterations):
        active = status == RUNNING
        if not bool(active.any()):
            break
        values = at.values.clone()
        values[options.diagonal] += relaxation * inertia
        factor = options.solver.factor(values, rows=active)
        step = factor.solve(-at.residual)
        solved = active & factor.ok
        moved = torch.where(solved[:, None], system.advanced(at.x, torch.where(solved[:, None], step, 0.0)), at.x)
        trial = Iterate.of(system, moved, options)
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


@dataclass(frozen=True)
class Iterate:
    """A point x with its residual, matrix and weighted residual norm."""

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor

    @classmethod
    def of(cls, system: System, x: Tensor, options: NewtonOptions) -> Iterate:
        """Return the iterate at x (B, m)."""
        residual, values = system.residual_and_matrix(x)
        return cls(x, residual, values, options.norm(residual))

    def merged(self, other: Iterate, take: Tensor) -> Iterate:
        """Return this with the rows where `take` (B,) holds replaced by those of `other`."""
        return Iterate(
            torch.where(take[:, None], other.x, self.x),
            torch.where(take[:, None], other.residual, self.residual),
            torch.where(take, other.values, self.values),
            torch.where(take, other.norm, self.norm),
        )


def _norm(residual: Tensor, weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(residual * weight, dim=1)


class Progress(NamedTuple):
    """How far a search is: x, residual (B, m), values (nnz, B), norm, status (-1: it goes on) and iterations (B,)."""

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor
    status: Tensor
    iterations: Tensor


def begun(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None) -> tuple[Progress, Tensor]:
    """Return a search at its first iterate, and what its others are held against (B,); arguments as for `newton`.

    That is the tolerance, not below the rounding noise, which excuses an iterate that Newton's method improved, but not
    the first one.
    """
    status = torch.full_like(options.tolerance, RUNNING, dtype=torch.long)
    if running is not None:
        status = torch.where(running, status, int(Status.CONVERGED))
    first = _first_trial(system, x, options)
    assert first.values is not None and first.noise is not None
    status = _judged(status, first.norm, options.tolerance)
    at = Progress(first.x, first.residual, first.values, first.norm, status, torch.zeros_like(status))
    return at, torch.maximum(options.tolerance, first.noise)


def matrix_values(system: System, x: Tensor, solver, weight: Tensor) -> Tensor:
    """Return the values (nnz, B) of the matrix at x (B, m), by what is compiled for Newton's iterates if that is."""
    values = _first_trial(system, x, NewtonOptions(solver, weight, x.new_zeros(len(x)), 0)).values
    assert values is not None
    return values


def _first_trial(system: System, x: Tensor, options: NewtonOptions) -> _Trial:
    """Return what is to be known of x: what is compiled for trials serves, with a step that no row takes."""
    tried, tolerance = system.compiled(_tried), options.tolerance
    # two tensors: code that was compiled for one in both places would not serve for other steps
    no_row, none_spent = torch.zeros(2, len(x), dtype=torch.bool, device=x.device)
    status = torch.full_like(tolerance, RUNNING, dtype=torch.long)
    unknown = torch.full_like(tolerance, torch.inf)
    step = None if tried is _tried else torch.zeros_like(x)
    rest = (tolerance, options.weight, options.diagonal, options.line_search, True)
    return tried(system, x, unknown, step, no_row, status, none_spent, *rest)


def resumed(system: System, at: Progress, options: NewtonOptions) -> Root:
    """Return where `newton` ends from a search's iterates."""
    search = _Search(system, options)
    return search.run(Iterate(at.x, at.residual, at.values, at.norm), at.status, at.iterations)


def plain_round(
    system: System, at: Progress, options: NewtonOptions, with_matrix: bool = True
) -> tuple[Progress, Tensor]:
    """Return a search after the whole Newton step of each row, and whether that was the step to take.

    What `newton` does in a round in which all goes well, without reading a number: so a graph of a GPU may hold it.

    Parameters
    ----------
    with_matrix : without, the values stay those of the iterate before.

    Returns
    -------
    progress : is to be dropped where the first flag holds, and `resumed` from before this round.
    flags : (5,) the four of `_tried`, and whether some row ended without having converged.
    """
    active = at.status == RUNNING
    iterations = at.iterations + active
    factor = options.solver.factor(at.values, rows=active)
    step = factor.solve(-at.residual)
    rows = (active & factor.ok, at.status, iterations >= options.max_iterations, options.tolerance)
    rest = (options.weight, options.diagonal, options.line_search, with_matrix)
    trial = system.compiled(_tried)(system, at.x, at.norm, step, *rows, *rest)
    lost = ((trial.status != RUNNING) & (trial.status != int(Status.CONVERGED))).any()
    values = at.values if trial.values is None else trial.values
    after = Progress(trial.x, trial.residual, values, trial.norm, trial.status, iterations)
    return after, torch.cat([trial.flags, lost[None]])


def rounding_noise(x: Tensor, values: Tensor, diagonal: Tensor, weight: Tensor) -> Tensor:
    """Return the norm (B,) below which a residual is rounding noise: no iterate can be told from the root there.

    An angle feels the rounding of the positions around it: it counts as large as they are over the length that weighs
    it.
    """
    angle = weight != 1
    positions = torch.where(angle, 0.0, x).abs().amax(1, keepdim=True)
    size = torch.where(angle, torch.maximum(x.abs(), weight * positions), x)
    noise = _norm(values[diagonal].t() * size, weight) * (ROUNDING * torch.finfo(x.dtype).eps)
    return torch.nan_to_num(noise, nan=0.0, posinf=0.0)


class _Trial(NamedTuple):
    """What a step led to.

    Attributes
    ----------
    x, residual, norm : of the new iterate.
    values, noise : likewise, and that of rounding (B,), see `rounding_noise`; None without a matrix.
    good : (B,) rows whose norm fell or is within tolerance; without line search, is finite.
    status : (B,) if all rows keep the new iterate.
    flags : (4,) whether some running row is not good; has more to do; does not converge; and whether all that have more
        to do are expected to converge in the next round.
    """

    x: Tensor
    residual: Tensor
    values: Tensor | None
    norm: Tensor
    noise: Tensor | None
    good: Tensor
    status: Tensor
    flags: Tensor


def _tried(
    system: System,
    x: Tensor,
    norm: Tensor,
    step: Tensor | None,
    solved: Tensor,
    status: Tensor,
    spent: Tensor,
    tolerance: Tensor,
    weight: Tensor,
    diagonal: Tensor,
    line_search: bool,
    with_matrix: bool,
) -> _Trial:
    """Take a step from x in the rows that run and are solved, and judge it by the norm of the residual.

    Rows that are `spent` may take no other. Without a step x itself is judged. Noise is of use at a first iterate only,
    which compiled code shares with the others; it takes one part in a hundred of an evaluation.
    """
    active = status == RUNNING
    if step is not None:
        going = (active & solved)[:, None]
        x = torch.where(going, system.advanced(x, torch.where(going, step, 0.0)), x)
    residual, values = system.residual_and_matrix(x) if with_matrix else (system.residual(x), None)
    noise = None if values is None else rounding_noise(x, values, diagonal, weight)
    found = _norm(residual, weight)
    within = found <= tolerance  # NaN is not
    good = active & solved & torch.isfinite(found)
    if line_search:
        good = good & (within | (found < norm))
    more = active & ~within & ~spent
    # as Newton's method converges quadratically, the next norm is about this one by the square of their ratio
    close = found**3 <= tolerance * norm**2
    judged = _judged(status, found, tolerance)
    judged = torch.where((judged == RUNNING) & ~more, int(Status.MAX_ITERATIONS), judged)
    flags = torch.stack([(active & ~good).any(), more.any(), (active & ~within).any(), (close | ~more).all()])
    return _Trial(x, residual, values, found, noise, good, judged, flags)


class _Search:
    """Newton steps with a line search, each row at its own pace.

    A round tries one point in every row that runs: the whole step from a new iterate, half of the step that failed
    there, or a step by another factor where the matrix was not positive definite. So no row waits for another's line
    search, and a batch takes as many evaluations as its slowest row alone.
    """

    def __init__(self, system: System, options: NewtonOptions):
        self.system, self.options, self.solver = system, options, options.solver
        self._tried = system.compiled(_tried)
        self._diagonal = options.diagonal

    def run(self, at: Iterate, status: Tensor, iterations: Tensor) -> Root:
        """Return where the rows end."""
        self.at, self.status, self.iterations = at, status, iterations
        self.solved = torch.zeros_like(status, dtype=torch.bool)  # the rows that have a Newton step ...
        self.direction = torch.zeros_like(at.x)  # ... and the steps
        self._begin_steps()
        more, last = bool((status == RUNNING).any()), False
        while more:
            more, last = self._round(last)
        return Root(self.at.x, self.status, self.iterations, self.at.norm, self.options.tolerance)

    def _begin_steps(self) -> None:
        """Let all rows that run try a new Newton step next, the whole of it."""
        self.renew, self.repairs = True, False  # whether some row has no step yet, and one whose matrix is indefinite
        self.fraction: Tensor | None = None  # (B,) of the Newton step that is tried next; None: the whole in all rows
        self.indefinite: Tensor | None = None  # (B,) rows whose matrix Cholesky has refused; None: no row

    def _round(self, last: bool) -> tuple[bool, bool]:
        """Try a step; return whether there is more to do, and whether the next round is expected to be the last."""
        active = self.status == RUNNING
        begun = active if self.fraction is None else active & (self.fraction == 1)
        self.iterations = self.iterations + (begun if self.indefinite is None else begun & ~self.indefinite)
        potential = self.system.potential(self.at.x)
        if self.renew:
            self._find_directions(active)
        if self.repairs:
            self._repair(active, descend=potential is not None)
        if potential is not None:
            self._shorten_directions()
        trial, good, status, (bad, more, last) = self._trial(last)
        if potential is not None and self.options.line_search:
            good = active & self.solved & self._descended(trial, good, potential)
            bad = bool((active & ~good).any())
        if bad:
            return self._sort_out(active, trial, good, potential is None), False
        self.at, self.status = trial, status
        self._begin_steps()
        return more, last

    def _trial(self, last: bool) -> tuple[Iterate, Tensor, Tensor, list[bool]]:
        """Return what `_tried` says of the next step; without a matrix where all rows converge, as none would look."""
        at = self.at
        step = self.direction if self.fraction is None else self.fraction[:, None] * self.direction
        rows = (self.solved, self.status, self.iterations >= self.options.max_iterations, self.options.tolerance)
        rest = (self.options.weight, self._diagonal, self.options.line_search, not last)
        trial = self._tried(self.system, at.x, at.norm, step, *rows, *rest)
        # the one transfer that the host waits for in a round where all goes well
        bad, more, unconverged, close = trial.flags.tolist()
        if last and unconverged:
            return self._trial(last=False)  # once more, as what comes next needs the matrix
        values = at.values if trial.values is None else trial.values
        iterate = Iterate(trial.x, trial.residual, values, trial.norm)
        return iterate, trial.good, trial.status, [bad, more, close]

    def _find_directions(self, active: Tensor) -> None:
        """Find the Newton steps of the rows that are not known to be indefinite; these keep the step that they have."""
        rows = active if self.indefinite is None else active & ~self.indefinite
        self.factor = self.solver.factor(self.at.values, rows=rows)
        found = self.factor.solve(-self.at.residual)
        ok = rows & self.factor.ok  # read after solving: iterative solvers know it only then
        if self.indefinite is None:
            self.direction, self.solved = found, ok
        else:
            self.direction = torch.where(ok[:, None], found, self.direction)
            self.solved = ok | (self.solved & self.indefinite)

    def _repair(self, active: Tensor, descend: bool) -> None:
        """Find steps for the rows whose matrix is not positive definite and that have none.

        Without a potential the exact Newton direction of the indefinite matrix is right: it reduces the residual. With
        one, the matrix is shifted until it is positive definite, so that the direction descends.
        """
        assert self.indefinite is not None
        lost = active & self.indefinite & ~self.solved
        if not descend and self.solver.solves_indefinite:
            factor = self.solver.factor(self.at.values, rows=lost, indefinite=True)
        else:
            factor = shifted_factor(self.solver, self.at.values, lost)
        found = factor.solve(-self.at.residual)
        repaired = lost & factor.ok
        self.direction = torch.where(repaired[:, None], found, self.direction)
        self.solved = self.solved | repaired

    def _shorten_directions(self) -> None:
        """Let no Newton step reach too far: a matrix that is hardly positive definite says little of what is there."""
        reach = self.system.trust_radius()
        farthest = (self.direction / self.options.weight).abs().amax(1, keepdim=True)
        self.direction = self.direction * (reach / farthest.clamp_min(reach))

    def _sort_out(self, active: Tensor, trial: Iterate, good: Tensor, by_norm: bool) -> bool:
        """Keep the new iterate in good rows and shorten the step in the others; return whether there is more to do."""
        fraction = torch.ones_like(trial.norm) if self.fraction is None else self.fraction
        indefinite = torch.zeros_like(good) if self.indefinite is None else self.indefinite
        going = active & self.solved
        if by_norm:
            good = good | (going & ~indefinite & self._nearer(trial, fraction))
        self.at = self.at.merged(trial, good)
        # only rows that moved: noise excuses an iterate that Newton's method improved
        status = torch.where(good, _judged(self.status, self.at.norm, self.options.tolerance), self.status)
        refused, failed = active & ~self.solved, going & ~good
        self.fraction = torch.where(good, 1.0, torch.where(failed, 0.5 * fraction, fraction))
        out = failed & (self.fraction < (SMALLEST_STEP if by_norm else SMALLEST_DESCENT))
        status = torch.where(out, int(Status.LINE_SEARCH_FAILED), status)
        status = torch.where(refused & indefinite, int(Status.SINGULAR), status)
        spent = good & (status == RUNNING) & (self.iterations >= self.options.max_iterations)
        self.status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
        self.indefinite = (indefinite | refused) & ~good
        running = self.status == RUNNING
        lost = running & self.indefinite & ~self.solved
        more, self.renew, self.repairs = torch.stack(
            [running.any(), (running & (good | refused)).any(), lost.any()]
        ).tolist()
        return more

    def _descended(self, trial: Iterate, reduced: Tensor, potential: Tensor) -> Tensor:
        """Return the rows (B,) whose potential fell; `reduced` are those whose residual norm did."""
        slope = (self.at.residual * self.direction).sum(1)
        least = 1e-4 * slope if self.fraction is None else 1e-4 * self.fraction * slope
        there = self.system.potential(trial.x)
        assert there is not None
        # near a minimum rounding hides the descent of the potential; there a falling residual is the sharper test
        near = -slope < 1e-8 * (potential.abs() + 1e-300)
        return ((there <= potential + least) | (reduced & near)) & torch.isfinite(trial.norm)

    def _nearer(self, trial: Iterate, fraction: Tensor) -> Tensor:
        """Return the rows (B,) from where the next step by the same factor is shorter than this one.

        It says so where the matrix is definite only: an indefinite one says nothing of what is near.
        """
        correction = self.factor.solve(-trial.residual)
        shorter = self._size(correction) < (1 - 0.5 * fraction) * self._size(self.direction)
        return shorter & self.factor.ok & torch.isfinite(trial.norm)

    def _size(self, step: Tensor) -> Tensor:
        """Return the length (B,) of steps; twist angles count by the arc at the length that weighs torques."""
        return torch.linalg.vector_norm(step / self.options.weight, dim=1)


def shifted_factor(solver, values: Tensor, rows: Tensor):
    """Return the factor of some rows' symmetric matrices, their diagonals raised until they are positive definite."""
    diagonal = solver.diagonal(values.device)
    scale = values[diagonal].abs().amax(0)
    shift, missing = torch.zeros_like(scale), rows
    for k in range(SHIFTS):
        shift = torch.where(missing, LEAST_SHIFT * 10.0**k * scale, shift)
        shifted = values.clone()
        shifted[diagonal] += shift
        factor = solver.factor(shifted, rows=rows)
        factor.solve(torch.zeros_like(shifted[diagonal].t()))  # iterative solvers know only then whether it worked
        missing = missing & ~factor.ok
        if not bool(missing.any()):
            break
    return factor

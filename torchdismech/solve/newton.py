"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.linear import shifted_factor
from torchdismech.solve.noise import lengths, negligible
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.rounds import (
    corrected_less,
    noise_after,
    parts_next,
    plain_round,
    rounding_of_parts,
    status_of_given_up,
    within_noise,
)
from torchdismech.solve.search import RUNNING, DividingSearch, Iterate, NewtonOptions, Root, System, judged
from torchdismech.solve.trial import Measure, Move, Trial, tried

__all__ = ["ENOUGH", "HIDDEN", "newton", "resumed"]

# Part of a step below which a line search gives up that a potential judges: nearly singular matrices give steps that
# are too long by far.
SHORTEST_DESCENT = 2.0**-20
ENOUGH = 1e-4  # of the fall that the slope promises: a step along which the potential falls by less is shortened
HIDDEN = 1e-8  # of the potential: in smaller changes rounding hides the fall
TINY = 1e-300  # J, in place of a potential that is zero


def newton(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None = None) -> Root:
    """Find x with |weight * r(x)| <= tolerance for each row, or as near as rounding lets it get.

    A Newton step is taken whole where it reduces the residual's norm. Where it does not, it may still be a good step,
    because stiff directions make the norm rise before it falls. So it is also taken if the simplified Newton correction
    that would come next, with the same matrix, is shorter than the step. If neither test holds, a quarter of the step
    is tried, and so on until one of them does.

    A row within the noise of rounding counts as solved once its Newton steps are short; see `noise`.

    Parameters
    ----------
    x : (B, m) first iterate.
    running : (B,) rows to solve; the others are left alone.
    """
    return _LineSearch(system, begun(system, x, options, running), options).root()


def resumed(system: System, at: Progress, options: NewtonOptions, fraction: Tensor | None = None) -> Root:
    """Return where `newton` ends from a search's iterates.

    Parameters
    ----------
    fraction : (B,) of the Newton step that a row is to try next; None: all rows try the whole.
    """
    search = _LineSearch(system, at, options)
    search.fraction = fraction
    return search.root()


class _LineSearch(DividingSearch):
    """Newton steps with a line search, each row at its own pace.

    A round tries one point in every row that runs: the whole step from a new iterate, a quarter of the step that failed
    there, or a step by another factor where the matrix was not positive definite. So no row waits for another's line
    search, and a batch takes as many evaluations as its slowest row alone.

    Attributes
    ----------
    solved, direction : rows (B,) that have a Newton step at their iterate, and these steps (B, m).
    fraction : (B,) of its Newton step that a row tries next; None: all rows try the whole.
    indefinite : (B,) rows whose matrix is known not to be positive definite; None: no row.
    renew : whether some row that runs needs a Newton step by the factor of its matrix.
    repairs : whether some row that runs needs one by other means, as its matrix is indefinite.
    ends_next : whether the next round is expected to be the last, for which no matrix is found.
    length, short : see `Progress`, of which `tolerance` is the noise.
    """

    def __init__(self, system: System, at: Progress, options: NewtonOptions):
        self.system, self.options, self.solver = system, options, options.solver
        self.at, self.status, self.iterations = at.iterate, at.status, at.iterations
        self.length, self.tolerance, self.short = at.length, at.noise, at.short
        self._tried = system.compiled(tried)
        self._measure = Measure.of(options)
        self.solved, self.direction = torch.zeros_like(at.status, dtype=torch.bool), torch.zeros_like(at.x)
        self.ends_next = False
        self._noisy = not self.divides()  # compiled code finds the noise of rounding always
        self._begin_steps()

    def divides(self) -> bool:
        """Return whether rows may go on without the others: compiled code is for one number of rows."""
        return self._tried is tried

    def of_rows(self, rows: Tensor, system: System) -> _LineSearch:
        """Return the search of some rows alone; they find the same Newton steps anew."""
        progress = Progress.of(self.at.rows(rows), *(own[rows] for own in self._of_rows))
        part = _LineSearch(system, progress, self.options.rows(rows, system.solver()))
        part.solved, part.direction, part.repairs = self.solved[rows], self.direction[rows], self.repairs
        part.fraction = None if self.fraction is None else self.fraction[rows]
        part.indefinite = None if self.indefinite is None else self.indefinite[rows]
        return part

    @property
    def _of_rows(self) -> tuple[Tensor, ...]:
        """What `Progress` has beside the iterates (B,)."""
        return self.status, self.iterations, self.length, self.tolerance, self.short

    def round(self) -> bool:
        """Try a step; return whether some row still runs."""
        more = self._whole_steps()
        return self._tried_steps() if more is None else more

    def _whole_steps(self) -> bool | None:
        """Take whole Newton steps by a recording; return whether some row still runs.

        None where there is no recording, or where these are not the steps to take in all rows: nothing was done, and
        what there is without recordings tries the same steps once more.
        """
        recorded = self.system.recording(plain_round)
        if recorded is None or not self._begins or self.system.descending:
            return None
        progress = Progress.of(self.at, *self._of_rows)
        after, flags = recorded(self.system, progress, self.options, with_matrix=not self.ends_next)
        bad, more, unconverged, far, _ = flags.tolist()
        if self.ends_next and unconverged:  # once more, as what comes next needs the matrix
            after, flags = recorded(self.system, progress, self.options)
            bad, more, _, far, _ = flags.tolist()
        if bad:
            return None
        self.at, self.status, self.iterations = after.iterate, after.status, after.iterations
        self.length, self.tolerance = after.length, after.noise
        self.ends_next = not far
        self._begin_steps()
        return more

    @property
    def _begins(self) -> bool:
        """Whether all rows that run try a new Newton step next, the whole of it."""
        return self.renew and not self.repairs and self.fraction is None and self.indefinite is None

    def _tried_steps(self) -> bool:
        """Try the next step of each row; return whether some row still runs."""
        active = self.status == RUNNING
        begun = active if self.fraction is None else active & (self.fraction == 1)
        self.iterations = self.iterations + (begun if self.indefinite is None else begun & ~self.indefinite)
        potential = self.system.potential(self.at.x)
        descends = potential is not None
        if self.renew:
            self._find_directions(active)
        if self.repairs:
            self._repair(active, descends)
        if descends:
            self._shorten_directions()
        whole = self._rows_with_newtons_step(descends)
        trial, (bad, more, self.ends_next) = self._trial(whole, self.ends_next)
        there = Iterate(trial.x, trial.residual, self.at.values if trial.values is None else trial.values, trial.norm)
        newtons = self.solved if whole is None else whole & self.solved
        refused = active & ~self.solved  # they have not moved
        self.length = torch.where(newtons, trial.length, torch.where(refused, self.length, torch.inf))
        good, noise = trial.good, noise_after(trial, self.tolerance, self.options)
        if potential is not None and self.options.line_search:
            good = active & self.solved & self._descended(there, good, potential)
            bad = bool((active & ~good).any())
        if bad:
            self.ends_next = False
            return self._sort_out(active, there, good, trial.status, noise, by_norm=not descends)
        self.at, self.status, self.tolerance = there, trial.status, noise
        self._begin_steps()
        return more

    def _begin_steps(self) -> None:
        """Let all rows that run try a new Newton step next, the whole of it."""
        self.renew, self.repairs = True, False
        self.fraction: Tensor | None = None
        self.indefinite: Tensor | None = None

    def _rows_with_newtons_step(self, descends: bool) -> Tensor | None:
        """Return the rows (B,) that try a whole Newton step next; None: all.

        The others try a part of it, or a step by a shifted matrix.
        """
        whole = None if self.fraction is None else self.fraction == 1
        if self.indefinite is None or (self.solver.solves_indefinite and not descends):
            return whole
        return ~self.indefinite if whole is None else whole & ~self.indefinite

    def _trial(self, whole: Tensor | None, ends: bool) -> tuple[Trial, list[bool]]:
        """Return what the next steps lead to, and three flags: some row is not good; has more to do; ends next.

        If the round is expected to end the search, the matrix is found only where that turns out wrong.

        Parameters
        ----------
        whole : see `_rows_with_newtons_step`.
        """
        at, short = self.at, self.short
        if whole is not None:
            short = torch.where(whole, short, rounding_of_parts(short))
        step = self.direction if self.fraction is None else self.fraction[:, None] * self.direction
        spent = self.iterations >= self.options.max_iterations
        of_rows = (self.status, spent, self.options.tolerance, self.length, self.tolerance, short)
        move = Move(at.x, at.norm, step, self.solved, *of_rows)
        noisy = (self._noisy or self.options.unbounded) and not ends
        trial = self._tried(self.system, move, self._measure, with_matrix=not ends, with_noise=noisy)
        # the one transfer that the host waits for in a round where all goes well
        bad, more, unconverged, far = trial.flags.tolist()
        if ends and unconverged:
            return self._trial(whole, ends=False)  # once more, as what comes next needs the matrix
        return trial, [bad, more, not far]

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
            factor = shifted_factor(self.solver, self.at.values, self.options.weight, lost)
        found = factor.solve(-self.at.residual)
        repaired = lost & factor.ok
        self.direction = torch.where(repaired[:, None], found, self.direction)
        self.solved = self.solved | repaired

    def _shorten_directions(self) -> None:
        """Let no Newton step reach too far: by a matrix that is hardly positive definite it may be far too long."""
        reach = self.system.trust_radius()
        farthest = (self.direction / self.options.weight).abs().amax(1, keepdim=True)
        self.direction = self.direction * (reach / farthest.clamp_min(reach))

    def _sort_out(
        self, active: Tensor, there: Iterate, good: Tensor, ended: Tensor, noise: Tensor, by_norm: bool
    ) -> bool:
        """Keep the new iterate in good rows and shorten the step in the others; return whether there is more to do.

        Parameters
        ----------
        ended, noise : (B,) the status of rows that keep it, see `Trial.status`, and their noise from then on.
        """
        fraction = torch.ones_like(there.norm) if self.fraction is None else self.fraction
        indefinite = torch.zeros_like(good) if self.indefinite is None else self.indefinite
        going = active & self.solved
        may_be_rounding = negligible(lengths(self.direction, self.options.weight), self.short)
        excused = torch.zeros_like(good)
        if self.options.unbounded:
            excused = going & ~good & within_noise(there.norm, self.tolerance, noise, may_be_rounding)
        solved = excused | (good & (ended == int(Status.CONVERGED)))
        good = good | excused
        if by_norm:
            good = good | (going & ~indefinite & self._nearer(there, fraction))
        self.at, self.tolerance = self.at.merged(there, good), torch.where(good, noise, self.tolerance)
        status = torch.where(good, judged(self.status, self.at.norm, self.options.tolerance), self.status)
        status = torch.where(solved, int(Status.CONVERGED), status)
        refused, failed = active & ~self.solved, going & ~good
        shorter, out = parts_next(fraction, failed, self.options.shortest if by_norm else SHORTEST_DESCENT)
        self.fraction = torch.where(good, 1.0, shorter)
        ended_there = status_of_given_up(self.at.norm, self.tolerance, self.iterations, may_be_rounding)
        status = torch.where(out, ended_there, status)
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
        least = ENOUGH * slope if self.fraction is None else ENOUGH * self.fraction * slope
        there = self.system.potential(trial.x)
        assert there is not None
        # near a minimum rounding hides the descent of the potential; there a falling residual is the sharper test
        near = (-slope < HIDDEN * (potential.abs() + TINY)) | (trial.norm <= self.tolerance)
        return ((there <= potential + least) | (reduced & near)) & torch.isfinite(trial.norm)

    def _nearer(self, trial: Iterate, fraction: Tensor) -> Tensor:
        """Return the rows (B,) from where the next step by the same factor is shorter than this one.

        Only definite matrices are asked: a step by an indefinite one does not tell how near the root is.
        """
        weight = self.options.weight
        length = lengths(self.direction, weight)
        return corrected_less(self.factor, trial.residual, trial.norm, length, fraction, weight)

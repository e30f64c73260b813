"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

from typing import NamedTuple

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
    search.steps = search.steps._replace(fraction=fraction)
    return search.root()


class _NextSteps(NamedTuple):
    """The step that each row tries next from its iterate: its Newton step or a part of it, or one by another matrix.

    Attributes
    ----------
    solved, direction : rows (B,) that have a step at their iterate, and these steps (B, m).
    fraction : (B,) of its step that a row tries next; None: all rows try the whole.
    indefinite : (B,) rows whose matrix is known not to be positive definite, so that they have no Newton step; None: no
        row.
    renew : whether some row that runs needs a Newton step by the factor of its matrix.
    repairs : whether some row that runs is indefinite and not solved: it needs a step by other means.
    """

    solved: Tensor
    direction: Tensor
    fraction: Tensor | None = None
    indefinite: Tensor | None = None
    renew: bool = True
    repairs: bool = False

    def anew(self) -> _NextSteps:
        """Return what rows try next that have all moved: a Newton step that is yet to be found, the whole of it."""
        return _NextSteps(self.solved, self.direction)

    def rows(self, rows: Tensor) -> _NextSteps:
        """Return those of some rows (R,), which find the same Newton steps anew."""
        fraction = None if self.fraction is None else self.fraction[rows]
        indefinite = None if self.indefinite is None else self.indefinite[rows]
        return _NextSteps(self.solved[rows], self.direction[rows], fraction, indefinite, repairs=self.repairs)

    @property
    def all_anew(self) -> bool:
        """Whether all rows that run try a new Newton step next, the whole of it."""
        return self.renew and not self.repairs and self.fraction is None and self.indefinite is None

    @property
    def step(self) -> Tensor:
        """The steps (B, m)."""
        return self.direction if self.fraction is None else self.fraction[:, None] * self.direction

    def whole(self) -> Tensor | None:
        """Return the rows (B,) that try the whole of their step; None: all."""
        return None if self.fraction is None else self.fraction == 1

    def whole_newton(self) -> Tensor | None:
        """Return the rows (B,) that try the whole of a Newton step; None: all."""
        whole = self.whole()
        if self.indefinite is None:
            return whole
        return ~self.indefinite if whole is None else whole & ~self.indefinite


class _LineSearch(DividingSearch):
    """Newton steps with a line search, each row at its own pace.

    A round tries one point in every row that runs: the whole step from a new iterate, a quarter of the step that failed
    there, or a step by another factor where the matrix was not positive definite. So no row waits for another's line
    search, and a batch takes as many evaluations as its slowest row alone.

    Attributes
    ----------
    steps : what the rows try next.
    factor : of the matrices, by which the last Newton steps were found.
    ends_next : whether the next round is expected to be the last, for which no matrix is found.
    length, short : see `Progress`, of which `tolerance` is the noise.
    """

    def __init__(self, system: System, at: Progress, options: NewtonOptions):
        self.system, self.options, self.solver = system, options, options.solver
        self.at, self.status, self.iterations = at.iterate, at.status, at.iterations
        self.length, self.tolerance, self.short = at.length, at.noise, at.short
        self._tried = system.compiled(tried)
        self._measure = Measure.of(options)
        self.steps = _NextSteps(torch.zeros_like(at.status, dtype=torch.bool), torch.zeros_like(at.x))
        self.ends_next = False
        self._noisy = not self.divides()  # compiled code finds the noise of rounding always

    def divides(self) -> bool:
        """Return whether rows may go on without the others: compiled code is for one number of rows."""
        return self._tried is tried

    def of_rows(self, rows: Tensor, system: System) -> _LineSearch:
        """Return the search of some rows alone; they find the same Newton steps anew."""
        progress = Progress.of(self.at.rows(rows), *(own[rows] for own in self._of_rows))
        part = _LineSearch(system, progress, self.options.rows(rows, system.solver()))
        part.steps = self.steps.rows(rows)
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
        if recorded is None or not self.steps.all_anew or self.system.descending:
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
        self.ends_next, self.steps = not far, self.steps.anew()
        return more

    def _tried_steps(self) -> bool:
        """Try the next step of each row; return whether some row still runs."""
        active = self.status == RUNNING
        begun = self.steps.whole_newton()
        self.iterations = self.iterations + (active if begun is None else active & begun)
        potential = self.system.potential(self.at.x)
        descends = potential is not None
        if self.steps.renew:
            self._find_directions(active)
        if self.steps.repairs:
            self._repair(active, descends)
        if descends:
            self._shorten_directions()
        whole = self._rows_with_newtons_step(descends)
        trial, (bad, more, self.ends_next) = self._trial(whole, self.ends_next)
        there = Iterate(trial.x, trial.residual, self.at.values if trial.values is None else trial.values, trial.norm)
        solved = self.steps.solved
        newtons = solved if whole is None else whole & solved
        refused = active & ~solved  # they have not moved
        self.length = torch.where(newtons, trial.length, torch.where(refused, self.length, torch.inf))
        good, noise = trial.good, noise_after(trial, self.tolerance, self.options)
        if potential is not None and self.options.line_search:
            good = active & solved & self._descended(there, good, potential)
            bad = bool((active & ~good).any())
        if bad:
            self.ends_next = False
            return self._sort_out(active, there, good, trial.status, noise, by_norm=not descends)
        self.at, self.status, self.tolerance, self.steps = there, trial.status, noise, self.steps.anew()
        return more

    def _rows_with_newtons_step(self, descends: bool) -> Tensor | None:
        """Return the rows (B,) whose next step tells how near the root is; None: all.

        It is a whole Newton step; also one by an indefinite matrix, where that is not shifted.
        """
        exact = self.solver.solves_indefinite and not descends
        return self.steps.whole() if exact else self.steps.whole_newton()

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
        spent = self.iterations >= self.options.max_iterations
        of_rows = (self.status, spent, self.options.tolerance, self.length, self.tolerance, short)
        move = Move(at.x, at.norm, self.steps.step, self.steps.solved, *of_rows)
        noisy = (self._noisy or self.options.unbounded) and not ends
        trial = self._tried(self.system, move, self._measure, with_matrix=not ends, with_noise=noisy)
        # the one transfer that the host waits for in a round where all goes well
        bad, more, unconverged, far = trial.flags.tolist()
        if ends and unconverged:
            return self._trial(whole, ends=False)  # once more, as what comes next needs the matrix
        return trial, [bad, more, not far]

    def _find_directions(self, active: Tensor) -> None:
        """Find the Newton steps of the rows that are not known to be indefinite; these keep the step that they have."""
        steps = self.steps
        rows = active if steps.indefinite is None else active & ~steps.indefinite
        self.factor = self.solver.factor(self.at.values, rows=rows)
        direction = self.factor.solve(-self.at.residual)
        solved = rows & self.factor.ok  # read after solving: iterative solvers know it only then
        if steps.indefinite is not None:
            direction = torch.where(solved[:, None], direction, steps.direction)
            solved = solved | (steps.solved & steps.indefinite)
        self.steps = steps._replace(solved=solved, direction=direction)

    def _repair(self, active: Tensor, descend: bool) -> None:
        """Find steps for the rows whose matrix is not positive definite and that have none.

        Without a potential the exact Newton direction of the indefinite matrix is right: it reduces the residual. With
        one, the matrix is shifted until it is positive definite, so that the direction descends.
        """
        steps = self.steps
        assert steps.indefinite is not None
        lost = active & steps.indefinite & ~steps.solved
        if not descend and self.solver.solves_indefinite:
            factor = self.solver.factor(self.at.values, rows=lost, indefinite=True)
        else:
            factor = shifted_factor(self.solver, self.at.values, self.options.weight, lost)
        found = factor.solve(-self.at.residual)
        repaired = lost & factor.ok
        direction = torch.where(repaired[:, None], found, steps.direction)
        self.steps = steps._replace(solved=steps.solved | repaired, direction=direction)

    def _shorten_directions(self) -> None:
        """Let no Newton step reach too far: by a matrix that is hardly positive definite it may be far too long."""
        reach, direction = self.system.trust_radius(), self.steps.direction
        farthest = (direction / self.options.weight).abs().amax(1, keepdim=True)
        self.steps = self.steps._replace(direction=direction * (reach / farthest.clamp_min(reach)))

    def _sort_out(
        self, active: Tensor, there: Iterate, good: Tensor, ended: Tensor, noise: Tensor, by_norm: bool
    ) -> bool:
        """Keep the new iterate in good rows and shorten the step in the others; return whether there is more to do.

        Parameters
        ----------
        ended, noise : (B,) the status of rows that keep it, see `Trial.status`, and their noise from then on.
        """
        steps, options = self.steps, self.options
        fraction = torch.ones_like(there.norm) if steps.fraction is None else steps.fraction
        indefinite = torch.zeros_like(good) if steps.indefinite is None else steps.indefinite
        going, refused = active & steps.solved, active & ~steps.solved
        may_be_rounding = negligible(lengths(steps.direction, options.weight), self.short)
        excused = torch.zeros_like(good)
        if options.unbounded:
            excused = going & ~good & within_noise(there.norm, self.tolerance, noise, may_be_rounding)
        solved = excused | (good & (ended == int(Status.CONVERGED)))
        good = good | excused
        if by_norm:
            good = good | (going & ~indefinite & self._nearer(there, fraction))
        self.at, self.tolerance = self.at.merged(there, good), torch.where(good, noise, self.tolerance)
        shorter, out = parts_next(fraction, going & ~good, options.shortest if by_norm else SHORTEST_DESCENT)
        status = torch.where(good, judged(self.status, self.at.norm, options.tolerance), self.status)
        status = torch.where(solved, int(Status.CONVERGED), status)
        given_up = status_of_given_up(self.at.norm, self.tolerance, self.iterations, may_be_rounding)
        status = torch.where(out, given_up, status)
        status = torch.where(refused & indefinite, int(Status.SINGULAR), status)
        spent = good & (status == RUNNING) & (self.iterations >= options.max_iterations)
        self.status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
        return self._begin_again(good, torch.where(good, 1.0, shorter), (indefinite | refused) & ~good, refused)

    def _begin_again(self, good: Tensor, fraction: Tensor, indefinite: Tensor, refused: Tensor) -> bool:
        """Set what rows try next, of which those that are `good` (B,) have moved; return whether some row still runs.

        Parameters
        ----------
        refused : (B,) rows that had no step.
        """
        running, solved = self.status == RUNNING, self.steps.solved
        flags = [running.any(), (running & (good | refused)).any(), (running & indefinite & ~solved).any()]
        more, renew, repairs = torch.stack(flags).tolist()
        self.steps = _NextSteps(solved, self.steps.direction, fraction, indefinite, renew, repairs)
        return more

    def _descended(self, trial: Iterate, reduced: Tensor, potential: Tensor) -> Tensor:
        """Return the rows (B,) whose potential fell; `reduced` are those whose residual norm did."""
        fraction, slope = self.steps.fraction, (self.at.residual * self.steps.direction).sum(1)
        least = ENOUGH * slope if fraction is None else ENOUGH * fraction * slope
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
        length = lengths(self.steps.direction, weight)
        return corrected_less(self.factor, trial.residual, trial.norm, length, fraction, weight)

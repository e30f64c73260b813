"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.linear import shifted_factor
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.rounds import Steps, TriedSteps, plain_round, sorted_out, steps_taken
from torchdismech.solve.search import RUNNING, DividingSearch, NewtonOptions, Root, System
from torchdismech.solve.trial import tried

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
        self._go_on_from(at)
        self.steps = _NextSteps(torch.zeros_like(at.status, dtype=torch.bool), torch.zeros_like(at.x))
        self.ends_next = False

    @property
    def progress(self) -> Progress:
        """How far the search is."""
        return Progress.of(self.at, self.status, self.iterations, self.length, self.tolerance, self.short)

    def _go_on_from(self, progress: Progress) -> None:
        self.at, self.status, self.iterations = progress.iterate, progress.status, progress.iterations
        self.length, self.tolerance, self.short = progress.length, progress.noise, progress.short

    def divides(self) -> bool:
        """Return whether rows may go on without the others: compiled code is for one number of rows."""
        return self.system.compiled(tried) is tried

    def of_rows(self, rows: Tensor, system: System) -> _LineSearch:
        """Return the search of some rows alone; they find the same Newton steps anew."""
        part = _LineSearch(system, self.progress.rows(rows), self.options.rows(rows, system.solver()))
        part.steps = self.steps.rows(rows)
        return part

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
        after, flags = recorded(self.system, self.progress, self.options, with_matrix=not self.ends_next)
        bad, more, unconverged, far = flags.tolist()
        if self.ends_next and unconverged:  # once more, as what comes next needs the matrix
            after, flags = recorded(self.system, self.progress, self.options)
            bad, more, _, far = flags.tolist()
        if bad:
            return None
        self._go_on_from(after)
        self.ends_next, self.steps = not far, self.steps.anew()
        return more

    def _tried_steps(self) -> bool:
        """Try the next step of each row; return whether some row still runs."""
        at, options, active = self.progress, self.options, self.status == RUNNING
        potential, begun = self.system.potential(at.x), self.steps.whole_newton()
        descends = potential is not None
        if self.steps.renew:
            self._find_directions(active)
        if self.steps.repairs:
            self._repair(active, descends)
        if descends:
            self._shorten_directions()
        steps = self._steps(active, begun, descends)
        taken = steps_taken(self.system, at, options, steps, with_matrix=not self.ends_next)
        # the one transfer that the host waits for in a round where all goes well
        bad, more, unconverged, far = taken.flags.tolist()
        if self.ends_next and unconverged:  # once more, as what comes next needs the matrix
            taken = steps_taken(self.system, at, options, steps)
            bad, more, _, far = taken.flags.tolist()
        if potential is not None and options.line_search:
            taken = taken._replace(good=active & steps.solved & self._descended(taken, potential))
            bad = bool((active & ~taken.good).any())
        if bad:
            self.ends_next = False
            return self._sort_out(taken, by_norm=not descends)
        self._go_on_from(taken.after)
        self.ends_next, self.steps = not far, self.steps.anew()
        return more

    def _steps(self, active: Tensor, begun: Tensor | None, descends: bool) -> Steps:
        """Return the steps that the rows that run, `active` (B,), try now.

        Parameters
        ----------
        begun : (B,) rows that try the whole of a Newton step; None: all.
        """
        following = self.steps
        indefinite = torch.zeros_like(active) if following.indefinite is None else following.indefinite
        # a step by an indefinite matrix tells how near the root is, too, where that matrix is not shifted
        exact = self.solver.solves_indefinite and not descends
        return Steps(
            following.direction,
            following.solved,
            self.factor,
            indefinite,
            active if begun is None else active & begun,
            following.fraction,
            following.whole() if exact else following.whole_newton(),
        )

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

    def _sort_out(self, taken: TriedSteps, by_norm: bool) -> bool:
        """Keep where good steps lead and shorten the others; return whether some row still runs.

        Parameters
        ----------
        by_norm : see `rounds.sorted_out`.
        """
        options = self.options if by_norm else dataclasses.replace(self.options, shortest=SHORTEST_DESCENT)
        after, fraction, refused = sorted_out(taken, self.progress, options, by_norm)
        indefinite = taken.steps.indefinite
        self._go_on_from(after)
        self.status = torch.where(refused & indefinite, int(Status.SINGULAR), after.status)
        running = self.status == RUNNING
        flags = [running.any(), (running & (fraction == 1)).any(), (running & refused).any()]
        more, renew, repairs = torch.stack(flags).tolist()
        indefinite = refused | (indefinite & (fraction < 1))  # those that have moved are at another matrix
        self.steps = _NextSteps(self.steps.solved, self.steps.direction, fraction, indefinite, renew, repairs)
        return more

    def _descended(self, taken: TriedSteps, potential: Tensor) -> Tensor:
        """Return the rows (B,) whose potential fell; `potential` is that before the steps."""
        fraction, slope = self.steps.fraction, (self.at.residual * self.steps.direction).sum(1)
        least = ENOUGH * slope if fraction is None else ENOUGH * fraction * slope
        norm, there = taken.after.norm, self.system.potential(taken.after.x)
        assert there is not None
        # near a minimum rounding hides the descent of the potential; there a falling residual is the sharper test
        near = (-slope < HIDDEN * (potential.abs() + TINY)) | (norm <= self.tolerance)
        return ((there <= potential + least) | (taken.good & near)) & torch.isfinite(norm)

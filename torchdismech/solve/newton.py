"""Newton's method for a batch: each row has its own convergence, line search and status."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.linear import shifted_factor
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.rounds import PlainRound, Steps, TriedSteps, accepted_or_shortened, plain_round, steps_taken
from torchdismech.solve.search import RUNNING, DividingSearch, NewtonOptions, Root, System
from torchdismech.solve.trial import tried

__all__ = ["ENOUGH", "HIDDEN", "newton", "resumed"]

# Fraction of a step below which a line search on the potential gives up. It is smaller than `SHORTEST` because nearly
# singular matrices give steps that are far too long.
SHORTEST_DESCENT = 2.0**-20
ENOUGH = 1e-4  # least decrease of the potential, relative to what its slope predicts, with which a step is accepted
HIDDEN = 1e-8  # predicted decrease relative to the potential below which rounding hides it
TINY = 1e-300  # J, added so that the comparison also works where the potential is zero

Outcome = TypeVar("Outcome", PlainRound, TriedSteps)


def newton(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None = None) -> Root:
    """Return x with |weight * r(x)| <= tolerance for each row, or as near to the root as rounding permits.

    A Newton step is taken whole where it reduces the residual's norm. Where it does not, it may still be a good step,
    because stiff directions make the norm rise before it falls. So it is also taken if the simplified Newton correction
    that would come next, with the same matrix, is shorter than the step. If neither test holds, a quarter of the step
    is tried, and so on until one of them does.

    A row whose residual is within the rounding noise counts as solved once its Newton steps are short; see `noise`.
    Where the system has a potential, steps are accepted by its decrease instead.

    Parameters
    ----------
    x : (B, m) first iterate.
    running : (B,) rows to solve; None: all. The others keep x.
    """
    return _LineSearch(system, begun(system, x, options, running), options).root()


def resumed(system: System, at: Progress, options: NewtonOptions, fraction: Tensor | None = None) -> Root:
    """Return the result of `newton` continued from a search in progress.

    Parameters
    ----------
    at : the state of that search.
    fraction : (B,) fraction of its Newton step that each row tries next; None: all rows try the whole step.
    """
    search = _LineSearch(system, at, options)
    search.steps = search.steps._replace(fraction=fraction)
    return search.root()


class _NextSteps(NamedTuple):
    """The step that each row tries next from its iterate: its Newton step, a part of it, or a repaired step.

    A row whose Cholesky factorization failed gets a *repaired* step: by an indefinite factorization of its matrix, or
    by the matrix shifted until it is positive definite.

    Attributes
    ----------
    solved : (B,) rows that have a step from their iterate.
    direction : (B, m) these steps, whole.
    fraction : (B,) fraction of its step that each row tries next; None: all rows try the whole step.
    indefinite : (B,) rows whose matrix is known not to be positive definite; None: none is.
    needs_newton_steps : whether some running row needs a new factorization and Newton step.
    needs_repaired_steps : whether some running row needs a repaired step: `indefinite`, and not `solved`.
    """

    solved: Tensor
    direction: Tensor
    fraction: Tensor | None = None
    indefinite: Tensor | None = None
    needs_newton_steps: bool = True
    needs_repaired_steps: bool = False

    def after_moving(self) -> _NextSteps:
        """Return the next steps after all rows have moved: whole Newton steps, not found yet."""
        return _NextSteps(self.solved, self.direction)

    def rows(self, rows: Tensor) -> _NextSteps:
        """Return the next steps of the rows with indices (R,); their Newton steps will be computed again."""
        fraction = None if self.fraction is None else self.fraction[rows]
        indefinite = None if self.indefinite is None else self.indefinite[rows]
        return _NextSteps(
            self.solved[rows],
            self.direction[rows],
            fraction,
            indefinite,
            needs_repaired_steps=self.needs_repaired_steps,
        )

    @property
    def all_new_newton_steps(self) -> bool:
        """Whether all running rows try a whole, new Newton step next."""
        return (
            self.needs_newton_steps
            and not self.needs_repaired_steps
            and self.fraction is None
            and self.indefinite is None
        )

    def whole(self) -> Tensor | None:
        """Return the rows (B,) that try their whole step, Newton or repaired; None: all."""
        return None if self.fraction is None else self.fraction == 1

    def whole_newton(self) -> Tensor | None:
        """Return the rows (B,) that try a whole Newton step, not a repaired one; None: all."""
        whole = self.whole()
        if self.indefinite is None:
            return whole
        return ~self.indefinite if whole is None else whole & ~self.indefinite


class _LineSearch(DividingSearch):
    """Newton steps with a line search, each row at its own pace.

    A round tries one point in every row that runs: the whole step from a new iterate, a quarter of the step that failed
    there, or a repaired step where the matrix was not positive definite (see `_NextSteps`). So no row waits for
    another's line search, and a batch takes as many evaluations as its slowest row alone.

    Attributes
    ----------
    steps : the steps that the rows try next.
    factor : factorization that gave the last Newton steps.
    ends_next : whether the next round is expected to be the last, so that it need not evaluate the matrix.
    length, short : (B,) as in `Progress`; `tolerance` is its `noise`.
    """

    def __init__(self, system: System, at: Progress, options: NewtonOptions):
        self.system, self.options, self.solver = system, options, options.solver
        self._set_progress(at)
        self.steps = _NextSteps(torch.zeros_like(at.status, dtype=torch.bool), torch.zeros_like(at.x))
        self.ends_next = False

    @property
    def progress(self) -> Progress:
        """The present state of the search, as tensors."""
        return Progress.of(self.at, self.status, self.iterations, self.length, self.tolerance, self.short)

    def _set_progress(self, progress: Progress) -> None:
        self.at, self.status, self.iterations = progress.iterate, progress.status, progress.iterations
        self.length, self.tolerance, self.short = progress.length, progress.noise, progress.short

    def divides(self) -> bool:
        """Return whether the search may go on with fewer rows: only without compiled code, which has a fixed batch."""
        return self.system.compiled(tried) is tried

    def of_rows(self, rows: Tensor, system: System) -> _LineSearch:
        """Return a search of the rows with indices (R,) alone, which computes their Newton steps again."""
        part = _LineSearch(system, self.progress.rows(rows), self.options.rows(rows, system.solver()))
        part.steps = self.steps.rows(rows)
        return part

    def round(self) -> bool:
        """Try a step in each row that runs; return whether some row still runs."""
        more = self._whole_steps()
        return self._tried_steps() if more is None else more

    def _whole_steps(self) -> bool | None:
        """Take a round of whole Newton steps by replaying a recording; return whether some row still runs.

        None, with the search unchanged, where there is no recording of such a round, or where the whole step is not to
        be taken in every row; `_tried_steps` then takes the round.
        """
        recorded_round = self.system.recording(plain_round)
        if recorded_round is None or not self.steps.all_new_newton_steps or self.system.descending:
            return None
        take_round = partial(recorded_round, self.system, self.progress, self.options)
        outcome, (bad, more, _, far) = self._outcome_and_flags(take_round)
        if bad:
            return None
        self._go_on_from(outcome.after, far)
        return more

    def _tried_steps(self) -> bool:
        """Take a round with the next step of each running row, of whatever kind; return whether some row still runs."""
        at, options, active = self.progress, self.options, self.status == RUNNING
        potential, begun = self.system.potential(at.x), self.steps.whole_newton()
        descends = potential is not None
        if self.steps.needs_newton_steps:
            self._find_newton_steps(active, descends)
        if self.steps.needs_repaired_steps:
            self._find_repaired_steps(active, descends)
        if descends:
            self._shorten_directions()
        steps = self._steps(active, begun, descends)
        take_round = partial(steps_taken, self.system, at, options, steps)
        outcome, (bad, more, _, far) = self._outcome_and_flags(take_round)
        if potential is not None and options.line_search:
            outcome = outcome._replace(good=active & steps.solved & self._descended(outcome, potential))
            bad = bool((active & ~outcome.good).any())
        if bad:
            self.ends_next = False
            return self._accept_or_shorten(outcome, by_norm=not descends)
        self._go_on_from(outcome.after, far)
        return more

    def _outcome_and_flags(self, take_round: Callable[..., Outcome]) -> tuple[Outcome, list[bool]]:
        """Return the outcome of a round and its flags, see `Trial`.

        A round that is expected to be the last is taken without the matrix, and repeated with it where it is not.
        """
        outcome = take_round(with_matrix=not self.ends_next)
        # in a round whose steps are all accepted this is the only transfer that the host waits for
        _, _, unconverged, _ = flags = outcome.flags.tolist()
        if self.ends_next and unconverged:
            outcome = take_round(with_matrix=True)
            flags = outcome.flags.tolist()
        return outcome, flags

    def _go_on_from(self, after: Progress, far: bool) -> None:
        """Take the state of the search after a round in which all rows took their steps; `far` is a flag of `Trial`."""
        self._set_progress(after)
        self.ends_next, self.steps = not far, self.steps.after_moving()

    def _steps(self, active: Tensor, begun: Tensor | None, descends: bool) -> Steps:
        """Return the steps to try in this round.

        Parameters
        ----------
        active : (B,) rows that run.
        begun : (B,) rows that try a whole Newton step, which counts as an iteration; None: all.
        descends : whether steps descend a potential, so that indefinite matrices are shifted.
        """
        next_steps = self.steps
        indefinite = torch.zeros_like(active) if next_steps.indefinite is None else next_steps.indefinite
        # an indefinite matrix that is not shifted gives an exact Newton step, whose length tells how near the root is
        exact = self.solver.solves_indefinite and not descends
        return Steps(
            next_steps.direction,
            next_steps.solved,
            self.factor,
            indefinite,
            active if begun is None else active & begun,
            next_steps.fraction,
            next_steps.whole() if exact else next_steps.whole_newton(),
        )

    def _find_newton_steps(self, active: Tensor, descend: bool) -> None:
        """Factor the matrices and find the Newton steps; rows known to be indefinite keep the step that they have.

        Solvers that do not tell that a matrix is indefinite may give steps up the potential: these count as unsolved.
        """
        steps = self.steps
        rows = active if steps.indefinite is None else active & ~steps.indefinite
        self.factor = self.solver.factor(self.at.values, rows=rows)
        direction = self.factor.solve(-self.at.residual)
        solved = rows & self.factor.ok  # iterative solvers set `ok` only in `solve`
        if descend:
            solved = solved & ~((self.at.residual * direction).sum(1) > 0)
        if steps.indefinite is not None:
            direction = torch.where(solved[:, None], direction, steps.direction)
            solved = solved | (steps.solved & steps.indefinite)
        self.steps = steps._replace(solved=solved, direction=direction)

    def _find_repaired_steps(self, active: Tensor, descend: bool) -> None:
        """Find steps for the running rows whose matrix is not positive definite and that have no step yet.

        Without a potential the exact Newton direction of the indefinite matrix is right, because it reduces the
        residual. With a potential, or with a solver for definite matrices only, the matrix is shifted until it is
        positive definite, so that the direction descends.
        """
        steps = self.steps
        assert steps.indefinite is not None
        unrepaired, rhs = active & steps.indefinite & ~steps.solved, -self.at.residual
        if not descend and self.solver.solves_indefinite:
            factor = self.solver.factor(self.at.values, rows=unrepaired, indefinite=True)
        else:
            factor = shifted_factor(self.solver, self.at.values, self.options.weight, unrepaired, rhs=rhs)
        repaired_direction = factor.solve(rhs)
        repaired = unrepaired & factor.ok
        direction = torch.where(repaired[:, None], repaired_direction, steps.direction)
        self.steps = steps._replace(solved=steps.solved | repaired, direction=direction)

    def _shorten_directions(self) -> None:
        """Shorten steps beyond the trust radius to it: barely positive definite matrices may give far too long ones."""
        reach, direction = self.system.trust_radius(), self.steps.direction
        farthest = (direction / self.options.weight).abs().amax(1, keepdim=True)
        self.steps = self.steps._replace(direction=direction * (reach / farthest.clamp_min(reach)))

    def _accept_or_shorten(self, outcome: TriedSteps, by_norm: bool) -> bool:
        """Accept the good steps and shorten or end the other rows; return whether some row still runs.

        Parameters
        ----------
        by_norm : whether steps are judged by the residual's norm, and not by a potential.
        """
        options = self.options if by_norm else dataclasses.replace(self.options, shortest=SHORTEST_DESCENT)
        after, fraction, refused = accepted_or_shortened(outcome, self.progress, options, by_norm)
        indefinite = outcome.steps.indefinite
        self._set_progress(after)
        self.status = torch.where(refused & indefinite, int(Status.SINGULAR), after.status)
        running = self.status == RUNNING
        flags = [running.any(), (running & (fraction == 1)).any(), (running & refused).any()]
        more, needs_newton_steps, needs_repaired_steps = torch.stack(flags).tolist()
        indefinite = refused | (indefinite & (fraction < 1))  # rows that moved have a new matrix, which may be definite
        self.steps = _NextSteps(
            self.steps.solved, self.steps.direction, fraction, indefinite, needs_newton_steps, needs_repaired_steps
        )
        return more

    def _descended(self, outcome: TriedSteps, potential: Tensor) -> Tensor:
        """Return the rows (B,) whose step decreased the potential sufficiently (Armijo's condition).

        Where rounding hides the decrease, or the residual is within its noise, a step that is good by the residual's
        norm is accepted, too.

        Parameters
        ----------
        potential : (B,) before the steps.
        """
        fraction, slope = self.steps.fraction, (self.at.residual * self.steps.direction).sum(1)
        required = ENOUGH * slope if fraction is None else ENOUGH * fraction * slope
        norm, potential_after = outcome.after.norm, self.system.potential(outcome.after.x)
        assert potential_after is not None
        # near a minimum, where rounding hides changes of the potential, the norm of the residual is the sharper test
        hidden = (-slope < HIDDEN * (potential.abs() + TINY)) | (norm <= self.tolerance)
        return ((potential_after <= potential + required) | (outcome.good & hidden)) & torch.isfinite(norm)

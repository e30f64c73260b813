"""Rounds of Newton's method as functions of tensors, which run directly or inside recordings.

A round tries the step of each row, or a part of it (`steps_taken`). If the step of some row is no good one, the rows
are treated one by one (`accepted_or_shortened`): each takes its step, tries a shorter part next, or ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.linear import Factor
from torchdismech.solve.noise import lengths, negligible
from torchdismech.solve.progress import Progress
from torchdismech.solve.search import RUNNING, Iterate, NewtonOptions, System
from torchdismech.solve.trial import Measure, Move, Trial, tried

__all__ = [
    "PlainRound",
    "Steps",
    "TriedSteps",
    "plain_round",
    "accepted_or_shortened",
    "steps_taken",
    "tried_steps",
]

SHORTENED = 0.25  # factor of the fraction tried next; with 0.5, searches with friction take 1.5 times as many rounds


class Steps(NamedTuple):
    """The steps that rows try from their iterates.

    Attributes
    ----------
    direction : (B, m) the whole steps.
    solved : (B,) rows that have a step.
    factor : factorization of the matrices that gave the Newton steps.
    indefinite : (B,) rows whose matrix is known to be indefinite.
    begun : (B,) running rows that try a new, whole Newton step, which counts as an iteration.
    fraction : (B,) fraction of its step that each row tries; None: all rows try the whole step.
    exact : (B,) rows whose step length tells how near the root is, as that of a whole Newton step does; None: all.
    """

    direction: Tensor
    solved: Tensor
    factor: Factor
    indefinite: Tensor
    begun: Tensor
    fraction: Tensor | None = None
    exact: Tensor | None = None

    @property
    def tried(self) -> Tensor:
        """The changes (B, m) of x that are tried: `direction`, times `fraction` if there is one."""
        return self.direction if self.fraction is None else self.fraction[:, None] * self.direction


class TriedSteps(NamedTuple):
    """The outcome of a round before it is decided which rows take their steps.

    Attributes
    ----------
    steps : the steps that were tried.
    after : state of the search if every row takes its step.
    flags : (4,) as of `Trial`.
    good : (B,) rows whose step is accepted; see `Trial`.
    length : (B,) of the tried parts of the steps.
    """

    steps: Steps
    after: Progress
    flags: Tensor
    good: Tensor
    length: Tensor


class PlainRound(NamedTuple):
    """The outcome of a round of whole Newton steps: `after` and `flags` as of `TriedSteps`."""

    after: Progress
    flags: Tensor


def plain_round(system: System, at: Progress, options: NewtonOptions, with_matrix: bool = True) -> PlainRound:
    """Return the state of a search after the whole Newton step of each row, and the flags (4,) of `Trial`.

    If the first flag holds, some row must not take its whole step: discard the returned state and go on by
    `newton.resumed`, or by another round, from `at`.
    """
    steps = tried_steps(system, at, options, with_matrix=with_matrix)
    return PlainRound(steps.after, steps.flags)


def tried_steps(
    system: System, at: Progress, options: NewtonOptions, fraction: Tensor | None = None, with_matrix: bool = True
) -> TriedSteps:
    """Factor the matrices and try Newton steps: whole ones in all rows, or a `fraction` (B,) of each.

    It reads no number on the host, so a CUDA graph can hold it.

    Parameters
    ----------
    at : state of the search before the round.
    with_matrix : see `steps_taken`.
    """
    active = at.status == RUNNING
    factor, indefinite = options.solver.factor_any_sign(at.values, rows=active)
    direction, whole = factor.solve(-at.residual), None if fraction is None else fraction == 1
    begun = active if whole is None else active & whole
    steps = Steps(direction, factor.ok, factor, indefinite, begun, fraction, whole)
    return steps_taken(system, at, options, steps, with_matrix)


def steps_taken(
    system: System, at: Progress, options: NewtonOptions, steps: Steps, with_matrix: bool = True
) -> TriedSteps:
    """Try given steps and judge them; it reads no number on the host.

    Parameters
    ----------
    at : state of the search before the round.
    with_matrix : whether to evaluate the matrix at the new iterates; if not, `after.values` are still those of `at`.
    """
    short = at.short
    if steps.exact is not None:
        # other steps tell how near the root is only once they are as small as rounding errors
        short = torch.where(steps.exact, short, math.sqrt(torch.finfo(short.dtype).eps) * short)
    iterations = at.iterations + steps.begun
    spent = iterations >= options.max_iterations
    of_rows = (at.status, spent, options.tolerance, at.length, at.noise, short)
    move = Move(at.x, at.norm, steps.tried, steps.solved, *of_rows)
    judge = system.compiled(tried)
    # compiled code computes the noise in any case
    with_noise = with_matrix and (options.noise_at_each_iterate or judge is not tried)
    trial = judge(system, move, Measure.of(options), with_matrix=with_matrix, with_noise=with_noise)
    values = at.values if trial.values is None else trial.values
    iterate = Iterate(trial.x, trial.residual, values, trial.norm)
    noise = _noise_after(trial, at.noise, options)
    newton_length = trial.length if steps.exact is None else torch.where(steps.exact, trial.length, torch.inf)
    after = Progress.of(iterate, trial.status, iterations, newton_length, noise, at.short)
    return TriedSteps(steps, after, trial.flags, trial.good, trial.length)


def accepted_or_shortened(
    round_outcome: TriedSteps, at: Progress, options: NewtonOptions, by_norm: bool = True
) -> tuple[Progress, Tensor, Tensor]:
    """Return the state of a search after a round in which some steps are no good ones, and the next fractions.

    A row takes its step if it is good, or if the simplified Newton correction that would follow, by the same
    factorization, is shorter than the step. Otherwise it tries a quarter of the present fraction next, or ends where
    that is too small. Rows without a step stay where they are.

    Parameters
    ----------
    round_outcome : of the round, with the matrices at the new iterates.
    at : state of the search before the round.
    by_norm : whether steps are judged by the residual's norm; only then can a correction accept a step.

    Returns
    -------
    progress : state of the search after the round.
    fraction : (B,) fraction of its step that each row tries next; 1 where that is a new step.
    refused : (B,) rows that ran and had no step.
    """
    steps, after, active = round_outcome.steps, round_outcome.after, at.status == RUNNING
    stepped, refused = active & steps.solved, active & ~steps.solved
    fraction, length = torch.ones_like(at.norm), round_outcome.length
    if steps.fraction is not None:
        fraction, length = steps.fraction, lengths(steps.direction, options.weight)
    may_be_rounding = negligible(length, at.short)
    good, within_noise = round_outcome.good, torch.zeros_like(stepped)
    if options.noise_at_each_iterate:
        within = after.norm <= torch.minimum(at.noise, after.noise)  # the noise of both ends of the step
        within_noise = stepped & ~good & within & may_be_rounding
        good = good | within_noise
    if by_norm:  # except with indefinite matrices: their corrections do not tell how near the root is
        nearer = _corrected_less(steps.factor, after.residual, after.norm, length, fraction, options.weight)
        good = good | (stepped & ~steps.indefinite & nearer)
    failed = stepped & ~good
    shorter = SHORTENED * fraction
    given_up = failed & (shorter < options.shortest)
    # a row that gives up is at the root where rounding hides the rest, unless no step has improved its iterate yet
    hidden = (at.norm <= at.noise) & (after.iterations > 1) & may_be_rounding
    ended = torch.where(hidden, int(Status.CONVERGED), int(Status.LINE_SEARCH_FAILED))
    kept = at._replace(
        status=torch.where(given_up, ended, at.status),
        iterations=after.iterations,
        length=torch.where(refused, at.length, after.length),
    )
    after = after._replace(status=torch.where(within_noise, int(Status.CONVERGED), after.status))
    return after.merged(kept, failed | refused), torch.where(failed & ~given_up, shorter, 1.0), refused


def _corrected_less(
    factor: Factor, residual: Tensor, norm: Tensor, length: Tensor, fraction: Tensor, weight: Tensor
) -> Tensor:
    """Return the rows (B,) whose simplified Newton correction, by the same factorization, is shorter than their step.

    This is Deuflhard's natural monotonicity test: |correction| < (1 - fraction / 2) |step|.

    Parameters
    ----------
    residual, norm : residual (B, m) and its norm (B,) after the step.
    length : (B,) of the whole Newton step, of which a `fraction` was taken.
    """
    correction = lengths(factor.solve(-residual), weight)
    return (correction < (1 - 0.5 * fraction) * length) & factor.ok & torch.isfinite(norm)


def _noise_after(trial: Trial, noise: Tensor, options: NewtonOptions) -> Tensor:
    """Return `Progress.noise` (B,) after a trial.

    That is the noise at the new iterate with `noise_at_each_iterate`, where the trial has computed it; else `noise`,
    that before.
    """
    if not options.noise_at_each_iterate or trial.noise is None:
        return noise
    return torch.maximum(options.tolerance, trial.noise)

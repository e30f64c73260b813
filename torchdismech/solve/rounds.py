"""Rounds of Newton's method as functions of tensors, which recordings hold, too.

A round tries the step of each row, or a part of it (`steps_taken`); where that raises the norm of some row its steps
are sorted out (`sorted_out`).
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
    "Steps",
    "TriedSteps",
    "plain_round",
    "sorted_out",
    "steps_taken",
    "tried_steps",
]

SHORTENED = 0.25  # part of a step that is tried next; halves take half as many rounds more where friction sets in


class Steps(NamedTuple):
    """The steps that rows try from their iterates.

    Attributes
    ----------
    direction : (B, m) the whole steps.
    solved : (B,) rows that have a step.
    factor : of the matrices that gave the Newton steps among them.
    indefinite : (B,) rows whose matrix is known to be indefinite.
    begun : (B,) rows that run and have not tried a part of their Newton step yet.
    fraction : (B,) of its step that a row tries; None: all rows try the whole.
    telling : (B,) rows whose step tells how near the root is, as whole Newton steps do; None: all.
    """

    direction: Tensor
    solved: Tensor
    factor: Factor
    indefinite: Tensor
    begun: Tensor
    fraction: Tensor | None = None
    telling: Tensor | None = None

    @property
    def tried(self) -> Tensor:
        """The parts (B, m) of the steps that are tried."""
        return self.direction if self.fraction is None else self.fraction[:, None] * self.direction


class TriedSteps(NamedTuple):
    """Steps, and how they went.

    Attributes
    ----------
    steps : what was tried.
    after : the search, if all rows keep where the steps lead.
    flags : (4,) as of `Trial`.
    good : (B,) rows whose step is to be taken; see `Trial`.
    length : (B,) of what was tried.
    """

    steps: Steps
    after: Progress
    flags: Tensor
    good: Tensor
    length: Tensor


def plain_round(
    system: System, at: Progress, options: NewtonOptions, with_matrix: bool = True
) -> tuple[Progress, Tensor]:
    """Return a search after the whole Newton step of each row, and flags that say whether that was the step to take.

    If the first flag holds what is returned is of no use: go on by `resumed` from before this round.
    """
    steps = tried_steps(system, at, options, with_matrix=with_matrix)
    return steps.after, steps.flags


def tried_steps(
    system: System, at: Progress, options: NewtonOptions, fraction: Tensor | None = None, with_matrix: bool = True
) -> TriedSteps:
    """Return what Newton steps lead to: of all rows the whole ones, or a `fraction` (B,) of each.

    It reads no number on the host, so a CUDA graph can hold it.

    Parameters
    ----------
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
    """Return what some steps lead to; it reads no number on the host.

    Parameters
    ----------
    with_matrix : without, the values stay those of the iterate before.
    """
    short = at.short
    if steps.telling is not None:
        short = torch.where(steps.telling, short, _rounding_of_parts(short))
    iterations = at.iterations + steps.begun
    spent = iterations >= options.max_iterations
    of_rows = (at.status, spent, options.tolerance, at.length, at.noise, short)
    move = Move(at.x, at.norm, steps.tried, steps.solved, *of_rows)
    found_by = system.compiled(tried)
    with_noise = with_matrix and (options.unbounded or found_by is not tried)  # compiled code finds it always
    trial = found_by(system, move, Measure.of(options), with_matrix=with_matrix, with_noise=with_noise)
    values = at.values if trial.values is None else trial.values
    there = Iterate(trial.x, trial.residual, values, trial.norm)
    noise = _noise_after(trial, at.noise, options)
    of_newtons = trial.length if steps.telling is None else torch.where(steps.telling, trial.length, torch.inf)
    after = Progress.of(there, trial.status, iterations, of_newtons, noise, at.short)
    return TriedSteps(steps, after, trial.flags, trial.good, trial.length)


def sorted_out(
    taken: TriedSteps, at: Progress, options: NewtonOptions, by_norm: bool = True
) -> tuple[Progress, Tensor, Tensor]:
    """Return a search after steps of which some are no good ones, and what each row tries next.

    A row keeps where its step leads if that is good, or by the correction that would come next; else it tries a quarter
    of what it tried, or comes to its end. Rows without a step stay where they are.

    Parameters
    ----------
    taken : the steps, and how they went; with the next matrix.
    at : where the steps began.
    by_norm : whether the norm says which steps are good, so that corrections by the same factor tell more.

    Returns
    -------
    progress
    fraction : (B,) of its step that a row tries next, 1 where that is a new one.
    refused : (B,) rows that ran and had no step.
    """
    steps, after, active = taken.steps, taken.after, at.status == RUNNING
    going, refused = active & steps.solved, active & ~steps.solved
    fraction, length = torch.ones_like(at.norm), taken.length
    if steps.fraction is not None:
        fraction, length = steps.fraction, lengths(steps.direction, options.weight)
    may_be_rounding = negligible(length, at.short)
    good, excused = taken.good, torch.zeros_like(going)
    if options.unbounded:
        excused = going & ~good & _within_noise(after.norm, at.noise, after.noise, may_be_rounding)
        good = good | excused
    if by_norm:  # an indefinite matrix does not tell how near the root is
        nearer = _corrected_less(steps.factor, after.residual, after.norm, length, fraction, options.weight)
        good = good | (going & ~steps.indefinite & nearer)
    failed = going & ~good
    shorter, out = _parts_next(fraction, failed, options.shortest)
    ended = _status_of_given_up(at.norm, at.noise, after.iterations, may_be_rounding)
    stays = at._replace(
        status=torch.where(out, ended, at.status),
        iterations=after.iterations,
        length=torch.where(refused, at.length, after.length),
    )
    after = after._replace(status=torch.where(excused, int(Status.CONVERGED), after.status))
    return after.merged(stays, failed | refused), torch.where(failed & ~out, shorter, 1.0), refused


def _corrected_less(
    factor: Factor, residual: Tensor, norm: Tensor, length: Tensor, fraction: Tensor | float, weight: Tensor
) -> Tensor:
    """Return the rows (B,) from where the next step by the same factor is shorter than the one that led there.

    Parameters
    ----------
    residual, norm : there.
    length : (B,) of the whole Newton step, of which a `fraction` was taken.
    """
    correction = lengths(factor.solve(-residual), weight)
    return (correction < (1 - 0.5 * fraction) * length) & factor.ok & torch.isfinite(norm)


def _rounding_of_parts(short: Tensor) -> Tensor:
    """Return the length (B,) up to which other steps than whole Newton steps are short.

    They tell how near the root is only once they are rounding themselves.
    """
    return math.sqrt(torch.finfo(short.dtype).eps) * short


def _noise_after(trial: Trial, noise: Tensor, options: NewtonOptions) -> Tensor:
    """Return the noise (B,) of `Progress` after a trial; `noise` is that before it."""
    if not options.unbounded or trial.noise is None:
        return noise
    return torch.maximum(options.tolerance, trial.noise)


def _within_noise(found: Tensor, before: Tensor, after: Tensor, may_be_rounding: Tensor) -> Tensor:
    """Return the rows (B,) that a step which may be rounding has left within the noise at both of its ends.

    Parameters
    ----------
    found : norm of the residual after the step.
    before, after : the noise at its ends.
    """
    return (found <= torch.minimum(before, after)) & may_be_rounding


def _parts_next(fraction: Tensor, failed: Tensor, shortest: float) -> tuple[Tensor, Tensor]:
    """Return what part of its step each row tries next (B,), once those failed that did, and which rows give up."""
    shorter = torch.where(failed, SHORTENED * fraction, fraction)
    return shorter, failed & (shorter < shortest)


def _status_of_given_up(norm: Tensor, noise: Tensor, iterations: Tensor, may_be_rounding: Tensor) -> Tensor:
    """Return the status (B,) with which rows end that find no part of their step to take.

    Noise excuses only rows that have moved: an iterate that Newton's method has improved.
    """
    hidden = (norm <= noise) & (iterations > 1) & may_be_rounding
    return torch.where(hidden, int(Status.CONVERGED), int(Status.LINE_SEARCH_FAILED))

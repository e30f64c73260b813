"""Rounds of Newton's method as functions of tensors, which recordings hold, and the rules that sort out their steps.

A round tries the Newton step of each row, or a part of it (`tried_steps`); where that raises the norm of some row its
steps are sorted out (`sorted_out`). The search without recordings, `newton`, goes by the same rules.
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
    "RoundFlags",
    "SortedFlags",
    "TriedSteps",
    "corrected_less",
    "noise_after",
    "parts_next",
    "plain_round",
    "rounding_of_parts",
    "sorted_out",
    "status_of_given_up",
    "tried_steps",
    "within_noise",
]

SHORTENED = 0.25  # part of a step that is tried next; halves take half as many rounds more where friction sets in


class RoundFlags(NamedTuple):
    """What is said of the rows of a round of whole steps: the flags of `tried` (see `Trial.flags`), and one more.

    Attributes
    ----------
    bad, more, unconverged, far : whether some row that runs is not good; has more to do; has not converged; has more to
        do and is not expected to converge in the next round.
    lost : whether some row has come to its end without having converged.
    """

    bad: bool
    more: bool
    unconverged: bool
    far: bool
    lost: bool


class SortedFlags(NamedTuple):
    """What is said of the rows of a round that was sorted out.

    Attributes
    ----------
    parts : whether some row tries a part of its step next.
    left : whether some row needs another factor; then all of the round is of no use.
    more, far, lost : as of `RoundFlags`; each row that has more to do counts as far.
    """

    parts: bool
    more: bool
    left: bool
    far: bool
    lost: bool


class TriedSteps(NamedTuple):
    """The Newton step of each row, or a part of it, and how it went.

    Attributes
    ----------
    after : the search, if all rows keep where the steps lead.
    flags : (5,) as of `RoundFlags`.
    good : (B,) rows whose step is to be taken; see `Trial`.
    length : (B,) of the whole steps.
    factor, indefinite : of the matrices that gave the steps, and which of these are known to be indefinite (B,).
    """

    after: Progress
    flags: Tensor
    good: Tensor
    length: Tensor
    factor: Factor
    indefinite: Tensor


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
    with_matrix : without, the values stay those of the iterate before.
    """
    active = at.status == RUNNING
    factor, indefinite = options.solver.factor_any_sign(at.values, rows=active)
    step, short, begins = factor.solve(-at.residual), at.short, active
    length = lengths(step, options.weight)
    if fraction is not None:
        begins, step = active & (fraction == 1), fraction[:, None] * step
        short = torch.where(fraction == 1, short, rounding_of_parts(short))
    iterations = at.iterations + begins
    spent = iterations >= options.max_iterations
    of_rows = (at.status, spent, options.tolerance, at.length, at.noise, short)
    move = Move(at.x, at.norm, step, active & factor.ok, *of_rows)
    found_by = system.compiled(tried)
    with_noise = with_matrix and (options.unbounded or found_by is not tried)
    trial = found_by(system, move, Measure.of(options), with_matrix=with_matrix, with_noise=with_noise)
    lost = ((trial.status != RUNNING) & (trial.status != int(Status.CONVERGED))).any()
    values = at.values if trial.values is None else trial.values
    there = Iterate(trial.x, trial.residual, values, trial.norm)
    noise = noise_after(trial, at.noise, options)
    of_newtons = trial.length if fraction is None else torch.where(fraction == 1, trial.length, torch.inf)
    after = Progress.of(there, trial.status, iterations, of_newtons, noise, at.short)
    return TriedSteps(after, torch.cat([trial.flags, lost[None]]), trial.good, length, factor, indefinite)


def rounding_of_parts(short: Tensor) -> Tensor:
    """Return the length (B,) up to which other steps than whole Newton steps are short.

    They tell how near the root is only once they are rounding themselves.
    """
    return math.sqrt(torch.finfo(short.dtype).eps) * short


def sorted_out(
    steps: TriedSteps, at: Progress, fraction: Tensor, options: NewtonOptions
) -> tuple[Progress, Tensor, Tensor]:
    """Return a search after steps of which some are no good ones, what part of its step each row tries next, and flags.

    A row keeps where its step leads if that is good by the norm, or by the correction that would come next; else it
    tries a quarter of the step, or comes to its end. It is what `newton` does without recordings.

    Parameters
    ----------
    steps : with the next matrix.
    at : where they began.
    fraction : (B,) of the whole steps.

    Returns
    -------
    progress, fraction
    flags : (5,) as of `SortedFlags`.
    """
    after, active = steps.after, at.status == RUNNING
    going = active & steps.factor.ok
    may_be_rounding = negligible(steps.length, at.short)
    excused = torch.zeros_like(going)
    if options.unbounded:
        excused = going & ~steps.good & within_noise(after.norm, at.noise, after.noise, may_be_rounding)
    asked = going & ~(steps.good | excused | steps.indefinite)
    nearer = corrected_less(steps.factor, after.residual, after.norm, steps.length, fraction, options.weight)
    failed = going & ~(steps.good | excused | (asked & nearer))
    shorter, out = parts_next(fraction, failed, options.shortest)
    ended = status_of_given_up(at.norm, at.noise, after.iterations, may_be_rounding)
    stays = at._replace(status=torch.where(out, ended, at.status), iterations=after.iterations, length=after.length)
    after = after._replace(status=torch.where(excused, int(Status.CONVERGED), after.status)).merged(stays, failed)
    fraction = torch.where(failed & ~out, shorter, 1.0)
    running = after.status == RUNNING
    more, lost = running.any(), (~running & (after.status != int(Status.CONVERGED))).any()
    flags = [(fraction < 1).any(), more, (active & ~steps.factor.ok).any(), more, lost]
    return after, fraction, torch.stack(flags)


def corrected_less(
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


def noise_after(trial: Trial, noise: Tensor, options: NewtonOptions) -> Tensor:
    """Return the noise (B,) of `Progress` after a trial; `noise` is that before it."""
    if not options.unbounded or trial.noise is None:
        return noise
    return torch.maximum(options.tolerance, trial.noise)


def within_noise(found: Tensor, before: Tensor, after: Tensor, may_be_rounding: Tensor) -> Tensor:
    """Return the rows (B,) that a step which may be rounding has left within the noise at both of its ends.

    Parameters
    ----------
    found : norm of the residual after the step.
    before, after : the noise at its ends.
    """
    return (found <= torch.minimum(before, after)) & may_be_rounding


def parts_next(fraction: Tensor, failed: Tensor, shortest: float) -> tuple[Tensor, Tensor]:
    """Return what part of its step each row tries next (B,), once those failed that did, and which rows give up."""
    shorter = torch.where(failed, SHORTENED * fraction, fraction)
    return shorter, failed & (shorter < shortest)


def status_of_given_up(norm: Tensor, noise: Tensor, iterations: Tensor, may_be_rounding: Tensor) -> Tensor:
    """Return the status (B,) with which rows end that find no part of their step to take.

    Noise excuses only rows that have moved: an iterate that Newton's method has improved.
    """
    hidden = (norm <= noise) & (iterations > 1) & may_be_rounding
    return torch.where(hidden, int(Status.CONVERGED), int(Status.LINE_SEARCH_FAILED))

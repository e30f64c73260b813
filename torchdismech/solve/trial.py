"""Trial of a step and its judgement by the residual's norm: the part common to all rounds of Newton's method.

`tried` is one function of tensors that reads no number on the host, so it can be compiled as a whole, and recorded.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.fused import Fused
from torchdismech.rows import weighted_norms
from torchdismech.solve.noise import (
    NEAR,
    lengths,
    next_length,
    rounding_noise,
    settled,
    settled_where_steps_creep,
)
from torchdismech.solve.search import RUNNING, NewtonOptions, System

__all__ = ["Measure", "Move", "Trial", "tried"]


class Move(NamedTuple):
    """A step to be tried, with the state of the search that its judgement needs.

    Attributes
    ----------
    x, norm : (B, m) the iterate where the step begins, and the norm (B,) of the residual there.
    step : (B, m) the step; None: x itself is judged.
    solved : (B,) rows that have a step.
    status : (B,) of all rows before the step; only rows that run are moved.
    spent : (B,) rows that have used up their iterations: they may take no step after this one.
    tolerance : (B,) norm up to which rows count as solved.
    before : (B,) length of the whole Newton step before this one, infinite where there was none.
    noise : (B,) norm up to which a row counts as solved after a short step, see `Progress`.
    short : (B,) length up to which the step counts as short: smaller where it is no whole Newton step.
    """

    x: Tensor
    norm: Tensor
    step: Tensor | None
    solved: Tensor
    status: Tensor
    spent: Tensor
    tolerance: Tensor
    before: Tensor
    noise: Tensor
    short: Tensor


class Measure(NamedTuple):
    """The options that the judgement of a step depends on: those of the same names in `NewtonOptions`."""

    weight: Tensor
    diagonal: Tensor
    line_search: bool
    noise_at_each_iterate: bool

    @classmethod
    def of(cls, options: NewtonOptions) -> Measure:
        """Return the measure of a search with these options."""
        return cls(options.weight, options.diagonal, options.line_search, options.noise_at_each_iterate)


class Trial(NamedTuple):
    """The iterate that a step leads to, and the judgement of the step in each row.

    Attributes
    ----------
    x, residual, norm : unknowns (B, m), residual (B, m) and its norm (B,) at the new iterate.
    values : (nnz, B) of the matrix there; None where they were not asked for.
    length : (B,) of the step, see `lengths`.
    noise : (B,) rounding noise of the residual there, see `rounding_noise`; None where it was not asked for.
    good : (B,) running rows whose step is accepted: the norm fell, or is within the tolerance or the noise; without
        line search, the norm is finite.
    status : (B,) the status of each row if all rows take the step.
    flags : (4,) bool, *bad*, *more*, *unconverged*, *far*: whether some running row is not good; will run on; has not
        converged; will run on and is not expected to converge in the next round either.
    """

    x: Tensor
    residual: Tensor
    values: Tensor | None
    norm: Tensor
    length: Tensor
    noise: Tensor | None
    good: Tensor
    status: Tensor
    flags: Tensor


def tried(system: System, move: Move, measure: Measure, with_matrix: bool, with_noise: bool) -> Trial:
    """Take a step in the rows that run and have one (`solved`), and judge it by the norm of the residual.

    The rounding noise is needed at the first iterate only, but compiled code is the same for all iterates and always
    computes it. With `noise_at_each_iterate` every iterate has its own noise, and the smaller one of both ends of the
    step counts. As the noise is computed from the matrix, a trial without the matrix then accepts a row as solved by
    its tolerance alone.

    Parameters
    ----------
    with_matrix : whether to evaluate the matrix at the new iterate, too.
    with_noise : whether to compute the rounding noise there, if the matrix is evaluated.
    """
    x, norm, step, solved, status, spent, tolerance, before, noise, short = move
    if step is not None:
        going = ((status == RUNNING) & solved)[:, None]
        x = torch.where(going, system.advanced(x, torch.where(going, step, 0.0)), x)
    residual, values = system.residual_and_matrix(x) if with_matrix else (system.residual(x), None)
    noise_after, least_noise = None, noise
    if values is not None and (with_noise or measure.noise_at_each_iterate):
        noise_after = rounding_noise(x, values, measure.diagonal, measure.weight)
    if measure.noise_at_each_iterate:
        noise = noise if noise_after is None else torch.minimum(noise, noise_after)
        least_noise = tolerance if noise_after is None else noise
    norm_after = weighted_norms(residual, measure.weight)
    length = torch.full_like(norm_after, torch.inf) if step is None else lengths(step, measure.weight)
    rows = (row.to(norm_after.dtype) for row in (status, solved, spent))
    judge = _JUDGED[measure.line_search, measure.noise_at_each_iterate].of_columns
    judgement = judge(norm_after, norm, length, before, tolerance, noise, least_noise, short, *rows)
    good, ended, *flags = judgement.split([1, 1, 4])
    return Trial(
        x, residual, values, norm_after, length, noise_after, good[0] > 0, ended[0].long(), flags[0].amax(1) > 0
    )


def _judged(
    line_search: bool,
    noise_at_each_iterate: bool,
    norm_after: Tensor,
    norm: Tensor,
    length: Tensor,
    before: Tensor,
    tolerance: Tensor,
    noise: Tensor,
    least_noise: Tensor,
    short: Tensor,
    *rows: Tensor,
) -> list[Tensor]:
    """Return six numbers of each row: `good` and `status` as of `Trial`, and its part of the four `Trial.flags`.

    `good` and the flags are 0 or 1.

    Parameters
    ----------
    line_search, noise_at_each_iterate : as of `NewtonOptions`.
    norm_after, norm : norm of the residual after the step, and before it.
    length, before : length of the step, and of the whole Newton step before it.
    tolerance, noise, short : see `Move`.
    least_noise : noise within which rows may count as solved.
    rows : status; whether rows are solved and whether they are spent (not 0), see `Move`.
    """
    status, solved, spent = rows
    finite, active = norm_after < torch.inf, status == RUNNING  # all comparisons with NaN are False
    if noise_at_each_iterate:
        at_root, within_noise = (
            settled_where_steps_creep(norm_after, length, level, short) for level in (least_noise, noise)
        )
    else:
        at_root, within_noise = settled(norm_after, length, before, least_noise, short), norm_after <= noise
    within = (norm_after <= tolerance) | at_root
    good = active & (solved > 0) & finite
    if line_search:
        good = good & (within | within_noise | (norm_after < norm))
    unsolved = active & ~within
    more = unsolved & ~(spent > 0)
    ended = torch.where(active & within, int(Status.CONVERGED), status)
    ended = torch.where(unsolved, torch.where(spent > 0, int(Status.MAX_ITERATIONS), status), ended)
    ended = torch.where(unsolved & ~finite, int(Status.NOT_FINITE), ended)
    # as Newton's method converges quadratically, the next norm is about norm_after * (norm_after / norm)^2
    next_short = (length <= NEAR * short) | (next_length(length, before) <= short)
    ends = norm_after**3 <= tolerance * norm**2
    if not noise_at_each_iterate:  # with `noise_at_each_iterate` the next round needs its matrix to find the noise
        ends = ends | ((norm_after <= noise) & next_short)
    far = more & ~ends
    one, zero = torch.ones_like(norm_after), torch.zeros_like(norm_after)
    flags = [torch.where(flag, one, zero) for flag in (good, active & ~good, more, unsolved, far)]
    return [flags[0], ended, *flags[1:]]


KINDS = ((False, False), (False, True), (True, False), (True, True))  # (line_search, noise_at_each_iterate)
_JUDGED = {kind: Fused(partial(_judged, *kind), "Newton's rows") for kind in KINDS}

"""A step that a search tries, and how it is judged: what all rounds of Newton's method have in common.

It is one function of tensors that reads no number on the host, so it can be compiled as a whole, and recorded.
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
    """A step that is to be tried.

    Attributes
    ----------
    x, norm : (B, m) where it begins, and the norm (B,) of the residual there.
    step : (B, m) the step; None: x itself is judged.
    solved : (B,) rows that have a step.
    status : (B,) of all rows before it; those that run are moved.
    spent : (B,) rows that may take no further step.
    tolerance : (B,) the norm up to which rows count as solved.
    before : (B,) length of the whole Newton step before this one, infinite where there was none.
    noise : (B,) see `Progress`.
    short : (B,) likewise; that of other steps where these are no whole Newton steps.
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
    """What a step is measured by: see `NewtonOptions`."""

    weight: Tensor
    diagonal: Tensor
    line_search: bool
    unbounded: bool

    @classmethod
    def of(cls, options: NewtonOptions) -> Measure:
        """Return that of a search."""
        return cls(options.weight, options.diagonal, options.line_search, options.unbounded)


class Trial(NamedTuple):
    """What a step led to.

    Attributes
    ----------
    x, residual, norm : of the new iterate.
    length : (B,) of the step, see `lengths`.
    values, noise : likewise, and that of rounding (B,), see `rounding_noise`; None where they were not asked for.
    good : (B,) rows whose norm fell or is within the noise; without line search, is finite.
    status : (B,) if all rows keep the new iterate.
    flags : (4,) whether some running row is not good; has more to do; does not converge; and whether some row that has
        more to do is not expected to converge in the next round.
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
    """Take a step in the rows that run and are solved, and judge it by the norm of the residual.

    Only a first iterate needs the noise, but compiled code is the same for all iterates and always finds it. Where the
    matrix is unbounded each iterate has its own, and the smaller one of both ends of the step counts. Without the
    matrix, which tells it, no row is solved by being within the noise.
    """
    x, norm, step, solved, status, spent, tolerance, before, noise, short = move
    if step is not None:
        going = ((status == RUNNING) & solved)[:, None]
        x = torch.where(going, system.advanced(x, torch.where(going, step, 0.0)), x)
    residual, values = system.residual_and_matrix(x) if with_matrix else (system.residual(x), None)
    own_noise, enough = None, noise
    if values is not None and (with_noise or measure.unbounded):
        own_noise = rounding_noise(x, values, measure.diagonal, measure.weight)
    if measure.unbounded:
        noise = noise if own_noise is None else torch.minimum(noise, own_noise)
        enough = tolerance if own_noise is None else noise
    found = weighted_norms(residual, measure.weight)
    length = torch.full_like(found, torch.inf) if step is None else lengths(step, measure.weight)
    rows = (row.to(found.dtype) for row in (status, solved, spent))
    judge = _JUDGED[measure.line_search, measure.unbounded].of_columns
    judgement = judge(found, norm, length, before, tolerance, noise, enough, short, *rows)
    good, ended, *flags = judgement.split([1, 1, 4])
    return Trial(x, residual, values, found, length, own_noise, good[0] > 0, ended[0].long(), flags[0].amax(1) > 0)


def _judged(
    line_search: bool,
    unbounded: bool,
    found: Tensor,
    norm: Tensor,
    length: Tensor,
    before: Tensor,
    tolerance: Tensor,
    noise: Tensor,
    enough: Tensor,
    short: Tensor,
    *rows: Tensor,
) -> list[Tensor]:
    """Return whether rows are good, the status that they end with, and what `Trial.flags` say of each: 0 or 1.

    Parameters
    ----------
    found, norm : of the residual now, and at the last iterate.
    length, before : of the step, and of the one before it.
    tolerance, noise, short : see `Move`.
    enough : the noise within which rows may count as solved.
    rows : status, and which rows are solved and spent (not 0).
    """
    status, solved, spent = rows
    finite, active = found < torch.inf, status == RUNNING  # NaN is not finite, nor within anything
    if unbounded:
        near, hidden = (settled_where_steps_creep(found, length, level, short) for level in (enough, noise))
    else:
        near, hidden = settled(found, length, before, enough, short), found <= noise
    within = (found <= tolerance) | near
    good = active & (solved > 0) & finite
    if line_search:
        good = good & (within | hidden | (found < norm))
    unsolved = active & ~within
    more = unsolved & ~(spent > 0)
    ended = torch.where(active & within, int(Status.CONVERGED), status)
    ended = torch.where(unsolved, torch.where(spent > 0, int(Status.MAX_ITERATIONS), status), ended)
    ended = torch.where(unsolved & ~finite, int(Status.NOT_FINITE), ended)
    # as Newton's method converges quadratically, the next norm is about this one by the square of their ratio
    next_short = (length <= NEAR * short) | (next_length(length, before) <= short)
    ends = found**3 <= tolerance * norm**2
    if not unbounded:  # else the next round needs the matrix for its noise
        ends = ends | ((found <= noise) & next_short)
    far = more & ~ends
    one, zero = torch.ones_like(found), torch.zeros_like(found)
    flags = [torch.where(flag, one, zero) for flag in (good, active & ~good, more, unsolved, far)]
    return [flags[0], ended, *flags[1:]]


KINDS = ((False, False), (False, True), (True, False), (True, True))  # with line search; of unbounded matrices
_JUDGED = {kind: Fused(partial(_judged, *kind), "Newton's rows") for kind in KINDS}

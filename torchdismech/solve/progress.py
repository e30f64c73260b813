"""How far a search by Newton's method is, and where one begins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.solve.noise import rounding_noise, short_length
from torchdismech.solve.search import RUNNING, Iterate, NewtonOptions, System, judged
from torchdismech.solve.trial import Measure, Move, Trial, tried

__all__ = ["Progress", "begun", "begun_at", "first_measures", "matrix_values"]


class Progress(NamedTuple):
    """How far a search is, as a tuple of tensors, which recordings hold: an `Iterate`, then status and iterations.

    Attributes
    ----------
    x, residual, values, norm : of the last accepted iterates, see `Iterate`.
    status, iterations : (B,) as of `RootSearch`.
    length : (B,) of the whole Newton step that led there, see `lengths`; infinite where another one did, or none.
    noise : (B,) norm of a residual up to which rows count as solved after a short step; not below the tolerance. It is
        that at the first iterate, or at the last one where matrices are unbounded (see `NewtonOptions`).
    short : (B,) length up to which a step is short.
    """

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor
    status: Tensor
    iterations: Tensor
    length: Tensor
    noise: Tensor
    short: Tensor

    @classmethod
    def of(cls, at: Iterate, *of_rows: Tensor) -> Progress:
        """Return that of a search at some iterates; `of_rows` (B,) are the others, in their order."""
        return cls(at.x, at.residual, at.values, at.norm, *of_rows)

    @property
    def iterate(self) -> Iterate:
        """The last accepted iterates."""
        return Iterate(self.x, self.residual, self.values, self.norm)

    def rows(self, rows: Tensor) -> Progress:
        """Return that of some rows (R,) alone."""
        return Progress.of(self.iterate.rows(rows), *(own[rows] for own in self[4:]))

    def merged(self, other: Progress, take: Tensor) -> Progress:
        """Return this with the rows where `take` (B,) holds replaced by those of `other`."""
        by_unknowns = ("x", "residual")
        rows = (take[:, None] if name in by_unknowns else take for name in self._fields)
        return Progress(*(torch.where(where, new, own) for where, new, own in zip(rows, other, self, strict=True)))


def begun(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None) -> Progress:
    """Return a search at its first iterate; arguments as for `newton`.

    The first iterate has to meet the tolerance itself, because Newton's method has not improved it yet.
    """
    residual, values, norm, noise = (system.recording(first_measures) or first_measures)(system, x, options)
    return _begun(system, Iterate(x, residual, values, norm), noise, options, running)


def first_measures(system: System, x: Tensor, options: NewtonOptions) -> list[Tensor]:
    """Return residual, values, norm and rounding noise at a first iterate x."""
    first = _first_trial(system, x, options)
    assert first.values is not None and first.noise is not None
    return [first.residual, first.values, first.norm, first.noise]


def begun_at(system: System, last: Iterate, options: NewtonOptions, running: Tensor | None) -> Progress:
    """Return what `begun` does, of a search that begins where another one has ended."""
    noise = rounding_noise(last.x, last.values, options.diagonal, options.weight)
    return _begun(system, last, noise, options, running)


def _begun(system: System, first: Iterate, noise: Tensor, options: NewtonOptions, running: Tensor | None) -> Progress:
    status = torch.full_like(options.tolerance, RUNNING, dtype=torch.long)
    if running is not None:
        status = torch.where(running, status, int(Status.CONVERGED))
    status = judged(status, first.norm, options.tolerance)
    length = torch.full_like(first.norm, torch.inf)
    noise = torch.maximum(options.tolerance, noise)
    return Progress.of(first, status, torch.zeros_like(status), length, noise, short_length(system, first.x))


def matrix_values(system: System, x: Tensor, solver, weight: Tensor) -> Tensor:
    """Return the values (nnz, B) of the matrix at x (B, m); where trials of iterates are compiled, by that code."""
    values = _first_trial(system, x, NewtonOptions(solver, weight, x.new_zeros(len(x)), 0)).values
    assert values is not None
    return values


def _first_trial(system: System, x: Tensor, options: NewtonOptions) -> Trial:
    """Return the trial of x itself; compiled code for trials serves here too, with a step that no row takes."""
    found_by, tolerance = system.compiled(tried), options.tolerance
    # tensors of their own: code that was compiled for one in several places would not serve for other steps
    no_row, none_spent = torch.zeros(2, len(x), dtype=torch.bool, device=x.device)
    status = torch.full_like(tolerance, RUNNING, dtype=torch.long)
    unknown, before, noise, short = torch.full((4, len(x)), torch.inf, dtype=x.dtype, device=x.device)
    step = None if found_by is tried else torch.zeros_like(x)
    move = Move(x, unknown, step, no_row, status, none_spent, tolerance, before, noise, short)
    return found_by(system, move, Measure.of(options), with_matrix=True, with_noise=True)

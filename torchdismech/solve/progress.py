"""Progress: the state of a Newton search between two rounds, and the state in which one begins."""

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
    """State of a search between two rounds, as a flat tuple of tensors so that recordings can hold it.

    Attributes
    ----------
    x, residual, values, norm : the last accepted iterates, as of `Iterate`.
    status, iterations : (B,) as of `RootSearch`.
    length : (B,) of the whole Newton step that was tried last, also if it was rejected, see `lengths`; infinite where
        the last step tried was of another kind, or none has been.
    noise : (B,) norm of the residual up to which a row counts as solved after a short step: the rounding noise, or the
        tolerance where that is larger. The noise is that at the first iterate, or at the last one with
        `NewtonOptions.noise_at_each_iterate`.
    short : (B,) length up to which a step is short, see `short_length`.
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
        """Return the state of a search at some iterates; `of_rows` are the fields from `status` on, (B,) each."""
        return cls(at.x, at.residual, at.values, at.norm, *of_rows)

    @property
    def iterate(self) -> Iterate:
        """The last accepted iterates."""
        return Iterate(self.x, self.residual, self.values, self.norm)

    def rows(self, rows: Tensor) -> Progress:
        """Return the state of the rows with indices (R,) alone."""
        return Progress.of(self.iterate.rows(rows), *(own[rows] for own in self[4:]))

    def merged(self, other: Progress, take: Tensor) -> Progress:
        """Return a copy in which the rows where `take` (B,) is True come from `other`."""
        by_unknowns = ("x", "residual")
        rows = (take[:, None] if name in by_unknowns else take for name in self._fields)
        return Progress(*(torch.where(where, new, own) for where, new, own in zip(rows, other, self, strict=True)))


def begun(system: System, x: Tensor, options: NewtonOptions, running: Tensor | None) -> Progress:
    """Return the state of a search at its first iterate x (B, m); arguments as for `newton`.

    The first iterate has to meet the tolerance itself, because Newton's method has not improved it yet.
    """
    residual, values, norm, noise = (system.recording(first_measures) or first_measures)(system, x, options)
    return _begun(system, Iterate(x, residual, values, norm), noise, options, running)


def first_measures(system: System, x: Tensor, options: NewtonOptions) -> list[Tensor]:
    """Return residual (B, m), matrix values (nnz, B), norm (B,) and rounding noise (B,) at a first iterate x (B, m)."""
    first = _first_trial(system, x, options)
    assert first.values is not None and first.noise is not None
    return [first.residual, first.values, first.norm, first.noise]


def begun_at(system: System, last: Iterate, options: NewtonOptions, running: Tensor | None) -> Progress:
    """Return the state of a search that begins at `last`, an iterate that another search has evaluated already."""
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
    """Return the values (nnz, B) of the matrix at x (B, m), by the compiled `tried` if the system compiles it."""
    values = _first_trial(system, x, NewtonOptions(solver, weight, x.new_zeros(len(x)), 0)).values
    assert values is not None
    return values


def _first_trial(system: System, x: Tensor, options: NewtonOptions) -> Trial:
    """Return the trial of x itself, with the matrix and the noise.

    Code compiled for the trials of steps is used here, too: it gets a step of zeros, which no row takes.
    """
    judge, tolerance = system.compiled(tried), options.tolerance
    # each argument is a separate tensor: code compiled for one tensor in several places would not fit later steps
    no_row, none_spent = torch.zeros(2, len(x), dtype=torch.bool, device=x.device)
    status = torch.full_like(tolerance, RUNNING, dtype=torch.long)
    unknown, before, noise, short = torch.full((4, len(x)), torch.inf, dtype=x.dtype, device=x.device)
    step = None if judge is tried else torch.zeros_like(x)
    move = Move(x, unknown, step, no_row, status, none_spent, tolerance, before, noise, short)
    return judge(system, move, Measure.of(options), with_matrix=True, with_noise=True)

"""SearchRounds: recorded parts of searches that are steered from Python: a first look at an iterate, and rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.primal_dual import next_iterates
from torchdismech.solve.linear import Solver
from torchdismech.solve.progress import Progress, first_measures
from torchdismech.solve.rounds import PlainRound, plain_round
from torchdismech.solve.search import NewtonOptions

__all__ = ["SearchRounds"]

# a function of tensors, what tells it from others, the linear solver, and the tensors; returns what the function does
Call = Callable[[Callable[..., list[Tensor]], Hashable, Solver, Sequence[Tensor]], list[Tensor]]


class SearchRounds:
    """Functions of equations and searches, each as a function of tensors alone, which can be recorded.

    Parameters
    ----------
    call : calls such a function, by a recording if there is one.
    """

    def __init__(self, call: Call):
        self._call = call

    @property
    def recordings(self) -> dict[Callable, Callable]:
        """The methods here, by the functions that they replace."""
        return {
            first_measures: self.first_measures,
            next_iterates: self.next_iterates,
            plain_round: self.plain_round,
        }

    def next_iterates(
        self, equations: StepEquations, options: NewtonOptions, max_iterations: Tensor, *rows: Tensor
    ) -> list[Tensor]:
        """Return the rows of a search after a primal-dual step, as `primal_dual.next_iterates` lays them out."""

        def next_of(weight: Tensor, tolerance: Tensor, max_iterations: Tensor, *rows: Tensor) -> list[Tensor]:
            round_options = dataclasses.replace(options, weight=weight, tolerance=tolerance)
            return next_iterates(equations, round_options, max_iterations, *rows)

        tensors = [options.weight, options.tolerance, max_iterations, *rows]
        return self._call(next_of, (next_iterates, options.noise_at_each_iterate), options.solver, tensors)

    def first_measures(self, equations: StepEquations, x: Tensor, options: NewtonOptions) -> list[Tensor]:
        """Return residual, matrix, norm and noise at a first iterate, as `progress.first_measures` does."""

        def results(weight: Tensor, x: Tensor) -> list[Tensor]:
            return first_measures(equations, x, dataclasses.replace(options, weight=weight))

        return self._call(results, (first_measures,), options.solver, [options.weight, x])

    def plain_round(
        self, equations: StepEquations, at: Progress, options: NewtonOptions, with_matrix: bool
    ) -> PlainRound:
        """Return the progress after a round of Newton's method, and its flags, as `solve.rounds.plain_round` does."""

        def taken(weight: Tensor, tolerance: Tensor, *rows: Tensor) -> list[Tensor]:
            own = dataclasses.replace(options, weight=weight, tolerance=tolerance)
            after, flags = plain_round(equations, Progress(*rows), own, with_matrix)
            return [*after, flags]

        kind = (plain_round, options.max_iterations, options.line_search, with_matrix)
        *after, flags = self._call(taken, kind, options.solver, [options.weight, options.tolerance, *at])
        return PlainRound(Progress(*after), flags)

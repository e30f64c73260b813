"""RecordedRounds: the rounds of Newton's method in a step on static memory.

A round in which all goes well is one recording: with the next matrix, or without where it is expected to be the last.
Two more are made where they are first needed. Where a round raises the norm of some row, *corrections* by the same
factor tell whether its step is good all the same. And where rows come to no root from where motion leads, they *begin
again* from where the robots are, if that is the next attempt.

After each recording the host reads five flags, on a GPU the only wait. Rounds that do not suit all rows change nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.recorded.static_problem import StaticProblem, recorded_beside
from torchdismech.integrate.search.attempts import Start
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.native.graphs import Recording, recorded
from torchdismech.solve.newton import corrected_round, whole_steps
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.search import NewtonOptions

__all__ = ["RecordedRounds", "Rounds", "SetUp"]


class Rounds(Enum):
    """How rounds ended."""

    ROOTS = "all rows that run have come to their roots"
    LOST = "all rows have come to an end, some of them to no root"
    LEFT = "some rows run on, and the next step is none that recordings take"


class SetUp(NamedTuple):
    """What the set-up of a step makes.

    Attributes
    ----------
    equations, scale, options : see `StepEquations`, `StepInfo.force_scale` and `NewtonOptions`.
    progress : how far the search is; rounds write to it.
    earlier : (B,) iterations of the attempts before the present one; none yet.
    running : (B,) the robots that are stepped: those that are to be and whose state is finite.
    """

    equations: StepEquations
    scale: Tensor
    options: NewtonOptions
    progress: Progress
    earlier: Tensor
    running: Tensor


class RecordedRounds:
    """Rounds of a step that was set up.

    Parameters
    ----------
    made : by its set-up.
    static : the memory that it works on.

    Attributes
    ----------
    round, last_round : the recordings; `round` finds the next matrix, `last_round` does not.
    corrected : what judges the last round by corrections; None before it was first needed.
    """

    def __init__(self, made: SetUp, static: StaticProblem):
        self._made, self._static, self._device = made, static, made.running.device
        self.round = recorded(self._round_with_matrix, self._device, static.pool)
        self.last_round = recorded(self._round_without_matrix, self._device, static.pool)
        self.corrected: Recording[Tensor] | None = None

    def taken(self) -> Rounds:
        """Replay rounds until no row is to be moved; return how they ended."""
        more, lost, with_matrix = True, False, True
        while more:
            flags = (self.round if with_matrix else self.last_round).replay().tolist()
            if flags[0] and with_matrix:
                flags = self._flags_by_corrections()
            bad, more, _unconverged, far, lost = flags
            if bad and with_matrix:
                return Rounds.LEFT
            more = more or bad
            # a round that was expected to be the last and was not is taken once more
            with_matrix = far or not with_matrix
        return Rounds.LOST if lost else Rounds.ROOTS

    @cached_property
    def begins_again(self) -> bool:
        """Whether the second attempt is the first one once more, from where robots are."""
        problem = self._static.problem
        first, *others = problem.method.attempts(self._made.equations, problem.divisible)
        again = dataclasses.replace(first, start=Start.HERE)
        return again != first and others[:1] == [again]

    def taken_from_here(self) -> Rounds:
        """Return what `taken` does, of the second attempt of the rows that came to no root."""
        self._beginning_here.replay()
        return self.taken()

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _round_with_matrix(self) -> Tensor:
        return self._take_round(with_matrix=True)

    def _round_without_matrix(self) -> Tensor:
        return self._take_round(with_matrix=False)

    def _take_round(self, with_matrix: bool) -> Tensor:
        """Take a round if it suits all rows, and without a matrix is the last; return its flags."""
        made = self._made
        steps = whole_steps(made.equations, made.progress, made.options, with_matrix)
        bad, _, unconverged, *_ = steps.flags
        self._keep(steps.after, ~bad if with_matrix else ~(bad | unconverged))
        if with_matrix:
            self._whole_steps = steps  # corrections find them where each round writes them anew
        return steps.flags

    def _flags_by_corrections(self) -> list[bool]:
        """Take the steps of the last round, which raised the norm of some row, if corrections say so; return flags."""
        if self.corrected is None:
            self.corrected = self._recorded_beside(self._take_corrected, self._made.progress)
        return self.corrected.replay().tolist()

    def _take_corrected(self) -> Tensor:
        after, flags = corrected_round(self._whole_steps, self._made.progress, self._made.options)
        self._keep(after, ~flags[0])
        return flags

    @cached_property
    def _beginning_here(self) -> Recording[None]:
        """The beginning of the second attempt."""
        return self._recorded_beside(self._begin_here, [*self._made.progress, self._made.earlier])

    def _begin_here(self) -> None:
        """Begin again where robots are, in rows that did not come to a root."""
        made = self._made
        lost = made.running & (made.progress.status != int(Status.CONVERGED))
        again = begun(made.equations, first_iterate(made.equations, ahead=False), made.options, lost)
        made.earlier.add_(torch.where(lost, made.progress.iterations, 0))
        self._keep(made.progress.merged(again, lost), lost.any())

    def _keep(self, found: Progress, good: Tensor) -> None:
        """Go on from there if that is `good` ()."""
        for new, static in zip(found, self._made.progress, strict=True):
            if new is not static:
                torch.where(good, new, static, out=static)

    def _recorded_beside(self, function: Callable[[], Any], written: Sequence[Tensor]) -> Recording[Any]:
        with self._static.values.in_place():
            return recorded_beside(function, written, self._device, self._static.pool)

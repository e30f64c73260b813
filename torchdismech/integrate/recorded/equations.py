"""RecordedEquations: the equations of a step, some of whose functions are replayed from recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.integrate.equations import StepEquations
from torchdismech.values import Values

__all__ = ["RecordedEquations", "Recordings"]

# recordings, by the functions that they replace, whose first argument is the equations
Recordings = Mapping[Callable, Callable]


Method = TypeVar("Method", bound=Callable)


def _replayed(method: Method) -> Method:
    """Return a method of `StepEquations` that calls its recording in its place, where there is one."""

    @wraps(method)
    def call(equations: RecordedEquations, *given: Tensor) -> Any:
        return (equations.recording(method) or method)(equations, *given)

    return cast("Method", call)


class RecordedEquations(StepEquations):
    """The equations of a step; functions of theirs that were recorded are replayed.

    Parameters
    ----------
    recorded : the equations, without contact of the robots' own parts, from which the recordings were made.
    find_recordings : returns the recordings for these pairs that may touch, under the present laws of contact.
    pairs, constraints : pairs of the robots' parts that may touch in this step, and its contacts that are constraints.
    static : the static buffers that recordings read, by the places of the model's tensors.
    """

    def __init__(
        self,
        recorded: StepEquations,
        find_recordings: Callable[[StepPairs | None], Recordings],
        pairs: StepPairs | None = None,
        constraints: ConstraintSet | None = None,
        static: Values | None = None,
    ):
        start = dataclasses.replace(recorded.start, pairs=pairs)
        arguments = recorded.model, recorded.scheme, start, recorded.base, recorded.dt, recorded.mechanics
        super().__init__(*arguments, constraints)
        self.load, self.keeps_edge_lengths = recorded.load, recorded.keeps_edge_lengths
        self._find_recordings, self._static = find_recordings, Values() if static is None else static
        self._recordings = find_recordings(pairs)

    def compiled(self, function: Callable) -> Callable:
        """Return the recording of a function whose first argument is these equations, else what there is without."""
        recording = self.recording(function)
        return super().compiled(function) if recording is None else recording

    def recording(self, function: Callable) -> Callable | None:
        """Return the recording of a function whose first argument is these equations; None without one."""
        return self._recordings.get(function)

    unconstrained_residual = _replayed(StepEquations.unconstrained_residual)
    unconstrained = _replayed(StepEquations.unconstrained)
    bare_residual = _replayed(StepEquations.bare_residual)
    bare_residual_and_matrix = _replayed(StepEquations.bare_residual_and_matrix)
    advanced = _replayed(StepEquations.advanced)
    potential_at = _replayed(StepEquations.potential_at)

    @contextmanager
    def with_slips(self, factor: Tensor) -> Iterator[None]:
        """Multiply the slip velocities of smoothed friction by factors (B, 1) within the block.

        The static buffers that recordings read get the products, too, and recordings with pairs, which are bound to the
        laws' constants, are found anew. Where there are no such buffers, nothing is replayed within the block.
        """
        static = self._static.tensors
        slips = self.model.contact.with_slip(factor)
        buffers = [(static[place], slip) for place, slip in slips if place in static]
        before = [buffer.clone() for buffer, _ in buffers]
        try:
            for buffer, slip in buffers:
                buffer.copy_(slip)
            with super().with_slips(factor):
                self._recordings = self._find_recordings(self.start.pairs) if len(buffers) == len(slips) else {}
                yield
        finally:
            for (buffer, _), numbers in zip(buffers, before, strict=True):
                buffer.copy_(numbers)
            self._recordings = self._find_recordings(self.start.pairs)

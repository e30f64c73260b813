"""PairRounds: rounds of searches for robots whose parts may touch, each a tape.

Which pairs may touch is found anew in each step, but compiled code knows them by structures that stay where they are
(`contact.pairs.pair_sums`), and their matrix has the same pattern in many steps. So rounds are recorded for a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from torchdismech.integrate.recorded.static_problem import RecordedCall
from torchdismech.native.graphs import Unrecordable

__all__ = ["PairRounds"]

ROUNDS_BEFORE = 5  # of a kind, without a recording: to make one takes as long as about two times as many
MOST_NUMBERS = 500_000  # of a matrix: a round with more takes longer than its calls


class PairRounds:
    """Recordings of rounds, for the last pattern that steps had."""

    def __init__(self) -> None:
        self._shared: tuple = ()
        self._counts: dict[Hashable, int] = {}
        self._recordings: dict[Hashable, RecordedCall | None] = {}  # None: it cannot be recorded

    def called(
        self, function: Callable[..., list[Tensor]], kind: Hashable, shared: tuple, given: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what a function does of some tensors, by a recording once it was called some times.

        Parameters
        ----------
        function : depends on these tensors, on memory that stays where it is, and on nothing else.
        kind : of the function.
        shared : by all kinds: the objects that recordings know by their addresses. With others all are made anew.
        """
        if len(shared) != len(self._shared) or any(a is not b for a, b in zip(shared, self._shared, strict=True)):
            self._shared, self._counts, self._recordings = shared, {}, {}
        kind = (kind, *(tensor.shape for tensor in given))
        if kind not in self._recordings:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if self._counts[kind] <= ROUNDS_BEFORE or max(tensor.numel() for tensor in given) > MOST_NUMBERS:
                return function(*given)
            self._recordings[kind] = _recorded(function, given)
        recording = self._recordings[kind]
        found: Any = function(*given) if recording is None else recording(None, *given)
        return found


def _recorded(function: Callable[..., list[Tensor]], given: Sequence[Tensor]) -> RecordedCall | None:
    """Return a recording; None of what looks at numbers, as some linear solvers do."""
    try:
        return RecordedCall(function, given)
    except Unrecordable:
        return None

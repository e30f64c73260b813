"""RoundTapes: tapes of Newton iterations (rounds) that Python steers, made once a kind of them was taken some times.

Where parts of a robot may touch, which pairs may is found anew in each step, but compiled code reads them from
structures that stay where they are (`contact.pairs.pair_sums`), and their matrix has the same pattern in many steps. So
rounds are recorded for a pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.native.graphs import Unrecordable

__all__ = ["RoundTapes"]

ROUNDS_BEFORE = 10  # calls of a kind before it is recorded, which takes as long as about so many
MOST_NUMBERS = 200_000  # of a tensor: rounds with more spend little of their time in calls, and memory counts
KEPT = 3  # sets of shared objects whose recordings are kept: steps may have two of them in turns


class RoundTapes:
    """Recordings of rounds, for the patterns of the last steps."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], _Rounds] = {}  # by the ids of shared objects; what served last comes last

    def called(
        self, function: Callable[..., list[Tensor]], kind: Hashable, shared: tuple, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what a function returns for some tensors, by a recording once it was called some times.

        Parameters
        ----------
        function : depends on these tensors, on memory that stays where it is, and on nothing else.
        kind : tells the function, and what is bound in it, from others.
        shared : the objects that recordings know by their addresses, the same for all kinds: the linear solver of the
            pattern, and the sums for pairs. For other objects there are other recordings.
        tensors : its arguments.
        """
        ids = tuple(map(id, shared))
        rounds = self._kept.pop(ids, None) or _Rounds(shared)
        self._kept[ids] = rounds
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return rounds.called(function, kind, tensors)


class _Rounds:
    """The recordings that know the same objects by their addresses.

    Parameters
    ----------
    shared : these objects.
    """

    def __init__(self, shared: tuple):
        self._alive = shared  # never read: while these objects live no others can get their ids
        self._calls = Counter[Hashable]()  # calls without a recording, by kind and shapes
        self._recordings: dict[Hashable, RecordedCall | None] = {}  # None: it cannot be recorded

    def called(self, function: Callable[..., list[Tensor]], kind: Hashable, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what a function returns for some tensors; see `RoundTapes.called`."""
        kind_and_shapes = (kind, *(tensor.shape for tensor in tensors))
        if kind_and_shapes not in self._recordings:
            self._calls[kind_and_shapes] += 1
            # tensors that are made in inference mode could not be written to outside of it
            waits = self._calls[kind_and_shapes] <= ROUNDS_BEFORE or torch.is_inference_mode_enabled()
            if waits or max(tensor.numel() for tensor in tensors) > MOST_NUMBERS:
                return function(*tensors)
            self._recordings[kind_and_shapes] = _recorded(function, tensors)
        recording = self._recordings[kind_and_shapes]
        results: Any = function(*tensors) if recording is None else recording(None, *tensors)
        return results


def _recorded(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> RecordedCall | None:
    """Return the recording of a function; None if it reads numbers on the host, as some linear solvers do."""
    try:
        return RecordedCall(function, tensors)
    except Unrecordable:
        return None

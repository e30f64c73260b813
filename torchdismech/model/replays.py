"""Replays: what a function finds of tensors, recorded once it was asked for some times.

In each step a run may ask for energies and for what a controller answers, and torch's calls for that take as long as a
step of one robot. As steps are (`integrate/recorded/recording.py`), such functions are recorded on a CPU. Replays read
constants of modules where they stand, so their numbers may change; anything else that does is seen by snapshots of the
modules, and what was recorded is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor, nn

from torchdismech.fused import compiled_code_takes, is_own, watched
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.snapshot import Snapshot
from torchdismech.system.plain import in_plain_torch

__all__ = ["Replays"]

EVALUATIONS_BEFORE_RECORDING = 12  # which takes about as long as these
KINDS_KEPT = 4  # kinds of tensors
MAX_NUMBERS = 500_000  # numbers of the first tensor: recordings of more robots save little and hold much memory


class Replays:
    """What a function of tensors finds, from tapes where there are some."""

    def __init__(self) -> None:
        self._snapshots: tuple[Snapshot, ...] = ()
        self._own = False  # whether all that is evaluated is the library's own code
        self._asked: dict[Hashable, int] = {}
        self._tapes: dict[Hashable, _Tape | None] = {}  # None: it cannot be recorded

    def found(
        self,
        function: Callable[[Sequence[Tensor]], Sequence[Tensor]],
        given: Sequence[Tensor],
        kind: Hashable,
        snapshots: tuple[Snapshot, ...],
        evaluated: Callable[[], Iterable[nn.Module]],
    ) -> list[Tensor] | None:
        """Return what a function finds of tensors; None where it has to be called.

        Parameters
        ----------
        function : of as many tensors as are given; called here only where it is recorded.
        given : the tensors, those of robots first.
        kind : what decides on what the function does, the shapes of what is given among it.
        snapshots : of the modules that it reads.
        evaluated : returns the modules whose code it runs.
        """
        self._forget_other_modules(snapshots, evaluated)
        if not self._may_be_recorded(given):
            return None
        if kind not in self._tapes:
            self._asked[kind] = self._asked.get(kind, 0) + 1
            if self._asked[kind] < EVALUATIONS_BEFORE_RECORDING or len(self._tapes) == KINDS_KEPT:
                return None
            self._tapes[kind] = _recorded(function, given)
        tape = self._tapes[kind]
        return None if tape is None else tape.found(given)

    def _forget_other_modules(
        self, snapshots: tuple[Snapshot, ...], evaluated: Callable[[], Iterable[nn.Module]]
    ) -> None:
        """Let recordings go of modules that are others now."""
        if snapshots == self._snapshots:  # the same objects
            return
        self._own = all(is_own(module) for owner in evaluated() for module in owner.modules())
        self._snapshots, self._asked, self._tapes = snapshots, {}, {}

    def _may_be_recorded(self, given: Sequence[Tensor]) -> bool:
        """Return whether a recording may serve: for numbers on a CPU, of which no gradients are taken."""
        differentiated = torch.is_grad_enabled() and any(snapshot.requires_gradients for snapshot in self._snapshots)
        return (
            self._own
            and not (differentiated or in_plain_torch())
            and not any(snapshot.parametrized or snapshot.hooked for snapshot in self._snapshots)
            and given[0].is_cpu
            and given[0].numel() <= MAX_NUMBERS
            and compiled_code_takes(*given)
            and not (watched() or torch.is_inference_mode_enabled())
            and not torch.nn.modules.module._has_any_global_hook()
        )


def _recorded(function: Callable[[Sequence[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]) -> _Tape | None:
    try:
        return _Tape(function, given)
    except Unrecordable:  # it reads numbers, such as the nearest triangle of a mesh
        return None


class _Tape:
    """A function, recorded on tensors like those given."""

    def __init__(self, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]):
        self._buffers = StaticBuffers(given)
        self._buffers.give(given)
        self._tape = recorded(lambda: function(self._buffers.tensors), given[0].device, None)
        self._buffers.read_by(self._tape.reads)

    def found(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Return what the function finds of other tensors."""
        self._buffers.give(given)
        return [tensor.clone() for tensor in self._tape.replay()]

"""`Replays`: results of a function of tensors, recorded after some calls and replayed from then on.

In each step a run may ask for energies and for a controller's answer, and torch's calls for these take as long as a
step of one robot. Like steps (`integrate/recorded/recording.py`), such functions are recorded on a CPU. A replay reads
the constants of modules from their memory, so their numbers may change; any other change is noticed by snapshots of
the modules, and the recordings are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor, nn

from torchdismech.fused import compiled_code_accepts, is_own, traced
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.snapshot import Snapshot
from torchdismech.system.plain import in_plain_torch

__all__ = ["Replays"]

EVALUATIONS_BEFORE_RECORDING = 12  # a recording takes about as long as so many evaluations
KINDS_KEPT = 4  # most kinds (shapes, and whatever else the caller tells apart) that are recorded
MAX_NUMBERS = 500_000  # most numbers in the first tensor: recordings for more robots save little, and need much memory


class Replays:
    """Results of a function of tensors, from a tape where there is one."""

    def __init__(self) -> None:
        self._snapshots: tuple[Snapshot, ...] = ()
        self._own = False  # whether the library's own code alone is evaluated
        self._calls: dict[Hashable, int] = {}  # number of calls of each kind
        self._tapes: dict[Hashable, _Tape | None] = {}  # None: this kind cannot be recorded

    def replayed(
        self,
        function: Callable[[Sequence[Tensor]], Sequence[Tensor]],
        tensors: Sequence[Tensor],
        kind: Hashable,
        snapshots: tuple[Snapshot, ...],
        evaluated: Callable[[], Iterable[nn.Module]],
    ) -> list[Tensor] | None:
        """Return copies of the results by a replay; None without a recording: the caller has to call the function.

        Parameters
        ----------
        function : takes the tensors and returns tensors; called here only to record it.
        tensors : arguments of the function; the first has a row for each robot.
        kind : key of the recording; has to contain everything that decides what the function does, with the tensors'
            shapes.
        snapshots : of the modules that the function reads.
        evaluated : returns the modules whose code the function runs.
        """
        self._forget_other_modules(snapshots, evaluated)
        if not self._may_be_recorded(tensors):
            return None
        if kind not in self._tapes:
            self._calls[kind] = self._calls.get(kind, 0) + 1
            if self._calls[kind] < EVALUATIONS_BEFORE_RECORDING or len(self._tapes) == KINDS_KEPT:
                return None
            self._tapes[kind] = _recorded(function, tensors)
        tape = self._tapes[kind]
        return None if tape is None else tape.replayed(tensors)

    def _forget_other_modules(
        self, snapshots: tuple[Snapshot, ...], evaluated: Callable[[], Iterable[nn.Module]]
    ) -> None:
        """Drop all recordings if the modules have changed, so that there are other snapshots."""
        if snapshots == self._snapshots:  # the same objects
            return
        self._own = all(is_own(module) for owner in evaluated() for module in owner.modules())
        self._snapshots, self._calls, self._tapes = snapshots, {}, {}

    def _may_be_recorded(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether a recording may be made or replayed: for numbers on a CPU that need no gradients."""
        differentiated = torch.is_grad_enabled() and any(snapshot.requires_gradients for snapshot in self._snapshots)
        return (
            self._own
            and not (differentiated or in_plain_torch())
            and not any(snapshot.parametrized or snapshot.hooked for snapshot in self._snapshots)
            and tensors[0].is_cpu
            and tensors[0].numel() <= MAX_NUMBERS
            and compiled_code_accepts(*tensors)
            and not (traced() or torch.is_inference_mode_enabled())
            and not torch.nn.modules.module._has_any_global_hook()
        )


def _recorded(function: Callable[[Sequence[Tensor]], Sequence[Tensor]], tensors: Sequence[Tensor]) -> _Tape | None:
    try:
        return _Tape(function, tensors)
    except Unrecordable:  # the function branches on numbers, as for the nearest triangle of a mesh
        return None


class _Tape:
    """A recording of a function on buffers that are shaped like the given tensors."""

    def __init__(self, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], tensors: Sequence[Tensor]):
        self._buffers = StaticBuffers(tensors)
        self._buffers.give(tensors)
        self._tape = recorded(lambda: function(self._buffers.tensors), tensors[0].device, None)
        self._buffers.read_by(self._tape.reads)

    def replayed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the function of the given tensors, by a replay, as copies."""
        self._buffers.give(tensors)
        return [tensor.clone() for tensor in self._tape.replay()]

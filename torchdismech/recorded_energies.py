"""Energies of robots, recorded: a run asks for them in each frame, and torch takes as long as a step of one robot.

As steps are (`integrate/recorded/recording.py`), they are recorded on a CPU once they were asked for some times of the
same model, and of states and controls of the same shapes. A replay reads the model's constants where they stand, so
their numbers may change; anything else that does is seen by the model's snapshot, and what was recorded is let go.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from torchdismech.contact import Obstacle
from torchdismech.fused import fits, is_own, watched
from torchdismech.mechanics import Mechanics
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.native.tape import Tape
from torchdismech.snapshot import Snapshot
from torchdismech.state import Control, State

__all__ = ["RecordedEnergies"]

EVALUATIONS_BEFORE_RECORDING = 12  # which takes about as long as these
KEPT = 4  # kinds of states and controls
LARGEST = 60_000  # numbers in q of all robots: what more take is arithmetic, not calls


class RecordedEnergies:
    """What `Mechanics.energies` finds without pairs in contact, from tapes where there are some.

    Parameters
    ----------
    mechanics : of the model.
    """

    def __init__(self, mechanics: Mechanics):
        self._mechanics = mechanics
        self._snapshot: Snapshot | None = None
        self._own = False  # whether all that is evaluated is the library's own code
        self._asked: dict[Hashable, int] = {}
        self._tapes: dict[Hashable, _Tape | None] = {}  # None: it cannot be recorded

    def found(self, state: State, control: Control, snapshot: Snapshot) -> dict[str, Tensor] | None:
        """Return the energies, each (B,) [J], by name; None where torch has to find them.

        Parameters
        ----------
        snapshot : the model's snapshot; no values of a control stand in the model.
        """
        controls = control.tensors()
        given = [*state.fields(), *controls.values()]
        self._forget_other_models(snapshot)
        if not self._may_be_recorded(given, snapshot):
            return None
        kind = (state.kind, *((name, value.shape) for name, value in controls.items()))
        if kind not in self._tapes:
            self._asked[kind] = self._asked.get(kind, 0) + 1
            if self._asked[kind] < EVALUATIONS_BEFORE_RECORDING or len(self._tapes) == KEPT:
                return None
            self._tapes[kind] = self._recorded(state, control)
        tape = self._tapes[kind]
        return None if tape is None else tape.found(given)

    def _forget_other_models(self, snapshot: Snapshot) -> None:
        """Let recordings go of a model that is another one now."""
        if snapshot is self._snapshot:
            return
        evaluated = [*self._mechanics.terms, *(f for f in self._mechanics.forces if isinstance(f, Obstacle))]
        self._own = all(is_own(module) for owner in evaluated for module in owner.modules())
        self._snapshot, self._asked, self._tapes = snapshot, {}, {}

    def _may_be_recorded(self, given: Sequence[Tensor], snapshot: Snapshot) -> bool:
        """Return whether a recording may serve: for numbers on a CPU, of which no gradients are taken."""
        differentiated = torch.is_grad_enabled() and snapshot.requires_gradients
        q = given[0]
        return (
            self._own
            and not (differentiated or snapshot.parametrized or snapshot.hooked)
            and q.is_cpu
            and q.numel() <= LARGEST
            and fits(*given)
            and not (watched() or torch.is_inference_mode_enabled())
            and not torch.nn.modules.module._has_any_global_hook()
        )

    def _recorded(self, state: State, control: Control) -> _Tape | None:
        try:
            return _Tape(self._mechanics, state, control)
        except Unrecordable:  # an obstacle reads numbers, such as the nearest triangle of a mesh
            return None


class _Tape:
    """Energies of states and controls of one kind.

    Parameters
    ----------
    mechanics, state, control : of which they are found; others have the same shapes.
    """

    def __init__(self, mechanics: Mechanics, state: State, control: Control):
        self._buffers = StaticBuffers([*state.fields(), *control.tensors().values()])
        static = iter(self._buffers.tensors)
        own_state = state.with_fields(next(static) for _ in state.fields())
        own_control = Control.of({name: next(static) for name in control.tensors()})
        self._buffers.give([*state.fields(), *control.tensors().values()])
        self.names: list[str] = []

        def stacked() -> Tensor:
            found = mechanics.energies(own_state, own_control)
            self.names = [*found]
            return torch.stack([*found.values()])

        self._tape = recorded(stacked, state.q.device, None)
        reads = self._tape.reads if isinstance(self._tape, Tape) else None
        if reads is not None:
            places = [tensor.untyped_storage().data_ptr() for tensor in self._buffers.tensors]
            self._buffers.read_at(k for k, place in enumerate(places) if place in reads)

    def found(self, given: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the energies (B,) by name."""
        self._buffers.give(given)
        return dict(zip(self.names, self._tape.replay().clone().unbind(), strict=True))

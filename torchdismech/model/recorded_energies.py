"""Energies of robots from recordings: a run needs them in each frame, and torch takes as long as a step of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from torchdismech.contact import Obstacle
from torchdismech.model.mechanics import Mechanics
from torchdismech.model.replays import Replays
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot

__all__ = ["RecordedEnergies"]


class RecordedEnergies:
    """The energies of `Mechanics.energies`, without pairs in contact, from a tape after a number of calls.

    Parameters
    ----------
    mechanics : of the model.
    """

    def __init__(self, mechanics: Mechanics):
        self._mechanics = mechanics
        self._replays = Replays()
        self._names: list[str] = []  # the same for all states of a model

    def replayed(self, state: State, control: Control, snapshot: Snapshot) -> dict[str, Tensor] | None:
        """Return the energies, each (B,) [J], by name; None without a recording: torch has to evaluate them.

        Parameters
        ----------
        snapshot : of the model; no values of a control may stand in the model.
        """
        controls = control.tensors()

        def stacked(tensors: Sequence[Tensor]) -> list[Tensor]:
            static = iter(tensors)
            own_state = state.with_fields(next(static) for _ in state.fields())
            energies = self._mechanics.energies(own_state, Control.of({name: next(static) for name in controls}))
            self._names = [*energies]
            return [torch.stack([*energies.values()])]

        inputs = [*state.fields(), *controls.values()]
        kind = (state.kind, *((name, value.shape) for name, value in controls.items()))
        outputs = self._replays.replayed(stacked, inputs, kind, (snapshot,), self.evaluated)
        return None if outputs is None else dict(zip(self._names, outputs[0].unbind(), strict=True))

    def evaluated(self) -> Iterable[nn.Module]:
        """Return the modules whose code is evaluated: elastic terms, and obstacles for the energy of contact."""
        return [*self._mechanics.terms, *(force for force in self._mechanics.forces if isinstance(force, Obstacle))]

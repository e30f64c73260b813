"""Recorded answers of controllers: torch's separate calls for one take longer than a step of one robot."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor, nn

from torchdismech.control.protocol import Memory
from torchdismech.model import Model
from torchdismech.model.replays import Replays
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.system.forks import lock_for_threads

__all__ = ["RecordedAnswers"]

KEPT_AS = "_recorded"  # the attribute of a controller that holds its recordings


class RecordedAnswers:
    """Recordings (tapes) of one controller's answers, made and replayed as they are asked for; copies start without."""

    def __init__(self) -> None:
        self._replays, self._turn = Replays(), lock_for_threads()
        self._snapshot: Snapshot | None = None
        self._names: dict[Hashable, tuple[list[str], list[str]]] = {}  # by kind, those in controls and in memories

    def __reduce__(self) -> tuple:
        return type(self), ()

    def replayed(
        self,
        controller: nn.Module,
        answer: Callable[[State, Memory, Control, Model], tuple[Control, Memory]],
        state: State,
        memory: Memory,
        control: Control,
        model: Model,
    ) -> tuple[Control, Memory] | None:
        """Return the controller's answer from a recording; None where the caller has to compute it.

        Arguments are those of `Feedback.forward`, besides:

        Parameters
        ----------
        answer : computes the answer; called here only to record it.
        """
        if control.values:
            return None
        memory_values = [value for _, value in sorted(memory.items())]
        shapes = tuple((name, memory[name].shape, memory[name].dtype) for name in sorted(memory))
        kind = (state.kind, control.kind, shapes)

        def computed(tensors: Sequence[Tensor]) -> list[Tensor]:
            static = iter(tensors)
            its_state = state.with_fields(next(static) for _ in state.fields())
            its_memory = {name: next(static) for name in sorted(memory)}
            inputs = Control.of({name: next(static) for name in control.tensors()})
            answered, after = answer(its_state, its_memory, inputs, model)
            self._names[kind] = [*answered.tensors()], [*after]
            return [*answered.tensors().values(), *after.values()]

        with self._turn, model.lock:  # another thread that steps the model may have put other values in it
            snapshots = (self._shown(controller), model.snapshot())
            inputs = [*state.fields(), *memory_values, *control.tensors().values()]
            outputs = self._replays.replayed(computed, inputs, kind, snapshots, lambda: [controller, *model.terms])
            if outputs is None:
                return None
            answered, after = self._names[kind]
        values = iter(outputs)
        return Control.of({name: next(values) for name in answered}), {name: next(values) for name in after}

    def _shown(self, controller: nn.Module) -> Snapshot:
        """Return a snapshot of the controller's tensors: the same object as before if nothing has changed since."""
        if self._snapshot is None or not self._snapshot.is_current(controller):
            self._snapshot = Snapshot(controller, KEPT_AS)
        return self._snapshot

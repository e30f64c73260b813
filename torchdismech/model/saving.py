"""`SavedModel`: copies, pickles and saved numbers of a model, also while a step has put other numbers in its places."""

from __future__ import annotations

import copy
import threading
from typing import Any, Self

from torch import nn

from torchdismech.errors import InputError
from torchdismech.system.forks import lock_for_threads
from torchdismech.values import originals_in_place, others_stand_in

__all__ = ["SavedModel"]


class SavedModel(nn.Module):
    """A module whose tensors are replaced by others while a step is taken (`values.Values`).

    Copies, pickles and saved numbers are those of its own tensors.

    Attributes
    ----------
    lock : a thread that puts numbers in the model's places holds it.
    turn : one of the threads that share out a step holds it, too, while it has numbers of its part in these places.
    """

    lock: threading.RLock
    turn: threading.RLock
    of_this_object: tuple[str, ...]  # attributes that copies do not take along

    def begin_anew(self) -> None:
        """Make the attributes that belong to this object alone: its locks, and caches of subclasses, empty."""
        self.lock, self.turn = lock_for_threads(), lock_for_threads()

    def __getstate__(self) -> dict:
        self._refuse_within_a_step("pickle", "save its state_dict(), or pickle it between two steps")
        return {name: value for name, value in self.__dict__.items() if name not in self.of_this_object}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.begin_anew()

    def __deepcopy__(self, memo: dict) -> Self:
        with self.lock, self.turn, originals_in_place():
            memo[id(self)] = twin = type(self).__new__(type(self))
            twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the model's own numbers, as `nn.Module.state_dict` does, at any time.

        Another thread waits for the end of a step. A signal handler in the middle of a step waits at most for a part of
        the batch, and gets the numbers as they are between steps.
        """
        with self.lock, self.turn, originals_in_place():
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load numbers, as `nn.Module.load_state_dict` does, between two steps.

        Raises
        ------
        InputError
            A signal handler or a hook calls it in the middle of a step.
        """
        with self.lock, self.turn:
            self._refuse_within_a_step("load_state_dict", "load numbers between two steps")
            return super().load_state_dict(*args, **kwargs)

    def _refuse_within_a_step(self, called: str, advice: str) -> None:
        """Refuse a call in the middle of a step, while the step's tensors stand in places of the model."""
        if others_stand_in(self):
            raise InputError(
                f"{called}: expected a model between two steps, got one in the midst of a step, which a signal "
                f"handler or a hook interrupts; {advice}"
            )

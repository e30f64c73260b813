"""What a machine may lack, a compiler or Triton: looked for once in a process, and all that ask hear the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, TypeVar

from torchdismech.errors import InputError
from torchdismech.system.plain import PLAIN, in_plain_torch

__all__ = ["LookedForOnce", "Unavailable", "refuse_if_plain"]

T = TypeVar("T")


class Unavailable(InputError):
    """Compiled code or kernels cannot be had: the message names what is missing and what to do."""


class LookedForOnce(Generic[T]):
    """A function without arguments that runs once in a process: later calls return, or raise, what the first did.

    Parameters
    ----------
    look : returns what is found, or raises `Unavailable`.

    Attributes
    ----------
    outcome : of the first call; None before it.
    """

    def __init__(self, look: Callable[[], T]):
        self.outcome: T | Unavailable | None = None
        self._look = look
        update_wrapper(self, look)

    def __call__(self) -> T:
        """Return what was found, or raise a new `Unavailable` with the message of the first."""
        if self.outcome is None:
            try:
                self.outcome = self._look()
            except Unavailable as error:
                self.outcome = error
        if isinstance(self.outcome, Unavailable):
            raise Unavailable(str(self.outcome))
        return self.outcome


def refuse_if_plain() -> None:
    """Say that compiled code and kernels cannot be had where the environment asks for plain torch."""
    if in_plain_torch():
        raise Unavailable(f"{PLAIN} asks for plain torch")

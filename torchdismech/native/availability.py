"""Optional tools, a compiler or Triton: a process looks for each once, and every later request gets the same answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, TypeVar

from torchdismech.errors import InputError
from torchdismech.system.plain import PLAIN, in_plain_torch

__all__ = ["LookedForOnce", "Unavailable", "refuse_if_plain"]

T = TypeVar("T")


class Unavailable(InputError):
    """Compiled code or kernels are not available: the message names what is missing and what to do."""


class LookedForOnce(Generic[T]):
    """A function without arguments that runs once in a process: later calls return or raise the outcome of the first.

    Parameters
    ----------
    look : the function, which may raise `Unavailable`.

    Attributes
    ----------
    outcome : what the first call returned or raised; None before it.
    """

    def __init__(self, look: Callable[[], T]):
        self.outcome: T | Unavailable | None = None
        self._look = look
        update_wrapper(self, look)

    def __call__(self) -> T:
        """Return the result of the first call, or raise a new `Unavailable` with its message."""
        if self.outcome is None:
            try:
                self.outcome = self._look()
            except Unavailable as error:
                self.outcome = error
        if isinstance(self.outcome, Unavailable):
            raise Unavailable(str(self.outcome))
        return self.outcome


def refuse_if_plain() -> None:
    """Raise `Unavailable` where the environment asks for plain torch (`system/plain.py`)."""
    if in_plain_torch():
        raise Unavailable(f"{PLAIN} asks for plain torch")

"""What a tape is told of work that torch does not see (see `tape.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["listened_to_by", "taped", "taping"]


class Listener(Protocol):
    """What keeps the work while a tape is recorded."""

    def take(self, work: Callable[[], Any], tensors: tuple) -> None:
        """Do some work and keep it."""


_listener: Listener | None = None


def taped(work: Callable[[], Any], *tensors: Any) -> None:
    """Do some work that torch does not see, now and in every replay of the tape that is being recorded, if one is.

    Parameters
    ----------
    work : reads and writes memory that exists before, and nothing else that changes.
    tensors : all that it writes, and those that it knows by their addresses alone.
    """
    if _listener is None:
        work()
    else:
        _listener.take(work, tensors)


def taping() -> bool:
    """Return whether a tape is being recorded."""
    return _listener is not None


@contextmanager
def listened_to_by(listener: Listener) -> Iterator[None]:
    """Let a listener take the work that is done meanwhile."""
    global _listener
    _listener = listener
    try:
        yield
    finally:
        _listener = None

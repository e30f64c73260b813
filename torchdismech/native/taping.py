"""How code that torch does not see takes part in a tape (`tape.py`) while that is recorded; what no tape can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

__all__ = ["NumbersRead", "listened_to_by", "taped", "taping"]


class NumbersRead(RuntimeError):
    """A function reads numbers of tensors, so that what it does next may depend on them: no tape can hold it."""


class Listener(Protocol):
    """What keeps the work while a tape is recorded: `recorder.TapeRecorder`."""

    def take(
        self,
        work: Callable[[], Any],
        tensors: tuple,
        reads: Sequence[Tensor] | None,
        writes: Sequence[Tensor] | None,
    ) -> None:
        """Do some work and keep it; see `taped`."""


class _Listening(threading.local):
    """Who listens in this thread: what others do meanwhile is not part of what is recorded here."""

    listener: Listener | None = None


_here = _Listening()


def taped(
    work: Callable[[], Any],
    *tensors: Any,
    reads: Sequence[Tensor] | None = None,
    writes: Sequence[Tensor] | None = None,
) -> None:
    """Do some work that torch does not see, now and in every replay of the tape that is being recorded, if one is.

    Parameters
    ----------
    work : reads and writes memory that exists before, and nothing else that changes.
    tensors : all that it writes, and those that it knows by their addresses alone.
    reads : what else it reads; None where that is not known, so that it may be anything.
    writes : of `tensors`, those that it writes, the whole of each, and does not read; None: it may read and write all.
    """
    if _here.listener is None:
        work()
    else:
        _here.listener.take(work, tensors, reads, writes)


def taping() -> bool:
    """Return whether a tape is being recorded."""
    return _here.listener is not None


@contextmanager
def listened_to_by(listener: Listener) -> Iterator[None]:
    """Let a listener take the work that this thread does meanwhile."""
    _here.listener = listener
    try:
        yield
    finally:
        _here.listener = None

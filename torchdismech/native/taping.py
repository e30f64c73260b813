"""`taped`: how work that is no operation of torch becomes part of a tape (`tape.py`) that is being recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torchdismech.native.recorder import TapeRecorder

__all__ = ["NumbersRead", "listened_to_by", "taped", "taping"]


class NumbersRead(RuntimeError):
    """A function reads numbers of tensors, so that what it does next may depend on them: no tape can hold it."""


class _Listening(threading.local):
    """What records the work of this thread for a tape; the work of other threads does not become part of it."""

    recorder: TapeRecorder | None = None


_here = _Listening()


def taped(
    work: Callable[[], Any],
    *tensors: Any,
    reads: Sequence[Tensor] | None = None,
    writes: Sequence[Tensor] | None = None,
) -> None:
    """Do work that is no operation of torch; if a tape is being recorded, the work is also part of every replay.

    Parameters
    ----------
    work : callable that reads and writes memory that exists already, and depends on nothing else that changes.
    tensors : the tensors that it writes, and those that it knows by address alone.
    reads : other tensors that it reads; None if that is not known, so that it may read anything.
    writes : those of `tensors` that it overwrites as a whole without reading them; None if it may read and write all of
        `tensors`.
    """
    if _here.recorder is None:
        work()
    else:
        _here.recorder.take(work, tensors, reads, writes)


def taping() -> bool:
    """Return whether this thread is recording a tape."""
    return _here.recorder is not None


@contextmanager
def listened_to_by(recorder: TapeRecorder) -> Iterator[None]:
    """Return a context in which the work of this thread is recorded, too."""
    _here.recorder = recorder
    try:
        yield
    finally:
        _here.recorder = None

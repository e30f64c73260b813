"""Work that is shared out among threads, each of which takes the next piece as soon as it is done with one.

Threads gain where pieces spend their time in compiled code, during which other threads may use Python.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

import torch

from torchdismech.system.interrupts import held_back

__all__ = ["shared_out"]

Tool = TypeVar("Tool")
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class _Here(threading.local):
    """Whether this thread takes pieces now."""

    within = False


_here = _Here()


def shared_out(work: Callable[[Tool, Piece], Result], tools: Sequence[Tool], pieces: Iterable[Piece]) -> list[Result]:
    """Return work(tool, piece) for all pieces in order, by one thread for each tool; the calling thread has the first.

    No gradients are recorded on these threads. If a call raises an error, no further piece is begun, and the error is
    raised here once no thread works any more. Work that is shared out within such work stays on one thread. Threads
    that are busy elsewhere are not waited for, and where none can begin, the calling thread does all.
    """
    if len(tools) < 2 or _here.within:
        return [work(tools[0], piece) for piece in pieces]
    waiting, inference = deque(enumerate(pieces)), torch.is_inference_mode_enabled()
    results: dict[int, Result] = {}
    unused: deque[Tool] = deque(tools[1:])
    ends: SimpleQueue[BaseException | None] = SimpleQueue()  # of threads that have taken a tool, their error or None

    def take_pieces(tool: Tool) -> None:
        _here.within = True
        try:
            for number, piece in _taken_from(waiting):
                results[number] = work(tool, piece)
        except BaseException:
            waiting.clear()
            raise
        finally:
            _here.within = False

    def take_pieces_as_caller() -> None:
        for tool in islice(_taken_from(unused), 1):  # there is none left if this begins late
            try:
                with torch.inference_mode(inference), torch.no_grad():
                    take_pieces(tool)
            except BaseException as error:
                ends.put(error)
            else:
                ends.put(None)

    try:
        with suppress(RuntimeError):  # no thread can begin any more, as Python ends or there are too many
            for _ in tools[1:]:
                _pool().submit(take_pieces_as_caller)
        with torch.no_grad():
            take_pieces(tools[0])
    finally:
        with held_back():  # an interrupt must not leave threads behind that work on what the caller goes on with
            working = len(tools) - 1 - len([*_taken_from(unused)])
            errors = [ends.get() for _ in range(working)]
    for error in errors:
        if error is not None:
            raise error
    return [results[number] for number in sorted(results)]


def _taken_from(waiting: deque[Piece]) -> Iterator[Piece]:
    """Yield the pieces that are left, some of which other threads take."""
    while True:
        try:
            piece = waiting.popleft()
        except IndexError:
            return
        yield piece


@lru_cache(None)
def _pool() -> ThreadPoolExecutor:
    """Return up to one thread for each core, which are begun as there is work for them, and sleep while there is none.

    Work that finds none of them free begins later, and then has nothing left to do, mostly.
    """
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="torchdismech")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has no thread but the one that forked

"""Signals that ask a process to end, Ctrl-C (SIGINT) and SIGTERM: what the command line says and leaves behind.

Nothing here takes time to import: the handler is there before torch is. Until a run begins, and after it, a signal ends
the process at once, with one sentence, as there is nothing to close, and an exception out of the middle of an import
or of other people's code may be swallowed. Within `raising` it raises `Stopped`, so that files are closed and other
processes are told.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

__all__ = [
    "Stopped",
    "answer_held",
    "end_if_asked",
    "held_back",
    "ignore",
    "install",
    "raising",
    "say_at_the_end",
    "sentence",
]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WORDS = {signal.SIGINT: "stopped by the keyboard", signal.SIGTERM: "stopped by SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """What a shell calls the end by this signal: 130 or 143."""
        return 128 + self.number


class _Process:
    """What a signal meets."""

    outcome = "nothing was written"
    raises = False
    asked: int | None = None  # the signal that came

    def __init__(self) -> None:
        self.held: list[Callable[[], object]] = []  # answers to signals that came while they were held back


_process = _Process()


def install() -> None:
    """Answer the signals from now on; one that the process was started to ignore stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _answer)


def ignore() -> None:
    """Ignore the signals from now on: all is done, and the second that Python takes to end needs no end of its own."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say_at_the_end(outcome: str) -> None:
    """Set what a signal from now on says: what is kept, and how to go on."""
    _process.outcome = outcome


def sentence(number: int) -> str:
    """Return what is said when a signal ends the process."""
    return f"{WORDS[signal.Signals(number)]}: {_process.outcome}"


@contextmanager
def raising(here: bool = True) -> Iterator[None]:
    """Let signals raise `Stopped` in the block, if `here`."""
    before = _process.raises
    _process.raises = before or here
    try:
        yield
    finally:
        _process.raises = before


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back to the end of the block: what it does is done whole or not at all."""
    if threading.current_thread() is not threading.main_thread():  # no signal gets here
        yield
        return
    own: list[Callable[[], object]] = []
    before: dict[int, Callable[[int, FrameType | None], object]] = {}
    for each in SIGNALS:
        found = signal.getsignal(each)
        if callable(found):
            before[each] = found
            signal.signal(each, lambda number, _: own.append(partial(before[number], number, None)))
    outer, _process.held = _process.held, own
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _process.held = outer
    for answer in own:
        answer()


def answer_held() -> None:
    """Answer the signals that the block around holds back, at a place where what that raises is passed on."""
    if _process.held and threading.current_thread() is threading.main_thread():
        _process.held.pop(0)()


def end_if_asked() -> None:
    """Raise `Stopped` if a signal came and what it raised was swallowed, as a finaliser or a callback in C does."""
    if _process.raises and _process.asked is not None:
        raise Stopped(_process.asked)


def _answer(number: int, _: FrameType | None) -> None:
    if _process.asked is not None:  # the process is ending
        return
    _process.asked = number
    if _process.raises:
        raise Stopped(number)
    with suppress(Exception):  # the signal may have come while this very buffer was being written
        sys.stdout.flush()
    if os.environ.get("RANK", "0") == "0":  # of the processes of torchrun one speaks
        below = "\n" if os.isatty(2) else ""  # a progress bar
        os.write(2, f"{below}{sentence(number)}\n".encode())
    os._exit(128 + number)

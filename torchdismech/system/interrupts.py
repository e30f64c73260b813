"""Signals that ask a process to end, Ctrl-C (SIGINT) and SIGTERM: what the command line prints and how it ends.

This module imports nothing heavy, so that its handler is installed before torch is imported. Until a run begins, and
after it, a signal ends the process at once, with one sentence: no file is open, and an exception raised in the middle
of an import or of other people's code might be swallowed. Within `raising` a signal raises `Stopped` instead, so that
files are closed and other processes are told.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
# whose handlers in Python may raise: a time limit, what a cluster sends before it ends a job, the death of a worker of
# torch's DataLoader (SIGCHLD)
HELD_BACK = (
    *SIGNALS,
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
    *(signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)
WORDS = {signal.SIGINT: "stopped by the keyboard", signal.SIGTERM: "stopped by SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """The exit status by which shells report an end by this signal: 130 or 143."""
        return 128 + self.number


class _Process:
    """State of the process that the signal handler reads.

    Attributes
    ----------
    outcome : what `sentence` says of the results, such as what was written.
    raises : whether a signal raises `Stopped` (within `raising`) rather than ends the process.
    asked : the first signal that came, None before.
    held : handlers to call later, of signals that came within `held_back`.
    """

    outcome = "nothing was written"
    raises = False
    asked: int | None = None

    def __init__(self) -> None:
        self.held: list[Callable[[], object]] = []


_process = _Process()


def install() -> None:
    """Install the handler of both signals; one that the process was started to ignore stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _answer)


def ignore() -> None:
    """Ignore both signals from now on: the work is done, and Python's own end takes only about a second."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say_at_the_end(outcome: str) -> None:
    """Set the sentence that a signal from now on ends with: which results are kept, and how to go on."""
    _process.outcome = outcome


def sentence(number: int) -> str:
    """Return the message that is printed when a signal ends the process."""
    return f"{WORDS[signal.Signals(number)]}: {_process.outcome}"


@contextmanager
def raising(here: bool = True) -> Iterator[None]:
    """Let signals raise `Stopped` in the block, if `here`; otherwise leave it as the surrounding block has it."""
    before = _process.raises
    _process.raises = before or here
    try:
        yield
    finally:
        _process.raises = before


@contextmanager
def held_back() -> Iterator[None]:
    """Answer signals only at the end of the block, so that its work is done as a whole or not at all.

    All that came are answered, also where one of the answers raises. None is where the block raises: where processes
    have agreed in it on an error, an answer that raises another one in its place would keep the others waiting.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal gets here
        yield
        return
    own: list[Callable[[], object]] = []
    outer = _process.held
    with ExitStack() as ends:  # the last one comes first, and all come, though a signal may interrupt one
        ends.callback(setattr, _process, "held", outer)
        for each in HELD_BACK:
            if callable(handler := signal.getsignal(each)):
                ends.callback(signal.signal, each, handler)
                signal.signal(each, partial(_hold_back, own, handler))
        _process.held = own
        yield
    _answer_all(own)


def _hold_back(held: list[Callable[[], object]], handler: Callable, number: int, frame: FrameType | None) -> None:
    held.append(partial(handler, number, frame))


def _answer_all(held: list[Callable[[], object]]) -> None:
    with ExitStack() as answers:
        for answer in reversed(held):  # the stack calls the last one first
            answers.callback(answer)


def answer_held() -> None:
    """Answer now the oldest signal that the surrounding `held_back` holds back, if there is one.

    To be called where an exception that the answer raises is passed on, as in Python code that compiled code calls.
    """
    if _process.held and threading.current_thread() is threading.main_thread():
        _process.held.pop(0)()


def end_if_asked() -> None:
    """Raise `Stopped` if a signal came within `raising`, but a finaliser or a C callback swallowed its exception."""
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
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun prints for all
        below = "\n" if os.isatty(2) else ""  # below a progress bar
        os.write(2, f"{below}{sentence(number)}\n".encode())
    os._exit(128 + number)

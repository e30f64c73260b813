"""How a command ends, and what it prints."""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import typer

from torchdismech.system import interrupts
from torchdismech.system.imports import without_collections

if TYPE_CHECKING:
    from torchdismech.system.processes import Processes

__all__ = ["FAILED", "explained", "printing", "refusing", "say_written", "table"]

REFUSED = 2  # exit status: the input cannot be used
FAILED = 3  # exit status: a robot's step failed, or another process


def refusing(command: Callable) -> Callable:
    """Turn refused input into one sentence and exit status 2, a failed step into exit status 3; warn in one line."""

    @functools.wraps(command)
    def wrapped(*args, **options):
        with without_collections():  # the first import of torch
            from torchdismech.system.processes import ALONE

        with explained(ALONE), _warnings_in_one_line():
            return command(*args, **options)

    return wrapped


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings by their words alone meanwhile: whoever types a command learns nothing from a line of Python."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


@contextmanager
def explained(processes: Processes) -> Iterator[None]:
    """Say in the first process why the command ends, and end all of them with an exit status."""
    from torchdismech.errors import InputError, SimulationError
    from torchdismech.system.processes import ProcessError

    try:
        yield
    except (InputError, _Unwritten) as error:
        said, exit_status = f"error: {error}", REFUSED
    except (SimulationError, ProcessError) as error:
        said, exit_status = f"failed: {error}", FAILED
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, interrupts.Stopped) else interrupts.Stopped()
        said, exit_status = interrupts.sentence(stopped.number), stopped.exit_status
    except Exception:
        if processes.world == 1:
            raise
        traceback.print_exc()  # here: the others know its message only
        said, exit_status = "", FAILED
    else:
        return
    if said and processes.writes:
        print(said, file=sys.stderr)
    processes.wait_to_end()
    raise typer.Exit(exit_status)


@contextmanager
def printing() -> Iterator[None]:
    """Print as far as standard output can be written; end the process where it cannot, with a sentence.

    A closed pipe, whose reader has what it wants, ends it without one.
    """
    if sys.stdout is None:  # closed from the start: all prints go nowhere
        yield
        return
    sys.stdout = _Output.like(sys.stdout)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(1)
    except _Unwritten as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)


class _Unwritten(Exception):
    """Standard output could not be written."""


class _Output(io.TextIOWrapper):
    """Standard output, which escapes what its encoding lacks; once it cannot be written, prints go nowhere."""

    @classmethod
    def like(cls, stream: TextIO) -> _Output:
        """Return one that writes to the same place."""
        assert isinstance(stream, io.TextIOWrapper)
        errors = "backslashreplace" if stream.errors == "strict" else stream.errors
        return cls(stream.buffer, stream.encoding, errors, None, stream.line_buffering, stream.write_through)

    def write(self, text: str) -> int:
        if text == "":  # by which click asks whether this takes text: it swallows what that raises
            return 0
        try:
            return super().write(text)
        except OSError as error:
            self._end(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> NoReturn:
        """Raise what ends the process; what Python still writes at its end goes nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if error.errno == errno.EPIPE:
            raise error
        raise _Unwritten(
            f"standard output cannot be written: {error.strerror}; send it elsewhere (files written by now are kept)"
        ) from error


def say_written(path: Path, what: str = "") -> None:
    """Say that a file is written, also where a signal ends the process now."""
    interrupts.say_at_the_end(f"{path} is written")
    print(f"wrote {path}{what}")


def table(rows: dict[str, str]) -> str:
    """Return names and values, one a line."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

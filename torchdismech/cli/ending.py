"""How commands end: exit status, errors and warnings in one sentence, and what they print."""

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

REFUSED = 2  # exit status: the input cannot be used, or standard output cannot be written
FAILED = 3  # exit status: a robot's step failed, or another process did


def refusing(command: Callable) -> Callable:
    """Return a command that ends with one sentence and an exit status where it raises an error, as `explained` says.

    Its warnings are printed in one line each.
    """

    @functools.wraps(command)
    def wrapped(*args, **options):
        with without_collections():  # torch is imported here for the first time
            from torchdismech.system.processes import ALONE

        with explained(ALONE), _warnings_in_one_line():
            return command(*args, **options)

    return wrapped


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings in the block without file and line of the Python code, which do not help users of a command."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


@contextmanager
def explained(processes: Processes) -> Iterator[None]:
    """Turn an error in the block into a sentence on standard error and an exit status of each process.

    Refused input ends with status 2, a failed step or process with 3, a signal with 128 + its number. The first process
    alone prints the sentence; all wait for each other before they exit. Any other exception is an error in the code: a
    single process raises it; of several processes, one that meets it prints its traceback and ends with status 3.
    """
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
        traceback.print_exc()  # in the process that raised it: the others are told its message alone
        said, exit_status = "", FAILED
    else:
        return
    if said and processes.writes:
        print(said, file=sys.stderr)
    processes.wait_to_end()
    raise typer.Exit(exit_status)


@contextmanager
def printing() -> Iterator[None]:
    """End the process with a sentence and status 2 if what the block prints cannot be written, as on a full disk.

    A closed pipe, such as to `head`, ends it with status 1 and without a sentence: its reader has read enough.
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
    """Standard output that writes characters which its encoding lacks as escapes.

    After the first error in writing, which it raises, all that is printed is discarded.
    """

    @classmethod
    def like(cls, stream: TextIO) -> _Output:
        """Return an `_Output` on the buffer of `stream`, with the same encoding and buffering."""
        assert isinstance(stream, io.TextIOWrapper)
        errors = "backslashreplace" if stream.errors == "strict" else stream.errors
        return cls(stream.buffer, stream.encoding, errors, None, stream.line_buffering, stream.write_through)

    def write(self, text: str) -> int:
        if text == "":  # click writes this to find out whether the stream takes text, and swallows errors
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
        """Raise the error that ends the process: `BrokenPipeError` for a closed pipe, else `_Unwritten`.

        Before that, the file descriptor is redirected to the null device, so that Python's flush at exit cannot fail.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if error.errno == errno.EPIPE:
            raise error
        raise _Unwritten(
            f"standard output cannot be written: {error.strerror}; send it elsewhere (files written by now are kept)"
        ) from error


def say_written(path: Path, what: str = "") -> None:
    """Print that a file was written, followed by `what`; a signal that ends the process from now on says so, too."""
    interrupts.say_at_the_end(f"{path} is written")
    print(f"wrote {path}{what}")


def table(rows: dict[str, str]) -> str:
    """Return names and values as text: one name with its value per line, values aligned."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

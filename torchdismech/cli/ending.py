"""How a command ends, and what it prints."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torchdismech.system import interrupts
from torchdismech.system.imports import without_collections

if TYPE_CHECKING:
    from torchdismech.system.processes import Processes

__all__ = ["FAILED", "explained", "refusing", "say_written", "table"]

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
    except InputError as error:
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


def say_written(path: Path, what: str = "") -> None:
    """Say that a file is written, also where a signal ends the process now."""
    interrupts.say_at_the_end(f"{path} is written")
    print(f"wrote {path}{what}")


def table(rows: dict[str, str]) -> str:
    """Return names and values, one a line."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

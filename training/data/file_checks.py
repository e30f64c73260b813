"""Checks of a data file before it is read, and errors of reading it in one line."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from torchdismech.errors import InputError
from torchdismech.system.memory import available_bytes, size_of

__all__ = ["refuse_oversized", "refuse_what_is_no_file", "short_error"]


def refuse_what_is_no_file(path: Path) -> None:
    """Refuse a path that is no plain file, such as a pipe, which has no end, or a file that may not be read."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a plain file' if path.exists() else 'no such file or folder'}")
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def refuse_oversized(path: Path, needed: float) -> None:
    """Refuse a file whose content takes `needed` bytes, if these are more than half of the free memory."""
    free = available_bytes(torch.device("cpu"))
    if needed > free / 2:
        raise InputError(
            f"{path}: takes about {size_of(needed)} of memory, and {size_of(free)} are free; expected at most half of "
            "that: divide it into several files, or take a larger machine"
        )


def short_error(error: BaseException) -> str:
    """Return the text of an error as one line of about 200 characters at most."""
    line = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "what is no number", " ".join(str(error).split()))
    return line[:200] if line and not isinstance(error, LookupError) else f"{type(error).__name__} {line[:200]}".strip()

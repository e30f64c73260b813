"""What the command line may write over: nothing that a run is made of, nothing of another kind, the rest if asked."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torchdismech.errors import InputError

__all__ = [
    "PICTURES",
    "begins_with",
    "is_picture",
    "refuse_input",
    "refuse_no_place",
    "refuse_overwriting",
    "write_table",
]

# how files of the kinds that pictures are written to begin
PICTURES = {".png": b"\x89PNG\r\n", ".pdf": b"%PDF", ".svg": b"<?xml"}


def refuse_input(path: Path, inputs: Mapping[str, Path]) -> None:
    """Refuse to write over one of the files that what is written is made of; they are given by what they are."""
    for what, file in inputs.items():
        if path.exists() and file.exists() and path.samefile(file):
            raise InputError(f"--out {path}: is {what} of this very command: choose another name")


def refuse_no_place(path: Path) -> None:
    """Refuse a file in a folder that is not there, and one that is a folder: before the work whose result it takes."""
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; expected the name of a file")


def refuse_overwriting(path: Path, overwrite: bool, kind: str, is_kind: Callable[[Path], bool], instead: str) -> None:
    """Refuse to write over a file of another kind, and over any file that nobody asked to replace.

    Parameters
    ----------
    kind, is_kind : what is written, and how a file of this kind is known.
    instead : what can be done other than to overwrite.
    """
    if not path.exists() or path.is_dir():  # a folder is refused where the file is made
        return
    if not path.is_file() or not is_kind(path):
        raise InputError(f"--out {path}: is there already, and no {kind}: choose another name, or remove it first")
    if not overwrite:
        raise InputError(f"--out {path}: is there already: choose another name, {instead}or pass --overwrite")


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows as CSV, the header first; a file that cannot be written is refused."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror or error}") from error


def is_picture(path: Path) -> bool:
    """Return whether the file begins as a picture of its name's kind does."""
    return begins_with(path, PICTURES.get(path.suffix.lower()))


def begins_with(path: Path, beginning: bytes | None) -> bool:
    """Return whether a file begins with some bytes; no file does where these are not known, None."""
    with path.open("rb") as file:
        return beginning is not None and file.read(len(beginning)) == beginning

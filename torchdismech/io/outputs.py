"""Checks of output files, so that commands overwrite no input and no file of another kind; and tables as CSV."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torchdismech.errors import InputError

__all__ = [
    "PICTURES",
    "begins_with",
    "is_picture",
    "is_table",
    "refuse_input",
    "refuse_no_place",
    "refuse_overwriting",
    "replacing",
    "write_table",
]

# formats of pictures: the endings of their names, and the bytes with which such files begin
PICTURES = {".png": b"\x89PNG\r\n", ".pdf": b"%PDF", ".svg": b"<?xml"}


def refuse_input(path: Path, inputs: Mapping[str, Path]) -> None:
    """Refuse an output file that is one of the command's inputs; `inputs` has these by what messages call them."""
    for what, file in inputs.items():
        if path.exists() and file.exists() and path.samefile(file):
            raise InputError(f"--out {path}: is {what} of this very command: choose another name")


def refuse_no_place(path: Path) -> None:
    """Refuse an output file whose folder does not exist, or that is a folder, before the work whose result it takes."""
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; expected the name of a file")


def refuse_overwriting(path: Path, overwrite: bool, kind: str, is_kind: Callable[[Path], bool], instead: str) -> None:
    """Refuse to write over a file of another kind, and over any file that nobody asked to replace.

    Parameters
    ----------
    kind, is_kind : the kind of file in messages, and a function that tells whether a file is of it.
    instead : part of a message: what the user can do other than overwrite, followed by ", "; may be empty.
    """
    if not path.exists() or path.is_dir():  # folders are refused where the file is opened
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path in a folder of its own, from which the file that the block writes there is moved to `path`.

    So no half of a file is left if the block fails or is stopped. A file that cannot be written is refused.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
            part = Path(folder) / path.name
            yield part
            os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def is_table(path: Path, header: Sequence[str]) -> bool:
    """Return whether a file begins with the header of a table that `write_table` wrote."""
    return begins_with(path, (",".join(header) + "\n").encode())


def is_picture(path: Path) -> bool:
    """Return whether a file begins with the bytes of the picture format that its name's ending says."""
    return begins_with(path, PICTURES.get(path.suffix.lower()))


def begins_with(path: Path, beginning: bytes | None) -> bool:
    """Return whether a file begins with the bytes `beginning`; False if these are None, as for an unknown format."""
    with path.open("rb") as file:
        return beginning is not None and file.read(len(beginning)) == beginning

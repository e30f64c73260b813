"""The files that a scene names: their paths, their digests, and what error messages may show of their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchdismech.errors import InputError
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.schema.base import NAMES_FILE, NAMES_TIME_TABLE, marked
from torchdismech.io.schema.scene import Document
from torchdismech.io.tables import TimeTable, read_time_table

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["fingerprints", "named_files", "named_time_tables", "reading", "table_over_time"]


def named_files(document: Document) -> dict[str, str]:
    """Return the names of all files that a scene names, by dotted key; for "file.py:function" the file's."""
    names = {".".join(map(str, key)): name for key, name in marked(document, NAMES_FILE)}
    return names | {key: name.rpartition(":")[0] for key, name in document.code.items()}


def named_time_tables(document: Document) -> dict[str, str]:
    """Return the names of those files that are tables over time, by dotted key."""
    return {".".join(map(str, key)): name for key, name in marked(document, NAMES_TIME_TABLE)}


def fingerprints(scene: Path, document: Document) -> dict[str, str]:
    """Return the SHA-256 of all files that a scene names, by dotted key."""
    digests = {}
    for key, name in named_files(document).items():
        with existing(scene, key, name).open("rb") as file:
            digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def existing(scene: Path, key: str | Key, name: str) -> Path:
    """Return the path of a file that a scene names under a key; refuse one that is not there."""
    path = scene.parent / name
    try:
        exists = path.is_file()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise SceneError(scene, key, f"cannot be read: {path}: {error.strerror}") from error
    if not exists:
        raise SceneError(scene, key, f"no such file: {path}")
    return path


@contextmanager
def reading(scene: Path, key: str | Key, name: str) -> Iterator[Path]:
    """Yield the path of a file that a scene names, for a block that reads it.

    A scene may name any file, and messages quote what is wrong in it. For files outside of the scene's folder (links
    followed) they give the number of the line alone: otherwise a scene from a stranger could make the program print
    files that only its user may read.
    """
    path = existing(scene, key, name)
    try:
        yield path
    except InputError as error:
        if path.resolve().is_relative_to(scene.parent.resolve()):
            raise
        line = re.match(rf"{re.escape(str(path))}:(\d+):", str(error))
        where = f"line {line[1]} of {path}" if line else str(path)
        problem = (
            f"{where} is not what was expected there; it lies outside of the scene's folder, so nothing of what is in "
            "it is shown: copy it into the folder to be told more"
        )
        raise SceneError(scene, key, problem) from None


def table_over_time(scene: Scene, key: str | Key, name: str, columns: dict[int, str]) -> TimeTable:
    """Read a table over time that a scene names; refuse several rows with the static integrator, which has no time.

    Parameters
    ----------
    columns : as of `read_time_table`.
    """
    with reading(scene.path, key, name) as path:
        table = read_time_table(path, columns)
    if scene.document.simulation.integrator == "static" and len(table.times) > 1:
        problem = f'{name} has {len(table.times)} rows: integrator = "static" has no time; expected one row'
        raise SceneError(scene.path, key, problem)
    return table

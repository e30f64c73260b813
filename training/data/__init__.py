"""Recordings of real robots: read from files, checked, repaired where rules allow it, and cut into windows.

`tables.py`, `npz.py`, `pickles.py` and `simulated.py` read files; `recordings.py` has the class that they all lead to;
`preparing.py` checks recordings against `rules.py`; `windows.py` cuts them.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdismech.errors import InputError, path_of
from training.data.file_checks import refuse_what_is_no_file
from training.data.npz import read_npz
from training.data.pickles import read_pickle
from training.data.preparing import in_order, prepared
from training.data.recordings import Recordings
from training.data.rules import Rules
from training.data.simulated import read_trajectory
from training.data.stacking import Single, stacked
from training.data.tables import read_table
from training.data.windows import Window, Windows, WindowSampler, gather, windows
from training.options import checked

__all__ = [
    "WITHOUT_SPLITS",
    "Recordings",
    "Rules",
    "Window",
    "WindowSampler",
    "Windows",
    "gather",
    "holds_recordings",
    "in_order",
    "prepared",
    "read",
    "windows",
]

# by the ending of files: readers of files that hold many recordings, and of files that hold one each
READERS: dict[str, Callable[..., Recordings]] = {".npz": read_npz, ".h5": read_trajectory}
SINGLE_READERS: dict[str, Callable[..., Single]] = {
    ".csv": read_table,
    ".pkl": read_pickle,
    ".pickle": read_pickle,
}
WITHOUT_SPLITS = (".h5", *SINGLE_READERS)  # endings of files without splits; a folder may have splits as subfolders


def read(path: str | Path, split: str | None = None, **options: Any) -> Recordings:
    """Return the recordings at a path, as they are: see `prepared` for checks and repairs.

    Parameters
    ----------
    path : a .npz file; an .h5 trajectory file; a .csv or .pkl (.pickle) file; or a folder of the latter two.
    split : which recordings: a key of the .npz file, or a subfolder.
    options : further arguments of the reader. Pickles do not hold their `dt` [s] and need it. Folders take
        `truncate=True`, to cut all recordings to the shortest, or `pad=True`, to continue the shorter ones with frames
        in which no marker is seen. .h5 takes `drop_failed=True`, to leave out robots of which a step failed. .csv and
        .npz take `inputs=("pressure",)`, the names of what was recorded along with the motion.

    Raises
    ------
    InputError
        The path cannot be read, the reader does not have an option, or it finds a fault in a file.
    """
    path = path_of(path, "read")
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: no name of a file")
    if os.path.isdir(path):  # False, too, where a name is too long to be one
        return _read_folder(path, split, options)
    refuse_what_is_no_file(path)
    kind = path.suffix.lower()
    if kind not in READERS and kind not in SINGLE_READERS:
        kinds = ", ".join([*READERS, *SINGLE_READERS])
        raise InputError(f"{path}: unknown kind of file; expected a folder or one of {kinds}")
    if split is not None and kind in WITHOUT_SPLITS:
        raise InputError(f"{path}: a {kind} file has no splits, got {split!r}: leave split out")
    if kind in SINGLE_READERS:
        return stacked([_called(SINGLE_READERS[kind], path, options)])
    return _called(READERS[kind], path, options if split is None else {**options, "split": split})


def holds_recordings(path: str) -> bool:
    """Return whether a path is a folder that holds files of single recordings itself, so that it needs no splits."""
    try:
        return os.path.isdir(path) and any(os.path.splitext(n)[1].lower() in SINGLE_READERS for n in os.listdir(path))
    except (OSError, ValueError):  # `read` will refuse it by name
        return False


def _read_folder(folder: Path, split: str | None, options: dict[str, Any]) -> Recordings:
    """Return the recordings of all files in a folder, or in its subfolder `split`, sorted by name."""
    lengths: dict[str, Any] = {name: options.pop(name) for name in ("truncate", "pad") if name in options}
    lengths = checked(stacked, lengths, str(folder), ("singles",))
    inside = folder if split is None else folder / split
    if not os.path.isdir(inside):
        raise InputError(f"{inside}: no such folder; expected one for the split {split!r}")
    try:
        everything = sorted(inside.iterdir(), key=_natural)
    except OSError as error:
        raise InputError(f"{inside}: cannot be read: {error.strerror or error}") from error
    files = [file for file in everything if file.suffix.lower() in SINGLE_READERS]
    _refuse_files_of_many(inside, [f for f in everything if f.suffix.lower() in READERS and not f.is_dir()])
    if not files:
        below = ", ".join(sorted(entry.name for entry in everything if entry.is_dir()))
        hint = f": name a split among its folders {below}" if below and split is None else ""
        raise InputError(f"{inside}: no recordings; expected {', '.join(SINGLE_READERS)} files{hint}")
    readers = {SINGLE_READERS[file.suffix.lower()] for file in files}
    if len(readers) > 1:
        raise InputError(f"{inside}: tables and pickles side by side; expected one kind: keep them in two folders")
    reader = readers.pop()
    for file in files:
        refuse_what_is_no_file(file)
    return stacked([_called(reader, file, options) for file in files], **lengths)


def _refuse_files_of_many(folder: Path, files: list[Path]) -> None:
    """Refuse a folder with files of many recordings each, which would be left out without a word."""
    if files:
        raise InputError(
            f"{folder}: {files[0].name} holds many recordings; of a folder {', '.join(SINGLE_READERS)} files are read, "
            "of one recording each: give the path of that file, or keep it elsewhere"
        )


def _natural(file: Path) -> list[tuple[int, str]]:
    """Return a sort key that takes digits in names as numbers, so that 2 comes before 10."""
    parts = re.split(r"([0-9]{1,18})", file.name)
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in parts]


def _called(reader: Callable[..., Any], path: Path, options: dict[str, Any]) -> Any:
    """Call a reader on a file and return its result; refuse options that it does not have, or missing ones."""
    own = {name: p for name, p in inspect.signature(reader).parameters.items() if name != "path"}
    unknown = [name for name in options if name not in own]
    if unknown:
        takes = ", ".join(own) or "none"
        raise InputError(f"{path}: no option {', '.join(unknown)} for this kind of file; it takes: {takes}")
    lacking = [name for name, p in own.items() if p.default is p.empty and name not in options]
    if lacking:
        raise InputError(f"{path}: it does not hold {', '.join(lacking)}: pass it, as in read(path, dt=0.01)")
    return reader(path, **checked(reader, options, str(path), ("path",)))

"""NumbersFile: writes rows and states into a trajectory file at known offsets; creates files and checks disk space."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.robot.state import BatchState, tensor_fields
from torchdismech.system.memory import size_of
from torchdismech.trajectory.checksums import row_checksums, state_checksum
from torchdismech.trajectory.partial import replacing, write_all
from torchdismech.trajectory.structure import COPIES, MEMORY, Contents, Place, lay_out

if TYPE_CHECKING:
    from torchdismech.trajectory.frames import Trajectory

__all__ = ["NumbersFile", "array_of", "check_space", "created", "write_whole"]

BLOCK = 1 << 22  # most bytes per write when datasets are filled or rows copied


class NumbersFile:
    """A trajectory file with its structure complete: numbers are overwritten in place, nothing moves or grows.

    Parameters
    ----------
    stream : the open file; unbuffered.
    places : offsets, shapes and dtypes of the datasets that a run fills, by name.
    """

    def __init__(self, stream: io.FileIO, places: Mapping[str, Place]):
        self._stream, self._places = stream, places
        self._columns = sorted(name for name in places if _is_row(name))

    def fill(self, first: int) -> None:
        """Fill rows from `first` on, and the states, with values for "not written"; this allocates the disk space."""
        for name, place in self._places.items():
            before = first * place.row_bytes if _is_row(name) or name == "checksums/rows" else 0
            size = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize - before
            count = min(size, BLOCK) // place.dtype.itemsize
            block = np.full(count, place.fill).data.cast("B") if count else b""
            for start in range(0, size, BLOCK):
                write_all(self._stream, place.offset + before + start, block[: size - start])

    def write_rows(self, first: int, datasets: Mapping[str, np.ndarray]) -> None:
        """Write rows from `first` on; their times are written last, as only rows with a time count as written."""
        if sorted(datasets) != self._columns:
            raise ValueError(f"expected the datasets {self._columns}, got {sorted(datasets)}")
        rows = {name: self._fitted(name, values, first) for name, values in datasets.items()}
        sums = row_checksums(rows)
        for name, values in ({name: rows[name] for name in rows if name != "time"} | {"checksums/rows": sums}).items():
            self._write(name, values, first)
        self._write("time", rows["time"], first)

    def write_state(self, state: BatchState, memory: Mapping[str, Tensor], step: int) -> None:
        """Write the state and the controller's memory to both copies, one after the other."""
        fields = _fields(state, memory)
        checksum = np.array(state_checksum(fields, step), dtype=np.uint32)
        for copy in reversed(COPIES):
            self._write(f"{copy}/step", np.array(-1))
            for name, values in fields.items():
                if values.shape != self._places[f"{copy}/{name}"].shape:
                    raise ValueError(f"state/{name}: has shape {values.shape}; the first had another")
                self._write(f"{copy}/{name}", values)
            self._write(f"{copy}/checksum", checksum)
            self._write(f"{copy}/step", np.array(step))

    def stands_at(self, path: Path) -> bool:
        """Return whether `path` still names this file, which may have been replaced or deleted."""
        return path.exists() and os.path.samestat(os.fstat(self._stream.fileno()), path.stat())

    def close(self) -> None:
        """Close the file; some file systems report only then that they are full."""
        self._stream.close()

    def _fitted(self, name: str, values: np.ndarray, first: int) -> np.ndarray:
        """Return rows in the dtype of the dataset; refuse another shape, and rows beyond the file's capacity."""
        place = self._places[name]
        if first + len(values) > place.shape[0]:
            raise ValueError(f"the file has room for {place.shape[0]} rows, got row {first + len(values) - 1}")
        if values.shape[1:] != place.shape[1:]:
            raise ValueError(f"{name}: a row has shape {values.shape[1:]}; the first had {place.shape[1:]}")
        return np.ascontiguousarray(values.astype(place.dtype, casting="same_kind", copy=False))

    def _write(self, name: str, values: np.ndarray, row: int = 0) -> None:
        place = self._places[name]
        values = np.ascontiguousarray(values, dtype=place.dtype)
        write_all(self._stream, place.offset + row * place.row_bytes, values)


def created(stream: io.FileIO, capacity: int, trajectory: Trajectory) -> NumbersFile:
    """Write a trajectory into a new, empty file, with room for `capacity` rows; return it for further writing."""
    rows = {name: array_of(values) for name, values in trajectory.datasets().items()}
    places = lay_out(stream, capacity, _contents(trajectory, rows))
    file = NumbersFile(stream, places)
    file.fill(len(trajectory.time))
    size = max(1, BLOCK // sum(values[:1].nbytes for values in rows.values()))
    for first in range(0, len(trajectory.time), size):
        file.write_rows(first, {name: values[first : first + size] for name, values in rows.items()})
    file.write_state(trajectory.state, trajectory.memory, trajectory.state_step)
    return file


def write_whole(path: Path, trajectory: Trajectory) -> None:
    """Write a trajectory to a file with exactly as many rows, replacing an existing file."""
    check_space(path, len(trajectory.time), trajectory)
    with replacing(path) as stream:
        file = created(stream, len(trajectory.time), trajectory)
    file.close()


def check_space(path: Path, capacity: int, first: Trajectory) -> None:
    """Refuse a file with `capacity` rows like those of `first` if the disk has not enough free space."""
    rows = {name: array_of(values[:1]) for name, values in first.datasets().items()}
    contents = _contents(first, rows)
    row = sum(values.nbytes for values in rows.values())
    rest = 2 * sum(v.nbytes for v in contents.state.values()) + sum(
        v.nbytes for v in contents.known_before_run().values()
    )
    needed = capacity * row + rest
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise InputError(
            f"{path}: {capacity} rows and the state need {size_of(needed)} and the disk has {size_of(free)}: "
            "store fewer frames (output.every) or fewer robots"
        )


def array_of(values: Tensor) -> np.ndarray:
    """Return a tensor as a numpy array on the CPU."""
    return values.detach().cpu().numpy()


def _is_row(name: str) -> bool:
    """Return whether a dataset that a run fills has one entry for each row."""
    return not name.startswith(("state/", "checksums/"))


def _fields(state: BatchState, memory: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return the arrays of a copy of the state and of the memory, by the names of their datasets."""
    fields = {name: array_of(getattr(state, name)) for name in tensor_fields(state)}
    return fields | {f"{MEMORY}/{name}": array_of(value) for name, value in memory.items()}


def _contents(trajectory: Trajectory, rows: Mapping[str, np.ndarray]) -> Contents:
    return Contents(
        rows,
        _fields(trajectory.state, trajectory.memory),
        {name: np.asarray(getattr(trajectory, name), dtype=np.int64) for name in ("rod_edges", "triangles")},
        {name: array_of(values) for name, values in trajectory.randomized.items()},
        trajectory.attributes,
    )

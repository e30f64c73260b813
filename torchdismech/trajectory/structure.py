"""The datasets of a trajectory file: names, shapes, units; an HDF5 file with room for them; where they stand in it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchdismech.trajectory.checksums import fixed_checksum
from torchdismech.trajectory.partial import write_all
from torchdismech.version import __version__

if TYPE_CHECKING:
    import h5py

__all__ = ["COPIES", "DATASETS", "MEMORY", "SHAPES", "Contents", "Place", "lay_out", "unit_of_strain"]

COPIES = ("state", "state/backup")
MEMORY = "memory"  # group in a copy of the state: what a controller remembers there
# where the fields of a `Trajectory` that have one entry a row stand in the file
DATASETS = {
    "step": "step",
    "time": "time",
    "positions": "positions",
    "velocities": "velocities",
    "twist": "twist",
    "iterations": "newton/iterations",
    "iterations_max": "newton/iterations_max",
    "residual": "newton/residual",
    "status": "newton/status",
}
# T rows, B robots, N nodes, A framed edges (or joints of a chain, or chambers of an arm), n dofs, S springs, M internal
# variables, C contacts of an arm, E rod edges, F triangles
SHAPES: dict[str, tuple[str | int, ...]] = {
    "time": ("T",),
    "step": ("T",),
    "positions": ("T", "B", "N", 3),
    "velocities": ("T", "B", "N", 3),
    "twist": ("T", "B", "A"),
    "newton/iterations": ("T", "B"),
    "newton/iterations_max": ("T", "B"),
    "newton/residual": ("T", "B"),
    "newton/status": ("T", "B"),
    "state/q": ("B", "n"),
    "state/velocity": ("B", "n"),
    "state/acceleration": ("B", "n"),
    "state/director": ("B", "A", 3),
    "state/tangent": ("B", "A", 3),
    "state/reference_twist": ("B", "S"),
    "state/internal": ("B", "M"),
    "state/impulses": ("B", "C", 3),
    "state/positions": ("B", "N", 3),
    "state/node_velocities": ("B", "N", 3),
    "state/time": ("B",),
    "state/previous_step": ("B", "n"),
    "state/previous_velocity": ("B", "n"),
    "state/step_length": ("B",),
    "state/reached_velocity": ("B", "n"),
    "topology/rod_edges": ("E", 2),
    "topology/triangles": ("F", 3),
}
UNITS = {
    "step": "1",
    "time": "s",
    "positions": "m",
    "velocities": "m/s",
    "twist": "rad",
    "newton/iterations": "1",
    "newton/iterations_max": "1",
    "newton/residual": "N",
    "newton/status": "value of torchdismech.Status: 0 is converged",
    "contact/active": "1",
    "contact/sticking": "1",
    "contact/sliding": "1",
    "contact/penetration": "m",
    "contact/node_force": "N",
    "state/q": "m, rad",
    "state/velocity": "m/s, rad/s",
    "state/acceleration": "m/s^2, rad/s^2",
    "state/director": "1",
    "state/tangent": "1",
    "state/reference_twist": "rad",
    "state/internal": "as the laws of the materials have it",
    "state/impulses": "N s",
    "state/positions": "m",
    "state/node_velocities": "m/s",
    "state/time": "s",
    "state/previous_step": "m, rad",
    "state/previous_velocity": "m/s, rad/s",
    "state/step_length": "s",
    "state/reached_velocity": "m/s, rad/s",
}
STRAIN_UNITS = {"tau": "rad", "hinge_angle": "rad", "curvature": "1/m"}  # of those that are no pure numbers
ALIGNMENT = 8  # bytes: where numbers of that size may stand in memory, into which they are mapped


@dataclass(frozen=True)
class Place:
    """Where the numbers of a dataset stand in the file, in C order."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """Size of one entry of the first axis; of the whole where there is no axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def fill(self) -> np.ndarray:
        """What stands where nothing was written: NaN, of whole numbers -1, of checksums 0."""
        value = {"f": np.nan, "i": -1, "u": 0}[self.dtype.kind]
        return np.array(value, dtype=self.dtype)


@dataclass(frozen=True)
class Contents:
    """What the structure of a file follows from.

    Attributes
    ----------
    rows : arrays (rows, ...) by dataset.
    state : arrays by field, and what a controller remembers by "memory/" and its name.
    topology : "rod_edges" and "triangles".
    randomized : (B, ...) by name.
    texts : attributes of the file.
    """

    rows: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    topology: Mapping[str, np.ndarray]
    randomized: Mapping[str, np.ndarray]
    texts: Mapping[str, str]

    def room(self, capacity: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape and dtype of the datasets that a run writes, with room for so many rows."""
        state = {f"{copy}/{name}": values for copy in COPIES for name, values in self.state.items()}
        counted = np.dtype(np.int64)
        return (
            {name: ((capacity, *values.shape[1:]), values.dtype) for name, values in self.rows.items()}
            | {name: (values.shape, values.dtype) for name, values in state.items()}
            | {f"{copy}/step": ((), counted) for copy in COPIES}
            | {f"{copy}/checksum": ((), np.dtype(np.uint32)) for copy in COPIES}
            | {"checksums/rows": ((capacity, len(self.rows)), np.dtype(np.uint32))}
        )

    def given(self) -> dict[str, np.ndarray]:
        """Return the arrays that are known before a run, by dataset.

        Texts are among them, as bytes: attributes are for people and other programs, as HDF5 does not check what is in
        them, and may read on for ever where they are damaged.
        """
        topology = {f"topology/{name}": values for name, values in self.topology.items()}
        randomized = {f"randomized/{name}": values for name, values in self.randomized.items()}
        texts = {f"texts/{name}": np.frombuffer(text.encode(), np.uint8) for name, text in self.all_texts().items()}
        return topology | randomized | texts

    def all_texts(self) -> dict[str, str]:
        """Return the attributes of the file with those that the format adds."""
        dtype = str(self.rows["positions"].dtype)
        return dict(self.texts) | {"version": __version__, "dtype": dtype, "units": "SI"}


def lay_out(stream: io.FileIO, capacity: int, contents: Contents) -> dict[str, Place]:
    """Write the structure of a file with room for `capacity` rows; return where the datasets stand that a run fills."""
    import h5py

    given, room = contents.given(), contents.room(capacity)
    kinds = {name: (dtype, shape) for name, (shape, dtype) in room.items()}
    with _in_hands_of_hdf5(stream) as steady:
        # the format of HDF5 1.8: its structure has checksums, and it has no mark that outlives a killed writer
        options = {"libver": ("v108", "v108"), "alignment_threshold": ALIGNMENT, "alignment_interval": ALIGNMENT}
        with h5py.File(steady, "w", **options) as file:
            places = {name: _allocated(file, name, shape, dtype) for name, (shape, dtype) in room.items()}
            for group in ("energy", "randomized"):  # which may be empty
                file.require_group(group)
            for name, values in given.items():
                file[name] = values
            file["checksums/fixed"] = np.uint32(fixed_checksum(kinds, given))
            for name, text in contents.all_texts().items():
                file.attrs[name] = text
    return places


def _allocated(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Place:
    """Make a dataset of one piece and return where it stands; nothing is written to it."""
    import h5py

    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    group = file.require_group(name.rpartition("/")[0] or "/")
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    kind = h5py.h5t.py_create(dtype, logical=True)
    dataset = h5py.h5d.create(group.id, name.rpartition("/")[2].encode(), kind, space, layout)
    unit = "J" if name.startswith("energy/") else UNITS.get(name.replace("backup/", ""))
    unit = "N" if name.startswith(("contact/force/", "contact/load/")) else unit
    unit = "N, N m" if name.startswith("reaction/") else unit
    unit = unit_of_strain(name.removeprefix("strain/")) if name.startswith("strain/") else unit
    if unit is not None:
        file[name].attrs["units"] = unit
    return Place(dataset.get_offset() or 0, shape, dtype)  # no offset: there are no numbers


class _Steady(io.RawIOBase):
    """A stream as HDF5 sees it: it takes everything, keeps the first failure, and drops what comes after that.

    HDF5 cannot close a file that it cannot write to, and crashes at the end of the process when it tries again.
    """

    def __init__(self, stream: io.FileIO):
        self._stream = stream
        self.failure: BaseException | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def readinto(self, buffer) -> int | None:
        return self._stream.readinto(buffer)

    def write(self, data) -> int:
        if self.failure is None:
            try:
                write_all(self._stream, self._stream.tell(), data)
            except BaseException as failure:  # raised again in `_in_hands_of_hdf5`
                self.failure = failure
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        if self.failure is None:
            try:
                self._stream.truncate(size)
            except BaseException as failure:  # raised again in `_in_hands_of_hdf5`
                self.failure = failure
        return size or 0


@contextmanager
def _in_hands_of_hdf5(stream: io.FileIO) -> Iterator[_Steady]:
    """Yield what HDF5 may write to; raise what failed in it once HDF5 has let go of it."""
    steady = _Steady(stream)
    try:
        yield steady
    finally:
        if steady.failure is not None:
            raise steady.failure


def unit_of_strain(name: str) -> str:
    """Return the unit of a strain by the name that runs keep it by; "1" of pure numbers."""
    return STRAIN_UNITS.get(name.rstrip("12"), "1")

"""The structure of a trajectory file: names, shapes and units of datasets, and an HDF5 file with room for them."""

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

__all__ = ["COPIES", "DATASETS", "GROUPS", "MEMORY", "SHAPES", "Contents", "Place", "lay_out", "unit_of_strain"]

COPIES = ("state", "state/backup")
MEMORY = "memory"  # the group in each copy of the state that holds the controller's memory
# dataset names of those fields of a `Trajectory` that have one entry for each row
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
# groups of those datasets of a row that have names of their own, by the field of a `Trajectory`
GROUPS = {"energies": "energy", "contact": "contact", "strains": "strain", "reactions": "reaction"}
# shapes and units of datasets, for T rows, B robots, N nodes, A framed edges (or joints of a chain, or chambers of an
# arm), n dofs, S springs, M internal variables, C contacts of an arm, E rod edges, F triangles
DESCRIBED: dict[str, tuple[tuple[str | int, ...], str | None]] = {
    "time": (("T",), "s"),
    "step": (("T",), "1"),
    "positions": (("T", "B", "N", 3), "m"),
    "velocities": (("T", "B", "N", 3), "m/s"),
    "twist": (("T", "B", "A"), "rad"),
    "newton/iterations": (("T", "B"), "1"),
    "newton/iterations_max": (("T", "B"), "1"),
    "newton/residual": (("T", "B"), "N"),
    "newton/status": (("T", "B"), "value of torchdismech.Status: 0 is converged"),
    "contact/active": (("T", "B"), "1"),
    "contact/sticking": (("T", "B"), "1"),
    "contact/sliding": (("T", "B"), "1"),
    "contact/penetration": (("T", "B"), "m"),
    "contact/node_force": (("T", "B", "N", 3), "N"),
    "state/q": (("B", "n"), "m, rad"),
    "state/velocity": (("B", "n"), "m/s, rad/s"),
    "state/acceleration": (("B", "n"), "m/s^2, rad/s^2"),
    "state/director": (("B", "A", 3), "1"),
    "state/tangent": (("B", "A", 3), "1"),
    "state/reference_twist": (("B", "S"), "rad"),
    "state/internal": (("B", "M"), "as the laws of the materials have it"),
    "state/impulses": (("B", "C", 3), "N s"),
    "state/positions": (("B", "N", 3), "m"),
    "state/node_velocities": (("B", "N", 3), "m/s"),
    "state/time": (("B",), "s"),
    "state/previous_step": (("B", "n"), "m, rad"),
    "state/previous_velocity": (("B", "n"), "m/s, rad/s"),
    "state/step_length": (("B",), "s"),
    "state/reached_velocity": (("B", "n"), "m/s, rad/s"),
    "topology/rod_edges": (("E", 2), None),
    "topology/triangles": (("F", 3), None),
}
SHAPES = {name: shape for name, (shape, _) in DESCRIBED.items()}
# units where a state is of a chain of rigid elements, or of an arm
OF_CHAINS = {"newton/residual": "rad", "state/q": "rad", "state/velocity": "rad/s", "state/acceleration": "rad/s^2"}
OF_ARMS = {"twist": "m", "state/q": "m", "state/velocity": "m/s"}
STRAIN_UNITS = {"tau": "rad", "hinge_angle": "rad", "curvature": "1/m"}  # all other strains are dimensionless
ALIGNMENT = 8  # bytes: offsets of datasets, so that mapped into memory their numbers are aligned


@dataclass(frozen=True)
class Place:
    """The contiguous numbers of a dataset in the file, in C order: byte offset, shape and dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis; of the single number if there is no axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def fill(self) -> np.ndarray:
        """The value that means "not written": NaN for reals, -1 for integers, 0 for checksums."""
        value = {"f": np.nan, "i": -1, "u": 0}[self.dtype.kind]
        return np.array(value, dtype=self.dtype)


@dataclass(frozen=True)
class Contents:
    """The arrays and texts that determine the structure of a file.

    Attributes
    ----------
    rows : arrays (rows, ...) by dataset name.
    state : arrays of the state by field name, and of the controller's memory by "memory/" and its name.
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
        """Return shape and dtype of each dataset that a run writes, with room for `capacity` rows."""
        state = {f"{copy}/{name}": values for copy in COPIES for name, values in self.state.items()}
        counted = np.dtype(np.int64)
        return (
            {name: ((capacity, *values.shape[1:]), values.dtype) for name, values in self.rows.items()}
            | {name: (values.shape, values.dtype) for name, values in state.items()}
            | {f"{copy}/step": ((), counted) for copy in COPIES}
            | {f"{copy}/checksum": ((), np.dtype(np.uint32)) for copy in COPIES}
            | {"checksums/rows": ((capacity, len(self.rows)), np.dtype(np.uint32))}
        )

    def known_before_run(self) -> dict[str, np.ndarray]:
        """Return the arrays that are known before a run, by dataset name.

        Texts are among them, as bytes. They are attributes, too, but only for people and other programs: HDF5 does not
        check the contents of attributes, and may never finish reading damaged ones.
        """
        topology = {f"topology/{name}": values for name, values in self.topology.items()}
        randomized = {f"randomized/{name}": values for name, values in self.randomized.items()}
        texts = {f"texts/{name}": np.frombuffer(text.encode(), np.uint8) for name, text in self.all_texts().items()}
        return topology | randomized | texts

    def all_texts(self) -> dict[str, str]:
        """Return all attributes of the file: the given texts, and those that the format adds."""
        dtype = str(self.rows["positions"].dtype)
        return dict(self.texts) | {"version": __version__, "dtype": dtype, "units": "SI"}


def lay_out(stream: io.FileIO, capacity: int, contents: Contents) -> dict[str, Place]:
    """Write the structure of a file with room for `capacity` rows; return the places of datasets that a run fills."""
    import h5py

    known_before, room = contents.known_before_run(), contents.room(capacity)
    kinds = {name: (dtype, shape) for name, (shape, dtype) in room.items()}
    with _in_hands_of_hdf5(stream) as steady:
        # The format of HDF5 1.8 has checksums of its structure, but no "open for writing" flag, which a killed writer
        # would leave behind.
        options = {"libver": ("v108", "v108"), "alignment_threshold": ALIGNMENT, "alignment_interval": ALIGNMENT}
        with h5py.File(steady, "w", **options) as file:
            places = {name: _allocated(file, name, shape, dtype) for name, (shape, dtype) in room.items()}
            for name in room:
                if (unit := _unit(name.replace("backup/", ""), contents.state)) is not None:
                    file[name].attrs["units"] = unit
            for group in ("energy", "randomized"):  # they exist even if nothing is in them
                file.require_group(group)
            for name, values in known_before.items():
                file[name] = values
            file["checksums/fixed"] = np.uint32(fixed_checksum(kinds, known_before))
            for name, text in contents.all_texts().items():
                file.attrs[name] = text
    return places


def _allocated(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Place:
    """Create a contiguous dataset and return its place; nothing is written to it yet."""
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
    return Place(dataset.get_offset() or 0, shape, dtype)  # an empty dataset has no offset


class _Steady(io.RawIOBase):
    """A stream for HDF5 whose writes never fail: it stores the first exception and discards all writes after it.

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
    """Yield a stream for HDF5 to write to; raise the first exception of its writes once HDF5 has closed the file."""
    steady = _Steady(stream)
    try:
        yield steady
    finally:
        if steady.failure is not None:
            raise steady.failure


def _unit(name: str, state: Mapping[str, np.ndarray]) -> str | None:
    """Return the unit of a dataset in the file of a run with these fields of its state; None where there is none."""
    for group, unit in {"energy/": "J", "contact/force/": "N", "contact/load/": "N", "reaction/": "N, N m"}.items():
        if name.startswith(group):
            return unit
    if name.startswith("strain/"):
        return unit_of_strain(name.removeprefix("strain/"))
    of_kind = OF_ARMS if "impulses" in state else OF_CHAINS if "positions" in state else {}
    return of_kind.get(name) or DESCRIBED.get(name, ((), None))[1]


def unit_of_strain(name: str) -> str:
    """Return the unit of a strain by its dataset name; "1" if it is dimensionless."""
    return STRAIN_UNITS.get(name.rstrip("12"), "1")

"""What happened: the frames of a run in memory, and the HDF5 file that they are written to and read from.

The file. All its structure is made before the run, under another name, with room for every row; then each frame only
fills numbers in. So the structure cannot break: a run killed at any moment leaves a file that any HDF5 reader opens,
with everything written so far. Rows not reached are NaN in `/time`, -1 in `/step`; `Trajectory.load` leaves them out.
The last full state stands twice, in `/state` and `/state/backup`, and is written to one after the other: one of
them is whole at any moment (`step` is -1 in the one that is being written).
(A kill of the process is meant. What the machine keeps when its power fails is up to the file system.)
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, Status
from torchdismech.state import State

if TYPE_CHECKING:
    import h5py

__all__ = ["Frame", "Recorder", "Trajectory", "TrajectoryWriter"]

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
    "energy": "J",
    "contact/active": "1",
    "contact/sticking": "1",
    "contact/sliding": "1",
    "contact/penetration": "m",
    "state/q": "m, rad",
    "state/velocity": "m/s, rad/s",
    "state/acceleration": "m/s^2, rad/s^2",
    "state/director": "1",
    "state/tangent": "1",
    "state/reference_twist": "rad",
    "state/time": "s",
}
STATE_FIELDS = tuple(f.name for f in dataclasses.fields(State))
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


@dataclass(frozen=True)
class Frame:
    """One row of a trajectory: a state, and how the solves of the steps since the row before went.

    Attributes
    ----------
    step : number of steps from the start of the run.
    state : the state after them.
    iterations, iterations_max : (B,) long, Newton iterations of these steps: the sum, and the most of one step.
    residual : (B,) the largest residual at which one of these steps ended [N].
    status : (B,) long, value of `Status`: CONVERGED, or the first failure.
    energies : (B,) [J] by name.
    contact : what contact did in the last of these steps, by name (see `contact.report`); "penetration" in all of them.
    """

    step: int
    state: State
    iterations: Tensor
    iterations_max: Tensor
    residual: Tensor
    status: Tensor
    energies: Mapping[str, Tensor]
    contact: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def initial(cls, state: State, energies: Mapping[str, Tensor]) -> Frame:
        """Return row 0: no step done yet."""
        zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
        return cls(0, state, zero, zero, zero.to(state.q.dtype), zero, energies)

    def cpu(self) -> Frame:
        """Return the frame on the CPU."""
        return Frame(
            self.step,
            self.state.to("cpu"),
            self.iterations.cpu(),
            self.iterations_max.cpu(),
            self.residual.cpu(),
            self.status.cpu(),
            {name: value.cpu() for name, value in self.energies.items()},
            {name: value.cpu() for name, value in self.contact.items()},
        )

    @classmethod
    def joined(cls, frames: Sequence[Frame]) -> Frame:
        """Return the frames of parts of a batch, at the same step, as one of the whole batch."""
        state = State.joined([f.state for f in frames])
        names = ("iterations", "iterations_max", "residual", "status")
        tensors = {name: torch.cat([getattr(f, name) for f in frames]) for name in names}
        energies = {name: torch.cat([f.energies[name] for f in frames]) for name in frames[0].energies}
        contact = {name: torch.cat([f.contact[name] for f in frames]) for name in frames[0].contact}
        return cls(frames[0].step, state, energies=energies, contact=contact, **tensors)

    def row(self) -> dict[str, Tensor]:
        """Return what goes into one row of a trajectory, by the names of its fields."""
        return {
            "step": torch.tensor(self.step),
            "time": self.state.time.max(),  # a robot that failed stays behind at an earlier time
            "positions": self.state.positions,
            "velocities": self.state.node_velocities,
            "twist": self.state.twist,
            "iterations": self.iterations,
            "iterations_max": self.iterations_max,
            "residual": self.residual,
            "status": self.status,
        }


@dataclass
class Trajectory:
    """The stored frames of a run of B robots.

    Attributes
    ----------
    step, time : (T,) number of steps done and time [s]; row 0 is the initial state.
    positions, velocities : (T, B, N, 3) of the nodes [m, m/s].
    twist : (T, B, A) angles of the framed edges [rad]: rods' twist first, then joints', then mid-edge normals.
    iterations, iterations_max, residual, status : (T, B), as in `Frame`.
    energies : (T, B) [J] by name.
    contact : (T, B) or (T, B, 3) by name, as in `Frame`.
    rod_edges, triangles : (E, 2), (F, 3) node indices.
    state : the last full state, after `state_step` steps.
    randomized : (B,) by dotted name, what was drawn for each robot.
    attributes : texts: the scene, the package's version, dtype.
    """

    step: Tensor
    time: Tensor
    positions: Tensor
    velocities: Tensor
    twist: Tensor
    iterations: Tensor
    iterations_max: Tensor
    residual: Tensor
    status: Tensor
    energies: dict[str, Tensor]
    rod_edges: np.ndarray
    triangles: np.ndarray
    state: State
    state_step: int
    randomized: dict[str, Tensor] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    contact: dict[str, Tensor] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Number of robots."""
        return self.positions.shape[1]

    @property
    def failed(self) -> Tensor:
        """Whether a step of each robot failed, (B,) bool."""
        return (self.status != 0).any(0)

    def save(self, path: str | Path) -> None:
        """Write the file, replacing one of that name when all is written."""
        path = _writable(Path(path))
        partial = _create(path, len(self.time), self)
        with _opened(partial, "r+") as file:
            _write_rows(file, slice(None), self._datasets())
            _write_state(file, self.state, self.state_step)
        os.replace(partial, path)

    def _datasets(self) -> dict[str, Tensor]:
        named = {f"energy/{name}": value for name, value in self.energies.items()}
        named |= {f"contact/{name}": value for name, value in self.contact.items()}
        return {dataset: getattr(self, name) for name, dataset in DATASETS.items()} | named

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read a file, also one that is being written or whose run was killed.

        Rows are read from the disk when they are used: a file may be larger than the memory.

        Raises
        ------
        InputError
            The file is missing or no trajectory.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        try:
            with _opened(path, "r") as file:
                return cls._read(file)
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{path}: not a trajectory file, or cut off: {error}") from error

    @classmethod
    def _read(cls, file: h5py.File) -> Trajectory:
        # a row is whole when its time is there: the writer puts it last
        count = int(np.isfinite(file["time"][()]).sum())
        state, state_step = _read_state(file)
        return cls(
            **{name: _mapped(file[dataset], count) for name, dataset in DATASETS.items()},
            energies={name: _mapped(values, count) for name, values in file["energy"].items()},
            contact={name: _mapped(values, count) for name, values in _contact_datasets(file)},
            rod_edges=file["topology/rod_edges"][()],
            triangles=file["topology/triangles"][()],
            state=state,
            state_step=state_step,
            randomized={name: torch.from_numpy(values[()]) for name, values in file["randomized"].items()},
            attributes={name: str(value) for name, value in file.attrs.items()},
        )

    def resumable(self) -> Trajectory:
        """Return the trajectory up to its last full state: a killed run may have stored a row more."""
        return self.frames(slice(int((self.step <= self.state_step).sum())))

    def frames(self, index: slice) -> Trajectory:
        """Return the trajectory with some of its frames only; the last state stays."""
        kept = {name: getattr(self, name)[index] for name in DATASETS}
        energies = {k: v[index] for k, v in self.energies.items()}
        return dataclasses.replace(
            self, **kept, energies=energies, contact={k: v[index] for k, v in self.contact.items()}
        )


class Recorder:
    """Collects frames in memory."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray) -> None:
        """Learn the topology."""
        self._rod_edges, self._triangles = rod_edges, triangles

    def append(self, frame: Frame) -> None:
        """Keep a frame."""
        self._frames.append(frame)

    def close(self) -> None:
        """Do nothing: memory needs no closing."""

    def trajectory(self) -> Trajectory:
        """Return what was collected."""
        frames = self._frames
        if not frames:
            raise ValueError("no frame was recorded")
        rows = [frame.row() for frame in frames]
        return Trajectory(
            **{name: torch.stack([row[name] for row in rows]) for name in DATASETS},  # type: ignore[arg-type]
            energies={name: torch.stack([f.energies[name] for f in frames]) for name in frames[0].energies},
            contact={name: torch.stack([f.contact[name] for f in frames]) for name in frames[0].contact},
            rod_edges=self._rod_edges,
            triangles=self._triangles,
            state=frames[-1].state,
            state_step=frames[-1].step,
        )


class TrajectoryWriter:
    """Writes frames to an HDF5 file as they come; see the module for what a killed run leaves.

    Parameters
    ----------
    path : the file; one that is there already is replaced when the first frame comes.
    randomized : (B,) by dotted name, kept in the file.
    attributes : texts kept in the file, such as the scene.
    resume : what was done before; the file starts with it, and frames count on from its last step.
    """

    def __init__(
        self,
        path: str | Path,
        randomized: Mapping[str, Tensor] | None = None,
        attributes: Mapping[str, str] | None = None,
        resume: Trajectory | None = None,
    ):
        self.path = _writable(Path(path))
        self.randomized = dict(randomized or {})
        self.attributes = dict(attributes or {})
        self.resume = resume
        self._file: h5py.File | None = None

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray) -> None:
        """Learn how many frames will come, the initial one included, and the topology."""
        # the initial frame of a resumed run is the last one of what was done before
        self._capacity = rows if self.resume is None else len(self.resume.time) - 1 + rows
        self.rod_edges, self.triangles = rod_edges, triangles

    def append(self, frame: Frame) -> None:
        """Write a frame and then its state."""
        if self._file is None:
            self._create(frame)
            return
        if self.resume is not None:
            # robots that failed before are not stepped again: their failure stands
            status = torch.where(frame.status == Status.STOPPED, self.resume.status[-1].to(frame.status), frame.status)
            frame = dataclasses.replace(frame, step=frame.step + self.resume.state_step, status=status)
        _write_rows(self._file, self._row, _row_datasets(frame))
        _write_state(self._file, frame.state, frame.step)
        self._row += 1

    def _create(self, first: Frame) -> None:
        """Make the file with the first frame in it; resumed, this is the last frame of what was done before."""
        recorder = Recorder()
        recorder.start(1, self.rod_edges, self.triangles)
        recorder.append(first)
        before = self.resume or recorder.trajectory()
        before = dataclasses.replace(before, randomized=self.randomized, attributes=self.attributes)
        self._row = len(before.time)
        partial = _create(self.path, self._capacity, before)
        with _opened(partial, "r+") as file:
            _write_rows(file, slice(self._row), before._datasets())
            _write_state(file, before.state, before.state_step)
        os.replace(partial, self.path)
        self._file = _opened(self.path, "r+")

    def close(self) -> None:
        """Close the file; rows that were not reached are cut off."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if self._row < self._capacity:
            Trajectory.load(self.path).save(self.path)

    def trajectory(self) -> Trajectory:
        """Return what the file holds."""
        return Trajectory.load(self.path)

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _row_datasets(frame: Frame) -> dict[str, Tensor]:
    row = frame.row()
    named = {f"energy/{k}": v for k, v in frame.energies.items()} | {
        f"contact/{k}": v for k, v in frame.contact.items()
    }
    return {DATASETS[name]: row[name] for name in DATASETS} | named


# ---- the file ----------------------------------------------------------------------------------------------------


def _opened(path: Path, mode: str) -> h5py.File:
    """Open the file.

    Without a lock, so that a run can be looked at while it goes on; in the oldest format, which has no mark that keeps
    others from opening a file whose writer was killed.
    """
    import h5py

    return h5py.File(path, mode, locking=False, libver="earliest")


def _writable(path: Path) -> Path:
    """Return the path; refuse one that is a folder or in a folder that is not there."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file")
    return path


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


def _mapped(dataset: h5py.Dataset, count: int) -> Tensor:
    """Return the first `count` rows, mapped into memory; changes to them stay in memory."""
    offset = dataset.id.get_offset()
    if offset is None or count == 0 or 0 in dataset.shape:  # stored in chunks by another program, or empty
        return torch.from_numpy(dataset[:count])
    shape = (count, *dataset.shape[1:])
    return torch.from_numpy(np.memmap(dataset.file.filename, dataset.dtype, "c", offset, shape))


def _create(path: Path, capacity: int, first: Trajectory) -> Path:
    """Make a file beside `path` with room for `capacity` rows shaped as those of `first`; return its path."""
    _check_space(path, capacity, first)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _opened(partial, "w") as file:
            _lay_out(file, capacity, first)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error}") from error
    return partial


def _check_space(path: Path, capacity: int, first: Trajectory) -> None:
    """Refuse a file that the disk has no room for."""
    row = sum(_numpy(rows[:1]).nbytes for rows in first._datasets().values())
    free = shutil.disk_usage(path.parent).free
    if capacity * row > free:
        raise InputError(
            f"{path}: {capacity} rows need {capacity * row / 2**30:.1f} GiB and the disk has {free / 2**30:.1f} GiB: "
            "store fewer frames (output.every) or fewer robots"
        )


def _lay_out(file: h5py.File, capacity: int, first: Trajectory) -> None:
    """Make the groups, datasets and attributes of a file."""
    for name, rows in first._datasets().items():
        sample = _numpy(rows[:1])
        fill = np.nan if np.issubdtype(sample.dtype, np.floating) else -1
        _allocate(file, name, (capacity, *sample.shape[1:]), sample.dtype, fill)
    for copy in ("state", "state/backup"):
        for name in STATE_FIELDS:
            sample = _numpy(getattr(first.state, name))
            _allocate(file, f"{copy}/{name}", sample.shape, sample.dtype, np.nan)
        _allocate(file, f"{copy}/step", (), np.dtype(np.int64), -1)
    file["topology/rod_edges"] = np.asarray(first.rod_edges, dtype=np.int64)
    file["topology/triangles"] = np.asarray(first.triangles, dtype=np.int64)
    file.create_group("randomized")
    for name, values in first.randomized.items():
        file["randomized"][name] = _numpy(values)
    own = {"version": _version(), "dtype": str(first.positions.dtype).removeprefix("torch."), "units": "SI"}
    for name, text in (dict(first.attributes) | own).items():
        file.attrs[name] = text


def _allocate(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype, fill: float) -> None:
    """Make a dataset of one piece, all of it on the disk at once: writing to it changes numbers only."""
    import h5py

    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_value(np.array(fill, dtype=dtype))
    group = file.require_group(name.rpartition("/")[0] or "/")
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5d.create(group.id, name.rpartition("/")[2].encode(), h5py.h5t.py_create(dtype, logical=True), space, layout)
    unit = "J" if name.startswith("energy/") else UNITS.get(name.replace("backup/", ""))
    unit = "N" if name.startswith("contact/force/") else unit
    if unit is not None:
        file[name].attrs["units"] = unit


def _contact_datasets(file: h5py.File) -> list[tuple[str, h5py.Dataset]]:
    """Return the datasets of contact by name, those of forces as "force/NAME"; none in a file without contact."""
    group = file.get("contact", {})
    plain = [(name, values) for name, values in group.items() if name != "force"]
    return plain + [(f"force/{name}", values) for name, values in group.get("force", {}).items()]


def _write_rows(file: h5py.File, index: int | slice, datasets: Mapping[str, Tensor]) -> None:
    """Fill rows in; the time comes last and makes them count."""
    for name, values in datasets.items():
        if name != "time":
            file[name][index] = _numpy(values)
    file.flush()
    file["time"][index] = _numpy(datasets["time"])
    file.flush()


def _write_state(file: h5py.File, state: State, step: int) -> None:
    """Write the state to both copies, one after the other."""
    for copy in ("state/backup", "state"):
        file[copy]["step"][()] = -1
        file.flush()
        for name in STATE_FIELDS:
            file[copy][name][...] = _numpy(getattr(state, name))
        file.flush()
        file[copy]["step"][()] = step
        file.flush()


def _read_state(file: h5py.File) -> tuple[State, int]:
    copy = file["state"] if file["state/step"][()] >= 0 else file["state/backup"]
    state = State(**{name: torch.from_numpy(copy[name][()]) for name in STATE_FIELDS})
    return state, int(copy["step"][()])


def _version() -> str:
    try:
        return version("torchdismech")
    except PackageNotFoundError:
        return "not installed"

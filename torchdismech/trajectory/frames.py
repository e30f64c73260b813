"""Frame: one row of a trajectory; Recorder: collects frames in memory; Trajectory: the stored frames of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, path_of, refuse_other_kind
from torchdismech.model.appearance import KEY, Appearance
from torchdismech.robot.state import State
from torchdismech.trajectory.owner import OwnerMark
from torchdismech.trajectory.reading import is_trajectory, read
from torchdismech.trajectory.structure import DATASETS, GROUPS
from torchdismech.trajectory.writing import write_whole

__all__ = ["Frame", "Recorder", "Trajectory", "refuse_no_run"]


@dataclass(frozen=True, eq=False)
class Frame:
    """One row of a trajectory: a state, and how the solves of the steps since the row before went.

    Attributes
    ----------
    step : number of steps from the start of the run.
    time : () [s] after these steps; it goes on where robots failed, while `state.time` is the time at which each
        robot's last good step ended.
    state : the state after these steps; of chains of rigid elements a `ChainState`, of pneumatic arms an `ArmState`,
        which have positions, too.
    iterations, iterations_max : (B,) long, Newton iterations since the row before: the sum, and the most of one step.
    residual : (B,) the largest final residual of a step since the row before [N]; of chains an angle [rad].
    status : (B,) long, value of `Status`: CONVERGED, or the first failure.
    energies : (B,) [J] by name.
    contact : report of contact in the last step, by name (see `contact.report`); "penetration" is the largest since the
        row before.
    memory : (B, ...) by name, the controller's memory after these steps.
    strains : (B, ...) by name, where the run was asked for them (see `Model.strains`).
    reactions : (B, 6) by clamp, where the run was asked for them (see `rollout`).
    """

    step: int
    time: Tensor
    state: State
    iterations: Tensor
    iterations_max: Tensor
    residual: Tensor
    status: Tensor
    energies: Mapping[str, Tensor]
    contact: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    strains: Mapping[str, Tensor] = field(default_factory=dict)
    reactions: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def initial(cls, state: State, energies: Mapping[str, Tensor]) -> Frame:
        """Return the frame of row 0, before any step."""
        zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
        return cls(0, state.time.max(), state, zero, zero, zero.to(state.q.dtype), zero, energies)

    def cpu(self) -> Frame:
        """Return the frame on the CPU."""
        tensors = ("time", "iterations", "iterations_max", "residual", "status")
        moved: dict[str, Any] = {name: getattr(self, name).cpu() for name in tensors}
        moved |= {name: {k: value.cpu() for k, value in getattr(self, name).items()} for name in (*GROUPS, "memory")}
        return dataclasses.replace(self, state=self.state.to("cpu"), **moved)

    @classmethod
    def joined(cls, frames: Sequence[Frame]) -> Frame:
        """Return one frame of a whole batch from the frames of its parts at the same step."""
        state = type(frames[0].state).joined([f.state for f in frames])
        names = ("iterations", "iterations_max", "residual", "status")
        tensors = {name: torch.cat([getattr(f, name) for f in frames]) for name in names}
        named = {
            kind: {name: torch.cat([getattr(f, kind)[name] for f in frames]) for name in getattr(frames[0], kind)}
            for kind in (*GROUPS, "memory")
        }
        time = torch.stack([f.time for f in frames]).max()
        return cls(frames[0].step, time, state, **tensors, **named)  # type: ignore[arg-type]

    def row(self) -> dict[str, Tensor]:
        """Return the fields of a trajectory's row that are single tensors, by their names in `Trajectory`."""
        return {
            "step": torch.tensor(self.step, device="cpu"),
            "time": self.time,
            "positions": self.state.positions,
            "velocities": self.state.node_velocities,
            "twist": self.state.twist,
            "iterations": self.iterations,
            "iterations_max": self.iterations_max,
            "residual": self.residual,
            "status": self.status,
        }

    def datasets(self) -> dict[str, Tensor]:
        """Return all tensors of a row, with energies, contact, strains and reactions, by the file's dataset names."""
        row = self.row()
        return {dataset: row[name] for name, dataset in DATASETS.items()} | _named(self)


@dataclass(repr=False, eq=False)
class Trajectory:
    """The stored frames of a run of B robots.

    Attributes
    ----------
    step, time : (T,) number of steps done and time [s]; row 0 is the initial state. Both go on where robots failed,
        also where all did: `state.time` (B,) says when the last good step of each robot ended.
    positions, velocities : (T, B, N, 3) of the nodes [m, m/s].
    twist : (T, B, A) angles of the framed edges [rad]: rods' twist first, `twist[..., :E]`, then joints', then mid-edge
        normals, then those of held tangents, one for each rod edge at a node that a clamp holds with a direction; of
        chains of rigid elements the angles of their joints, of pneumatic arms the elongations of their chambers [m].
    iterations, iterations_max, residual, status : (T, B), as in `Frame`.
    energies : (T, B) [J] by name.
    contact : (T, B), (T, B, 3) or, of nodes, (T, B, N, 3) by name, as in `Frame`; empty if nothing may touch.
    rod_edges, triangles : (E, 2), (F, 3) node indices.
    state : the last full state, after `state_step` steps.
    memory : (B, ...) by name, the controller's memory at that state; empty for a run without a controller with memory.
    strains : (T, B, ...) by name, as in `Frame`; empty unless they were stored, as by `rollout(..., strains=True)`.
    reactions : (T, B, 6) by clamp, as in `Frame`: force [N] and torque about the mean of its nodes [N m]; empty unless
        they were stored, as by `rollout(..., reactions=True)`.
    randomized : (B,) by dotted name, the random values that were drawn for each robot.
    attributes : texts: the scene, the robots' appearance (see `appearance`), the package's version, dtype.
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
    memory: dict[str, Tensor] = field(default_factory=dict)
    strains: dict[str, Tensor] = field(default_factory=dict)
    reactions: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in GROUPS:
            setattr(self, kind, _Named(kind, getattr(self, kind)))

    def __repr__(self) -> str:
        """Return how many frames, robots and nodes there are, when the run ends, and how many robots failed."""
        frames, robots, nodes = self.positions.shape[:3]
        ends = f"to t = {float(self.time[-1]):.6g} s" if frames else "empty"
        of = f"{frames} frame{'s' * (frames != 1)} of {robots} robot{'s' * (robots != 1)}, {nodes} points each"
        return f"Trajectory({of}, {ends}, {int(self.failed.sum())} failed)"

    @property
    def batch(self) -> int:
        """Number of robots."""
        return self.positions.shape[1]

    @property
    def failed(self) -> Tensor:
        """Which robots have a frame with a status other than CONVERGED, (B,) bool, also those that were not stepped."""
        return (self.status != 0).any(0)

    def appearance(self) -> Appearance:
        """Return the sections and obstacles that are stored with the run; empty if none are.

        Raises
        ------
        InputError
            The stored text is damaged.
        """
        return Appearance.read(self.attributes[KEY]) if KEY in self.attributes else Appearance(None, [])

    def save(self, path: str | Path) -> None:
        """Write the trajectory to a file; an existing trajectory there is replaced once all is written.

        Raises
        ------
        InputError
            There are no frames, the file cannot be written, an existing file is no trajectory, another writer holds it,
            or the name has the ending of another format, such as .csv or .png: trajectories are HDF5.
        """
        path = path_of(path, "Trajectory.save")
        refuse_no_run(f"{path}", self)
        if path.is_file() and not is_trajectory(path):
            raise InputError(f"{path}: is there already, and no trajectory: choose another name, or remove it first")
        with OwnerMark(path):
            try:
                write_whole(path, self)
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error

    def datasets(self) -> dict[str, Tensor]:
        """Return all tensors that have one entry for each row, by the file's dataset names."""
        fields = {dataset: getattr(self, name) for name, dataset in DATASETS.items()}
        return fields | _named(self)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read a file, also one that is being written or whose run was killed.

        The whole file is read once to compare its checksums. After that, rows are read from the disk when they are
        used, so a file may be larger than memory.

        Raises
        ------
        InputError
            The file is missing, no trajectory, damaged or was changed.
        """
        return cls(**read(path_of(path, "Trajectory.load")))

    def resumable(self) -> Trajectory:
        """Return the trajectory up to its last full state, as a killed run may have stored one row more."""
        return self.frames(slice(int((self.step <= self.state_step).sum())))

    def frames(self, index: slice) -> Trajectory:
        """Return the trajectory with the frames that `index` selects; `state` and `memory` remain those of the end."""
        refuse_other_kind(
            "Trajectory.frames: index", index, slice, "a slice, such as slice(0, 10) or slice(None, None, 2)"
        )
        if (index.step or 1) < 0:
            raise InputError(f"Trajectory.frames: index: expected frames in their order, got {index}")
        kept: dict[str, Any] = {name: getattr(self, name)[index] for name in DATASETS}
        kept |= {kind: {name: values[index] for name, values in getattr(self, kind).items()} for kind in GROUPS}
        return dataclasses.replace(self, **kept)


class _Named(dict[str, Tensor]):
    """Tensors of one kind by name; an error for a name that is not there says which are."""

    def __init__(self, kind: str, tensors: Mapping[str, Tensor]):
        super().__init__(tensors)
        self._kind = kind

    def __missing__(self, name: str) -> Tensor:
        there = f"there are {', '.join(self)}" if self else "the run has none"
        if not self and self._kind in ("strains", "reactions"):
            there += f"; they are stored by rollout(..., {self._kind}=True)"
        raise KeyError(f"{self._kind}: no {name!r}: {there}")


def refuse_no_run(where: str, run: object) -> None:
    """Refuse what is no trajectory, such as the path of one, and a trajectory without frames."""
    refuse_other_kind(where, run, Trajectory, "a trajectory, such as Trajectory.load(path)")
    if isinstance(run, Trajectory) and not len(run.time):
        raise InputError(f"{where}: this trajectory has no frames")


class Recorder:
    """Collects frames in memory: of each frame the row of a trajectory, of the last one the full state."""

    def start(
        self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance | None = None
    ) -> None:
        """Begin anew, without any frame, for robots of this topology and appearance."""
        self._rows: list[dict[str, Tensor]] = []
        self._named: list[dict[str, Mapping[str, Tensor]]] = []
        self._last: Frame | None = None
        self._rod_edges, self._triangles = rod_edges, triangles
        self._attributes = {} if appearance is None else {KEY: appearance.text()}

    def append(self, frame: Frame) -> None:
        """Store a frame."""
        self._rows.append(frame.row())
        self._named.append({kind: getattr(frame, kind) for kind in GROUPS})
        self._last = frame

    def close(self) -> None:
        """Do nothing: memory needs no closing."""

    def trajectory(self) -> Trajectory:
        """Return the stored frames as a trajectory."""
        last = self._last
        if last is None:
            raise ValueError("no frame was recorded")
        named = {
            kind: {name: torch.stack([of[kind][name] for of in self._named]) for name in self._named[0][kind]}
            for kind in GROUPS
        }
        return Trajectory(
            **{name: torch.stack([row[name] for row in self._rows]) for name in DATASETS},  # type: ignore[arg-type]
            **named,  # type: ignore[arg-type]
            rod_edges=self._rod_edges,
            triangles=self._triangles,
            state=last.state,
            state_step=last.step,
            memory=dict(last.memory),
            attributes=dict(self._attributes),
        )


def _named(of: Frame | Trajectory) -> dict[str, Tensor]:
    return {f"{group}/{name}": x for field, group in GROUPS.items() for name, x in getattr(of, field).items()}

"""Frames written to a file as they come."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, Status
from torchdismech.model.appearance import KEY, Appearance
from torchdismech.trajectory.frames import Frame, Recorder, Trajectory
from torchdismech.trajectory.owner import OwnerMark, writable
from torchdismech.trajectory.partial import replacing
from torchdismech.trajectory.writing import NumbersFile, array_of, check_space, created, write_whole

__all__ = ["TrajectoryWriter"]


class TrajectoryWriter:
    """Writes frames to an HDF5 file as they come; see the package for what a killed run leaves.

    A file that cannot be written any further raises an `InputError` that says how many frames are in it.

    Parameters
    ----------
    path : the file; one that is there already is replaced when the first frame comes.
    randomized : (B,) by dotted name, kept in the file.
    attributes : texts kept in the file, such as the scene.
    resume : what was done before; the file starts with it, and frames count on from its last step.
    mark : the right to write the file; by default the writer takes it in `start` and gives it back in `close`.
    """

    def __init__(
        self,
        path: str | Path,
        randomized: Mapping[str, Tensor] | None = None,
        attributes: Mapping[str, str] | None = None,
        resume: Trajectory | None = None,
        mark: OwnerMark | None = None,
    ):
        self.path = writable(Path(path))
        self.randomized = dict(randomized or {})
        self.attributes = dict(attributes or {})
        self.resume = resume
        self._given_mark = mark
        self._own_mark: OwnerMark | None = None
        self._file: NumbersFile | None = None
        self._capacity = 0  # rows; none before `start`

    def start(
        self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance | None = None
    ) -> None:
        """Learn how many frames will come, the initial one included, and what all have in common.

        From now on nobody else writes.

        Raises
        ------
        InputError
            Another writer has the file; see `OwnerMark`.
        """
        if self._given_mark is None:
            self._own_mark = OwnerMark(self.path)
        # the initial frame of a resumed run is the last one of what was done before
        self._capacity = rows if self.resume is None else len(self.resume.time) - 1 + rows
        self.rod_edges, self.triangles = rod_edges, triangles
        if appearance is not None:
            self.attributes[KEY] = appearance.text()

    def append(self, frame: Frame) -> None:
        """Write a frame and then its state."""
        if self._capacity == 0:
            raise ValueError(f"{self.path}: the writer is closed, or was never started")
        if self._file is None:
            self._create(frame)
            return
        if self.resume is not None:
            # robots that failed before are not stepped again: their failure stands
            status = frame.status.where(frame.status != Status.STOPPED, self.resume.status[-1].to(frame.status))
            # so does the time of the last frame where all had failed: that of their states is earlier
            ahead = (self.resume.time[-1] - self.resume.state.time.max()).to(frame.time)
            step, time = frame.step + self.resume.state_step, frame.time + ahead
            frame = dataclasses.replace(frame, step=step, time=time, status=status)
        try:
            self._file.write_rows(self._row, {name: array_of(v)[None] for name, v in frame.datasets().items()})
            self._row += 1
            self._file.write_state(frame.state, frame.memory, frame.step)
        except OSError as error:
            self._capacity = self._row  # nothing is cut off: that, too, would take room
            raise InputError(self._stopped(error)) from error

    def _create(self, first: Frame) -> None:
        """Make the file with the first frame in it; resumed, this is the last frame of what was done before."""
        recorder = Recorder()
        recorder.start(1, self.rod_edges, self.triangles)
        recorder.append(first)
        before = self.resume or recorder.trajectory()
        before = dataclasses.replace(before, randomized=self.randomized, attributes=self.attributes)
        check_space(self.path, self._capacity, before)
        try:
            with replacing(self.path) as stream:
                file = created(stream, self._capacity, before)
        except OSError as error:
            kept = "" if self.resume is None else f"; the {len(before.time)} frames to resume from are what they were"
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}{kept}") from error
        self._file, self._row = file, len(before.time)

    def close(self) -> None:
        """Close the file, and give it back; rows that were not reached are cut off."""
        file, self._file = self._file, None
        capacity, self._capacity = self._capacity, 0
        try:
            if file is not None:
                self._finish(file, self._row < capacity)
        finally:
            if self._own_mark is not None:
                self._own_mark.release()

    def _finish(self, file: NumbersFile, cut: bool) -> None:
        own = file.stands_at(self.path)
        try:
            file.close()
            if not own:
                raise InputError(f"{self.path}: was replaced or deleted while it was written: its frames are lost")
            if cut:
                write_whole(self.path, Trajectory.load(self.path))
        except OSError as error:
            raise InputError(self._stopped(error)) from error

    def _stopped(self, error: OSError) -> str:
        """Return why the file ends here and what is in it."""
        try:
            kept = (
                f"the {len(Trajectory.load(self.path).time)} frames in it can be read, "
                f"and --resume {self.path} goes on from them"
            )
        except InputError as problem:
            kept = f"what is in it cannot be read any more ({problem})"
        return f"{self.path}: cannot be written any further: {error.strerror or error}; {kept}"

    def trajectory(self) -> Trajectory:
        """Return what the file holds."""
        return Trajectory.load(self.path)

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()

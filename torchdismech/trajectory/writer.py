"""TrajectoryWriter: writes the frames of a run to a file while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, Status, path_of
from torchdismech.model.appearance import KEY, Appearance
from torchdismech.trajectory.frames import Frame, Recorder, Trajectory
from torchdismech.trajectory.owner import OwnerMark, writable
from torchdismech.trajectory.partial import replacing
from torchdismech.trajectory.writing import NumbersFile, array_of, check_space, created, write_whole

__all__ = ["TrajectoryWriter"]


class TrajectoryWriter:
    """Writes frames to an HDF5 file as they come; the package's docstring tells what a killed run leaves.

    If the file cannot be written any further, an `InputError` is raised that tells how many frames are in it.

    Parameters
    ----------
    path : the file; an existing one is replaced when the first frame comes.
    randomized : (B,) by dotted name, stored in the file.
    attributes : texts stored in the file, such as the scene.
    resume : trajectory of an earlier part of the run; the file starts with it, and steps are counted on from its last.
    mark : the right to write the file; by default the writer takes it in `start` and releases it in `close`.
    """

    def __init__(
        self,
        path: str | Path,
        randomized: Mapping[str, Tensor] | None = None,
        attributes: Mapping[str, str] | None = None,
        resume: Trajectory | None = None,
        mark: OwnerMark | None = None,
    ):
        self.path = writable(path_of(path, "TrajectoryWriter"))
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
        """Set the number of frames to come, the initial one included, and the data that all have in common.

        From now on no other writer can take the file.

        Raises
        ------
        InputError
            Another writer has the file; see `OwnerMark`.
        """
        if self._given_mark is None:
            self._own_mark = OwnerMark(self.path)
        # the initial frame of a resumed run is the last one of the earlier part, which is counted once
        self._capacity = rows if self.resume is None else len(self.resume.time) - 1 + rows
        self.rod_edges, self.triangles = rod_edges, triangles
        if appearance is not None:
            self.attributes[KEY] = appearance.text()

    def append(self, frame: Frame) -> None:
        """Write a frame's row and then its state; the first frame creates the file."""
        if self._capacity == 0:
            raise ValueError(f"{self.path}: the writer is closed, or was never started")
        if self._file is None:
            self._create(frame)
            return
        if self.resume is not None:
            # robots that failed in the earlier part are not stepped again: they keep the status of their failure
            status = frame.status.where(frame.status != Status.STOPPED, self.resume.status[-1].to(frame.status))
            # where all had failed, the last frame's time is later than that of the states; times go on from it
            ahead = (self.resume.time[-1] - self.resume.state.time.max()).clamp(min=0).to(frame.time)
            step, time = frame.step + self.resume.state_step, frame.time + ahead
            frame = dataclasses.replace(frame, step=step, time=time, status=status)
        try:
            self._file.write_rows(self._row, {name: array_of(v)[None] for name, v in frame.datasets().items()})
            self._row += 1
            self._file.write_state(frame.state, frame.memory, frame.step)
        except OSError as error:
            self._capacity = self._row  # `close` then does not cut the file, as writing a shorter copy needs space, too
            raise InputError(self._stopped(error)) from error

    def _create(self, first: Frame) -> None:
        """Create the file with the first frame, or with all of the earlier part, of which that is the last frame."""
        recorder = Recorder()
        recorder.start(1, self.rod_edges, self.triangles)
        recorder.append(first)
        before = self.resume or recorder.trajectory()
        before = dataclasses.replace(before, randomized=self.randomized, attributes=self.attributes)
        # the integrator and the controller that go on may remember other things than those of the earlier part
        before = dataclasses.replace(before, state=first.state, memory=dict(first.memory))
        check_space(self.path, self._capacity, before)
        try:
            with replacing(self.path) as stream:
                file = created(stream, self._capacity, before)
        except OSError as error:
            kept = "" if self.resume is None else f"; the {len(before.time)} frames to resume from are what they were"
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}{kept}") from error
        self._file, self._row = file, len(before.time)

    def close(self) -> None:
        """Close the file, without the rows that were not reached, and release the writer's own mark."""
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
        """Return the message that tells why the file ends here and what is in it."""
        try:
            kept = (
                f"the {len(Trajectory.load(self.path).time)} frames in it can be read, "
                f"and --resume {self.path} goes on from them"
            )
        except InputError as problem:
            kept = f"what is in it cannot be read any more ({problem})"
        return f"{self.path}: cannot be written any further: {error.strerror or error}; {kept}"

    def trajectory(self) -> Trajectory:
        """Return the trajectory that is in the file."""
        return Trajectory.load(self.path)

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()

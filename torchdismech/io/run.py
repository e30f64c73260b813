"""A scene run into a trajectory file, from its start or from where another run ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdismech.errors import InputError, SimulationError, Status
from torchdismech.io.scene import Scene, Setup
from torchdismech.processes import ALONE, Processes
from torchdismech.rollout import rollout
from torchdismech.trajectory import Frame, Recorder, Trajectory, TrajectoryWriter

__all__ = ["run_scene"]

MAY_CHANGE = {"simulation.duration"}  # what a resumed scene may set anew


def run_scene(
    scene: Scene,
    setup: Setup,
    path: Path,
    resume: Path | None = None,
    progress: bool = False,
    throw: bool = False,
    processes: Processes = ALONE,
) -> tuple[Trajectory | None, int]:
    """Run a scene into a file and return its trajectory and the step it started from.

    Parameters
    ----------
    setup : what `scene.build` returned; with several processes, that of `scene.part(processes.own(scene.batch))`.
    path : the trajectory file; it may be the one that is resumed.
    resume : file of an earlier run of the same scene, finished, stopped or killed. The run goes on from its last full
        state; on a CPU the numbers are those of a run without interruption. Robots that failed stay where they are.
    throw : raise a `SimulationError` at the first failure. With several processes the others first finish the steps up
        to the next frame, and failures in these are named, too.
    processes : each runs its own robots, the first one writes all of them and returns the trajectory, the others None.
        The file to resume may have been written by any number of processes; all have to see it.

    Raises
    ------
    InputError
        The file to resume belongs to another scene, or has all steps already.
    ProcessError
        Another process failed; see `Processes.together`.
    """
    rows = processes.own(scene.batch)
    with processes.together():
        before = None if resume is None else _before(scene, setup, resume, rows)
        state, first, running = setup.state, 0, None
        if before is not None:
            first, converged = before.state_step, before.status[-1, rows] == Status.CONVERGED
            state, running = before.state.rows(rows).to(state.q.device), converged.to(state.q.device)
        # by all steps of the scene: a run that is resumed is compiled where one in one go would be
        setup.integrator.prepare(setup.model, setup.state, setup.steps)
        for count, every in _legs(first, setup.steps, setup.every):
            writer = TrajectoryWriter(path, scene.randomized, _attributes(scene), resume=before)
            frames = _Gathering(writer, processes)
            try:
                before = rollout(
                    setup.model,
                    state,
                    setup.integrator,
                    count,
                    schedule=setup.schedule,
                    every=every,
                    writer=frames,
                    progress=progress and processes.writes,
                    throw=throw,
                    running=running,
                )
            except SimulationError as error:
                raise _in_whole(error, rows, scene.batch) from None
            state, running = frames.last.state, frames.last.status == Status.CONVERGED
    return (before if processes.writes else None), first


def _in_whole(error: SimulationError, rows: slice, batch: int) -> SimulationError:
    """Return the error with the robots' numbers in the whole batch."""
    status = torch.zeros(batch, dtype=torch.long)
    status[rows] = error.status.cpu()
    return SimulationError.from_status(status, error.where)


class _Gathering:
    """Brings the frames of all processes together in the first one, which writes them."""

    def __init__(self, writer: TrajectoryWriter, processes: Processes):
        self.writer, self.processes = writer, processes
        self.last: Frame  # of this process's own robots

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray) -> None:
        """Learn how many frames will come and the topology."""
        self._topology = (rod_edges, triangles)
        if self.processes.writes:
            self.writer.start(rows, rod_edges, triangles)

    def append(self, frame: Frame) -> None:
        """Write the frames of all processes as one."""
        self.last = frame
        frames = self.processes.gathered(frame.cpu())
        if frames is not None:
            self.writer.append(Frame.joined(frames))

    def close(self) -> None:
        """Close the file."""
        if self.processes.writes:
            self.writer.close()

    def trajectory(self) -> Trajectory:
        """Return what the file holds; elsewhere than in the first process, the last frame of its own robots."""
        if self.processes.writes:
            return self.writer.trajectory()
        recorder = Recorder()
        recorder.start(1, *self._topology)
        recorder.append(self.last)
        return recorder.trajectory()


def _legs(step: int, steps: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield (number of steps, every): up to the next multiple of `every` if `step` is not on one, then the rest."""
    odd = min(-step % every, steps - step)
    if odd:
        yield odd, odd
        step += odd
    if step < steps:
        yield steps - step, every


def _attributes(scene: Scene) -> dict[str, str]:
    return {"scene": scene.text, "tables": json.dumps(scene.tables, sort_keys=True)}


def _before(scene: Scene, setup: Setup, path: Path, rows: slice) -> Trajectory:
    """Return what the earlier run did, after checking that it was a run of this scene, whose `rows` are set up here."""
    before = Trajectory.load(path).resumable()
    if "tables" not in before.attributes:
        raise InputError(f"{path}: was not written from a scene file: nothing says how to go on")
    theirs, ours = dict(_leaves(json.loads(before.attributes["tables"]))), dict(_leaves(scene.tables))
    changed = [key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)]
    changed = sorted(set(changed) - MAY_CHANGE)
    if changed:
        key = changed[0]
        raise InputError(
            f"{path}: is a run of another scene: {key} was {theirs.get(key)!r} and is {ours.get(key)!r} "
            f"in {scene.path}; only simulation.duration may change"
        )
    rest = setup.state.positions.cpu()
    if before.batch != scene.batch or not torch.equal(before.positions[0, rows], rest):
        raise InputError(f"{path}: its robots do not start where those of {scene.path} do: the geometry has changed")
    if any(not torch.equal(before.randomized[name], values) for name, values in scene.randomized.items()):
        raise InputError(f"{path}: its random numbers are not those that {scene.path} draws with this version")
    if before.state_step >= setup.steps:
        raise InputError(
            f"{path}: has {before.state_step} steps already and the scene asks for {setup.steps}: "
            "nothing to do; raise simulation.duration or --steps"
        )
    if (before.status[-1] != 0).all():
        raise InputError(f"{path}: every robot failed: nothing to go on with")
    return before


def _leaves(tables: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of what is in the tables; lists of numbers count as one value."""
    if isinstance(tables, list) and tables and isinstance(tables[0], dict):
        tables = {str(k): table for k, table in enumerate(tables)}
    if not isinstance(tables, dict):
        yield key, tables
        return
    for name, value in tables.items():
        yield from _leaves(value, f"{key}.{name}" if key else name)

"""A scene run into a trajectory file, from its start or from where another run ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.control import Memory
from torchdismech.control.protocol import answered, begun
from torchdismech.errors import SimulationError, Status
from torchdismech.io.resume import attributes, earlier_run
from torchdismech.io.scene import Scene, Setup
from torchdismech.io.scene.idle import warn_of_idle
from torchdismech.model.appearance import Appearance
from torchdismech.robot.state import State
from torchdismech.runs.rollout import rollout
from torchdismech.system import interrupts
from torchdismech.system.processes import ALONE, Processes
from torchdismech.trajectory import Frame, OwnerMark, Recorder, Trajectory, TrajectoryWriter

__all__ = ["run_scene"]


def run_scene(
    scene: Scene,
    setup: Setup,
    path: Path,
    resume: Path | None = None,
    progress: bool = False,
    throw: bool = False,
    processes: Processes = ALONE,
    force_resume: bool = False,
) -> tuple[Trajectory | None, int]:
    """Run a scene into a file and return its trajectory and the step it started from.

    Parameters
    ----------
    setup : what `scene.build` returned; with several processes, that of `scene.part(processes.own(scene.batch))`.
    path : the trajectory file; it may be the one that is resumed.
    resume : file of an earlier run of the same scene, finished, stopped or killed. The run goes on from its last full
        state; on a CPU the numbers are those of a run without interruption. Robots that failed stay as they are.
    throw : raise a `SimulationError` at the first failure. With several processes the others first finish the steps up
        to the next frame, and failures in these are named, too.
    processes : each runs its own robots, the first one writes all of them and returns the trajectory, the others None.
        The file to resume may have been written by any number of processes; all have to see it.
    force_resume : go on although the scene, a file that it names or the robot has changed.

    Raises
    ------
    InputError
        The file to resume belongs to another scene, other files or another robot, or has all steps already.
    ProcessError
        Another process failed; see `Processes.together`.
    """
    rows = processes.own(scene.batch)
    with processes.together(), OwnerMark(path) if processes.writes else nullcontext() as mark:
        trajectory = None if resume is None else earlier_run(scene, setup, resume, rows, force_resume)
        position = _RunPosition(setup.state)
        if trajectory is not None:
            position = _RunPosition.at_the_end_of(trajectory, rows, setup.state.q.device)
        first = position.step
        if processes.writes:
            warn_of_idle(scene)
        _refuse_first_step(setup, position)
        # by the number of all steps of the scene, so that a resumed run is compiled if an uninterrupted one would be
        setup.integrator.compile_for(setup.model, setup.state, setup.steps)
        file_attributes = attributes(scene, setup.model)
        for count, every in _legs(first, setup.steps, setup.every):
            writer = TrajectoryWriter(path, scene.randomized, file_attributes, trajectory, mark)
            frames = _GatheringWriter(writer, processes, position.step, setup.steps)
            try:
                trajectory = rollout(
                    setup.model,
                    position.state,
                    setup.integrator,
                    count,
                    schedule=setup.schedule,
                    every=every,
                    writer=frames,
                    progress=progress and processes.writes,
                    throw=throw,
                    running=position.running,
                    controller=setup.controller,
                    memory=position.memory,
                    strains=setup.strains,
                    reactions=setup.reactions,
                )
            except SimulationError as error:
                raise _with_batch_numbers(error, rows, scene.batch) from None
            position = position.after(count, frames.last)
    return (trajectory if processes.writes else None), first


@dataclass(frozen=True)
class _RunPosition:
    """The point that this process's robots have reached in a run, from which `rollout` goes on.

    Attributes
    ----------
    state : the state there.
    step : number of steps taken since the start of the run.
    running : (B,) bool, the robots that have not failed; None: all.
    memory : what the controller remembers; None: its initial memory.
    """

    state: State
    step: int = 0
    running: Tensor | None = None
    memory: Memory | None = None

    @classmethod
    def at_the_end_of(cls, run: Trajectory, rows: slice, device: torch.device) -> _RunPosition:
        """Return the position of the robots `rows` at the last full state of an earlier run."""
        memory = {name: value[rows].to(device) for name, value in run.memory.items()}
        running = run.status[-1, rows] == Status.CONVERGED
        return cls(run.state.rows(rows).to(device), run.state_step, running.to(device), memory)

    def after(self, steps: int, last: Frame) -> _RunPosition:
        """Return the position after `steps` more steps, of which `last` is the last frame."""
        return _RunPosition(last.state, self.step + steps, last.status == Status.CONVERGED, last.memory)


@torch.no_grad()
def _refuse_first_step(setup: Setup, position: _RunPosition) -> None:
    """Refuse a run whose first control does not fit, before a file that it replaces is touched.

    Schedule and controller are asked for this control here and again in the run: they have to be functions of time,
    state and memory alone.
    """
    model, state, integrator, controller = setup.model, position.state, setup.integrator, setup.controller
    memory = begun(controller, model, state, integrator, setup.steps - position.step, position.memory)
    control, _ = answered(controller, state, memory, integrator.sample(setup.schedule, state, model), model)
    integrator.check(model, state, control)


def _with_batch_numbers(error: SimulationError, rows: slice, batch: int) -> SimulationError:
    """Return the error of the robots `rows` with the numbers that these have in the whole batch."""
    status = torch.zeros(batch, dtype=torch.long, device="cpu")
    status[rows] = error.status.cpu()
    return SimulationError.from_status(status, error.where)


class _GatheringWriter:
    """Writer for `rollout` that gathers the frames of all processes in the first one, which writes them to the file.

    Signals are held back while a frame is written, so that what they say of the file is true.

    Parameters
    ----------
    first, steps : the step at which these frames begin, and the number of steps of the whole run.
    """

    def __init__(self, writer: TrajectoryWriter, processes: Processes, first: int, steps: int):
        self.writer, self.processes = writer, processes
        self.first, self.steps = first, steps
        self.last: Frame  # of this process's own robots

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance) -> None:
        """Begin the file for `rows` frames, with the topology and the appearance of the robots of all processes."""
        self._topology = (rod_edges, triangles)
        texts = self.processes.gathered(appearance.text())
        if texts is not None:
            if len(texts) > 1:
                appearance = Appearance.joined([Appearance.read(text) for text in texts])
            self.writer.start(rows, rod_edges, triangles, appearance)

    def append(self, frame: Frame) -> None:
        """Gather this frame from all processes and write it as one frame of the whole batch."""
        self.last = frame
        frames = self.processes.gathered(frame.cpu())
        if frames is not None:
            with interrupts.held_back():
                self.writer.append(Frame.joined(frames))
                interrupts.say_at_the_end(_stopped_sentence(self.writer.path, self.first + frame.step, self.steps))
        interrupts.end_if_asked()

    def close(self) -> None:
        """Close the file."""
        if self.processes.writes:
            with interrupts.held_back():
                self.writer.close()

    def trajectory(self) -> Trajectory:
        """Return the trajectory in the file; in processes that do not write, the last frame of their own robots."""
        if self.processes.writes:
            return self.writer.trajectory()
        recorder = Recorder()
        recorder.start(1, *self._topology)
        recorder.append(self.last)
        return recorder.trajectory()


def _legs(step: int, steps: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield (number of steps, steps between frames) of the parts of a run from `step` to `steps`.

    If `step` is no multiple of `every`, the first part ends at the next one: so frames of a resumed run are at the same
    steps as without the interruption.
    """
    odd = min(-step % every, steps - step)
    if odd:
        yield odd, odd
        step += odd
    if step < steps:
        yield steps - step, every


def _stopped_sentence(path: Path, step: int, steps: int) -> str:
    """Return the sentence for a run that is stopped: how many steps the file holds, and how to go on."""
    if step == steps:
        return f"{path} holds all {steps} steps"
    return f"{path} holds {step} of {steps} steps; go on with --resume {shlex.quote(str(path))}"

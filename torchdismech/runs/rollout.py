"""Runs without gradients: `rollout` stores frames in a trajectory, `frames` yields them one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.penetration import PenetrationWatch
from torchdismech.control.protocol import Controller, Memory, answered, begun, kept
from torchdismech.errors import InputError, SimulationError, Status, shown, truth, whole_number
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.model import Model
from torchdismech.model.appearance import Appearance
from torchdismech.robot.state import BatchState, Control, State, running_robots
from torchdismech.runs.ahead import StepsAhead
from torchdismech.runs.stepping import (
    STEPS_HANDED_OVER,
    Courses,
    Robots,
    Stepper,
    check_run,
    is_ahead,
    progress_bar,
    scheduled_ahead,
    started,
    stepper_of_many,
    steps_in_words,
    warn_of_failures,
)
from torchdismech.system.uncompiled import uncompiled
from torchdismech.trajectory import Frame, Recorder, Trajectory

__all__ = ["Controller", "Writer", "frames", "rollout"]

# Limits on `every` up to which a run takes steps beyond the next frame, for which the states between frames are kept:
# below OFTEN always, below SELDOM where these states hold at most FEW_NUMBERS numbers from frame to frame. There, to
# keep them takes less time than to check the model for changes once more for each frame.
OFTEN, SELDOM, FEW_NUMBERS = 5, 12, 50_000

S = TypeVar("S", bound=BatchState)
M = TypeVar("M", bound=Robots)


class Writer(Protocol):
    """Where `rollout` puts the frames of a run: `Recorder` keeps them in memory, `TrajectoryWriter` in a file."""

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance) -> None:
        """Get ready for up to `rows` frames of robots of this topology and appearance."""
        ...

    def append(self, frame: Frame) -> None:
        """Store a frame."""
        ...

    def close(self) -> None:
        """Finish, which `rollout` calls for after an error, too."""
        ...

    def trajectory(self) -> Trajectory:
        """Return the stored frames."""
        ...


@uncompiled
def rollout(
    model: M,
    state: S,
    integrator: Stepper[M, S],
    steps: int,
    schedule: Callable[[Tensor, M], Control] | None = None,
    every: int = 1,
    writer: Writer | None = None,
    progress: bool = False,
    throw: bool = False,
    running: Tensor | None = None,
    controller: Controller | None = None,
    memory: Memory | None = None,
    strains: bool = False,
    reactions: bool = False,
) -> Trajectory:
    """Return the trajectory of `steps` steps from `state`.

    A robot whose step fails stays at its last good state, and the trajectory's status tells its failure from then on;
    the others go on. If all robots have failed, frames are stored up to the last step all the same: their time goes
    on, and their states are the last good ones. A warning names the robot that sank the deepest into an obstacle, if by
    more than its contact radius.

    Parameters
    ----------
    schedule : function of (time (B,), model) that returns the `Control` for that time. `Newmark` and `BDF2` read the
        acceleration of the initial state: make it by `model.initial_state(control=schedule(time, model))`, so that it
        includes what the schedule sets from the first moment on. If the function has an attribute `ahead` that is True,
        it is called for up to 50 steps before these are taken, also beyond the next frame, which is faster. Such a
        function may read only what steps leave as it is in the model, and must not change anything.
    every : number of steps from one stored frame to the next; the last step is stored, too.
    writer : where frames go; in memory by default. If it changes the model, that does not affect steps that were
        already taken beyond the frame.
    progress : show a progress bar with the number of robots that still run.
    throw : raise a `SimulationError` at the first failure instead.
    running : (B,) bool, robots to step, e.g. those that did not fail in an earlier run.
    controller : function of (state, control, model) that returns the control of a step; `control` is the schedule's.
        Or one with a memory (see `control.protocol`).
    memory : the controller's memory after an earlier run that ended in `state`, such as `Trajectory.memory`: this run
        continues it as if there had been no interruption. By default the controller begins anew.
    strains : store the strains of all terms with each frame, too, as `Model.strains` gives them.
    reactions : store what each clamp exerts on its robot in the last step before each frame, as
        `integrator.reactions` gives it. NaN where reactions are unknown: before the first step, of robots that failed,
        and where a step in time was divided into substeps (`max_substeps`).
    """
    steps, every = whole_number(steps, "rollout.steps"), whole_number(every, "rollout.every")
    progress = truth(progress, "rollout.progress")
    options = _RunOptions(schedule, controller, memory, every, throw, strains, reactions, beyond_frames=True)
    options.check("rollout", model, state, integrator)
    running = running_robots(state, running)
    writer = Recorder() if writer is None else writer
    if isinstance(writer, type) or not hasattr(writer, "start"):
        raise InputError(f"rollout: writer: expected one, such as TrajectoryWriter(path), got {shown(writer)}")
    writer.start(1 + -(-steps // every), model.rod_edges, model.triangles, model.appearance())
    penetration = PenetrationWatch(model.obstacles if isinstance(model, Model) else ())
    with progress_bar(steps, state.batch, progress) as bar, closing(writer):
        for frame in _frames(model, state, integrator, steps, running, options, bar):
            writer.append(frame)
            penetration.see(frame.state, frame.contact)
            status = frame.status
    failed = torch.where(running, status, int(Status.CONVERGED))  # the caller stopped the others, which is no failure
    warn_of_failures(failed, "rollout", "and the trajectory's status says why")
    penetration.warn("rollout")
    return writer.trajectory()


@dataclass(frozen=True)
class _RunOptions(Generic[M]):
    """Options of a run: what acts in its steps, and what its frames hold.

    Attributes
    ----------
    schedule, controller, memory, every, throw, strains, reactions : as for `rollout`.
    beyond_frames : whether steps beyond a frame may be taken before it is yielded, where that is faster. Changes of the
        model between two frames do not affect steps that were already taken.
    """

    schedule: Callable[[Tensor, M], Control] | None
    controller: Controller | None
    memory: Memory | None
    every: int
    throw: bool
    strains: bool
    reactions: bool
    beyond_frames: bool = False

    def check(self, caller: str, model: object, state: object, integrator: object) -> None:
        """Refuse options that are of the wrong kind, and a model, state or integrator that is."""
        for name in ("throw", "strains", "reactions"):
            truth(getattr(self, name), f"{caller}.{name}")
        check_run(caller, model, state, integrator, self.schedule, self.controller)

    def several_at_once(self) -> bool:
        """Return whether no controller, schedule or reaction needs the state between two steps.

        If so, the integrator may take the steps up to the next frame in one call.
        """
        return is_ahead(self.schedule) and self.controller is None and not self.reactions


def frames(
    model: M,
    state: S,
    integrator: Stepper[M, S],
    steps: int,
    schedule: Callable[[Tensor, M], Control] | None = None,
    every: int = 1,
    throw: bool = False,
    running: Tensor | None = None,
    controller: Controller | None = None,
    memory: Memory | None = None,
    strains: bool = False,
    reactions: bool = False,
) -> Iterator[Frame]:
    """Yield the initial frame, then each frame that `rollout` would store for the same arguments, as it is reached.

    No step beyond a frame is taken before that frame is yielded, so changes of the model between two frames act from
    the next step on.
    """
    steps, every = whole_number(steps, "frames.steps"), whole_number(every, "frames.every")
    options = _RunOptions(schedule, controller, memory, every, throw, strains, reactions)
    options.check("frames", model, state, integrator)
    return _frames(model, state, integrator, steps, running_robots(state, running), options)


@torch.no_grad()
def _frames(
    model: M, state: S, integrator: Stepper[M, S], steps: int, running: Tensor, options: _RunOptions[M], bar=None
) -> Iterator[Frame]:
    """Yield the initial frame, then those of the run's steps; `bar` is a progress bar, or None."""
    integrator.prepare(model, state, steps)
    state = started(integrator, state)  # so that all frames hold the same fields
    memory = begun(options.controller, model, state, integrator, steps, options.memory)
    extras = _FrameExtras(model, integrator, options.strains, options.reactions)
    progress = _RunProgress.initially(state, memory, running)
    yield dataclasses.replace(
        Frame.initial(cast(State, state), model.energies(state)),  # frames read positions, which chains and arms have
        status=progress.status,
        contact=model.contact_report(state),
        memory=memory,
        strains=extras.strains(state),
        reactions=extras.first_reactions(state),
    )
    run, every, no_steps = _Run(model, state, integrator, options), options.every, progress.went
    while progress.step < steps:
        steps_taken = run.next(
            progress.state,
            progress.memory,
            progress.running,
            steps - progress.step,
            every - progress.step % every,
        )
        progress = progress.after(steps_taken, integrator)
        if options.throw and not bool(steps_taken.info.converged.all()):
            raise SimulationError.from_status(steps_taken.info.status, steps_in_words(progress.step, steps_taken.count))
        _advance(bar, steps_taken.count, progress.running, steps_taken.info)
        if progress.step % every == 0 or progress.step == steps:
            yield Frame(
                step=progress.step,
                time=progress.time,
                state=cast(State, progress.state),
                iterations=progress.went.iterations,
                iterations_max=progress.went.iterations_max,
                residual=progress.went.residual,
                status=progress.status,
                energies=steps_taken.energies(model),
                contact=progress.went.contact,
                memory=progress.memory,
                strains=extras.strains(progress.state),
                reactions=extras.reactions(steps_taken, progress.running),
            )
            progress.went = no_steps


def _keeps_between(state: BatchState, every: int) -> bool:
    """Return whether keeping the states between frames is cheap enough to take steps beyond the next frame."""
    few = (every - 1) * sum(field.numel() for field in state.fields()) <= FEW_NUMBERS
    return every < OFTEN or (every < SELDOM and few)


@dataclass(frozen=True)
class _StepsTaken(Generic[S]):
    """One or more consecutive steps of a run, taken in one call.

    Attributes
    ----------
    count : number of steps.
    before, state : the states before the first and after the last of them.
    control : of the last.
    info : how they went.
    memory : the controller's after them.
    ahead : the course that the steps are part of, in which no robot failed; None if they were taken without one.
    """

    count: int
    before: S
    state: S
    control: Control
    info: StepInfo | SeveralSteps
    memory: Memory
    ahead: StepsAhead | None = None

    @property
    def all_made(self) -> bool:
        """Whether no robot failed, provided all were running; False on a GPU, where to know would mean to wait."""
        status = self.info.status
        return self.ahead is not None or (status.is_cpu and not bool(status.any()))

    def energies(self, model: Any) -> Mapping[str, Tensor]:
        """Return the energies (B,) [J] by name after the last of the steps."""
        return model.energies(self.state, self.control) if self.ahead is None else self.ahead.energies()


@dataclass
class _RunProgress(Generic[S]):
    """How far a run is: what the next step starts from, and what the next frame reports.

    Attributes
    ----------
    step : number of steps taken so far.
    time : () [s] of the robots that still run.
    state : of all robots.
    memory : the controller's.
    running, status : (B,) which robots still run, and why the others do not.
    went : how the steps since the last frame went.
    all_run : True if all robots are known to run; False on a GPU, where to know would mean to wait for it.
    """

    step: int
    time: Tensor
    state: S
    memory: Memory
    running: Tensor
    status: Tensor
    went: SeveralSteps
    all_run: bool = False

    @classmethod
    def initially(cls, state: S, memory: Memory, running: Tensor) -> _RunProgress[S]:
        """Return the progress of a run before its first step."""
        zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
        status = torch.where(running, zero, int(Status.STOPPED))
        all_run = running.is_cpu and bool(running.all())
        return cls(0, state.time.max(), state, memory, running, status, SeveralSteps.none(state.q), all_run)

    def after(self, steps_taken: _StepsTaken[S], integrator: object) -> _RunProgress[S]:
        """Return the progress after further steps."""
        if self.all_run and steps_taken.all_made:
            time, went = steps_taken.state.time.max(), self.went.followed_by(steps_taken.info, None)
            reached, memory = self.step + steps_taken.count, dict(steps_taken.memory)
            return _RunProgress(reached, time, steps_taken.state, memory, self.running, self.status, went, True)
        running = self.running & steps_taken.info.converged
        return _RunProgress(
            self.step + steps_taken.count,
            _time_after(steps_taken.count, integrator, self.time, steps_taken.state, running),
            steps_taken.state,
            kept(self.memory, steps_taken.memory, running),
            running,
            torch.where(self.running, steps_taken.info.status, self.status),
            self.went.followed_by(steps_taken.info, self.running),
        )


class _Run(Generic[M, S]):
    """Takes the steps of a run, as many per call as may be: from a course, by `integrator.steps`, or one by one."""

    def __init__(self, model: M, state: S, integrator: Stepper[M, S], options: _RunOptions[M]):
        self._model, self._integrator = model, integrator
        self._schedule, self._controller, self._every = options.schedule, options.controller, options.every
        self._stepper_of_many, several_at_once = stepper_of_many(integrator), options.several_at_once()
        self._steps_per_call = STEPS_HANDED_OVER if several_at_once and self._stepper_of_many is not None else 1
        beyond_frames = options.beyond_frames and several_at_once and _keeps_between(state, options.every)
        self._courses = Courses(model, integrator, options.schedule) if beyond_frames else None
        self._ahead: StepsAhead | None = None

    def next(self, state: S, memory: Memory, running: Tensor, left: int, to_frame: int) -> _StepsTaken[S]:
        """Take steps from a state, at most `left` and at most `to_frame`, the number up to the next frame."""
        if (ahead := self._steps_ahead(state, left, running)) is not None:
            control, reached, info = ahead.next(to_frame)
            # no controller takes part in a course, so the memory stays as it is
            return _StepsTaken(info.count, state, cast(S, reached), control, info, memory, ahead)
        count = min(to_frame, left, self._steps_per_call)
        controls = [*scheduled_ahead(self._model, state, self._integrator, self._schedule, count)]
        control, remembered = answered(self._controller, state, memory, controls[-1], self._model)
        if count > 1 and self._stepper_of_many is not None:
            after, went = self._stepper_of_many.steps(self._model, state, count, controls, running)
        else:
            after, went = self._integrator.step(self._model, state, control, running)
        return _StepsTaken(count, state, after, control, went, remembered)

    def _steps_ahead(self, state: S, left: int, running: Tensor) -> StepsAhead | None:
        """Return the present course, or a new one of at most `left` steps if its steps are used up.

        None where the next step has to be taken without a course.
        """
        if self._courses is None:
            return None
        if self._ahead is None or not self._ahead.left:
            course = self._courses.next(state, left) if bool(running.all()) else None
            self._ahead = None if course is None else StepsAhead(cast(Model, self._model), course, self._every)
        return self._ahead


class _FrameExtras:
    """Computes the optional parts of frames, strains and reactions of clamps; empty mappings if they are not wanted."""

    def __init__(self, model: Any, integrator: Any, strains: bool, reactions: bool):
        if strains and not hasattr(model, "strains"):
            raise InputError(f"rollout: strains are those of rods and shells; {type(model).__name__} has none")
        if reactions and not hasattr(integrator, "reactions"):
            raise InputError(f"rollout: reactions are those of rods and shells; {type(integrator).__name__} has none")
        if reactions and not model.body.clamps:
            raise InputError("rollout: reactions are those of clamps; the robot has none")
        self._model, self._integrator, self._strains, self._reactions = model, integrator, strains, reactions

    def strains(self, state: BatchState) -> Mapping[str, Tensor]:
        """Return the strains (B, ...) by name."""
        return self._model.strains(state) if self._strains else {}

    def first_reactions(self, state: BatchState) -> Mapping[str, Tensor]:
        """Return the reactions (B, 6) by clamp before the first step: NaN, as they are not known."""
        if not self._reactions:
            return {}
        zeros = state.q.new_zeros(state.batch, len(self._model.body.clamps), 6)
        return _by_clamp(zeros, torch.zeros(state.batch, dtype=torch.bool, device=state.q.device))

    def reactions(self, steps_taken: _StepsTaken, running: Tensor) -> Mapping[str, Tensor]:
        """Return force and torque (B, 6) that each clamp exerted in the last step [N, N m]; NaN where unknown.

        They are unknown of robots that are not `running` (B,), and after substeps for integrators in time.
        """
        if not self._reactions:
            return {}
        # runs with reactions take their steps one by one, so `before` is the state before the last step
        exerted = self._integrator.reactions(self._model, steps_taken.before, steps_taken.state, steps_taken.control)
        known = self._integrator.reactions_after_parts | (steps_taken.info.substeps == 1)
        return _by_clamp(exerted, running & known)


def _by_clamp(reactions: Tensor, known: Tensor) -> Mapping[str, Tensor]:
    """Return reactions (B, C, 6) as (B, 6) by the clamps' names; NaN in rows that are not `known` (B,)."""
    reported = torch.where(known[:, None, None], reactions, torch.nan)
    return {f"clamp{k}": reported[:, k] for k in range(reported.shape[1])}


def _time_after(count: int, integrator: object, time: Tensor, state: BatchState, running: Tensor) -> Tensor:
    """Return the time () after `count` steps from `time`: that of the robots, or `time` + `count` dt if none runs."""
    return torch.where(running.any(), state.time.max(), time + count * getattr(integrator, "dt", 0.0))


def _advance(bar, count: int, running: Tensor, info) -> None:
    """Advance the progress bar, if there is one, and show how many robots run and their mean iterations per step."""
    if bar is None:
        return
    bar.update(count)
    if count > 1 or bar.n % 10 == 0 or bar.n == bar.total:
        iterations = info.iterations[running].double().mean().item() / count if bool(running.any()) else 0.0
        bar.set_postfix(running=int(running.sum()), iterations=f"{iterations:.1f}", refresh=False)

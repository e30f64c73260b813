"""Many steps: from a state to a trajectory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.penetration import PenetrationWatch
from torchdismech.control.protocol import Controller, Memory, answered, begun, kept
from torchdismech.errors import InputError, SimulationError, Status, truth, whole_number
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
    stepper_of_many,
    warn_of_failures,
)
from torchdismech.trajectory import Frame, Recorder, Trajectory

__all__ = ["Controller", "Writer", "frames", "rollout"]

# States between frames are kept up to 5 steps from frame to frame, and up to 12 where they are so few numbers in all:
# then that takes less time than to look at the model once more for each frame.
OFTEN, SELDOM, FEW_NUMBERS = 5, 12, 50_000

S = TypeVar("S", bound=BatchState)
M = TypeVar("M", bound=Robots)


class Writer(Protocol):
    """Takes the frames of a run: `Recorder` keeps them in memory, `TrajectoryWriter` in a file."""

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance) -> None:
        """Get ready for so many frames (`rows`) of robots of this topology and appearance."""
        ...

    def append(self, frame: Frame) -> None:
        """Keep a frame."""
        ...

    def close(self) -> None:
        """Finish, also after an error."""
        ...

    def trajectory(self) -> Trajectory:
        """Return what was kept."""
        ...


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

    A robot whose step fails stays at its last good state, its failure stands in the trajectory's status from then on;
    the others go on. Where all robots have failed, there are frames of them up to the last step all the same: their
    time goes on, and the states in them are the last good ones. A robot that sank into an obstacle by more than its
    contact radius is warned of.

    Parameters
    ----------
    schedule : function of (time (B,), model) that returns the `Control` for that time. `Newmark` and `BDF2` go on from
        the acceleration of the state: begin with `model.initial_state(control=schedule(time, model))`, which has that
        of what is driven from the first moment on. If it has an attribute `ahead` that is True, it is asked for up to
        50 steps before these are taken, also beyond the next frame, which is faster; so it may read of the model what
        steps do not change, and change nothing.
    every : steps from one stored frame to the next; the last step is stored, too.
    writer : where frames go; in memory by default. What it changes comes too late for steps that are taken already.
    progress : show a progress bar with the number of robots that still run.
    throw : raise a `SimulationError` at the first failure instead.
    running : (B,) robots to step, e.g. those that did not fail in an earlier run.
    controller : function of (state, control, model) that returns the control of a step, after the schedule; or one with
        a memory (see `control.protocol`).
    memory : of the controller in an earlier run that ended in `state`, such as `Trajectory.memory`: the run goes on as
        if there had been no cut. By default the controller begins anew.
    strains : store the strains of all terms with each frame, too, as `Model.strains` gives them.
    reactions : store what each clamp exerts on its robot in the last step before each frame, as
        `integrator.reactions` gives it. Not a number where that is not known: before the first step, of robots that
        failed, and of steps in time that were taken in parts (`max_substeps`).
    """
    steps, every = whole_number(steps, "rollout.steps"), whole_number(every, "rollout.every")
    switches = {"progress": progress, "throw": throw, "strains": strains, "reactions": reactions}
    for name, given in switches.items():
        truth(given, f"rollout.{name}")
    check_run("rollout", model, state, integrator, schedule, controller)
    running = running_robots(state, running)
    writer = Recorder() if writer is None else writer
    writer.start(1 + -(-steps // every), model.rod_edges, model.triangles, model.appearance())
    bar = progress_bar(steps, state.batch) if progress else None
    wanted = _Wanted(schedule, controller, memory, every, throw, strains, reactions, beyond_frames=True)
    taken = _frames(model, state, integrator, steps, running, wanted, bar)
    deepest = PenetrationWatch(model.obstacles if isinstance(model, Model) else ())
    try:
        for frame in taken:
            writer.append(frame)
            deepest.see(frame.state, frame.contact)
            status = frame.status
    finally:
        if bar is not None:
            bar.close()
        writer.close()
    failed = torch.where(running, status, int(Status.CONVERGED))  # others were stopped by the caller
    warn_of_failures(failed, "rollout", "and the trajectory's status says why")
    deepest.warn("rollout")
    return writer.trajectory()


@dataclass(frozen=True)
class _Wanted(Generic[M]):
    """What a run is asked for: what acts in its steps, and what its frames hold.

    Attributes
    ----------
    schedule, controller, memory, every, throw, strains, reactions : as for `rollout`.
    beyond_frames : whether steps beyond a frame may be taken before it is yielded, where that is faster: what is done
        to the model between two frames comes too late for these steps.
    """

    schedule: Callable[[Tensor, M], Control] | None
    controller: Controller | None
    memory: Memory | None
    every: int
    throw: bool
    strains: bool
    reactions: bool
    beyond_frames: bool = False

    def together(self) -> bool:
        """Return whether nothing is asked between two steps from frame to frame, so that several are taken at once."""
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
    """Return the initial frame, then those of `rollout`, with the same arguments, as they come.

    No step beyond a frame is taken before it is given: what is done to the model then holds from the next step on.
    """
    wanted = _Wanted(schedule, controller, memory, every, throw, strains, reactions)
    return _frames(model, state, integrator, steps, running_robots(state, running), wanted)


@torch.no_grad()
def _frames(
    model: M, state: S, integrator: Stepper[M, S], steps: int, running: Tensor, wanted: _Wanted[M], bar=None
) -> Iterator[Frame]:
    """Yield the initial frame, then those of a run; `bar` shows the progress."""
    integrator.prepare(model, state, steps)
    memory = begun(wanted.controller, model, state, integrator, steps, wanted.memory)
    asked = _Asked(model, integrator, wanted.strains, wanted.reactions)
    at = _RunProgress.initially(state, memory, running)
    yield dataclasses.replace(
        Frame.initial(cast(State, state), model.energies(state)),  # each kind of state has positions
        status=at.status,
        contact=model.contact_report(state),
        memory=memory,
        strains=asked.strains(state),
        reactions=asked.first_reactions(state),
    )
    run, every, none = _Run(model, state, integrator, wanted), wanted.every, at.went
    while at.step < steps:
        taken = run.next(at.state, at.memory, at.running, steps - at.step, every - at.step % every)
        at = at.after(taken, integrator)
        if wanted.throw and not bool(taken.info.converged.all()):
            raise SimulationError.from_status(taken.info.status, _steps_in_words(at.step, taken.count))
        _advance(bar, taken.count, at.running, taken.info)
        if at.step % every == 0 or at.step == steps:
            yield Frame(
                step=at.step,
                time=at.time,
                state=cast(State, at.state),
                iterations=at.went.iterations,
                iterations_max=at.went.iterations_max,
                residual=at.went.residual,
                status=at.status,
                energies=taken.energies(model),
                contact=at.went.contact,
                memory=at.memory,
                strains=asked.strains(at.state),
                reactions=asked.reactions(taken, at.running),
            )
            at.went = none


def _keeps_between(state: BatchState, every: int) -> bool:
    """Return whether states between frames are worth keeping, so that steps may be taken beyond the next frame."""
    few = (every - 1) * sum(field.numel() for field in state.fields()) <= FEW_NUMBERS
    return every < OFTEN or (every < SELDOM and few)


@dataclass(frozen=True)
class _Taken(Generic[S]):
    """Some steps of a run: how many, the states before and after them, the last control, and how they went.

    Attributes
    ----------
    memory : of the controller after them.
    ahead : what they are among, where all robots made them and more steps are taken already.
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
        """Whether all robots are known to have made them, if all run."""
        status = self.info.status
        return self.ahead is not None or (status.is_cpu and not bool(status.any()))

    def energies(self, model: Any) -> Mapping[str, Tensor]:
        """Return the energies (B,) after them [J]."""
        return model.energies(self.state, self.control) if self.ahead is None else self.ahead.energies()


@dataclass
class _RunProgress(Generic[S]):
    """Where a run is.

    Attributes
    ----------
    step : how many steps were taken.
    time : () [s] of the robots that run.
    memory : of the controller.
    running, status : (B,) which robots run, and why others do not.
    went : how the steps since the last frame went.
    all_run : whether all robots are known to run; on a GPU nobody waits to know.
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
        """Return where a run begins."""
        zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
        status = torch.where(running, zero, int(Status.STOPPED))
        all_run = running.is_cpu and bool(running.all())
        return cls(0, state.time.max(), state, memory, running, status, SeveralSteps.none(state.q), all_run)

    def after(self, taken: _Taken[S], integrator: object) -> _RunProgress[S]:
        """Return where the run is after some steps more."""
        if self.all_run and taken.all_made:
            time, went = taken.state.time.max(), self.went.followed_by(taken.info, None)
            reached, memory = self.step + taken.count, dict(taken.memory)
            return _RunProgress(reached, time, taken.state, memory, self.running, self.status, went, True)
        running = self.running & taken.info.converged
        return _RunProgress(
            self.step + taken.count,
            _time_after(taken.count, integrator, self.time, taken.state, running),
            taken.state,
            kept(self.memory, taken.memory, running),
            running,
            torch.where(self.running, taken.info.status, self.status),
            self.went.followed_by(taken.info, self.running),
        )


class _Run(Generic[M, S]):
    """Takes the steps of a run from a state."""

    def __init__(self, model: M, state: S, integrator: Stepper[M, S], wanted: _Wanted[M]):
        self._model, self._integrator = model, integrator
        self._schedule, self._controller, self._every = wanted.schedule, wanted.controller, wanted.every
        self._many, together = stepper_of_many(integrator), wanted.together()
        self._at_once = STEPS_HANDED_OVER if together and self._many is not None else 1
        ahead = wanted.beyond_frames and together and _keeps_between(state, wanted.every)
        self._courses = Courses(model, integrator, wanted.schedule) if ahead else None
        self._ahead: StepsAhead | None = None

    def next(self, state: S, memory: Memory, running: Tensor, left: int, to_frame: int) -> _Taken[S]:
        """Return the next steps from a state, no more than are left in all and to the next frame."""
        if (ahead := self._steps_ahead(state, left, running)) is not None:
            control, reached, info = ahead.next(to_frame)
            return _Taken(info.count, state, cast(S, reached), control, info, memory, ahead)  # no controller
        count = min(to_frame, left, self._at_once)
        controls = [*scheduled_ahead(self._model, state, self._integrator, self._schedule, count)]
        control, remembered = answered(self._controller, state, memory, controls[-1], self._model)
        if count > 1 and self._many is not None:
            after, went = self._many.steps(self._model, state, count, controls, running)
        else:
            after, went = self._integrator.step(self._model, state, control, running)
        return _Taken(count, state, after, control, went, remembered)

    def _steps_ahead(self, state: S, left: int, running: Tensor) -> StepsAhead | None:
        """Return steps that are taken already, so many at most where none are left; None where the next goes alone."""
        if self._courses is None:
            return None
        if self._ahead is None or not self._ahead.left:
            course = self._courses.next(state, left) if bool(running.all()) else None
            self._ahead = None if course is None else StepsAhead(cast(Model, self._model), course, self._every)
        return self._ahead


def _steps_in_words(step: int, count: int) -> str:
    """Return what messages call so many steps, of which this is the last."""
    return f"step {step}" if count == 1 else f"steps {step - count + 1} to {step}"


class _Asked:
    """What frames hold beside the state, as far as it is asked for: strains, and reactions of clamps."""

    def __init__(self, model: Any, integrator: Any, strains: bool, reactions: bool):
        if strains and not hasattr(model, "strains"):
            raise InputError(f"rollout: strains are those of rods and shells; {type(model).__name__} has none")
        if reactions and not hasattr(integrator, "reactions"):
            raise InputError(f"rollout: reactions are those of rods and shells; {type(integrator).__name__} has none")
        if reactions and not model.body.clamps:
            raise InputError("rollout: reactions are those of clamps; the robot has none")
        self._model, self._integrator, self._strains, self._reactions = model, integrator, strains, reactions

    def strains(self, state: BatchState) -> Mapping[str, Tensor]:
        """Return the strains (B, ...)."""
        return self._model.strains(state) if self._strains else {}

    def first_reactions(self, state: BatchState) -> Mapping[str, Tensor]:
        """Return the reactions (B, 6) before the first step, which are not known."""
        if not self._reactions:
            return {}
        still = state.q.new_zeros(state.batch, len(self._model.body.clamps), 6)
        return _by_clamp(still, torch.zeros(state.batch, dtype=torch.bool, device=state.q.device))

    def reactions(self, taken: _Taken, running: Tensor) -> Mapping[str, Tensor]:
        """Return what clamps exerted (B, 6) in the last step on robots (B,) that run, where that is known."""
        if not self._reactions:
            return {}
        # steps are taken one by one then
        exerted = self._integrator.reactions(self._model, taken.before, taken.state, taken.control)
        known = self._integrator.reactions_after_parts | (taken.info.substeps == 1)
        return _by_clamp(exerted, running & known)


def _by_clamp(reactions: Tensor, known: Tensor) -> Mapping[str, Tensor]:
    """Return reactions (B, C, 6) by clamp, not a number in rows (B,) that are not known."""
    told = torch.where(known[:, None, None], reactions, torch.nan)
    return {f"clamp{k}": told[:, k] for k in range(told.shape[1])}


def _time_after(count: int, integrator: object, time: Tensor, state: BatchState, running: Tensor) -> Tensor:
    """Return the time () after so many steps from `time`: that of the robots, or `count` dt later if all failed."""
    return torch.where(running.any(), state.time.max(), time + count * getattr(integrator, "dt", 0.0))


def _advance(bar, count: int, running: Tensor, info) -> None:
    """Show so many steps more, and how they went."""
    if bar is None:
        return
    bar.update(count)
    if count > 1 or bar.n % 10 == 0 or bar.n == bar.total:
        iterations = info.iterations[running].double().mean().item() / count if bool(running.any()) else 0.0
        bar.set_postfix(running=int(running.sum()), iterations=f"{iterations:.1f}", refresh=False)

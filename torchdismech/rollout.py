"""Many steps: from a state to a trajectory."""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchdismech.appearance import Appearance
from torchdismech.control.protocol import Controller, Memory, answered, begun, kept
from torchdismech.errors import FailureWarning, InputError, SimulationError, Status, refuse_other_kind, whole_number
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.state import BatchState, Control, State, running_robots
from torchdismech.stepping import (
    LONGEST,
    Courses,
    Robots,
    Stepper,
    is_ahead,
    scheduled,
    scheduled_ahead,
    stepper_of_many,
)
from torchdismech.trajectory import Frame, Recorder, Trajectory

__all__ = ["Controller", "Unrolled", "Writer", "frames", "rollout", "unroll"]

SELDOM = 5  # steps from frame to frame from which on the states between are not kept

S = TypeVar("S", bound=BatchState)
S_contra = TypeVar("S_contra", bound=BatchState, contravariant=True)
M = TypeVar("M", bound=Robots)


class Observe(Protocol[S_contra]):
    """Looks at a step: returns tensors (B, ...) by name."""

    def __call__(self, before: S_contra, after: S_contra, control: Control, /) -> Mapping[str, Tensor]: ...  # noqa: D102


class Writer(Protocol):
    """Takes the frames of a run: `Recorder` keeps them in memory, `TrajectoryWriter` in a file."""

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance) -> None:
        """Learn how many frames will come, the topology, and what else can be seen of the robots."""
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
    time goes on, and the states in them are the last good ones.

    Parameters
    ----------
    schedule : function of (time (B,), model) that returns the `Control` for that time. If it has an attribute `ahead`
        that is True, it is asked for all steps up to the next frame before these are taken, which is faster; so it may
        read of the model what steps do not change, and change nothing.
    every : steps from one stored frame to the next; the last step is stored, too.
    writer : where frames go; in memory by default.
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
        failed, and of steps that were taken in parts.
    """
    steps, every = whole_number(steps, "rollout.steps"), whole_number(every, "rollout.every")
    _check("rollout", model, state, integrator, schedule, controller)
    running = running_robots(state, running)
    writer = Recorder() if writer is None else writer
    writer.start(1 + -(-steps // every), model.rod_edges, model.triangles, model.appearance())
    bar = _progress_bar(steps, state.batch) if progress else None
    taken = frames(
        model,
        state,
        integrator,
        steps,
        schedule=schedule,
        every=every,
        throw=throw,
        running=running,
        bar=bar,
        controller=controller,
        memory=memory,
        strains=strains,
        reactions=reactions,
        several=True,
    )
    try:
        for frame in taken:
            writer.append(frame)
            status = frame.status
    finally:
        if bar is not None:
            bar.close()
        writer.close()
    failed = torch.where(running, status, int(Status.CONVERGED))  # others were stopped by the caller
    _warn_of_failures(failed, "rollout", "and the trajectory's status says why")
    return writer.trajectory()


@torch.no_grad()
def frames(
    model: M,
    state: S,
    integrator: Stepper[M, S],
    steps: int,
    schedule: Callable[[Tensor, M], Control] | None = None,
    every: int = 1,
    throw: bool = False,
    running: Tensor | None = None,
    bar=None,
    controller: Controller | None = None,
    memory: Memory | None = None,
    strains: bool = False,
    reactions: bool = False,
    several: bool = False,
) -> Iterator[Frame]:
    """Yield the initial frame, then those of `rollout`, with the same arguments; `bar` shows the progress.

    Parameters
    ----------
    several : take several steps, where that is faster, before the frame of the first is yielded: what is done to the
        model between two frames comes too late for these steps.
    """
    running = running_robots(state, running)
    zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
    status = torch.where(running, zero, int(Status.STOPPED))
    integrator.prepare(model, state, steps)
    memory = begun(controller, model, state, integrator, steps, memory)
    yield dataclasses.replace(
        Frame.initial(cast(State, state), model.energies(state)),  # each kind of state has positions
        status=status,
        contact=model.contact_report(state),
        memory=memory,
        strains=_strains(model, state) if strains else {},
        reactions=_unknown_reactions(model, integrator, state) if reactions else {},
    )
    strained: Mapping[str, Tensor] = {}
    exerted: Mapping[str, Tensor] = {}
    together = is_ahead(schedule) and controller is None and not reactions
    many = stepper_of_many(integrator)
    at_once = LONGEST if together and many is not None else 1
    courses = Courses(model, integrator, schedule) if several and together and every < SELDOM else None
    ahead: deque[tuple[Control, S, StepInfo]] = deque()  # steps that are taken already
    step, time, none = 0, state.time.max(), SeveralSteps.none(state.q)
    went = none  # since the frame before
    while step < steps:
        if courses is not None and not ahead:
            ahead.extend(courses.steps(state, steps - step, running))
        before, count = state, 1
        if ahead:
            control, state, info = ahead.popleft()
            remembered: Memory = memory  # no controller
        else:
            count = min(every - step % every, steps - step, at_once)
            controls = [*scheduled_ahead(model, state, integrator, schedule, count)]
            control, remembered = answered(controller, state, memory, controls[-1], model)
            if count > 1 and many is not None:
                state, info = many.steps(model, before, count, controls, running)
            else:
                state, info = integrator.step(model, before, control, running)
        step += count
        status = torch.where(running, info.status, status)
        if throw and not bool(info.converged.all()):
            of = f"step {step}" if count == 1 else f"steps {step - count + 1} to {step}"
            raise SimulationError.from_status(info.status, of)
        went = went.followed_by(info, running)
        running = running & info.converged
        time = _time_after(count, integrator, time, state, running)
        memory = kept(memory, remembered, running)
        _advance(bar, count, running, info)
        if step % every == 0 or step == steps:
            energies = model.energies(state, control)
            if strains:
                strained = _strains(model, state)
            if reactions:
                known = running & (info.substeps == 1)
                exerted = _by_clamp(integrator.reactions(model, before, state, control), known)  # type: ignore[attr-defined]
            how = (went.iterations, went.iterations_max, went.residual, status)
            yield Frame(step, time, cast(State, state), *how, energies, went.contact, memory, strained, exerted)
            went = none


@dataclass(frozen=True)
class Unrolled(Generic[S]):
    """A rollout that can be differentiated.

    Attributes
    ----------
    q, velocity : (steps + 1, B, n), the initial state first.
    state : the last state.
    status : (B,) value of `Status`: CONVERGED, or the first failure; a failed robot stays at its last good state.
    iterations : (steps, B) Newton iterations.
    memory : what the controller remembers at the end, if it does: tensors (B, ...) by name.
    observed : what `observe` returned, (steps, B, ...) by name.
    """

    q: Tensor
    velocity: Tensor
    state: S
    status: Tensor
    iterations: Tensor
    memory: Memory = field(default_factory=dict)
    observed: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def positions(self) -> Tensor:
        """Positions of the nodes (steps + 1, B, N, 3) [m]; of chains and arms `model.points(q)` gives the points."""
        if not isinstance(self.state, State):
            raise InputError(
                "Unrolled.positions: expected states of rods and shells, whose q holds positions, got "
                f"{type(self.state).__name__}: model.points(q[k]) gives positions"
            )
        return self.q[..., : 3 * self.state.n_nodes].unflatten(-1, (-1, 3))


@dataclass(frozen=True)
class _Steps:
    """Some steps of a rollout: q, velocity (steps, B, n), iterations (steps, B), what was asked for (steps, B, ...)."""

    q: Tensor
    velocity: Tensor
    iterations: Tensor
    observed: Mapping[str, Tensor]


@dataclass(frozen=True)
class _Reached(Generic[S]):
    """What the next step starts from."""

    state: S
    memory: Memory
    status: Tensor


def _taken(
    model: M,
    integrator: Stepper[M, S],
    schedule: Callable[[Tensor, M], Control] | None,
    controller: Controller | None,
    observe: Observe[S] | None,
    count: int,
    at: _Reached[S],
) -> tuple[_Steps, _Reached[S]]:
    """Return so many steps, a function of where they start: so they can be taken again."""
    state, memory, status = at.state, at.memory, at.status
    q, velocity, iterations, observed = [], [], [], []
    for _ in range(count):
        given = scheduled(model, state, integrator, schedule)
        control, after = answered(controller, state, memory, given, model)
        before = state
        state, info = integrator.step(model, before, control, status == Status.CONVERGED)
        status = torch.where(status == Status.CONVERGED, info.status, status)
        observed.append({} if observe is None else _checked(observe(before, state, control), state.batch))
        memory = kept(memory, after, status == Status.CONVERGED)
        q.append(state.q)
        velocity.append(state.velocity)
        iterations.append(info.iterations)
    seen = {name: _stacked([values[name] for values in observed]) for name in observed[0]}
    steps = _Steps(_stacked(q), _stacked(velocity), _stacked(iterations), seen)
    return steps, _Reached(state, memory, status)


def _taken_together(courses: Courses[M, S], most: int, at: _Reached[S]) -> tuple[_Steps, _Reached[S]] | None:
    """Return some steps that are one to autograd, so many at most; None where the next one goes alone."""
    course = courses.next(at.state, most) if bool((at.status == Status.CONVERGED).all()) else None
    if course is None:
        return None
    steps = _Steps(course.q, course.velocity, course.infos.iterations, {})
    return steps, dataclasses.replace(at, state=cast(S, course.after))


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Return tensors one after the other in a new dimension; a view of one that is alone."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _checked(values: Mapping[str, Tensor], batch: int) -> Mapping[str, Tensor]:
    """Return what `observe` gave; refuse what is no mapping of tensors with a row for each robot."""
    if not isinstance(values, Mapping):
        raise InputError(f"observe: has to return tensors by name, got {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (batch,):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"observe: {name!r} has to be a tensor with a row for each of {batch} robots, got {got}")
    return values


def _check(caller: str, model: object, state: object, integrator: object, schedule: object, controller: object) -> None:
    """Refuse what is none of these, as where two changed places, or a class stands for an object of it."""
    refuse_other_kind(f"{caller}: state", state, BatchState, "a state, as in (model, state, integrator, steps)")
    if isinstance(integrator, type) or not hasattr(integrator, "step"):
        expected = "an integrator, such as ImplicitEuler(dt=0.01), as in (model, state, integrator, steps)"
        raise InputError(f"{caller}: integrator: expected {expected}, got {_shown(integrator)}")
    if isinstance(model, type) or not hasattr(model, "initial_state"):
        raise InputError(f"{caller}: model: expected one, such as builder.finalize(), got {_shown(model)}")
    if schedule is not None and not callable(schedule):
        expected = "a function of (time, model) that returns a Control"
        raise InputError(
            f"{caller}: schedule: expected {expected}, got {_shown(schedule)}; lambda time, model: control is one that "
            "sets the same in each step"
        )
    if controller is not None and (isinstance(controller, type) or not callable(controller)):
        expected = "a function of (state, control, model) that returns a Control, or a controller with a memory"
        raise InputError(f"{caller}: controller: expected {expected}, got {_shown(controller)}")


def _shown(given: object) -> str:
    return f"the class {given.__name__} itself" if isinstance(given, type) else type(given).__name__


def unroll(
    model: M,
    state: S,
    integrator: Stepper[M, S],
    steps: int,
    schedule: Callable[[Tensor, M], Control] | None = None,
    controller: Controller | None = None,
    checkpoint_every: int | None = None,
    progress: bool = False,
    throw: bool = False,
    memory: Memory | None = None,
    observe: Observe[S] | None = None,
) -> Unrolled[S]:
    """Return `steps` steps from `state` with their gradients: by state, memory, controls, constants and weights.

    Parameters
    ----------
    schedule, controller, memory : as for `rollout`.
    checkpoint_every : steps from one state that is kept to the next; those in between are taken again in the backward
        pass: about a third more time for much less memory, least at the square root of `steps`. None keeps the states
        of all steps (per robot and step about 22 numbers a node).
    progress : show a progress bar.
    throw : raise a `SimulationError` where a robot fails. By default a warning names the robots that did: they stay at
        their last good state, and what is differentiated of them is that state.
    observe : observe(before, after, control) returns tensors (B, ...) by name for each step, which `Unrolled.observed`
        keeps: strains, energies, what sensors see, `integrator.reactions`. They can be differentiated as all else.
    """
    steps = whole_number(steps, "unroll.steps")
    _check("unroll", model, state, integrator, schedule, controller)
    if checkpoint_every is not None:
        checkpoint_every = whole_number(checkpoint_every, "unroll.checkpoint_every")
    integrator.prepare(model, state, steps)
    memory = begun(controller, model, state, integrator, steps, memory)
    bar = _progress_bar(steps, state.batch) if progress else None
    at = _Reached(state, memory, torch.zeros(state.batch, dtype=torch.long, device=state.q.device))
    parts: list[_Steps] = []
    take = partial(_taken, model, integrator, schedule, controller, observe)
    if checkpoint_every is not None and torch.is_grad_enabled():
        take = partial(checkpoint, take, use_reentrant=False)
    together = checkpoint_every is None and controller is None and observe is None and is_ahead(schedule)
    courses, first = Courses(model, integrator, schedule), 0
    try:
        while first < steps:
            taken = _taken_together(courses, steps - first, at) if together else None
            part, at = taken or take(min(checkpoint_every or 1, steps - first), at)
            count = len(part.q)
            parts.append(part)
            if throw and bool((at.status != Status.CONVERGED).any()):
                which = f"step {first + 1}" if count == 1 else f"one of steps {first + 1} to {first + count}"
                raise SimulationError.from_status(at.status, f"unroll: {which} of {steps}")
            first += count
            if bar is not None:
                bar.update(count)
    finally:
        if bar is not None:
            bar.close()
    _warn_of_failures(at.status, "unroll", "and what is differentiated is that state")
    return _joined(state, parts, at)


def _warn_of_failures(status: Tensor, caller: str, so: str) -> None:
    """Name the robots (B,) that failed, if some did."""
    if bool((status != Status.CONVERGED).any()):
        failure = SimulationError.from_status(status, caller)
        warnings.warn(f"{failure}; they stay at their last good state, {so}; or set throw=True", FailureWarning, 3)


def _joined(initial: S, parts: Sequence[_Steps], end: _Reached[S]) -> Unrolled[S]:
    """Return the steps of all parts, one after the other."""
    return Unrolled(
        torch.cat([initial.q[None], *(part.q for part in parts)]),
        torch.cat([initial.velocity[None], *(part.velocity for part in parts)]),
        end.state,
        end.status,
        torch.cat([part.iterations for part in parts]),
        end.memory,
        {name: torch.cat([part.observed[name] for part in parts]) for name in parts[0].observed},
    )


def _strains(model: Any, state: BatchState) -> Mapping[str, Tensor]:
    """Return the strains (B, ...) of robots that have some."""
    if not hasattr(model, "strains"):
        raise InputError(f"rollout: strains are those of rods and shells; {type(model).__name__} has none")
    return model.strains(state)


def _unknown_reactions(model: Any, integrator: Any, state: BatchState) -> Mapping[str, Tensor]:
    """Return the reactions of clamps before the first step; refuse robots that have none."""
    if not hasattr(integrator, "reactions"):
        raise InputError(f"rollout: reactions are those of rods and shells; {type(integrator).__name__} has none")
    if not model.body.clamps:
        raise InputError("rollout: reactions are those of clamps; the robot has none")
    still = state.q.new_zeros(state.batch, len(model.body.clamps), 6)
    return _by_clamp(still, torch.zeros(state.batch, dtype=torch.bool, device=state.q.device))


def _by_clamp(reactions: Tensor, known: Tensor) -> Mapping[str, Tensor]:
    """Return reactions (B, C, 6) by clamp, not a number in rows (B,) that are not known."""
    told = torch.where(known[:, None, None], reactions, torch.nan)
    return {f"clamp{k}": told[:, k] for k in range(told.shape[1])}


def _time_after(count: int, integrator: object, time: Tensor, state: BatchState, running: Tensor) -> Tensor:
    """Return the time () that so many steps from `time` lead to: that of the robots, or on by dt where all failed."""
    return torch.where(running.any(), state.time.max(), time + count * getattr(integrator, "dt", 0.0))


def _progress_bar(steps: int, batch: int):
    from tqdm import tqdm

    return tqdm(total=steps, unit="step", desc=f"{batch} robots" if batch > 1 else "1 robot")


def _advance(bar, count: int, running: Tensor, info) -> None:
    """Show so many steps more, and how they went."""
    if bar is None:
        return
    bar.update(count)
    if count > 1 or bar.n % 10 == 0 or bar.n == bar.total:
        iterations = info.iterations[running].double().mean().item() / count if bool(running.any()) else 0.0
        bar.set_postfix(running=int(running.sum()), iterations=f"{iterations:.1f}", refresh=False)

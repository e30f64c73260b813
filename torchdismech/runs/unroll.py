"""unroll: a run of many steps that autograd can differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchdismech.control.protocol import Controller, Memory, answered, begun, kept
from torchdismech.errors import InputError, SimulationError, Status, shape_or_kind, shown, truth, whole_number
from torchdismech.model.reduced import ReducedModel
from torchdismech.robot.state import BatchState, Control, State
from torchdismech.runs.retaken import Retaken
from torchdismech.runs.stepping import (
    Courses,
    Robots,
    Stepper,
    check_run,
    is_ahead,
    progress_bar,
    scheduled,
    steps_in_words,
    warn_of_failures,
)
from torchdismech.system.uncompiled import uncompiled

__all__ = ["Unrolled", "unroll"]

S = TypeVar("S", bound=BatchState)
S_contra = TypeVar("S_contra", bound=BatchState, contravariant=True)
M = TypeVar("M", bound=Robots)


class Observe(Protocol[S_contra]):
    """A function that is called after each step, and returns tensors (B, ...) by name to be kept of it."""

    def __call__(self, before: S_contra, after: S_contra, control: Control, /) -> Mapping[str, Tensor]: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Unrolled(Generic[S]):
    """The result of `unroll`: states of all steps, through which gradients pass.

    Attributes
    ----------
    time : (steps + 1, B) [s], of the initial state first; that of a failed robot stands still.
    q, velocity : (steps + 1, B, n), the initial state first.
    state : the last state.
    status : (B,) value of `Status`: CONVERGED, or the first failure; a failed robot stays at its last good state.
    iterations : (steps, B) Newton iterations.
    memory : the controller's memory after the last step, (B, ...) by name; empty for a controller without one.
    observed : what `observe` returned, (steps, B, ...) by name.
    points : function that returns the points (B, N, 3) of chains and arms at q (B, n), by the constants that the model
        has when it is called; None for robots of rods and shells.
    """

    time: Tensor
    q: Tensor
    velocity: Tensor
    state: S
    status: Tensor
    iterations: Tensor
    memory: Memory = field(default_factory=dict)
    observed: Mapping[str, Tensor] = field(default_factory=dict)
    points: Callable[[Tensor], Tensor] | None = None

    def __repr__(self) -> str:
        """Return how many steps and robots there are, what was observed, and how many robots failed, but no tensors."""
        (steps, robots), observed = self.iterations.shape, ", ".join(self.observed)
        of = f"{steps} step{'s' * (steps != 1)} of {robots} robot{'s' * (robots != 1)}"
        return f"Unrolled({of}{', with ' * bool(observed)}{observed}, {int(self.failed.sum())} failed)"

    @property
    def failed(self) -> Tensor:
        """Which robots failed in some step, (B,) bool."""
        return self.status != 0

    @property
    def positions(self) -> Tensor:
        """Positions (steps + 1, B, N, 3) [m] of the nodes of rods and shells, or of the points of chains and arms."""
        if self.points is not None:
            return torch.stack([self.points(q) for q in self.q])
        if not isinstance(self.state, State):
            raise InputError(
                "Unrolled.positions: expected states of rods and shells, whose q holds positions, got "
                f"{type(self.state).__name__}"
            )
        return self.q[..., : 3 * self.state.n_nodes].unflatten(-1, (-1, 3))


@uncompiled
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
    """Take `steps` steps from `state`, differentiable by state, memory, controls, constants and weights.

    Parameters
    ----------
    schedule, controller, memory : as for `rollout`.
    checkpoint_every : number of steps from one checkpoint to the next. Only the states at checkpoints are saved; the
        backward pass takes the steps between again. This costs about a third more time and saves much memory, most at
        the square root of `steps`. None saves the states of all steps (per robot and step about 22 numbers a node).
        What the steps read must not change before the backward pass, which otherwise raises an error that names it
        (docs/gradients.md).
    progress : show a progress bar.
    throw : raise a `SimulationError` where a robot fails. By default a warning names the robots that failed: they stay
        at their last good state, and gradients are those of that state.
    observe : observe(before, after, control) returns tensors (B, ...) by name for each step, which
        `Unrolled.observed` stores: strains, energies, readings of sensors, `integrator.reactions`. Gradients pass
        through them as through the states.
    """
    steps = whole_number(steps, "unroll.steps")
    progress, throw = truth(progress, "unroll.progress"), truth(throw, "unroll.throw")
    check_run("unroll", model, state, integrator, schedule, controller)
    if observe is not None and not callable(observe):
        raise InputError(f"unroll: observe: expected a function of (before, after, control), got {shown(observe)}")
    if checkpoint_every is not None:
        checkpoint_every = whole_number(checkpoint_every, "unroll.checkpoint_every")
    integrator.prepare(model, state, steps)
    memory = begun(controller, model, state, integrator, steps, memory)
    reached = _StepsEnd(state, memory, torch.zeros(state.batch, dtype=torch.long, device=state.q.device))
    all_steps: list[_Steps] = []
    take = partial(_steps_in_turn, model, integrator, schedule, controller, observe)
    if checkpoint_every is not None and torch.is_grad_enabled():
        modules = [module for module in (model, controller) if isinstance(module, nn.Module)]
        take = partial(_checkpointed, take, modules)
    in_courses = checkpoint_every is None and controller is None and observe is None and is_ahead(schedule)
    courses, steps_done = Courses(model, integrator, schedule), 0
    with progress_bar(steps, state.batch, progress) as bar:
        while steps_done < steps:
            course_steps = _steps_of_course(courses, steps - steps_done, reached) if in_courses else None
            some_steps, reached = course_steps or take(min(checkpoint_every or 1, steps - steps_done), reached)
            count = len(some_steps.q)
            all_steps.append(some_steps)
            steps_done += count
            if throw and bool((reached.status != Status.CONVERGED).any()):
                failed = f"unroll: {steps_in_words(steps_done, count)} of {steps}"
                raise SimulationError.from_status(reached.status, failed)
            if bar is not None:
                bar.update(count)
    warn_of_failures(reached.status, "unroll", "and what is differentiated is that state")
    return _unrolled(model, state, all_steps, reached)


@dataclass(frozen=True)
class _Steps:
    """Results of some steps: time, iterations (steps, B), q, velocity (steps, B, n), `observe`'s (steps, B, ...)."""

    time: Tensor
    q: Tensor
    velocity: Tensor
    iterations: Tensor
    observed: Mapping[str, Tensor]


@dataclass(frozen=True)
class _StepsEnd(Generic[S]):
    """Where some steps end and the next ones start: state, the controller's memory, and the status (B,) of robots."""

    state: S
    memory: Memory
    status: Tensor

    def tensors(self) -> list[Tensor]:
        """Return the tensors of state and memory, through which gradients may pass."""
        return [*self.state.fields(), *self.memory.values()]


def _steps_in_turn(
    model: M,
    integrator: Stepper[M, S],
    schedule: Callable[[Tensor, M], Control] | None,
    controller: Controller | None,
    observe: Observe[S] | None,
    count: int,
    at: _StepsEnd[S],
) -> tuple[_Steps, _StepsEnd[S]]:
    """Take `count` steps from `at`; return their results and their end.

    Nothing is kept from call to call, so a backward pass can take the same steps again.
    """
    state, memory, status = at.state, at.memory, at.status
    time, q, velocity, iterations, observed = [], [], [], [], []
    for _ in range(count):
        scheduled_control = scheduled(model, state, integrator, schedule)
        control, memory_after = answered(controller, state, memory, scheduled_control, model)
        before = state
        state, info = integrator.step(model, before, control, status == Status.CONVERGED)
        status = torch.where(status == Status.CONVERGED, info.status, status)
        observed.append({} if observe is None else _checked(observe(before, state, control), state.batch))
        memory = kept(memory, memory_after, status == Status.CONVERGED)
        time.append(state.time)
        q.append(state.q)
        velocity.append(state.velocity)
        iterations.append(info.iterations)
    stacked_observations = {name: _stacked([values[name] for values in observed]) for name in observed[0]}
    steps = _Steps(_stacked(time), _stacked(q), _stacked(velocity), _stacked(iterations), stacked_observations)
    return steps, _StepsEnd(state, memory, status)


def _checkpointed(
    take: Callable[[int, _StepsEnd[S]], tuple[_Steps, _StepsEnd[S]]],
    modules: Sequence[nn.Module],
    count: int,
    at: _StepsEnd[S],
) -> tuple[_Steps, _StepsEnd[S]]:
    """Return `count` steps of `take` as one checkpoint: autograd saves none, the backward pass takes them again.

    Parameters
    ----------
    modules : the model and the controller, which must not have changed by then.
    """
    steps = Retaken(partial(take, count, at), _tensors_of_steps, at.tensors(), modules)
    return checkpoint(steps, use_reentrant=False)


def _tensors_of_steps(steps_and_end: tuple[_Steps, _StepsEnd[S]]) -> list[Tensor]:
    """Return the tensors of some steps and of their end through which gradients may pass."""
    steps, reached = steps_and_end
    return [steps.q, steps.velocity, *steps.observed.values(), *reached.tensors()]


def _steps_of_course(courses: Courses[M, S], most: int, at: _StepsEnd[S]) -> tuple[_Steps, _StepsEnd[S]] | None:
    """Return at most `most` steps as a course, one node to autograd; None where the next step has to go alone."""
    course = courses.next(at.state, most) if bool((at.status == Status.CONVERGED).all()) else None
    if course is None:
        return None
    begin, end, count = at.state.time, course.after.time, len(course.q)
    share = torch.arange(1, count + 1, dtype=begin.dtype, device=begin.device)[:, None] / count
    steps = _Steps(begin + share * (end - begin), course.q, course.velocity, course.infos.iterations, {})
    return steps, dataclasses.replace(at, state=cast(S, course.after))


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Return tensors stacked along a new first dimension; a single one as a view, without a copy."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _checked(values: Mapping[str, Tensor], batch: int) -> Mapping[str, Tensor]:
    """Return the values of `observe`, after refusing any that are no mapping of tensors with a row for each robot."""
    if not isinstance(values, Mapping):
        raise InputError(f"observe: has to return tensors by name, got {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (batch,):
            wanted = f"has to be a tensor with a row for each of {batch} robots"
            raise InputError(f"observe: {name!r} {wanted}, got {shape_or_kind(value)}")
    return values


def _unrolled(model: Robots, initial: S, all_steps: Sequence[_Steps], end: _StepsEnd[S]) -> Unrolled[S]:
    """Return the result of `unroll`: the initial state, then the steps of all parts one after the other."""
    return Unrolled(
        torch.cat([initial.time[None], *(steps.time for steps in all_steps)]),
        torch.cat([initial.q[None], *(steps.q for steps in all_steps)]),
        torch.cat([initial.velocity[None], *(steps.velocity for steps in all_steps)]),
        end.state,
        end.status,
        torch.cat([steps.iterations for steps in all_steps]),
        end.memory,
        {name: torch.cat([steps.observed[name] for steps in all_steps]) for name in all_steps[0].observed},
        model.points if isinstance(model, ReducedModel) else None,
    )

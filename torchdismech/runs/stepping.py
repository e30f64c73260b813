"""What `rollout` and `unroll` share: protocols of models and integrators, schedules, courses, checks and warnings.

A course is a series of steps that the integrator takes in one call and of which it returns the states after each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from torch import Tensor

from torchdismech.control.protocol import expected, name_of
from torchdismech.errors import FailureWarning, InputError, SimulationError, Status, refuse_other_kind, truth, warn
from torchdismech.integrate.gradients.course import Course
from torchdismech.integrate.info import SeveralSteps
from torchdismech.integrate.integrator import SteppingMethod
from torchdismech.model.appearance import Appearance
from torchdismech.robot.state import BatchState, Control, State

__all__ = [
    "STEPS_HANDED_OVER",
    "Courses",
    "Robots",
    "Stepper",
    "StepperOfMany",
    "check_run",
    "is_ahead",
    "progress_bar",
    "scheduled",
    "scheduled_ahead",
    "started",
    "stepper_of_many",
    "steps_in_words",
    "warn_of_failures",
]

LONGEST_WAIT = 8  # at most so many steps are taken one by one before a course is tried again
MIN_STEPS_AT_ONCE = 3  # a course of fewer steps takes as long as these steps one by one, or longer
# The most steps that a run asks its integrator for in one call, so that the progress bar moves and Ctrl-C is noticed.
STEPS_HANDED_OVER = 50

S = TypeVar("S", bound=BatchState)
S_contra = TypeVar("S_contra", bound=BatchState, contravariant=True)
M = TypeVar("M", bound="Robots")
M_contra = TypeVar("M_contra", bound="Robots", contravariant=True)


class Robots(Protocol):
    """A model that `rollout` can step: a `Model` of rods and shells, a `RigidChain`, or an arm."""

    @property
    def rod_edges(self) -> np.ndarray: ...  # noqa: D102

    @property
    def triangles(self) -> np.ndarray: ...  # noqa: D102

    @property
    def energies(self) -> Callable[..., Mapping[str, Tensor]]: ...  # noqa: D102

    @property
    def contact_report(self) -> Callable[..., Mapping[str, Tensor]]: ...  # noqa: D102

    @property
    def appearance(self) -> Callable[[], Appearance]: ...  # noqa: D102


class Stepper(Protocol[M_contra, S]):
    """An integrator, as `rollout` uses it; each kind of robots has its own."""

    def prepare(self, model: M_contra, state: S, steps: int) -> None: ...  # noqa: D102

    def sample(  # noqa: D102
        self, schedule: Callable[[Tensor, Any], Control], state: S, model: M_contra
    ) -> Control: ...

    def step(  # noqa: D102
        self, model: M_contra, state: S, control: Control | None = None, running: Tensor | None = None
    ) -> tuple[S, Any]: ...


class StepperOfMany(Protocol):
    """An integrator that can take several steps in one call, where no controller needs the state between them.

    `steps` returns the last state; `course` the states after each step, or None where the first has to go alone.
    """

    dt: float

    def steps(  # noqa: D102
        self,
        model: Any,
        state: Any,
        count: int,
        control: Control | Sequence[Control] | None = None,
        running: Tensor | None = None,
    ) -> tuple[Any, SeveralSteps]: ...

    def course(self, model: Any, state: Any, controls: Iterator[Control]) -> Any: ...  # noqa: D102


class Courses(Generic[M, S]):
    """Asks the integrator for courses, and decides when to try one and of how many steps.

    If a course ends early, because a robot failed or a control was of another kind, the next is no longer than the
    steps taken, or has two; after each complete course the length doubles. This limits work that is thrown away when a
    robot fails: by then the robots that come first in the batch have been stepped too far. Where courses keep ending
    after fewer than `MIN_STEPS_AT_ONCE` steps, more and more steps are taken one by one before the next is tried.

    Parameters
    ----------
    schedule : a schedule that may be called ahead of the steps (see `is_ahead`), or None.
    """

    def __init__(self, model: M, integrator: Stepper[M, S], schedule: Callable[[Tensor, M], Control] | None):
        self._model, self._integrator, self._schedule = model, integrator, schedule
        self._stepper_of_many = stepper_of_many(integrator)
        self._single_steps_left = 0  # steps to take one by one before the next course
        # steps to take one by one after the next course that is too short; doubles with each of these
        self._backoff = 1
        self._length = STEPS_HANDED_OVER  # most steps of the next course

    def next(self, state: S, most: int) -> Course | None:
        """Return a course of at most `most` steps from a state; None where the next step has to be taken by itself."""
        if self._stepper_of_many is None:
            return None
        if self._single_steps_left:
            self._single_steps_left -= 1
            return None
        most = min(most, self._length)
        controls = scheduled_ahead(self._model, state, self._integrator, self._schedule, most)
        course: Course | None = self._stepper_of_many.course(self._model, state, controls)
        self._adapt(0 if course is None else len(course.q), most)
        return course

    def _adapt(self, taken: int, tried: int) -> None:
        """Set when to try the next course and its length, after `taken` of the `tried` steps of the last one."""
        self._length = min(2 * taken, STEPS_HANDED_OVER) if taken == tried else max(taken, 2)
        if taken >= MIN_STEPS_AT_ONCE:
            self._backoff = 1
        self._single_steps_left = int(
            taken < tried
        )  # a course that ends early does so before a step that cannot be part of one
        if taken < min(MIN_STEPS_AT_ONCE, tried):
            self._single_steps_left, self._backoff = self._backoff, min(2 * self._backoff, LONGEST_WAIT)


def scheduled(model: M, state: S, integrator: Stepper[M, S], schedule) -> Control:
    """Return the control that the schedule sets for the step from `state`; an empty one without a schedule."""
    if schedule is None:
        return Control()
    return integrator.sample(lambda time, model: expected(schedule(time, model), "schedule", schedule), state, model)


def started(integrator: object, state: S) -> S:
    """Return the state with the history that an integrator's steps add to it, if they add any."""
    return cast(S, integrator.started(cast(State, state))) if isinstance(integrator, SteppingMethod) else state


def is_ahead(schedule: object) -> bool:
    """Return whether a schedule may be called before the steps are taken: none, or one whose `ahead` is True.

    An attribute `ahead` that is no bool is refused. `rollout` says what such a schedule may read.
    """
    return truth(getattr(schedule, "ahead", schedule is None), f"schedule: {name_of(schedule)}.ahead")


def stepper_of_many(integrator: object) -> StepperOfMany | None:
    """Return the integrator if it can take several steps in one call, else None.

    None, too, for a subclass that overrides `step` alone: the inherited `steps` would pass its `step` by.
    """
    kind: Any = type(integrator)
    return cast(StepperOfMany, integrator) if hasattr(integrator, "dt") and _takes_many(kind) else None


@cache
def _takes_many(kind: type) -> bool:
    """Return whether a class has `steps` and `course`, and its `steps` is defined at or below its `step`."""
    if not all(hasattr(kind, name) for name in ("steps", "course", "step")):
        return False
    step, steps = (next(own for own in kind.__mro__ if name in vars(own)) for name in ("step", "steps"))
    return issubclass(steps, step)


def scheduled_ahead(model: M, state: S, integrator: Stepper[M, S], schedule, count: int) -> Iterator[Control]:
    """Yield the controls of `count` steps from `state` on; without a schedule one empty control, `count` times.

    The schedule sees the state's time only, moved on by dt for each step, as the states themselves are not known yet.
    """
    if schedule is None:
        yield from [Control()] * count
        return
    for number in range(count):
        if number and (many := stepper_of_many(integrator)):
            state = state.replace(time=state.time + many.dt)
        yield scheduled(model, state, integrator, schedule)


def check_run(
    caller: str, model: object, state: object, integrator: object, schedule: object, controller: object
) -> None:
    """Refuse arguments of a run of the wrong kind: two that were swapped, or a class instead of an instance."""
    refuse_other_kind(f"{caller}: state", state, BatchState, "a state, as in (model, state, integrator, steps)")
    if isinstance(integrator, type) or not hasattr(integrator, "step"):
        wanted = "an integrator, such as ImplicitEuler(dt=0.01), as in (model, state, integrator, steps)"
        raise InputError(f"{caller}: integrator: expected {wanted}, got {_shown(integrator)}")
    if isinstance(model, type) or not hasattr(model, "initial_state"):
        raise InputError(f"{caller}: model: expected one, such as builder.finalize(), got {_shown(model)}")
    if schedule is not None and not callable(schedule):
        wanted = "a function of (time, model) that returns a Control"
        raise InputError(
            f"{caller}: schedule: expected {wanted}, got {_shown(schedule)}; lambda time, model: control is one that "
            "sets the same in each step"
        )
    if controller is not None and (isinstance(controller, type) or not callable(controller)):
        wanted = "a function of (state, control, model) that returns a Control, or a controller with a memory"
        raise InputError(f"{caller}: controller: expected {wanted}, got {_shown(controller)}")


def _shown(value: object) -> str:
    return f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__


def warn_of_failures(status: Tensor, caller: str, so: str) -> None:
    """Warn of the robots whose status (B,) is a failure, if there are any; `so` says what that means for the caller."""
    if bool((status != Status.CONVERGED).any()):
        failure = SimulationError.from_status(status, caller)
        warn(f"{failure}; they stay at their last good state, {so}; or set throw=True", FailureWarning)


def progress_bar(steps: int, batch: int, shown: bool):
    """Return a context of a progress bar over the steps of a run, or of None unless it is to be `shown`."""
    if not shown:
        return nullcontext()  # a bar that is switched off would start a thread
    from tqdm import tqdm

    return tqdm(total=steps, unit="step", desc=f"{batch} robots" if batch > 1 else "1 robot")


def steps_in_words(step: int, count: int) -> str:
    """Return the words of messages for `count` steps that end with number `step`: "steps 3 to 5", "step 5"."""
    return f"step {step}" if count == 1 else f"steps {step - count + 1} to {step}"

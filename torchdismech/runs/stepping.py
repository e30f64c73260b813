"""How runs take their steps: what is stepped, and by what; schedules; and several steps at a time where they can be.

`rollout` and `unroll` share it, and so what they refuse, show and warn of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from torch import Tensor

from torchdismech.control.protocol import expected, name_of
from torchdismech.errors import FailureWarning, InputError, SimulationError, Status, refuse_other_kind, truth, warn
from torchdismech.integrate.gradients.course import Course
from torchdismech.integrate.info import SeveralSteps
from torchdismech.model.appearance import Appearance
from torchdismech.robot.state import BatchState, Control

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
    "stepper_of_many",
    "warn_of_failures",
]

LONGEST_WAIT = 8  # steps that are taken one by one at most until it is tried again to take several at once
MIN_STEPS_AT_ONCE = 3  # steps at once from which on they take less time than one by one
# Steps that a run hands over to its integrator at once, at most: a bar shows how it goes on, and Ctrl-C is heard.
STEPS_HANDED_OVER = 50

S = TypeVar("S", bound=BatchState)
S_contra = TypeVar("S_contra", bound=BatchState, contravariant=True)
M = TypeVar("M", bound="Robots")
M_contra = TypeVar("M_contra", bound="Robots", contravariant=True)


class Robots(Protocol):
    """What can be rolled out: a `Model` of rods and shells, a `RigidChain`."""

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
    """What steps them, each kind of robots its own."""

    def prepare(self, model: M_contra, state: S, steps: int) -> None: ...  # noqa: D102

    def sample(  # noqa: D102
        self, schedule: Callable[[Tensor, Any], Control], state: S, model: M_contra
    ) -> Control: ...

    def step(  # noqa: D102
        self, model: M_contra, state: S, control: Control | None = None, running: Tensor | None = None
    ) -> tuple[S, Any]: ...


class StepperOfMany(Protocol):
    """What takes several steps at once, if nothing is asked between them."""

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
    """Steps that are taken several at a time, with the states after each; where they cannot be, tried ever less often.

    If a course ends early, because a robot failed or a control was of another kind, the next is no longer than the
    steps taken; after each complete course the length doubles. This limits work that is thrown away when a robot fails:
    by then the robots that come first in the batch have been stepped too far.

    Parameters
    ----------
    schedule : one that may be asked ahead, or None.
    """

    def __init__(self, model: M, integrator: Stepper[M, S], schedule: Callable[[Tensor, M], Control] | None):
        self._model, self._integrator, self._schedule = model, integrator, schedule
        self._many = stepper_of_many(integrator)
        self._alone = 0  # steps to take one by one before the next course
        self._waited = 1  # steps that were so before it, twice as many at each course that is hardly taken
        self._length = STEPS_HANDED_OVER  # of the next course, at most

    def next(self, state: S, most: int) -> Course | None:
        """Return a course from a state, of so many steps at most; None where the next step goes alone."""
        if self._many is None:
            return None
        if self._alone:
            self._alone -= 1
            return None
        most = min(most, self._length)
        controls = scheduled_ahead(self._model, state, self._integrator, self._schedule, most)
        course: Course | None = self._many.course(self._model, state, controls)
        self._adapt(0 if course is None else len(course.q), most)
        return course

    def _adapt(self, taken: int, tried: int) -> None:
        """Set when the next course begins, and how long it may be, by how many steps of the last one were taken."""
        self._length = min(2 * taken, STEPS_HANDED_OVER) if taken == tried else max(taken, 2)
        if taken >= MIN_STEPS_AT_ONCE:
            self._waited = 1
        self._alone = int(taken < tried)  # it ends before a step that goes alone
        if taken < min(MIN_STEPS_AT_ONCE, tried):
            self._alone, self._waited = self._waited, min(2 * self._waited, LONGEST_WAIT)


def scheduled(model: M, state: S, integrator: Stepper[M, S], schedule) -> Control:
    """Return what the schedule sets for the step from `state`."""
    if schedule is None:
        return Control()
    return integrator.sample(lambda time, model: expected(schedule(time, model), "schedule", schedule), state, model)


def is_ahead(schedule: object) -> bool:
    """Return whether a schedule may be asked before the steps are taken, see `rollout`; refuse what says neither."""
    return truth(getattr(schedule, "ahead", schedule is None), f"schedule: {name_of(schedule)}.ahead")


def stepper_of_many(integrator: object) -> StepperOfMany | None:
    """Return an integrator that takes several steps at once; None, also where a subclass takes one in its own way."""
    kind: Any = type(integrator)
    return cast(StepperOfMany, integrator) if hasattr(integrator, "dt") and _takes_many(kind) else None


@cache
def _takes_many(kind: type) -> bool:
    """Return whether a class of integrators takes several steps at once, as it does one."""
    if not all(hasattr(kind, name) for name in ("steps", "course", "step")):
        return False
    step, steps = (next(own for own in kind.__mro__ if name in vars(own)) for name in ("step", "steps"))
    return issubclass(steps, step)


def scheduled_ahead(model: M, state: S, integrator: Stepper[M, S], schedule, count: int) -> Iterator[Control]:
    """Yield what the schedule sets for the steps from `state` on, the same control for all where there is none."""
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
    """Refuse what is none of these: two that changed places, a class in place of an object of it."""
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


def _shown(given: object) -> str:
    return f"the class {given.__name__} itself" if isinstance(given, type) else type(given).__name__


def warn_of_failures(status: Tensor, caller: str, so: str) -> None:
    """Name the robots (B,) that failed, if some did."""
    if bool((status != Status.CONVERGED).any()):
        failure = SimulationError.from_status(status, caller)
        warn(f"{failure}; they stay at their last good state, {so}; or set throw=True", FailureWarning)


def progress_bar(steps: int, batch: int):
    """Return a bar that shows how many of a run's steps were taken."""
    from tqdm import tqdm

    return tqdm(total=steps, unit="step", desc=f"{batch} robots" if batch > 1 else "1 robot")

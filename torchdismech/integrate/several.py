"""Several steps with one check of the model: which of them go together, one after another, or as a course.

The check (`SteppingMethod._checked_problem` in `integrator.py`) is of the input, and takes a snapshot, once for a
step, for several or for a course.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile

import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_kind
from torchdismech.integrate.gradients.checkpoints import saved_elsewhere
from torchdismech.integrate.gradients.course import Course, can_begin_course, course_of
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.problem import StepProblem, Take
from torchdismech.integrate.recorded.recordable import records_all_users_code
from torchdismech.model import Model
from torchdismech.model.refusals import refuse_transforms
from torchdismech.robot.state import Control, State, control_of

__all__ = [
    "STEPS_PER_CHECK",
    "all_steps",
    "controls_of_steps",
    "course_begun",
    "with_following",
    "may_begin_course",
    "one_after_another",
]

# Steps with one check of the model, at most; a check takes as long as one step, and runs hand over fewer at once.
STEPS_PER_CHECK = 100
MAX_NUMBERS_KEPT = 30_000_000  # numbers of states in a course at most: 240 MB, 50 steps of 270 rods of 101 nodes


def controls_of_steps(control: Control | Sequence[Control] | None, count: int) -> Sequence[Control]:
    """Return the controls of `count` steps; refuse what is neither one control nor a sequence of as many."""
    if control is None or isinstance(control, Control):
        return [control_of(control)] * count
    if not isinstance(control, Sequence) or len(control) != count:
        given = f"{len(control)} of them" if isinstance(control, Sequence) else type(control).__name__
        raise InputError(f"steps: control: expected a Control, or one for each of {count} steps, got {given}")
    for k, one in enumerate(control):
        refuse_other_kind(f"steps: control[{k}]", one, Control, "a Control")
    return control


def one_after_another(
    take: Callable[[State, Sequence[Control], Tensor], tuple[State, StepInfo]],
    state: State,
    controls: Sequence[Control],
    running: Tensor,
) -> tuple[State, SeveralSteps]:
    """Return the states after steps with these controls, and how the steps went.

    Parameters
    ----------
    take : takes the first of some steps, or more of them, from a state, for the robots (B,) that run.
    running : (B,) robots to step. A robot whose step fails is not stepped any more.
    """
    totals = SeveralSteps.none(state.q)
    while totals.count < len(controls):
        state, info = take(state, controls[totals.count :], running)
        totals, running = totals.followed_by(info, running), running & info.converged
    return state, totals


def all_steps(take: Take, problem: StepProblem) -> tuple[State, SeveralSteps]:
    """Return the states after a step and those that follow it, and how all went.

    `take` may take one or several of them at a time.
    """

    def take_some(state: State, controls: Sequence[Control], running: Tensor) -> tuple[State, StepInfo]:
        control, *following = controls
        return take(problem.replace(state=state, running=running, control=control, following=following))

    return one_after_another(take_some, problem.state, [problem.control, *problem.following], problem.running)


def _may_be_followed(model: Model, control: Control) -> bool:
    """Return whether a step with this control may be followed by others without another check of the model.

    It may not where a control has a pose, which is another target from each state, nor where the model has users' code
    that does not say `records`, as such code may have to run between two steps.
    """
    return control.pose is None and records_all_users_code(model)


def with_following(problem: StepProblem, control: Control, later: Iterable[Control]) -> StepProblem:
    """Return a step with the controls of those that may be taken along with it: up to the first that sets other fields.

    One recording serves them all, and they lie in one plane. Controls that are wrong are refused. There are none where
    the model has to be looked at between two steps.

    Parameters
    ----------
    problem : the step.
    control : of the step, as the caller gave it, with its values.
    later : controls of the steps after it.
    """
    model, state = problem.model, problem.state
    if not later or not _may_be_followed(model, control):
        return problem.with_plane()
    like_first = takewhile(lambda other: _is_like(model, state, control, other), later)
    # a control with values is followed by itself alone; its values stand in the model already
    following = [problem.control for _ in like_first] if control.values else [*like_first]
    return problem.replace(following=following).with_plane()


def may_begin_course(model: Model, state: State, control: Control) -> bool:
    """Return whether a step may be the first of a course, as far as is known without a check of the model."""
    if control.values or not state.q.is_cpu or not _may_be_followed(model, control):
        return False
    # a checkpoint takes all steps again, maybe divided into other courses
    return not (torch.is_grad_enabled() and saved_elsewhere())


def course_begun(problem: StepProblem, size: int, later: Iterator[Control]) -> Course | None:
    """Return where a step and those with later controls lead; None if the step must be taken by itself.

    Later controls are asked for only once it is known that it need not.

    Parameters
    ----------
    size : how many robots are stepped at a time.
    later : controls of the steps after it.
    """
    limit = MAX_NUMBERS_KEPT // sum(field.numel() for field in problem.state.fields())
    # recordings are found by the plane, too
    if limit < 2 or not can_begin_course(problem.with_plane(), size, torch.is_grad_enabled()):
        return None
    course_problem = with_following(problem, problem.control, islice(later, limit - 1))
    return course_problem.model.compilation.guarded(lambda: course_of(course_problem, size))


def _is_like(model: Model, state: State, control: Control, later: Control) -> bool:
    if later is control:
        return True
    if control.values or later.values or later.kind != control.kind:
        return False
    model.check_numbers(later, state)
    refuse_transforms(model, state, later)
    return True

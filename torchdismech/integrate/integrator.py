"""What all integrators share: options, the policies around a step, and its checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from torchdismech.contact.initial_overlap import warn_of_overlap
from torchdismech.errors import (
    InputError,
    SimulationError,
    positive_number,
    real_number,
    refuse_other_kind,
    refuse_unstepped,
    truth,
    warn,
    whole_number,
)
from torchdismech.integrate.candidates import constraints_at
from torchdismech.integrate.causes import cause_of_failure, warn_of_lost
from torchdismech.integrate.chunks import check_chunk, chunk_size, in_chunks
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.equilibria.linearised import Linearised
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.integrate.gradients.course import Course
from torchdismech.integrate.gradients.gradient import differentiable_step
from torchdismech.integrate.gradients.hooks import refuse_hidden_tensors
from torchdismech.integrate.idle_loads import warn_of_missed_loads, warn_of_small_loads
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.problem import StepProblem, Take
from torchdismech.integrate.recorded.recording import records_eager_steps
from torchdismech.integrate.scheme import Scheme
from torchdismech.integrate.search.attempts import Attempt, attempts_at_step
from torchdismech.integrate.several import (
    STEPS_PER_CHECK,
    all_steps,
    controls_of_steps,
    course_begun,
    may_begin_course,
    one_after_another,
    with_following,
)
from torchdismech.integrate.substeps import with_retries
from torchdismech.model import Model
from torchdismech.model.clamps import posed, wrenches
from torchdismech.model.refusals import refuse_transforms
from torchdismech.robot.state import STATES, Control, State, control_of, running_robots
from torchdismech.snapshot import Snapshot
from torchdismech.system.uncompiled import uncompiled
from torchdismech.trainable import refuse_trained_out_of_bounds

__all__ = ["FORCE_TOLERANCE", "RELATIVE_TOLERANCE", "Integrator", "Schedule", "StepInfo", "SteppingMethod"]

# N: a millionth of what fibres of a millimetre weigh, or feel in a magnetic field. With 1e-8, robots that bear less
# than 1 N would be solved to an accuracy that depends on their size; with this, iterations are 3 % more.
FORCE_TOLERANCE = 1e-12
RELATIVE_TOLERANCE = 1e-8
LARGEST_TOLERANCE = 1e3  # N; soft robots weigh less, and for heavy ones the relative tolerance counts
# a control as a function of time: schedule(time (B,), model) -> Control
Schedule = Callable[[Tensor, Model], Control]


class SteppingMethod(ABC):
    """Base class of the integrators and of `Static`: their options, the checks of input, and `step`.

    Parameters
    ----------
    force_tolerance : norm of the residual [N] at which a step counts as converged.
    relative_tolerance : the same as a part of the step's force scale (see `StepInfo`); the larger of the two counts.
    max_iterations : Newton iterations per attempt.
    line_search : False takes every Newton step whole.
    chunk : how many robots of a batch are stepped at a time. Robots do not interact, so the choice changes results by
        rounding alone: which solver is the fastest, and how sums are grouped, depends on it. "auto" takes as many as
        are fastest on a CPU, and no more than memory is enough for, with a warning; None takes all.
    """

    scheme: Scheme
    takes_constraints = False  # whether contact may be a constraint
    reactions_after_parts = False  # whether `reactions` is right for steps that were taken in parts, too
    step_evaluations = 4  # evaluations that a step is expected to take: 3 for rods that move smoothly, 4.5 for shells

    def __init__(
        self,
        force_tolerance: float,
        relative_tolerance: float,
        max_iterations: int,
        line_search: bool,
        chunk: int | str | None,
    ):
        self.force_tolerance = real_number(force_tolerance, "force_tolerance", "a number of N")
        self.relative_tolerance = real_number(relative_tolerance, "relative_tolerance")
        if not 0 < self.force_tolerance <= LARGEST_TOLERANCE:
            raise InputError(
                f"force_tolerance: expected a number above 0 and up to {LARGEST_TOLERANCE:g} N (no step could miss a "
                f"larger one, so nothing would move), got {force_tolerance}; relative_tolerance grows with the loads"
            )
        if not 0 <= self.relative_tolerance < 1:
            raise InputError(f"relative_tolerance: expected a number from 0 up to 1, got {relative_tolerance}")
        self.max_iterations = whole_number(max_iterations, "max_iterations")
        self.line_search = truth(line_search, "line_search")
        self.chunk = check_chunk(chunk)

    # ---- for the caller ----------------------------------------------------------------------------------------

    @uncompiled
    def step(
        self,
        model: Model,
        state: State,
        control: Control | None = None,
        running: Tensor | None = None,
        throw: bool = False,
    ) -> tuple[State, StepInfo]:
        """Return the state after one step and how it went.

        A robot whose step fails keeps the state it had; the others go on. Where autograd records, the new state can be
        differentiated by the state, the control and the model's tensors that require it: see `integrate.gradients`.

        Parameters
        ----------
        control : what the caller sets for this step.
        running : (B,) bool, robots to step; the others are left alone and reported as converged.
        throw : raise a `SimulationError` that names the failed robots instead of reporting them.
        """
        refuse_unstepped(self, model, Model)
        throw = truth(throw, "step: throw")
        with model.lock:
            return self._steps_at_once(model, state, [control_of(control)], running, throw)

    @uncompiled
    def reactions(self, model: Model, before: State, after: State, control: Control | None = None) -> Tensor:
        """Return the force [N] and torque [N m] that each clamp exerted on its robot in a step (B, C, 6).

        In world axes, the torque about the mean of the clamp's nodes, clamps in the order in which they were made. They
        act where the step evaluates forces: at its end, by `ImplicitMidpoint` in its middle. A node or edge in two
        clamps counts for both. They can be differentiated by both states, the control and the model's tensors.

        Parameters
        ----------
        before, after, control : of the step, which this integrator took in one part. The loads of contacts that are
            constraints are found from the balance of forces; those on clamped nodes cannot be found so, and are left
            out.
        """
        self._refuse_other_step("reactions", model, before, after)
        with model.lock, (problem := self._problem(model, before, control)).values.in_place():
            equations = problem.equations(model.contact.may_touch_at(after.q), constraints_at(problem, after.q))
            there, _, _ = equations.evaluated_at(after.q)
            tangents = model.frames.tangents(there)
            return wrenches(model.body, tangents, problem.state, there, equations.reaction(after.q))

    @torch.no_grad()
    def minima(self, model: Model, before: State, after: State, control: Control | None = None) -> Tensor | None:
        """Return whether each robot (B,) is at a minimum of what a step minimises: potential energy and inertia.

        False after a step that stays on an unstable branch, as implicit Euler's does where it is longer than the time
        in which a buckling grows: inertia does not hold the robot there, and a search from any other first iterate
        would leave it. None where that is not known: loads without a potential (drag, friction), an iterative linear
        solver.

        Parameters
        ----------
        before, after, control : of the step, which this integrator took in one part.
        """
        self._refuse_other_step("minima", model, before, after)
        with model.lock, (problem := self._problem(model, before, control)).values.in_place():
            linearised = Linearised.at(problem, after.q)
        return None if linearised is None else linearised.minima

    def prepare(self, model: Model, state: State, steps: int) -> None:
        """Get ready for so many steps from a state: compile if the model does so and it pays; warn of bad beginnings.

        Bad beginnings are loads hardly above the tolerance or below it, numbers that are not finite, robots inside of
        obstacles, and loads so short that no step evaluates forces while they act.
        """
        refuse_unstepped(self, model, Model)
        steps = whole_number(steps, "prepare: steps", least=0)
        with model.lock:
            self.check(model, state, Control())
            if self._step_length:  # searches for equilibria warn themselves, of the loads that their controls set
                warn_of_small_loads(model, state, Control(), None, self.force_tolerance)
            warn_of_lost(model, state)
            warn_of_overlap(model.obstacles, state)
            self.warn_of_missed_loads(model, state, steps)
            self.compile_for(model, state, steps)

    def warn_of_missed_loads(self, model: Model, state: State, steps: int) -> None:
        """Warn of loads so short that none of these steps evaluates forces while they act."""
        if self._step_length:  # equilibria take loads as they are at the state's time
            warn_of_missed_loads(model, state, self._step_length, self.scheme, steps)

    def compile_for(self, model: Model, state: State, steps: int) -> None:
        """Compile for so many steps from a state if the model does so and it pays."""
        rows = chunk_size(model, state.batch, self)
        self._compile_if_long(model, rows, state.q, steps * self.step_work(model, state.batch))

    def _compile_if_long(self, model: Model, rows: int, q: Tensor, ahead: float = 0.0) -> None:
        """Compile for so many robots at a time if that pays; not where eager steps are recorded, which is faster.

        `ahead` is the eager work [s] of the steps to come.
        """
        model.compilation.consider(
            rows, q, model.mechanics.why_eager, ahead, unless=lambda: records_eager_steps(model, self, q[:rows])
        )

    def step_work(self, model: Model, batch: int) -> float:
        """Return an estimate of the eager work [s] of a step, as `Compilation` counts it."""
        rows = chunk_size(model, batch, self)
        return self.step_evaluations * -(-batch // rows) * model.compilation.cost.of(rows, model.device)

    @abstractmethod
    def attempts(self, equations: StepEquations, divisible: bool = False) -> Iterable[Attempt]:
        """Return the attempts at a step, in turn, each for the robots that are not solved yet.

        `divisible`: whether robots that no attempt solves take the step again in smaller parts.
        """

    def equations(self, model: Model, state: State, control: Control | None = None) -> StepEquations:
        """Return the equations of a step from `state`, to look at their residual and matrix.

        A control with `values` is refused: these only act while a step is taken.
        """
        refuse_unstepped(self, model, Model)
        with model.lock:
            problem = self._problem(model, state, control)
            if control is not None and control.values:
                raise InputError("equations: Control.values hold during a step; put them into the model, by values_of")
            return problem.equations(model.contact.may_touch_at(state.q))

    def started(self, state: State) -> State:
        """Return the state with the history that the method needs, made up for robots that have none.

        Steps and runs do so themselves.
        """
        return self.scheme.started(state, self._step_length)

    def sample(self, schedule: Schedule, state: State, model: Model) -> Control:
        """Return the control that `schedule` sets for the step from `state`."""
        return schedule(state.time + self._step_length, model)

    def check(self, model: Model, state: State, control: Control, snapshot: Snapshot | None = None) -> None:
        """Refuse a model, state or control that cannot be stepped, and say what is wrong by name."""
        if not hasattr(self, "scheme"):
            raise InputError(f"{type(self).__name__}: expected `scheme = Scheme(...)`, as ImplicitEuler has it")
        model.check_batch(state, control, snapshot)
        if snapshot is None or snapshot.parametrized or snapshot.requires_gradients:  # else nothing is trained
            refuse_trained_out_of_bounds(model, snapshot)
        if model.contact.constrained and not self.takes_constraints:
            raise InputError(
                f"contact by Complementarity goes with ImplicitEuler and Static, got {type(self).__name__}: a "
                "constraint that stops a moving body takes its energy, which this integrator would keep; or take "
                "Penalty or Barrier"
            )
        if model.contact.constrained and model.dtype != torch.float64:
            raise InputError(
                f"contact by Complementarity needs a model in torch.float64, got {model.dtype}: its tolerances are "
                "below the rounding of others; take model.double(), or Penalty or Barrier"
            )
        if not self.line_search and model.contact.needs_feasible_iterates:
            raise InputError("line_search: contact by Barrier needs it, to keep surfaces apart; set line_search=True")

    def _refuse_other_step(self, caller: str, model: Model, before: State, after: State) -> None:
        """Refuse what is no model, and states that are none, or not of the same robots."""
        refuse_unstepped(self, model, Model)
        for name, state in (("before", before), ("after", after)):
            refuse_other_kind(f"{caller}: {name}", state, State, STATES)
        if after.q.shape != before.q.shape:
            was, now = tuple(before.q.shape), tuple(after.q.shape)
            raise InputError(
                f"{caller}: expected states of the same robots, got q {was} before and {now} after the step"
            )

    def tolerance(self, scale: Tensor) -> Tensor:
        """Return the residual (B,) at which steps with these force scales (B,) count as converged [N]."""
        return (self.relative_tolerance * scale).clamp_min(self.force_tolerance)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _problem(
        self,
        model: Model,
        state: State,
        control: Control | None,
        running: Tensor | None = None,
        snapshot: Snapshot | None = None,
    ) -> StepProblem:
        """Return the problem of a step from a state; refuse what cannot be stepped.

        Values that the control sets become those of the problem; they do not stand in the model yet.
        """
        control, running = control_of(control), running_robots(state, running)
        self.check(model, state, control, snapshot)
        started_state = self.scheme.started(state, self._step_length)
        posed_control = posed(model.body, started_state, control.without_values())
        values = model.values_of(control)
        problem = StepProblem(
            model, self, started_state, posed_control, self._step_length, running, values, snapshot=snapshot
        )
        return problem.with_fields()

    def _checked_problem(
        self, model: Model, state: State, control: Control, running: Tensor | None = None
    ) -> tuple[StepProblem, int]:
        """Return the problem of a step, and how many robots are stepped at a time.

        Input that cannot be stepped, and users' code that is wrong, is refused here.
        """
        refuse_transforms(model, state, control)
        snapshot = model.snapshot()
        problem = self._problem(model, state, control, running, snapshot)
        if model.has_user_hooks:
            with apart_from_checkpoints():
                model.try_hooks_in_other_modes(snapshot)
        with problem.values.in_place():
            if torch.is_grad_enabled():
                refuse_hidden_tensors(model, problem.state, problem.control, snapshot)
            return problem, chunk_size(model, state.batch, self)

    def _steps_at_once(
        self, model: Model, state: State, controls: Sequence[Control], running: Tensor | None, throw: bool = False
    ) -> tuple[State, StepInfo]:
        """Return the states after the step with the first control, or after several steps, and how they went.

        Several are taken together where recordings take them: then the report is a `SeveralSteps`, whose `count` says
        how many.
        """
        control, *later = controls
        problem, size = self._checked_problem(model, state, control, running)
        with problem.values.in_place():
            problem = with_following(problem, control, later)
            self._compile_if_long(model, size, state.q)
            after, info = model.compilation.guarded(lambda: self._advanced(problem, size))
            taken = controls[: 1 + len(problem.following)]
            cause = cause_of_failure(model, state, after, taken, problem.control, info, self._step_length)
            cause = cause or self._own_cause(problem, info)
        if throw and not bool(info.converged.all()):
            at_rest = not self.scheme.inertial
            raise SimulationError.from_status(info.status, self._occasion(state), cause, at_rest)
        if cause is not None:
            warn(f"{self._occasion(state)}: {cause}", RuntimeWarning)
        return after, info

    @property
    @abstractmethod
    def _step_length(self) -> float:
        """Length of a step [s]."""

    @abstractmethod
    def _advanced(self, problem: StepProblem, size: int) -> tuple[State, StepInfo]:
        """Return the states after a step, and how it went, taken for `size` robots at a time."""

    def _own_cause(self, problem: StepProblem, info: StepInfo) -> str | None:
        """Return why robots may have failed, where the method knows a reason of its own; else None."""
        return None

    @abstractmethod
    def _occasion(self, state: State) -> str:
        """Return the name that errors give to the step from this state."""


class Integrator(SteppingMethod):
    """One step in time for every robot of a batch; a subclass defines its rule by `scheme`.

    Parameters
    ----------
    dt : length of a step [s].
    max_substeps : robots whose step fails try again in 2, 4, ... up to this many equal parts; 0 or 1 turns that off.
    Others as for `SteppingMethod`: force_tolerance [N], relative_tolerance, max_iterations, line_search, chunk.
    """

    def __init__(
        self,
        dt: float,
        force_tolerance: float = FORCE_TOLERANCE,
        relative_tolerance: float = RELATIVE_TOLERANCE,
        max_iterations: int = 50,
        line_search: bool = True,
        max_substeps: int = 0,
        chunk: int | str | None = "auto",
    ):
        super().__init__(force_tolerance, relative_tolerance, max_iterations, line_search, chunk)
        self.dt = positive_number(dt, "dt", "a number of seconds above 0")
        self.max_substeps = whole_number(max_substeps, "max_substeps", least=0)

    def __repr__(self) -> str:
        """Return the kind of steps and their length, but no other options."""
        return f"{type(self).__name__}(dt={self.dt:g})"

    @uncompiled
    def steps(
        self,
        model: Model,
        state: State,
        count: int,
        control: Control | Sequence[Control] | None = None,
        running: Tensor | None = None,
    ) -> tuple[State, SeveralSteps]:
        """Return the states after `count` steps, to the bit the same as after as many calls of `step`.

        Nothing but the library runs between two of these steps, so where they are recorded as a whole and no gradients
        are taken the model is checked once for all of them: one robot takes a fourth to half the time, a batch nine
        tenths.

        Parameters
        ----------
        control : of each step: clamped dofs that it holds reach their places at the end of the first one. Or one
            control for each step, in turn, such as the actions of a plan; they are fast where all set the same fields,
            and no poses or values.
        running : (B,) bool, robots to step. A robot whose step fails is not stepped any more.
        """
        refuse_unstepped(self, model, Model)
        count, running = whole_number(count, "steps: count"), running_robots(state, running)

        def take(state: State, controls: Sequence[Control], running: Tensor) -> tuple[State, StepInfo]:
            with model.lock:
                return self._steps_at_once(model, state, controls[:STEPS_PER_CHECK], running)

        return one_after_another(take, state, controls_of_steps(control, count), running)

    def course(self, model: Model, state: State, controls: Iterator[Control]) -> Course | None:
        """Return where steps with these controls lead, as one function to autograd.

        None if the first step must be taken by itself: it is not recorded as a whole; gradients are recorded, and
        obstacles are constraints; the model has users' code that does not say `records`; the control sets poses or
        values, or needs a gradient; a robot fails; the state is on a GPU; the batch is too large to keep several
        states.
        """
        control = next(controls)
        if not may_begin_course(model, state, control):
            return None
        with model.lock:
            problem, size = self._checked_problem(model, state, control)
            return course_begun(problem.replace(divisible=self.max_substeps > 1), size, controls)

    def attempts(self, equations: StepEquations, divisible: bool = False) -> Iterator[Attempt]:
        """Return the attempts at a step in time, in turn; see `attempts_at_step`."""
        return attempts_at_step(equations, self.line_search, divisible)

    @property
    def _step_length(self) -> float:
        return self.dt

    def _advanced(self, problem: StepProblem, size: int) -> tuple[State, StepInfo]:
        if self.max_substeps < 2:
            return differentiable_step(problem, size)
        take: Take = partial(with_retries, differentiable_step, most=self.max_substeps)
        return in_chunks(partial(all_steps, take) if problem.following else take, problem, size)

    def _occasion(self, state: State) -> str:
        return f"step from t = {float(state.time.max()):g} s"

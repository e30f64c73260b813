"""StepProblem: a step of a batch that is to be solved, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.magnetics.force import fields_at, timed_forces
from torchdismech.model import Model
from torchdismech.model.mechanics import Mechanics
from torchdismech.records import replaced
from torchdismech.robot.plane import Plane, plane_of
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import Values, evaluated, every_module, per_robot, requiring_gradients

if TYPE_CHECKING:
    from torchdismech.integrate.integrator import SteppingMethod
    from torchdismech.integrate.recorded.evaluations import RecordedEvaluations

__all__ = ["StepProblem", "Take"]


@dataclass(frozen=True)
class StepProblem:
    """A step of a batch: which robots, from where, with what control, and by which method.

    Attributes
    ----------
    values : tensors that the model holds in place of its own while the step is taken.
    dt : length of the step [s].
    running : (B,) robots to step.
    load_factor : part of the external forces that acts.
    divisible : whether robots whose step fails take it again in smaller parts.
    following : the controls of further steps, taken along with this one if a recording takes it; else this one is taken
        alone, as where autograd records.
    recorded : makes the equations, where functions of theirs are recorded; None: the problem makes them.
    snapshot : of the model at this step, taken before `values` stood in it.
    plane : how the robots lie in their plane, in this step and those that follow; None if that is not known.
    """

    model: Model
    method: SteppingMethod
    state: State
    control: Control
    dt: float | Tensor
    running: Tensor
    values: Values = field(default_factory=Values)
    load_factor: float = 1.0
    divisible: bool = False
    following: Sequence[Control] = ()
    recorded: RecordedEvaluations | None = None
    snapshot: Snapshot | None = None
    plane: Plane | None = None

    def replace(self, **changes) -> StepProblem:
        """Return a copy with some fields changed."""
        return replaced(self, **changes)

    def with_plane(self) -> StepProblem:
        """Return the problem with `plane` found, for this step and those that follow."""
        if not self.model.planar:
            return self
        controls = {id(control): control for control in (self.control, *self.following)}.values()
        return self.replace(plane=plane_of(self.state, controls, self.model.alignments))

    def with_fields(self) -> StepProblem:
        """Return the problem with the present magnetic fields among its values, where these are functions of time.

        They are evaluated at the time at which the step evaluates forces.
        """
        timed = timed_forces(self.model.forces)
        if not timed:
            return self
        elapsed, time = self.elapsed, self.state.time
        return self.replace(values=self.values | fields_at(timed, time if elapsed is None else time + elapsed))

    def given_per_robot(self) -> Values:
        """Return the model's tensors that are given per robot, as they stand in it now."""
        # the snapshot knows neither values that stand in the model nor tensors that parametrizations make
        if self.snapshot is None or self.values or self.snapshot.parametrized:
            return per_robot(self.model)
        return self.snapshot.given_per_robot

    def parametrized(self) -> Values:
        """Return the model's parametrized tensors as they are now; none if torch.compile evaluates them itself."""
        if self.model.compilation.active:
            return Values()
        return evaluated(every_module(self.model) if self.snapshot is None else self.snapshot.parametrized)

    def trained(self) -> Values:
        """Return the model's own tensors that require gradients; call it while `parametrized` is in place."""
        # the snapshot knows neither values that stand in the model nor tensors that torch.compile makes itself
        if self.snapshot is None or self.values or self.model.compilation.active:
            return requiring_gradients(every_module(self.model))
        return self.snapshot.trained

    @property
    def elapsed(self) -> float | Tensor | None:
        """Time [s] from the start of the step to where forces are evaluated; None where no time passes."""
        return self.method.scheme.time * self.dt if self.method.scheme.inertial else None

    @property
    def end(self) -> Tensor:
        """Time (B,) at the end of the step [s]."""
        return self.state.time + self.dt if self.method.scheme.inertial else self.state.time

    @property
    def clamped_q(self) -> Tensor:
        """The state's q (B, n), with clamped dofs where the control holds them at the end of the step."""
        state, target = self.state, self.control.clamped_q
        return state.q if target is None else self.model.unknowns.with_held(state.q, target)

    def ahead(self) -> Tensor:
        """Return the q (B, n) to which the present velocity (at rest: none) and the clamps lead."""
        state, moves = self.state, self.method.scheme.inertial
        free = state.q + self.dt * state.velocity if moves else state.q
        return self.model.unknowns.with_held(free, self.clamped_q)

    def equations(
        self,
        pairs: StepPairs | None = None,
        constraints: ConstraintSet | None = None,
        mechanics: Mechanics | None = None,
    ) -> StepEquations:
        """Return the equations of the step.

        Parameters
        ----------
        pairs, constraints : pairs of the robots' parts that may touch, and the contacts that are constraints.
        mechanics : the forces, if not those of the model.
        """
        if self.recorded is not None:
            return self.recorded.equations(pairs, constraints)
        acting = self.model.mechanics if mechanics is None else mechanics
        scheme, control = self.method.scheme, self.control
        rate = scheme.strain_rate(self.state, self.dt, self.model.unknowns)
        start = acting.start(self.state, control, self.elapsed, pairs, self.load_factor, not scheme.inertial, rate)
        return StepEquations(self.model, scheme, start, self.clamped_q, self.dt, acting, constraints)


# A function that takes a step: the core, or a policy that is made around another such function. It returns the states
# after the step and how it went; a robot whose step fails keeps its state.
Take = Callable[[StepProblem], tuple[State, StepInfo]]

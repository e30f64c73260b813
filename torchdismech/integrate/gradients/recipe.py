"""StepRecipe: what a backward pass must know of a step besides the tensors that autograd keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from torchdismech.integrate.candidates import LoadsOfRecording, PointsOfRecording, StepContacts
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.forward import SolvedChunk
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.model import Model
from torchdismech.model.mechanics import Mechanics
from torchdismech.robot.state import Control, State, tensor_fields
from torchdismech.snapshot import Snapshot
from torchdismech.values import Values

if TYPE_CHECKING:
    from torchdismech.integrate.integrator import SteppingMethod

__all__ = ["StepRecipe"]


@dataclass
class StepRecipe:
    """A step without the tensors that it depends on: autograd keeps those of its state, of its control, of the model.

    Attributes
    ----------
    kind, fields, n_held : of its state: class, names of its tensors, number of held tangents.
    controls : names of the control's tensors.
    places : of the model's tensors, with no tensors in them.
    axes_of_values : the dimension of the robots in each of these; None where it is for all.
    candidates, recorded_as : contact candidates, and kind of recorded steps, of the one chunk that this is of; see
        `SolvedChunk`.
    chunks : of the batch, as they were solved.
    fitting : the kind of steps that the model is known to fit still.
    snapshot, versions : of the model when the step was taken, and its constants' versions; see `Snapshot.versions`.
    taken_again : whether a checkpoint takes the step again before it is differentiated, from what the model holds then.
    unchanged : whether the model is known to be still as in the snapshot.
    mechanics, load : mechanics that leave out the external forces which do not change within the step, and the sum (B,
        n) of these, for recorded backward passes; None where the model evaluates them.
    """

    model: Model
    method: SteppingMethod
    dt: float | Tensor
    load_factor: float
    running: Tensor
    kind: type[State]
    fields: tuple[str, ...]
    n_held: int
    controls: tuple[str, ...]
    places: Values
    axes_of_values: list[int | None]
    candidates: StepContacts | PointsOfRecording | LoadsOfRecording | None = None
    recorded_as: StepKind | None = None
    chunks: Sequence[SolvedChunk] = ()
    fitting: StepKind | None = None
    snapshot: Snapshot | None = None
    versions: list[int] = field(default_factory=list)
    taken_again: bool = False
    unchanged: bool = False
    mechanics: Mechanics | None = None
    load: Tensor | None = None

    @classmethod
    def of(cls, problem: StepProblem, values: Values) -> StepRecipe:
        """Return the recipe of a step that depends on these tensors of the model."""
        controls = tuple(problem.control.tensors())
        state = problem.state
        rest = (problem.running, type(state), tensor_fields(state), state.n_held, controls)
        places = (values.without_tensors(), values.axes())
        return cls(problem.model, problem.method, problem.dt, problem.load_factor, *rest, *places)

    @property
    def n_state(self) -> int:
        """Number of the state's tensors."""
        return len(self.fields)

    @property
    def n_own(self) -> int:
        """Number of the state's and the control's tensors: those of the model come after them."""
        return self.n_state + len(self.controls)

    @property
    def time_index(self) -> int:
        """Place of the time among the state's tensors."""
        return self.fields.index("time")

    def axes(self) -> list[int | None]:
        """Return the dimension of the robots in each tensor that the step depends on; None where it is for all."""
        return [0] * self.n_own + self.axes_of_values

    def of_chunk(self, solved: SolvedChunk, fitting: StepKind | None) -> StepRecipe:
        """Return the recipe of the step of one chunk; `fitting` is the kind that the model is known to fit."""
        return dataclasses.replace(
            self,
            running=solved.chunk.zero_where_repeated(self.running),
            candidates=solved.candidates,
            recorded_as=solved.recorded_as,
            fitting=fitting,
        )

    def detached(self) -> StepRecipe:
        """Return the recipe with its load detached, so that no gradients pass through it."""
        return self if self.load is None else dataclasses.replace(self, load=self.load.detach())

    def problem(self, tensors: Sequence[Tensor], robots: Tensor | None = None) -> StepProblem:
        """Return the step from tensors of state and control; of some robots (B,) of the batch, if given."""
        own = tensors[: self.n_own] if robots is None else [tensor[robots] for tensor in tensors[: self.n_own]]
        control = Control.of(dict(zip(self.controls, own[self.n_state :], strict=True)))
        state = self.kind(**dict(zip(self.fields, own, strict=False)), n_held=self.n_held)
        return StepProblem(self.model, self.method, state, control, self.dt, self.running, load_factor=self.load_factor)

    def equations(self, tensors: Sequence[Tensor], robots: Tensor | None = None) -> StepEquations:
        """Return the equations of the step from these tensors; of some robots (B,) of the batch, if given."""
        problem = self.problem(tensors, robots)
        if self.candidates is None:
            equations = problem.equations(mechanics=self.mechanics)
        else:
            equations = self.candidates.equations(problem, robots, self.mechanics)
        if self.load is not None:
            equations.load = self.load
        return equations

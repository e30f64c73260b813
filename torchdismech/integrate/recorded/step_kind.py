"""StepKind: what steps that one recording serves have in common.

A recording holds for steps that differ in the numbers of its inputs alone. All else that the equations read is compared
before each step: *traits* by their values (shapes, addresses of constants, plain numbers, names), *objects* by identity
(modules, settings that cannot change in place). Traits of the step itself, of which there are few, are compared each
time; those of the model only if its snapshot is not the one that matched last, as a model gets a new snapshot only when
something in it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor

from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.model_traits import ModelTraits, plain_attributes
from torchdismech.integrate.recorded.recordable import is_recordable_force
from torchdismech.model.mechanics import StepStart
from torchdismech.model.step_memory import evaluation_bytes
from torchdismech.robot.state import Control
from torchdismech.snapshot import Snapshot
from torchdismech.values import Place, Values

if TYPE_CHECKING:
    from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
    from torchdismech.integrate.recorded.evaluations import RecordedEvaluations
    from torchdismech.integrate.recorded.lasting_pairs import LastingPairs
    from torchdismech.integrate.recorded.static_problem import StaticProblem
    from torchdismech.integrate.recorded.step import RecordedStep

__all__ = ["A_STEP", "BackwardPasses", "StepKind"]

A_STEP = 3  # Newton iterations that count as one step: as many as smooth steps take

# attributes of an integrator that no recording depends on: dt is an input, the others act before a step is taken
NOT_HELD = ("dt", "chunk", "max_substeps")


class InputLayout(NamedTuple):
    """The places of the inputs of a step: state, robots that run, load, control, tensors of the model.

    Attributes
    ----------
    state : of the fields of the state, in their order.
    running : of the mask (B,) of the robots that are to be stepped.
    load : of the sum (B, n) of the external forces that do not change within a step; None if it is no input.
    control : of the tensors of the control.
    model : of the tensors of the model, in the order of `StepKind.movable_places`.
    """

    state: slice
    running: int
    load: int | None
    control: slice
    model: slice

    @classmethod
    def of(cls, states: int, controls: int, values: int, has_load: bool) -> InputLayout:
        """Return the places for so many tensors of the state, of the control (those that are inputs), of the model."""
        control = slice(states + 1 + has_load, states + 1 + has_load + controls)
        model = slice(control.stop, control.stop + values)
        return cls(slice(0, states), states, states + 1 if has_load else None, control, model)


@dataclass
class BackwardPasses:
    """The backward passes through steps of a kind, for one choice of inputs that require gradients.

    Attributes
    ----------
    count : how many there were.
    recording : the recording that takes them; None before it is made.
    more_recordings : the same as `recording`, for other threads.
    replayed_steps : how many steps recordings have gone back through, for a part of a batch each.
    pairs : of parts that may touch, which `recording` is given for each step; None where none touch.
    """

    count: int = 0
    recording: RecordedAdjoint | None = None
    more_recordings: list[RecordedAdjoint] = field(default_factory=list)
    replayed_steps: int = 0
    pairs: LastingPairs | None = None


class StepKind:
    """The steps that one recording serves: their common traits, their recording, and those of their backward passes.

    To compare a step with a kind takes no more than a tenth of a millisecond.

    Parameters
    ----------
    problem : one of the steps.
    wait : how many of them are taken before one is recorded.

    Attributes
    ----------
    all_forces : whether recordings evaluate all external forces. Else those that do not change within a step are summed
        outside of them, and the sum is an input.
    movable_places : the places (module and name) of the model's tensors that are inputs of a step.
    of_users : modules of users' forces and energies that say `records`; their parameters are inputs.
    unrecorded_steps : how many of the steps were taken without a recording; a step of many iterations counts for
        several.
    layout : the order of a step's inputs.
    recording : takes the steps; None before it is made.
    bytes_at_a_time : estimate of the memory that an evaluation of the robots of one step takes; 0 on a GPU.
    more_recordings : of whole steps, the same as `recording`, for other threads.
    replayed_steps : how many steps recordings have taken, for a part of a batch each.
    left_steps : how many steps recordings have begun, and Python has taken to their end.
    backward : the backward passes through the steps, by the class of their contacts, as of `StepRecipe.candidates`, and
        by which of the inputs require gradients.
    plane : how the robots lie in their plane; None if that is not known.
    refused, gradients_refused : whether the steps, or their backward passes, turned out not to be recordable.
    """

    def __init__(self, problem: StepProblem, wait: int):
        self.wait, self.plane = wait, problem.plane
        self.all_forces = problem.model.device.type == "cpu" and all(map(is_recordable_force, problem.model.forces))
        self._traits = ModelTraits(problem, self.all_forces)
        self.of_users, self.movable_places = self._traits.of_users, self._traits.movable_places
        controls = self.controls(problem.control)
        numbers = len(problem.state.fields()), len(controls), len(self.movable_places)
        self.layout = InputLayout.of(*numbers, has_load=not self.all_forces)
        self._settings = [name for name, _ in plain_attributes(problem.method) if name not in NOT_HELD]
        self._step = self._traits_of_step(problem)
        self._snapshot: Snapshot | None = None  # the model's, when a step last matched this kind
        # the tensors in the movable places then, found while none of a problem's `values` was in place
        self._standing: list[Tensor] = []
        # the sets of `values` with which that snapshot matched: shapes and dtypes, by places
        self._known: dict[tuple[Place, ...], list[tuple]] = {}
        self.unrecorded_steps = 0
        self.recording: RecordedStep | RecordedEvaluations | None = None
        on_cpu = problem.model.device.type == "cpu"
        self.bytes_at_a_time = problem.state.batch * evaluation_bytes(problem.model) if on_cpu else 0
        self.more_recordings: list[RecordedStep] = []
        self.replayed_steps = self.left_steps = 0
        self.backward: dict[tuple[type, tuple[bool, ...]], BackwardPasses] = {}
        self.refused = self.gradients_refused = False

    @property
    def recorded_step(self) -> RecordedStep:
        """The recording, of a kind whose steps are recorded as a whole."""
        return cast("RecordedStep", self.recording)

    @property
    def static(self) -> StaticProblem:
        """The static buffers of the recording, once there is one."""
        assert self.recording is not None
        return self.recording.static

    def count(self, iterations: int) -> None:
        """Count a step that was taken without a recording, several times if it took many iterations."""
        self.unrecorded_steps += max(1, iterations // A_STEP)

    def fits(self, problem: StepProblem) -> bool:
        """Return whether a step is of this kind."""
        step = self._traits_of_step(problem)
        if step != self._step or step[-1] is not self._step[-1]:
            return False
        if self._sees_the_same(problem):
            return True
        if not self._traits.match(problem.model):
            return False
        self._remember(problem)
        return True

    def inputs(self, problem: StepProblem) -> list[Tensor]:
        """Return the input tensors of a step, in the order of the layout."""
        load = [] if self.all_forces else [_load(problem)]
        controls = self.controls(problem.control).values()
        moved = self._standing if self._sees_the_same(problem) and not problem.values else self._traits.moved()
        return [*problem.state.fields(), problem.running, *load, *controls, *moved]

    def axes(self, inputs: Sequence[Tensor]) -> list[int | None]:
        """Return for each input the dimension that counts the robots; None where the tensor is for all of them."""
        return [0] * self.layout.model.start + self.values(inputs).axes()

    def values(self, inputs: Sequence[Tensor]) -> Values:
        """Return the model's tensors among the inputs, by their places."""
        return Values(dict(zip(self.movable_places, inputs[self.layout.model], strict=True)))

    def captures(self, place: Place) -> bool:
        """Return whether the tensor in a place is a captured constant, which recordings know by its address."""
        return self._traits.captures(place)

    def controls(self, control: Control) -> dict[str, Tensor]:
        """Return the tensors of a control that recordings take as inputs, by name."""
        return {name: tensor for name, tensor in control.tensors().items() if self.all_forces or name != "force"}

    def _sees_the_same(self, problem: StepProblem) -> bool:
        """Return whether the model is unchanged since it last matched this kind with values in the same places."""
        if self._snapshot is None or problem.snapshot is not self._snapshot:
            return False
        given = problem.values.tensors
        return self._known.get(tuple(given)) == _shaped(given.values())

    def _remember(self, problem: StepProblem) -> None:
        """Remember that the model's snapshot matches this kind, with values of these shapes in these places."""
        given = problem.values.tensors
        if problem.snapshot is None or self.of_users or any(map(self.captures, given)):
            return
        if problem.snapshot is not self._snapshot:
            self._snapshot, self._standing, self._known = problem.snapshot, [], {}
        if not given:
            self._standing = self._traits.moved()
        self._known[tuple(given)] = _shaped(given.values())

    def _traits_of_step(self, problem: StepProblem) -> list[Any]:
        """Return the traits of a step apart from its model's; last comes the linear solver, compared by identity."""
        model, method, state, controls = problem.model, problem.method, problem.state, self.controls(problem.control)
        own = vars(method)
        return [
            type(method),
            method.scheme,
            *map(own.get, self._settings),
            len(own),
            state.kind,
            problem.plane,
            *controls,
            *[(tensor.shape, tensor.dtype) for tensor in controls.values()],
            model.compilation.runs_compiled(state.batch, state.q),
            model.solvers.of(state.batch),
        ]


def _shaped(tensors: Iterable[Tensor]) -> list[tuple]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _load(problem: StepProblem) -> Tensor:
    """Return the sum (B, n) of the external forces that do not change within the step."""
    mechanics, state, control = problem.model.mechanics, problem.state, problem.control
    start = StepStart(state, control, [], mechanics.held_force(state, control))
    elapsed = problem.elapsed
    return mechanics.constant_load(start, state.time if elapsed is None else state.time + elapsed)

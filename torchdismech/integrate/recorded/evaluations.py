"""RecordedEvaluations: recordings of what steps evaluate many times, where a step is not recorded as a whole.

Which parts of a robot may touch is found anew in each step, and with it the pattern of the matrix; and contacts that
are constraints have their loads for unknowns. So such steps run in Python, except for the functions that are recorded
here: the set-up, moves, bare residuals and matrices (see `StepEquations`), friction on obstacles, and the state after
the step. None of these depends on which parts touch; functions that do are in `pair_evaluations.py`, and whole Newton
iterations in `round_tapes.py`.

While all of that is too far apart to touch, a step is recorded as a whole, too, without these contacts (`step_apart`),
and while only parts are, with the loads of obstacles (`step_on_obstacles`). Where parts stay apart for some steps,
these need no search for pairs that may touch (`pair_watch.py`), and several are taken at once. So are steps in which
parts touch, by a penalty or as constraints, while the matrix keeps its pattern (`touching_steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.integrate.candidates import LoadsWithPairs, PairsOfStep
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.contact_step import RecordedContactStep, WholeStep
from torchdismech.integrate.recorded.equations import RecordedEquations, Recordings
from torchdismech.integrate.recorded.pair_evaluations import PairEvaluations
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.integrate.recorded.recordable import why_steps_apart_unrecorded
from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.integrate.recorded.series import UnaidedSeries
from torchdismech.integrate.recorded.static_problem import StaticProblem
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.integrate.recorded.touching_steps import TouchingSteps
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.integrate.search.primal_dual import (
    expected_friction,
    first_friction,
    judged_step,
    judged_step_arguments,
)
from torchdismech.integrate.step import obstacles_reported
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.robot.state import Control, State

if TYPE_CHECKING:
    from torchdismech.integrate.gradients.course_states import ChunkStates

__all__ = ["RecordedEvaluations"]

Whole = TypeVar("Whole", RecordedStep, RecordedContactStep)


class _SetUp(NamedTuple):
    """The results of a step's set-up.

    Attributes
    ----------
    bare : the equations without pairs and constraints.
    weight, scale : weights (n_free,) of the residual's norm, and force scale (B,); see `StepEquations.setup`.
    ahead, here : (B, n_free) first iterates where the velocities lead, and where the robots are.
    """

    bare: StepEquations
    weight: Tensor
    scale: Tensor
    ahead: Tensor
    here: Tensor


class RecordedEvaluations:
    """The equations of steps of a kind on static buffers, with recordings of their functions.

    Parameters
    ----------
    kind : of the steps.
    problem : the first of them.

    Attributes
    ----------
    static : the static buffers.
    """

    def __init__(self, kind: StepKind, problem: StepProblem):
        # slip velocities get buffers (B, 1), as friction is eased in robot by robot
        slips = problem.model.contact.with_slip(problem.state.q.new_ones(problem.state.batch, 1))
        self._kind, self.static = kind, StaticProblem(kind, problem, slips)
        self.static.give(kind.inputs(problem), problem.dt)
        device, pool = problem.model.device, self.static.pool
        with self.static.values.in_place():
            self._set_up_recording = recorded(self._set_up, device, pool)
            self._set_up_results = self._set_up_recording.replay()
            self._with_pairs: PairEvaluations | None = None
            self._recordings = self._recorded_functions()
        self._inputs: Sequence[Tensor] = ()  # of the started step
        self._to_set_up: float | Tensor | None = None  # dt of a step that is not set up yet
        self._touching_steps: TouchingSteps | None = None
        self._series: UnaidedSeries | None = None
        self._touches = problem.method.scheme.inertial and bool(problem.model.contact.constrained_obstacles)
        # recordings of whole steps by their classes; None: there can be none
        self._whole_steps: dict[type, RecordedStep | RecordedContactStep | None] = {}
        refused = why_steps_apart_unrecorded(problem.model) is not None
        for whole, never in ((RecordedStep, refused), (RecordedContactStep, refused or not self._touches)):
            if never:
                self._whole_steps[whole] = None
        self._watch = _watch_of_pairs(problem, sees_touch=not refused)

    def start(self, inputs: Sequence[Tensor], problem: StepProblem) -> None:
        """Take these inputs for the next step; its set-up is replayed once its equations are asked for."""
        self._inputs, self._to_set_up = inputs, problem.dt

    def step_apart(self, problem: StepProblem) -> tuple[State, StepInfo] | None:
        """Return the states after the started step without contact that is searched for, and how it went.

        None where no recording takes the step to its end.

        Parameters
        ----------
        problem : the started step, for all robots or some of them.
        """
        recording = self._recording_by(RecordedStep, problem)
        if recording is None:
            return None
        recording.start(self._inputs_of(problem), problem)
        if (end := recording.finish_by_recordings()) is None:
            return None
        after, info = end
        return after.clone(), info.clone()  # the next step overwrites them

    def step_on_obstacles(self, problem: StepProblem) -> WholeStep | None:
        """Return the started step, for all robots or some, if no parts touch and obstacles are constraints.

        None where no recording takes it.
        """
        recording = self._recording_by(RecordedContactStep, problem)
        return None if recording is None else recording.taken(self._inputs_of(problem), problem)

    def whole_step(self, problem: StepProblem) -> WholeStep | None:
        """Return the started step, for all robots or some, by a recording that needs no search for pairs.

        None where no recording takes it, and where it is not known beforehand which parts of the robots may touch; of
        robots whose parts may touch, too, where it solves some but not all.
        """
        if self._watch is None:
            return None if len(problem.model.self_contacts) else self.step_on_obstacles(problem)
        if not self._watch.known:
            return None
        found, touch, taken = self._watch.found, self.parts_touch, self._known_whole_step(problem)
        # where pairs were looked for anew; but the caller asks before the step whether parts touch
        if taken is None and self._watch.known and self._watch.found is not found and self.parts_touch == touch:
            taken = self._known_whole_step(problem)
        return taken

    def _known_whole_step(self, problem: StepProblem) -> WholeStep | None:
        """Return what `whole_step` does, where it is known which pairs may touch."""
        if self.parts_touch:
            taken = self._whole_step_touching(problem)
        else:
            taken = self.step_on_obstacles(problem) if self._touches else self._whole_step_apart(problem)
        whole = self._recording_of_whole_steps
        if taken is None or whole is None:
            return None
        if taken.unsolved is not None:
            all_left = isinstance(taken.contacts, LoadsWithPairs) and torch.equal(taken.unsolved, problem.running)
            return taken if all_left else None
        return taken if whole.stands() else None

    def watch_pairs(self, problem: StepProblem, after: State, info: StepInfo) -> None:
        """Look for the pairs to watch in the steps to come, after a step in Python; not where they still touch."""
        if self._touching_steps is not None:
            self._touching_steps.count(info)
        waits = self._touching_steps is not None and self._touching_steps.waits
        if self._watch is not None and not self._watch.still_touching(problem, after, anywhere=waits):
            self._watch.renew(problem, after)

    @property
    def parts_touch(self) -> bool:
        """Whether parts touched when pairs were looked for last."""
        return self._watch is not None and self._watch.touching

    @property
    def takes_whole_steps(self) -> bool:
        """Whether `whole_step` may take the next step, as far as is known without the step."""
        return self._recording_of_whole_steps is not None and (self._watch is None or self._watch.known)

    @property
    def finds_no_loads(self) -> bool:
        """Whether the steps that `whole_step` takes have no loads of constraints, which backward passes would need."""
        return not isinstance(self._recording_of_whole_steps, RecordedContactStep)

    def following_whole_steps(
        self, controls: Sequence[Control], keeper: ChunkStates | None = None, other_pairs: bool = True
    ) -> tuple[State, SeveralSteps]:
        """Take steps after one that `whole_step` has solved for all robots; return where they led, and how.

        They may be fewer than asked for, see `UnaidedSeries`.

        Parameters
        ----------
        controls : of the solved step, and of those after it.
        keeper : keeps the states after each of the steps.
        other_pairs : whether other pairs may touch in later steps than in the first.
        """
        recording = self._recording_of_whole_steps
        assert recording is not None
        if self._series is None or self._series.step is not recording:
            self._series = UnaidedSeries(recording)
        after, info = self._series.take_remaining(controls, keeper, other_pairs)
        if self._touching_steps is not None and recording is self._touching_steps.recording:
            self._touching_steps.steps += info.count - 1
        return after, info

    def equations(self, pairs: StepPairs | None, constraints: ConstraintSet | None) -> StepEquations:
        """Return the equations of the started step, with its pairs that may touch and its constraints."""
        if self._to_set_up is not None:
            self.static.give(self._inputs, self._to_set_up)
            self._set_up_recording.replay()
            self._to_set_up = None
        return RecordedEquations(
            self._set_up_results.bare, self._recordings_for, pairs, constraints, self.static.values
        )

    def _recordings_for(self, pairs: StepPairs | None) -> Recordings:
        """Return the recordings, by the functions that they replace.

        Those with pairs are among them if compiled code can evaluate all pairs under the present laws of contact.
        """
        if pairs is None:
            return self._recordings
        assert self._with_pairs is not None
        all_bound = self._with_pairs.bind(pairs)
        return self._recordings | self._with_pairs.recordings if all_bound else self._recordings

    # ---- whole steps -----------------------------------------------------------------------------------------------

    @property
    def _recording_of_whole_steps(self) -> RecordedStep | RecordedContactStep | None:
        """The recording of steps like the next one, as far as is known without it; None if there is none."""
        if self.parts_touch:
            return None if self._touching_steps is None else self._touching_steps.recording
        if self._touches:
            return self._whole_steps.get(RecordedContactStep)
        return None if self._watch is None else self._whole_steps.get(RecordedStep)

    def _whole_step_apart(self, problem: StepProblem) -> WholeStep | None:
        apart = self.step_apart(problem)
        return None if apart is None else WholeStep(*apart, None, None)

    def _whole_step_touching(self, problem: StepProblem) -> WholeStep | None:
        assert self._watch is not None and self._watch.found is not None
        if self._touching_steps is None:
            self._touching_steps = TouchingSteps(self._kind, self._watch)
        recording = self._touching_steps.recording_of(problem)
        if recording is None:
            return None
        if isinstance(recording, RecordedContactStep):
            return recording.taken(self._inputs_of(problem), problem)
        recording.start(self._inputs_of(problem), problem)
        if (end := recording.finish_with_pairs()) is None:
            return None
        after, info = end
        return WholeStep(after.clone(), info.clone(), PairsOfStep(self._watch.found), None)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _inputs_of(self, problem: StepProblem) -> Sequence[Tensor]:
        """Return the inputs of the started step for the robots that `problem` steps; loads are not asked again."""
        inputs = [*self._inputs]
        inputs[self._kind.layout.running] = problem.running
        return inputs

    def _recording_by(self, whole: type[Whole], problem: StepProblem) -> Whole | None:
        """Return the recording of whole steps of a class, made when it is first asked for; None if there is none."""
        if whole not in self._whole_steps and not torch.is_inference_mode_enabled():
            try:
                self._whole_steps[whole] = whole(self._kind, problem.replace(recorded=None), self._watch)
            except Unrecordable:
                self._whole_steps[whole] = None
        return cast("Whole | None", self._whole_steps.get(whole))

    def _set_up(self) -> _SetUp:
        equations = self.static.prepared_equations()
        weight, scale, ahead = equations.setup(None, True)
        return _SetUp(equations, weight, scale, ahead, first_iterate(equations, False))

    def _recorded_functions(self) -> dict[Callable, Callable]:
        """Return the recordings without pairs, by the functions that they replace."""
        bare, rubbing, x = self._set_up_results.bare, self._set_up_results.bare.rubbing, self._set_up_results.here
        state = self.static.problem.state
        all_rows = x.new_ones(state.batch, dtype=torch.bool)
        friction = rubbing.first_friction(state)
        tractions = [friction_of_obstacle[..., :3] for friction_of_obstacle in friction]
        residual = self._recorded_call(bare.bare_residual, [x])
        residual_and_matrix = self._recorded_call(bare.bare_residual_and_matrix, [x])
        with_tractions = (
            self._recorded_call(partial(_evaluated_with_tractions, bare), [x, *tractions]) if tractions else None
        )

        def by_tractions(equations: StepEquations, x: Tensor) -> Any:
            """Return what `StepEquations.bare_residual_and_matrix` does, with the tractions expected of obstacles."""
            expected = equations.rubbing.tractions
            if with_tractions is None or not expected:
                return residual_and_matrix(equations, x)
            return with_tractions(equations, x, *expected)

        if len(bare.model.self_contacts):
            self._with_pairs = PairEvaluations(bare, residual, residual_and_matrix, x, self.static.pool)
        descends = bare.has_potential and not len(bare.model.self_contacts)  # whose potential depends on their pairs
        potential = {StepEquations.potential_at: self._recorded_call(bare.potential_at, [x])} if descends else {}
        return potential | {
            StepEquations.setup: self._weight_scale_and_iterate,
            StepEquations.advanced: self._recorded_call(bare.advanced, [x, torch.zeros_like(x)]),
            StepEquations.bare_residual: residual,
            StepEquations.bare_residual_and_matrix: by_tractions,
            StepEquations.accepted_state: self._recorded_call(bare.accepted_state, [state.q, all_rows]),
            first_friction: self._recorded_call(partial(first_friction, bare), [x]),
            obstacles_reported: self._recorded_call(partial(obstacles_reported, bare), [state.q]),
            expected_friction: self._recorded_call(partial(expected_friction, bare), [x, *friction]),
            judged_step: self._recorded_call(
                partial(judged_step, bare), judged_step_arguments(x, self._set_up_results.weight, all_rows)
            ),
        }

    def _recorded_call(self, function: Callable, tensors: Sequence[Tensor]) -> RecordedCall:
        return RecordedCall(function, tensors, self.static.pool)

    def _weight_scale_and_iterate(
        self, _: StepEquations, x: Tensor | None, ahead: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights of the norm, force scale and first iterate, as `StepEquations.setup` does."""
        results = self._set_up_results
        first = (results.ahead if ahead else results.here) if x is None else x
        return results.weight, results.scale.clone(), first.clone()


def _watch_of_pairs(problem: StepProblem, sees_touch: bool) -> PairWatch | None:
    """Return the watch of pairs of parts that may touch; None where no parts ever do, or none can be watched.

    Parameters
    ----------
    sees_touch : as of `PairWatch`.
    """
    if not (len(problem.model.self_contacts) and problem.method.scheme.inertial):
        return None
    try:
        return PairWatch(problem, sees_touch)
    except Unrecordable:
        return None


def _evaluated_with_tractions(equations: StepEquations, x: Tensor, *tractions: Tensor) -> Any:
    with equations.rubbing.with_tractions(tractions):
        return equations.bare_residual_and_matrix(x)

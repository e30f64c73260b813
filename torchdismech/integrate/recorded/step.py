"""RecordedStep: a whole step on static buffers, as recordings of its three parts.

The parts are the *set-up* (what stays fixed in the step, and the first iterate), *rounds* of Newton's method (one
iteration of all rows each, `rounds.py`), and the *end* (the state after the step). A step copies its inputs to static
buffers (`start`) and replays the set-up, then rounds until their flags say that all rows have converged, and the end
(`finish`).

Where rounds do not lead all robots to their roots, the search goes on without recorded rounds, on the same memory
(`finish_without_rounds`). All of this runs on the current CUDA stream, so the steps of a model have to stay on one
stream.

`series.py` takes many steps in a row, each from the state that the one before it led to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.passing import obstacles_suspected
from torchdismech.contact.report import ContactReport
from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.chunk_loop import ChunkLoop
from torchdismech.integrate.recorded.equations import RecordedEquations, Recordings
from torchdismech.integrate.recorded.lasting_pairs import TouchWatch
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.integrate.recorded.round_tapes import RoundTapes
from torchdismech.integrate.recorded.rounds import Next, RecordedRounds, RoundsOutcome, SetUp
from torchdismech.integrate.recorded.search_rounds import SearchRounds
from torchdismech.integrate.recorded.series import RecordedSeries
from torchdismech.integrate.recorded.static_problem import StaticProblem, outside_inference_mode
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.integrate.search.attempts import Start
from torchdismech.integrate.search.primal_dual import after_step, first_friction, judged_step, judged_step_arguments
from torchdismech.integrate.step import (
    further_attempts,
    newton_options,
    step_contact,
    step_info,
    step_to,
)
from torchdismech.native.calls import CallTable
from torchdismech.native.graphs import Recording, recorded
from torchdismech.native.step_loop import NO_CALLS, PerStepInstructions, StepCalls, StepLoop, StopReason
from torchdismech.native.tape import Tape
from torchdismech.robot.state import State
from torchdismech.solve.linear import Solver
from torchdismech.solve.newton import resumed
from torchdismech.solve.progress import Progress, begun
from torchdismech.solve.search import Root

__all__ = ["RecordedStep"]


class End(NamedTuple):
    """The results of a step's end.

    Attributes
    ----------
    after : the states after the step.
    status, iterations : (B,) of the robots, over all attempts.
    suspect : () whether some robot may have passed through an obstacle; None where nothing can touch.
    near : () whether parts may have touched of which the step did not know, see `PairWatch`; None where none ever do.
    contact : the contact report of the step.
    """

    after: State
    status: Tensor
    iterations: Tensor
    suspect: Tensor | None
    near: Tensor | None
    contact: ContactReport

    def suspects(self) -> bool:
        """Return whether some robot may have passed through an obstacle; on a GPU the host waits for the answer."""
        return self.suspect is not None and bool(self.suspect)


class RecordedStep:
    """The recordings of a whole step, which take all steps of one kind.

    Parameters
    ----------
    kind : of the steps.
    problem : the first of them.
    watch : of the pairs of parts that may touch; None for robots whose parts never do. With a `PairWatch` the step is
        one in which none do, with a `TouchWatch` one in which all may.

    Attributes
    ----------
    static : the buffers, and the step on them.
    set_up, rounds, end_recording : the recordings.
    divisible : whether robots that fail the present step take it again in smaller parts (see `StepProblem`). It may be
        another value than when the step was recorded: the first attempt is the same.
    result : the states after a step and how it went, in the memory that each replay of `end_recording` overwrites; None
        before the first.
    """

    def __init__(self, kind: StepKind, problem: StepProblem, watch: PairWatch | TouchWatch | None = None):
        self._kind, self.static, self._watch = kind, StaticProblem(kind, problem), watch
        self._pairs = watch.pairs.pairs if isinstance(watch, TouchWatch) else None
        self.static.give(kind.inputs(problem), problem.dt)
        device, pool = problem.model.device, self.static.pool
        with self.static.in_model():  # recording a part runs it, on the results of the parts before it
            self.set_up: Recording[SetUp] = recorded(self._set_up, device, pool)
            self._set_up_results = self.set_up.replay()
            self.rounds = RecordedRounds(self._set_up_results, self.static)
            self.end_recording: Recording[End] = recorded(self._end, device, pool)
        self.result: tuple[State, StepInfo] | None = None
        self.divisible = problem.divisible
        self._rounds_of_searches = RoundTapes()
        self._goes_by_parts = False  # whether a loop has met something unexpected
        # of one step, with the recording for shortened steps that it calls
        self._last_loop: tuple[Recording | None, StepLoop | None] | None = None

    @cached_property
    def chunk_loop(self) -> ChunkLoop:
        """What takes a step of one chunk of a batch after the other."""
        return ChunkLoop(self)

    @cached_property
    def series(self) -> RecordedSeries:
        """What takes many steps in a row, each from the state that the one before it led to."""
        return RecordedSeries(self)

    def start(self, inputs: Sequence[Tensor | None], problem: StepProblem) -> None:
        """Copy the inputs to the static buffers; an input of None stays as in the last step.

        Parameters
        ----------
        problem : the step, or that of a batch of which the inputs are a part.
        """
        self.divisible = problem.divisible
        self.static.give(inputs, problem.dt)

    def finish(self) -> tuple[State, StepInfo]:
        """Return the states after the started step and how it went, in memory that the next step overwrites."""
        loop = self._loop_of_one()
        return self.finish_by_parts() if loop is None else self.finish_stopped(loop.run(0, 1)[1])

    def finish_by_parts(self) -> tuple[State, StepInfo]:
        """Do the same as `finish`, one recording after the other."""
        self.set_up.replay()
        return self.finish_after_rounds(self.rounds.replay())

    def finish_stopped(self, reason: StopReason) -> tuple[State, StepInfo]:
        """Return the states after a step that a compiled loop has begun, and how it went.

        Parameters
        ----------
        reason : why the loop has ended: after the step, or at a part of it that Python takes. After
            `StopReason.UNEXPECTED` the step is taken from its set-up on.
        """
        if reason is StopReason.UNEXPECTED:
            self._goes_by_parts = True  # what the loop has met may come in each step
            return self.finish_by_parts()
        if reason is StopReason.BAD_STEP:
            return self.finish_after_rounds(self.rounds.replay(Next.ACCEPT_OR_SHORTEN))
        if reason is StopReason.SHORTENED:
            return self.finish_after_rounds(self.rounds.replay(Next.SHORTENED))
        if reason is StopReason.LOST_ROWS:
            return self.finish_after_rounds(RoundsOutcome.LOST)
        if reason is StopReason.CHECK and self.end_recording.outputs.suspects():
            return self.finish_without_rounds(attempts=1)
        return self.finished_result()

    def finished_result(self) -> tuple[State, StepInfo]:
        """Return `result`, once the recorded end has finished a step."""
        assert self.result is not None
        return self.result

    def finish_by_recordings(self) -> tuple[State, StepInfo] | None:
        """Do the same as `finish`, but return None where recordings alone do not take the step to its end."""
        self.set_up.replay()
        return self.replayed_end() if self.rounds.replay() is RoundsOutcome.ROOTS else None

    def finish_with_pairs(self) -> tuple[State, StepInfo] | None:
        """Do the same as `finish` for a step with pairs, but return None where the root takes more than its searches.

        These are all of the step's searches up to those that ease friction in, whose slip velocities no recording has.
        """
        self.set_up.replay()
        if self.rounds.replay() is RoundsOutcome.ROOTS:
            return self.replayed_end()
        with self.static.in_model():
            return self._replayed_end_at(self._root_without_rounds(attempts=1))

    def stands(self) -> bool:
        """Return whether all robots are solved by the step that ended last, and nothing touched or passed unseen."""
        end = self.end_recording.outputs
        if bool(end.status.any()) or end.suspects():
            return False
        return self._watch is None or self._watch.stands(self.static.problem, end.after, end.near)

    def taken_again(self, other_pairs: bool) -> bool:
        """Take a step with pairs once more, by all its searches, with the pairs found last; see `stands`.

        Return False, too, where these are others, unless `other_pairs` are allowed.
        """
        if not (isinstance(self._watch, TouchWatch) and self._watch.takes_known_pairs(other_pairs)):
            return False
        return self.finish_with_pairs() is not None and self.stands()

    def taken_alone(self) -> bool:
        """Take the step on the static buffers; return whether recordings alone do so for all robots, see `stands`."""
        return self.finish_by_recordings() is not None and self.stands()

    def finish_after_rounds(self, outcome: RoundsOutcome) -> tuple[State, StepInfo]:
        """Return the states after the step and how it went, once the rounds of the first attempt have ended."""
        attempts = 1
        if outcome is RoundsOutcome.LOST and self.rounds.second_attempt_begins_again:
            attempts, outcome = 2, self.rounds.replay_second_attempt()
        if outcome is RoundsOutcome.ROOTS and (end := self.replayed_end()) is not None:
            return end
        return self.finish_without_rounds(attempts)

    def replayed_end(self) -> tuple[State, StepInfo] | None:
        """Return the states after the step and how it went, by the recording of the end, after all rows have converged.

        None where a robot may have passed through an obstacle: that is for `finish_without_rounds` to find out.
        """
        end = self.end_recording.replay()
        if end.suspects():
            return None
        if self.result is None:  # made once: its tensors are those that each step overwrites
            progress = self._set_up_results.progress
            root = Root(progress.x, progress.status, end.iterations, progress.norm, progress.noise)
            self.result = end.after, StepInfo.of(root, end.status, self._set_up_results.scale, end.contact)
        return self.result

    def finish_without_rounds(self, attempts: int) -> tuple[State, StepInfo]:
        """Return the states after the step and how it went, by a search that goes on where the recorded rounds stopped.

        Parameters
        ----------
        attempts : number of attempts that rounds have made, the present one included.
        """
        self._kind.left_steps += 1
        with self.static.in_model():
            root = self._root_without_rounds(attempts)
            end = self._replayed_end_at(root)
            return self._eager_end(root) if end is None else end

    # ---- for a compiled loop of steps ------------------------------------------------------------------------------

    def loops(self) -> bool:
        """Return whether a compiled loop may take a step at once, and not Python one part after the other.

        It may not before the recorded end has finished a step, and once a loop has met something unexpected.
        """
        return self.result is not None and not self._goes_by_parts

    def loop(self, before: PerStepInstructions, after: PerStepInstructions) -> StepLoop | None:
        """Return a compiled loop of steps none of which hands anything on; None where `loops` says so, and on a GPU.

        Parameters
        ----------
        before, after : instructions before and after each step.
        """
        tables = [recording.table for recording in self.parts() if isinstance(recording, Tape)]
        if not self.loops() or len(tables) < len(self.parts()):
            return None
        return StepLoop(self.calls(*tables, NO_CALLS), before, after, self.checks())

    def _loop_of_one(self) -> StepLoop | None:
        """Return the loop that takes the step on the static buffers; None where its parts are replayed one by one.

        So they are where operations of torch are among them, which Python calls faster than a loop calls it back.
        """
        if not self.loops():
            return None
        shortening = self.rounds.accept_or_shorten
        if self._last_loop is None or self._last_loop[0] is not shortening:  # it has been recorded meanwhile
            loop = self.loop(PerStepInstructions(), PerStepInstructions())
            self._last_loop = shortening, None if loop is None or loop.calls_back else loop
        return self._last_loop[1]

    def parts(self) -> Sequence[Recording]:
        """Return the recordings of set-up, both kinds of rounds, and end."""
        return self.set_up, self.rounds.round, self.rounds.last_round, self.end_recording

    def calls(self, *parts: CallTable) -> StepCalls:
        """Return the calls of a step, from those of its `parts` and of what hands its state on."""
        set_up, with_matrix, without, end, hand_on = parts
        rounds = self.rounds
        tape = rounds.accept_or_shorten if isinstance(rounds.accept_or_shorten, Tape) else None
        flags = [recording.outputs for recording in (rounds.round, rounds.last_round, tape or rounds.round)]
        shortens = NO_CALLS if tape is None else tape.table
        return StepCalls(
            set_up, with_matrix, without, shortens, end, hand_on, flags, rounds_before=rounds.rounds_before
        )

    def checks(self) -> Sequence[Tensor]:
        """Return the tensors that are all zero after a successful step."""
        end = self.end_recording.outputs
        return [check for check in (end.near, end.suspect, end.status) if check is not None]

    # ---- a search that recorded rounds have left -------------------------------------------------------------------

    def _root_without_rounds(self, attempts: int) -> Root:
        """Return the root, by a line search that goes on where recorded rounds ended, then by further attempts."""
        results, problem = self._set_up_results, self._problem_of_running()
        later_attempts = list(problem.method.attempts(results.equations, self.divisible))[attempts:]
        if self._pairs is not None:
            later_attempts = [*takewhile(lambda attempt: not attempt.search.eases, later_attempts)]
        equations = RecordedEquations(results.equations, lambda _: self._search_recordings, self._pairs)
        progress = Progress(*(tensor.clone() for tensor in results.progress))
        root = resumed(equations, progress, results.options, results.fraction.clone())
        root = dataclasses.replace(root, iterations=root.iterations + results.earlier)
        options = newton_options(problem, equations, results.options.weight, results.options.tolerance)
        return further_attempts(equations, root, later_attempts, options, problem.running)

    def _replayed_end_at(self, root: Root) -> tuple[State, StepInfo] | None:
        """Return the states after a step to a root that was found without recorded rounds, and how it went.

        None where some robot has no root, or may have passed through an obstacle.
        """
        if not bool((root.status == int(Status.CONVERGED)).all()):
            return None
        results, progress = self._set_up_results, self._set_up_results.progress
        found = (root.x, root.status, root.iterations - results.earlier, root.residual, root.tolerance)
        static = (progress.x, progress.status, progress.iterations, progress.norm, progress.noise)
        for tensor, number in zip(static, found, strict=True):
            tensor.copy_(number)
        return self.replayed_end()

    def _eager_end(self, root: Root) -> tuple[State, StepInfo]:
        """Return the states after a step to a root, and how it went, without the recording of the end."""
        problem, equations = self._problem_of_running(), self._set_up_results.equations
        q = equations.full(root.x)
        info = step_info(equations, root, q, self._set_up_results.scale, problem.running)
        after, info = step_to(problem, equations, ContactCandidates(problem), q, info)
        return after, dataclasses.replace(info, status=self._status(info.status))

    def _problem_of_running(self) -> StepProblem:
        return self.static.problem.replace(running=self._set_up_results.running)

    @cached_property
    @outside_inference_mode()
    def _search_recordings(self) -> Recordings:
        """Recordings for searches without recorded rounds, by the functions that they replace; none on a GPU."""
        results, state = self._set_up_results, self.static.problem.state
        equations, x = results.equations, results.progress.x
        if not state.q.is_cpu:
            return {}
        step = torch.zeros_like(x)
        evaluations: Recordings = {
            StepEquations.advanced: RecordedCall(equations.advanced, [x, step]),
            StepEquations.bare_residual: RecordedCall(equations.bare_residual, [x]),
            StepEquations.bare_residual_and_matrix: RecordedCall(equations.bare_residual_and_matrix, [x]),
            **SearchRounds(self._by_search_rounds).recordings,
        }
        if self._pairs is not None or not equations.model.contact.rubs:  # friction of pairs has as many rows as these
            return evaluations
        friction = equations.rubbing.first_friction(state)
        rows = judged_step_arguments(x, results.options.weight, results.running)
        return {
            **evaluations,
            after_step: RecordedCall(partial(after_step, equations), [x, step, *friction]),
            judged_step: RecordedCall(partial(judged_step, equations), rows),
            first_friction: RecordedCall(partial(first_friction, equations), [x]),
        }

    def _by_search_rounds(
        self, function: Callable[..., list[Tensor]], kind: Hashable, solver: Solver, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what a function of the equations returns, by a recording if there is one; see `SearchRounds`."""
        return self._rounds_of_searches.called(function, kind, (solver,), tensors)

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _set_up(self) -> SetUp:
        problem = self.static.problem
        contact, running = problem.model.contact, problem.running & problem.state.finite()
        if not contact.none:
            running = running & ~contact.undefined_laws(problem.state)
        equations = self.static.prepared_equations(pairs=self._pairs)
        first = next(iter(problem.method.attempts(equations, problem.divisible)))
        weight, scale, x = equations.compiled(StepEquations.setup)(equations, None, first.start is Start.AHEAD)
        tolerance = problem.method.tolerance(scale)
        options = first.options(newton_options(problem, equations, weight, tolerance))
        progress = _unshared(begun(equations, x, options, running))
        fraction, earlier = torch.ones_like(progress.norm), torch.zeros_like(progress.iterations)
        return SetUp(equations, scale, options, progress, fraction, earlier, running)

    def _end(self) -> End:
        results, x, status = self._set_up_results, self._set_up_results.progress.x, self._set_up_results.progress.status
        iterations = results.progress.iterations + results.earlier
        accepted = results.running & (status == int(Status.CONVERGED))  # robots that do not run are CONVERGED, too
        equations, q, status = results.equations, results.equations.full(x), self._status(status)
        after = equations.compiled(StepEquations.accepted_state)(equations, q, accepted)
        if equations.model.contact.none:
            return End(after, status, iterations, None, None, {})
        before = self.static.problem.state
        suspect = obstacles_suspected(equations.model.obstacles, before, after)
        near = None if self._watch is None else self._watch.near(before, after, results.running)
        return End(after, status, iterations, suspect.any(), near, step_contact(equations, q, accepted))

    def _status(self, status: Tensor) -> Tensor:
        """Return the status (B,) of the robots: NOT_FINITE for those not stepped, as a number is not finite."""
        return torch.where(self.static.problem.running & ~self._set_up_results.running, int(Status.NOT_FINITE), status)


def _unshared(progress: Progress) -> Progress:
    """Return the progress with each tensor in memory of its own, as rounds write to each."""
    seen: set[int] = set()
    tensors = []
    for tensor in progress:
        address = tensor.untyped_storage().data_ptr()
        tensors.append(tensor.clone() if address in seen else tensor)
        seen.add(address)
    return Progress(*tensors)

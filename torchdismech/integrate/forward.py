"""Steps without gradients: for which robots together a step is solved, by which thread, and whether it is recorded.

A step that no recording takes is solved by `step.solved_step`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates, LoadsWithPairs, PairsOfStep, PointLoads, StepContacts
from torchdismech.integrate.chunks import BatchTensors, Chunk, ChunkInputs
from torchdismech.integrate.gradients.course_states import CourseStates
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.evaluations import RecordedEvaluations
from torchdismech.integrate.recorded.recording import kind_of, recording_of, recordings_for_threads
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.integrate.step import solved_step
from torchdismech.native.step_loop import StopReason
from torchdismech.robot.state import Control, State
from torchdismech.system.workers import shared_out
from torchdismech.values import Values

__all__ = ["SolvedChunk", "held_values", "of_chunk", "solved_in_chunks", "takes_chunks", "takes_courses"]


@dataclass(frozen=True)
class SolvedChunk:
    """How the robots of a chunk of a batch were solved.

    Attributes
    ----------
    recorded_as : the kind of steps whose recording took the whole step; None if none did.
    candidates : the contacts for which the step was solved; None where nothing can touch, or none of them touched, and
        for recorded steps without them.
    """

    chunk: Chunk
    recorded_as: StepKind | None
    candidates: StepContacts | None


def held_values(problem: StepProblem, parametrized: Values, chunks: Sequence[Chunk]) -> Values:
    """Return the tensors that the model holds in a step in place of its own.

    If there are several chunks they include those that are given per robot, so that each chunk can have its part.
    """
    held = problem.values | parametrized
    return held | problem.given_per_robot() if len(chunks) > 1 else held


def solved_in_chunks(
    problem: StepProblem, chunks: Sequence[Chunk], store: CourseStates | None = None
) -> tuple[State, StepInfo, list[SolvedChunk]]:
    """Return the states after a step, how it went, and how each chunk of the batch was solved.

    If a recording takes the steps of `problem.following`, too, the states are those after the last of these, and the
    report is a `SeveralSteps`. Then each chunk takes all steps before the next chunk begins, so that its memory stays
    near the processor. Once there are recordings for several threads, they share out the chunks.

    Parameters
    ----------
    store : keeps the states after each of several steps, up to one that some robot fails. Chunks that are taken one
        after the other take no more of them than those before them did.
    """
    solver = _ChunkSolver(problem, chunks, store)
    for number, chunk in enumerate(chunks):
        if store is not None and not store.common_steps:
            break
        if not solver.recordings and solver.solved_alone(chunk):
            continue
        if len(solver.recordings) > 1:
            solver.solve_by_threads(chunks[number:])
            break
        solver.solve(chunk)
    return solver.results()


class _ChunkSolver:
    """Solves a step, and those that follow it, chunk by chunk.

    What is found out about the model for one chunk holds for all: nothing changes it between two chunks but users'
    loads. So once recordings take one chunk they are given the others without asking whether the model fits.

    Attributes
    ----------
    recordings : those that take all chunks from now on, one for each thread; none before it is known that they do.
    """

    def __init__(self, problem: StepProblem, chunks: Sequence[Chunk], store: CourseStates | None):
        self._problem, self._chunks, self._store = problem, chunks, store
        self.recordings: list[RecordedStep] = []
        self._kind: StepKind | None = None
        self._inputs = ChunkInputs([], [], [])  # of the recordings
        self._batch = BatchTensors(problem.state.batch)
        self._solved: dict[int, tuple[State, StepInfo, SolvedChunk]] = {}  # by the chunks' numbers
        self._takes_following = bool(problem.following) or store is not None
        self._loops: dict[RecordedStep, bool] = {}  # for each recording whether its loop over chunks takes this step

    def solved_alone(self, chunk: Chunk) -> bool:
        """Solve the step of a chunk and return True; or find recordings that take it and all later ones."""
        chunk_problem = of_chunk(self._problem, chunk)
        with nullcontext() if chunk.whole else chunk_problem.values.in_place():
            kind = kind_of(chunk_problem)
            if chunk.whole or not takes_chunks(kind):
                self._solve_alone(chunk, chunk_problem, kind)
                return True
            self.recordings = recordings_for_threads(kind, chunk_problem, len(self._chunks) - chunk.number)
        self._kind, inputs = kind, kind.inputs(self._problem)
        self._inputs = ChunkInputs(inputs, kind.axes(inputs), [self._problem.running])
        return False

    def _solve_alone(self, chunk: Chunk, problem: StepProblem, kind: StepKind | None) -> None:
        """Solve the step of a chunk, of this kind; a recording that takes it takes those that follow, too."""
        recording = None if kind is None else recording_of(kind, problem)
        if isinstance(recording, RecordedStep):
            assert kind is not None
            self._takes_following = self._takes_following and kind.all_forces
            self._finish(recording, kind, chunk, self._controls())
            return
        if self._store is not None:
            assert recording is not None
            self._solve_course(recording, kind, chunk, problem)
            return
        # of several chunks each takes one step only, so that all end at the same time
        follows = self._takes_following and chunk.whole and kind is not None and kind.all_forces
        self._takes_following = False
        controls = [problem.control, *problem.following] if follows else [problem.control]
        after, info, candidates = _taken(problem.replace(recorded=recording), controls)
        if kind is not None and recording is None:
            kind.count(int(info.iterations.max()))
        # steps of robots with contact leave candidates, unless a recording takes them as a whole
        in_python = problem.model.contact.none or isinstance(candidates, ContactCandidates)
        taken_whole = recording is not None and not in_python
        self._keep(after, info, SolvedChunk(chunk, kind if taken_whole else None, candidates))

    def _solve_course(
        self, recording: RecordedEvaluations, kind: StepKind | None, chunk: Chunk, problem: StepProblem
    ) -> None:
        """Solve a step and those that follow it by recordings; none where these do not take the first."""
        assert self._store is not None
        keeper, taken = self._store.of_chunk(chunk), recording.whole_step(problem)
        if taken is None or taken.unsolved is not None:
            self._keep(problem.state, SeveralSteps.none(problem.state.q), SolvedChunk(chunk, None, None))
            return
        after, info = recording.following_whole_steps(
            [problem.control, *problem.following], keeper, other_pairs=not self._store.differentiated
        )
        # of loads of points there are those of the first step alone: such steps are not differentiated
        loaded = isinstance(taken.contacts, PointLoads | LoadsWithPairs)
        self._keep(after, info, SolvedChunk(chunk, None if loaded else kind, None if loaded else taken.contacts))

    def solve(self, chunk: Chunk) -> None:
        """Solve the step of a chunk, and those that follow it, by a recording."""
        self._replay(self.recordings[0], chunk, self._controls())

    def solve_by_threads(self, chunks: Sequence[Chunk]) -> None:
        """Solve the step of chunks, and those that follow it, by one thread for each recording."""
        controls = self._controls()
        shared_out(lambda recording, chunk: self._replay(recording, chunk, controls), self.recordings, chunks)

    def results(self) -> tuple[State, StepInfo, list[SolvedChunk]]:
        """Return the states of all robots after the steps, how they went, and how each chunk was solved."""
        solved = [self._solved[number] for number in sorted(self._solved)]
        after, info, _ = solved[-1]
        if self._batch.tensors:
            count, tensors = len(after.fields()), self._batch.tensors
            after, info = after.with_fields(tensors[:count]), info.with_tensors(tensors[count:])
        return after, info, [solved_chunk for _, _, solved_chunk in solved]

    def _controls(self) -> Sequence[Control]:
        """Return the controls of the step and those that follow it, as many as the next chunk is to take."""
        if not self._takes_following:
            return [self._problem.control]
        count = None if self._store is None else self._store.common_steps
        return [self._problem.control, *self._problem.following][:count]

    def _replay(self, recording: RecordedStep, chunk: Chunk, controls: Sequence[Control]) -> None:
        """Let a recording take steps of a chunk with these controls."""
        if self._loop_takes(recording, chunk):
            self._take_by_loop(recording, chunk)
        else:
            recording.start(self._inputs.given_to(recording, chunk), self._problem)
            self._finish(recording, self._kind, chunk, controls)
        if self._kind is not None:
            self._kind.replayed_steps += len(controls)

    def _loop_takes(self, recording: RecordedStep, chunk: Chunk) -> bool:
        """Return whether a recording's loop over the chunks takes a chunk; it is made ready for the step if need be."""
        if self._takes_following or chunk.repeated or not recording.loops():
            return False
        if recording not in self._loops:
            recording.start(self._inputs.shared_for(recording), self._problem)
            self._loops[recording] = recording.chunk_loop.begin(self._inputs, self._batch, self._chunks)
        return self._loops[recording]

    def _take_by_loop(self, recording: RecordedStep, chunk: Chunk) -> None:
        """Take the step of a chunk by a recording's loop over the chunks, and what the loop leaves of it by Python."""
        reason, solved = recording.chunk_loop.take(chunk.number), SolvedChunk(chunk, self._kind, None)
        after, info = recording.finish_stopped(reason)
        if reason is StopReason.ALL_TAKEN:  # the results are written
            self._solved[chunk.number] = after, info, solved
        else:
            self._keep(after, info, solved)

    def _finish(
        self, recording: RecordedStep, kind: StepKind | None, chunk: Chunk, controls: Sequence[Control]
    ) -> None:
        """Let a recording take the started step of a chunk, and those that follow, with these controls."""
        if self._takes_following:
            keeper = None if self._store is None else self._store.of_chunk(chunk)
            varied = any(control is not controls[0] for control in controls)
            after, info = recording.series.take(_of_controls(controls, chunk) if varied else controls, keeper)
        else:
            after, info = recording.finish()
        self._keep(after, info, SolvedChunk(chunk, kind, None))

    def _keep(self, after: State, info: StepInfo, solved: SolvedChunk) -> None:
        self._solved[solved.chunk.number] = after, info, solved
        if self._store is None and (solved.recorded_as is not None or not solved.chunk.whole):
            # copy now: the next step overwrites the recording's memory
            self._batch.write(solved.chunk, [*after.fields(), *info.tensors()])


def takes_chunks(kind: StepKind | None) -> TypeGuard[StepKind]:
    """Return whether a recording takes whole steps of this kind, with all loads, and so any chunk of a batch."""
    return kind is not None and kind.all_forces and isinstance(kind.recording, RecordedStep)


def takes_courses(kind: StepKind | None, differentiates: bool) -> bool:
    """Return whether recordings of functions and rounds also take whole steps of this kind, for a batch as a whole.

    Parameters
    ----------
    differentiates : whether autograd may record the steps, which with loads of contact is done one by one.
    """
    recording = None if kind is None or not kind.all_forces else kind.recording
    if not isinstance(recording, RecordedEvaluations) or not recording.takes_whole_steps:
        return False
    return recording.finds_no_loads or not differentiates


def _of_controls(controls: Sequence[Control], chunk: Chunk) -> Sequence[Control]:
    """Return the parts of controls that are for a chunk's robots; controls that are one object stay one."""
    if chunk.whole:
        return controls
    by_id = {id(control): control for control in controls}
    by_id = {k: Control.of({n: chunk.of(tensor) for n, tensor in c.tensors().items()}) for k, c in by_id.items()}
    return [by_id[id(control)] for control in controls]


def of_chunk(problem: StepProblem, chunk: Chunk) -> StepProblem:
    """Return the step of a chunk's robots, of which those that are in the chunk before are not moved."""
    if chunk.whole:
        return problem
    return problem.replace(
        state=problem.state.with_fields([chunk.of(tensor) for tensor in problem.state.fields()]),
        control=_of_controls([problem.control], chunk)[0],
        running=chunk.zero_where_repeated(problem.running),
        values=problem.values.rows(chunk.start, chunk.size),
    )


def _taken(problem: StepProblem, controls: Sequence[Control]) -> tuple[State, StepInfo, StepContacts | None]:
    """Return the states after a step, how it went, and its contact candidates, None where nothing touches.

    A recording takes the step where it needs no search for pairs; Python takes it else, and for the robots that the
    recording does not solve.

    Parameters
    ----------
    controls : of the step, and of those after it that may be taken, too; then the report is a `SeveralSteps`.
    """
    recorded = problem.recorded
    taken = None if recorded is None else recorded.whole_step(problem)
    if recorded is None or taken is None:
        return _solved_where_finite(problem)
    if taken.unsolved is None:
        if len(controls) > 1:
            return *recorded.following_whole_steps(controls), None
        return taken.after, taken.info, taken.contacts if taken.bears_load else None
    rest = problem.replace(running=taken.unsolved)
    after, info, candidates = _solved_where_finite(rest, taken.info.iterations)
    if isinstance(taken.contacts, LoadsWithPairs):
        return after, info, candidates  # of all robots that run: whole steps with pairs leave all or none
    assert isinstance(taken.contacts, PointLoads) and not isinstance(candidates, PointLoads | PairsOfStep)
    after, info = taken.after.merged(after, taken.unsolved), taken.info.merged(info, taken.unsolved)
    return after, info, taken.contacts.with_found(candidates, taken.unsolved)


def _solved_where_finite(
    problem: StepProblem, tried: Tensor | None = None
) -> tuple[State, StepInfo, StepContacts | None]:
    """Return the states after a step, how it went, and its contact candidates, None where nothing touches.

    Robots whose state is not finite are left out: if no force reads the number that is not, the residual does not show
    it. So are robots whose contact is NaN, as contacts that are searched for would not be found.

    Parameters
    ----------
    tried : (B,) iterations of the first attempt, if a recording has made that without success.
    """
    lost = problem.running & ~problem.state.finite()
    if not problem.model.contact.none:
        lost = lost | (problem.running & problem.model.contact.undefined(problem.state))
    after, info, candidates = solved_step(problem.replace(running=problem.running & ~lost), tried)
    info = dataclasses.replace(info, status=torch.where(lost, int(Status.NOT_FINITE), info.status))
    if isinstance(candidates, ContactCandidates):
        candidates = None if candidates.none else candidates.without_state()
    return after, info, candidates

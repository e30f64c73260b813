"""Steps without gradients: for which robots together a step is solved, and whether a recording takes it.

A step that no recording takes is solved by `step.solved_step`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.chunks import BatchTensors, Chunk, split_by_chunks
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.recording import kind_of, recording_of
from torchdismech.integrate.recorded.series import StepKeeper
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.integrate.step import solved_step
from torchdismech.robot.state import Control, State
from torchdismech.values import Values, per_robot

__all__ = ["SolvedChunk", "StateStore", "held_values", "of_chunk", "solved_in_chunks"]


@dataclass(frozen=True)
class SolvedChunk:
    """How the robots of a chunk of a batch were solved.

    Attributes
    ----------
    recorded_as : the kind of steps whose recording took the step; None if none did.
    candidates : the contact candidates; None where nothing can touch, and for recorded steps.
    """

    chunk: Chunk
    recorded_as: StepKind | None
    candidates: ContactCandidates | None


class StateStore(Protocol):
    """Keeps the states after each of several steps, chunk by chunk."""

    @property
    def common_steps(self) -> int:
        """How many steps all chunks so far have taken, so that the next one need not take more.

        Before the first chunk: the number of all steps.
        """
        ...

    def of_chunk(self, chunk: Chunk) -> StepKeeper:
        """Return what keeps the states of the robots of a chunk."""
        ...


def held_values(problem: StepProblem, parametrized: Values, chunks: Sequence[Chunk]) -> Values:
    """Return the tensors that the model holds in a step in place of its own.

    If there are several chunks they include those that are given per robot, so that each chunk can have its part.
    """
    held = problem.values | parametrized
    return held | per_robot(problem.model) if len(chunks) > 1 and problem.model.batch is not None else held


def solved_in_chunks(
    problem: StepProblem, chunks: Sequence[Chunk], store: StateStore | None = None
) -> tuple[State, StepInfo, list[SolvedChunk]]:
    """Return the states after a step, how it went, and how each chunk of the batch was solved.

    If a recording takes the steps of `problem.following`, too, the states are those after the last of these, and the
    report is a `SeveralSteps`. Then each chunk takes all steps before the next chunk begins, so that its memory stays
    near the processor.

    Parameters
    ----------
    store : keeps the states after each of several steps, up to one that some robot fails. No chunk takes more of them
        than those before it did.
    """
    batch, solved_chunks, chunk_solver = BatchTensors(problem.state.batch), [], _ChunkSolver(problem, chunks)
    takes_following = bool(problem.following) or store is not None  # whether the steps that follow are taken, too
    for chunk in chunks:
        if store is not None and not store.common_steps:
            break
        after, info, solved_chunk = chunk_solver.solve(chunk)
        kind = solved_chunk.recorded_as
        # if the first chunk was not recorded, every chunk takes one step only, so that all end at the same time
        takes_following = takes_following and kind is not None and kind.all_forces
        if takes_following:
            assert kind is not None
            after, info = _followed(kind, problem, chunk, after, info, store)
        solved_chunks.append(solved_chunk)
        if store is None and (kind is not None or not chunk.whole):
            # copy now: the next step overwrites the recording's memory
            batch.write(chunk, [*after.fields(), *info.tensors()])
    if batch.tensors:
        count = len(after.fields())
        after, info = after.with_fields(batch.tensors[:count]), info.with_tensors(batch.tensors[count:])
    return after, info, solved_chunks


class _ChunkSolver:
    """Solves a step chunk by chunk.

    What is found out about the model for the first chunk holds for all: nothing changes it between two chunks but
    users' loads. So the recording that took the first chunk is given the others without asking whether the model fits.
    """

    def __init__(self, problem: StepProblem, chunks: Sequence[Chunk]):
        self._problem, self._chunks = problem, chunks
        self._kind: StepKind | None = None
        self._inputs_by_chunk: list[Sequence[Tensor | None]] = []  # the recording's inputs for each chunk

    def solve(self, chunk: Chunk) -> tuple[State, StepInfo, SolvedChunk]:
        """Return the states of a chunk after the step, how it went, and how it was solved."""
        if self._inputs_by_chunk and self._kind is not None:
            recording = self._kind.recorded_step
            recording.start(self._inputs_by_chunk[chunk.number], self._problem.dt)
            return *recording.finish(self._problem.divisible), SolvedChunk(chunk, self._kind, None)
        chunk_problem = self._problem if chunk.whole else of_chunk(self._problem, chunk)
        with nullcontext() if chunk.whole else chunk_problem.values.in_place():
            kind = kind_of(chunk_problem)
            after, info, candidates, recorded = _solved(chunk_problem, kind)
        if recorded and kind is not None and kind.all_forces and not chunk.whole:
            inputs = kind.inputs(self._problem)
            self._kind = kind
            self._inputs_by_chunk = split_by_chunks(inputs, kind.axes(inputs), self._chunks, [self._problem.running])
        return after, info, SolvedChunk(chunk, kind if recorded else None, candidates)


def _followed(
    kind: StepKind, problem: StepProblem, chunk: Chunk, after: State, info: StepInfo, store: StateStore | None
) -> tuple[State, StepInfo]:
    """Return the states of a chunk after the steps that follow its first, recorded one, and how all went."""
    controls = [problem.control, *problem.following][: None if store is None else store.common_steps]
    keeper = None if store is None else store.of_chunk(chunk)
    return kind.recorded_step.series.take_remaining(
        after, info, _of_controls(controls, chunk), problem.divisible, keeper
    )


def _of_controls(controls: Sequence[Control], chunk: Chunk) -> Sequence[Control]:
    """Return the parts of controls that are for a chunk's robots; controls that are one object stay one."""
    if chunk.whole:
        return controls
    by_id = {id(control): control for control in controls}
    by_id = {k: Control.of({n: chunk.of(tensor) for n, tensor in c.tensors().items()}) for k, c in by_id.items()}
    return [by_id[id(control)] for control in controls]


def of_chunk(problem: StepProblem, chunk: Chunk) -> StepProblem:
    """Return the step of a chunk's robots, of which those that are in the chunk before are not moved."""
    return problem.replace(
        state=problem.state.with_fields([chunk.of(tensor) for tensor in problem.state.fields()]),
        control=_of_controls([problem.control], chunk)[0],
        running=chunk.zero_where_repeated(problem.running),
        values=problem.values.rows(chunk.start, chunk.size),
    )


def _solved(problem: StepProblem, kind: StepKind | None) -> tuple[State, StepInfo, ContactCandidates | None, bool]:
    """Return the states after a step of a kind, how it went, its contact candidates, and whether a recording took it.

    A recorded step has no candidates, and returns tensors that the next step overwrites. Other steps leave out robots
    whose state is not finite: if no force reads the number that is not, the residual does not show it. They leave out
    robots whose contact is NaN, too, as contacts that are searched for would not be found.
    """
    recording = None if kind is None else recording_of(kind, problem)
    if isinstance(recording, RecordedStep):
        return *recording.finish(problem.divisible), None, True
    lost = problem.running & ~problem.state.finite()
    if not problem.model.contact.none:
        lost = lost | (problem.running & problem.model.contact.undefined(problem.state))
    after, info, candidates = solved_step(problem.replace(running=problem.running & ~lost, recorded=recording))
    if kind is not None and recording is None:
        kind.count(int(info.iterations.max()))
    status = torch.where(lost, int(Status.NOT_FINITE), info.status)
    known_candidates = None if candidates.none else candidates.without_state()
    return after, dataclasses.replace(info, status=status), known_candidates, False

"""CourseStates: the states before and after each step of a course, and the steps' reports, kept while it runs."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from torchdismech.integrate.chunks import Chunk
from torchdismech.integrate.info import StepInfo
from torchdismech.robot.state import State, tensor_fields

__all__ = ["ChunkStates", "CourseStates"]


class CourseStates:
    """The states before and after each step of a course, up to a step that some robot fails, and the steps' reports.

    Parameters
    ----------
    state : before the first step.
    steps : T.
    differentiated : whether autograd goes back through them; then all are with the same pairs of parts that may touch.

    Attributes
    ----------
    names, fields : of the states; each field is (T + 1, B, ...).
    infos : the reports in one, (T, B, ...); None before the first step was taken.
    """

    def __init__(self, state: State, steps: int, differentiated: bool):
        self.differentiated = differentiated
        self.names = tensor_fields(state)
        self.counts: dict[int, int] = {}  # how many steps each chunk has taken, by its number
        self.fields = [field.new_empty(steps + 1, *field.shape) for field in state.fields()]
        self.infos: StepInfo | None = None
        self._steps, self._batch, self._making = steps, state.batch, Lock()
        torch._foreach_copy_([field[0] for field in self.fields], [field.detach() for field in state.fields()])

    @property
    def common_steps(self) -> int:
        """How many steps all chunks so far have taken; before the first has begun, all steps."""
        return min(self.counts.values(), default=self._steps)

    def of_chunk(self, chunk: Chunk) -> ChunkStates:
        """Return what keeps the states of the robots of a chunk."""
        self.counts[chunk.number] = 0
        return ChunkStates(self, chunk)

    def infos_like(self, info: StepInfo) -> StepInfo:
        """Return the tensors for all reports, made at the first call for reports like this one."""
        with self._making:
            if self.infos is None:
                shape = (self._steps, self._batch)
                tensors = [tensor.new_empty(*shape, *tensor.shape[1:]) for tensor in info.tensors()]
                self.infos = info.with_tensors(tensors)
            return self.infos


class ChunkStates:
    """Keeps the states of a chunk's robots in a course, and the reports of their steps."""

    def __init__(self, states: CourseStates, chunk: Chunk):
        self._states, self._chunk = states, chunk
        self._fields = [self._steps(field)[1:] for field in states.fields]

    def keep(self, number: int, after: State, info: StepInfo) -> None:
        """Copy state and report of a step, counted from 0."""
        destinations = self.destinations(after, info)
        torch._foreach_copy_(
            [storage[number] for _, storage in destinations], [overwritten for overwritten, _ in destinations]
        )
        self.count(number + 1)

    def destinations(self, after: State, info: StepInfo) -> list[tuple[Tensor, Tensor]]:
        """Return pairs: a tensor that each step overwrites, and the tensor (T, ...) that keeps it for all steps."""
        stored_reports = [self._steps(tensor) for tensor in self._states.infos_like(info).tensors()]
        overwritten = [self._chunk.without_repeated(tensor) for tensor in (*after.fields(), *info.tensors())]
        return list(zip(overwritten, [*self._fields, *stored_reports], strict=True))

    def count(self, steps: int) -> None:
        """Note how many steps are kept by now."""
        self._states.counts[self._chunk.number] = steps

    def _steps(self, tensor: Tensor) -> Tensor:
        """Return this chunk's part of a tensor (T, B, ...) of all, without robots of the chunk before."""
        return self._chunk.without_repeated(self._chunk.of(tensor, 1), 1)

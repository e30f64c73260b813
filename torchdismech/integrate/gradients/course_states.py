"""CourseStates: the states before some steps and after each of them, and how these went, kept while they are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.integrate.chunks import Chunk
from torchdismech.integrate.info import StepInfo
from torchdismech.robot.state import State, tensor_fields

__all__ = ["CourseStates"]


class CourseStates:
    """The states before some steps and after each of them, up to one that some robot fails, and how these went.

    Parameters
    ----------
    state : before them.
    steps : T.

    Attributes
    ----------
    names, fields : of the states' fields (T + 1, B, ...).
    infos : how the steps went, (T, B, ...); None before the first was taken.
    """

    def __init__(self, state: State, steps: int):
        self.names = tensor_fields(state)
        self.counts: dict[int, int] = {}  # of steps, by the numbers of chunks
        self.fields = [field.new_empty(steps + 1, *field.shape) for field in state.fields()]
        self.infos: StepInfo | None = None
        self._steps, self._batch = steps, state.batch
        torch._foreach_copy_([field[0] for field in self.fields], [field.detach() for field in state.fields()])

    @property
    def common_steps(self) -> int:
        """How many steps all chunks so far have taken; before the first has begun, all steps."""
        return min(self.counts.values(), default=self._steps)

    def of_chunk(self, chunk: Chunk) -> ChunkStates:
        """Return what keeps the states of some robots."""
        self.counts[chunk.number] = 0
        return ChunkStates(self, chunk)

    def infos_like(self, info: StepInfo) -> StepInfo:
        """Return the infos, made for what the first step of some robots says."""
        if self.infos is None:
            shape = (self._steps, self._batch)
            self.infos = info.with_tensors([tensor.new_empty(*shape, *tensor.shape[1:]) for tensor in info.tensors()])
        return self.infos


class ChunkStates:
    """Keeps the states of some robots of a course, and how their steps went."""

    def __init__(self, states: CourseStates, chunk: Chunk):
        self._states, self._chunk = states, chunk
        self._fields = [self._steps(field)[1:] for field in states.fields]

    def keep(self, number: int, after: State, info: StepInfo) -> None:
        """Keep those after a step, counted from 0."""
        kept = self.destinations(after, info)
        torch._foreach_copy_([places[number] for _, places in kept], [found for found, _ in kept])
        self.count(number + 1)

    def destinations(self, after: State, info: StepInfo) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of a tensor of a step, and the tensor (T, ...) that keeps it for each step."""
        infos = [self._steps(tensor) for tensor in self._states.infos_like(info).tensors()]
        found = [self._chunk.without_repeated(tensor) for tensor in (*after.fields(), *info.tensors())]
        return list(zip(found, [*self._fields, *infos], strict=True))

    def count(self, steps: int) -> None:
        """Learn how many steps are kept."""
        self._states.counts[self._chunk.number] = steps

    def _steps(self, tensor: Tensor) -> Tensor:
        """Return what counts of these robots, of a tensor (T, B, ...) of all."""
        return self._chunk.without_repeated(self._chunk.of(tensor, 1), 1)

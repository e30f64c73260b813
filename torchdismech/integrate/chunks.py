"""Steps of large batches, some robots at a time.

The robots of a batch do not interact, so a step of the batch may be taken chunk by chunk. Each chunk takes less memory,
and on a CPU what it needs stays near the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem, Take
from torchdismech.integrate.recorded.recording import records_whole_steps
from torchdismech.model import Model
from torchdismech.model.step_memory import robots_at_a_time, step_bytes
from torchdismech.robot.state import State
from torchdismech.system.memory import available_bytes, size_of

if TYPE_CHECKING:
    from torchdismech.integrate.integrator import SteppingMethod

__all__ = ["Chunk", "ChunkInputs", "BatchTensors", "check_chunk", "chunk_size", "in_chunks", "chunks_of"]


SHARE = 0.5  # part of the free memory that a step may take; the rest is for its backward pass and for other programs

_chosen_sizes: WeakKeyDictionary[Model, dict[tuple[torch.device, int, bool], int]] = WeakKeyDictionary()


def check_chunk(chunk: object) -> int | str | None:
    """Return the setting `chunk`; refuse what is neither "auto", None nor a number of robots."""
    if chunk is None or (isinstance(chunk, str) and chunk == "auto"):
        return chunk
    if isinstance(chunk, bool) or not isinstance(chunk, Integral) or chunk < 1:
        raise InputError(f'chunk: expected "auto", None or a number of robots of at least 1, got {chunk!r}')
    return int(chunk)


def chunk_size(model: Model, batch: int, method: SteppingMethod) -> int:
    """Return how many robots are stepped at a time by a method.

    "auto" decides once for a model and a batch size, so that all steps of a run agree. On a CPU the size depends on the
    model, the number of threads and whether steps are recorded, unless memory is short.
    """
    chunk = method.chunk
    if chunk is None or batch == 1:
        return batch
    if isinstance(chunk, int):
        return min(chunk, batch)
    sizes = _chosen_sizes.setdefault(model, {})
    key = (model.device, batch, method.scheme.inertial)
    if key not in sizes:
        sizes[key] = _fitting_size(model, batch, records_whole_steps(model, method))
    return sizes[key]


def _fitting_size(model: Model, batch: int, recorded: bool) -> int:
    """Return how many robots are best stepped at a time, fewer where memory is short."""
    size, free = robots_at_a_time(model, batch, recorded), available_bytes(model.device)
    while size > 1 and step_bytes(model, size) > SHARE * free:
        size = -(-size // 2)
    batch_bytes = step_bytes(model, size) / size * batch
    if batch_bytes > SHARE * free:
        warn(
            f"a step of {batch} robots would take about {size_of(batch_bytes)}, and {size_of(free)} are free on "
            f"{model.device}: {size} at a time are stepped, with about {size_of(step_bytes(model, size))}",
            RuntimeWarning,
        )
    return size


@dataclass(frozen=True)
class Chunk:
    """Robots of a batch that are stepped together: `size` of them from `start` on.

    Attributes
    ----------
    number : of this chunk among those of the batch, from 0.
    repeated : how many robots, the first of this chunk, are in the chunk before, too. They come along so that all
        chunks have one size; results for them are taken from the chunk before.
    whole : whether these are all robots of the batch.
    """

    number: int
    start: int
    size: int
    repeated: int
    whole: bool

    def of(self, tensor: Tensor, axis: int | None = 0) -> Tensor:
        """Return a view of these robots' part of a tensor of all; the tensor itself if no dimension counts robots."""
        return tensor if self.whole or axis is None else tensor.narrow(axis, self.start, self.size)

    def without_repeated(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Return a tensor of this chunk's robots without those that are in the chunk before."""
        return tensor.narrow(axis, self.repeated, self.size - self.repeated) if self.repeated else tensor

    def zero_where_repeated(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Return these robots' part of a tensor of all, with zeros for robots that are in the chunk before."""
        part = self.of(tensor, axis)
        if self.repeated:
            part = part.clone()
            part.narrow(axis, 0, self.repeated).zero_()
        return part


def chunks_of(batch: int, size: int) -> list[Chunk]:
    """Return the chunks of a batch, all of one size, so that one compiled kernel serves all."""
    if size >= batch:
        return [Chunk(0, 0, batch, 0, True)]
    starts = [min(start, batch - size) for start in range(0, batch, size)]
    return [Chunk(k, start, size, k * size - start, False) for k, start in enumerate(starts)]


class ChunkInputs:
    """The inputs that recordings take for each chunk, parts of tensors of all robots.

    A recording keeps the tensors that are the same for all chunks, so it is given them once, with its first chunk.

    Parameters
    ----------
    tensors : the inputs for all robots.
    axes : the dimension of the robots in each tensor; None where it is for all.
    zeroed : those of the tensors, (B, ..), of which the parts are zero for robots that are in the chunk before.
    """

    def __init__(self, tensors: Sequence[Tensor], axes: Sequence[int | None], zeroed: Sequence[Tensor]):
        self.tensors, self.axes = tensors, axes
        self._zeroed = {id(tensor) for tensor in zeroed}
        self._informed: list[object] = []  # recordings that have the shared tensors

    def shared_for(self, recording: object) -> list[Tensor | None]:
        """Return the inputs that are the same for all chunks, and None for others; None for all if it has them."""
        if recording in self._informed:
            return [None] * len(self.tensors)
        self._informed.append(recording)
        return [tensor if axis is None else None for tensor, axis in zip(self.tensors, self.axes, strict=True)]

    def given_to(self, recording: object, chunk: Chunk) -> list[Tensor | None]:
        """Return the inputs of a chunk for a recording; None for a tensor that it has."""
        given = self.shared_for(recording)
        for k, (tensor, axis) in enumerate(zip(self.tensors, self.axes, strict=True)):
            if axis is not None:
                of_chunk = chunk.zero_where_repeated if id(tensor) in self._zeroed else chunk.of
                given[k] = of_chunk(tensor, axis)
        return given


class BatchTensors:
    """Tensors of a whole batch that are written some robots at a time, also by several threads.

    Parameters
    ----------
    batch : number of robots.
    """

    def __init__(self, batch: int):
        self._batch, self._making = batch, Lock()
        self.tensors: list[Tensor] = []

    def made_for(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of all robots for results like these of a chunk, made at the first call."""
        with self._making:
            if not self.tensors:
                self.tensors = [tensor.new_empty(self._batch, *tensor.shape[1:]) for tensor in tensors]
            return self.tensors

    def write(self, chunk: Chunk, tensors: list[Tensor]) -> None:
        """Write the results for a chunk, tensors with its robots first."""
        if chunk.whole:
            self.tensors = [tensor.clone() for tensor in tensors]
            return
        targets = [chunk.without_repeated(chunk.of(tensor)) for tensor in self.made_for(tensors)]
        torch._foreach_copy_(
            targets, [chunk.without_repeated(tensor) for tensor in tensors] if chunk.repeated else tensors
        )


def in_chunks(take: Take, problem: StepProblem, size: int) -> tuple[State, StepInfo]:
    """Return the states after a step and how it went, taken by `take` for `size` robots at a time.

    Every chunk has that size, so that one compiled kernel serves all: where the last has fewer robots, some of the
    chunk before come along, are not moved, and are left out of the result. To autograd each chunk is a step of its own.
    Tensors are split into all chunks at once, as the gradient of each single view, like those of `Chunk.of`, would be
    padded to all robots and added.
    """
    batch = problem.state.batch
    if size >= batch:
        return take(problem)
    chunks, parts = chunks_of(batch, size), problem.model.parts(problem.state, problem.control, size)
    following_parts = {id(control): control.split(size, len(chunks)) for control in problem.following}
    states, infos = [], []
    for chunk, (values, state, control) in zip(chunks, parts, strict=True):
        k, running, values = chunk.number, chunk.zero_where_repeated(problem.running), problem.values | values
        following = [control if c is problem.control else following_parts[id(c)][k] for c in problem.following]
        with values.in_place():
            after, info = take(
                problem.replace(state=state, control=control, running=running, following=following, values=values)
            )
        own_rows = slice(chunk.repeated, None)
        states.append(after.rows(own_rows) if chunk.repeated else after)
        infos.append(info.rows(own_rows) if chunk.repeated else info)
    return type(states[0]).joined(states), StepInfo.joined(infos)

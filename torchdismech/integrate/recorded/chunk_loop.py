"""ChunkLoop: a recorded step of one chunk of a batch after the other, each by one call of compiled code.

The call copies the chunk's part of the inputs to the static buffers, takes the step, and copies its results to the
tensors of the batch. From Python these copies, and the views that they need, would take a tenth of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchdismech.native.availability import Unavailable
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepLoop, StopReason

if TYPE_CHECKING:
    from torchdismech.integrate.chunks import BatchTensors, Chunk, ChunkInputs
    from torchdismech.integrate.recorded.step import RecordedStep

__all__ = ["ChunkLoop"]

OfRobots = Sequence[tuple[Tensor, int]]  # tensors of a batch, each with its dimension of the robots


class ChunkLoop:
    """The compiled loop that takes a recorded step of chunks of a batch, which all have one size.

    Parameters
    ----------
    step : the recording.
    """

    def __init__(self, step: RecordedStep):
        self._step = step
        self._made_for: list[object] = []  # how the tensors lie that the loop serves
        self._loop: StepLoop | None = None
        self._offsets = self._addresses = np.empty((0, 0), dtype=np.int64)  # of each chunk's part of each tensor

    def begin(self, inputs: ChunkInputs, results: BatchTensors, chunks: Sequence[Chunk]) -> bool:
        """Get ready for a step; return whether there is a loop that takes it.

        The recording has to have the inputs that all chunks share, and dt.

        Parameters
        ----------
        results : where state and report of all robots are to be written.
        """
        after, info = self._step.finished_result()
        of_chunk = [*after.fields(), *info.tensors()]
        given = [
            (buffer, (tensor, axis))
            for buffer, tensor, axis in zip(self._step.static.buffers(), inputs.tensors, inputs.axes, strict=True)
            if axis is not None
        ]
        of_robots: OfRobots = [*(part for _, part in given), *((t, 0) for t in results.made_for(of_chunk))]
        # the recording that shortens steps, a part of the loop, is made where it is first needed
        made_for: list[object] = [self._step.rounds.accept_or_shorten, len(chunks)]
        made_for += [(tensor.shape, tensor.stride(), tensor.dtype, axis) for tensor, axis in of_robots]
        if made_for != self._made_for:
            self._made_for = made_for
            self._loop = self._made([buffer for buffer, _ in given], of_chunk, of_robots, chunks)
        addresses = np.array([tensor.data_ptr() for tensor, _ in of_robots], dtype=np.int64)
        np.add(self._offsets, addresses[:, None], out=self._addresses)
        return self._loop is not None

    def take(self, number: int) -> StopReason:
        """Take the step of a chunk, by its number, and write its results; return why the loop ended.

        After another reason than `StopReason.ALL_TAKEN`, nothing is written, and `RecordedStep.finish_stopped` goes on.
        """
        assert self._loop is not None
        return self._loop.run(number, number + 1)[1]

    def _made(
        self, buffers: Sequence[Tensor], of_chunk: Sequence[Tensor], of_robots: OfRobots, chunks: Sequence[Chunk]
    ) -> StepLoop | None:
        """Return the loop for tensors of a batch that lie as these do; None where some copy has no instruction.

        Parameters
        ----------
        buffers, of_chunk : of the recording, from which and to which the tensors `of_robots` are copied, in this order.
        """
        strides = [tensor.stride(axis) * tensor.element_size() for tensor, axis in of_robots]
        self._offsets = np.outer(strides, [chunk.start for chunk in chunks])
        self._addresses = np.empty_like(self._offsets)
        parts = [
            PerStep(chunks[0].of(tensor, axis), addresses, None)
            for (tensor, axis), addresses in zip(of_robots, self._addresses, strict=True)
        ]
        before, after = PerStepInstructions(), PerStepInstructions()
        try:
            for buffer, part in zip(buffers, parts, strict=False):
                before.add("copy", buffer, part)
            for part, result in zip(parts[len(buffers) :], of_chunk, strict=True):
                after.add("copy", part, result)
            return self._step.loop(before, after)
        except (NoInstruction, Unavailable):
            return None

"""Frames of plain numbers, writers of them, and files that stop taking what is written."""

from io import FileIO

import numpy as np
import torch

from torchdismech.robot.state import State
from torchdismech.trajectory import Frame, TrajectoryWriter

BATCH, NODES, EDGES, SPRINGS = 3, 5, 4, 3
ROD_EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
NO_TRIANGLES = np.zeros((0, 3), dtype=np.int64)


def state_with(number: float, nodes: int = NODES, dtype=torch.float64) -> State:
    """Return a state whose every entry is `number`: a torn write would show as two numbers."""

    def full(*shape: int) -> torch.Tensor:
        return torch.full((BATCH, *shape), number, dtype=dtype)

    n = 4 * nodes - 1
    return State(full(n), full(n), full(n), full(nodes - 1, 3), full(nodes - 1, 3), full(nodes - 2), full())


def frame_with(step: int, number: float | None = None, nodes: int = NODES, dtype=torch.float64) -> Frame:
    """Return the frame of a step whose every entry is `number`, by default the step."""
    value = float(step) if number is None else number
    count = torch.full((BATCH,), step)
    energies = {"kinetic": torch.full((BATCH,), value, dtype=dtype)}
    state = state_with(value, nodes, dtype)
    return Frame(step, state.time[0], state, count, count, energies["kinetic"], count, energies)


def written(path, steps, capacity=None, **options) -> TrajectoryWriter:
    """Return a writer that has written frames, not closed."""
    writer = TrajectoryWriter(path, **options)
    writer.start(len(steps) if capacity is None else capacity, ROD_EDGES, NO_TRIANGLES)
    for step in steps:
        writer.append(frame_with(step))
    return writer


class Killed(BaseException):
    """Stands for a signal that ends the process."""


class Ending(FileIO):
    """A file whose writes come to an end: the n-th writes half of what it should, then it and all others fail."""

    left = 10**9
    failure: BaseException = Killed()

    def write(self, data):
        """Write, or fail."""
        Ending.left -= 1
        if Ending.left == 0:
            super().write(memoryview(data)[: len(data) // 2])
        if Ending.left <= 0:
            raise Ending.failure
        return super().write(data)

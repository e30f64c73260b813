"""Steps of large batches, some robots at a time.

The robots of a batch do not know each other, so a step of all of them is the steps of its parts. Each part takes less
memory, and on a CPU what it needs stays near the processor.
"""

from __future__ import annotations

import warnings
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from torchdismech.errors import InputError
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import Method, StepProblem, Take
from torchdismech.integrate.recording import records_whole_steps
from torchdismech.memory import available_bytes, robots_at_a_time, size_of, step_bytes
from torchdismech.model import Model
from torchdismech.state import State
from torchdismech.values import split

__all__ = ["check_chunk", "chunk_size", "in_chunks"]


SHARE = 0.5  # of the free memory that a step may take; the rest is for what its backward pass needs and for the others

_decided: WeakKeyDictionary[Model, dict[tuple[torch.device, int, bool], int]] = WeakKeyDictionary()


def check_chunk(chunk: int | str | None) -> int | str | None:
    """Return the setting; refuse what is neither "auto", None nor a number of robots."""
    if chunk is None or chunk == "auto" or (type(chunk) is int and chunk >= 1):
        return chunk
    raise InputError(f'chunk: expected "auto", None or a number of robots of at least 1, got {chunk!r}')


class Chunked(Method, Protocol):
    """A method that says how many robots of a batch are stepped at a time."""

    chunk: int | str | None


def chunk_size(model: Model, batch: int, method: Chunked) -> int:
    """Return how many robots are stepped at a time by a method.

    "auto" decides once for a model and a number of robots, so that all steps of a run agree. On a CPU it depends on the
    model, the number of threads and whether steps are recorded alone, unless memory is short.
    """
    chunk = method.chunk
    if chunk is None or batch == 1:
        return batch
    if isinstance(chunk, int):
        return min(chunk, batch)
    decided = _decided.setdefault(model, {})
    key = (model.device, batch, method.scheme.inertial)
    if key not in decided:
        decided[key] = _fitting_size(model, batch, records_whole_steps(model, method))
    return decided[key]


def _fitting_size(model: Model, batch: int, recorded: bool) -> int:
    """Return the number of robots that are best stepped at a time, or that memory is enough for."""
    size, free = robots_at_a_time(model, batch, recorded), available_bytes(model.device)
    while size > 1 and step_bytes(model, size) > SHARE * free:
        size = -(-size // 2)
    whole = step_bytes(model, size) / size * batch
    if whole > SHARE * free:
        warnings.warn(
            f"a step of {batch} robots would take about {size_of(whole)}, and {size_of(free)} are free on "
            f"{model.device}: {size} at a time are stepped, with about {size_of(step_bytes(model, size))}",
            RuntimeWarning,
            stacklevel=4,  # where `step` is called
        )
    return size


def in_chunks(take: Take, problem: StepProblem, size: int) -> tuple[State, StepInfo]:
    """Return the states after a step and how it went, taken by `take` for `size` robots at a time.

    Every part has that size, so that one compiled kernel serves all: where the last has fewer robots, some of the part
    before come along, are not moved, and are left out of the result.
    """
    batch = problem.state.batch
    if size >= batch:
        return take(problem)
    again = -batch % size  # robots of the last part that are in the part before
    moving = split(problem.running, size)
    moving[-1] = moving[-1] & (torch.arange(size, device=problem.running.device) >= again)
    results = []
    for (values, state, control), rows in zip(
        problem.model.parts(problem.state, problem.control, size), moving, strict=True
    ):
        values = problem.values | values
        with values.in_place():
            results.append(take(problem.replace(state=state, control=control, running=rows, values=values)))
    if again:
        results[-1] = tuple(x.rows(slice(again, None)) for x in results[-1])  # type: ignore[assignment]
    after, info = zip(*results, strict=True)
    return type(after[0]).joined(after), StepInfo.joined(info)

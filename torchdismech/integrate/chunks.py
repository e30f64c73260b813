"""Steps of large batches, some robots at a time.

The robots of a batch do not know each other, so a step of all of them is the steps of its parts. Each part takes less
memory, and on a CPU what it needs stays near the processor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.memory import available_bytes, robots_at_a_time, size_of, step_bytes
from torchdismech.model import Model
from torchdismech.split import split
from torchdismech.state import Control, State

__all__ = ["check_chunk", "chunk_size", "in_chunks"]


class Rows(Protocol):
    """What has one row for each robot."""

    def rows(self: Info, index) -> Info:
        """Return the robots that `index` selects."""
        ...

    @classmethod
    def joined(cls: type[Info], parts: Sequence[Info]) -> Info:
        """Return parts of a batch as one."""
        ...


Info = TypeVar("Info", bound=Rows)

SHARE = 0.5  # of the free memory that a step may take; the rest is for what its backward pass needs and for the others

_decided: WeakKeyDictionary[Model, dict[tuple[torch.device, int], int]] = WeakKeyDictionary()


def check_chunk(chunk: int | str | None) -> int | str | None:
    """Return the setting; refuse what is neither "auto", None nor a number of robots."""
    if chunk is None or chunk == "auto" or (type(chunk) is int and chunk >= 1):
        return chunk
    raise InputError(f'chunk: expected "auto", None or a number of robots of at least 1, got {chunk!r}')


def chunk_size(model: Model, batch: int, chunk: int | str | None) -> int:
    """Return how many robots are stepped at a time.

    "auto" decides once for a model and a number of robots, so that all steps of a run agree. On a CPU it depends on the
    model and the number of threads alone, unless memory is short.
    """
    if chunk is None or batch == 1:
        return batch
    if isinstance(chunk, int):
        return min(chunk, batch)
    decided = _decided.setdefault(model, {})
    key = (model.device, batch)
    if key not in decided:
        decided[key] = _fitting_size(model, batch)
    return decided[key]


def _fitting_size(model: Model, batch: int) -> int:
    """Return the number of robots that are best stepped at a time, or that memory is enough for."""
    size, free = robots_at_a_time(model, batch), available_bytes(model.device)
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


def in_chunks(
    step: Callable[[Model, State, Control, Tensor], tuple[State, Info]],
    model: Model,
    state: State,
    control: Control,
    running: Tensor,
    size: int,
) -> tuple[State, Info]:
    """Return what `step` gives for all robots, `size` of them at a time.

    Every part has that size, so that one compiled kernel serves all: where the last has fewer robots, some of the part
    before come along, are not moved, and are left out of the result.
    """
    again = -state.batch % size  # robots of the last part that are in the part before
    moving = split(running, size)
    moving[-1] = moving[-1] & (torch.arange(size, device=running.device) >= again)
    results = [step(*part, rows) for part, rows in zip(model.parts(state, control, size), moving, strict=True)]
    results[-1] = tuple(x.rows(slice(again, None)) for x in results[-1])  # type: ignore[assignment]
    after, info = zip(*results, strict=True)
    return State.joined(after), type(info[0]).joined(info)

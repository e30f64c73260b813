"""Checks of what environments are given, and of what a task's functions return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.control.noise import SEEDS
from torchdismech.errors import InputError, refuse_other_kind

__all__ = [
    "in_dtype",
    "noted_in_errors",
    "refuse_not_finite",
    "refuse_other_than_rows",
    "refuse_other_than_tensor",
    "seeds_of_robots",
]


@contextmanager
def noted_in_errors(what: str) -> Iterator[None]:
    """Add a note to an error raised within the block that says in which of the task's functions it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This happened in {what} of the environment's task.")
        raise


def in_dtype(what: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers (B, ..) in the dtype of a learner; refuse numbers that it cannot hold."""
    converted = numbers.to(dtype)
    if dtype != numbers.dtype:
        odd = ~torch.isfinite(converted)
        if bool(odd.any()):
            number = float(numbers[odd][0])
            raise InputError(f"{what}: expected numbers that {dtype} has, got {number:g}; scale it in the task")
    return converted


def refuse_other_than_tensor(what: str, value: object) -> None:
    """Refuse a result of a task's function that is no tensor."""
    refuse_other_kind(what, value, Tensor, "a tensor")


def refuse_not_finite(what: str, value: Tensor) -> None:
    """Refuse numbers (B, ..) that are not finite, as no policy can learn from them."""
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        robot = int((~finite).nonzero()[0, 0])
        raise InputError(f"{what}: expected finite numbers, got {value[robot].tolist()} for robot {robot}")


def seeds_of_robots(seed: Any, batch: int) -> list[int]:
    """Return a seed for each robot: seed + k from a whole number, or those of a list of `batch`; refuse all else."""
    seeds = seed.tolist() if isinstance(seed, np.ndarray | Tensor) else seed
    listed = list(seeds) if isinstance(seeds, Sequence) else [seeds]
    if isinstance(seeds, Sequence) and len(listed) != batch:
        raise InputError(f"seed: expected one for each of {batch} robots, got {len(listed)}")
    whole = all(isinstance(k, Integral) and not isinstance(k, bool) for k in listed)
    if not (whole and all(-SEEDS <= int(k) < SEEDS - batch for k in listed)):
        raise InputError(f"seed: expected a whole number of 64 bits, or one for each robot, got {seed!r}")
    return [int(k) for k in listed] if isinstance(seeds, Sequence) else [int(listed[0]) + k for k in range(batch)]


def refuse_other_than_rows(what: str, given: object, batch: int, dtype: torch.dtype) -> None:
    """Refuse anything but a tensor (B,) of a dtype, with one entry for each robot."""
    expected = f"{what}: expected ({batch},) {str(dtype).removeprefix('torch.')}"
    if not isinstance(given, Tensor):
        raise InputError(f"{expected}, got {type(given).__name__}; torch.as_tensor makes one of it")
    if given.shape != (batch,) or given.dtype != dtype:
        raise InputError(f"{expected}, got {tuple(given.shape)} {str(given.dtype).removeprefix('torch.')}")

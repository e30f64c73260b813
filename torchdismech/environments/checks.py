"""What environments refuse of what they are given, and of what a task's functions return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_kind

__all__ = [
    "in_dtype",
    "noted_in_errors",
    "refuse_not_finite",
    "refuse_other_than_mask",
    "refuse_other_than_tensor",
    "refuse_other_than_whole_numbers",
    "seeds_of_robots",
]

SEEDS = 2**63  # seeds are below it, as numbers of int64 are


@contextmanager
def noted_in_errors(what: str) -> Iterator[None]:
    """Note of an error in a task's own function which of them it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This happened in {what} of the environment's task.")
        raise


def in_dtype(what: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers (B, ..) in a dtype of those who learn; refuse those that it does not have."""
    found = numbers.to(dtype)
    if dtype != numbers.dtype:
        odd = ~torch.isfinite(found)
        if bool(odd.any()):
            number = float(numbers[odd][0])
            raise InputError(f"{what}: expected numbers that {dtype} has, got {number:g}; scale it in the task")
    return found


def refuse_other_than_tensor(what: str, value: object) -> None:
    """Refuse what a task's function returned, if it is no tensor."""
    refuse_other_kind(what, value, Tensor, "a tensor")


def refuse_not_finite(what: str, value: Tensor) -> None:
    """Refuse what no policy can learn from: numbers (B, ..) that are not finite."""
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        robot = int((~finite).nonzero()[0, 0])
        raise InputError(f"{what}: expected finite numbers, got {value[robot].tolist()} for robot {robot}")


def seeds_of_robots(seed: Any, batch: int) -> list[int]:
    """Return a seed for each robot; refuse what is neither a whole number nor one for each."""
    given = seed.tolist() if isinstance(seed, np.ndarray | Tensor) else seed
    each = list(given) if isinstance(given, Sequence) else [given]
    if isinstance(given, Sequence) and len(each) != batch:
        raise InputError(f"seed: expected one for each of {batch} robots, got {len(each)}")
    if not all(isinstance(k, Integral) and -SEEDS <= int(k) < SEEDS - batch for k in each):
        raise InputError(f"seed: expected a whole number of 64 bits, or one for each robot, got {seed!r}")
    return [int(k) for k in each] if isinstance(given, Sequence) else [int(each[0]) + k for k in range(batch)]


def refuse_other_than_mask(what: str, robots: Tensor, batch: int) -> None:
    """Refuse what does not say of each robot yes or no."""
    if not isinstance(robots, Tensor):
        raise InputError(
            f"{what}: expected ({batch},) bool, got {type(robots).__name__}; torch.as_tensor makes one of it"
        )
    if robots.shape != (batch,) or robots.dtype != torch.bool:
        dtype = str(robots.dtype).removeprefix("torch.")
        raise InputError(f"{what}: expected ({batch},) bool, got {tuple(robots.shape)} {dtype}")


def refuse_other_than_whole_numbers(what: str, numbers: Tensor, batch: int) -> None:
    """Refuse what is no whole number of each robot."""
    refuse_other_kind(what, numbers, Tensor, f"a tensor ({batch},) of int64, one number for each robot")
    if numbers.shape != (batch,) or numbers.dtype != torch.int64:
        dtype = str(numbers.dtype).removeprefix("torch.")
        raise InputError(
            f"{what}: expected ({batch},) int64, one number for each of the environment's robots, got "
            f"{tuple(numbers.shape)} {dtype}"
        )

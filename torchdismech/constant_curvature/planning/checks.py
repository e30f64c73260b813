"""Checks of numbers given to planning: others than finite numbers in their range are refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, real_number

__all__ = ["finite_numbers", "size"]


def size(value: object, where: str, above_zero: bool = False) -> float:
    """Return a finite number of at least 0, or above 0; refuse others."""
    expected = f"a finite number {'above 0' if above_zero else 'from 0 up'}"
    number = real_number(value, where, expected)
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0):
        raise InputError(f"{where}: expected {expected}, got {value!r:.80}")
    return number


def finite_numbers(values: object, where: str, expected: str, count: int | None = None) -> tuple[float, ...]:
    """Return the finite numbers of a list, array or tensor (count,), of any length for None; refuse others."""
    refusal = f"{where}: expected {expected}, got {values!r:.80}"
    listed = values.detach().tolist() if isinstance(values, Tensor) else values
    listed = listed.tolist() if isinstance(listed, np.ndarray) else listed
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InputError(refusal)
    numbers = tuple(real_number(number, where, expected) for number in listed)
    if not all(map(math.isfinite, numbers)) or (count is not None and len(numbers) != count):
        raise InputError(refusal)
    return numbers

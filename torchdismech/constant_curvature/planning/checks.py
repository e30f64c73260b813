"""Checks of numbers given to planning: others than finite numbers in their range are refused by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, finite_number

__all__ = ["finite_numbers"]


def finite_numbers(values: object, where: str, expected: str, count: int | None = None) -> tuple[float, ...]:
    """Return the finite numbers of a list, array or tensor (count,), of any length for None; refuse others."""
    refusal = f"{where}: expected {expected}, got {values!r:.80}"
    listed = values.detach().tolist() if isinstance(values, Tensor) else values
    listed = listed.tolist() if isinstance(listed, np.ndarray) else listed
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InputError(refusal)
    numbers = tuple(finite_number(number, where, expected) for number in listed)
    if count is not None and len(numbers) != count:
        raise InputError(refusal)
    return numbers

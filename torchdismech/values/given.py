"""Numbers as users pass them, made into tensors, and what counts as a number in a text file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, requires_gradients, shown

__all__ = ["NUMBER", "Given", "numbers", "tensor_of", "untrained"]

Row = float | Tensor | np.ndarray | Sequence[float | Sequence[float]]

Given = float | np.number | Tensor | np.ndarray | Sequence[Row]  # numbers as users pass them
# A number in a text file. Python's `float` reads more, such as "1_0", which is a typing error in a table of numbers.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf(inity)?)", re.IGNORECASE | re.ASCII)


def tensor_of(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return the value as a tensor, of the dtype if given; a tensor stays on its device, all else goes to the CPU.

    To the CPU whatever torch's default device is: models are built there. Gradients pass through, also those by tensors
    in lists, of which torch would take the numbers alone.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    if requires_gradients(value):
        return torch.stack([tensor_of(part, dtype).cpu() for part in value])
    return torch.as_tensor(value, dtype=dtype, device="cpu")


def untrained(constant: Tensor) -> nn.Parameter:
    """Return a constant as a parameter, which requires gradients only once somebody trains it."""
    return nn.Parameter(constant, requires_grad=False)


def numbers(value: Any, where: str) -> Tensor:
    """Return numbers as a tensor that gradients pass through: a tensor of floats as it is, all else in float64.

    Whole numbers are converted, as compiled loops of a model would misread their bits as floats. Everything but numbers
    and lists of numbers is refused: text, truths (True is no length of one metre), complex numbers.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    refusal = f"{where}: expected numbers, got {shown(value)}"
    if _is_unreal(value):
        raise InputError(refusal)
    try:
        return tensor_of(value, torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(refusal) from error


def _is_unreal(value: object) -> bool:
    """Return whether a value is, or contains, truths or complex numbers, which torch would convert to real numbers."""
    if isinstance(value, list | tuple):
        return any(map(_is_unreal, value))
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return isinstance(value, bool | complex) or dtype.startswith(("bool", "complex"))

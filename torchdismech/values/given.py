"""Numbers as users give them, made into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, shown

__all__ = ["Given", "numbers", "tensor_of"]

Row = float | Tensor | np.ndarray | Sequence[float | Sequence[float]]

Given = float | np.number | Tensor | np.ndarray | Sequence[Row]  # numbers as users give them


def tensor_of(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor as it is, where it is, in a dtype if one is given; other numbers become a tensor on the CPU.

    On the CPU whatever torch's default device is: models are built there.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device="cpu")


def numbers(value: Any, where: str) -> Tensor:
    """Return numbers as a tensor, which gradients pass: one of floats as it is, all others in float64.

    Whole numbers would stay whole in a model, whose compiled loops take their bits for those of floats. Refused is what
    is no number and no list of numbers: text, truths (True is no length of one metre), complex numbers.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    refusal = f"{where}: expected numbers, got {shown(value)}"
    if _is_unreal(value):
        raise InputError(refusal)
    try:
        return tensor_of(value, torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(refusal) from error


def _is_unreal(value: object) -> bool:
    """Return whether something is, or lists, truths or complex numbers, which torch would make real numbers of."""
    if isinstance(value, list | tuple):
        return any(map(_is_unreal, value))
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return isinstance(value, bool | complex) or dtype.startswith(("bool", "complex"))

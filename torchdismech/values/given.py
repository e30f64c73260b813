"""Numbers as users give them, made into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, shown

__all__ = ["Given", "numbers", "real", "tensor_of"]

Row = float | Tensor | np.ndarray | Sequence[float | Sequence[float]]

Given = float | np.number | Tensor | np.ndarray | Sequence[Row]  # numbers as users give them


def tensor_of(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor as it is, where it is, in a dtype if one is given; other numbers become a tensor on the CPU.

    On the CPU whatever torch's default device is: models are built there.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device="cpu")


def real(value: Any) -> Tensor:
    """Return a number as a tensor: one of floats as it is, all others in float64.

    Whole numbers would stay whole in a model, whose compiled loops take their bits for those of floats.

    Raises
    ------
    TypeError, ValueError, RuntimeError : the value is no number and no list of numbers, or complex (`InputError`).
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    if "complex" in str(getattr(value, "dtype", "")):  # torch would leave out the imaginary part
        raise InputError(f"expected real numbers, got {value.dtype}")
    return tensor_of(value, torch.float64)


def numbers(value: Any, where: str) -> Tensor:
    """Return numbers as a tensor, as `real` does, which gradients pass; refuse what is none in words."""
    try:
        return real(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: expected numbers, got {shown(value)}") from error

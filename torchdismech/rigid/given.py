"""Constants of chains as users give them, made into tensors that broadcast against robots and elements."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError, any_of
from torchdismech.robot.materials import positive
from torchdismech.values import Given, numbers

__all__ = ["values_of", "vector_of"]


def values_of(value: Given, name: str, count: int, above_zero: bool = False, from_zero: bool = False) -> Tensor:
    """Return the value as a tensor that broadcasts against (B, count); refuse other shapes and signs."""
    tensor = numbers(value, name)
    shape = tuple(tensor.shape)
    if not (shape in ((), (count,)) or (len(shape) == 2 and shape[1] in (1, count))):
        expected = any_of("a number", f"({count},)", "(B, 1)", f"(B, {count})")
        raise InputError(f"{name}: expected {expected}, got shape {shape}")
    if above_zero:
        positive(tensor.detach(), name)
    elif not bool(torch.isfinite(tensor).all()) or (from_zero and bool((tensor < 0).any())):
        kind = "finite numbers from 0 up" if from_zero else "finite numbers"
        raise InputError(f"{name}: expected {kind}, got {value}")
    return tensor


def vector_of(value: Given, name: str) -> Tensor:
    """Return a vector, (3,) or (B, 3); refuse a number, which would broadcast to all three axes."""
    shape = tuple(numbers(value, name).shape)
    if shape[-1:] != (3,) or len(shape) > 2:
        raise InputError(f"{name}: expected a vector, (3,) or (B, 3), got shape {shape}")
    return values_of(value, name, 3)

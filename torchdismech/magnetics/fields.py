"""Magnetic fields that vary in space, linear or learned, and `field_of`, which makes a `Field` of a user's argument."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, warn
from torchdismech.forces.base import number, vector
from torchdismech.magnetics.field import Field, FieldDerivatives
from torchdismech.magnetics.uniform import Constant, Timed
from torchdismech.values import Given, untrained

__all__ = ["Gradient", "Learned", "field_of"]

SOURCES = 1e-6  # a divergence or curl below this part of the gradient's largest entry is rounding in float32


class Gradient(Field):
    """A field that is linear in space: B = value + gradient (x - center).

    Between magnets the divergence of a field is zero, and so is its curl: then the gradient is a symmetric matrix whose
    diagonal adds up to zero. Any other gradient is used unchanged, with a warning when the field is made.

    Parameters
    ----------
    value : field at the center, (3,) or (B, 3) [T].
    gradient : dB_i/dx_j, (3, 3) or (B, 3, 3) [T/m].
    center : (3,) or (B, 3) [m].
    """

    closed_form = True
    per_robot = ("value", "gradient", "center")

    def __init__(self, value: Given, gradient: Given, center: Given = (0.0, 0.0, 0.0)):
        super().__init__()
        matrix = number(gradient, "Gradient.gradient")
        if matrix.shape[-2:] != (3, 3) or matrix.dim() > 3:
            raise InputError(f"Gradient.gradient: expected shape (3, 3) or (B, 3, 3), got {tuple(matrix.shape)}")
        _warn_of_sources(matrix.detach().reshape(-1, 3, 3))
        self.value = untrained(vector(value, "Gradient.value"))
        self.gradient = untrained(matrix.reshape(-1, 3, 3))
        self.center = untrained(vector(center, "Gradient.center"))

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3)."""
        return self.value.unsqueeze(-2) + (position - self.center.unsqueeze(-2)) @ self.gradient.mT

    def derivatives(self, position: Tensor, time: Tensor, moment: Tensor | None = None) -> FieldDerivatives:
        """Return the field, its gradient, and a curvature of zeros (None without a moment)."""
        field = self(position, time)
        gradient = self.gradient.unsqueeze(-3).expand(*position.shape, 3)
        return field, gradient, None if moment is None else torch.zeros_like(gradient)


def _warn_of_sources(gradient: Tensor) -> None:
    """Warn of gradients (B, 3, 3) with a trace or an antisymmetric part: no static field has them without currents."""
    size = SOURCES * gradient.abs().amax((1, 2))
    trace = gradient.diagonal(dim1=1, dim2=2).sum(1)
    odd = 0.5 * (gradient - gradient.mT)
    sources = []
    if bool((trace.abs() > size).any()):
        sources.append(f"a trace of {trace[trace.abs().argmax()].item():.3g} T/m, a divergence")
    if bool((odd.abs().amax((1, 2)) > size).any()):
        sources.append(f"an antisymmetric part of up to {odd.abs().max().item():.3g} T/m, a curl")
    if sources:
        warn(
            f"Gradient.gradient: has {' and '.join(sources)}; a static field where no current flows has neither: "
            "expected a symmetric matrix dB_i/dx_j whose diagonal adds up to zero. Take (G + G^T) / 2 less a third of "
            "its trace on the diagonal, or a Field of your own if that is meant",
            UserWarning,
        )


class Learned(Field):
    """A field computed by an `nn.Module`: `module(position (B, E, 3), time (B,))` returns (B, E, 3) [T]."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3)."""
        try:
            field = self.module(position, time)
        except TypeError as error:
            raise InputError(
                f"magnetic field: {type(self.module).__name__} raised TypeError, called with positions (B, E, 3) and "
                f"times (B,), which its forward(position, time) has to take: {error}"
            ) from error
        if field.shape != position.shape:
            raise InputError(
                f"magnetic field: {type(self.module).__name__} has to return (B, E, 3) = {tuple(position.shape)}, got "
                f"{tuple(field.shape)}"
            )
        return field


def field_of(value) -> Field:
    """Return the `Field` for a user's argument: a `Field`, a module B(position, time), a function of time, a vector."""
    if isinstance(value, type):
        raise InputError(
            f"magnetic field: expected a field, a function of time or a vector, got the class {value.__name__} itself; "
            f"make one of it, {value.__name__}(...)"
        )
    if isinstance(value, Field):
        return value
    if isinstance(value, nn.Module):
        return Learned(value)
    return Timed(value) if callable(value) else Constant(value)

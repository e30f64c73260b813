"""Base of chains in the plane and in space: their constants, and running sums over bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

__all__ = ["Bodies"]


@dataclass(frozen=True)
class Bodies:
    """Constants of chains of K bodies, each (K, 1, B or 1) but for the inertia and the last three.

    Attributes
    ----------
    length : from a body's joints to the next ones, along its x axis [m].
    mass, centre : mass [kg], and distance of the centre of mass from the body's own joints [m].
    inertia : about the centre [kg m^2]: in the plane (K, 1, B or 1), in space (K, 3, 1, B or 1) about the body's axes.
    gravity, base : (2, 1, B or 1) along x and z, or (3, 1, B or 1) [m/s^2], where the first joint is [m].
    sums : (J, J) ones on the diagonal and below: running sums are products with it, faster than `cumsum` for short
        chains.
    """

    length: Tensor
    mass: Tensor
    centre: Tensor
    inertia: Tensor
    gravity: Tensor
    base: Tensor
    sums: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the constants, in the order of the fields."""
        return tuple(vars(self).values())

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Self:
        """Return a copy with other constants, in the order of `tensors`."""
        return type(self)(*tensors)

    def upto(self, x: Tensor) -> Tensor:
        """Return sums (K, ..) over a joint or body and all before it."""
        return (self.sums[: len(x), : len(x)] @ x.reshape(len(x), -1)).view(x.shape)

    def beyond(self, x: Tensor) -> Tensor:
        """Return sums (K, ..) over a body and all beyond it."""
        return (self.sums[: len(x), : len(x)].t() @ x.reshape(len(x), -1)).view(x.shape)

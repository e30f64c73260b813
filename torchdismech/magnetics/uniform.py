"""Magnetic fields that are the same everywhere: constant, rotating, by a table or by a function of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.forces.base import number, scalar, vector
from torchdismech.forces.over_time import between, of_times, rising
from torchdismech.magnetics.field import Field
from torchdismech.values import Given, tensor_of, untrained

__all__ = ["Constant", "Rotating", "Table", "Timed"]


RIGHT = 1e-6  # largest cosine of the angle between directions that count as at right angles, also in float32


class Uniform(Field):
    """Base of the fields that are the same everywhere; a subclass writes `at`."""

    uniform = True
    closed_form = True


class Constant(Uniform):
    """The field `value`, (3,) or (B, 3) [T], at all times."""

    per_robot = ("value",)

    def __init__(self, value: Given):
        super().__init__()
        self.value = untrained(vector(value, "field"))

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        return self.value.expand(len(time), 3)


class Rotating(Uniform):
    """A field of constant size that turns in the plane of two directions.

        B = amplitude (first cos(2 pi frequency t + phase) + second sin(2 pi frequency t + phase)).

    Parameters
    ----------
    amplitude : () or (B, 1) [T].
    frequency : () or (B, 1) [1/s]; below zero it turns from the second direction to the first.
    first, second : directions (3,) at right angles, of any length. In the plane of planar robots x and z.
    phase : () or (B, 1) [rad].
    """

    per_robot = ("amplitude", "frequency", "phase")
    amplitude: Tensor
    frequency: Tensor
    phase: Tensor
    first: Tensor
    second: Tensor

    def __init__(
        self,
        amplitude: Given,
        frequency: Given,
        first: Given = (1.0, 0.0, 0.0),
        second: Given = (0.0, 0.0, 1.0),
        phase: Given = 0.0,
    ):
        super().__init__()
        for name, value in (("amplitude", amplitude), ("frequency", frequency), ("phase", phase)):
            setattr(self, name, untrained(scalar(value, f"Rotating.{name}")))
        for name, direction in (("first", first), ("second", second)):
            axis = number(direction, f"Rotating.{name}")
            if axis.shape != (3,) or not bool(axis.any()):
                raise InputError(f"Rotating.{name}: expected a direction (3,) that is not zero, got {direction}")
            self.register_buffer(name, axis / torch.linalg.vector_norm(axis))
        if abs(float(self.first.to(self.second) @ self.second)) > RIGHT:
            raise InputError(f"Rotating: first and second have to be at right angles, got {first} and {second}")

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        angle = 2 * math.pi * self.frequency * time.unsqueeze(1) + self.phase
        return self.amplitude * (torch.cos(angle) * self.first + torch.sin(angle) * self.second)


class Table(Uniform):
    """A field that is interpolated linearly in time between rows, and held before the first and after the last.

    Parameters
    ----------
    times : (T,) rising [s].
    values : (T, 3), or (T, B, 3) if they differ between robots [T]; stored as the constant `rows`.
    """

    per_robot = ("rows",)
    robot_dimension = 1
    times: Tensor

    def __init__(self, times: Given, values: Given):
        super().__init__()
        self.register_buffer("times", rising(times, "Table.times"))
        self.rows = untrained(of_times(values, len(self.times), "Table.values"))

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        return between(self.times, self.rows, time)


class Timed(Uniform):
    """A field computed by a function: `function(time (B,))` returns (3,) or (B, 3) [T], for any batch size B.

    The function is also called with batch sizes other than the model's (part of a batch, say), so for fields that
    differ from robot to robot take a `Table`.

    It is evaluated once before each step, and the step gets its value as data: so steps can be recorded, and gradients
    reach all tensors that the function uses.
    """

    runs_users_code = True

    def __init__(self, function: Callable[[Tensor], Tensor | Sequence[float]]):
        super().__init__()
        self.function = function

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        returned = self.function(time)
        try:
            field = tensor_of(returned, time.dtype).to(time.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"magnetic field: the function of time has to return (3,) or (B, 3) = ({len(time)}, 3) numbers, got "
                f"{returned!r:.80} ({error})"
            ) from error
        if field.shape not in ((3,), (len(time), 3)):
            raise InputError(
                f"magnetic field: the function of time has to return (3,) or (B, 3) = ({len(time)}, 3), got "
                f"{tuple(field.shape)}"
            )
        return field.expand(len(time), 3)

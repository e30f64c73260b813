"""Record: what a function did to its tensors, as a list of elementwise operations; loops and kernels are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Input", "Operation", "Record", "RowChoice"]

Operation = tuple  # its name, and what it is of: numbers of values


class RowChoice(NamedTuple):
    """Where each spring finds which row it reads of a matrix: in a tensor of whole numbers.

    Attributes
    ----------
    place : of that tensor among those that the function is given.
    chosen : (dimension, index) of those of its dimensions in which it is held at an index.
    spring : its dimension that goes along with springs.
    """

    place: int
    chosen: tuple[tuple[int, int], ...]
    spring: int


@dataclass(frozen=True)
class Input:
    """The numbers of a tensor that springs read, as a view of it.

    Attributes
    ----------
    place : of the tensor among those that the function is given.
    chosen : (dimension, index) of those in which it is held at an index.
    spring, robot : the dimensions that go along with springs and robots; None where all share the numbers.
    rows : which row each spring reads along its dimension; None: that of its own number.
    """

    place: int
    chosen: tuple[tuple[int, int], ...]
    spring: int | None
    robot: int | None
    rows: RowChoice | None = None


@dataclass
class Record:
    """What a function did, each different operation once: value k is what `operations[k]` gives.

    Attributes
    ----------
    inputs : what springs read, in order, and the numbers of these values.
    numbers : of the values, by their operations.
    """

    operations: list[Operation] = field(default_factory=list)
    inputs: dict[Input, int] = field(default_factory=dict)
    numbers: dict[Operation, int] = field(default_factory=dict)

    def copy(self) -> Record:
        """Return a record that can grow by itself."""
        return Record([*self.operations], {**self.inputs}, {**self.numbers})

    @property
    def places(self) -> list[int]:
        """The tensors that are read, by their places among those that the function is given."""
        return sorted({i.place for i in self.inputs} | {i.rows[0] for i in self.inputs if i.rows is not None})

    def value(self, *operation: Any) -> int:
        """Return the number of the value that an operation gives."""
        number = self.numbers.get(operation)
        if number is None:
            number = self.numbers[operation] = len(self.operations)
            self.operations.append(operation)
        return number

    def number(self, value: float) -> int:
        """Return the number of a constant."""
        return self.value("number", float(value).hex())

    def read(self, given: Input) -> int:
        """Return the number of the value that springs read."""
        number = self.inputs.get(given)
        if number is None:
            number = self.inputs[given] = self.value("input", len(self.inputs))
        return number

"""Record: the elementwise operations of a traced function, from which loops and kernels are generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Input", "Operation", "Record", "RowChoice"]

Operation = tuple  # (name, *operands): operands are numbers of values in the record


class RowChoice(NamedTuple):
    """View (S,) of a tensor of integers that says which row of a matrix each spring reads.

    Attributes
    ----------
    place : index of the tensor of integers among the arguments of the function.
    chosen : (dimension, index) for each dimension of it that is fixed at an index.
    spring : dimension that runs along springs.
    """

    place: int
    chosen: tuple[tuple[int, int], ...]
    spring: int


@dataclass(frozen=True)
class Input:
    """A view of an argument that the function reads as a value, one number for each spring and robot.

    Attributes
    ----------
    place : index of the tensor among the arguments of the function.
    chosen : (dimension, index) for each dimension that is fixed at an index.
    spring, robot : dimensions that run along springs and robots; None where all springs, or robots, share the numbers.
    rows : which index each spring reads along dimension `spring`; None: spring k reads index k.
    """

    place: int
    chosen: tuple[tuple[int, int], ...]
    spring: int | None
    robot: int | None
    rows: RowChoice | None = None

    @property
    def along_springs(self) -> tuple[int, int | None]:
        """The tensor that has something for each spring (the choice of rows, if there is one), and its dimension."""
        return (self.place, self.spring) if self.rows is None else (self.rows.place, self.rows.spring)


@dataclass
class Record:
    """The operations of a function, each different one once. Value number k is the result of `operations[k]`.

    Attributes
    ----------
    operations : each refers to earlier values by their numbers.
    inputs : number of the value of each input that is read, in order.
    number_of : the number of the value of each operation.
    taken_apart : (argument, dimension) of those along which the function takes components, whose sizes it depends on.
    """

    operations: list[Operation] = field(default_factory=list)
    inputs: dict[Input, int] = field(default_factory=dict)
    number_of: dict[Operation, int] = field(default_factory=dict)
    taken_apart: set[tuple[int, int]] = field(default_factory=set)

    def copy(self) -> Record:
        """Return a copy that can grow without changing this record."""
        return Record([*self.operations], {**self.inputs}, {**self.number_of})

    @property
    def places(self) -> list[int]:
        """Sorted indices, among the arguments of the function, of the tensors that are read."""
        return sorted({i.place for i in self.inputs} | {i.rows[0] for i in self.inputs if i.rows is not None})

    def value(self, *operation: Any) -> int:
        """Return the number of the value of an operation, which is added if it is new."""
        number = self.number_of.get(operation)
        if number is None:
            number = self.number_of[operation] = len(self.operations)
            self.operations.append(operation)
        return number

    def number(self, value: float) -> int:
        """Return the number of the value that is a constant."""
        return self.value("number", float(value).hex())

    def read(self, input_view: Input) -> int:
        """Return the number of the value of an input."""
        number = self.inputs.get(input_view)
        if number is None:
            number = self.inputs[input_view] = self.value("input", len(self.inputs))
        return number

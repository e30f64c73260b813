"""A function of tensors that is elementwise over springs and robots, as compiled code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdismech.fused.record import Record

__all__ = ["Program", "ProgramCall", "programs", "values_now"]

programs: list[Program] = []  # of this process, by their numbers


class Program(ABC):
    """Compiled code that finds two lists of values for all springs and robots.

    Autograd can differentiate the first list, such as forces, once; the second, such as entries of a matrix, it cannot.

    Parameters
    ----------
    record : what it does.
    first : the values in its first list, by their numbers in the record.
    second : how many values there are in the second one.
    dtype : of its numbers.

    Attributes
    ----------
    device : kind of device whose tensors it takes.
    places : the tensors that are read, by their places among those that the function is given.
    numbers : those of them whose numbers count, of the program's dtype; others are indices.
    counts : number of values in each list.
    lanes : from so many robots on, tensors are read the faster the nearer the robots in them stand.
    number : of the program, in this process.
    """

    device: ClassVar[str]
    lanes: int

    def __init__(self, record: Record, first: Sequence[int], second: int, dtype: torch.dtype):
        self.record, self.first, self.dtype = record, first, dtype
        self.counts = (len(first), second)
        self.places, self.numbers = record.places, sorted({i.place for i in record.inputs})
        self.number = len(programs)
        programs.append(self)

    def read_among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that are read, among those that the function is given."""
        return [tensors[place] for place in self.places]

    def values(self, springs: int, robots: int, read: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the lists (values x springs, B); `read` as for `write`."""
        first, second = (_empty(count * springs, robots, self, read) for count in self.counts)
        self.write(springs, read, first, second)
        return first, second

    @abstractmethod
    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Write the lists to `first` and `second` (values x springs, B), contiguous.

        Parameters
        ----------
        read : the tensors at `places`.
        """


class ProgramCall(NamedTuple):
    """A program with what it is given.

    Attributes
    ----------
    springs : their number.
    read : the tensors at the program's `places`.
    """

    program: Program
    springs: int
    read: list[Tensor]


def _empty(rows: int, robots: int, program: Program, read: Sequence[Tensor]) -> Tensor:
    """Return a tensor that a program is to write, where the tensors are that it reads."""
    return torch.empty(rows, robots, dtype=program.dtype, device=read[0].device if read else program.device)


def values_now(calls: Sequence[ProgramCall], robots: int) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Parameters
    ----------
    robots : B.
    """
    one, _, of_one = calls[0]
    sizes = [[program.counts[k] * springs for program, springs, _ in calls] for k in (0, 1)]
    found = [_empty(sum(rows), robots, one, of_one) for rows in sizes]
    parts = [[whole] if len(rows) == 1 else whole.split(rows) for whole, rows in zip(found, sizes, strict=True)]
    for (program, springs, read), first, second in zip(calls, *parts, strict=True):
        program.write(springs, read, first, second)
    return found[0], found[1]

"""Program: compiled code of an elementwise function, the base class of `Loop` and `Kernel`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdismech.fused.record import Record

__all__ = ["Program", "ProgramCall", "programs", "values_now"]

programs: list[Program] = []  # all programs of this process, by their `number`


class Program(ABC):
    """Compiled code that computes two lists of values for all springs and robots.

    Autograd can differentiate the first list, such as forces, once; the second, such as entries of a matrix, it cannot.

    Parameters
    ----------
    record : the operations of the function.
    first : the values in the first list, by their numbers in the record.
    second : number of values in the second list.
    dtype : of the values.

    Attributes
    ----------
    device : kind of device whose tensors it takes.
    places : indices of the tensors that are read, among the arguments of the function.
    value_places : those of them that are read as values, of the program's dtype; the others are indices of rows.
    counts : number of values in each list.
    lanes : number of robots from which on tensors should have stride 1 along robots to be read fast.
    number : index in `programs`.
    """

    device: ClassVar[str]
    lanes: int

    def __init__(self, record: Record, first: Sequence[int], second: int, dtype: torch.dtype):
        self.record, self.first, self.dtype = record, first, dtype
        self.counts = (len(first), second)
        self.places, self.value_places = record.places, sorted({i.place for i in record.inputs})
        self.number = len(programs)
        programs.append(self)

    def read_among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return those arguments of the function that the program reads."""
        return [tensors[place] for place in self.places]

    def values(self, springs: int, robots: int, read: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the two lists, (values x springs, B) each; `read` as for `write`."""
        first, second = (_empty(count * springs, robots, self, read) for count in self.counts)
        self.write(springs, read, first, second)
        return first, second

    @abstractmethod
    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Compute the lists into `first` and `second` (values x springs, B), which have to be contiguous.

        Parameters
        ----------
        read : the tensors at `places`.
        """


class ProgramCall(NamedTuple):
    """A program with its arguments.

    Attributes
    ----------
    springs : number of springs.
    read : the tensors at the program's `places`.
    """

    program: Program
    springs: int
    read: list[Tensor]


def _empty(rows: int, robots: int, program: Program, read: Sequence[Tensor]) -> Tensor:
    """Return an uninitialised tensor for results of a program, on the device of the tensors that it reads."""
    return torch.empty(rows, robots, dtype=program.dtype, device=read[0].device if read else program.device)


def values_now(calls: Sequence[ProgramCall], robots: int) -> tuple[Tensor, Tensor]:
    """Return the first lists of some programs, concatenated (rows, B), and their second lists likewise; no autograd.

    Parameters
    ----------
    robots : B.
    """
    first_program, _, first_read = calls[0]
    sizes = [[program.counts[k] * springs for program, springs, _ in calls] for k in (0, 1)]
    results = [_empty(sum(rows), robots, first_program, first_read) for rows in sizes]
    parts_of_results = [
        [whole] if len(rows) == 1 else whole.split(rows) for whole, rows in zip(results, sizes, strict=True)
    ]
    for (program, springs, read), first, second in zip(calls, *parts_of_results, strict=True):
        program.write(springs, read, first, second)
    return results[0], results[1]

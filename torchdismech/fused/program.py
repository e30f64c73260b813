"""A function of tensors that is elementwise over springs and robots, as compiled code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from torchdismech.fused.symbols import Record
from torchdismech.native import taping

__all__ = ["Program", "values_by_operator", "values_now", "watched"]

_programs: list[Program] = []  # of this process, by the numbers that the operator below takes


class Program(ABC):
    """Compiled code that finds two lists of values for all springs and robots.

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
        self.number = len(_programs)
        _programs.append(self)

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


def _empty(rows: int, robots: int, program: Program, read: Sequence[Tensor]) -> Tensor:
    """Return a tensor that a program is to write, where the tensors are that it reads."""
    return torch.empty(rows, robots, dtype=program.dtype, device=read[0].device if read else program.device)


def values_now(programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Parameters
    ----------
    programs : with the number of springs of each and the tensors that it reads.
    robots : B.
    """
    one, _, of_one = programs[0]
    sizes = [[program.counts[k] * springs for program, springs, _ in programs] for k in (0, 1)]
    found = [_empty(sum(rows), robots, one, of_one) for rows in sizes]
    parts = [[whole] if len(rows) == 1 else whole.split(rows) for whole, rows in zip(found, sizes, strict=True)]
    for (program, springs, read), first, second in zip(programs, *parts, strict=True):
        program.write(springs, read, first, second)
    return found[0], found[1]


def values_by_operator(programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int) -> tuple[Tensor, Tensor]:
    """Return what `values_now` does, by an operator of torch, for who is watching what torch does."""
    rows, numbers, springs, reads, read = [0, 0], [], [], [], []
    for program, count, tensors in programs:
        numbers.append(program.number)
        springs.append(count)
        reads.append(len(tensors))
        read += tensors
        rows = [before + values * count for before, values in zip(rows, program.counts, strict=True)]
    return torch.ops.torchdismech.fused(numbers, springs, reads, read, rows[0], rows[1], robots)


def watched() -> bool:
    """Return whether someone records what torch does, so that operators have to be called as such; it takes longer.

    Tapes record compiled code as it is.
    """
    return torch.compiler.is_compiling() or (torch._C._len_torch_dispatch_stack() > 0 and not taping())


def _values(
    numbers: list[int], springs: list[int], reads: list[int], read: list[Tensor], first: int, second: int, robots: int
) -> tuple[Tensor, Tensor]:
    left = iter(read)
    given = zip(numbers, springs, reads, strict=True)
    return values_now([(_programs[k], count, list(islice(left, tensors))) for k, count, tensors in given], robots)


# An operator of torch, so that recorded and compiled graphs may hold it.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define(
    "fused(int[] programs, int[] springs, int[] reads, Tensor[] read, int first, int second, int robots)"
    " -> (Tensor, Tensor)"
)
_OPERATORS.impl("fused", _values, "CPU")
_OPERATORS.impl("fused", _values, "CUDA")


def _like_values(numbers, springs, reads, read, first, second, robots):
    dtype = _programs[numbers[0]].dtype
    return read[0].new_empty(first, robots, dtype=dtype), read[0].new_empty(second, robots, dtype=dtype)


# `torch.library.register_fake` would look through all modules for its caller, 20 ms for each operator
_OPERATORS.impl("fused", _like_values, "Meta")

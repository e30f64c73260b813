"""A function of tensors that is elementwise over springs and robots, as compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.fused.source import source
from torchdismech.fused.symbols import Leaf, Record, Unfusable
from torchdismech.native import in_threads, made

__all__ = ["Program", "recorded", "values_of"]

OPERATIONS_A_THREAD = 2_000_000  # about 1 ms

_programs: list[Program] = []  # of this process, by the numbers that the operator below takes
_recorded: dict[tuple, Program] = {}  # the same, by what they do: models of one kind share them


class Program:
    """Compiled code that finds two lists of values for all springs and robots.

    Parameters
    ----------
    record : what it does.
    code : does it.
    dtype : of its numbers.

    Attributes
    ----------
    places : the tensors that are read, by their places among those that the function is given.
    counts : number of values in each list.
    number : of the program, in this process.
    """

    def __init__(self, record: Record, counts: tuple[int, int], code: ctypes.CDLL, dtype: torch.dtype):
        self.counts = counts
        self.code, self.dtype, self.operations = code, dtype, len(record.operations)
        numbers = [i.place for i in record.inputs]
        rows = [i.rows for i in record.inputs if i.rows is not None]
        self.places = sorted({*numbers, *rows})
        at = {place: k for k, place in enumerate(self.places)}
        self._plan = [
            (at[i.place], i.chosen, i.spring, i.robot, None if i.rows is None else at[i.rows]) for i in record.inputs
        ]
        number, array = ctypes.c_int64, ctypes.c_void_p
        code.fused.argtypes, code.fused.restype = [number, number, array, array, array, number, number], None
        code.lanes.restype = number
        self._lanes: int = code.lanes()
        self.number = len(_programs)
        _programs.append(self)

    def write(self, springs: int, read: list[Tensor], first: Tensor, second: Tensor) -> None:
        """Write the lists to `first` and `second` (values x springs, B), contiguous.

        Parameters
        ----------
        read : the tensors at `places`.
        """
        robots = first.shape[1]
        size = springs * robots
        if not size:
            return
        parts = springs if robots >= self._lanes else -(-size // self._lanes)
        given = (springs, robots, np.array(self._addresses(read, springs, robots), dtype=np.int64), first, second)
        in_threads(self.code.fused, given, parts, self.operations * size // OPERATIONS_A_THREAD)

    def _addresses(self, read: list[Tensor], springs: int, robots: int) -> list[int]:
        """Return address, strides by spring and robot, the rows' address and their stride of each input."""
        found = [(leaf.data_ptr(), leaf.shape, leaf.stride()) for leaf in read]
        numbers: list[int] = []
        for at, chosen, spring, robot, rows in self._plan:
            address, shape, stride = found[at]
            for dim, index in chosen:
                address += self.dtype.itemsize * stride[dim] * index
            by_spring = by_robot = rows_at = rows_by = 0
            if rows is not None and spring is not None:
                rows_at, (count,), (rows_by,) = found[rows]
                by_spring = stride[spring]
                _check(count, springs, "springs")
            elif spring is not None and shape[spring] != 1:
                by_spring = stride[spring]
                _check(shape[spring], springs, "springs")
            if robot is not None and shape[robot] != 1:
                by_robot = stride[robot]
                _check(shape[robot], robots, "robots")
            numbers += (address, by_spring, by_robot, rows_at, rows_by)
        return numbers


def _check(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise InputError(f"a constant of {found} {what} does not fit {wanted}")


def values_of(programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Parameters
    ----------
    programs : with the number of springs of each and the tensors that it reads.
    robots : B.
    """
    rows, numbers, springs, reads, read = [0, 0], [], [], [], []
    for program, count, tensors in programs:
        numbers.append(program.number)
        springs.append(count)
        reads.append(len(tensors))
        read += tensors
        rows = [before + values * count for before, values in zip(rows, program.counts, strict=True)]
    return torch.ops.torchdismech.fused(numbers, springs, reads, read, rows[0], rows[1], robots)


def _values(
    numbers: list[int], springs: list[int], reads: list[int], read: list[Tensor], first: int, second: int, robots: int
) -> tuple[Tensor, Tensor]:
    like, at, given = _programs[numbers[0]].dtype, [0, 0], 0
    found = torch.empty(first, robots, dtype=like), torch.empty(second, robots, dtype=like)
    for number, count, tensors in zip(numbers, springs, reads, strict=True):
        program = _programs[number]
        sizes = [count * values for values in program.counts]
        parts = [x.narrow(0, start, size) for x, start, size in zip(found, at, sizes, strict=True)]
        program.write(count, read[given : given + tensors], *parts)
        at, given = [start + size for start, size in zip(at, sizes, strict=True)], given + tensors
    return found


# An operator of torch, so that recorded and compiled graphs may hold it.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define(
    "fused(int[] programs, int[] springs, int[] reads, Tensor[] read, int first, int second, int robots)"
    " -> (Tensor, Tensor)"
)
_OPERATORS.impl("fused", _values, "CPU")


def _like_values(numbers, springs, reads, read, first, second, robots):
    dtype = _programs[numbers[0]].dtype
    return read[0].new_empty(first, robots, dtype=dtype), read[0].new_empty(second, robots, dtype=dtype)


torch.library.register_fake("torchdismech::fused", _like_values)


def recorded(
    function: Callable[[list[Leaf]], tuple[Sequence, Sequence]], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> Program:
    """Return the program of a function of leaves with these shapes, which returns two lists of values.

    Only the numbers of dimensions count, and the sizes of those that the function looks into.

    Raises
    ------
    Unfusable : it does something that is not elementwise.
    Unavailable : there is no compiler.
    """
    record = Record()
    try:
        found = function([Leaf(record, place, shape) for place, shape in enumerate(shapes)])
        first, second = ([value._value() for value in values] for values in found)
    except (AttributeError, TypeError, ValueError) as error:  # what symbols cannot do; torch says if it is a mistake
        raise Unfusable(str(error)) from error
    text = source(record, first, second, dtype)
    key = text, tuple(record.inputs)
    if key not in _recorded:
        _recorded[key] = Program(record, (len(first), len(second)), made(text), dtype)
    return _recorded[key]

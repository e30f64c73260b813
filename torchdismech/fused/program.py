"""A function of tensors that is elementwise over springs and robots, as compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.fused.source import source
from torchdismech.fused.symbols import Leaf, Record, Symbol, Unfusable
from torchdismech.native import in_threads, made, taping

__all__ = ["Program", "compiled", "recorded", "values_by_operator", "values_now", "watched"]

OPERATIONS_A_THREAD = 2_000_000  # about 1 ms
LAYOUTS = 256  # of a program's tensors that are kept in mind

_programs: list[Program] = []  # of this process, by the numbers that the operator below takes
_recorded: dict[tuple, Program] = {}  # the same, by what they do: models of one kind share them


class Program:
    """Compiled code that finds two lists of values for all springs and robots.

    Parameters
    ----------
    record : what it does.
    first : the values in its first list, by their numbers in the record.
    second : how many values there are in the second one.
    code : does it.
    dtype : of its numbers.

    Attributes
    ----------
    places : the tensors that are read, by their places among those that the function is given.
    numbers : those of them whose numbers count, of the program's dtype; others are indices.
    counts : number of values in each list.
    lanes : numbers in a vector.
    number : of the program, in this process.
    """

    def __init__(self, record: Record, first: Sequence[int], second: int, code: ctypes.CDLL, dtype: torch.dtype):
        self.record, self.first = record, first
        self.counts = (len(first), second)
        self.code, self.dtype, self.operations = code, dtype, len(record.operations)
        numbers = [i.place for i in record.inputs]
        rows = [i.rows[0] for i in record.inputs if i.rows is not None]
        self.places, self.numbers = sorted({*numbers, *rows}), sorted({*numbers})
        at = {place: k for k, place in enumerate(self.places)}
        self._plan = [
            (at[i.place], i.chosen, i.spring, i.robot, None if i.rows is None else (at[i.rows[0]], *i.rows[1:]))
            for i in record.inputs
        ]
        number, array = ctypes.c_int64, ctypes.c_void_p
        code.fused.argtypes, code.fused.restype = [number, number, array, array, array, number, number], None
        code.lanes.restype = number
        self.lanes: int = code.lanes()
        self._layout = lru_cache(LAYOUTS)(self._inputs)
        self.number = len(_programs)
        _programs.append(self)

    def read_among(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that are read, among those that the function is given."""
        return [tensors[place] for place in self.places]

    def values(self, springs: int, robots: int, read: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the lists (values x springs, B); `read` as for `write`."""
        first, second = (torch.empty(count * springs, robots, dtype=self.dtype) for count in self.counts)
        self.write(springs, read, first, second)
        return first, second

    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Write the lists to `first` and `second` (values x springs, B), contiguous.

        Parameters
        ----------
        read : the tensors at `places`.
        """
        robots = first.shape[1]
        size = springs * robots
        if not size:
            return
        parts = springs if robots >= self.lanes else -(-size // self.lanes)
        threads = self.operations * size // OPERATIONS_A_THREAD
        inputs = self.inputs(springs, robots, read)
        in_threads(self.code.fused, (springs, robots, inputs, first, second), parts, threads, read)

    def inputs(self, springs: int, robots: int, read: Sequence[Tensor]) -> np.ndarray:
        """Return what the code is told of its inputs (K, 5); `read` as for `write`."""
        numbers, pointers = self._layout(springs, robots, tuple([(leaf.shape, leaf.stride()) for leaf in read]))
        return numbers + np.array([*[leaf.data_ptr() for leaf in read], 0])[pointers]

    @property
    def address(self) -> int:
        """Where the code begins, for other compiled code to call it."""
        return ctypes.cast(self.code.fused, ctypes.c_void_p).value or 0

    def _inputs(
        self, springs: int, robots: int, forms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what the code is told of each input (K, 5), but for where tensors begin, and of which that is (K, 5).

        That is its address, its strides by spring and robot, and address and stride of the rows that springs read.

        Parameters
        ----------
        forms : shape and strides of the tensors; one past the last stands for nothing.
        """
        numbers, pointers = [], []
        for at, chosen, spring, robot, rows in self._plan:
            shape, stride = forms[at]
            by_spring = by_robot = rows_from = rows_by = 0
            rows_of = len(forms)
            if rows is not None and spring is not None:
                rows_of, chosen_of, along = rows
                of_shape, of_stride = forms[rows_of]
                rows_from = torch.int64.itemsize * _offset(of_stride, chosen_of)
                rows_by, by_spring = of_stride[along], stride[spring]
                _check(of_shape[along], springs, "springs")
            elif spring is not None and shape[spring] != 1:
                by_spring = stride[spring]
                _check(shape[spring], springs, "springs")
            if robot is not None and shape[robot] != 1:
                by_robot = stride[robot]
                _check(shape[robot], robots, "robots")
            numbers.append((self.dtype.itemsize * _offset(stride, chosen), by_spring, by_robot, rows_from, rows_by))
            pointers.append((at, len(forms), len(forms), rows_of, len(forms)))
        return np.array(numbers, dtype=np.int64).reshape(-1, 5), np.array(pointers, dtype=np.int64).reshape(-1, 5)


def _offset(stride: tuple[int, ...], chosen: tuple[tuple[int, int], ...]) -> int:
    """Return how many numbers from a tensor's first one a view begins."""
    return sum(stride[dim] * index for dim, index in chosen)


def _check(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise InputError(f"a constant of {found} {what} does not fit {wanted}")


def values_now(programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Parameters
    ----------
    programs : with the number of springs of each and the tensors that it reads.
    robots : B.
    """
    dtype = programs[0][0].dtype
    sizes = [[program.counts[k] * springs for program, springs, _ in programs] for k in (0, 1)]
    found = [torch.empty(sum(rows), robots, dtype=dtype) for rows in sizes]
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


def _like_values(numbers, springs, reads, read, first, second, robots):
    dtype = _programs[numbers[0]].dtype
    return read[0].new_empty(first, robots, dtype=dtype), read[0].new_empty(second, robots, dtype=dtype)


# `torch.library.register_fake` would look through all modules for its caller, 20 ms for each operator
_OPERATORS.impl("fused", _like_values, "Meta")


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
        first, second = ([Symbol.of(value).number for value in values] for values in found)
    except (TypeError, ValueError) as error:  # of operators and functions that symbols are no arguments of
        raise Unfusable(str(error)) from error
    return compiled(record, first, second, dtype)


def compiled(record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype) -> Program:
    """Return the program that finds two lists of values of a record, by their numbers.

    Raises
    ------
    Unavailable : there is no compiler.
    """
    text = source(record, first, second, dtype)
    key = text, tuple(record.inputs)
    if key not in _recorded:
        _recorded[key] = Program(record, first, len(second), made(text), dtype)
    return _recorded[key]

"""Loop: a program as a compiled C++ loop on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.fused.program import Program
from torchdismech.fused.record import Record
from torchdismech.native import compiled_source, in_threads

__all__ = ["Loop"]

OPERATIONS_A_THREAD = 15_000_000  # least number of operations for each thread, about 1 ms
LAYOUTS = 256  # number of layouts (shapes and strides) of a program's tensors that are cached


class Loop(Program):
    """A loop over springs and robots, which computes a vector of robots at a time.

    Parameters
    ----------
    record, first, second, dtype : as for `Program`.
    text : the C++ source, from `loop_source`.

    Raises
    ------
    Unavailable : there is no compiler.
    """

    device = "cpu"

    def __init__(self, record: Record, first: Sequence[int], second: int, dtype: torch.dtype, text: str):
        code = compiled_source(text)
        super().__init__(record, first, second, dtype)
        self._at = {place: k for k, place in enumerate(self.places)}  # index among the tensors that are read
        number, array = ctypes.c_int64, ctypes.c_void_p
        code.fused.argtypes, code.fused.restype = [number, number, array, array, array, number, number], None
        code.lanes.restype = number
        self.lanes = code.lanes()
        self.code, self.operations = code, len(record.operations)
        self._layout = lru_cache(LAYOUTS)(self._inputs)

    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Compute the two lists into `first` and `second`, see `Program.write`."""
        robots = first.shape[1]
        size = springs * robots
        if not size:
            return
        parts = springs if robots >= self.lanes else -(-size // self.lanes)
        threads = self.operations * size // OPERATIONS_A_THREAD
        inputs = self.inputs(springs, robots, read)
        in_threads(self.code.fused, (springs, robots, inputs, first, second), parts, threads, read)

    def inputs(self, springs: int, robots: int, read: Sequence[Tensor]) -> np.ndarray:
        """Return the table (K, 5) of K inputs for the code, see `Input` in vectors.h; `read` as for `write`."""
        numbers, pointers = self._layout(springs, robots, tuple([(leaf.shape, leaf.stride()) for leaf in read]))
        return numbers + np.array([*[leaf.data_ptr() for leaf in read], 0])[pointers]

    @property
    def address(self) -> int:
        """Address of the compiled function, for other compiled code to call it."""
        return ctypes.cast(self.code.fused, ctypes.c_void_p).value or 0

    def _inputs(
        self, springs: int, robots: int, forms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the table (K, 5) of `inputs` without the addresses of tensors, and which address to add where (K, 5).

        The columns are the address of an input, its strides by spring and robot, and the address and stride of the row
        numbers that springs read. In the second array an entry is the index of the tensor whose address is added;
        len(forms) stands for none.

        Parameters
        ----------
        forms : shape and strides of the tensors.
        """
        numbers, pointers = [], []
        for given in self.record.inputs:
            at, spring, robot, rows = self._at[given.place], given.spring, given.robot, given.rows
            shape, stride = forms[at]
            by_spring = by_robot = rows_from = rows_by = 0
            rows_of = len(forms)
            if rows is not None and spring is not None:
                rows_of = self._at[rows.place]
                of_shape, of_stride = forms[rows_of]
                rows_from = torch.int64.itemsize * _offset(of_stride, rows.chosen)
                rows_by, by_spring = of_stride[rows.spring], stride[spring]
                _check(of_shape[rows.spring], springs, "springs")
            elif spring is not None and shape[spring] != 1:
                by_spring = stride[spring]
                _check(shape[spring], springs, "springs")
            if robot is not None and shape[robot] != 1:
                by_robot = stride[robot]
                _check(shape[robot], robots, "robots")
            numbers.append(
                (self.dtype.itemsize * _offset(stride, given.chosen), by_spring, by_robot, rows_from, rows_by)
            )
            pointers.append((at, len(forms), len(forms), rows_of, len(forms)))
        return np.array(numbers, dtype=np.int64).reshape(-1, 5), np.array(pointers, dtype=np.int64).reshape(-1, 5)


def _offset(stride: tuple[int, ...], chosen: tuple[tuple[int, int], ...]) -> int:
    """Return the offset, in numbers, of a view from the first number of its tensor."""
    return sum(stride[dim] * index for dim, index in chosen)


def _check(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise InputError(f"a constant of {found} {what} does not fit {wanted}")

"""Making of programs: a function is traced with symbols, and its record is compiled for a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchdismech.fused.kernel import Kernel
from torchdismech.fused.kernel_source import kernel_source
from torchdismech.fused.loop import Loop
from torchdismech.fused.loop_source import loop_source
from torchdismech.fused.program import Program
from torchdismech.fused.record import Record
from torchdismech.fused.symbols import Leaf, Symbol, Unfusable

__all__ = ["compiled", "program_of"]

_programs: dict[tuple, Program] = {}  # all programs of this process, by their source: models of one kind share them


def program_of(
    function: Callable[[list[Leaf]], tuple[Sequence, Sequence]],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    device: str = "cpu",
) -> Program:
    """Return the program of a function that returns two lists of values.

    Parameters
    ----------
    function : called with a `Leaf` in place of each tensor.
    shapes : of the tensors. The program depends on their numbers of dimensions alone, and on the sizes of dimensions
        along which the function takes components.
    device : kind of device, "cpu" or "cuda".

    Raises
    ------
    Unfusable : the function does something that is not elementwise.
    Unavailable : there is no compiler, or for a GPU no Triton.
    """
    record = Record()
    try:
        lists = function([Leaf(record, place, shape) for place, shape in enumerate(shapes)])
        first, second = ([Symbol.of(value).number for value in values] for values in lists)
    except (TypeError, ValueError) as error:  # from operators and functions that do not take symbols
        raise Unfusable(str(error)) from error
    if not record.inputs:
        raise Unfusable("a function that reads no tensor")
    return compiled(record, first, second, dtype, device)


def compiled(
    record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype, device: str = "cpu"
) -> Program:
    """Return the program that computes two lists of values of a record.

    Parameters
    ----------
    first, second : the values, by their numbers in the record.
    device : kind of device, "cpu" or "cuda".

    Raises
    ------
    Unavailable : as for `program_of`.
    """
    text = (loop_source if device == "cpu" else kernel_source)(record, first, second, dtype)
    key = device, dtype, text, tuple(record.inputs)
    if key not in _programs:
        kind: type[Loop] | type[Kernel] = Loop if device == "cpu" else Kernel
        _programs[key] = kind(record, first, len(second), dtype, text)
    return _programs[key]

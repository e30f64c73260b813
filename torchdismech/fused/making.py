"""Programs made of functions: what these do is recorded with symbols and compiled for a CPU or a GPU."""

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

_made: dict[tuple, Program] = {}  # of this process, by what they do: models of one kind share them


def program_of(
    function: Callable[[list[Leaf]], tuple[Sequence, Sequence]],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    device: str = "cpu",
) -> Program:
    """Return the program of a function of leaves with these shapes, which returns two lists of values.

    Only the numbers of dimensions count, and the sizes of those that the function looks into.

    Parameters
    ----------
    device : kind of device, "cpu" or "cuda".

    Raises
    ------
    Unfusable : it does something that is not elementwise.
    Unavailable : there is no compiler, or for a GPU no Triton.
    """
    record = Record()
    try:
        found = function([Leaf(record, place, shape) for place, shape in enumerate(shapes)])
        first, second = ([Symbol.of(value).number for value in values] for values in found)
    except (TypeError, ValueError) as error:  # of operators and functions that symbols are no arguments of
        raise Unfusable(str(error)) from error
    if not record.inputs:
        raise Unfusable("a function that reads no tensor")
    return compiled(record, first, second, dtype, device)


def compiled(
    record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype, device: str = "cpu"
) -> Program:
    """Return the program that finds two lists of values of a record, by their numbers, for a kind of device.

    Raises
    ------
    Unavailable : as for `program_of`.
    """
    text = (loop_source if device == "cpu" else kernel_source)(record, first, second, dtype)
    key = device, dtype, text, tuple(record.inputs)
    if key not in _made:
        kind: type[Loop] | type[Kernel] = Loop if device == "cpu" else Kernel
        _made[key] = kind(record, first, len(second), dtype, text)
    return _made[key]

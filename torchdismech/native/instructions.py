"""Instructions of tapes: operations on tensors that stay where they are, which compiled code carries out.

For tensors of a few thousand numbers a call of torch takes longer than what it does. Here an operation is encoded once,
by the addresses and strides of its operands, and one call of the interpreter (`instructions.cpp`) carries out any
number of them. `lowering.py` says which operations of torch have instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from torchdismech.native.calls import CompiledCall
from torchdismech.native.compiled import library

__all__ = ["REALS", "TYPES", "Instructions", "NoInstruction", "address_offset", "interpreted"]

# in the order of instructions.cpp
CODES = (
    *("copy", "gather", "scatter", "add_at", "where"),
    *("neg", "abs", "reciprocal", "square", "not"),
    *("add", "sub", "mul", "div", "maximum", "minimum", "and", "or"),
    *("eq", "ne", "lt", "le"),
)
CODE = {name: k for k, name in enumerate(CODES)}
TYPES = {torch.float64: 0, torch.float32: 1, torch.int64: 2, torch.bool: 3}
REALS = (torch.float64, torch.float32)
# The numbers of an instruction, as in `Instruction` of instructions.cpp: code, type, made, indexed_stride and
# indexed_size; the sizes of `DIMS` dimensions; and of each operand, the one that is written first, the address and the
# strides in bytes.
DIMS, OPERANDS = 4, 4
HEAD, OPERAND = 5 + DIMS, 1 + DIMS
WIDTH = HEAD + OPERANDS * OPERAND
ADDRESSES = [HEAD + operand * OPERAND for operand in range(OPERANDS)]
SHORT = 8  # numbers of a line that is not worth beginning

Layout = tuple[Sequence[int], Sequence[int], torch.dtype]  # shape, strides and dtype of a tensor


class NoInstruction(Exception):
    """There is no instruction for an operation: torch has to do it."""


class Instructions:
    """Instructions, one after the other.

    Attributes
    ----------
    encoded : of each its numbers (WIDTH,), as `instructions.cpp` reads them.
    held : tensors that they made themselves or read; of all others they know the addresses alone.
    """

    def __init__(self) -> None:
        self.encoded: list[np.ndarray] = []
        self.held: list[Tensor] = []

    def add(self, name: str, out: Tensor, *read: Tensor, indexed_stride: int = 0, indexed_size: int = 0) -> None:
        """Add an operation that writes `out`; what it reads broadcasts to that.

        Parameters
        ----------
        indexed_stride, indexed_size : of the dimension that an index goes along, in bytes and in numbers.

        Raises
        ------
        NoInstruction : for these types and dimensions.
        """
        if out.numel():
            operands = (out, *read)
            layouts = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in operands)
            instruction = _without_addresses(name, layouts, indexed_stride, indexed_size).copy()
            instruction[ADDRESSES[: len(operands)]] = [tensor.data_ptr() for tensor in operands]
            self.encoded.append(instruction)

    def operand(self, value: Tensor | float, dtype: torch.dtype) -> Tensor:
        """Return a number or a tensor as a tensor of this type that instructions can read, converted if need be."""
        if isinstance(value, Tensor) and value.dtype == dtype:
            return value
        if isinstance(value, Tensor):
            converted = torch.empty_like(value, dtype=dtype)
            self.add("copy", converted, value)
        else:
            converted = torch.tensor(value, dtype=dtype, device="cpu")
        self.held.append(converted)
        return converted


def interpreted(parts: Sequence[Instructions]) -> CompiledCall:
    """Return the call that carries out all instructions of some parts, in turn.

    Raises
    ------
    Unavailable : there is no compiled code.
    """
    table = np.array([encoded for part in parts for encoded in part.encoded], dtype=np.int64).reshape(-1, WIDTH)
    arguments = (len(table), table.ctypes.data)
    return CompiledCall(library().code.run_instructions, arguments, len(table), _refuse, (table,))


def address_offset(number: int, operand: int) -> int:
    """Return where the address of an operand of an instruction stands in the table of a call [bytes from its begin]."""
    return 8 * (number * WIDTH + ADDRESSES[operand])


def _refuse(done: int, table: np.ndarray) -> None:
    raise IndexError(f"{CODES[table[done, 0]]}: an index is out of range")


# ---- dimensions ----------------------------------------------------------------------------------------------------


@lru_cache(1024)
def _without_addresses(name: str, layouts: tuple[Layout, ...], indexed_stride: int, indexed_size: int) -> np.ndarray:
    """Return the numbers of an instruction, of which the addresses are still zero.

    Parameters
    ----------
    layouts : of what is written, and of all that is read.
    """
    (shape, _, made), *read = layouts
    if any(dtype not in TYPES for _, _, dtype in layouts):
        raise NoInstruction(name)
    kind = read[-1][2] if name == "where" else read[0][2]
    of_operands = [_broadcast_strides(*own, shape) for own in layouts]
    written = of_operands[0]
    if name in ("scatter", "add_at"):  # a step along the index is one from place to place
        by_index = of_operands[2]
        written = [indexed_stride if index else step for step, index in zip(written, by_index, strict=True)]
    sizes, strides = _collapsed(shape, of_operands, written)
    operands = np.zeros((OPERANDS, OPERAND), dtype=np.int64)
    operands[: len(strides), 1:] = strides
    return np.array([CODE[name], TYPES[kind], TYPES[made], indexed_stride, indexed_size, *sizes, *operands.flat])


def _broadcast_strides(
    own: Sequence[int], strides: Sequence[int], dtype: torch.dtype, shape: Sequence[int]
) -> list[int]:
    """Return the bytes from one number of a tensor to the next, as it broadcasts to a shape."""
    steps = [step * dtype.itemsize if size != 1 else 0 for size, step in zip(own, strides, strict=True)]
    return [0] * (len(shape) - len(own)) + steps


def _collapsed(shape: Sequence[int], strides: list[list[int]], written: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return the same sizes and strides in `DIMS` dimensions: the shortest steps last, joined where possible.

    Where lines along the last dimension would be short, those along the last but one are taken.

    Parameters
    ----------
    strides : of each operand.
    written : steps in what is written, by which dimensions are put in order first.
    """
    by_steps = [written, *strides]
    order = sorted((k for k, size in enumerate(shape) if size > 1), key=lambda k: [-abs(s[k]) for s in by_steps])
    sizes: list[int] = []
    steps: list[list[int]] = []  # of each dimension, of all operands
    for k in order:
        step = [s[k] for s in strides]
        if sizes and steps[-1] == [shape[k] * one for one in step]:
            sizes[-1], steps[-1] = sizes[-1] * shape[k], step
        else:
            sizes.append(shape[k])
            steps.append(step)
    if len(sizes) > DIMS:
        raise NoInstruction("too many dimensions")
    if len(sizes) > 1 and sizes[-1] < SHORT < sizes[-2]:
        sizes[-2:], steps[-2:] = sizes[:-3:-1], steps[:-3:-1]  # a line takes longer than its numbers
    transposed = _transposed_dimension(steps)
    if transposed is not None:
        sizes.insert(-1, sizes.pop(transposed))
        steps.insert(-1, steps.pop(transposed))
    missing = DIMS - len(sizes)
    return [1] * missing + sizes, [[0] * missing + [step[k] for step in steps] for k in range(len(strides))]


def _transposed_dimension(steps: list[list[int]]) -> int | None:
    """Return a dimension, before the last two, along which numbers that are read lie closest; None: there is none.

    Lines that are next to each other along it are read together.
    """
    for step in zip(*steps, strict=True):
        nearest = min((k for k, size in enumerate(step) if size), key=lambda k: abs(step[k]), default=len(steps))
        if nearest < len(steps) - 2:
            return nearest
    return None

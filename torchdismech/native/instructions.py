"""Instructions of tapes: encoded operations on tensors at fixed addresses, which compiled code carries out.

For tensors of a few thousand numbers a call of torch takes longer than its arithmetic. Here an operation is encoded
once, by the addresses and strides of its operands, and one call of the interpreter (`instructions.cpp`) carries out any
number of operations. `lowering.py` says which operations of torch have instructions.
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

# in the order of `Code` in instructions.cpp
CODES = (
    *("copy", "gather", "scatter", "add_at", "max_at", "min_at", "where"),
    *("neg", "abs", "reciprocal", "square", "not"),
    *("add", "sub", "mul", "div", "maximum", "minimum", "and", "or"),
    *("eq", "ne", "lt", "le"),
)
CODE = {name: k for k, name in enumerate(CODES)}
TYPES = {torch.float64: 0, torch.float32: 1, torch.int64: 2, torch.bool: 3}
REALS = (torch.float64, torch.float32)
# An instruction is a row of integers, laid out as `Instruction` in instructions.cpp: code, type, made, indexed_stride
# and indexed_size; the sizes of `DIMS` dimensions; and for each operand, of which the first is written, its address and
# its strides in bytes.
DIMS, OPERANDS = 4, 4
HEAD, OPERAND = 5 + DIMS, 1 + DIMS
WIDTH = HEAD + OPERANDS * OPERAND
ADDRESSES = [HEAD + operand * OPERAND for operand in range(OPERANDS)]
SHORT = 8  # length of the last dimension below which the interpreter's inner loop runs along the last but one

Layout = tuple[Sequence[int], Sequence[int], torch.dtype]  # shape, strides and dtype of a tensor


class NoInstruction(Exception):
    """An operation has no instruction, so that torch has to do it."""


class Instructions:
    """A list of instructions.

    Attributes
    ----------
    encoded : the integers (WIDTH,) of each instruction, as `instructions.cpp` reads them.
    held : tensors that were made for the instructions and have to live as long; of others only addresses are known.
    """

    def __init__(self) -> None:
        self.encoded: list[np.ndarray] = []
        self.held: list[Tensor] = []

    def add(self, name: str, out: Tensor, *read: Tensor, indexed_stride: int = 0, indexed_size: int = 0) -> None:
        """Append an operation that writes `out`; the tensors that it reads broadcast to the shape of `out`.

        Parameters
        ----------
        name : one of `CODES`.
        indexed_stride, indexed_size : stride in bytes and size of the dimension that an index selects from.

        Raises
        ------
        NoInstruction : there is none for these dtypes or so many dimensions.
        """
        if out.numel():
            operands = (out, *read)
            layouts = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in operands)
            instruction = _without_addresses(name, layouts, indexed_stride, indexed_size).copy()
            instruction[ADDRESSES[: len(operands)]] = [tensor.data_ptr() for tensor in operands]
            self.encoded.append(instruction)

    def operand(self, value: Tensor | float, dtype: torch.dtype) -> Tensor:
        """Return a number or tensor as a tensor of this dtype, which an instruction converts in each run if needed."""
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
    """Return a call of the interpreter that carries out all instructions of some lists, in order.

    Raises
    ------
    Unavailable : there is no compiled code.
    """
    table = np.array([encoded for part in parts for encoded in part.encoded], dtype=np.int64).reshape(-1, WIDTH)
    arguments = (len(table), table.ctypes.data)
    return CompiledCall(library().code.run_instructions, arguments, len(table), _refuse, (table,))


def address_offset(number: int, operand: int) -> int:
    """Return the offset [bytes] of the address of an operand in the table of an `interpreted` call.

    Parameters
    ----------
    number : index of the instruction.
    operand : index of the operand.
    """
    return 8 * (number * WIDTH + ADDRESSES[operand])


def _refuse(done: int, table: np.ndarray) -> None:
    raise IndexError(f"{CODES[table[done, 0]]}: an index is out of range")


# ---- dimensions ----------------------------------------------------------------------------------------------------


@lru_cache(1024)
def _without_addresses(name: str, layouts: tuple[Layout, ...], indexed_stride: int, indexed_size: int) -> np.ndarray:
    """Return the integers of an instruction with zeros in place of the addresses.

    Parameters
    ----------
    layouts : of the tensor that is written, then of those that are read.
    """
    (shape, _, made), *read = layouts
    if any(dtype not in TYPES for _, _, dtype in layouts):
        raise NoInstruction(name)
    kind = read[-1][2] if name == "where" else read[0][2]
    of_operands = [_broadcast_strides(*own, shape) for own in layouts]
    written = of_operands[0]
    if name in (
        "scatter",
        "add_at",
        "max_at",
        "min_at",
    ):  # along the index, the memory written is apart by the stride of that dimension
        by_index = of_operands[2]
        written = [indexed_stride if index else step for step, index in zip(written, by_index, strict=True)]
    sizes, strides = _collapsed(shape, of_operands, written)
    operands = np.zeros((OPERANDS, OPERAND), dtype=np.int64)
    operands[: len(strides), 1:] = strides
    return np.array([CODE[name], TYPES[kind], TYPES[made], indexed_stride, indexed_size, *sizes, *operands.flat])


def _broadcast_strides(
    own: Sequence[int], strides: Sequence[int], dtype: torch.dtype, shape: Sequence[int]
) -> list[int]:
    """Return the strides [bytes] of a tensor of shape `own` as it broadcasts to `shape`; 0 where it is repeated."""
    steps = [step * dtype.itemsize if size != 1 else 0 for size, step in zip(own, strides, strict=True)]
    return [0] * (len(shape) - len(own)) + steps


def _collapsed(shape: Sequence[int], strides: list[list[int]], written: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return sizes and strides of the operation in `DIMS` dimensions: joined, and sorted by falling strides.

    The interpreter's inner loop runs along the last dimension. If that would be short, the last two are exchanged.

    Parameters
    ----------
    strides : strides [bytes] of each operand.
    written : strides of the memory that is written, by which dimensions are sorted first.
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
        sizes[-2:], steps[-2:] = sizes[:-3:-1], steps[:-3:-1]  # beginning a line takes longer than its few numbers
    transposed = _transposed_dimension(steps)
    if transposed is not None:
        sizes.insert(-1, sizes.pop(transposed))
        steps.insert(-1, steps.pop(transposed))
    missing = DIMS - len(sizes)
    return [1] * missing + sizes, [[0] * missing + [step[k] for step in steps] for k in range(len(strides))]


def _transposed_dimension(steps: list[list[int]]) -> int | None:
    """Return a dimension before the last two along which some operand has its smallest stride; None if there is none.

    Moved to the last but one place, it lets the interpreter read neighbouring lines of that operand together.
    """
    for step in zip(*steps, strict=True):
        nearest = min((k for k, size in enumerate(step) if size), key=lambda k: abs(step[k]), default=len(steps))
        if nearest < len(steps) - 2:
            return nearest
    return None

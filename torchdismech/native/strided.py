"""Operations of torch on a CPU as rows of a table, which compiled code carries out (`strided.cpp`).

For tensors of a few thousand numbers a call of torch takes longer than what it does. Here an operation on tensors that
stay where they are is written down once, by addresses and strides, and a table of them takes one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

from torchdismech.native.calls import CompiledCall
from torchdismech.native.compiled import library

__all__ = ["Rows", "Untabled", "carried_out", "place_of", "rows_of"]

# in the order of strided.cpp
CODES = (
    *("copy", "gather", "scatter", "add_at", "where"),
    *("neg", "abs", "reciprocal", "square", "not"),
    *("add", "sub", "mul", "div", "maximum", "minimum", "and", "or"),
    *("eq", "ne", "lt", "le"),
)
CODE = {name: k for k, name in enumerate(CODES)}
TYPES = {torch.float64: 0, torch.float32: 1, torch.int64: 2, torch.bool: 3}
REALS = (torch.float64, torch.float32)
# The numbers of a row, as in `Row` of strided.cpp: code, type, made, along and places; the sizes of `DIMS` dimensions;
# and of each operand, the one that is written first, the address and the strides in bytes.
DIMS, OPERANDS = 4, 4
HEAD, OPERAND = 5 + DIMS, 1 + DIMS
ROW = HEAD + OPERANDS * OPERAND
ADDRESSES = [HEAD + operand * OPERAND for operand in range(OPERANDS)]
FEW_ADDENDS = 3  # numbers that torch adds one after the other, however they lie
SHORT = 8  # numbers of a line that is not worth beginning

# Torch's names of operations, and those that they have here. Only what rounds alike: a square root of torch is at times
# off by one in the last place.
UNARY = {"neg": "neg", "abs": "abs", "reciprocal": "reciprocal", "clone": "copy", "_to_copy": "copy"}
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le")
TURNED = {"gt": "lt", "ge": "le"}  # comparisons that are others of what is exchanged
LOGIC = {"bitwise_and": "and", "bitwise_or": "or", "logical_and": "and", "logical_or": "or"}
OF_REALS = ("abs", "reciprocal", "div")
# keywords of torch's operations that say where and how results stand, which is known from the results themselves
NO_MATTER = ("out", "dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


class Untabled(Exception):
    """An operation that the table has no row for."""


class Rows:
    """Rows of the table, one after the other.

    Attributes
    ----------
    numbers : rows (ROW,), as `strided.cpp` reads them.
    kept : tensors that the rows read and made themselves; of others they know the addresses alone.
    """

    def __init__(self) -> None:
        self.numbers: list[np.ndarray] = []
        self.kept: list[Tensor] = []

    def add(self, name: str, out: Tensor, *read: Tensor, along: int = 0, places: int = 0) -> None:
        """Add an operation that writes `out`; what it reads broadcasts to that."""
        if out.numel():
            operands = (out, *read)
            layout = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in operands)
            row = _row(name, layout, along, places).copy()
            row[ADDRESSES[: len(operands)]] = [tensor.data_ptr() for tensor in operands]
            self.numbers.append(row)

    def typed(self, value: Tensor | float, dtype: torch.dtype) -> Tensor:
        """Return a number or a tensor as a tensor of this type."""
        if isinstance(value, Tensor) and value.dtype == dtype:
            return value
        if isinstance(value, Tensor):
            typed = torch.empty_like(value, dtype=dtype)
            self.add("copy", typed, value)
        else:
            typed = torch.tensor(value, dtype=dtype, device="cpu")
        self.kept.append(typed)
        return typed


def rows_of(func: OpOverload, args: tuple, kwargs: dict[str, Any], result: Any) -> Rows:
    """Return the rows that write the result of an operation anew.

    Raises
    ------
    Untabled : there are none.
    """
    name = func._overloadpacket.__name__
    name = name.removesuffix("_") if func._schema.is_mutable else name
    if name not in WRITERS:
        raise Untabled(name)
    flat = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
    tensors = [x for x in (result, *flat) if isinstance(x, Tensor)]
    if not isinstance(result, Tensor) or any(x.dtype not in TYPES or not x.is_cpu for x in tensors):
        raise Untabled(name)
    rows = Rows()
    WRITERS[name](rows, result, *args, **{key: value for key, value in kwargs.items() if key not in NO_MATTER})
    return rows


def carried_out(rows: Sequence[Rows]) -> CompiledCall:
    """Return the call that carries out rows, in turn.

    Raises
    ------
    Unavailable : there is no compiled code.
    """
    table = np.array([number for part in rows for number in part.numbers], dtype=np.int64).reshape(-1, ROW)
    arguments = (len(table), table.ctypes.data)
    return CompiledCall(library().code.strided_operations, arguments, len(table), _refuse, (table,))


def place_of(row: int, operand: int) -> int:
    """Return where in a table the address of an operand of a row stands [bytes from its begin]."""
    return 8 * (row * ROW + ADDRESSES[operand])


def _refuse(done: int, table: np.ndarray) -> None:
    raise IndexError(f"{CODES[table[done, 0]]}: an index is out of range")


# ---- how rows are written ----------------------------------------------------------------------------------------


@lru_cache(1024)
def _row(name: str, layout: tuple[tuple[Sequence[int], Sequence[int], torch.dtype], ...], along: int, places: int):
    """Return the numbers of a row without addresses.

    Parameters
    ----------
    layout : shape, strides and dtype of what is written, and of all that is read.
    """
    (shape, _, made), *read = layout
    if any(dtype not in TYPES for _, _, dtype in layout):
        raise Untabled(name)
    kind = read[-1][2] if name == "where" else read[0][2]
    of_all = [_strides(*own, shape) for own in layout]
    written = of_all[0]
    if name in ("scatter", "add_at"):  # steps along the index are those between places
        written = [along if by_index else step for step, by_index in zip(of_all[0], of_all[2], strict=True)]
    sizes, strides = _folded(shape, of_all, written)
    operands = np.zeros((OPERANDS, OPERAND), dtype=np.int64)
    operands[: len(strides), 1:] = strides
    return np.array([CODE[name], TYPES[kind], TYPES[made], along, places, *sizes, *operands.flat])


def _strides(own: Sequence[int], strides: Sequence[int], dtype: torch.dtype, shape: Sequence[int]) -> list[int]:
    """Return the bytes from one number of a tensor to the next, as it broadcasts to a shape."""
    steps = [step * dtype.itemsize if size != 1 else 0 for size, step in zip(own, strides, strict=True)]
    return [0] * (len(shape) - len(own)) + steps


def _folded(shape: Sequence[int], strides: list[list[int]], written: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return the same sizes and strides in `DIMS` dimensions: the shortest steps last, joined where possible.

    Where lines along the last dimension would be short, those along the last but one are taken.

    Parameters
    ----------
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
        raise Untabled("too many dimensions")
    if len(sizes) > 1 and sizes[-1] < SHORT < sizes[-2]:
        sizes[-2:], steps[-2:] = sizes[:-3:-1], steps[:-3:-1]  # a line takes longer than its numbers
    across = _crosswise(steps)
    if across is not None:
        sizes.insert(-1, sizes.pop(across))
        steps.insert(-1, steps.pop(across))
    missing = DIMS - len(sizes)
    return [1] * missing + sizes, [[0] * missing + [step[k] for step in steps] for k in range(len(strides))]


def _crosswise(steps: list[list[int]]) -> int | None:
    """Return a dimension, before the last two, along which numbers that are read lie closest; None: there is none.

    Lines that are next to each other along it are read together.
    """
    for step in zip(*steps, strict=True):
        nearest = min((k for k, size in enumerate(step) if size), key=lambda k: abs(step[k]), default=len(steps))
        if nearest < len(steps) - 2:
            return nearest
    return None


def _unary(name: str) -> Callable:
    def write(rows: Rows, out: Tensor, x: Tensor) -> None:
        if name in OF_REALS and x.dtype not in REALS or name == "neg" and x.dtype == torch.bool:
            raise Untabled(name)
        rows.add(name, out, x)

    return write


def _arithmetic(name: str) -> Callable:
    def write(
        rows: Rows,
        out: Tensor,
        a: Tensor | float,
        b: Tensor | float,
        alpha: float = 1,
        rounding_mode: str | None = None,
    ) -> None:
        dtype = torch.result_type(a, b)
        if (
            alpha != 1
            or rounding_mode is not None
            or dtype == torch.bool
            or (name in OF_REALS and dtype not in REALS)
            or out.dtype != dtype
        ):
            raise Untabled(name)
        rows.add(name, out, rows.typed(a, dtype), rows.typed(b, dtype))

    return write


def _comparison(name: str, turned: bool = False) -> Callable:
    def write(rows: Rows, out: Tensor, a: Tensor, b: Tensor | float) -> None:
        dtype = torch.result_type(a, b)
        left, right = rows.typed(a, dtype), rows.typed(b, dtype)
        rows.add(name, out, *((right, left) if turned else (left, right)))

    return write


def _logic(name: str) -> Callable:
    def write(rows: Rows, out: Tensor, a: Tensor, b: Tensor | bool) -> None:
        if torch.result_type(a, b) != torch.bool:
            raise Untabled(name)
        rows.add(name, out, a, rows.typed(b, torch.bool))

    return write


def _not(rows: Rows, out: Tensor, x: Tensor) -> None:
    if x.dtype != torch.bool:
        raise Untabled("not")
    rows.add("not", out, x)


def _power(rows: Rows, out: Tensor, x: Tensor, exponent: Tensor | float) -> None:
    if isinstance(exponent, Tensor) or exponent != 2 or x.dtype not in REALS:
        raise Untabled("pow")
    rows.add("square", out, x)


def _where(rows: Rows, out: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> None:
    if condition.dtype != torch.bool:
        raise Untabled("where")
    rows.add("where", out, condition, rows.typed(a, out.dtype), rows.typed(b, out.dtype))


def _copied(rows: Rows, out: Tensor, _: Tensor, source: Tensor | float) -> None:
    rows.add("copy", out, rows.typed(source, out.dtype))


def _zeros(rows: Rows, out: Tensor, _: Tensor) -> None:
    rows.add("copy", out, rows.typed(0, out.dtype))


def _gather(rows: Rows, out: Tensor, source: Tensor, dim: int, index: Tensor) -> None:
    """Write `out` as the parts of `source` along a dimension that an index (K,) says."""
    if index.dim() != 1 or index.dtype != torch.int64 or not source.dim() or source.dtype != out.dtype:
        raise Untabled("gather")
    whole = source.narrow(dim, 0, min(1, source.shape[dim])).expand_as(out) if source.numel() else source
    rows.add("gather", out, whole, _along(index, dim % out.dim(), out.dim()), **_places(source, dim))


def _scatter(rows: Rows, out: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    """Write values (K along a dimension) to the parts of `out` that an index (K,) says."""
    if index.dim() != 1 or index.dtype != torch.int64 or not out.dim() or values.dtype != out.dtype:
        raise Untabled("scatter")
    _at_places(rows, "scatter", out, dim, index, values)


def _at_places(rows: Rows, name: str, out: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    """Do something with the parts of `out` along a dimension that an index (K,) says, and values for these."""
    shape = [*out.shape]
    shape[dim] = len(index)
    if out.numel():
        whole = out.narrow(dim, 0, 1).expand(shape)
        rows.add(name, whole, values.expand(shape), _along(index, dim % out.dim(), out.dim()), **_places(out, dim))


def _along(index: Tensor, dim: int, dims: int) -> Tensor:
    """Return an index (K,) as a tensor of so many dimensions that runs along one."""
    return index.reshape([-1 if k == dim else 1 for k in range(dims)])


def _places(tensor: Tensor, dim: int) -> dict[str, int]:
    return {"along": tensor.stride(dim) * tensor.element_size(), "places": tensor.shape[dim]}


def _indexed(rows: Rows, out: Tensor, source: Tensor, indices: Sequence[Tensor | None]) -> None:
    _gather(rows, out, source, *_only(indices))


def _index_put(
    rows: Rows, out: Tensor, source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> None:
    if accumulate:
        raise Untabled("index_put")
    _kept(rows, out, source)
    _scatter(rows, out, *_only(indices), values)


def _index_copy(rows: Rows, out: Tensor, source: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    _kept(rows, out, source)
    _scatter(rows, out, dim, index, values)


def _index_add(
    rows: Rows, out: Tensor, source: Tensor, dim: int, index: Tensor, values: Tensor, alpha: float = 1
) -> None:
    if alpha != 1 or index.dim() != 1 or index.dtype != torch.int64 or not out.dim() or values.dtype != out.dtype:
        raise Untabled("index_add")
    _kept(rows, out, source)
    _at_places(rows, "add_at", out, dim, index, values)


def _index_fill(rows: Rows, out: Tensor, source: Tensor, dim: int, index: Tensor, value: Tensor | float) -> None:
    _kept(rows, out, source)
    _scatter(rows, out, dim, index, rows.typed(value, out.dtype))


def _slice_backward(
    rows: Rows, out: Tensor, gradient: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> None:
    """Write the gradient by a tensor of which a slice was taken: the slice's gradient there, zero elsewhere."""
    rows.add("copy", out, rows.typed(0, out.dtype))
    rows.add("copy", torch.ops.aten.slice(out, dim, start, end, step), gradient)


def _select_backward(rows: Rows, out: Tensor, gradient: Tensor, sizes: Sequence[int], dim: int, index: int) -> None:
    rows.add("copy", out, rows.typed(0, out.dtype))
    rows.add("copy", out.select(dim, index), gradient)


def _kept(rows: Rows, out: Tensor, source: Tensor) -> None:
    """Copy to `out` the tensor of which some parts are written next, unless the operation is in place."""
    if out.data_ptr() != source.data_ptr():
        rows.add("copy", out, source)


def _only(indices: Sequence[Tensor | None]) -> tuple[int, Tensor]:
    """Return the only index that is set, and its dimension before it."""
    found = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(found) != 1:
        raise Untabled("several indices")
    return found[0]


def _joined(rows: Rows, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    start = 0
    for tensor in tensors:
        if tensor.numel():
            size = tensor.shape[dim]
            rows.add("copy", out.narrow(dim, start, size), tensor)
            start += size


def _stacked(rows: Rows, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    for k, tensor in enumerate(tensors):
        rows.add("copy", out.select(dim, k), tensor)


def _reduced(name: str) -> Callable:
    """Return a function that reduces some dimensions by an operation of two numbers."""

    def write(
        rows: Rows, out: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> None:
        if not x.numel() or not x.dim() or out.dtype != x.dtype or (x.dtype == torch.bool) != (name in ("and", "or")):
            raise Untabled(name)
        dims = _dims(x, dim)
        out, first = _of_reduced(out, dims, keepdim), x
        for k in dims:
            first = first.narrow(k, 0, 1)
        rows.add("copy", out, first)
        whole = out.expand_as(x)
        rows.add(name, whole, whole, x)

    return write


def _sum(rows: Rows, out: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> None:
    """Write sums of whole numbers, or of few numbers: longer ones torch groups in ways of its own."""
    if not x.numel() or not x.dim() or out.dtype not in (x.dtype, torch.int64):
        raise Untabled("sum")
    dims = _dims(x, dim)
    if out.dtype in REALS and math.prod(x.shape[k] for k in dims) > FEW_ADDENDS:
        raise Untabled("sum")
    x, whole = rows.typed(x, out.dtype), _of_reduced(out, dims, keepdim).expand_as(x)
    rows.add("copy", out, rows.typed(0, out.dtype))
    rows.add("add", whole, whole, x)


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Return the dimensions that an operation goes over."""
    return sorted({k % x.dim() for k in ([dim] if isinstance(dim, int) else dim or range(x.dim()))})


def _of_reduced(out: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Return the result of an operation over some dimensions with these of size 1."""
    for k in () if keepdim else dims:
        out = out.unsqueeze(k)
    return out


WRITERS: dict[str, Callable] = {
    **{name: _unary(own) for name, own in UNARY.items()},
    **{name: _arithmetic(name) for name in ARITHMETIC},
    **{name: _comparison(name) for name in COMPARISONS},
    **{name: _comparison(own, turned=True) for name, own in TURNED.items()},
    **{name: _logic(own) for name, own in LOGIC.items()},
    "bitwise_not": _not,
    "logical_not": _not,
    "pow": _power,
    "where": _where,
    "clamp_min": _arithmetic("maximum"),
    "clamp_max": _arithmetic("minimum"),
    "copy": _copied,
    "fill": _copied,
    "zero": _zeros,
    "index_select": _gather,
    "index": _indexed,
    "index_put": _index_put,
    "index_copy": _index_copy,
    "index_add": _index_add,
    "index_fill": _index_fill,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "cat": _joined,
    "stack": _stacked,
    "sum": _sum,
    "amax": _reduced("maximum"),
    "amin": _reduced("minimum"),
    "any": _reduced("or"),
    "all": _reduced("and"),
}

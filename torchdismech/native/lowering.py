"""Lowering of torch's CPU operations to instructions (`instructions.py`), where these give the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchdismech.native.instructions import REALS, TYPES, Instructions, NoInstruction
from torchdismech.native.torch_calls import TorchCall

__all__ = ["lowered"]

FEW_ADDENDS = 3  # longest sum that torch adds one by one, whatever the strides

# Torch's names of operations, and the names of their instructions. Only operations that round as torch does have one: a
# square root of torch, for example, is at times off by one in the last place.
UNARY = {"neg": "neg", "abs": "abs", "reciprocal": "reciprocal", "clone": "copy", "_to_copy": "copy"}
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le")
SWAPPED = {"gt": "lt", "ge": "le"}  # instruction that does the same with exchanged operands
LOGIC = {"bitwise_and": "and", "bitwise_or": "or", "logical_and": "and", "logical_or": "or"}
OF_REALS = ("abs", "reciprocal", "div")
# keywords of torch's operations about the memory of the result, which the result itself shows
OF_RESULTS = ("out", "dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


def lowered(call: TorchCall) -> Instructions:
    """Return the instructions that compute an operation again into the memory of its result.

    Raises
    ------
    NoInstruction : there are none for this operation.
    """
    name = call.name.removesuffix("_") if call.in_place else call.name
    if name not in LOWERINGS:
        raise NoInstruction(name)
    flat = [x for arg in call.args for x in (arg if isinstance(arg, list | tuple) else [arg])]
    tensors = [x for x in (call.result, *flat) if isinstance(x, Tensor)]
    if not isinstance(call.result, Tensor) or any(x.dtype not in TYPES or not x.is_cpu for x in tensors):
        raise NoInstruction(name)
    code, keywords = Instructions(), {key: value for key, value in call.kwargs.items() if key not in OF_RESULTS}
    LOWERINGS[name](code, call.result, *call.args, **keywords)
    return code


# ---- functions that append the instructions of an operation to `code`: (code, out, *args of torch) ------------------


def _unary(name: str) -> Callable:
    def lower(code: Instructions, out: Tensor, x: Tensor) -> None:
        if name in OF_REALS and x.dtype not in REALS or name == "neg" and x.dtype == torch.bool:
            raise NoInstruction(name)
        code.add(name, out, x)

    return lower


def _arithmetic(name: str) -> Callable:
    def lower(
        code: Instructions,
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
            raise NoInstruction(name)
        code.add(name, out, code.operand(a, dtype), code.operand(b, dtype))

    return lower


def _comparison(name: str, swapped: bool = False) -> Callable:
    def lower(code: Instructions, out: Tensor, a: Tensor, b: Tensor | float) -> None:
        dtype = torch.result_type(a, b)
        left, right = code.operand(a, dtype), code.operand(b, dtype)
        code.add(name, out, *((right, left) if swapped else (left, right)))

    return lower


def _logic(name: str) -> Callable:
    def lower(code: Instructions, out: Tensor, a: Tensor, b: Tensor | bool) -> None:
        if torch.result_type(a, b) != torch.bool:
            raise NoInstruction(name)
        code.add(name, out, a, code.operand(b, torch.bool))

    return lower


def _not(code: Instructions, out: Tensor, x: Tensor) -> None:
    if x.dtype != torch.bool:
        raise NoInstruction("not")
    code.add("not", out, x)


def _power(code: Instructions, out: Tensor, x: Tensor, exponent: Tensor | float) -> None:
    if isinstance(exponent, Tensor) or exponent != 2 or x.dtype not in REALS:
        raise NoInstruction("pow")
    code.add("square", out, x)


def _where(code: Instructions, out: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> None:
    if condition.dtype != torch.bool:
        raise NoInstruction("where")
    code.add("where", out, condition, code.operand(a, out.dtype), code.operand(b, out.dtype))


def _copy(code: Instructions, out: Tensor, _: Tensor, source: Tensor | float, non_blocking: bool = False) -> None:
    code.add("copy", out, code.operand(source, out.dtype))


def _zeros(code: Instructions, out: Tensor, _: Tensor) -> None:
    code.add("copy", out, code.operand(0, out.dtype))


def _gather(code: Instructions, out: Tensor, source: Tensor, dim: int, index: Tensor) -> None:
    """Write to `out` the slices of `source` along a dimension that an index (K,) selects."""
    if index.dim() != 1 or index.dtype != torch.int64 or not source.dim() or source.dtype != out.dtype:
        raise NoInstruction("gather")
    whole = source.narrow(dim, 0, min(1, source.shape[dim])).expand_as(out) if source.numel() else source
    code.add("gather", out, whole, _index_along(index, dim % out.dim(), out.dim()), **_indexed_dimension(source, dim))


def _scatter(code: Instructions, out: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    """Write values (K along a dimension) to the slices of `out` that an index (K,) selects."""
    if index.dim() != 1 or index.dtype != torch.int64 or not out.dim() or values.dtype != out.dtype:
        raise NoInstruction("scatter")
    _write_indexed(code, "scatter", out, dim, index, values)


def _write_indexed(code: Instructions, name: str, out: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    """Append an operation `name` on the slices of `out` that an index (K,) selects, with values for these."""
    shape = [*out.shape]
    shape[dim] = len(index)
    if out.numel():
        whole = out.narrow(dim, 0, 1).expand(shape)
        code.add(
            name,
            whole,
            values.expand(shape),
            _index_along(index, dim % out.dim(), out.dim()),
            **_indexed_dimension(out, dim),
        )


def _index_along(index: Tensor, dim: int, dims: int) -> Tensor:
    """Return an index (K,) as a tensor of `dims` dimensions that runs along dimension `dim`."""
    return index.reshape([-1 if k == dim else 1 for k in range(dims)])


def _indexed_dimension(tensor: Tensor, dim: int) -> dict[str, int]:
    return {"indexed_stride": tensor.stride(dim) * tensor.element_size(), "indexed_size": tensor.shape[dim]}


def _index(code: Instructions, out: Tensor, source: Tensor, indices: Sequence[Tensor | None]) -> None:
    _gather(code, out, source, *_single_index(indices))


def _index_put(
    code: Instructions,
    out: Tensor,
    source: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> None:
    dim, index = _single_index(indices)
    if accumulate:
        _index_add(code, out, source, dim, index, values)
    else:
        _index_copy(code, out, source, dim, index, values)


def _index_copy(code: Instructions, out: Tensor, source: Tensor, dim: int, index: Tensor, values: Tensor) -> None:
    _copy_unless_in_place(code, out, source)
    _scatter(code, out, dim, index, values)


def _index_add(
    code: Instructions, out: Tensor, source: Tensor, dim: int, index: Tensor, values: Tensor, alpha: float = 1
) -> None:
    if alpha != 1 or index.dim() != 1 or index.dtype != torch.int64 or not out.dim() or values.dtype != out.dtype:
        raise NoInstruction("index_add")
    _copy_unless_in_place(code, out, source)
    _write_indexed(code, "add_at", out, dim, index, values)


def _scatter_reduce(
    code: Instructions,
    out: Tensor,
    source: Tensor,
    dim: int,
    index: Tensor,
    values: Tensor,
    reduce: str,
    include_self: bool = True,
) -> None:
    name = {"amax": "max_at", "amin": "min_at"}.get(reduce)
    known = index.dim() == out.dim() == 1 and index.dtype == torch.int64 and values.dtype == out.dtype
    if name is None or not (known and include_self) or out.dtype == torch.bool:
        raise NoInstruction("scatter_reduce")
    _copy_unless_in_place(code, out, source)
    _write_indexed(code, name, out, dim, index, values[: len(index)])  # there may be more values


def _index_fill(
    code: Instructions, out: Tensor, source: Tensor, dim: int, index: Tensor, value: Tensor | float
) -> None:
    _copy_unless_in_place(code, out, source)
    _scatter(code, out, dim, index, code.operand(value, out.dtype))


def _slice_backward(
    code: Instructions, out: Tensor, gradient: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> None:
    """Write the gradient by the tensor that was sliced: the slice's gradient there, zero elsewhere."""
    code.add("copy", out, code.operand(0, out.dtype))
    code.add("copy", torch.ops.aten.slice(out, dim, start, end, step), gradient)


def _select_backward(
    code: Instructions, out: Tensor, gradient: Tensor, sizes: Sequence[int], dim: int, index: int
) -> None:
    code.add("copy", out, code.operand(0, out.dtype))
    code.add("copy", out.select(dim, index), gradient)


def _copy_unless_in_place(code: Instructions, out: Tensor, source: Tensor) -> None:
    """Copy `source` to `out`, some slices of which are overwritten next, unless both are the same memory."""
    if out.data_ptr() != source.data_ptr():
        code.add("copy", out, source)


def _single_index(indices: Sequence[Tensor | None]) -> tuple[int, Tensor]:
    """Return the dimension of the only index that is not None, and the index."""
    found = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(found) != 1:
        raise NoInstruction("several indices")
    return found[0]


def _cat(code: Instructions, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    start = 0
    for tensor in tensors:
        if tensor.numel():
            size = tensor.shape[dim]
            code.add("copy", out.narrow(dim, start, size), tensor)
            start += size


def _stack(code: Instructions, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    for k, tensor in enumerate(tensors):
        code.add("copy", out.select(dim, k), tensor)


def _reduction(name: str) -> Callable:
    """Return a function that lowers a reduction of some dimensions by a binary operation `name`."""

    def lower(
        code: Instructions, out: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> None:
        if not x.numel() or not x.dim() or out.dtype != x.dtype or (x.dtype == torch.bool) != (name in ("and", "or")):
            raise NoInstruction(name)
        dims = _dimensions(x, dim)
        out, first = _with_reduced_dimensions(out, dims, keepdim), x
        for k in dims:
            first = first.narrow(k, 0, 1)
        code.add("copy", out, first)
        whole = out.expand_as(x)
        code.add(name, whole, whole, x)

    return lower


def _sum(
    code: Instructions, out: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> None:
    """Write sums of integers, or of few real numbers: torch adds up longer sums of reals in another order."""
    if not x.numel() or not x.dim() or out.dtype not in (x.dtype, torch.int64):
        raise NoInstruction("sum")
    dims = _dimensions(x, dim)
    if out.dtype in REALS and math.prod(x.shape[k] for k in dims) > FEW_ADDENDS:
        raise NoInstruction("sum")
    x, whole = code.operand(x, out.dtype), _with_reduced_dimensions(out, dims, keepdim).expand_as(x)
    code.add("copy", out, code.operand(0, out.dtype))
    code.add("add", whole, whole, x)


def _dimensions(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Return the dimensions that a reduction goes over: those in `dim`, or all."""
    return sorted({k % x.dim() for k in ([dim] if isinstance(dim, int) else dim or range(x.dim()))})


def _with_reduced_dimensions(out: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Return the result of a reduction with the reduced dimensions present, of size 1."""
    for k in () if keepdim else dims:
        out = out.unsqueeze(k)
    return out


LOWERINGS: dict[str, Callable] = {
    **{name: _unary(own) for name, own in UNARY.items()},
    **{name: _arithmetic(name) for name in ARITHMETIC},
    **{name: _comparison(name) for name in COMPARISONS},
    **{name: _comparison(own, swapped=True) for name, own in SWAPPED.items()},
    **{name: _logic(own) for name, own in LOGIC.items()},
    "bitwise_not": _not,
    "logical_not": _not,
    "pow": _power,
    "where": _where,
    "clamp_min": _arithmetic("maximum"),
    "clamp_max": _arithmetic("minimum"),
    "copy": _copy,
    "fill": _copy,
    "zero": _zeros,
    "index_select": _gather,
    "index": _index,
    "index_put": _index_put,
    "index_copy": _index_copy,
    "index_add": _index_add,
    "index_fill": _index_fill,
    "scatter_reduce": _scatter_reduce,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "cat": _cat,
    "stack": _stack,
    "sum": _sum,
    "amax": _reduction("maximum"),
    "amin": _reduction("minimum"),
    "any": _reduction("or"),
    "all": _reduction("and"),
}

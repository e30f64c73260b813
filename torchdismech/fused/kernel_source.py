"""Generates the source of a Triton kernel from a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchdismech.fused.loop_source import INFIX, PREFIX, needed
from torchdismech.fused.record import Input, Operation, Record, RowChoice

__all__ = ["kernel_source", "strides_read"]

CALLS = {
    "sine": "libdevice.sin({0})",
    "cosine": "libdevice.cos({0})",
    "angle": "libdevice.atan2({0}, {1})",
    "rounded": "libdevice.rint({0})",
    "absolute": "tl.abs({0})",
    # NaN of either operand is returned, as in torch
    "most": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "least": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    "chosen": "tl.where({0}, {1}, {2})",
    "exponential": "libdevice.exp({0})",
    "exponential_less_one": "libdevice.expm1({0})",
    "logarithm": "libdevice.log({0})",
    "hyperbolic_tangent": "libdevice.tanh({0})",
    "sigmoid": "1.0 / (1.0 + libdevice.exp(-{0}))",
    "softplus": "tl.where({0} > {1}, {0}, libdevice.log1p(libdevice.exp({0})))",
}
# In single precision Triton's default division and square root are not correctly rounded.
ROUNDED = {
    torch.float64: {"div": "{0} / {1}", "root": "tl.sqrt({0})"},
    torch.float32: {"div": "tl.div_rn({0}, {1})", "root": "tl.sqrt_rn({0})"},
}
TYPES = {torch.float64: "tl.float64", torch.float32: "tl.float32"}

# Each lane computes one spring of one robot. The values of spring s and robot b are written at s * robots + b, one row
# of values after the other, as by a loop (`loop_source.py`). A tensor's strides are 0 along dimensions of size 1.
FRAME = """
@triton.jit(do_not_specialize=["springs", "robots"{names}], do_not_specialize_on_alignment=[{aligned}])
def fused({tensors}first, second, springs, robots, {strides}LANES: tl.constexpr):
    number = tl.program_id(0) * LANES + tl.arange(0, LANES)
    here = number < springs * robots
    spring, robot = (number // robots).to(tl.int64), (number % robots).to(tl.int64)
    row, at = (springs * robots).to(tl.int64), number.to(tl.int64)
    {body}
"""


def kernel_source(record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype) -> str:
    """Return the source of a kernel that computes two lists of values for all springs and robots.

    Parameters
    ----------
    first, second : the values, by their numbers in the record.
    """
    tensors, strides = record.places, [f"s{k}_{d}" for k, d in strides_read(record)]
    lines = [f"{stride} = {stride}.to(tl.int64)" for stride in strides]  # products with them may be large
    lines += _rows_read(record)
    inputs = [_read(given, record) for given in record.inputs]
    for k in needed(record, [*first, *second]):
        name, *of = record.operations[k]
        lines.append(f"v{k} = {inputs[of[0]] if name == 'input' else _expression(record.operations[k], dtype)}")
    for name, values in (("first", first), ("second", second)):
        lines += [f"tl.store({name} + {place} * row + at, v{value}, mask=here)" for place, value in enumerate(values)]
    return FRAME.format(
        names="".join(f', "{stride}"' for stride in strides),
        aligned=", ".join(f'"{name}"' for name in (*(f"t{k}" for k in range(len(tensors))), "first", "second")),
        tensors="".join(f"t{k}, " for k in range(len(tensors))),
        strides="".join(f"{stride}, " for stride in strides),
        body="\n    ".join(lines),
    )


def strides_read(record: Record) -> list[tuple[int, int]]:
    """Return the strides that are arguments of a kernel: (index of the tensor among those read, dimension)."""
    found = set()
    for i in record.inputs:
        found |= {(i.place, d) for d in (i.spring, i.robot, *(d for d, _ in i.chosen)) if d is not None}
        if i.rows is not None:
            found |= {(i.rows.place, d) for d in (i.rows.spring, *(d for d, _ in i.rows.chosen))}
    tensors = record.places
    return sorted((tensors.index(place), d) for place, d in found)


def _rows_read(record: Record) -> Iterator[str]:
    """Yield lines that load which row of a matrix each spring reads."""
    tensors = record.places
    for k, rows in enumerate(_indices(record)):
        at = _offset(tensors.index(rows.place), [*rows.chosen, (rows.spring, "spring")])
        yield f"rows{k} = tl.load({at}, mask=here, other=0)"


def _indices(record: Record) -> list[RowChoice]:
    """Return the different choices of rows in the inputs of a record, in order."""
    return list(dict.fromkeys(i.rows for i in record.inputs if i.rows is not None))


def _read(given: Input, record: Record) -> str:
    """Return the expression that loads an input."""
    spring = "spring" if given.rows is None else f"rows{_indices(record).index(given.rows)}"
    moving = [(d, by) for d, by in ((given.spring, spring), (given.robot, "robot")) if d is not None]
    at = _offset(record.places.index(given.place), [*given.chosen, *moving])
    # an address that is the same for all lanes needs no mask
    return f"tl.load({at}, mask=here, other=0.0)" if moving else f"tl.load({at})"


def _offset(tensor: int, places: Sequence[tuple[int, int | str]]) -> str:
    """Return the expression of the address of a number, by its index along some dimensions of a tensor."""
    return " + ".join([f"t{tensor}", *(f"{place} * s{tensor}_{d}" for d, place in places if place != 0)])


def _expression(operation: Operation, dtype: torch.dtype) -> str:
    name, *of = operation
    if name == "number":
        value = of[0] if of[0] in ("inf", "-inf", "nan") else repr(float.fromhex(of[0]))
        value = f'float("{value}")' if "n" in value else value
        return f"tl.full([LANES], {value}, {TYPES[dtype]})"
    operands = [f"v{k}" for k in of]
    if name in PREFIX:
        return f"{PREFIX[name]}{operands[0]}"
    called = {**CALLS, **ROUNDED[dtype]}
    return called[name].format(*operands) if name in called else f"{operands[0]} {INFIX[name]} {operands[1]}"

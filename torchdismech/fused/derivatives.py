"""Reverse-mode differentiation of a record: the derivatives of each operation, and of a weighted sum of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchdismech.fused.record import Record
from torchdismech.fused.symbols import Symbol, chosen

__all__ = ["derivatives_by_values"]


def derivatives_by_values(record: Record, weighted: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the derivatives of a weighted sum of values by all values of a record on which it depends.

    Parameters
    ----------
    record : the operations; those that compute the derivatives are appended to it.
    weighted : pairs of a value and its weight, both by their numbers in the record.

    Returns
    -------
    The number of the derivative by each value, by the number of the value.
    """
    by_value: dict[int, Symbol] = {}

    def gain(value: int, more: Any) -> None:
        before = by_value.get(value)
        by_value[value] = more if before is None else before + more

    for value, weight in weighted:
        gain(value, Symbol(record, weight))
    for value in range(max((value for value, _ in weighted), default=-1), -1, -1):
        name, *of = record.operations[value]
        if value not in by_value or name not in DERIVATIVES:
            continue
        operands = [Symbol(record, k) for k in of]
        for operand, more in zip(of, DERIVATIVES[name](by_value[value], Symbol(record, value), *operands), strict=True):
            if more is not None:
                gain(operand, more)
    return {value: found.number for value, found in by_value.items()}


def _of_larger(g: Symbol, _: Symbol, a: Symbol, b: Symbol) -> tuple:
    """Return the derivatives of max(a, b); where both are equal each gets half, as in torch."""
    return _shared(g, b < a, a < b, a, b)


def _of_smaller(g: Symbol, _: Symbol, a: Symbol, b: Symbol) -> tuple:
    return _shared(g, a < b, b < a, a, b)


def _shared(g: Symbol, first: Any, second: Any, a: Symbol, b: Symbol) -> tuple:
    if a.is_number or b.is_number:  # a bound; a value that equals it has the derivative of values within the bounds
        return chosen(second, 0.0, g), chosen(first, 0.0, g)
    return chosen(first, g, chosen(second, 0.0, 0.5 * g)), chosen(second, g, chosen(first, 0.0, 0.5 * g))


def _of_angle(g: Symbol, _: Symbol, y: Symbol, x: Symbol) -> tuple:
    share = g / (x * x + y * y)
    return share * x, -(share * y)


# For each operation, a function of g (derivative by its value), v (its value) and its operands, which returns the
# derivatives by the operands; None for operands without one.
DERIVATIVES: dict[str, Callable[..., tuple]] = {
    "add": lambda g, v, a, b: (g, g),
    "sub": lambda g, v, a, b: (g, -g),
    "mul": lambda g, v, a, b: (g * b, g * a),
    "div": lambda g, v, a, b: (g / b, -(g * v / b)),
    "neg": lambda g, v, a: (-g,),
    "root": lambda g, v, a: (0.5 * g / v,),
    "sine": lambda g, v, a: (g * torch.cos(a),),
    "cosine": lambda g, v, a: (-(g * torch.sin(a)),),
    "angle": _of_angle,
    "absolute": lambda g, v, a: (chosen(a < 0.0, -g, chosen(a == 0.0, 0.0, g)),),
    "most": _of_larger,
    "least": _of_smaller,
    "chosen": lambda g, v, where, a, b: (None, chosen(where.condition, g, 0.0), chosen(where.condition, 0.0, g)),
    "exponential": lambda g, v, a: (g * v,),
    "exponential_less_one": lambda g, v, a: (g * (v + 1.0),),
    "logarithm": lambda g, v, a: (g / a,),
    "hyperbolic_tangent": lambda g, v, a: (g * (1.0 - v * v),),
    "sigmoid": lambda g, v, a: (g * v * (1.0 - v),),
    "softplus": lambda g, v, a, bound: (chosen(bound < a, g, g * torch.sigmoid(a)), None),
}

"""Checks of numbers that are to stand in a place of a model: their shape, and the bounds that its module declares."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.values.places import Place, declared, row_of, tensor_at

__all__ = ["problem_of_bounds", "refuse_no_robots", "refuse_out_of_bounds", "refuse_table", "refuse_unfitting"]


def refuse_no_robots(tensor: Tensor, where: str) -> None:
    """Refuse a constant for zero robots, such as an empty selection of rows (0, 1), which would fit no state."""
    if tensor.dim() > 1 and not len(tensor):
        raise InputError(f"{where}: expected numbers of at least one robot, got shape {tuple(tensor.shape)}, of none")


def refuse_unfitting(label: str, place: Place, value: object, batch: int) -> None:
    """Refuse a value that cannot stand in a place: expected is a tensor with one row for each of `batch` robots.

    A single number () for all robots is accepted where the constant is one number.
    """
    module, name = place
    refuse_table(label, place)
    present, row = getattr(module, name), row_of(place)
    if not isinstance(value, Tensor):
        dtype = f"dtype={present.dtype}, device={str(present.device)!r}"
        raise InputError(
            f"{label}: expected a tensor, got {type(value).__name__}; torch.as_tensor(.., {dtype}) makes one"
        )
    number = row == (1,) and not value.dim()
    if not number and tuple(value.shape) != (batch, *row):
        expected = f"() or {(batch, *row)}" if row == (1,) else str((batch, *row))
        raise InputError(f"{label}: expected shape {expected}, got {tuple(value.shape)}")
    if value.dtype != present.dtype or value.device != present.device:
        got = f"{value.dtype} on {value.device}; take value.to({present.dtype}).to({str(present.device)!r})"
        raise InputError(f"{label}: expected {present.dtype} on {present.device}, got {got}")


def refuse_table(label: str, place: Place) -> None:
    """Refuse a place whose tensor is a table over time, which cannot be set for a single step."""
    if declared(place[0], "robot_dimension", 0):
        raise InputError(
            f"{label}: a table over time cannot be set in a step; set what it gives, or train it by trainable.shifted"
        )


def refuse_out_of_bounds(label: str, place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> None:
    """Refuse numbers for a place that are outside of the bounds that its module declares; NaN passes.

    Modules declare names of tensors: those in `positive` are above zero, those in `not_negative` zero or more.
    `open_intervals` maps names to the two numbers that they lie between, and `not_below` has pairs of names, the first
    of which is not below the second.

    Parameters
    ----------
    others : tensors that stand in other places in the same step, to compare pairs with.
    """
    module, name = place
    if name in declared(module, "positive", ()) and bool((value <= 0).any()):
        raise InputError(f"{label}: expected more than 0, got {float(value.min()):g}")
    if name in declared(module, "not_negative", ()) and bool((value < 0).any()):
        raise InputError(f"{label}: expected 0 or more, got {float(value.min()):g}")
    if problem := problem_of_bounds(place, value, others):
        raise InputError(f"{label}: {problem}")


def problem_of_bounds(place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> str | None:
    """Return how a value for a place breaks its module's `open_intervals` or `not_below`, as text; None if not."""
    module, name = place
    intervals = declared(module, "open_intervals", {})
    if name in intervals:
        low, high = intervals[name]
        wrong = value[(value <= low) | (value >= high)]
        if wrong.numel():
            expected = f"more than {low:g}" if high == math.inf else f"a number between {low:g} and {high:g}"
            return f"expected {expected}, got {float(wrong[0]):g}"
    pairs = (pair for pair in declared(module, "not_below", ()) if name in pair)
    return next(filter(None, (_problem_of_order(place, pair, value, others) for pair in pairs)), None)


def _problem_of_order(place: Place, pair: tuple[str, str], value: Tensor, others: Mapping[Place, Tensor]) -> str | None:
    """Return how a value breaks the rule that the first constant of `pair` is not below the second; None if not."""
    module, name = place
    (other_name,) = set(pair) - {name}
    with torch.no_grad():
        other = others.get((module, other_name), tensor_at(module, other_name))
        if other is None:
            return None
        own, beside = torch.broadcast_tensors(value, other)
        wrong = own < beside if name == pair[0] else own > beside
        if not bool(wrong.any()):
            return None
    bound = "no less" if name == pair[0] else "no more"
    return f"expected {bound} than {other_name}, {float(beside[wrong][0]):g}, got {float(own[wrong][0]):g}"

"""Numbers that cannot stand in a place: what a module's shapes and declared bounds refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.values.places import Place, declared, row_of, tensor_at

__all__ = ["problem_of_bounds", "refuse_no_robots", "refuse_out_of_bounds", "refuse_table", "refuse_unfitting"]


def refuse_no_robots(tensor: Tensor, where: str) -> None:
    """Refuse a constant of no robots, such as an empty selection of rows (0, 1), which would fit no state."""
    if tensor.dim() > 1 and not len(tensor):
        raise InputError(f"{where}: expected numbers of at least one robot, got shape {tuple(tensor.shape)}, of none")


def refuse_unfitting(label: str, place: Place, value: Tensor, batch: int) -> None:
    """Refuse a value that cannot stand in a place: expected is a row of each of `batch` robots.

    One number () for all is right where the constant is one number.
    """
    module, name = place
    refuse_table(label, place)
    if not isinstance(value, Tensor):
        raise InputError(f"{label}: expected a tensor, got {type(value).__name__}")
    own, row = getattr(module, name), row_of(place)
    number = row == (1,) and not value.dim()
    if not number and tuple(value.shape) != (batch, *row):
        expected = f"() or {(batch, *row)}" if row == (1,) else str((batch, *row))
        raise InputError(f"{label}: expected shape {expected}, got {tuple(value.shape)}")
    if value.dtype != own.dtype or value.device != own.device:
        raise InputError(f"{label}: expected {own.dtype} on {own.device}, got {value.dtype} on {value.device}")


def refuse_table(label: str, place: Place) -> None:
    """Refuse a place of a table over time, in which a step has nothing to set."""
    if declared(place[0], "robot_dimension", 0):
        raise InputError(
            f"{label}: a table over time cannot be set in a step; set what it gives, or train it by trainable.shifted"
        )


def refuse_out_of_bounds(label: str, place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> None:
    """Refuse numbers in a place that are not within the bounds that its module declares; NaN is within all.

    Names in `positive` are above zero, those in `not_negative` zero or more. `open_intervals` gives for names the two
    numbers that they lie between, and `not_below` pairs of names, of which the first is not below the second.

    Parameters
    ----------
    others : what stands in other places meanwhile.
    """
    module, name = place
    if name in declared(module, "positive", ()) and bool((value <= 0).any()):
        raise InputError(f"{label}: expected more than 0, got {float(value.min()):g}")
    if name in declared(module, "not_negative", ()) and bool((value < 0).any()):
        raise InputError(f"{label}: expected 0 or more, got {float(value.min()):g}")
    if problem := problem_of_bounds(place, value, others):
        raise InputError(f"{label}: {problem}")


def problem_of_bounds(place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> str | None:
    """Return what of `open_intervals` and `not_below` a value in a place does not keep; None where it keeps both."""
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
    """Return what is wrong where the first of two constants of a module is below the second."""
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

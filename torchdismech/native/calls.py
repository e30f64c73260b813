"""Calls of compiled functions, one after the other by compiled code (`calls.cpp`): Python takes as long as they do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from torchdismech.native.compiled import Unavailable, library

__all__ = ["CompiledCall", "compiled_call", "in_turn"]


@dataclass(frozen=True)
class CompiledCall:
    """A call of a compiled function.

    Attributes
    ----------
    function : of a library that stays loaded.
    arguments : whole numbers and addresses.
    expected : what it has to return; None where it returns nothing.
    complain : raises the error of a call that returned something else.
    kept : what the arguments point to, if it is the call's own.
    """

    function: Callable
    arguments: tuple[int, ...]
    expected: int | None = None
    complain: Callable[[int], Any] | None = None
    kept: Any = None


def compiled_call(work: Callable) -> CompiledCall | None:
    """Return some work as a call that compiled code can make; None where it is none, or has other arguments."""
    function: type = ctypes._CFuncPtr  # type: ignore[attr-defined]
    if not isinstance(work, partial) or not isinstance(work.func, function) or work.keywords:
        return None
    given = tuple(0 if argument is None else argument for argument in work.args)
    try:
        fits = len(given) <= _most_arguments() and all(isinstance(argument, int) for argument in given)
    except Unavailable:
        return None
    return CompiledCall(work.func, given) if fits else None


def in_turn(calls: Sequence[CompiledCall]) -> Callable[[], None]:
    """Return what makes these calls, one after the other.

    Raises
    ------
    Unavailable : there is no compiled code.
    """
    arguments = [np.array(call.arguments, dtype=np.int64) for call in calls]
    table = np.array(
        [
            (_address(call.function), len(given), given.ctypes.data, -1 if call.expected is None else call.expected)
            for call, given in zip(calls, arguments, strict=True)
        ],
        dtype=np.int64,
    )
    result = np.zeros(1, dtype=np.int64)
    made = partial(library().code.calls_in_turn, len(table), table.ctypes.data, result.ctypes.data)
    return partial(_make, made, list(calls), result, (table, arguments))


def _make(made: Callable[[], int], calls: list[CompiledCall], result: np.ndarray, _kept: tuple) -> None:
    done = made()
    if done < len(calls):
        complain = calls[done].complain
        assert complain is not None
        complain(int(result[0]))


def _address(function: Callable) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


@lru_cache(None)
def _most_arguments() -> int:
    return library().code.most_arguments()

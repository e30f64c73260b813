"""Calls of compiled functions, one after the other by compiled code (`calls.cpp`): Python takes as long as they do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from torch import Tensor

from torchdismech.native.availability import Unavailable
from torchdismech.native.compiled import library
from torchdismech.native.taping import taped
from torchdismech.system.interrupts import answer_held

__all__ = ["CallTable", "CompiledCall", "CallSequence", "compiled_call", "unless_all"]


@dataclass(frozen=True)
class CompiledCall:
    """A call of a compiled function.

    Attributes
    ----------
    function : of a library that stays loaded.
    arguments : whole numbers and addresses.
    expected : what it has to return; None where it returns nothing.
    otherwise : is called with what the call returned instead, and `given`; it raises an error, or mends what is amiss,
        and the calls that follow go on.
    given : stays as long as the call does.
    """

    function: Callable
    arguments: tuple[int, ...]
    expected: int | None = None
    otherwise: Callable[..., Any] | None = None
    given: tuple = ()

    def __call__(self) -> None:
        """Make the call."""
        returned = self.function(*self.arguments)
        if self.expected is not None and returned != self.expected:
            self.unexpected(returned)

    def unexpected(self, returned: int) -> None:
        """Do what is to be done where a call returned something else than expected."""
        assert self.otherwise is not None
        self.otherwise(returned, *self.given)


def compiled_call(work: Callable) -> CompiledCall | None:
    """Return work as a call that compiled code can make; None if it is no compiled function with a few integers."""
    if isinstance(work, CompiledCall):
        return work
    function: type = ctypes._CFuncPtr  # type: ignore[attr-defined]
    if not isinstance(work, partial) or not isinstance(work.func, function) or work.keywords:
        return None
    given = tuple(0 if argument is None else argument for argument in work.args)
    try:
        fits = len(given) <= _most_arguments() and all(isinstance(argument, int) for argument in given)
    except Unavailable:
        return None
    return CompiledCall(work.func, given) if fits else None


def unless_all(flags: Tensor, work: Callable[..., Any], writes: Sequence[Tensor], reads: Sequence[Tensor]) -> None:
    """Do work(*writes, *reads) where not all flags (n,) hold, now and in every replay of a tape that is being recorded.

    Compiled code reads the flags, so a tape goes through Python only if there is work to do.

    Raises
    ------
    Unavailable : there is no compiled code.
    """
    given = (len(flags), flags.data_ptr())
    call = CompiledCall(library().code.all_hold, given, 1, partial(_worked, work), (*writes, *reads))
    taped(call, *writes, reads=(flags, *reads))


def _worked(work: Callable[..., Any], _: int, *given: Tensor) -> None:
    work(*given)


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64)


class _CalledBack:
    """Work in Python, to be called by compiled code; `call` returns whether no error was raised.

    Signals that are held back are answered before the work.

    Parameters
    ----------
    raised : takes errors, as compiled code could not pass them on.
    """

    def __init__(self, work: Callable[[], Any], raised: list[BaseException]):
        self._work, self._raised = work, raised
        self.call = CompiledCall(CALLBACK(self._done), (), 1)

    def _done(self) -> int:
        try:
            answer_held()
            self._work()
        except BaseException as error:
            self._raised.append(error)
            return 0
        return 1


class CallTable:
    """Calls as compiled code reads them.

    Parameters
    ----------
    work : calls of compiled code, and others.

    Attributes
    ----------
    calls : one after the other.
    address : of the table.
    calls_back : whether there are others, which work on the numbers of tensors alone.
    """

    def __init__(self, work: Sequence[CompiledCall | Callable[[], Any]]):
        self._raised: list[BaseException] = []
        calls = [own if isinstance(own, CompiledCall) else _CalledBack(own, self._raised).call for own in work]
        self._others = {_address(call.function) for call, own in zip(calls, work, strict=True) if call is not own}
        self.calls, self.calls_back = calls, bool(self._others)
        self._arguments = [np.array(call.arguments, dtype=np.int64) for call in calls]
        rows = [
            (_address(call.function), len(given), given.ctypes.data, -1 if call.expected is None else call.expected)
            for call, given in zip(calls, self._arguments, strict=True)
        ]
        self._table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        self.address: int = self._table.ctypes.data

    def raise_errors(self, unexpected: int) -> None:
        """Raise what work in Python raised, where compiled code ended at the function of this address.

        An interrupt by another thread that came before that work had begun is heard by nobody but the function that
        returned: ctypes prints it. Signals are to be held back in these calls.
        """
        if self._raised:
            raise self._raised.pop()
        if unexpected in self._others:
            raise KeyboardInterrupt("between two operations of a recorded step")


class CallSequence:
    """Calls, one after the other.

    Raises
    ------
    Unavailable : there is no compiled code.
    """

    def __init__(self, calls: Sequence[CompiledCall]):
        self.table, self._result = CallTable(calls), np.zeros(1, dtype=np.int64)
        self._count = len(self.table.calls)
        self._make = partial(library().code.calls_in_turn, self._count, self.table.address, self._result.ctypes.data)

    def __call__(self) -> None:
        """Make the calls."""
        first = 0
        while (unexpected := self._make(first)) < self._count:
            self.table.calls[unexpected].unexpected(int(self._result[0]))
            first = unexpected + 1


def _address(function: Callable) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


@lru_cache(None)
def _most_arguments() -> int:
    return library().code.most_arguments()

"""Tables of calls of compiled functions, which compiled code (`calls.cpp`) makes one after the other.

For small tensors a call from Python takes as long as the function itself.
"""

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
    """A call of a compiled function with fixed arguments.

    Attributes
    ----------
    function : of a library that stays loaded.
    arguments : integers and addresses.
    expected : the value that the function has to return; None where it does not matter.
    otherwise : called as `otherwise(returned, *given)` if the function returns another value. It raises an error, or
        does what is left to do, after which the next calls are made.
    given : objects for `otherwise`; they live as long as the call.
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
        """Call `otherwise`, after the function has returned something else than expected."""
        assert self.otherwise is not None
        self.otherwise(returned, *self.given)


def compiled_call(work: Callable) -> CompiledCall | None:
    """Return work as a call that compiled code can make; None if it is no compiled function with integer arguments.

    Parameters
    ----------
    work : any callable; a `partial` of a ctypes function can be converted.
    """
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
    """Call work(*writes, *reads) unless all flags (n,) are True, now and in every replay of a tape being recorded.

    Compiled code reads the flags, so a replay goes through Python only if there is work to do.

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
    """Python work as a function that compiled code can call; `call` returns 1 if no error was raised, else 0.

    Signals that are held back (`system/interrupts.py`) are answered before the work.

    Parameters
    ----------
    raised : list to which errors are appended, as compiled code cannot pass them on.
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
    """A table of calls in memory, as compiled code reads it.

    Parameters
    ----------
    work : compiled calls, and Python callables, which compiled code calls back.

    Attributes
    ----------
    calls : all of them as compiled calls, in order.
    address : of the table.
    calls_back : whether some are Python callables. These may change the numbers of tensors, and nothing else.
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
        """Raise the error of a Python callable, after compiled code ended at the function of address `unexpected`.

        Signals have to be held back during the calls. An interrupt that another thread sent before the callable had
        begun leaves no error here, because ctypes prints it and goes on; it is raised as KeyboardInterrupt.
        """
        if self._raised:
            raise self._raised.pop()
        if unexpected in self._others:
            raise KeyboardInterrupt("between two operations of a recorded step")


class CallSequence:
    """Compiled calls that are made one after the other by a single call from Python.

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

"""Recorded steps one after the other by compiled code (`calls.cpp`), as long as nothing in them is for Python.

Of one robot a step takes a third of a millisecond, and Python between the parts of it took as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.native.calls import CallTable
from torchdismech.native.compiled import library
from torchdismech.native.strided import Rows, Untabled, carried_out, place_of
from torchdismech.system.interrupts import held_back

__all__ = ["EachStep", "Ended", "StepCalls", "StepsInTurn", "VaryingRows"]

NO_CALLS = CallTable(())


class Ended(IntEnum):
    """What ended some steps, in the order of calls.cpp."""

    ALL_TAKEN = 0
    SEARCH = 1  # a round of the search was none that recordings take
    CHECK = 2  # something that is zero after a step that went well was not
    UNEXPECTED = 3  # a call did not return what is expected: the step is to be taken from its set-up on


@dataclass(frozen=True)
class EachStep:
    """A tensor for each step.

    Attributes
    ----------
    first : that of the first step; the others are like it.
    addresses : (T,) of all.
    held : what has their numbers.
    """

    first: Tensor
    addresses: np.ndarray
    held: Any

    @classmethod
    def along(cls, tensor: Tensor, backward: bool = False) -> EachStep:
        """Return the tensors along the first dimension (T, ...), from the last on if `backward`."""
        numbers = np.arange(len(tensor))[:: -1 if backward else 1]
        addresses = tensor.data_ptr() + numbers * (tensor.stride(0) * tensor.element_size())
        return cls(tensor[-1 if backward else 0], addresses, tensor)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> EachStep:
        """Return some tensors.

        Raises
        ------
        Untabled : they do not lie alike in memory.
        """
        first = tensors[0]
        if any(t.shape != first.shape or t.stride() != first.stride() or t.dtype != first.dtype for t in tensors):
            raise Untabled("tensors that lie differently")
        return cls(first, np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64), tensors)


class VaryingRows:
    """Operations on tensors, of which some are others in each step."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._varying: list[tuple[int, int, EachStep]] = []

    def add(self, name: str, *operands: Tensor | EachStep) -> None:
        """Add an operation that writes the first operand and reads the others.

        Raises
        ------
        Untabled : there is no row for it.
        """
        number = len(self._rows.numbers)
        self._rows.add(name, *(own.first if isinstance(own, EachStep) else own for own in operands))
        if len(self._rows.numbers) > number:  # there are numbers in it
            self._varying += [(number, k, own) for k, own in enumerate(operands) if isinstance(own, EachStep)]

    def table(self) -> tuple[CallTable, list[tuple[int, EachStep]]]:
        """Return the calls that do it, and the addresses that vary: where they stand, and of what."""
        if not self._rows.numbers:
            return NO_CALLS, []
        call = carried_out([self._rows])
        (numbers,) = call.given
        varying = [(numbers.ctypes.data + place_of(row, k), own) for row, k, own in self._varying]
        return CallTable([call]), varying


@dataclass(frozen=True)
class StepCalls:
    """The parts of a step, in turn; a step without rounds is a set-up alone.

    Attributes
    ----------
    set_up, end : before the first round of a search, and after the last.
    round, last_round : a round with the next matrix, and one without.
    handed_on : what puts that to which the step led where the next begins.
    flags : of both kinds of rounds, as `solve.newton.plain_round` returns them.
    """

    set_up: CallTable
    round: CallTable = NO_CALLS
    last_round: CallTable = NO_CALLS
    end: CallTable = NO_CALLS
    handed_on: CallTable = NO_CALLS
    flags: Sequence[Tensor] = ()


class StepsInTurn:
    """Steps one after the other.

    Parameters
    ----------
    calls : of a step.
    given, kept : what is done before and after each step.
    checks : tensors that are all zero after a step that went well.

    Raises
    ------
    Unavailable : there is no compiled code.
    """

    def __init__(self, calls: StepCalls, given: VaryingRows, kept: VaryingRows, checks: Sequence[Tensor]):
        before, varying = given.table()
        after, more = kept.table()
        varying += more
        tables = (before, calls.set_up, calls.round, calls.last_round, calls.end, after, calls.handed_on)
        self._places = np.array([(place, own.addresses.ctypes.data) for place, own in varying], dtype=np.int64)
        self._checks = np.array([(t.data_ptr(), t.numel() * t.element_size()) for t in checks], dtype=np.int64)
        # the fields of `Steps` in calls.cpp, one after the other
        numbers = [number for own in tables for number in (len(own.calls), own.address)]
        numbers += [flag.data_ptr() for flag in calls.flags] if calls.flags else [0, 0]
        numbers += [len(checks), self._checks.ctypes.data, len(varying), self._places.ctypes.data]
        self._numbers, self._ended = np.array(numbers, dtype=np.int64), np.zeros(2, dtype=np.int64)
        self._calls_back = [own for own in tables if own.calls_back]
        self._held = (tables, calls, checks, varying)  # the table knows them by their addresses
        self._take = partial(library().code.steps_in_turn, self._numbers.ctypes.data)

    def taken(self, first: int, count: int) -> tuple[int, Ended]:
        """Take the steps from number `first` up to `count`; return the number of the first that is left, and why."""
        if self._calls_back:  # operations of torch, on numbers alone
            with held_back(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                reached = self._take(first, count, self._ended.ctypes.data)
            for table in self._calls_back:
                table.raise_errors(int(self._ended[1]))
        else:
            reached = self._take(first, count, self._ended.ctypes.data)
        return reached, Ended(int(self._ended[0]))

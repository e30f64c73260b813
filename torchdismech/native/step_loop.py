"""StepLoop: recorded steps one after the other by compiled code (`calls.cpp`), as long as none is for Python.

Of one robot a step takes a third of a millisecond, and Python between the parts of it took as long. The parts are
tapes, and work on memory that stays where it is. What is another tensor in each step, such as the control that a step
is given and the place where its state is kept, is copied before or after the step, by instructions (`instructions.py`)
in which the addresses are exchanged from step to step.
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
from torchdismech.native.instructions import Instructions, NoInstruction, address_offset, interpreted
from torchdismech.system.interrupts import held_back

__all__ = ["NO_CALLS", "PerStep", "PerStepInstructions", "StepCalls", "StepLoop", "StopReason"]

NO_CALLS = CallTable(())


class StopReason(IntEnum):
    """Why a loop ended, in the order of calls.cpp."""

    ALL_TAKEN = 0
    UNSORTED = 1  # some row may need another step than the whole Newton step
    CHECK = 2  # something that is zero after a step that went well was not
    UNEXPECTED = 3  # a call did not return what is expected: the step is to be taken from its set-up on
    LOST_ROWS = 4  # the search has come to its end, and not all rows to a root
    SHORTENED = 5  # the last round was sorted out, and some row tries a part of its step next


@dataclass(frozen=True)
class PerStep:
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
    def along(cls, tensor: Tensor, backward: bool = False) -> PerStep:
        """Return the tensors along the first dimension (T, ...), from the last on if `backward`."""
        numbers = np.arange(len(tensor))[:: -1 if backward else 1]
        addresses = tensor.data_ptr() + numbers * (tensor.stride(0) * tensor.element_size())
        return cls(tensor[-1 if backward else 0], addresses, tensor)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> PerStep:
        """Return some tensors.

        Raises
        ------
        NoInstruction : they do not lie alike in memory.
        """
        first = tensors[0]
        if any(t.shape != first.shape or t.stride() != first.stride() or t.dtype != first.dtype for t in tensors):
            raise NoInstruction("tensors that lie differently")
        return cls(first, np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64), tensors)


class PerStepInstructions:
    """Operations on tensors, of which some are others in each step."""

    def __init__(self) -> None:
        self._instructions = Instructions()
        self._varying: list[tuple[int, int, PerStep]] = []  # number of an instruction, and of an operand, and that

    def add(self, name: str, *operands: Tensor | PerStep) -> None:
        """Add an operation that writes the first operand and reads the others.

        Raises
        ------
        NoInstruction : there is none for it.
        """
        number = len(self._instructions.encoded)
        self._instructions.add(name, *(own.first if isinstance(own, PerStep) else own for own in operands))
        if len(self._instructions.encoded) > number:  # there are numbers in it
            self._varying += [(number, k, own) for k, own in enumerate(operands) if isinstance(own, PerStep)]

    def calls(self) -> tuple[CallTable, list[tuple[int, PerStep]]]:
        """Return the calls that do it, and the addresses that vary: where they stand, and of what."""
        if not self._instructions.encoded:
            return NO_CALLS, []
        call = interpreted([self._instructions])
        (table,) = call.given
        varying = [(table.ctypes.data + address_offset(number, k), own) for number, k, own in self._varying]
        return CallTable([call]), varying


@dataclass(frozen=True)
class StepCalls:
    """The parts of a step, in turn; a step without rounds is a set-up alone.

    Attributes
    ----------
    set_up, end : before the first round of a search, and after the last.
    round, last_round : a round with the next matrix, and one without.
    sort_out : what is done after a round with the next matrix whose steps raise the norm of some row; may be empty.
    hand_on : what puts that to which the step led where the next begins.
    flags : of `round`, `last_round` and `sort_out`, as `integrate.recorded.rounds` has them.
    """

    set_up: CallTable
    round: CallTable = NO_CALLS
    last_round: CallTable = NO_CALLS
    sort_out: CallTable = NO_CALLS
    end: CallTable = NO_CALLS
    hand_on: CallTable = NO_CALLS
    flags: Sequence[Tensor] = ()


class StepLoop:
    """Steps one after the other.

    Parameters
    ----------
    calls : of a step.
    before, after : what is done before and after each step.
    checks : tensors that are all zero after a step that went well.

    Raises
    ------
    Unavailable : there is no compiled code.
    """

    def __init__(
        self, calls: StepCalls, before: PerStepInstructions, after: PerStepInstructions, checks: Sequence[Tensor]
    ):
        before_calls, varying_before = before.calls()
        after_calls, varying_after = after.calls()
        varying = [*varying_before, *varying_after]
        rounds = calls.round, calls.last_round, calls.sort_out
        tables = before_calls, calls.set_up, *rounds, calls.end, after_calls, calls.hand_on
        self._places = np.array([(place, own.addresses.ctypes.data) for place, own in varying], dtype=np.int64)
        self._checks = np.array([(t.data_ptr(), t.numel() * t.element_size()) for t in checks], dtype=np.int64)
        # the fields of `Steps` in calls.cpp, one after the other
        fields = [number for own in tables for number in (len(own.calls), own.address)]
        fields += [flag.data_ptr() for flag in calls.flags] if calls.flags else [0, 0, 0]
        fields += [len(checks), self._checks.ctypes.data, len(varying), self._places.ctypes.data]
        self._fields, self._end = np.array(fields, dtype=np.int64), np.zeros(2, dtype=np.int64)
        self._calls_back = [own for own in tables if own.calls_back]
        self._held = (tables, calls, checks, varying)  # the fields know them by their addresses
        self._run = partial(library().code.steps_in_turn, self._fields.ctypes.data)

    def run(self, first: int, count: int) -> tuple[int, StopReason]:
        """Take the steps from number `first` up to `count`; return the number of the first that is left, and why."""
        if self._calls_back:  # operations of torch, on numbers alone
            with held_back(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                reached = self._run(first, count, self._end.ctypes.data)
            for table in self._calls_back:
                table.raise_errors(int(self._end[1]))
        else:
            reached = self._run(first, count, self._end.ctypes.data)
        return reached, StopReason(int(self._end[0]))

"""StepLoop: many recorded steps taken by compiled code (`calls.cpp`), until one needs Python.

A step of one robot takes a third of a millisecond, and Python between its parts would take as long again. The parts of
a step are tapes, on memory at fixed addresses. Tensors that differ from step to step, such as the control of a step or
the place where its state is stored, are copied before or after the step by instructions (`instructions.py`) whose
addresses are exchanged for each step.
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
    """Why a loop ended, in the order of `StopReason` in calls.cpp."""

    ALL_TAKEN = 0
    BAD_STEP = 1  # the whole Newton step of some row is no good one, and there is no `accept_or_shorten`
    CHECK = 2  # a tensor that has to be zero after a successful step was not
    UNEXPECTED = 3  # a call returned an unexpected value: the step has to be taken again from its set-up on
    LOST_ROWS = 4  # the search has ended, and some row without a root
    SHORTENED = 5  # after `accept_or_shorten` some row has to try a part of its step, or needs another factorization


@dataclass(frozen=True)
class PerStep:
    """One tensor for each of T steps, all with the same shape, strides and dtype.

    Attributes
    ----------
    first : a tensor that lies as all of them do; a loop does not keep it alive.
    addresses : (T,) of all tensors; a loop reads them anew in each step.
    held : object that keeps the tensors' memory alive as long as a loop; None if who runs the loop does that.
    """

    first: Tensor
    addresses: np.ndarray
    held: Any

    @property
    def layout(self) -> tuple:
        """Shape, strides and dtype of each of the tensors."""
        return self.first.shape, self.first.stride(), self.first.dtype

    @classmethod
    def along(cls, tensor: Tensor, backward: bool = False) -> PerStep:
        """Return the slices of a tensor (T, ...) along its first dimension, from the last on if `backward`."""
        numbers = np.arange(len(tensor))[:: -1 if backward else 1]
        addresses = tensor.data_ptr() + numbers * (tensor.stride(0) * tensor.element_size())
        return cls(tensor[-1 if backward else 0], addresses, tensor)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> PerStep:
        """Return the object for a sequence of T tensors.

        Raises
        ------
        NoInstruction : their shapes, strides or dtypes differ.
        """
        first = tensors[0]
        if any(t.shape != first.shape or t.stride() != first.stride() or t.dtype != first.dtype for t in tensors):
            raise NoInstruction("tensors that lie differently")
        return cls(first, np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64), tensors)


class PerStepInstructions:
    """Instructions some operands of which are other tensors in each step."""

    def __init__(self) -> None:
        self._instructions = Instructions()
        self._varying: list[tuple[int, int, PerStep]] = []  # (index of an instruction, index of the operand, operand)

    def add(self, name: str, *operands: Tensor | PerStep) -> None:
        """Append an operation that writes the first operand and reads the others.

        Raises
        ------
        NoInstruction : the operation has no instruction.
        """
        number = len(self._instructions.encoded)
        self._instructions.add(name, *(own.first if isinstance(own, PerStep) else own for own in operands))
        if len(self._instructions.encoded) > number:  # no instruction is added for empty tensors
            self._varying += [(number, k, own) for k, own in enumerate(operands) if isinstance(own, PerStep)]

    def calls(self) -> tuple[CallTable, list[tuple[int, PerStep]]]:
        """Return the calls that carry the operations out, and the varying operands.

        Each of these comes with the address in memory where the address of its tensor has to be written.
        """
        if not self._instructions.encoded:
            return NO_CALLS, []
        call = interpreted([self._instructions])
        (table,) = call.given
        varying = [(table.ctypes.data + address_offset(number, k), own) for number, k, own in self._varying]
        return CallTable([call]), varying


@dataclass(frozen=True)
class StepCalls:
    """The calls of the parts of a step, in order; a step without rounds consists of the set-up alone.

    Attributes
    ----------
    set_up, end : calls before the first round of Newton's method, and after the last.
    round, last_round : a round that evaluates the next matrix, and one that does not.
    accept_or_shorten : calls after a `round` in which the step of some row was no good one; may be empty.
    hand_on : calls that copy the state after the step to where the next step begins.
    flags : tensors of flags that `round`, `last_round` and `accept_or_shorten` write, see `integrate.recorded.rounds`.
    contact_flags : of steps on obstacles that are constraints, the flags that `set_up` and both rounds write, see
        `integrate.recorded.contact_step`; there `round` is one without closed contacts, and `last_round` one with them.
    rounds_before : (1,) how many rounds the last step took, which each step writes; needed where there are `flags`.
    """

    set_up: CallTable
    round: CallTable = NO_CALLS
    last_round: CallTable = NO_CALLS
    accept_or_shorten: CallTable = NO_CALLS
    end: CallTable = NO_CALLS
    hand_on: CallTable = NO_CALLS
    flags: Sequence[Tensor] = ()
    contact_flags: Tensor | None = None
    rounds_before: np.ndarray | None = None


class StepLoop:
    """A loop over recorded steps in compiled code.

    Parameters
    ----------
    calls : the parts of a step.
    before, after : instructions before and after each step.
    checks : tensors that are all zero after a successful step.

    Attributes
    ----------
    calls_back : whether it calls Python back, for operations of torch; each time costs more than Python's own call.

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
        self._exchanged = [(own.addresses, own.held) for _, own in varying]  # kept alive
        rounds = calls.round, calls.last_round, calls.accept_or_shorten
        tables = before_calls, calls.set_up, *rounds, calls.end, after_calls, calls.hand_on
        self._places = np.array([(place, own.addresses.ctypes.data) for place, own in varying], dtype=np.int64)
        self._checks = np.array([(t.data_ptr(), t.numel() * t.element_size()) for t in checks], dtype=np.int64)
        # the fields of `Steps` in calls.cpp, in order
        fields = [number for own in tables for number in (len(own.calls), own.address)]
        fields += [flag.data_ptr() for flag in calls.flags] if calls.flags else [0, 0, 0]
        fields.append(0 if calls.contact_flags is None else calls.contact_flags.data_ptr())
        fields.append(0 if calls.rounds_before is None else calls.rounds_before.ctypes.data)
        fields += [len(checks), self._checks.ctypes.data, len(varying), self._places.ctypes.data]
        self._fields, self._end = np.array(fields, dtype=np.int64), np.zeros(2, dtype=np.int64)
        self._calling_back = [own for own in tables if own.calls_back]
        self.calls_back = bool(self._calling_back)
        self._held = (tables, calls, checks)  # kept alive, as the fields are addresses of their memory
        self._run = partial(library().code.steps_in_turn, self._fields.ctypes.data)

    def exchange(self, varying: Sequence[PerStep]) -> None:
        """Take other tensors of each step, laid out like those in `before` and then `after`, in the same order."""
        self._places[:, 1] = [own.addresses.ctypes.data for own in varying]
        self._exchanged = [(own.addresses, own.held) for own in varying]

    def run(self, first: int, count: int) -> tuple[int, StopReason]:
        """Take the steps with indices `first`, ..., `count` - 1, in order.

        Return the index of the first step that was not taken, `count` if all were, and the reason.
        """
        if self._calling_back:  # these are operations of torch on plain numbers, without autograd
            try:
                with held_back(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                    reached = self._run(first, count, self._end.ctypes.data)
            finally:  # also where a signal's handler raises: a run leaves no error to the next one
                for table in self._calling_back:
                    table.raise_errors(int(self._end[1]))
        else:
            reached = self._run(first, count, self._end.ctypes.data)
        return reached, StopReason(int(self._end[0]))

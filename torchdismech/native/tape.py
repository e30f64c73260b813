"""Work on a CPU as a tape: each operation again, on the memory that it was recorded with, without the Python around it.

What a CUDA graph is to a GPU. A step of one robot is some hundred operations of a few microseconds each, and takes
several times as long as they do together. Three things make a replay fast:

- most operations need no call of torch: `lowering.py` turns them into instructions that compiled code carries out, many
  at a time (`instructions.py`);
- calls of compiled code that follow one another are one call (`calls.py`);
- what an operation made and nothing needs any more gives way to what later ones make (`pool.py`), and what nobody reads
  in the end is left out (`operations.py`).

`recorder.py` keeps the operations while a function runs. A tape knows memory by its address: what it reads and its
outputs stay where they are, and every replay writes the outputs anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, TypeVar

import torch

from torchdismech.native.calls import CallSequence, CallTable, CompiledCall, compiled_call
from torchdismech.native.instructions import Instructions, interpreted
from torchdismech.native.operations import Operation, needed_operations, storages_read
from torchdismech.native.pool import Pool
from torchdismech.native.recorder import NumbersRefused, TapeRecorder
from torchdismech.native.taping import listened_to_by, taped, taping

__all__ = ["Tape", "recorded_on_tape"]

T = TypeVar("T")


@dataclass(frozen=True)
class Tape(Generic[T]):
    """The operations of a function, and the tensors that it made and returned, which every replay writes anew.

    Attributes
    ----------
    work : to be called in turn, some of it many operations in one.
    outputs : of the function.
    held : memory that the operations work on, besides that of the pool.
    pool : where what they make lives.
    calls_torch : whether some operation is one of torch.
    reads : the addresses at which the storages begin that operations read or that are outputs, which may be handed
        through; None where that may be all.
    """

    work: tuple[Callable[[], Any], ...]
    outputs: T
    held: list[Any]
    pool: Pool
    calls_torch: bool = True
    reads: frozenset[int] | None = None

    @cached_property
    def table(self) -> CallTable:
        """All that the tape does, as compiled code reads it."""
        return CallTable([*self._calls()])

    def _calls(self) -> Iterator[CompiledCall | Callable[[], Any]]:
        """Yield what the tape does, one call after the other."""
        for own in self.work:
            yield from own.table.calls if isinstance(own, CallSequence) else (own,)

    def replay(self) -> T:
        """Run the operations; return the outputs. Gradients are not recorded.

        Where another tape is being recorded they are put on that one, too, which needs a pool other than this tape's:
        what it has made by then is not to be overwritten.
        """
        if taping():
            for call in self._calls():
                taped(call, self)
            return self.outputs
        if not self.calls_torch:
            for own in self.work:
                own()
            return self.outputs
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            for own in self.work:
                own()
        return self.outputs


def recorded_on_tape(function: Callable[[], T], pool: Pool) -> Tape[T]:
    """Return the operations of a function on tensors of the CPU, which runs once.

    Operations of torch are recorded as such; all other work on the numbers of tensors has to be `taped` (`taping.py`).
    What the function makes and lets go of gives way to what it makes later, in this tape and in others of the pool.

    Raises
    ------
    NumbersRead : by an operation that it names.
    """
    recorder = TapeRecorder(pool)
    with torch.no_grad(), listened_to_by(recorder), recorder, NumbersRefused(recorder):
        outputs = function()
    needed = list(needed_operations(recorder.operations, outputs, pool))
    work: list[Callable[[], Any]] = []
    calls_torch = False
    for compiled, group in groupby(_calls_of(needed), lambda call: isinstance(call, CompiledCall)):
        calls: list[Any] = list(group)
        work += [CallSequence(calls)] if compiled else calls
        calls_torch |= not compiled
    return Tape(tuple(work), outputs, recorder.held, pool, calls_torch, storages_read(needed, outputs))


def _calls_of(operations: Sequence[Operation]) -> Iterator[CompiledCall | Callable[[], Any]]:
    """Yield what is to be called: operations one by one, or one call for all instructions that follow one another."""
    waiting: list[Instructions] = []
    for operation in operations:
        if operation.instructions is not None:
            waiting.append(operation.instructions)
            continue
        if operation.call is None:
            continue
        if waiting:
            yield interpreted(waiting)
        waiting = []
        yield compiled_call(operation.call) or operation.call
    if waiting:
        yield interpreted(waiting)

"""Tapes: recordings of functions on a CPU, whose operations are run again on the same memory, without the Python code.

A tape is for a CPU what a CUDA graph is for a GPU. A step of one robot is some hundred operations of a few microseconds
each, and the Python around them takes several times as long. Three things make a replay fast:

- most operations need no call of torch: `lowering.py` turns them into instructions that compiled code carries out, many
  at a time (`instructions.py`);
- consecutive calls of compiled code are made by a single call (`calls.py`);
- the memory of results that are no longer needed is reused by later ones (`pool.py`), and operations whose results
  nobody reads are left out (`operations.py`).

`recorder.py` records the operations while a function runs. A tape knows memory by its address: its inputs and outputs
keep their addresses, and every replay overwrites the outputs.
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
    """The recorded operations of a function, and the tensors that it returned, which every replay overwrites.

    Attributes
    ----------
    work : callables in order, some of which carry out many operations.
    outputs : what the function returned.
    held : objects that keep the memory of the operations alive, beside that of the pool.
    pool : memory of the results.
    calls_torch : whether some operation is a call of torch, or of other Python code.
    reads : addresses of the storages that operations read or that belong to outputs (an output may be an input); None
        if any storage may be read.
    """

    work: tuple[Callable[[], Any], ...]
    outputs: T
    held: list[Any]
    pool: Pool
    calls_torch: bool = True
    reads: frozenset[int] | None = None

    @cached_property
    def table(self) -> CallTable:
        """All calls of the tape as a table that compiled code reads."""
        return CallTable([*self._calls()])

    def _calls(self) -> Iterator[CompiledCall | Callable[[], Any]]:
        """Yield the single calls of the tape, in order."""
        for own in self.work:
            yield from own.table.calls if isinstance(own, CallSequence) else (own,)

    def replay(self) -> T:
        """Run the operations; return the outputs. Autograd does not follow them.

        If another tape is being recorded, the operations become part of it. That tape needs another pool than this one:
        otherwise the operations could overwrite results that it has made before.
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
    """Return the tape of a function on CPU tensors, which is run once.

    Operations of torch are recorded automatically; all other work on the numbers of tensors has to be `taped`
    (`taping.py`). The memory of temporary tensors is reused for later ones, in this tape and in others on the pool.

    Raises
    ------
    NumbersRead : an operation, named in the message, reads numbers on the host.
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
    """Yield the calls that carry out operations: one for each, or one for all consecutive instructions."""
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

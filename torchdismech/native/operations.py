"""The operations that a tape keeps, and which of them its replays need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchdismech.native.instructions import Instructions
from torchdismech.native.pool import Pool
from torchdismech.native.tensor_trees import storages_in

__all__ = ["Operation", "needed_operations", "storages_read"]


@dataclass(frozen=True)
class Operation:
    """An operation, and the storages that it reads and writes, each known by the address at which it begins.

    Attributes
    ----------
    call : of torch, or other work; None where there are instructions, and where memory is taken with nothing in it.
    reads : None if it may read any storage.
    constant : whether it gives the same results each time that its storages hold the same.
    overwrites : whether it writes all of its output and reads none of it.
    instructions : that do what the operation does.
    """

    call: Callable[[], Any] | None
    reads: frozenset[int] | None
    writes: frozenset[int]
    constant: bool = True
    overwrites: bool = False
    instructions: Instructions | None = None


def needed_operations(operations: Sequence[Operation], outputs: Any, pool: Pool) -> Iterator[Operation]:
    """Yield the operations whose results are used, without those that give the same numbers in each replay.

    Parameters
    ----------
    outputs : tensors that whoever replays the tape reads, and may write to.
    pool : where results live that give way to later ones.
    """
    writers: dict[int, int] = {}  # the only operation that writes to a storage; -1 where there are several
    for number, operation in enumerate(operations):
        for storage in operation.writes:
            writers[storage] = number if storage not in writers else -1
    changed_outside = storages_in(outputs)
    constant: set[int] = set()  # storages that hold the same in each replay
    used = _used(operations, outputs, pool)
    for number, operation in enumerate(operations):
        if not used[number]:
            continue
        alone = all(writers[storage] == number and storage not in changed_outside for storage in operation.writes)
        if operation.constant and alone and operation.reads is not None and operation.reads <= constant:
            constant |= operation.writes
        else:
            yield operation


def _used(operations: Sequence[Operation], outputs: Any, pool: Pool) -> list[bool]:
    """Return for each operation whether something reads what it writes: a later one, or whoever has it at the end.

    Backward passes evaluate a good deal of which they need the derivatives alone.
    """
    wanted = storages_in(outputs) | pool.taken()
    used = [False] * len(operations)
    for number in range(len(operations) - 1, -1, -1):
        operation = operations[number]
        outside = not operation.writes or not operation.writes <= pool.blocks
        if outside or not operation.writes.isdisjoint(wanted):
            used[number] = True
            wanted = wanted - operation.writes if operation.overwrites else wanted
            wanted = wanted | (pool.blocks if operation.reads is None else operation.reads)
    return used


def storages_read(operations: Sequence[Operation], outputs: Any) -> frozenset[int] | None:
    """Return the storages that operations read or that are outputs; None if they may read any."""
    read = set(storages_in(outputs))
    for operation in operations:
        if operation.reads is None:
            return None
        read |= operation.reads
    return frozenset(read)

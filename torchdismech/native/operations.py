"""Operations as a tape records them, and the selection of those that its replays need."""

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
    """A recorded operation, and the storages that it reads and writes, each known by the address where it begins.

    Attributes
    ----------
    call : call that carries the operation out; None if there are instructions, or if it only allocates memory.
    reads : storages that it reads; None if it may read any storage.
    writes : storages that it writes.
    constant : whether its results are the same in each replay, as it reads only storages that are constant so far; a
        later operation may still write to these, or to its results.
    overwrites : whether it writes the whole of its output and reads none of it.
    instructions : instructions that carry the operation out; None if there are none.
    """

    call: Callable[[], Any] | None
    reads: frozenset[int] | None
    writes: frozenset[int]
    constant: bool = True
    overwrites: bool = False
    instructions: Instructions | None = None


def needed_operations(operations: Sequence[Operation], outputs: Any, pool: Pool) -> Iterator[Operation]:
    """Yield the operations whose results are used, without those whose results are the same in each replay.

    Parameters
    ----------
    outputs : tensors that the caller of a replay reads, and may write to.
    pool : memory of temporary results, which later results reuse.
    """
    writers: dict[int, int] = {}  # the only operation that writes to a storage; -1 where there are several
    for number, operation in enumerate(operations):
        for storage in operation.writes:
            writers[storage] = number if storage not in writers else -1
    changed_outside = storages_in(outputs)
    constant: set[int] = set()  # storages whose content is the same in each replay
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
    """Return for each operation whether its result may be read.

    It may be read by a later operation, through a tensor that still exists, or in memory outside of the pool. Many
    operations of backward passes compute values of which only the derivatives are used.
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
    """Return the storages that operations read or that belong to outputs; None if any storage may be read."""
    read = set(storages_in(outputs))
    for operation in operations:
        if operation.reads is None:
            return None
        read |= operation.reads
    return frozenset(read)

"""Work on a CPU as a tape: each operation again, on the memory that it was recorded with, without the Python around it.

What a CUDA graph is to a GPU. A step of one robot is some hundred operations of a few microseconds each, and takes
several times as long as they do together. Most of them need no call of torch either: compiled code carries them out,
many at a time (`strided.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchdismech.native.availability import Unavailable
from torchdismech.native.calls import CallTable, CompiledCall, InTurn, compiled_call
from torchdismech.native.compiled import library
from torchdismech.native.pool import Pool
from torchdismech.native.strided import Rows, Untabled, carried_out, rows_of
from torchdismech.native.taping import listened_to_by, taped, taping

__all__ = ["NumbersRead", "Tape", "recorded_on_tape"]

T = TypeVar("T")
aten = torch.ops.aten

# operations that give memory with nothing in it
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# operations whose result depends on shapes and plain numbers alone
FILLED = {"full", "ones", "zeros", "full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros"}
COPIES = {"_to_copy", "clone"}
NUMBERS_ON_THE_HOST = (Tensor.numpy, Tensor.tolist, Tensor.__array__)


class NumbersRead(RuntimeError):
    """A function reads numbers, so that what it does next may depend on them."""


@dataclass(frozen=True)
class Tape(Generic[T]):
    """The operations of a function, and the tensors that it made and returned, which every replay writes anew.

    Attributes
    ----------
    operations : to be called in turn, some of them many in one.
    outputs : of the function.
    memory : that the operations work on, besides that of the pool.
    pool : where what they make lives.
    calls_torch : whether some operation is one of torch.
    reads : where the storages begin that operations read or that are outputs, which may be handed through; None where
        that may be all.
    """

    operations: tuple[Callable[[], Any], ...]
    outputs: T
    memory: list[Any]
    pool: Pool
    calls_torch: bool = True
    reads: frozenset[int] | None = None

    @cached_property
    def table(self) -> CallTable:
        """All that the tape does, as compiled code reads it."""
        every = ([*own.table.calls] if isinstance(own, InTurn) else [own] for own in self.operations)
        return CallTable([call for some in every for call in some])

    def replay(self) -> T:
        """Run the operations; return the outputs. Gradients are not recorded.

        Where another tape is being recorded they are put on that one, too, which needs a pool other than this tape's:
        what it has made by then is not to be overwritten.
        """
        if taping():
            for operation in self.operations:
                for call in operation.table.calls if isinstance(operation, InTurn) else (operation,):
                    taped(call, self)
            return self.outputs
        if not self.calls_torch:
            for operation in self.operations:
                operation()
            return self.outputs
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            for operation in self.operations:
                operation()
        return self.outputs


def recorded_on_tape(function: Callable[[], T], pool: Pool) -> Tape[T]:
    """Return the operations of a function on tensors of the CPU, which runs once.

    Operations of torch are recorded as such; all other work on the numbers of tensors has to be `taped` (`taping.py`).
    What the function makes and lets go of gives way to what it makes later, in this tape and in others of the pool.

    Raises
    ------
    NumbersRead : by an operation that it names.
    """
    recorder = _Recorder(pool)
    with torch.no_grad(), listened_to_by(recorder), recorder, _NothingRead(recorder):
        outputs = function()
    return recorder.tape(outputs)


@dataclass(frozen=True)
class _Operation:
    """An operation, and the storages that it reads and writes.

    Attributes
    ----------
    call : of torch, or other work; None where there are rows, and where memory is taken with nothing in it.
    reads : None if it may read any storage.
    constant : whether it gives the same results each time that its storages hold the same.
    makes : whether it overwrites all of its output and reads none of it.
    rows : of the table that compiled code carries out.
    """

    call: Callable[[], Any] | None
    reads: frozenset[int] | None
    writes: frozenset[int]
    constant: bool = True
    makes: bool = False
    rows: Rows | None = None


class _Recorder(TorchDispatchMode):
    """Keeps what is called, each operation in a form that writes where the recorded one did.

    Parameters
    ----------
    pool : where what operations make is to live.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.memory: list[Any] = []
        self.looks_away = False  # while work is done that torch does not see
        self._pool = pool
        self._same: set[int] = set()  # memory of what is the same in each replay, unless something writes to it later
        try:
            library()
            self._tables = True
        except Unavailable:
            self._tables = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled by torch, whose compiler takes seconds to import

    def __torch_dispatch__(self, func: OpOverload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.looks_away:
            return func(*args, **kwargs)
        _refuse_reading(func, args)
        with self._looking_away():  # what an operator of the library's own does is part of it
            result = func(*args, **kwargs)
        reads = _storages((args, kwargs))
        self._keep((args, kwargs))
        if func._schema.is_mutable:
            self._add(func, args, kwargs, result, reads, constant=False)
        elif not _storages(result) & reads:  # views stay what they are
            self._take_in(func, args, kwargs, result, frozenset() if _name(func) in FILLED else reads)
        return result

    def _take_in(self, func: OpOverload, args: tuple, kwargs: dict[str, Any], result: Any, reads: frozenset) -> None:
        """Keep an operation that makes new tensors."""
        empty = _name(func) in EMPTY or not any(tensor.numel() for tensor in _tensors(result))
        constant = not empty and reads <= self._same
        for tensor in _tensors(result):
            if constant:
                self.memory.append(tensor)  # it is not made again
                self._same.add(tensor.untyped_storage().data_ptr())
            else:
                self._pool.adopt(tensor, keep_numbers=not empty)
        if empty:
            self.operations.append(_Operation(None, frozenset(), _storages(result), constant=False, makes=True))
        else:
            self._add(func, args, kwargs, result, reads, constant)

    def _add(
        self, func: OpOverload, args: tuple, kwargs: dict[str, Any], result: Any, reads: frozenset, constant: bool
    ) -> None:
        """Keep an operation, as rows of a table where compiled code can do what it does."""
        writes = reads if func._schema.is_mutable else _storages(result)
        if _name(func) in FILLED and result.numel():  # the same number everywhere: a copy of it
            func, args, kwargs = aten.clone.default, (result.flatten()[0].clone().expand_as(result),), {}
            self._keep(args)
        rows = self._rows(func, args, kwargs, result)
        call = None if rows is not None else self._call(func, args, kwargs, result)
        makes = not func._schema.is_mutable
        self.operations.append(_Operation(call, reads, writes, constant, makes, rows))

    def _rows(self, func: OpOverload, args: tuple, kwargs: dict[str, Any], result: Any) -> Rows | None:
        """Return the rows of a table that do what an operation does, where compiled code can."""
        if not self._tables:
            return None
        try:
            rows = rows_of(func, args, kwargs, result)
        except Untabled:
            return None
        self.memory += rows.kept
        return rows

    def _call(self, func: OpOverload, args: tuple, kwargs: dict[str, Any], result: Any) -> Callable[[], Any]:
        """Return a call of torch that does what an operation does, without holding what it works on."""
        args, kwargs, made = (self._borrowed(tree) for tree in (args, kwargs, _tensors(result)))
        return partial(func._op, *args, **kwargs) if func._schema.is_mutable else _again(func, args, kwargs, made)

    def _borrowed(self, tree: Any) -> Any:
        """Return tuples, lists and dicts with tensors of the pool borrowed from it."""
        if isinstance(tree, Tensor):
            return self._pool.borrowed(tree) if self._pool.owns(tree) else tree
        if isinstance(tree, dict):
            return {key: self._borrowed(branch) for key, branch in tree.items()}
        return type(tree)(map(self._borrowed, tree)) if isinstance(tree, tuple | list) else tree

    def _keep(self, tree: Any) -> None:
        """Hold on to tensors that are not in the pool: the operations know some of them by their addresses alone."""
        self.memory += [tensor for tensor in _tensors(tree) if not self._pool.owns(tensor)]

    def take(
        self, work: Callable[[], Any], given: tuple, reads: Sequence[Tensor] | None, writes: Sequence[Tensor] | None
    ) -> None:
        """Keep work that torch does not see, and do it; see `taped`."""
        if self.looks_away:  # it is part of other work
            work()
            return
        self._keep(given)
        self.memory += [array for array in given if not isinstance(array, Tensor)]
        touched = _storages(given)
        with self._looking_away():
            work()
            if isinstance(work, CompiledCall):
                work = replace(work, given=self._borrowed(work.given))
        written = touched if writes is None else _storages(tuple(writes))
        read = touched if writes is None else touched - written
        every = None if reads is None else read | _storages(tuple(reads))
        self.operations.append(_Operation(work, every, written, constant=False, makes=writes is not None))

    @contextmanager
    def _looking_away(self) -> Iterator[None]:
        """Keep nothing of what is done meanwhile."""
        self.looks_away = True
        try:
            yield
        finally:
            self.looks_away = False

    def tape(self, outputs: T) -> Tape[T]:
        """Return what was kept: calls of compiled code that follow one another are one."""
        found: list[Callable[[], Any]] = []
        calls_torch, needed = False, list(self._needed(outputs))
        for compiled, group in groupby(_calls(needed), lambda call: isinstance(call, CompiledCall)):
            calls: list[Any] = list(group)
            found += [InTurn(calls)] if compiled else calls
            calls_torch |= not compiled
        return Tape(tuple(found), outputs, self.memory, self._pool, calls_torch, _read_by(needed, outputs))

    def _needed(self, outputs: Any) -> Iterator[_Operation]:
        """Yield the operations whose results are used, without those that make the same numbers each time."""
        makers: dict[int, int] = {}
        for number, operation in enumerate(self.operations):
            for storage in operation.writes:
                makers[storage] = number if storage not in makers else -1
        changed = _storages(outputs)  # whoever gets them may write to them
        same: set[int] = set()
        used = self._used(outputs)
        for number, operation in enumerate(self.operations):
            if not used[number]:
                continue
            alone = all(makers[storage] == number and storage not in changed for storage in operation.writes)
            if operation.constant and alone and operation.reads is not None and operation.reads <= same:
                same |= operation.writes
            else:
                yield operation

    def _used(self, outputs: Any) -> list[bool]:
        """Return for each operation whether something reads what it writes: a later one, or whoever has it at the end.

        Backward passes evaluate a good deal of which they need the derivatives alone.
        """
        wanted = _storages(outputs) | self._pool.taken()
        used = [False] * len(self.operations)
        for number in range(len(self.operations) - 1, -1, -1):
            operation = self.operations[number]
            outside = not operation.writes or not operation.writes <= self._pool.blocks
            if outside or not operation.writes.isdisjoint(wanted):
                used[number] = True
                wanted = wanted - operation.writes if operation.makes else wanted
                wanted = wanted | (self._pool.blocks if operation.reads is None else operation.reads)
        return used


def _calls(operations: Sequence[_Operation]) -> Iterator[CompiledCall | Callable[[], Any]]:
    """Yield what is to be called: operations one by one, or as many as one table has in a row."""
    waiting: list[Rows] = []
    for operation in operations:
        if operation.rows is not None:
            waiting.append(operation.rows)
            continue
        if operation.call is None:
            continue
        if waiting:
            yield carried_out(waiting)
        waiting = []
        yield compiled_call(operation.call) or operation.call
    if waiting:
        yield carried_out(waiting)


def _read_by(operations: Sequence[_Operation], outputs: Any) -> frozenset[int] | None:
    """Return where the storages begin that operations read or that are outputs; None if they may read any."""
    read = set(_storages(outputs))
    for operation in operations:
        if operation.reads is None:
            return None
        read |= operation.reads
    return frozenset(read)


class _NothingRead(TorchFunctionMode):
    """Refuses what takes numbers out of tensors unseen by operations."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.recorder.looks_away and func in NUMBERS_ON_THE_HOST:
            raise NumbersRead(f"{func.__name__} reads numbers")
        return func(*args, **(kwargs or {}))


def _refuse_reading(func: OpOverload, args: tuple) -> None:
    """Refuse an operation whose result, or the shape of it, is known from numbers alone."""
    masks = func is aten.index.Tensor and any(t.dtype == torch.bool for t in args[1] if t is not None)
    reads = torch.Tag.data_dependent_output in func.tags
    if masks or reads or (torch.Tag.dynamic_output_shape in func.tags and func is not aten.index.Tensor):
        raise NumbersRead(f"{func} reads numbers")


def _again(func: OpOverload, args: tuple, kwargs: dict[str, Any], made: list[Tensor]) -> Callable[[], Any]:
    """Return a call that writes the results of an operation anew to where they are.

    Results may be fewer than the operation names: backward passes leave out what nobody asks for.
    """
    if _name(func) in COPIES:
        return partial(made[0].copy_, args[0])
    found = _into(func)
    if found is None or len(found[1]) != len(made):
        return partial(_written_anew, func, args, kwargs, made)
    into, names = found
    return partial(into._op, *args, **kwargs, **dict(zip(names, made, strict=True)))


@lru_cache(None)
def _into(func: OpOverload) -> tuple[OpOverload, list[str]] | None:
    """Return the overload that takes the same and writes to given tensors, and the names of these; None without one.

    Nor is there one of operations that return lists of tensors.
    """
    if any(str(result.type) != "Tensor" for result in func._schema.returns):
        return None
    taken = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func._overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        out = [a.name for a in other._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if out and len(out) == len(func._schema.returns) and rest == taken:
            return other, out
    return None


def _written_anew(func: OpOverload, args: tuple, kwargs: dict[str, Any], made: list[Tensor]) -> None:
    for old, new in zip(made, _tensors(func(*args, **kwargs)), strict=True):
        old.copy_(new)


def _name(func: OpOverload) -> str:
    return func._overloadpacket.__name__


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for branch in tree for tensor in _tensors(branch)]


def _storages(tree: Any) -> frozenset[int]:
    """Return the addresses of the memory of all tensors in a tree that have some."""
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in _tensors(tree) if tensor.numel())

"""TapeRecorder: keeps what a function does to tensors on a CPU, operation by operation, while the function runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchdismech.native.availability import Unavailable
from torchdismech.native.calls import CompiledCall
from torchdismech.native.compiled import library
from torchdismech.native.instructions import Instructions, NoInstruction
from torchdismech.native.lowering import lowered
from torchdismech.native.operations import Operation
from torchdismech.native.pool import Pool
from torchdismech.native.taping import NumbersRead
from torchdismech.native.tensor_trees import storages_in, tensors_in
from torchdismech.native.torch_calls import TorchCall

__all__ = ["NumbersRefused", "TapeRecorder"]

aten = torch.ops.aten

# operations that give memory with nothing in it
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# operations whose result depends on shapes and plain numbers alone
FILLED = {"full", "ones", "zeros", "full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros"}
NUMBERS_ON_THE_HOST = (Tensor.numpy, Tensor.tolist, Tensor.__array__)


class TapeRecorder(TorchDispatchMode):
    """Keeps what is called, each operation in a form that writes where the recorded one did.

    Parameters
    ----------
    pool : where what operations make is to live.

    Attributes
    ----------
    operations : one after the other.
    held : tensors and other memory outside of the pool that operations know by their addresses.
    looks_away : whether nothing is kept, as what is done is part of an operation that is kept as a whole.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.held: list[Any] = []
        self.looks_away = False
        self._pool = pool
        self._constant: set[int] = set()  # storages that hold the same in each replay, unless something writes to them
        try:
            library()
            self._interprets = True  # compiled code is there to carry out instructions
        except Unavailable:
            self._interprets = False

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
        call = TorchCall(func, args, kwargs, result)
        self._hold((args, kwargs))
        if call.in_place:
            self._keep(call, call.reads, constant=False)
        elif not storages_in(result) & call.reads:  # views stay what they are
            self._keep_new_tensors(call)
        return result

    def take(
        self, work: Callable[[], Any], given: tuple, reads: Sequence[Tensor] | None, writes: Sequence[Tensor] | None
    ) -> None:
        """Keep work that torch does not see, and do it; see `taped`."""
        if self.looks_away:  # it is part of other work
            work()
            return
        self._hold(given)
        self.held += [array for array in given if not isinstance(array, Tensor)]
        touched = storages_in(given)
        with self._looking_away():
            work()
            if isinstance(work, CompiledCall):
                work = replace(work, given=self._borrowed(work.given))
        written = touched if writes is None else storages_in(tuple(writes))
        read = touched if writes is None else touched - written
        every = None if reads is None else read | storages_in(tuple(reads))
        self.operations.append(Operation(work, every, written, constant=False, overwrites=writes is not None))

    def _keep_new_tensors(self, call: TorchCall) -> None:
        """Keep an operation that makes new tensors, which move to the pool if they are made in each replay."""
        empty = call.name in EMPTY or not any(tensor.numel() for tensor in call.results)
        reads = frozenset() if call.name in FILLED else call.reads
        constant = not empty and reads <= self._constant
        for tensor in call.results:
            if constant:
                self.held.append(tensor)
                self._constant.add(tensor.untyped_storage().data_ptr())
            else:
                self._pool.adopt(tensor, keep_numbers=not empty)
        if empty:
            self.operations.append(Operation(None, frozenset(), call.writes, constant=False, overwrites=True))
        else:
            self._keep(call, reads, constant)

    def _keep(self, call: TorchCall, reads: frozenset[int], constant: bool) -> None:
        """Keep an operation, as instructions where compiled code can do what it does."""
        writes = call.writes
        if call.name in FILLED and call.result.numel():  # the same number everywhere: a copy of it
            number = call.result.flatten()[0].clone().expand_as(call.result)
            call = TorchCall(aten.clone.default, (number,), {}, call.result)
            self._hold(call.args)
        instructions = self._instructions(call)
        again = call.on(self._borrowed).again() if instructions is None else None
        self.operations.append(Operation(again, reads, writes, constant, not call.in_place, instructions))

    def _instructions(self, call: TorchCall) -> Instructions | None:
        """Return the instructions that do what an operation does; None where torch has to do it."""
        if not self._interprets:
            return None
        try:
            instructions = lowered(call)
        except NoInstruction:
            return None
        self.held += instructions.held
        return instructions

    def _borrowed(self, tree: Any) -> Any:
        """Return tuples, lists and dicts with tensors of the pool borrowed from it, so that a tape keeps none alive."""
        if isinstance(tree, Tensor):
            return self._pool.borrowed(tree) if self._pool.owns(tree) else tree
        if isinstance(tree, dict):
            return {key: self._borrowed(branch) for key, branch in tree.items()}
        return type(tree)(map(self._borrowed, tree)) if isinstance(tree, tuple | list) else tree

    def _hold(self, tree: Any) -> None:
        """Hold on to tensors that are not in the pool: the operations know some of them by their addresses alone."""
        self.held += [tensor for tensor in tensors_in(tree) if not self._pool.owns(tensor)]

    @contextmanager
    def _looking_away(self) -> Iterator[None]:
        """Keep nothing of what is done meanwhile."""
        self.looks_away = True
        try:
            yield
        finally:
            self.looks_away = False


class NumbersRefused(TorchFunctionMode):
    """Refuses what takes numbers out of tensors unseen by operations."""

    def __init__(self, recorder: TapeRecorder):
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

"""TapeRecorder: records the operations of a function on CPU tensors, one by one, while the function runs."""

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

# operations that only allocate memory
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# operations whose result depends on shapes and plain numbers alone
FILLED = {"full", "ones", "zeros", "full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros"}
NUMBERS_ON_THE_HOST = (Tensor.numpy, Tensor.tolist, Tensor.__array__)


class TapeRecorder(TorchDispatchMode):
    """Records each operation in a form that writes its results to the same memory again.

    Parameters
    ----------
    pool : memory for the results of operations.

    Attributes
    ----------
    operations : recorded so far, in order.
    held : tensors and other objects outside of the pool whose memory operations know by address.
    paused : whether operations are not recorded at present, as they are part of one that is recorded as a whole.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.held: list[Any] = []
        self.paused = False
        self._pool = pool
        self._constant: set[int] = set()  # storages with the same content in each replay unless later ones write there
        try:
            library()
            self._interprets = True  # there is compiled code to carry out instructions
        except Unavailable:
            self._interprets = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch's compiler, which takes seconds

    def __torch_dispatch__(self, func: OpOverload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        _refuse_reading(func, args)
        with self._pause():  # operations inside one of the library's operators are part of that operator
            result = func(*args, **kwargs)
        call = TorchCall(func, args, kwargs, result)
        self._hold((args, kwargs))
        if call.in_place:
            self._keep(call, call.reads, constant=False)
        elif not storages_in(result) & call.reads:  # views need no operation in a replay
            self._keep_new_tensors(call)
        return result

    def take(
        self, work: Callable[[], Any], given: tuple, reads: Sequence[Tensor] | None, writes: Sequence[Tensor] | None
    ) -> None:
        """Do work that torch does not see, and record it; see `taped`."""
        if self.paused:  # it is part of an operation that is recorded as a whole
            work()
            return
        self._hold(given)
        self.held += [array for array in given if not isinstance(array, Tensor)]
        touched = storages_in(given)
        with self._pause():
            work()
            if isinstance(work, CompiledCall):
                work = replace(work, given=self._borrowed(work.given))
        written = touched if writes is None else storages_in(tuple(writes))
        read = touched if writes is None else touched - written
        every = None if reads is None else read | storages_in(tuple(reads))
        self.operations.append(Operation(work, every, written, constant=False, overwrites=writes is not None))

    def _keep_new_tensors(self, call: TorchCall) -> None:
        """Record an operation that makes new tensors, and move these to the pool unless they are constant."""
        empty = call.name in EMPTY or not any(tensor.numel() for tensor in call.results)
        reads = frozenset() if call.name in FILLED else call.reads
        constant = not empty and reads <= self._constant and torch.Tag.nondeterministic_seeded not in call.func.tags
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
        """Record an operation: as instructions if it has some, else as a call."""
        writes = call.writes
        if call.name in FILLED and call.result.numel():  # recorded as a copy of its number, which has an instruction
            number = call.result.flatten()[0].clone().expand_as(call.result)
            call = TorchCall(aten.clone.default, (number,), {}, call.result)
            self._hold(call.args)
        instructions = self._instructions(call)
        again = call.on(self._borrowed).again() if instructions is None else None
        self.operations.append(Operation(again, reads, writes, constant, not call.in_place, instructions))

    def _instructions(self, call: TorchCall) -> Instructions | None:
        """Return the instructions of an operation; None if torch has to do it."""
        if not self._interprets:
            return None
        try:
            instructions = lowered(call)
        except NoInstruction:
            return None
        self.held += instructions.held
        return instructions

    def _borrowed(self, tree: Any) -> Any:
        """Return a tree of arguments with borrowed tensors in place of the pool's, which a tape must not keep alive."""
        if isinstance(tree, Tensor):
            return self._pool.borrowed(tree) if self._pool.owns(tree) else tree
        if isinstance(tree, dict):
            return {key: self._borrowed(branch) for key, branch in tree.items()}
        return type(tree)(map(self._borrowed, tree)) if isinstance(tree, tuple | list) else tree

    def _hold(self, tree: Any) -> None:
        """Keep tensors outside the pool alive, as the operations know some of them by their addresses alone."""
        self.held += [tensor for tensor in tensors_in(tree) if not self._pool.owns(tensor)]

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Return a context in which nothing is recorded."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


class NumbersRefused(TorchFunctionMode):
    """Refuses methods such as `tolist`, which read numbers of tensors without an operation that the recorder sees."""

    def __init__(self, recorder: TapeRecorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.recorder.paused and func in NUMBERS_ON_THE_HOST:
            raise NumbersRead(f"{func.__name__} reads numbers")
        return func(*args, **(kwargs or {}))


def _refuse_reading(func: OpOverload, args: tuple) -> None:
    """Refuse an operation that reads numbers for its result on the host or for the shape of its result."""
    masks = func is aten.index.Tensor and any(t.dtype == torch.bool for t in args[1] if t is not None)
    reads = torch.Tag.data_dependent_output in func.tags
    if masks or reads or (torch.Tag.dynamic_output_shape in func.tags and func is not aten.index.Tensor):
        raise NumbersRead(f"{func} reads numbers")

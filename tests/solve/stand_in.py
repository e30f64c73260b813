"""A stand-in for CUDA graphs on a CPU: replays operations on the memory they were recorded with, and runs no Python.

So it shows what a graph would get wrong: tensors that were others by then, numbers of Python that changed, numbers that
are read on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchdismech.native.graphs import WARM_UPS

aten = torch.ops.aten


def _tensors(tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tree) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(tree)}


class _Recorder(TorchDispatchMode):
    """Keeps what is called, with its tensors."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = func is aten.index.Tensor and any(t.dtype == torch.bool for t in _tensors(args[1]))
        if masks or func in (aten._local_scalar_dense.default, aten.nonzero.default):
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


@dataclass
class RecordedCalls:
    """What `native.graphs.Graph` is, with the number of its replays."""

    calls: list[tuple]
    outputs: Any
    count: int = field(default=0)
    reads: ClassVar[None] = None  # as of `Graph`

    def replay(self) -> Any:
        """Run the operations again; write what they make to where the recorded ones did."""
        self.count += 1
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                if all(returned.alias_info is None for returned in func._schema.returns):
                    for old, new in zip(_tensors(result), _tensors(func(*args, **kwargs)), strict=True):
                        old.copy_(new)
                elif func._schema.is_mutable:
                    func(*args, **kwargs)  # in place; views stay what they are
        return self.outputs


def replayable(function: Callable, device: torch.device, pool: None) -> RecordedCalls:
    """Return what `native.graphs.recorded` does, on a CPU."""
    with torch.no_grad():
        for _ in range(WARM_UPS):
            function()
        with _Recorder() as recorder:
            outputs = function()
    for _, args, kwargs, result in recorder.calls:  # a real graph has not run yet
        for made in _tensors(result):
            if made.is_floating_point() and not _storages(made) & _storages((args, kwargs)):
                made.fill_(torch.nan)
    return RecordedCalls(recorder.calls, outputs)

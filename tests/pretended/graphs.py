"""CUDA graphs of the pretended GPU: what was captured, run again on the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.pretended.tensors import Launch, device, memory_held

__all__ = ["PretendedGraph", "capturing"]


class PretendedGraph:
    """What `torch.cuda.CUDAGraph` is.

    Memory that nobody holds on to any more holds garbage after each replay: other graphs may use it.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def replay(self) -> None:
        """Run all that was captured."""
        with torch.no_grad():
            for run, _ in self.launches:
                run()
        held = memory_held()
        for tensor in self._made():
            if tensor.untyped_storage().data_ptr() not in held:
                _fill_with_garbage(tensor)

    def end(self) -> None:
        """End the capture: nothing has run yet."""
        for tensor in self._made():
            _fill_with_garbage(tensor)

    def _made(self) -> list[Tensor]:
        return [tensor for _, made in self.launches for tensor in made]


def _fill_with_garbage(tensor: Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


@contextmanager
def capturing(graph: PretendedGraph, pool: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """Capture what is launched: `torch.cuda.graph`."""
    device.captured = graph.launches
    try:
        yield
    finally:
        device.captured = None
    graph.end()

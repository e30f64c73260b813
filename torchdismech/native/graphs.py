"""Recordings of functions whose time is spent in calls: on a GPU as CUDA graphs, on a CPU as tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch

from torchdismech.errors import InputError
from torchdismech.native.pool import Pool
from torchdismech.native.tape import Tape, recorded_on_tape
from torchdismech.native.taping import NumbersRead

__all__ = ["Graph", "Recording", "Unrecordable", "memory_pool", "recorded"]

# Runs before a recording. The first compiles kernels, copies tables to the device and allocates workspaces, none of
# which a graph can hold; the second makes sure that nothing of this is left to do.
WARM_UPS = 2

T = TypeVar("T")


class Unrecordable(InputError):
    """A function cannot be recorded: the message says which of its operations a recording cannot hold."""


@dataclass(frozen=True)
class Graph(Generic[T]):
    """A CUDA graph of a function, and the tensors that it returned, which each replay overwrites."""

    graph: torch.cuda.CUDAGraph
    outputs: T
    reads: ClassVar[frozenset[int] | None] = None  # as of `Tape`: it may read any storage

    def replay(self) -> T:
        """Launch the graph on the current stream; return the outputs. The host does not wait."""
        self.graph.replay()
        return self.outputs


Recording = Graph[T] | Tape[T]


def memory_pool(device: torch.device) -> Any:
    """Return a memory pool for recordings that are replayed one after the other, so that they share temporary memory.

    A tensor that one of them leaves for another has to be held in Python.
    """
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else Pool()


def recorded(function: Callable[[], T], device: torch.device, pool: Any) -> Recording[T]:
    """Return a recording of a function, after some runs of it: a CUDA graph on a GPU, a tape on a CPU.

    A replay runs the same operations on the same memory. So the function may depend on the numbers of tensors that keep
    their addresses and are written in place, but neither on anything else that changes nor on numbers that the host
    would have to wait for. It may compute gradients inside; autograd does not follow a replay. Before the first replay
    the outputs are undefined.

    Parameters
    ----------
    pool : a `memory_pool`; None: a new one.

    Raises
    ------
    Unrecordable : the function reads numbers on the host, or its shapes depend on numbers.
    InputError : for another device.
    torch.OutOfMemoryError : the device has too little memory.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if device.type == "cpu":
        return _taped(function, name, Pool() if pool is None else pool)
    if device.type != "cuda":
        raise InputError(f"{name}: recordings are for a CPU or a CUDA device, got {device}; call the function itself")
    with torch.cuda.device(device), torch.no_grad(), _decompositions_that_do_not_wait():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream()
        try:
            # thread_local lets other threads allocate meanwhile; `here` restores the stream if the capture fails
            with torch.cuda.stream(here), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                outputs = function()
        except torch.OutOfMemoryError:
            raise  # not the function's fault: with fewer robots it can be captured
        except RuntimeError as error:
            raise Unrecordable(
                f"{name}: cannot be captured in a CUDA graph ({str(error).splitlines()[0]}); it must not read "
                "numbers on the host (item, nonzero, if), nor copy between host and device; a class of yours that does "
                "leaves `records` out"
            ) from error
    return Graph(graph, outputs)


@contextmanager
def _decompositions_that_do_not_wait() -> Iterator[None]:
    """Return a context in which torch decomposes matrices by cuSOLVER and cuBLAS alone.

    By default it may call MAGMA for batches (`cholesky_solve`, LU of some sizes), which waits for the device, so that
    no graph can hold it. This is a setting of the whole process.
    """
    before = torch.backends.cuda.preferred_linalg_library()
    torch.backends.cuda.preferred_linalg_library("cusolver")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_linalg_library(before)


def _taped(function: Callable[[], T], name: str, pool: Pool) -> Tape[T]:
    with torch.no_grad():
        function()  # so that tables which are made at the first call exist already
    try:
        return recorded_on_tape(function, pool)
    except NumbersRead as error:
        raise Unrecordable(f"{name}: cannot be recorded ({error}); call the function itself") from error

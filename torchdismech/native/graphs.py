"""Work whose time is calls, recorded: on a GPU as a CUDA graph, all its launches at once; on a CPU as a tape."""

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

# Runs before a recording: the first compiles kernels, copies tables to the device and sizes workspaces, none of which a
# graph can hold; one more finds all of that done.
WARM_UPS = 2

T = TypeVar("T")


class Unrecordable(InputError):
    """A function cannot be recorded: the message says what it does that a recording cannot hold."""


@dataclass(frozen=True)
class Graph(Generic[T]):
    """The launches of a function on a GPU, and the tensors that it made and returned, which each replay writes anew."""

    graph: torch.cuda.CUDAGraph
    outputs: T
    reads: ClassVar[frozenset[int] | None] = None  # as of `Tape`: it may read all

    def replay(self) -> T:
        """Hand the launches over, on the current stream; return the outputs. The host waits for nothing."""
        self.graph.replay()
        return self.outputs


Recording = Graph[T] | Tape[T]


def memory_pool(device: torch.device) -> Any:
    """Return memory for recordings that are replayed one after the other.

    They share what they need on the way only. What one of them leaves for another has to be held on to in Python.
    """
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else Pool()


def recorded(function: Callable[[], T], device: torch.device, pool: Any) -> Recording[T]:
    """Return the launches of a function on a GPU, its operations on a CPU, after some runs of it.

    A replay runs the same on the same memory. So the function may depend on the numbers of tensors that stay where they
    are and are written in place, but neither on anything else that changes nor on what the host would have to wait for.
    It may take gradients of what it does itself; autograd does not follow a replay. The outputs hold no numbers before
    the first replay.

    Parameters
    ----------
    pool : a `memory_pool`; None: one of its own.

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
            # other threads may go on allocating meanwhile; where a capture fails, torch would leave its stream current
            with torch.cuda.stream(here), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                outputs = function()
        except torch.OutOfMemoryError:
            raise  # no fault of the function: with fewer robots it can be captured
        except RuntimeError as error:
            raise Unrecordable(
                f"{name}: cannot be captured in a CUDA graph ({str(error).splitlines()[0]}); it must not read "
                "numbers on the host (item, nonzero, if), nor copy between host and device; a class of yours that does "
                "leaves `records` out"
            ) from error
    return Graph(graph, outputs)


@contextmanager
def _decompositions_that_do_not_wait() -> Iterator[None]:
    """Let torch decompose matrices by cuSOLVER and cuBLAS alone.

    Left to itself it may hand batches to MAGMA (`cholesky_solve`, LU of some sizes), which waits for the device: no
    graph can hold that. This is a setting of the whole process.
    """
    before = torch.backends.cuda.preferred_linalg_library()
    torch.backends.cuda.preferred_linalg_library("cusolver")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_linalg_library(before)


def _taped(function: Callable[[], T], name: str, pool: Pool) -> Tape[T]:
    with torch.no_grad():
        function()  # makes tables that stay
    try:
        return recorded_on_tape(function, pool)
    except NumbersRead as error:
        raise Unrecordable(f"{name}: cannot be recorded ({error}); call the function itself") from error

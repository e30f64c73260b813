"""Access to the compiled code of the C++ files in this package, for what torch has no fast operation for.

It needs a C++ compiler, GCC or clang; `build.py` compiles the files at their first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.native.availability import LookedForOnce, Unavailable, refuse_if_plain
from torchdismech.native.build import built
from torchdismech.native.signatures import declare
from torchdismech.native.taping import taped
from torchdismech.system.workers import shared_out

__all__ = ["SLOWER", "Library", "address", "compiled_source", "function_of", "in_threads", "library"]

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
# Forbids fused multiply-add. The compiler would use it in some places and not in others, so that two generated loops
# with the same formulas, one of which has more outputs, would differ in the last bits on some machines.
LOOP_FLAGS = ("-ffp-contract=off",)
SLOWER = "steps on a CPU take up to 80 times as long without it"  # 16 of 41 nodes: 30 times, 256 of 9: 16 times


@dataclass(frozen=True)
class Library:
    """The compiled code of this package.

    Attributes
    ----------
    code : its functions.
    made_by : the compiler and its main flags, for messages.
    vector_bytes : size of the vectors that the code works with.
    """

    code: ctypes.CDLL
    made_by: str
    vector_bytes: int

    def lanes(self, dtype: torch.dtype) -> int:
        """Return how many numbers of a dtype a vector holds: as many matrices are factored together."""
        return self.vector_bytes // dtype.itemsize


@LookedForOnce
def library() -> Library:
    """Return the compiled code; the first call in a process loads it from the cache or compiles it.

    If it is not available, the first call also warns.

    Raises
    ------
    Unavailable : if there is no compiler, it fails, its output cannot be written, or plain torch is asked for.
    """
    refuse_if_plain()
    try:
        if not SOURCES:
            raise Unavailable("its C++ files are not beside it, as where the package is in a zip; install it as files")
        code, made_by = built([source.read_bytes() for source in SOURCES], SOURCES[0].parent)
    except Unavailable as error:
        warn(f"there is no compiled code, and {SLOWER}: {error}", RuntimeWarning)
        raise
    declare(code)
    return Library(code, made_by, code.band_vector_bytes())


def function_of(name: str, dtype: torch.dtype | None = None) -> Callable | None:
    """Return a compiled function, that for `dtype` if one is given; None if torch has to do the same, more slowly."""
    try:
        code = library().code
    except Unavailable:
        return None
    if dtype is None:
        return getattr(code, name)
    suffix = {torch.float64: "float64", torch.float32: "float32"}.get(dtype)
    return None if suffix is None else getattr(code, f"{name}_{suffix}")


def compiled_source(text: str) -> ctypes.CDLL:
    """Return the library of a generated source, from the cache or compiled now.

    Raises
    ------
    Unavailable : as for `library`.
    """
    refuse_if_plain()
    return built([text.encode()], "generated code", LOOP_FLAGS).code


def in_threads(
    function: Callable,
    arguments: tuple[Tensor | np.ndarray | float | None, ...],
    parts: int,
    most: int,
    reads: Sequence[Tensor] | None = (),
    writes: Sequence[Tensor] | None = None,
) -> None:
    """Call function(*arguments, first, last) on ranges that cover all `parts`, by as many threads as torch uses.

    If a tape is being recorded, the call becomes part of it.

    Parameters
    ----------
    function : a compiled function.
    arguments : tensors and arrays, which are passed by address and have to be contiguous, and numbers.
    parts : number of parts that threads may share.
    most : largest number of threads.
    reads : further tensors that the function reads, by addresses in its arguments; None as for `taped`.
    writes : as for `taped`.
    """
    given = tuple(map(address, arguments))
    threads = 1 if most < 2 else min(torch.get_num_threads(), parts, most)
    whole = partial(function, *given, 0, parts)
    work = whole if threads < 2 else partial(_divided, partial(function, *given), parts, threads)
    taped(work, *arguments, reads=reads, writes=writes)


def _divided(function: Callable, parts: int, threads: int) -> None:
    """Call function(first, last) for all parts by `threads` threads."""
    ends = [parts * k // threads for k in range(threads + 1)]
    shared_out(_called, [function] * threads, [*pairwise(ends)])  # ctypes releases the interpreter lock during a call


def _called(function: Callable, ends: tuple[int, int]) -> None:
    function(*ends)


def address(argument: Tensor | np.ndarray | float | None) -> float | None:
    """Return the address of the numbers of a tensor or array; anything else is returned as it is.

    Raises
    ------
    InputError : the tensor is not on the CPU; compiled code would crash the process at its address.
    """
    if isinstance(argument, Tensor):
        if not argument.is_cpu:
            raise InputError(f"compiled code for the CPU: expected tensors on cpu, got one on {argument.device}")
        return argument.data_ptr()
    return argument.ctypes.data if isinstance(argument, np.ndarray) else argument

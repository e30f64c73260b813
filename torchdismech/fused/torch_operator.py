"""Programs as an operator of torch, so that code which traces or compiles torch operations can contain them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from torchdismech.fused.program import ProgramCall, programs, values_now
from torchdismech.native import taping

__all__ = ["values_by_operator", "traced"]


def values_by_operator(calls: Sequence[ProgramCall], robots: int) -> tuple[Tensor, Tensor]:
    """Return the two lists (rows, B) of `values_now`, computed by an operator of torch that tracing code sees."""
    rows, numbers, springs, reads, read = [0, 0], [], [], [], []
    for program, count, tensors in calls:
        numbers.append(program.number)
        springs.append(count)
        reads.append(len(tensors))
        read += tensors
        rows = [before + values * count for before, values in zip(rows, program.counts, strict=True)]
    return torch.ops.torchdismech.fused(numbers, springs, reads, read, rows[0], rows[1], robots)


def traced() -> bool:
    """Return whether operations of torch are being traced, so that programs have to be called by the slower operator.

    Tapes do not count: they record calls of compiled code themselves.
    """
    return torch.compiler.is_compiling() or (torch._C._len_torch_dispatch_stack() > 0 and not taping())


def _values(
    numbers: list[int], springs: list[int], reads: list[int], read: list[Tensor], first: int, second: int, robots: int
) -> tuple[Tensor, Tensor]:
    remaining = iter(read)
    arguments = zip(numbers, springs, reads, strict=True)
    calls = [ProgramCall(programs[k], count, list(islice(remaining, tensors))) for k, count, tensors in arguments]
    return values_now(calls, robots)


_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define(
    "fused(int[] programs, int[] springs, int[] reads, Tensor[] read, int first, int second, int robots)"
    " -> (Tensor, Tensor)"
)
_OPERATORS.impl("fused", _values, "CPU")
_OPERATORS.impl("fused", _values, "CUDA")


def _like_values(numbers, springs, reads, read, first, second, robots):
    dtype = programs[numbers[0]].dtype
    return read[0].new_empty(first, robots, dtype=dtype), read[0].new_empty(second, robots, dtype=dtype)


# not by `torch.library.register_fake`, which searches all modules for its caller and takes 20 ms for each operator
_OPERATORS.impl("fused", _like_values, "Meta")

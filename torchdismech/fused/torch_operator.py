"""Programs as an operator of torch, so that what records or compiles calls of torch may hold them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from torchdismech.fused.program import ProgramCall, programs, values_now
from torchdismech.native import taping

__all__ = ["values_by_operator", "watched"]


def values_by_operator(calls: Sequence[ProgramCall], robots: int) -> tuple[Tensor, Tensor]:
    """Return what `values_now` does, by an operator of torch, for who is watching what torch does."""
    rows, numbers, springs, reads, read = [0, 0], [], [], [], []
    for program, count, tensors in calls:
        numbers.append(program.number)
        springs.append(count)
        reads.append(len(tensors))
        read += tensors
        rows = [before + values * count for before, values in zip(rows, program.counts, strict=True)]
    return torch.ops.torchdismech.fused(numbers, springs, reads, read, rows[0], rows[1], robots)


def watched() -> bool:
    """Return whether someone records what torch does, so that operators have to be called as such; it takes longer.

    Tapes record compiled code as it is.
    """
    return torch.compiler.is_compiling() or (torch._C._len_torch_dispatch_stack() > 0 and not taping())


def _values(
    numbers: list[int], springs: list[int], reads: list[int], read: list[Tensor], first: int, second: int, robots: int
) -> tuple[Tensor, Tensor]:
    left = iter(read)
    given = zip(numbers, springs, reads, strict=True)
    calls = [ProgramCall(programs[k], count, list(islice(left, tensors))) for k, count, tensors in given]
    return values_now(calls, robots)


# An operator of torch, so that recorded and compiled graphs may hold it.
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


# `torch.library.register_fake` would look through all modules for its caller, 20 ms for each operator
_OPERATORS.impl("fused", _like_values, "Meta")

"""What programs find, as autograd sees it: where it records, the values of programs can be differentiated once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from torchdismech.fused.program import Program, ProgramCall, values_now
from torchdismech.fused.pullback import pullback_of
from torchdismech.fused.torch_operator import values_by_operator, watched

__all__ = ["differentiated", "is_differentiated", "values_of"]


class _Within(threading.local):
    """Whether this thread is within `differentiated`."""

    differentiated = False


_here = _Within()


def is_differentiated() -> bool:
    """Return whether loops take tensors that require gradients."""
    return _here.differentiated


@contextmanager
def differentiated() -> Iterator[None]:
    """Let loops of this thread take tensors that require gradients; what they find can be differentiated once.

    Elsewhere torch evaluates them, and derivatives of any order can be had.
    """
    before, _here.differentiated = _here.differentiated, True
    try:
        yield
    finally:
        _here.differentiated = before


def values_of(
    calls: Sequence[ProgramCall], robots: int, chosen: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Where autograd records, the first can be differentiated, once.

    Parameters
    ----------
    robots : B.
    chosen : for each program the springs (K,) of which alone derivatives by the first of its tensors are found, as
        those of the others are not wanted; None: those of all springs, also in place of the whole.
    """
    if not torch.is_grad_enabled() or not any(t.requires_grad for _, _, read in calls for t in read):
        return values_by_operator(calls, robots) if watched() else values_now(calls, robots)
    return _Differentiable.apply(calls, robots, chosen, *[t for _, _, read in calls for t in read])


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, calls: Sequence[ProgramCall], robots: int, chosen, *read: Tensor):  # noqa: D102
        first, second = values_by_operator(calls, robots) if watched() else values_now(calls, robots)
        chosen = [None] * len(calls) if chosen is None else chosen
        # without the tensors, which autograd keeps
        ctx.calls = [(program, springs, len(own), k) for (program, springs, own), k in zip(calls, chosen, strict=True)]
        ctx.save_for_backward(*read)
        ctx.mark_non_differentiable(second)
        return first, second

    @staticmethod
    def backward(ctx, by_first: Tensor, _: Tensor):  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("loops can be differentiated once; second derivatives are for torch's own operations")
        rows, read, needed = 0, iter(ctx.saved_tensors), iter(ctx.needs_input_grad[3:])
        found: list[Tensor | None] = []
        for program, springs, count, some in ctx.calls:
            given = list(islice(read, count))
            wanted = {k for k, need in enumerate(islice(needed, count)) if need}
            part = by_first[rows : (rows := rows + program.counts[0] * springs)]
            gradients = _gradients(program, springs, given, part, wanted, some)
            found += [gradients.get(k) for k in range(count)]
        return None, None, None, *found


def _gradients(
    program: Program, springs: int, read: list[Tensor], weights: Tensor, wanted: set[int], some: Tensor | None
) -> dict[int, Tensor]:
    """Return what `Pullback.gradients` does: by the first tensor of `some` springs (K,) alone, if they are given."""
    if not wanted:
        return {}
    if some is None:
        return pullback_of(program, None).gradients(springs, read, weights, wanted)
    found = {}
    if 0 in wanted:
        found = pullback_of(program, True).gradients_of_some(some, springs, read, weights)
    if others := wanted - {0}:
        found |= pullback_of(program, False).gradients(springs, read, weights, others)
    return found

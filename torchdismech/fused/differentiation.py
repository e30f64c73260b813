"""Programs under autograd: where gradients are recorded, the first list of a program can be differentiated once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from torchdismech.fused.program import Program, ProgramCall, values_now
from torchdismech.fused.pullback import pullback_of
from torchdismech.fused.torch_operator import traced, values_by_operator

__all__ = ["differentiated", "is_differentiated", "values_of"]


class _ThreadState(threading.local):
    """Whether this thread is within `differentiated`."""

    differentiated = False


_thread = _ThreadState()


def is_differentiated() -> bool:
    """Return whether programs of this thread may take tensors that require gradients, see `differentiated`."""
    return _thread.differentiated


@contextmanager
def differentiated() -> Iterator[None]:
    """Return a context in which programs of this thread take tensors that require gradients.

    Their results can be differentiated once. Outside of it torch evaluates functions of such tensors, so that they have
    derivatives of any order.
    """
    before, _thread.differentiated = _thread.differentiated, True
    try:
        yield
    finally:
        _thread.differentiated = before


def values_of(
    calls: Sequence[ProgramCall], robots: int, chosen: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the first lists of some programs, concatenated (rows, B), and their second lists likewise.

    If gradients are recorded, the first lists can be differentiated, once.

    Parameters
    ----------
    robots : B.
    chosen : for each program the springs (K,) to which its gradient by the first of its tensors is restricted, or None
        for all springs; None: all springs of all programs.
    """
    if not torch.is_grad_enabled() or not any(t.requires_grad for _, _, read in calls for t in read):
        return values_by_operator(calls, robots) if traced() else values_now(calls, robots)
    return _Differentiable.apply(calls, robots, chosen, *[t for _, _, read in calls for t in read])


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, calls: Sequence[ProgramCall], robots: int, chosen, *read: Tensor):  # noqa: D102
        first, second = values_by_operator(calls, robots) if traced() else values_now(calls, robots)
        chosen = [None] * len(calls) if chosen is None else chosen
        # without the tensors, which `save_for_backward` keeps
        ctx.calls = [(program, springs, len(own), k) for (program, springs, own), k in zip(calls, chosen, strict=True)]
        ctx.save_for_backward(*read)
        ctx.mark_non_differentiable(second)
        return first, second

    @staticmethod
    def backward(ctx, by_first: Tensor, _: Tensor):  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("loops can be differentiated once; second derivatives are for torch's own operations")
        rows, read, needed = 0, iter(ctx.saved_tensors), iter(ctx.needs_input_grad[3:])
        by_read: list[Tensor | None] = []
        for program, springs, count, some in ctx.calls:
            arguments = list(islice(read, count))
            wanted = {k for k, need in enumerate(islice(needed, count)) if need}
            weights = by_first[rows : (rows := rows + program.counts[0] * springs)]
            gradients = _gradients(program, springs, arguments, weights, wanted, some)
            by_read += [gradients.get(k) for k in range(count)]
        return None, None, None, *by_read


def _gradients(
    program: Program, springs: int, read: list[Tensor], weights: Tensor, wanted: set[int], some: Tensor | None
) -> dict[int, Tensor]:
    """Return the gradients by the wanted tensors, by their indices among those read; see `Pullback.gradients`.

    Parameters
    ----------
    some : (K,) springs to which the gradient by the first tensor is restricted; None: all.
    """
    if not wanted:
        return {}
    if some is None:
        return pullback_of(program, None).gradients(springs, read, weights, wanted)
    gradients = {}
    if 0 in wanted:
        gradients = pullback_of(program, True).gradients_of_some(some, springs, read, weights)
    if other_wanted := wanted - {0}:
        gradients |= pullback_of(program, False).gradients(springs, read, weights, other_wanted)
    return gradients

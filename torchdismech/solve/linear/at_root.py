"""A linear solve whose right-hand side is zero, by which autograd gets the derivative of a root."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["solved_at_root"]


def solved_at_root(solve: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor], zero: Tensor) -> Tensor:
    """Return A^-1 b for a residual b that is zero at a root, differentiable by b alone.

    The derivative by A is left out, because it is multiplied by b = 0. So where a root x was found without autograd and
    its residual b(x, parameters) was then evaluated with autograd, x - A^-1 b with A = db/dx is the root with its
    derivatives by the parameters.

    Parameters
    ----------
    solve, transposed : functions that return A^-1 b and A^-T b.
    zero : b.
    """
    return _SolvedAtRoot.apply(solve, transposed, zero)


class _SolvedAtRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, solve: Callable, transposed: Callable, zero: Tensor):
        ctx.transposed = transposed
        return solve(zero)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return None, None, ctx.transposed(gradient)

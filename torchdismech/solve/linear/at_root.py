"""What equations that are zero at a root hand on of the derivative of the root."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["solved_at_root"]


def solved_at_root(solve: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor], zero: Tensor) -> Tensor:
    """Return A^-1 b for a residual b that is zero at a root; the derivative of A is left out, as it meets that zero.

    So x - A^-1 b, with b recorded by autograd at a root x that was found without, has the derivatives of the root.

    Parameters
    ----------
    solve, transposed : return A^-1 b and A^-T b.
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

"""Gradients through the stages of a step by implicit differentiation at their root.

Stages obey r(a, V, Q, force, constants) = 0. For a loss with gradient g by a, (dr/da)^T lambda = g, and the gradient by
anything else is -lambda . dr. The matrix is the exact one. The system with its transpose is solved by the iteration
that found the root, with the same factor, or densely where that does not converge.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchdismech.rigid.dynamics import Factor
from torchdismech.rigid.newton import Root, still_to_come
from torchdismech.rigid.stages import Linearised, Stages

__all__ = ["differentiable"]

# the tolerance is relative to the largest number of a row; each iteration gains three digits
TOLERANCE, ITERATIONS = 1e-7, 12


def differentiable(stages: Stages, root: Root, accepted: Tensor) -> Tensor:
    """Return the root's accelerations with their derivatives by V, Q, the force and the dynamics' constants.

    Gradients by rows that are not `accepted` (B,), as they were not solved, are taken as zero.
    """
    inputs = (stages.velocity, stages.q, stages.force, *stages.dynamics.tensors())
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return root.acceleration
    return _Implicit.apply(stages, root, accepted, *inputs)


class _Implicit(torch.autograd.Function):
    """The root as a function of V, Q, the force and the constants."""

    @staticmethod
    def forward(ctx, stages: Stages, root: Root, accepted: Tensor, *inputs: Tensor):
        ctx.block, ctx.h, ctx.factor, ctx.like = stages.block, stages.h, root.factor, stages.dynamics
        ctx.save_for_backward(root.acceleration, accepted, *inputs)
        return root.acceleration.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        acceleration, accepted, velocity, q, force, *constants = ctx.saved_tensors
        if not bool(accepted.all()):  # rows that were not solved may hold anything, and 0 * NaN is NaN
            gradient, acceleration, velocity, q = (
                torch.where(accepted, x, 0.0) for x in (gradient, acceleration, velocity, q)
            )
        stages = Stages(ctx.block, ctx.h, ctx.like.with_tensors(tuple(constants)), velocity, q, force)
        at_root = Linearised(stages, acceleration)
        multiplier, by_velocity, by_q = _multiplier(at_root, ctx.factor, acceleration, gradient, accepted)
        needed = ctx.needs_input_grad[3:]
        by_force = multiplier.sum(1, keepdim=True) if needed[2] else None
        by_constants = at_root.by_constants(-multiplier, list(needed[3:]))
        return None, None, None, -by_velocity, -by_q, by_force, *by_constants


def _multiplier(
    at_root: Linearised, factor: Factor, acceleration: Tensor, gradient: Tensor, accepted: Tensor
) -> tuple[Tensor, ...]:
    """Return lambda (J, s, B) with (dr/da)^T lambda = gradient, and its products with the derivatives by V and Q."""
    block = at_root.stages.block
    multiplier = torch.zeros_like(gradient)
    remaining, last_size = gradient, torch.zeros_like(gradient[0, 0])
    for _ in range(ITERATIONS):
        step = block.joined(factor.solve(block.split(remaining, transposed=True)), transposed=True)
        step = torch.where(accepted, step, 0.0)  # the factor of a row that was not solved may hold NaN
        multiplier = multiplier + step
        product, *products = at_root.pulled_back(multiplier)
        size = step.abs().amax((0, 1))
        converged = ~accepted | (still_to_come(size, last_size) <= TOLERANCE * multiplier.abs().amax((0, 1)))
        if bool(converged.all()):
            return multiplier, *products
        remaining, last_size = gradient - product, size
    rows = (~converged).nonzero()[:, 0]
    matrix = at_root.stages.rows(rows).matrix(acceleration[..., rows])
    right = gradient[..., rows].permute(2, 0, 1).reshape(len(rows), -1, 1)
    exact = torch.linalg.solve(matrix.transpose(1, 2), right).view(-1, *gradient.shape[:2]).permute(1, 2, 0)
    multiplier = multiplier.index_copy(2, rows, exact)
    _, *products = at_root.pulled_back(multiplier)
    return multiplier, *products

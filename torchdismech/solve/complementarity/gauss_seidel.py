"""Projected Gauss-Seidel on the exact friction cone, contact by contact; neither factors nor stores more than W."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.complementarity.cone import ConeLaw

__all__ = ["gauss_seidel"]

CHECKED = 10  # sweeps between two looks at the residual


def gauss_seidel(law: ConeLaw, impulse: Tensor, tolerance: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Return impulses (B, 3C) after sweeps over the contacts, and the sweeps (B,) used.

    At each contact the normal impulse is set so that it does not approach, then the tangential impulse is moved against
    the sliding velocity and put back into the cone. Converges linearly, slowly where contacts are redundant.

    Parameters
    ----------
    law : the problem, scaled.
    impulse : (B, 3C) first guess.
    tolerance : (B,) of `law.residual`.
    max_iterations : sweeps.
    """
    normal, _ = law.own()
    # the tangential step must not exceed the largest eigenvalue of the contact's own 2 x 2 block: at most its trace
    blocks = law.delassus.diagonal(dim1=1, dim2=2).unflatten(1, (-1, 3))
    tangential = torch.where(law.active, blocks[..., 1:].sum(2).clamp(min=1e-300), 1.0)
    p = impulse.clone()
    velocity = law.velocity(p).flatten(1)
    running = law.residual(p) > tolerance
    iterations = torch.zeros_like(running, dtype=torch.long)
    for sweep in range(max_iterations):
        if not bool(running.any()):
            break
        for contact in range(law.mu.shape[1]):
            i = 3 * contact
            moves = running & law.active[:, contact]
            pressed = (p[:, i] - velocity[:, i] / normal[:, contact]).clamp(min=0.0)
            change = torch.where(moves, pressed - p[:, i], 0.0)[:, None]
            p[:, i] += change[:, 0]
            velocity += law.delassus[:, i] * change
            pulled = p[:, i + 1 : i + 3] - velocity[:, i + 1 : i + 3] / tangential[:, contact, None]
            length = torch.linalg.vector_norm(pulled, dim=1, keepdim=True).clamp(min=1e-300)
            limited = pulled * (law.mu[:, contact, None] * p[:, i : i + 1] / length).clamp(max=1.0)
            change = torch.where(moves[:, None], limited - p[:, i + 1 : i + 3], 0.0)
            p[:, i + 1 : i + 3] += change
            velocity += (change[:, None] @ law.delassus[:, i + 1 : i + 3])[:, 0]
        iterations += running
        if sweep % CHECKED == CHECKED - 1:
            velocity = law.velocity(p).flatten(1)  # rid of the rounding that the updates gather
            running = running & (law.residual(p) > tolerance)
    return p, iterations

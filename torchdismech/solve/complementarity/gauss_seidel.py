"""Projected Gauss-Seidel on the exact friction cone, contact by contact; needs no matrix but W and no factorization."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.solve.complementarity.cone import ConeLaw

__all__ = ["gauss_seidel"]

CHECKED = 10  # sweeps between two evaluations of the residual


def gauss_seidel(law: ConeLaw, impulse: Tensor, tolerance: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Return impulses (B, 3C) after sweeps over the contacts, and the sweeps (B,) used.

    At each contact the normal impulse is set so that the bodies do not approach, then the tangential impulse is moved
    against the sliding velocity and projected onto the cone. Convergence is linear, and slow with redundant contacts.

    Parameters
    ----------
    law : the problem, scaled.
    impulse : (B, 3C) first guess.
    tolerance : (B,) of `law.residual`.
    max_iterations : sweeps.
    """
    impulses = impulse.clone()
    iterations = torch.zeros_like(tolerance, dtype=torch.long)
    index = torch.arange(len(tolerance), device=tolerance.device)  # the rows that still run
    for sweep in range(max_iterations):
        if sweep % CHECKED == 0:
            p = impulses[index]
            going = (law.residual(p) > tolerance[index]).nonzero().flatten()
            if not len(going):
                break
            if len(going) < len(index):
                law, p, index = law.rows(going), p[going], index[going]
            velocity = law.velocity(p).flatten(1)  # anew, without the rounding errors that the sweeps have accumulated
        _sweep(law, p, velocity)
        impulses[index] = p
        iterations[index] += 1
    return impulses, iterations


def _sweep(law: ConeLaw, p: Tensor, velocity: Tensor) -> None:
    """Update the impulses p (B, 3C) contact by contact, in place, and the velocities W p + b (B, 3C) with them."""
    normal, _ = law.diagonal()
    # the tangential step must not exceed the largest eigenvalue of the contact's own 2 x 2 block: at most its trace
    trace = law.delassus.diagonal(dim1=1, dim2=2).unflatten(1, (-1, 3))[..., 1:].sum(2)
    tangential = torch.where(law.active & (trace > 0), trace, 1.0)
    for contact in range(law.mu.shape[1]):
        i, moves = 3 * contact, law.active[:, contact, None]
        normal_impulse = (p[:, i : i + 1] - velocity[:, i : i + 1] / normal[:, contact, None]).clamp(min=0.0)
        change = torch.where(moves, normal_impulse - p[:, i : i + 1], 0.0)
        p[:, i : i + 1] += change
        velocity += law.delassus[:, i] * change
        tangential_impulse = p[:, i + 1 : i + 3] - velocity[:, i + 1 : i + 3] / tangential[:, contact, None]
        length = torch.linalg.vector_norm(tangential_impulse, dim=1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
        projected = tangential_impulse * (law.mu[:, contact, None] * p[:, i : i + 1] / length).clamp(max=1.0)
        change = torch.where(moves, projected - p[:, i + 1 : i + 3], 0.0)
        p[:, i + 1 : i + 3] += change
        velocity += (change[:, None] @ law.delassus[:, i + 1 : i + 3])[:, 0]

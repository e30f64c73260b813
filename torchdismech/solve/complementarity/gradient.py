"""Impulses of a solved contact problem as a differentiable function of its matrices.

Pneumatic arms (`constant_curvature`) use it. Steps of a `Model` do not: they differentiate contact together with the
other equations of the step, by `integrate.gradients.kkt.KKTConditions`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError, Status
from torchdismech.geometry.frames import unit_or_zero
from torchdismech.solve.complementarity.contact import ContactSolution

__all__ = ["differentiable_impulses"]

LARGEST_CONDITION = 1e10  # condition number of the active equations beyond which they count as singular
RANK = 1e-10  # singular values below this part of the largest count as zero


def differentiable_impulses(solution: ContactSolution, delassus: Tensor, free: Tensor, mu: Tensor) -> Tensor:
    """Return the impulses (B, 3C) of a solution on the second-order cone, differentiable by W, b and mu.

    At a solution every contact obeys equations: open p = 0; sticking v = 0; sliding v_n = 0 and
    p_t = -mu p_n v_t / |v_t|. Autograd sees one exact Newton step on these, with the inverse of their Jacobian held
    constant: at a root this step changes nothing, but it has the derivatives of the implicit function. Where redundant
    contacts make the equations singular, the pseudo-inverse of the scaled equations takes the place of the inverse: the
    derivatives of the joint effect of the impulses are right, and those of how redundant contacts share it have the
    least norm.

    Where a contact is about to change between open, sticking and sliding, the impulses are not smooth, and the
    derivatives are those of its present mode. Rows that did not converge are returned without derivatives.

    Parameters
    ----------
    solution : of `solve_contact` with the same W, b, mu and cone="second_order".
    delassus, free, mu : (B, 3C, 3C), (B, 3C), (B, C), with the autograd graph that the derivatives shall follow.

    Raises
    ------
    InputError
        A solution on the pyramid: its impulses obey other equations.
    """
    if solution.cone != "second_order":
        raise InputError(
            f"differentiable_impulses: expected a solution on the second-order cone, got one on the {solution.cone}; "
            'solve with cone="second_order"'
        )
    solved = (solution.status == int(Status.CONVERGED))[:, None]
    closed = (solution.sticking | solution.sliding) & solved
    sliding = solution.sliding & solved
    every = closed.repeat_interleave(3, 1)
    # masked before any product, so that padding, whatever it holds, gets zero derivatives and not NaN
    delassus = torch.where(every[:, :, None] & every[:, None], delassus, 0.0)
    free, mu = torch.where(every, free, 0.0), torch.where(closed, mu, 0.0)
    impulses = solution.impulses.detach()
    with torch.no_grad():
        step = _newton_operator(delassus, free, mu, impulses, closed, sliding)
    equations = _equations(delassus, free, mu, impulses, sliding)
    correction = (step @ equations[..., None])[..., 0]
    return impulses - torch.where(every, correction, 0.0)


def _equations(delassus: Tensor, free: Tensor, mu: Tensor, impulses: Tensor, sliding: Tensor) -> Tensor:
    """Return the residuals (B, 3C) of the equations of closed contacts, zero at the solution."""
    p = impulses.unflatten(1, (-1, 3))
    v = ((delassus @ impulses[..., None])[..., 0] + free).unflatten(1, (-1, 3))
    heading = unit_or_zero(torch.where(sliding[..., None], v[..., 1:], 0.0))
    friction = p[..., 1:] + (mu * p[..., 0])[..., None] * heading
    return torch.cat([v[..., :1], torch.where(sliding[..., None], friction, v[..., 1:])], 2).flatten(1)


def _newton_operator(delassus, free, mu, impulses, closed, sliding) -> Tensor:
    """Return the inverse (B, 3C, 3C) of the Jacobian of the equations by the impulses; pseudo-inverse if singular."""
    contacts = mu.shape[1]
    v = ((delassus @ impulses[..., None])[..., 0] + free).unflatten(1, (-1, 3))
    heading = unit_or_zero(torch.where(sliding[..., None], v[..., 1:], 0.0))
    rows = delassus.unflatten(1, (contacts, 3)).clone()  # (B, C, 3, 3C)
    along = rows[:, :, 1:]
    turned = along - heading[..., None] * (heading[..., None, :] @ along)
    length = torch.linalg.vector_norm(torch.where(sliding[..., None], v[..., 1:], 1.0), dim=2)
    stretch = mu * impulses[:, ::3] / length.clamp(min=torch.finfo(v.dtype).tiny)
    unit = torch.eye(3 * contacts, dtype=v.dtype, device=v.device).unflatten(0, (contacts, 3))
    friction = unit[:, 1:] + mu[..., None, None] * heading[..., None] * unit[:, :1] + stretch[..., None, None] * turned
    rows[:, :, 1:] = torch.where(sliding[..., None, None], friction, along)
    rows = torch.where(closed[..., None, None], rows, unit)
    column, row = _scales(delassus, closed, sliding)
    scaled = row[..., None] * rows.flatten(1, 2) * column[:, None]
    inverse = torch.linalg.inv_ex(scaled)[0]
    condition = torch.linalg.matrix_norm(inverse, 1) * torch.linalg.matrix_norm(scaled, 1)
    singular = (~(condition < LARGEST_CONDITION)).nonzero().flatten()
    if len(singular):
        inverse[singular] = torch.linalg.pinv(scaled[singular], rtol=RANK)
    return column[..., None] * inverse * row[:, None]


def _scales(delassus: Tensor, closed: Tensor, sliding: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors (B, 3C) that scale the Jacobian's columns (impulses), and those of its rows (equations)."""
    diagonal = delassus.diagonal(dim1=1, dim2=2).unflatten(1, (-1, 3))
    own = torch.cat([diagonal[..., :1], diagonal[..., 1:].amax(2, keepdim=True).expand(-1, -1, 2)], 2)
    column = torch.where(own > 0, own, 1.0).rsqrt()
    rubbing = torch.cat([torch.zeros_like(sliding)[..., None], sliding[..., None].expand(-1, -1, 2)], 2)
    row = torch.where(rubbing, 1 / column, column)
    row = torch.where(closed[..., None], row, 1 / column)
    return column.flatten(1), row.flatten(1)

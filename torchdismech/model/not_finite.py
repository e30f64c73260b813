"""Finds which force or energy gives numbers that are not finite, and where."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchdismech.elastic import ElasticTerm
from torchdismech.forces import Force
from torchdismech.forces.dependence import products
from torchdismech.model.user_code import force_label, holds_users_code, term_label
from torchdismech.robot.state import Control, State
from torchdismech.rows import finite_rows

__all__ = ["LOOK", "what_is_not_finite"]

LOOK = "look in it for divisions by zero, roots and logarithms, and at the tensors it holds"


@torch.no_grad()
def what_is_not_finite(
    parts: Iterable[Force | ElasticTerm], before: State, state: State, control: Control, rows: Tensor
) -> str | None:
    """Return which force or energy is not finite for the robots in `rows` (B,), and where, as text; None if none is so.

    Robots whose own positions, velocities or time are not finite are left out, as are stencils whose strains are not.

    Parameters
    ----------
    before, state : at the start of the step, and where forces are evaluated.
    """
    rows = rows & finite_rows([state.q, state.velocity, state.time])
    for part in parts:
        if isinstance(part, Force):
            problem = _not_finite_force(part, state, control, rows)
        else:
            problem = _not_finite_term(part, before, state, control, rows)
        if problem:
            return problem
    return None


def _not_finite_force(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return which number of a force or its derivatives is not finite for the robots in `rows` (B,), or None."""
    name, value = force_label(force), force(state, control)
    if value.shape != state.q.shape:  # a fault that `faults` reports
        return None
    if bool((off := ~torch.isfinite(value) & rows[:, None]).any()):
        robot, dof = off.nonzero()[0].tolist()
        return f"{name}: its force on {_dof_label(state, dof)} is {float(value[robot, dof])}"
    if not force.varies:
        return None
    blocks, derivatives = force.blocks(), force.derivatives(state, control)
    if len(blocks) == len(derivatives):
        slopes = products(blocks, derivatives, torch.ones_like(value))
        for slope, by in zip(slopes, ("position", "velocity"), strict=True):
            if bool((off := ~torch.isfinite(slope) & rows[:, None]).any()):
                dof = int(off.nonzero()[0, 1])
                return f"{name}: its derivative by the {by} of {_dof_label(state, dof)} is not finite"
    return None


def _not_finite_term(term: ElasticTerm, before: State, state: State, control: Control, rows: Tensor) -> str | None:
    """Return which number of a term or its derivatives is not finite for the robots in `rows` (B,), or None."""
    name, q, constants = term_label(term), state.q.t().contiguous(), term.constants(before, control, 1.0)
    sound = torch.isfinite(torch.stack(term.elastic_strains(q, constants))).all(0)
    if holds_users_code(term.stencil) and not bool(sound[:, rows].all()):
        return f"{name}: its strains are not finite"
    density, (gradient, packed) = term.densities(q, constants), term.gradient_and_hessian(q, constants)
    if density.shape != sound.shape:  # a fault that `faults` reports
        return None
    kinds = {"density is": [density], "first derivatives are": gradient}
    for what, values in {**kinds, "second derivatives are": packed}.items():
        off = ~torch.isfinite(torch.stack(values)).all(0) & sound & rows
        if bool(off.any()):
            return f"{name}: at stencil {int(off.nonzero()[0, 0])} its {what} not finite"
    return None


def _dof_label(state: State, dof: int) -> str:
    """Return the name of a dof in messages."""
    first = 3 * state.n_nodes
    if dof < first:
        return f"node {dof // 3} along {'xyz'[dof % 3]}"
    held = dof - first - state.twist.shape[1]
    return f"angle {dof - first}" if held < 0 else f"held tangent {held // 3}"

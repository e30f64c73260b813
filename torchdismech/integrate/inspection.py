"""Checks of users' forces and energies in a step: whether gradients see all that they use, and why a step failed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchdismech.errors import InputError, Status
from torchdismech.model import Model
from torchdismech.model.faults import LOOK, is_of_user, what_is_not_finite, what_is_wrong
from torchdismech.model.registration import refuse_unregistered, unregistered
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import per_robot

__all__ = [
    "apart_from_checkpoints",
    "cause_in_hooks",
    "refuse_hidden_tensors",
    "refuse_wrong_matrix",
    "saved_elsewhere",
    "within_checkpoint",
]

ROBOTS_LOOKED_AT = 3  # robots whose hooks are looked at
OFF = 1e-4  # relative, of an equation that a linear solver left: beyond, its matrix is ill-conditioned or wrong

# how a search ends that met numbers that are not finite: at its start, or later, as a line search shortens steps there
LOST = (Status.NOT_FINITE, Status.MAX_ITERATIONS, Status.LINE_SEARCH_FAILED)
NOTHING_HIDDEN = "no hidden tensors"  # among what fits a model

_looked_at: WeakSet[Model] = WeakSet()


def refuse_hidden_tensors(model: Model, state: State, control: Control, snapshot: Snapshot) -> None:
    """Refuse hooks that use tensors which require gradients and are not the model's.

    Looks at a model once, and once more where an attribute that has changed since holds such a tensor. `snapshot` is
    what the model holds.
    """
    if not model.has_user_hooks or NOTHING_HIDDEN in snapshot.fitting:
        return
    if model not in _looked_at or any(unregistered(model)):
        _look_for_hidden_tensors(model, state, control)
        _looked_at.add(model)
    snapshot.fitting.add(NOTHING_HIDDEN)


def _look_for_hidden_tensors(model: Model, state: State, control: Control) -> None:
    at, control = state.rows(slice(1)).detach(), control.rows(slice(1))
    with torch.enable_grad(), apart_from_checkpoints(), per_robot(model).rows(0, 1).in_place():
        at = at.replace(q=at.q.requires_grad_())

        def force() -> Tensor:
            return model.mechanics.force(model.start_step(at, control), at.q, at.velocity, at.time)

        refuse_unregistered(model, force(), [at.q, *control.tensors().values()], force)


def apart_from_checkpoints() -> AbstractContextManager[Any]:
    """Let autograd save tensors itself meanwhile, not by `torch.utils.checkpoint`.

    A checkpoint counts what is saved, and takes all that it covers once more where a derivative is asked for. What a
    step finds of its own is none of that: it asks for derivatives of users' forces while it is solved.
    """
    if not saved_elsewhere():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def saved_elsewhere() -> bool:
    """Return whether what autograd saves goes through hooks, as within `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def within_checkpoint() -> bool:
    """Return whether `torch.utils.checkpoint` keeps what autograd saves, and takes all once more for a gradient."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == checkpoint.__module__


def _same(tensor: Tensor) -> Tensor:
    return tensor


def cause_in_hooks(
    model: Model, state: State, control: Control, rows: Tensor, status: Tensor | None = None, dt: float = 0.0
) -> str | None:
    """Return what is wrong with a hook at the states of some robots (B,), by name; None where nothing is.

    Parameters
    ----------
    status : (B,) of the step that failed: where its search may have met numbers that are not finite, what they come
        from is looked at where the step led, too.
    dt : how long that step is [s].
    """
    if not model.has_user_hooks or not bool(rows.any()):
        return None
    forces = [force for force in model.forces if is_of_user(force)]
    terms = [term for term in model.terms if is_of_user(term)]
    for robot in rows.nonzero().flatten()[:ROBOTS_LOOKED_AT].tolist():
        row = slice(robot, robot + 1)
        start, held, counts = state.rows(row), control.rows(row), rows[row]
        lost = status is not None and int(status[robot]) in LOST
        states = [start, _ahead(start, dt)] if lost else [start]
        if not all(bool(torch.isfinite(set_to).all()) for set_to in held.tensors().values()):
            states = []  # what a control sets is not finite: no hook's doing
        with per_robot(model).rows(robot, 1).in_place():
            for at in states:
                if found := what_is_not_finite(forces, terms, start, at, held, counts):
                    return f"{found}, where positions and velocities are finite; {LOOK}"
            if wrong := what_is_wrong(forces, terms, start, held, counts):
                return wrong
    return None


def _ahead(state: State, dt: float) -> State:
    """Return where velocities lead from a state: near what a step looks at first."""
    return state.replace(q=state.q + dt * state.velocity, time=state.time + dt)


def refuse_wrong_matrix(
    model: Model, state: State, control: Control, found: Tensor, expected: Tensor, rows: Tensor
) -> None:
    """Refuse gradients of a step whose matrix is not the derivative of its residual, and name the hook.

    Parameters
    ----------
    state : where forces are evaluated at the root.
    found, expected : (B, n_free) both sides of the adjoint equations A^T lambda = rhs, A by autograd.
    rows : (B,) robots that were solved.
    """
    off = torch.linalg.vector_norm(found - expected, dim=1) > OFF * torch.linalg.vector_norm(expected, dim=1)
    off = off & rows
    if bool(off.any()) and (cause := cause_in_hooks(model, state, control, off)):
        raise InputError(f"gradients through a step need the derivatives of all forces: {cause}")

"""Checks of users' forces and energies in a step: whether gradients see all that they use, and why a step failed."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchdismech.errors import InputError
from torchdismech.hooks import what_is_wrong
from torchdismech.model import Model
from torchdismech.registration import refuse_unregistered
from torchdismech.state import Control, State
from torchdismech.values import per_robot

__all__ = ["cause_in_hooks", "refuse_hidden_tensors", "refuse_transforms", "refuse_wrong_matrix"]

FEW = 3  # robots whose hooks are looked at
OFF = 1e-4  # relative, of an equation that a linear solver left: beyond, its matrix is ill-conditioned or wrong

INSTEAD = (
    "take reverse mode, torch.autograd.grad or backward(), or torch.autograd.functional.jacobian; many robots at once "
    "are a batch"
)

_seen: WeakSet[Model] = WeakSet()


def refuse_hidden_tensors(model: Model, state: State, control: Control) -> None:
    """Refuse hooks that use tensors which require gradients and are not the model's; looks at a model once."""
    if not model.has_user_hooks or model in _seen:
        return
    at, control = state.rows(slice(1)).detach(), control.rows(slice(1))
    # hooks of its own: checkpointing counts what is saved, and this runs once
    with (
        per_robot(model).rows(0, 1).in_place(),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(_same, _same),
    ):
        at = at.replace(q=at.q.requires_grad_())
        force = model.mechanics.force(model.start_step(at, control), at.q, at.velocity, at.time)
        refuse_unregistered(model, force, [at.q, *control.tensors().values()])
    _seen.add(model)


def refuse_transforms(model: Model, state: State, control: Control | None) -> None:
    """Refuse forward-mode derivatives and `torch.func`: a step's iterations would be taken for its derivative."""
    forward, transforms = forward_ad._current_level >= 0, torch._C._functorch.peek_interpreter_stack() is not None
    if not (forward or transforms):
        return
    controls = [] if control is None else [*control.tensors().values(), *control.values.values()]
    given = [*state.fields(), *controls, *model.parameters(), *model.buffers()]
    if forward and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in given):
        raise RuntimeError(f"a step has no forward-mode derivatives (torch.autograd.forward_ad): {INSTEAD}")
    if transforms and any(map(torch._C._functorch.is_functorch_wrapped_tensor, given)):
        raise RuntimeError(f"a step cannot be transformed by torch.func (grad, vjp, jvp, vmap, jacrev): {INSTEAD}")


def _same(tensor: Tensor) -> Tensor:
    return tensor


def cause_in_hooks(model: Model, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with a hook at the states of some robots (B,), by name; None where nothing is."""
    if not model.has_user_hooks or not bool(rows.any()):
        return None
    for robot in rows.nonzero().flatten()[:FEW].tolist():
        row = slice(robot, robot + 1)
        with per_robot(model).rows(robot, 1).in_place():
            wrong = what_is_wrong(model.forces, model.terms, state.rows(row), control.rows(row), rows[row])
        if wrong:
            return wrong
    return None


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

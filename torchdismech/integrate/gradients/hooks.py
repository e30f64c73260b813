"""What gradients need of users' forces and energies: tensors that the model knows, and right derivatives."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.causes import cause_in_hooks
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.model import Model
from torchdismech.model.registration import refuse_unregistered, unregistered
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import per_robot

__all__ = ["refuse_hidden_tensors", "refuse_wrong_matrix"]

OFF = 1e-4  # relative error of adjoint equations that were solved: beyond, the matrix is ill-conditioned or wrong
NOTHING_HIDDEN = "no hidden tensors"  # an entry of `Snapshot.checked_keys`

_looked_at: WeakSet[Model] = WeakSet()


def refuse_hidden_tensors(model: Model, state: State, control: Control, snapshot: Snapshot) -> None:
    """Refuse users' code that uses tensors which require gradients and are not registered with the model.

    Looks at a model once, and once more where an attribute that has changed since holds such a tensor. `snapshot` is
    the model's present one.
    """
    if not model.has_user_hooks or NOTHING_HIDDEN in snapshot.checked_keys:
        return
    if model not in _looked_at or any(unregistered(model)):
        _look_for_hidden_tensors(model, state, control)
        _looked_at.add(model)
    snapshot.checked_keys.add(NOTHING_HIDDEN)


def _look_for_hidden_tensors(model: Model, state: State, control: Control) -> None:
    at, control = state.rows(slice(1)).detach(), control.rows(slice(1))
    eagerly = model.compilation.paused()
    with torch.enable_grad(), apart_from_checkpoints(), eagerly, per_robot(model).rows(0, 1).in_place():
        at = at.replace(q=at.q.requires_grad_())

        def force() -> Tensor:
            return model.mechanics.force(model.start_step(at, control), at.q, at.velocity, at.time)

        refuse_unregistered(model, force(), [at.q, *control.tensors().values()], force)


def refuse_wrong_matrix(
    model: Model, state: State, control: Control, found: Tensor, expected: Tensor, rows: Tensor
) -> None:
    """Refuse gradients of a step whose matrix is not the derivative of its residual, and name the hook.

    Parameters
    ----------
    state : where forces are evaluated at the root.
    found, expected : (B, n_free) both sides of the adjoint equations A^T lambda = rhs, with A^T lambda by autograd.
    rows : (B,) robots that were solved.
    """
    off = torch.linalg.vector_norm(found - expected, dim=1) > OFF * torch.linalg.vector_norm(expected, dim=1)
    off = off & rows
    if bool(off.any()) and (cause := cause_in_hooks(model, state, control, off)):
        raise InputError(f"gradients through a step need the derivatives of all forces: {cause}")

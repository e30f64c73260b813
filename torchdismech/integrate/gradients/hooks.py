"""What gradients need of users' forces and energies: tensors that the model knows, and right derivatives."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.causes import cause_in_users_code
from torchdismech.integrate.gradients.checkpoints import apart_from_checkpoints
from torchdismech.model import Model
from torchdismech.model.registration import refuse_unregistered, unregistered
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import per_robot

__all__ = ["refuse_hidden_tensors", "refuse_wrong_matrix"]

OFF = 1e-4  # relative error of adjoint equations that were solved: beyond, the matrix is ill-conditioned or wrong
NOTHING_HIDDEN = "no hidden tensors"  # an entry of `Snapshot.checked_keys`

_examined: WeakSet[Model] = WeakSet()


def refuse_hidden_tensors(model: Model, state: State, control: Control, snapshot: Snapshot) -> None:
    """Refuse users' code that uses tensors which require gradients and are not registered with the model.

    Looks at a model once, and once more where an attribute that has changed since holds such a tensor. `snapshot` is
    the model's present one.
    """
    if not model.has_user_hooks or NOTHING_HIDDEN in snapshot.checked_keys:
        return
    if model not in _examined or any(unregistered(model)):
        _refuse_hidden_tensors_now(model, state, control)
        _examined.add(model)
    snapshot.checked_keys.add(NOTHING_HIDDEN)


def _refuse_hidden_tensors_now(model: Model, state: State, control: Control) -> None:
    robot_state, control = state.rows(slice(1)).detach(), control.rows(slice(1))
    uncompiled = model.compilation.paused()
    with torch.enable_grad(), apart_from_checkpoints(), uncompiled, per_robot(model).rows(0, 1).in_place():
        robot_state = robot_state.replace(q=robot_state.q.requires_grad_())
        q, time, obstacles = robot_state.q, robot_state.time, model.contact.constrained_obstacles

        def evaluated() -> Tensor:
            """Return all that a step depends on: forces, also of dissipation, gaps, and what materials remember."""
            start = model.start_step(robot_state, control, elapsed=1.0)
            internal = model.mechanics.internal_after(start, q, q.new_ones(()))
            parts = [model.mechanics.force(start, q, robot_state.velocity, time), internal]
            parts += [obstacle.gap(q, time) for obstacle in obstacles]
            return torch.cat([part for part in parts if part is not None], dim=1)

        refuse_unregistered(model, evaluated(), [q, *control.tensors().values()], evaluated)


def refuse_wrong_matrix(
    model: Model, state: State, control: Control, by_autograd: Tensor, expected: Tensor, rows: Tensor
) -> None:
    """Refuse gradients of a step whose matrix is not the derivative of its residual, and name the hook.

    Parameters
    ----------
    state : where forces are evaluated at the root.
    by_autograd, expected : (B, n_free) both sides of the adjoint equations A^T lambda = rhs, the first by autograd.
    rows : (B,) robots that were solved.
    """
    wrong = torch.linalg.vector_norm(by_autograd - expected, dim=1) > OFF * torch.linalg.vector_norm(expected, dim=1)
    wrong = wrong & rows
    if bool(wrong.any()) and (cause := cause_in_users_code(model, state, control, wrong)):
        raise InputError(f"gradients through a step need the derivatives of all forces: {cause}")

"""Friction, which has no part in equilibria, where surfaces that have some bear a load or may be what holds a robot."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchdismech.contact import Friction, Obstacle, SelfContact
from torchdismech.contact.report import ContactReport
from torchdismech.errors import InputError, warn
from torchdismech.model import Model
from torchdismech.robot.state import State

__all__ = ["STEPS_DOWN", "friction_as_cause", "refuse_driven_tangents", "warn_of_idle_friction"]

# what to do where an equilibrium is not found, or not as meant
STEPS_DOWN = "settle by time steps with damping, as rollout by ImplicitEuler with forces.MassDamping"


@torch.no_grad()
def warn_of_idle_friction(
    caller: str, model: Model, state: State, report: ContactReport, rows: Tensor, tolerance: Tensor | float
) -> None:
    """Warn of contacts with friction that bear a load at equilibria of some robots (B,), as friction may hold these.

    Belts are not spoken of: what moves pulls by its friction.

    Parameters
    ----------
    state : the equilibria.
    report : what contact does there.
    tolerance : (B,) or one of all: smaller loads are none [N].
    """
    for contact, idle in _idle_contacts(model, state):
        if bool((idle & rows & (report[f"load/{contact.name}"] > tolerance)).any()):
            warn(
                f"{caller}: the friction of {_called(contact)} has no part in equilibria; where it is to hold the "
                f"robot, {STEPS_DOWN}; or, if the rest without friction is meant, "
                f"warnings.filterwarnings('ignore', '{caller}: the friction')",
                RuntimeWarning,
            )


@torch.no_grad()
def friction_as_cause(model: Model, state: State, rows: Tensor) -> str | None:
    """Return that no equilibrium may have been found as friction would hold some robots (B,); None without any."""
    for contact, idle in _idle_contacts(model, state):
        if bool((idle & rows).any()):
            return f"the friction of {_called(contact)} has no part in equilibria: if it is what holds, {STEPS_DOWN}"
    return None


@torch.no_grad()
def refuse_driven_tangents(caller: str, model: Model, state: State) -> None:
    """Refuse what drives robots (B,) by friction that sees the tangents of rods: it sees those of the start alone."""
    for obstacle in model.contact.obstacles:
        if obstacle.rod_tangents is not None and bool(_drives(obstacle, state).any()):
            raise InputError(
                f"{caller}: {obstacle.name_in_messages} moves, and friction along rods and of rods that roll goes by "
                f"the tangents of the start, which are not those of the equilibrium: {STEPS_DOWN}"
            )


def _idle_contacts(model: Model, state: State) -> Iterator[tuple[Obstacle | SelfContact, Tensor]]:
    """Return the contacts with friction, and for which robots (B,) it is above zero and does nothing at rest."""
    for contact in (*model.contact.obstacles, *model.contact.self_contacts):
        if contact.law.friction is not None:
            yield (
                contact,
                _largest(contact.law.friction).reshape(-1).gt(0).expand(state.batch) & ~_drives(contact, state),
            )


def _largest(friction: Friction) -> Tensor:
    """Return the coefficient () or (B, 1) at rest."""
    return friction.coefficient if friction.static is None else friction.static


def _drives(contact: Obstacle | SelfContact, state: State) -> Tensor:
    """Return the robots (B,) that a contact drives, as a belt does; constraints drive none at rest."""
    if contact.constrained or not isinstance(contact, Obstacle) or contact.path is None:
        return torch.zeros_like(state.time, dtype=torch.bool)
    return (contact.path.velocity(state.time) != 0).any(1)


def _called(contact: Obstacle | SelfContact) -> str:
    """Return a contact as messages name it."""
    return contact.name_in_messages if isinstance(contact, Obstacle) else contact.scope.label

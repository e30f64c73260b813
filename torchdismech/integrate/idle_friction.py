"""Friction in equilibria, where it has no part: warnings of it where it may be what would hold a robot."""

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

# advice in messages, where an equilibrium is not found or not as meant
STEPS_DOWN = "settle by time steps with damping, as rollout by ImplicitEuler with forces.MassDamping"


@torch.no_grad()
def warn_of_idle_friction(
    caller: str, model: Model, state: State, report: ContactReport, rows: Tensor, tolerance: Tensor | float
) -> None:
    """Warn of contacts with friction that bear a load at equilibria of some robots (B,), as friction may hold these.

    Belts are left out: what moves pulls by its friction.

    Parameters
    ----------
    caller : name at the beginning of the warning.
    state : the equilibria.
    report : the contact report there.
    rows : (B,) the robots.
    tolerance : (B,) or one of all: smaller loads count as none [N].
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
    """Return that equilibria of some robots (B,) may not be found as friction is left out; None if nothing rubs."""
    for contact, idle in _idle_contacts(model, state):
        if bool((idle & rows).any()):
            return f"the friction of {_called(contact)} has no part in equilibria: if it is what holds, {STEPS_DOWN}"
    return None


@torch.no_grad()
def refuse_driven_tangents(caller: str, model: Model, state: State) -> None:
    """Refuse moving obstacles that drive robots by friction along rods, or of rods that roll.

    Such friction is evaluated for the tangents at the start, which are not those of the equilibrium.
    """
    for obstacle in model.contact.obstacles:
        if obstacle.rod_tangents is not None and bool(_drives(obstacle, state).any()):
            raise InputError(
                f"{caller}: {obstacle.name_in_messages} moves, and friction along rods and of rods that roll goes by "
                f"the tangents of the start, which are not those of the equilibrium: {STEPS_DOWN}"
            )


def _idle_contacts(model: Model, state: State) -> Iterator[tuple[Obstacle | SelfContact, Tensor]]:
    """Yield the contacts with friction, and the robots (B,) for which it is above zero and does nothing at rest."""
    for contact in (*model.contact.obstacles, *model.contact.self_contacts):
        if contact.law.friction is not None:
            yield (
                contact,
                _largest(contact.law.friction).reshape(-1).gt(0).expand(state.batch) & ~_drives(contact, state),
            )


def _largest(friction: Friction) -> Tensor:
    """Return the coefficient of friction () or (B, 1) at rest."""
    return friction.coefficient if friction.static is None else friction.static


def _drives(contact: Obstacle | SelfContact, state: State) -> Tensor:
    """Return the robots (B,) that a contact drives as a belt does; a constraint drives none at rest."""
    if contact.constrained or not isinstance(contact, Obstacle) or contact.path is None:
        return torch.zeros_like(state.time, dtype=torch.bool)
    return (contact.path.velocity(state.time) != 0).any(1)


def _called(contact: Obstacle | SelfContact) -> str:
    """Return the name of a contact in messages."""
    return contact.name_in_messages if isinstance(contact, Obstacle) else contact.scope.label

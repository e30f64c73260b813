"""Contacts that are constraints, linear about an iterate: how steps change gaps and slides, and loads act on dofs."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations

__all__ = ["LinearContacts", "off_cone"]

ON_CONE = 1e-9  # relative: loads so near to their cone are on it


class LinearContacts:
    """The contacts of a step at an iterate, and their Jacobian there.

    Parameters
    ----------
    equations, constraints : of the step.
    contacts : all S contacts at the iterate.

    Attributes
    ----------
    jacobian : J (S, 3, 3 k) of gaps and slides.
    """

    def __init__(self, equations: StepEquations, constraints: ConstraintSet, contacts: Contacts):
        self.equations, self.constraints, self.contacts = equations, constraints, contacts
        self.jacobian = constraints.jacobian(contacts)

    def forces_of(self, load: Tensor) -> Tensor:
        """Return the force of loads (S, 3) on the free dofs (B, n_free)."""
        like = self.equations.base
        return self.equations.model.unknowns.on_unknowns(self.constraints.forces_of(self.jacobian, load, like))

    def motions_of(self, step: Tensor) -> Tensor:
        """Return the changes (S, 3) of gaps and slides by a step (B, n_free)."""
        return self.constraints.motions_of(self.jacobian, self.equations.motion(step))


def off_cone(load: Tensor, slide: Tensor, friction: Tensor) -> Tensor:
    """Return by how much (S,) [m] contacts that slide by (S, 2) [m] under loads (S, 3) break the law of friction.

    That is the slide itself where friction is within its cone, else the slide times how far friction is from pointing
    against it.
    """
    most, length = friction * load[:, 0], torch.linalg.vector_norm(slide, dim=1)
    tangential = load[:, 1:]
    on_cone = (most > 0) & (torch.linalg.vector_norm(tangential, dim=1) >= (1 - ON_CONE) * most)
    least = torch.finfo(load.dtype).tiny
    off_direction = tangential / most.clamp_min(least).unsqueeze(1) + unit_or_zero(slide)
    return torch.where(on_cone, length * torch.linalg.vector_norm(off_direction, dim=1), length)

"""Contacts that are constraints, linear about an iterate: how steps change gaps and slides, and loads act on dofs."""

from __future__ import annotations

from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.integrate.equations import StepEquations

__all__ = ["LinearContacts"]


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

    def summed(self, on_nodes: Tensor) -> Tensor:
        """Return the force on the free dofs (B, n_free) of forces (3 k, S) on the contacts' nodes."""
        return self.equations.model.unknowns.on_unknowns(self.constraints.summed(on_nodes, self.equations.base))

    def motions_of(self, step: Tensor) -> Tensor:
        """Return the changes (S, 3) of gaps and slides by a step (B, n_free)."""
        return self.constraints.motions_of(self.jacobian, self.equations.motion(step))

"""PointConditions: the conditions that contacts obey at the root of a step, for recorded backward passes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.closed_contacts import ClosedContacts
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.solve.search import Iterate

__all__ = ["PointConditions"]


class PointConditions:
    """The KKT conditions of all contacts of a solved step, and the multipliers of a loss.

    They are those of `kkt.KKTConditions`, but for every contact, also without load, and solved as steps are: shapes do
    not depend on what touches, so that recordings can hold this. It does not always converge where friction presses
    contacts; then `ok` is False, and the other class serves.

    Parameters
    ----------
    equations : of the step, with the loads found.
    x : (B, n_free) its root.
    values : (nnz, B) of the matrix there.
    rhs : (B, n_free) the gradient of a loss by the unknowns.
    rows : (B,) robots that were solved.

    Attributes
    ----------
    multipliers : (B, n_free), (S, 3) of the balance of forces, and of these conditions.
    ok : (B,) where they were found.
    """

    def __init__(self, equations: StepEquations, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor):
        constraints = equations.constraints
        assert constraints is not None
        nothing = torch.zeros_like(x)
        linear = LinearContacts(equations, constraints, equations.contacts_at(x))
        closing = ClosedContacts(equations, Iterate(x, nothing, values, nothing[:, 0]), linear)
        of_forces, of_contacts, self._by_friction, self.ok = closing.multipliers(rhs, rows)
        self.multipliers = of_forces, of_contacts
        self._load = constraints.load

    def residual(self, equations: StepEquations, x: Tensor) -> Tensor:
        """Return the residuals (S, 3) of the conditions in the same step; autograd follows all but x and the loads."""
        constraints, q = equations.constraints, equations.full(x)
        assert constraints is not None
        gap, slide = constraints.at(q, constraints.time).gap, constraints.slide(q)
        most = constraints.friction * self._load[:, 0]
        friction = self._load[:, 1:] + most.unsqueeze(1) * unit_or_zero(slide)
        return torch.cat([gap.unsqueeze(1), torch.where(self._by_friction.unsqueeze(1), friction, slide)], dim=1)

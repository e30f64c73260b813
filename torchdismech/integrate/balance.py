"""The balance of forces that a step solves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.model import Model, StepStart

__all__ = ["Balance"]


class Balance(ABC):
    """The balance of forces of one step, as equations in the free dofs; each integrator has its own.

    `mass_gain`, `position_gain` and `velocity_gain` are the derivatives by q of: the acceleration that the inertial
    force sees, the position and the velocity at which the other forces are evaluated.

    Angles without inertia (mid-edge normals, joint edges) are algebraic: they are what balances the torques on them
    where the forces are evaluated, so their position there is the unknown itself, whatever the position gain of the
    others (as a mean of old and new they would ring). Their rows are divided by the position gain, which keeps the
    matrix symmetric and the residual a gradient.
    """

    mass_gain: float
    position_gain: float
    velocity_gain: float

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float):
        self.model = model
        self.start = start
        self.base = clamped_q  # (B, n): clamped dofs are read from here
        self.dt = dt
        self.descending = False
        self.constraints: ConstraintSet | None = None

    def at(self, moving: Tensor, q: Tensor) -> Tensor:
        """Return the position (B, n) where forces are evaluated: `moving`, algebraic angles as in q."""
        return torch.where(self.model.algebraic, q, moving)

    @property
    def has_potential(self) -> bool:
        """Whether the residual is the gradient of a potential."""
        return self.model.conservative and self.constraints is None

    @abstractmethod
    def acceleration(self, q: Tensor) -> Tensor:
        """Return the acceleration (B, n) in the inertial force."""

    @abstractmethod
    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return position, velocity (B, n) and time (B,) at which elastic and external forces are evaluated."""

    def load_factor(self) -> float:
        """Return the share of the external forces that acts."""
        return 1.0

    def full(self, x: Tensor) -> Tensor:
        """Return q (B, n) for the unknowns x (B, n_free)."""
        return self.model.spread(x, self.base)

    def residual(self, x: Tensor) -> Tensor:
        """Return inertial minus elastic minus external force on the free dofs (B, n_free)."""
        q = self.full(x)
        position, velocity, time = self.evaluated_at(q)
        internal = self.model.internal_force(self.start, position, velocity)
        external = self.load_factor() * self.model.external_force(self.start, position, velocity, time)
        return self._with_inertia(q, internal + external + self._constraint_force(q))

    def residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual (B, n_free) and its derivative by x as values (nnz, B)."""
        q = self.full(x)
        gains = (self.position_gain, self.velocity_gain, self.mass_gain, self.load_factor())
        force, values = self.model.force_and_stiffness(self.start, *self.evaluated_at(q), *gains)
        if self.constraints is not None:
            pattern = self.model.solver_for(q.shape[0], self.start.pairs).pattern
            self.constraints.add_turning(values, q, pattern, self.model.unknown)
        return self._with_inertia(q, force + self._constraint_force(q)), values

    def _constraint_force(self, q: Tensor) -> Tensor | float:
        """Return the force (B, n) of the present loads of contacts that are constraints."""
        return 0.0 if self.constraints is None else self.constraints.force(q)

    def _with_inertia(self, q: Tensor, force: Tensor) -> Tensor:
        balance = self.model.body.mass * self.acceleration(q) - force if self.mass_gain else -force
        return (balance * self._row_weight()).index_select(1, self.model.free_index)

    def _row_weight(self) -> Tensor | float:
        """Return what the rows of the residual (n,) are multiplied by: 1, for algebraic angles 1 / position_gain."""
        if self.position_gain == 1:
            return 1.0
        return torch.where(self.model.algebraic, 1 / self.position_gain, 1.0)

    def inertia(self) -> Tensor:
        """Return the inertia's part of the matrix's diagonal (n_free, 1) or (n_free, B)."""
        mass = self.mass_gain * self.model.body.mass[..., self.model.free_index]
        return mass.unsqueeze(-1) if mass.dim() == 1 else mass.t()

    def advanced(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x moved by the step, edges keeping the length that the step asks for to first order."""
        q = self.full(x)
        moved = self.model.advance(q, self.model.spread(step, torch.zeros_like(q)))
        return moved.index_select(1, self.model.free_index)

    def potential(self, x: Tensor) -> Tensor | None:
        """Return the potential (B,) if Newton's steps are to descend it, else None: the residual's norm judges them."""
        if not self.descending:
            return None
        q = self.full(x)
        position, velocity, time = self.evaluated_at(q)
        internal = self.model.internal_potential(self.start, position)
        constant, varying = self.model.load_potential(self.start, position, velocity, time)
        potential = (internal + self.load_factor() * varying) / self.position_gain
        potential = potential - self.load_factor() * (constant * self._row_weight() * q).sum(1)
        if self.mass_gain:
            potential = potential + (0.5 / self.mass_gain) * (self.model.body.mass * self.acceleration(q) ** 2).sum(1)
        return potential

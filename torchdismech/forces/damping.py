"""Damping forces proportional to the velocity of each dof: viscous, and proportional to mass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.forces.base import Force, scalar
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["MassDamping", "Viscous"]


class _Diagonal(Force):
    """F = -coefficient * velocity on each of the first k dofs, as many as `_coefficient` has."""

    symmetric = True
    drag = True
    compiles = True

    def _coefficient(self) -> Tensor:
        """Return the coefficients (.., k) of the first k dofs."""
        raise TypeError(f"{type(self).__name__} has to define _coefficient()")

    def forward(self, state: State, control: Control) -> Tensor:
        """Return -coefficient * velocity (B, n)."""
        coefficient = self._coefficient()
        count = coefficient.shape[-1]
        return torch.nn.functional.pad(-coefficient * state.velocity[:, :count], (0, self.body.n_dofs - count))

    def rayleigh(self, state: State, control: Control) -> Tensor:
        """Return half the power (B,) that is dissipated [W]."""
        coefficient = self._coefficient()
        return 0.5 * (coefficient * state.velocity[:, : coefficient.shape[-1]] ** 2).sum(1)

    def blocks(self) -> list[Block]:
        """Return k blocks of one entry, the diagonal of the first k dofs."""
        dofs = np.arange(self._coefficient().shape[-1])[:, None]
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return -coefficient by velocity."""
        diagonal = -self._coefficient()
        return [(None, diagonal.expand(state.batch, -1).reshape(state.batch, -1, 1, 1))]


class Viscous(_Diagonal):
    """F = -viscosity * length * velocity on each node, with the length that belongs to it (see `Body.node_length`).

    Parameters
    ----------
    viscosity : of the fluid, () or (B, 1), 0 or more [Pa s].
    explicit : see `Force`.

    Raises
    ------
    InputError
        The viscosity has another shape, or a number that is below zero or not finite.
    """

    per_robot = not_negative = ("viscosity",)

    def __init__(self, viscosity: Given, explicit: bool = False):
        super().__init__(explicit)
        self.viscosity = untrained(scalar(viscosity, f"{type(self).__name__}.viscosity", from_zero=True))

    def _coefficient(self) -> Tensor:
        return (self.viscosity * self.body.node_length).repeat_interleave(3, dim=-1)


class MassDamping(_Diagonal):
    """F = -rate * mass * velocity, with the lumped masses of nodes and the inertia of edges about their axes.

    With lumped masses all modes decay at the same rate, twisting ones, too. With consistent masses, whose coupling
    between nodes is left out here, modes of short waves decay faster: by 12 % at the fourth bending mode of a free rod
    of 20 edges.

    Parameters
    ----------
    rate : () or (B, 1), 0 or more [1/s].
    explicit : see `Force`.

    Raises
    ------
    InputError
        The rate has another shape, or a number that is below zero or not finite.
    """

    per_robot = not_negative = ("rate",)

    def __init__(self, rate: Given, explicit: bool = False):
        super().__init__(explicit)
        self.rate = untrained(scalar(rate, f"{type(self).__name__}.rate", from_zero=True))

    def _coefficient(self) -> Tensor:
        return self.rate * self.body.mass[..., : self.body.first_held]

"""Loads that a step does not change: gravity, buoyancy, point forces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, acting, number, vector
from torchdismech.state import Control, State

__all__ = ["Buoyancy", "Gravity", "PointForce"]


class Gravity(Force):
    """Weight: mass times `acceleration`, a vector (3,) or (B, 3) [m/s^2]."""

    constant = True
    per_robot = ("acceleration",)

    def __init__(self, acceleration):
        super().__init__()
        self.acceleration = nn.Parameter(vector(acceleration, "Gravity.acceleration"), requires_grad=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return m g on the nodes."""
        weight = self.body.node_mass().unsqueeze(-1) * self.acceleration.unsqueeze(-2)
        return self.body.on_nodes(weight.expand(state.batch, -1, -1))


class Buoyancy(Force):
    """Minus the weight of the displaced fluid: -fluid_density * volume * acceleration.

    Parameters
    ----------
    acceleration : gravity, (3,) or (B, 3) [m/s^2].
    fluid_density : () or (B, 1) [kg/m^3].
    """

    constant = True
    per_robot = ("acceleration", "fluid_density")

    def __init__(self, acceleration, fluid_density):
        super().__init__()
        self.acceleration = nn.Parameter(vector(acceleration, "Buoyancy.acceleration"), requires_grad=False)
        self.fluid_density = nn.Parameter(number(fluid_density), requires_grad=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return -rho_f V g on the nodes."""
        displaced = self.fluid_density * self.body.node_volume
        lift = -displaced.unsqueeze(-1) * self.acceleration.unsqueeze(-2)
        return self.body.on_nodes(lift.expand(state.batch, -1, -1))


class PointForce(Force):
    """A constant force on each of some nodes, at the times start < t <= stop (see `base.acting`).

    Parameters
    ----------
    nodes : node indices.
    force : (3,) or (B, 3) [N], on each of the nodes.
    start, stop : [s].
    """

    constant = True
    per_robot = ("force",)
    _index: Tensor

    def __init__(self, nodes: Sequence[int], force, start: float = -math.inf, stop: float = math.inf):
        super().__init__()
        if not start < stop:
            raise InputError(f"PointForce: start has to be before stop, got start={start}, stop={stop}")
        self.nodes = list(nodes)
        self.register_buffer("_index", torch.as_tensor(self.nodes), persistent=False)
        self.force = nn.Parameter(vector(force, "PointForce.force"), requires_grad=False)
        self.start, self.stop = float(start), float(stop)

    def bind(self, body: Body) -> None:
        """Check the nodes."""
        super().bind(body)
        wrong = [i for i in self.nodes if not 0 <= i < body.n_nodes]
        if wrong or not self.nodes:
            raise InputError(f"PointForce.nodes: expected indices 0 to {body.n_nodes - 1}, got {wrong or 'none'}")

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force on its nodes while it is on."""
        on = acting(state.time, self.start, self.stop)
        load = state.q.new_zeros(state.batch, self.body.n_nodes, 3)
        force = (self.force.expand(state.batch, 3) * on[:, None]).unsqueeze(1).expand(-1, len(self.nodes), -1)
        return self.body.on_nodes(load.index_add(1, self._index, force))

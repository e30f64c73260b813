"""Loads that are constant within a step: gravity, buoyancy, forces at points and along lines."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.forces.base import (
    Force,
    Timed,
    number,
    refuse_no_rods,
    refuse_unclear,
    scalar,
    vector,
    vector_on_each,
)
from torchdismech.geometry.checks import Elements, Indices, checked_indices
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["Buoyancy", "Gravity", "LineLoad", "PointForce"]


class Gravity(Force):
    """Weight: mass times `acceleration`, a vector (3,) or (B, 3) [m/s^2]."""

    constant = True
    per_robot = ("acceleration",)

    def __init__(self, acceleration: Given):
        super().__init__()
        self.acceleration = untrained(vector(acceleration, "Gravity.acceleration"))

    def forward(self, state: State, control: Control) -> Tensor:
        """Return m g on the nodes."""
        weight = self.body.node_mass().unsqueeze(-1) * self.acceleration.unsqueeze(-2)
        return self.body.on_nodes(weight.expand(state.batch, -1, -1))


class Buoyancy(Force):
    """Minus the weight of the displaced fluid: -fluid_density * volume * acceleration.

    Parameters
    ----------
    acceleration : gravity, (3,) or (B, 3) [m/s^2].
    fluid_density : () or (B, 1), 0 or more [kg/m^3].

    Raises
    ------
    InputError
        A number or vector has another shape or is not finite, or the density is below zero.
    """

    constant = True
    per_robot = ("acceleration", "fluid_density")
    not_negative = ("fluid_density",)

    def __init__(self, acceleration: Given, fluid_density: Given):
        super().__init__()
        self.acceleration = untrained(vector(acceleration, "Buoyancy.acceleration"))
        self.fluid_density = untrained(scalar(fluid_density, "Buoyancy.fluid_density", from_zero=True))

    def forward(self, state: State, control: Control) -> Tensor:
        """Return -rho_f V g on the nodes."""
        displaced = self.fluid_density * self.body.node_volume
        lift = -displaced.unsqueeze(-1) * self.acceleration.unsqueeze(-2)
        return self.body.on_nodes(lift.expand(state.batch, -1, -1))


class PointForce(Timed, Force):
    """A constant force on each of some nodes, at the times start < t <= stop.

    Parameters
    ----------
    nodes : node indices, or a bool mask (N,).
    force : (3,), (B, 3) or (B, 1, 3) [N], the same on each of the nodes; or (1, k, 3) or (B, k, 3), one for each of the
        k nodes.
    start, stop : [s]. States begin at time 0: a load with start 0 acts from the beginning on.

    Raises
    ------
    InputError
        The shape is (k, 3) for k > 1 nodes, which may mean (k, 1, 3), for k robots, or (1, k, 3), for k nodes.
    """

    constant = True
    per_robot = ("force",)
    _index: Tensor

    def __init__(self, nodes: Indices, force: Given, start: float = -math.inf, stop: float = math.inf):
        super().__init__()
        self.nodes = nodes
        checked = number(force, "PointForce.force")
        self._of_robots = False
        if checked.dim() != 3 or checked.shape[1] == 1 or checked.shape[2] != 3:
            checked, self._of_robots = vector_on_each(checked, "PointForce.force")
        self.force = untrained(checked)
        self.act_between(start, stop)

    def bind(self, body: Body) -> None:
        """Store the nodes; refuse forces for another number of nodes."""
        super().bind(body)
        index = checked_indices(self.nodes, body.n_nodes, "PointForce.nodes")
        count = len(index)
        if self.force.dim() == 3 and self.force.shape[1:] != (count, 3):
            shapes = f"(3,), (B, 3), (B, 1, 3), (1, {count}, 3) or (B, {count}, 3)"
            raise InputError(f"PointForce.force: expected shape {shapes}, got {tuple(self.force.shape)}")
        if not self._of_robots:
            refuse_unclear(self.force, count, "node", "PointForce.force", f"shape (1, {count}, 3), force[None]")
        self.register_buffer("_index", torch.as_tensor(index, device="cpu"), persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n): on the given nodes, and zero for robots at times when it does not act."""
        on = self.on(state.time)
        load = state.q.new_zeros(state.batch, self.body.n_nodes, 3)
        force = self.force if self.force.dim() == 3 else self.force.expand(state.batch, 3).unsqueeze(1)
        force = (force * on[:, None, None]).expand(state.batch, len(self._index), 3)
        return self.body.on_nodes(load.index_add(1, self._index, force))


class LineLoad(Timed, Force):
    """A constant force along lines, spread evenly over their rest length, at the times start < t <= stop.

    Parameters
    ----------
    load : (3,), (B, 3) or (B, 1, 3) [N/m], the same on all lines.
    edges : indices of rod edges, or a bool mask (E,).
    sides : (k, 2) pairs of nodes, such as sides of triangles along a shell's border.
    start, stop : [s], as for `PointForce`.

    Raises
    ------
    InputError
        The shape is (k, 3) for k > 1 lines. Give loads of k robots as (k, 1, 3), and different loads on different lines
        by a `LineLoad` each.
    """

    constant = True
    per_robot = ("load",)
    _ends: Tensor
    _edges: Tensor

    def __init__(
        self,
        load: Given,
        edges: Indices | None = None,
        sides: Elements | None = None,
        start: float = -math.inf,
        stop: float = math.inf,
    ):
        super().__init__()
        if (edges is None) == (sides is None):
            raise InputError("LineLoad: give either edges or sides")
        checked, self._of_robots = vector_on_each(load, "LineLoad.load", "; the load comes first, then its edges")
        self.load = untrained(checked)
        self.edges, self.sides = edges, sides
        self.act_between(start, stop)

    def bind(self, body: Body) -> None:
        """Store the nodes at both ends of each line."""
        super().bind(body)
        if self.edges is not None:
            refuse_no_rods(body, "LineLoad.edges", "along triangles take sides")
            index = checked_indices(self.edges, body.n_edges, "LineLoad.edges")
            self.register_buffer("_edges", torch.as_tensor(index, device="cpu"), persistent=False)
            ends = body.rod_edges[index]
        else:
            sides = cast(Elements, self.sides)  # one of both is given
            index, shape = checked_indices(sides, body.n_nodes, "LineLoad.sides"), np.shape(sides)
            if len(shape) != 2 or shape[1] != 2:
                raise InputError(f"LineLoad.sides: expected pairs of nodes (k, 2), got shape {shape}")
            ends = index.reshape(-1, 2)
        if not self._of_robots:
            place = "side" if self.edges is None else "edge"
            refuse_unclear(self.load, len(ends), place, "LineLoad.load", "a LineLoad each")
        self.register_buffer("_ends", torch.as_tensor(ends, device="cpu"), persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n): half of each line's at either of its ends."""
        on = self.on(state.time)
        load = self.load.expand(state.batch, 3) * on[:, None]
        half = 0.5 * self._length().unsqueeze(-1) * load.unsqueeze(1)  # (B, k, 3)
        nodes = state.q.new_zeros(state.batch, self.body.n_nodes, 3)
        for end in self._ends.unbind(1):
            nodes = nodes.index_add(1, end, half)
        return self.body.on_nodes(nodes)

    def _length(self) -> Tensor:
        """Return the rest lengths of the lines, (1, k) or (B, k) [m]."""
        if self.sides is None:
            return self.body.edge_length[..., self._edges].reshape(-1, len(self._edges))
        x = self.body.nodes[self._ends]
        return torch.linalg.vector_norm(x[:, 1] - x[:, 0], dim=-1).unsqueeze(0)

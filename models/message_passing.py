"""`MessagePassingForce`, a learned force from messages along the robot's edges."""

from __future__ import annotations

import torch
from torch import Tensor

from models.messages import MessagePassing
from models.options import Positive, Rounds, Width
from torchdismech import Control, State
from torchdismech.forces import LocalForce
from torchdismech.robot.body import Body

__all__ = ["MessagePassingForce"]


class MessagePassingForce(LocalForce, MessagePassing):
    """A residual force from a graph network on the nodes and edges of the robot.

    Each edge pushes its two nodes, equal and opposite (internal), and each node is pushed vertically and along its
    velocity (external). `MessagePassing` computes the pushes from speeds, edges and the nodes' places along the robot.

    Claims: equivariant under translation and rotation about gravity (z); independent of the numbering of nodes and
    edges, and of the direction in which edges are stored; exactly zero while untrained.

    Parameters
    ----------
    rounds : reach of the force in edges; `rounds` - 1 rounds of messages come before the pushes.
    width : of the hidden layers.
    force : force for an output of one [N]; speed : speed that counts as one [m/s].
    place : whether nodes see their place along their rod, 0 in the middle and 1 at the ends, the same from both ends.
    explicit : see `Force`.
    """

    records = True
    _place: Tensor

    def __init__(
        self,
        rounds: Rounds = 2,
        width: Width = 24,
        force: Positive = 0.05,
        speed: Positive = 1.0,
        place: bool = True,
        explicit: bool = False,
    ):
        super().__init__(reach=rounds, explicit=explicit)
        self.force, self.speed, self.place = float(force), float(speed), bool(place)
        self.add_networks(seen=int(self.place), given=2, rounds=rounds - 1, width=width)

    def bind(self, body: Body) -> None:
        """Take note of the robot, and of the nodes' places along its rods."""
        super().bind(body)
        self.register_buffer("_place", _place(body), persistent=False)

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force (B, N, 3) [N]."""
        x, u, edges = state.positions, state.node_velocities, self._edges
        place = [self._place[:, None].expand(len(x), -1, 1)] if self.place else []
        between, alone = self.pushes(x, u, edges, self.body.edge_length, place)
        up, drag = alone.split(1, dim=-1)
        external = drag * (u / self.speed) + torch.cat([torch.zeros_like(u[..., :2]), up], dim=-1)
        return self.force * external.index_add(1, edges[:, 1], between).index_add(1, edges[:, 0], -between)


def _place(body: Body) -> Tensor:
    """Return the places (N,) of nodes along their rods: 1 at the ends, 0 in the middle; the mean where rods meet."""
    total = torch.zeros(body.n_nodes, dtype=body.nodes.dtype, device="cpu")
    count = torch.zeros_like(total)
    for rod in body.rods:
        nodes = torch.as_tensor(rod.nodes, device="cpu")
        arc = torch.linalg.vector_norm(body.nodes[nodes].diff(dim=0), dim=-1).cumsum(0).cpu()
        arc = torch.cat([arc.new_zeros(1), arc])
        total = total.index_add(0, nodes, (2 * arc / arc[-1] - 1).abs())
        count = count.index_add(0, nodes, torch.ones_like(arc))
    return (total / count.clamp_min(1)).to(body.nodes)

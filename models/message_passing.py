"""A force from messages along the rod."""

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

    Edges push their two nodes, equal and opposite (internal), and each node is pushed up and against its velocity
    (external), by what `MessagePassing` makes of speeds, edges and where a node is along the robot.

    Claims: moves with translation and rotation about gravity (z); does not depend on the numbering of nodes and edges,
    nor on the direction in which edges are stored; untrained it is exactly zero.

    Parameters
    ----------
    rounds : of messages; the force depends on what is so many edges away.
    width : of the hidden layers.
    force : what the network's one stands for [N]; speed : likewise [m/s].
    place : let nodes know how far along the robot they are (0 in the middle, 1 at its ends, of the path from end to
        end): the same from both ends.
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
        """Take note of the robot, and of where its nodes are along it."""
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
    """Return (N,) places along each rod: 1 at its ends, 0 in its middle; the mean where several rods meet."""
    total = torch.zeros(body.n_nodes, dtype=body.nodes.dtype, device="cpu")
    count = torch.zeros_like(total)
    for rod in body.rods:
        nodes = torch.as_tensor(rod.nodes, device="cpu")
        arc = torch.linalg.vector_norm(body.nodes[nodes].diff(dim=0), dim=-1).cumsum(0).cpu()
        arc = torch.cat([arc.new_zeros(1), arc])
        total = total.index_add(0, nodes, (2 * arc / arc[-1] - 1).abs())
        count = count.index_add(0, nodes, torch.ones_like(arc))
    return (total / count.clamp_min(1)).to(body.nodes)

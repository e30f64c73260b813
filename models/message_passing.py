"""A force from messages along the rod."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.edge_features import COUNT, edge_features
from models.messages import edge_outputs, message_passing
from models.mlp import mlp
from models.options import Positive, Rounds, Width
from torchdismech import Control, State
from torchdismech.forces import LocalForce
from torchdismech.robot.body import Body

__all__ = ["MessagePassingForce"]


class MessagePassingForce(LocalForce):
    """A residual force from a graph network on the nodes and edges of the robot.

    Each node starts from its vertical speed and speed squared (and where it is along the robot); in each round it hears
    from its edges, which see both their nodes and their own features. At the end each edge pushes its two nodes in its
    own frame, equal and opposite (internal), and each node is pushed up and against its velocity (external).

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
        self.encode = mlp(2 + self.place, width, (width,), zero=False)
        self.messages = nn.ModuleList(mlp(2 * width + COUNT, width, (width,), zero=False) for _ in range(rounds - 1))
        self.updates = nn.ModuleList(mlp(2 * width, width, (width,), zero=False) for _ in range(rounds - 1))
        self.push_edge = mlp(2 * width + COUNT, 3, (width,))
        self.push_node = mlp(width, 2, (width,))

    def bind(self, body: Body) -> None:
        """Take note of the robot, and of where its nodes are along it."""
        super().bind(body)
        self.register_buffer("_place", _place(body), persistent=False)

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force (B, N, 3) [N]."""
        x, u, edges = state.positions, state.node_velocities, self._edges
        forward = edge_features(x, u, edges, self.body.edge_length, self.speed)
        back = edge_features(x, u, edges.flip(1), self.body.edge_length, self.speed)
        v = u / self.speed
        seen = [v[..., 2:], (v * v).sum(-1, keepdim=True)]
        if self.place:
            seen.append(self._place[:, None].expand(len(x), -1, 1))
        h = self.encode(torch.cat(seen, dim=-1))
        i, j = edges[:, 0], edges[:, 1]
        h = message_passing(zip(self.messages, self.updates, strict=True), h, edges, forward, back)
        on_j, on_i = edge_outputs(self.push_edge, h, edges, forward, back)
        between = forward.vectors(on_j) - back.vectors(on_i)
        up, drag = self.push_node(h).split(1, dim=-1)
        alone = drag * v + torch.cat([torch.zeros_like(v[..., :2]), up], dim=-1)
        return self.force * (alone.index_add(1, j, between).index_add(1, i, -between))


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

"""Message passing along edges in both directions, round by round, as the graph networks here share it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.edge_features import COUNT, EdgeFeatures, edge_features
from models.mlp import mlp

__all__ = ["MessagePassing"]


class MessagePassing(nn.Module):
    """The networks of a module that passes messages between nodes: a base class beside the module's own.

    Each node starts from its vertical speed and speed squared, and what else its module tells of it. In each round it
    hears from its edges, which see both their nodes and their own features. At the end each edge pushes its two nodes
    in its own frame, equal and opposite, and each node gives some numbers of its own.

    Attributes
    ----------
    speed : what counts as one [m/s].
    """

    speed: float

    def add_networks(self, seen: int, given: int, rounds: int, width: int) -> None:
        """Make the networks, the last of which give zeros.

        Parameters
        ----------
        seen : how many numbers the module tells of a node, beside its speeds.
        given : how many numbers a node gives.
        rounds, width : of messages, of the hidden layers.
        """
        self.encode = mlp(2 + seen, width, (width,), zero=False)
        self.messages = nn.ModuleList(mlp(2 * width + COUNT, width, (width,), zero=False) for _ in range(rounds))
        self.updates = nn.ModuleList(mlp(2 * width, width, (width,), zero=False) for _ in range(rounds))
        self.push_edge = mlp(2 * width + COUNT, 3, (width,))
        self.push_node = mlp(width, given, (width,))

    def pushes(
        self,
        x: Tensor,
        u: Tensor,
        edges: Tensor,
        rest_length: Tensor,
        seen: Sequence[Tensor] = (),
        bounded: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the push (B, E, 3) of each edge on its second node, and the numbers (B, N, given) of each node.

        Parameters
        ----------
        x, u : positions and velocities (B, N, 3).
        edges : (E, 2) node indices.
        rest_length : (..., E) [m].
        seen : what the module tells of the nodes, each (B, N, 1).
        bounded : keep all numbers that the networks give between -1 and 1, by tanh.
        """
        forward = edge_features(x, u, edges, rest_length, self.speed)
        back = edge_features(x, u, edges.flip(1), rest_length, self.speed)
        v = u / self.speed
        h = self.encode(torch.cat([v[..., 2:], (v * v).sum(-1, keepdim=True), *seen], dim=-1))
        i, j = edges[:, 0], edges[:, 1]
        for message, update in zip(self.messages, self.updates, strict=True):
            to_j, to_i = _edge_outputs(message, h, edges, forward, back)
            received = torch.zeros_like(h).index_add(1, j, to_j).index_add(1, i, to_i)
            h = h + update(torch.cat([h, received], dim=-1))
        on_j, on_i = _edge_outputs(self.push_edge, h, edges, forward, back)
        alone = self.push_node(h)
        if bounded:
            on_j, on_i, alone = torch.tanh(on_j), torch.tanh(on_i), torch.tanh(alone)
        return forward.vectors(on_j) - back.vectors(on_i), alone


def _edge_outputs(
    network: nn.Module, h: Tensor, edges: Tensor, forward: EdgeFeatures, back: EdgeFeatures
) -> tuple[Tensor, Tensor]:
    """Return what a network makes of each edge, (B, E, ...) each: for its second node, and turned round for its first.

    Parameters
    ----------
    h : (B, N, width) hidden features of the nodes.
    edges : (E, 2) node indices.
    forward, back : features of the edges as they are stored, and turned round.
    """
    i, j = edges[:, 0], edges[:, 1]
    to_j = network(torch.cat([h[:, i], h[:, j], forward.numbers], dim=-1))
    to_i = network(torch.cat([h[:, j], h[:, i], back.numbers], dim=-1))
    return to_j, to_i

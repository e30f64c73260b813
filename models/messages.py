"""Message passing along edges in both directions, round by round: a base class of the graph networks here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.edge_features import COUNT, EdgeFeatures, edge_features
from models.mlp import mlp

__all__ = ["MessagePassing"]


class MessagePassing(nn.Module):
    """The networks of a graph network on nodes and edges, as a base class beside the module's own.

    The features of a node begin as its vertical speed, its squared speed and numbers that the derived module adds. In
    each round a node gets messages from its edges, computed from both nodes' features and the edge's. At the end each
    edge pushes its two nodes in its own frame, equal and opposite, and each node has some outputs of its own.

    Attributes
    ----------
    speed : speed that counts as one [m/s]; the derived module sets it.
    """

    speed: float

    def add_networks(self, seen: int, given: int, rounds: int, width: int) -> None:
        """Make the networks; the last ones give zeros while they are untrained.

        Parameters
        ----------
        seen : number of a node's features beside its speeds.
        given : number of outputs of a node.
        rounds, width : rounds of messages, and width of features and hidden layers.
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
        """Return the push (B, E, 3) of each edge on its second node, and the outputs (B, N, given) of each node.

        Parameters
        ----------
        x, u : positions and velocities (B, N, 3).
        edges : (E, 2) node indices.
        rest_length : (..., E) [m].
        seen : features of the nodes beside their speeds, each (B, N, 1).
        bounded : whether all outputs are kept between -1 and 1, by tanh.
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
    """Return a network's outputs for the second and the first node of each edge, (B, E, ...) each.

    For the first node the edge is seen in the other direction.

    Parameters
    ----------
    h : (B, N, width) hidden features of the nodes.
    edges : (E, 2) node indices.
    forward, back : features of the edges as they are stored, and reversed.
    """
    i, j = edges[:, 0], edges[:, 1]
    to_j = network(torch.cat([h[:, i], h[:, j], forward.numbers], dim=-1))
    to_i = network(torch.cat([h[:, j], h[:, i], back.numbers], dim=-1))
    return to_j, to_i

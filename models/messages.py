"""Message passing, which the graph networks here share: along edges in both directions, round by round."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.edge_features import EdgeFeatures

__all__ = ["edge_outputs", "message_passing"]


def edge_outputs(
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


def message_passing(
    rounds: Iterable[tuple[nn.Module, nn.Module]],
    h: Tensor,
    edges: Tensor,
    forward: EdgeFeatures,
    back: EdgeFeatures,
) -> Tensor:
    """Return the hidden features (B, N, width) of the nodes after rounds of messages; parameters as of `edge_outputs`.

    Parameters
    ----------
    rounds : for each the network that makes messages, and the one that makes of their sum what is added to a node.
    """
    i, j = edges[:, 0], edges[:, 1]
    for message, update in rounds:
        to_j, to_i = edge_outputs(message, h, edges, forward, back)
        received = torch.zeros_like(h).index_add(1, j, to_j).index_add(1, i, to_i)
        h = h + update(torch.cat([h, received], dim=-1))
    return h

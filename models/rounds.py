"""What graph networks here share: messages along edges, round by round, and what edges then do to their nodes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.edge_features import EdgeFeatures

__all__ = ["along_edges", "heard"]


def along_edges(
    network: nn.Module, h: Tensor, edges: Tensor, forward: EdgeFeatures, back: EdgeFeatures
) -> tuple[Tensor, Tensor]:
    """Return what a network makes of each edge in both directions: for its second and for its first node (B, E, ...).

    Parameters
    ----------
    h : (B, N, width) what the nodes know.
    edges : (E, 2) node indices.
    forward, back : features of the edges as they are stored, and turned round.
    """
    i, j = edges[:, 0], edges[:, 1]
    to_j = network(torch.cat([h[:, i], h[:, j], forward.numbers], dim=-1))
    to_i = network(torch.cat([h[:, j], h[:, i], back.numbers], dim=-1))
    return to_j, to_i


def heard(
    rounds: Iterable[tuple[nn.Module, nn.Module]],
    h: Tensor,
    edges: Tensor,
    forward: EdgeFeatures,
    back: EdgeFeatures,
) -> Tensor:
    """Return what the nodes know (B, N, width) after some rounds; parameters as of `along_edges`.

    Parameters
    ----------
    rounds : for each the network that makes messages, and the one that makes of their sum what a node learns.
    """
    i, j = edges[:, 0], edges[:, 1]
    for message, update in rounds:
        to_j, to_i = along_edges(message, h, edges, forward, back)
        received = torch.zeros_like(h).index_add(1, j, to_j).index_add(1, i, to_i)
        h = h + update(torch.cat([h, received], dim=-1))
    return h

"""Predictions of a chain without a model: the baselines that a fit should beat."""

from __future__ import annotations

import torch
from torch import Tensor

from training.data import Recordings
from training.robots.trees import Tree

__all__ = ["reference_predictions"]


def reference_predictions(recordings: Recordings, gripped: list[int]) -> dict[str, Tensor]:
    """Return predictions (K, T - 2, N, 3) without a model, by name.

    "stay": free nodes stay where they were. "follow": they move with the gripped nodes, weighted by how near these are
    along the chain, and branches move with the node that they begin at; without gripped nodes there is only "stay".
    """
    x = recordings.positions
    second = x[:, 1:2].expand(-1, recordings.frames - 2, -1, -1)
    stay = second.clone()
    stay[:, :, gripped] = x[:, 2:, gripped]
    if not gripped:
        return {"stay": stay}
    moved = x[:, 2:, gripped] - x[:, 1:2, gripped]
    return {"stay": stay, "follow": second + torch.einsum("ng,ktgc->ktnc", _weights(recordings, gripped), moved)}


def _weights(recordings: Recordings, gripped: list[int]) -> Tensor:
    """Return the weights (N, G) of gripped nodes: linear in arc length between neighbouring ones, constant beyond."""
    tree = Tree.measured(recordings)
    arc = torch.cat([tree.length.new_zeros(1), tree.length[: tree.trunk].cumsum(0)])
    knots = arc[gripped]
    weight = torch.zeros(tree.nodes, len(gripped), dtype=arc.dtype, device="cpu")
    for node, place in enumerate(arc):
        right = int(torch.searchsorted(knots, place).clamp(0, len(gripped) - 1))
        left = max(right - 1, 0)
        if place >= knots[-1] or place <= knots[0] or left == right:
            weight[node, 0 if place <= knots[0] else len(gripped) - 1] = 1
        else:
            share = (place - knots[left]) / (knots[right] - knots[left])
            weight[node, left], weight[node, right] = 1 - share, share
    for begin, end in tree.edges[tree.trunk :].tolist():
        weight[end] = weight[begin]
    return weight

"""Predictions of a chain without a model: the baselines that a fit should beat."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    arc = pad(tree.length[: tree.trunk].cumsum(0), (1, 0))
    knots = arc[gripped]
    share = ((arc[:, None] - knots[:-1]) / knots.diff()).clamp(0, 1)  # of the way from each knot to the next
    weight = pad(pad(share, (1, 0), value=1.0) - pad(share, (0, 1)), (0, 0, 0, len(tree.edges) - tree.trunk))
    for begin, end in tree.edges[tree.trunk :].tolist():
        weight[end] = weight[begin]
    return weight

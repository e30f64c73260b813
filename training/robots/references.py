"""The prediction of a chain without a model, in which free nodes follow the gripped ones: a fit should beat it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from training.data import Recordings
from training.robots.trees import Tree

__all__ = ["followed_grips"]


def followed_grips(recordings: Recordings, gripped: list[int]) -> Tensor:
    """Return the prediction (K, T - 2, N, 3) [m] in which free nodes move with the gripped ones after the second frame.

    These are weighted by how near they are along the chain; branches move with the node that they begin at.
    """
    x = recordings.positions
    moved = x[:, 2:, gripped] - x[:, 1:2, gripped]
    return x[:, 1:2] + torch.einsum("ng,ktgc->ktnc", _weights(recordings, gripped), moved)


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

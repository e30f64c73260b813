"""A force from a perceptron on each edge."""

from __future__ import annotations

import torch
from torch import Tensor

from models.edge_features import COUNT, edge_features
from models.mlp import mlp
from models.sizes import Positive, Widths
from torchdismech import Control, State
from torchdismech.forces import LocalForce

__all__ = ["ResidualForce"]


class ResidualForce(LocalForce):
    """A residual force: a perceptron sees each edge alone and pushes its two nodes in the edge's frame.

    It works on edges, not on nodes, as an edge has a frame in which what it sees and does turns with the robot, and its
    force on two nodes needs the smallest blocks in Newton's matrix. The nodes are pushed independently, so drag, weight
    and internal forces can all be told.

    Claims: moves with translation and rotation about gravity (z); does not depend on numbering, nor on the direction of
    edges; untrained it is exactly zero.

    Parameters
    ----------
    hidden : widths of the hidden layers.
    force : what the network's one stands for [N]; speed : likewise [m/s].
    directors : also show it the height of the material directors (z components of m1 and m2). Then the direction of
        edges matters, as it does for directors.
    explicit : see `Force`.
    """

    records = True

    def __init__(
        self,
        hidden: Widths = (32, 32),
        force: Positive = 0.05,
        speed: Positive = 1.0,
        directors: bool = False,
        explicit: bool = False,
    ):
        super().__init__(reach=1, explicit=explicit)
        self.force, self.speed, self.directors = float(force), float(speed), bool(directors)
        self.network = mlp(COUNT + 2 * self.directors, 3, tuple(hidden))

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force (B, N, 3) [N]."""
        x, u, edges = state.positions, state.node_velocities, self._edges
        force = torch.zeros_like(x)
        heights = []
        if self.directors:
            _, m1, m2 = self.frames(state)
            heights = [m1[..., 2:], m2[..., 2:]]
        for pairs in (edges, edges.flip(1)):
            seen = edge_features(x, u, pairs, self.body.edge_length, self.speed)
            push = self.network(torch.cat([seen.numbers, *heights], dim=-1))
            force = force.index_add(1, pairs[:, 1], seen.turned(push))
        return self.force * force

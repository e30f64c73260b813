"""`ResidualForce`, a learned force from a perceptron on each edge."""

from __future__ import annotations

import torch
from torch import Tensor

from models.edge_features import COUNT, features_between
from models.mlp import mlp
from models.options import Positive, Widths
from torchdismech import State
from torchdismech.forces import PairForce
from torchdismech.forces.dependence import Dependence
from torchdismech.robot.body import Body

__all__ = ["ResidualForce"]


class ResidualForce(PairForce):
    """A residual force: a perceptron sees each edge alone and pushes its two nodes in the edge's frame.

    It works on edges, not on nodes, as features and forces in an edge's frame turn with the robot, and a force on two
    nodes needs the smallest blocks in Newton's matrix. The nodes are pushed independently, so that drag, weight and
    internal forces can all be represented.

    Claims: equivariant under translation and rotation about gravity (z); independent of numbering and of the direction
    of edges; exactly zero while untrained.

    Parameters
    ----------
    hidden : widths of the hidden layers.
    force : force for an output of one [N]; speed : speed that counts as one [m/s].
    directors : whether it also sees the z components of the material directors m1 and m2. Then the direction of edges
        matters, as it does for directors, and derivatives take three times as long, as the force depends on twist.
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
        super().__init__(explicit)
        self.force, self.speed, self.directors = float(force), float(speed), bool(directors)
        self.network = mlp(COUNT + 2 * self.directors, 3, tuple(hidden))

    def bind(self, body: Body) -> None:
        """Take note of the robot; with `directors` the force depends on angles, too."""
        super().bind(body)
        if self.directors:
            self.dependence = Dependence(body, self.reach)

    def pair_force(self, x: Tensor, u: Tensor, *heights: Tensor) -> Tensor:
        """Return the force on the second node of each pair (B, P, 3) [N].

        `heights` are the z components of the directors m1 and m2, (B, P, 1) each, if it sees them.
        """
        rest_length = self.body.edge_length[..., self.edges_of_pairs]
        seen = features_between((x[:, :, 0], x[:, :, 1]), (u[:, :, 0], u[:, :, 1]), rest_length, self.speed)
        push = self.network(torch.cat([seen.numbers, *heights], dim=-1))
        return self.force * seen.vectors(push)

    def seen_by_pairs(self, state: State) -> list[Tensor]:
        """Return what `pair_force` is given."""
        seen = super().seen_by_pairs(state)
        if self.directors:
            _, m1, m2 = self.frames(state)
            seen += [m[:, self.edges_of_pairs, 2:] for m in (m1, m2)]
        return seen

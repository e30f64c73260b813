"""`FreeNodes`, the baseline without physics: a network alone moves the nodes of a chain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.messages import MessagePassing
from models.options import Positive, Rounds, Width

__all__ = ["FreeNodes"]

STIFFEST = 8.0  # log of [1/s^2]: explicit steps of 0.01 s are stable up to 9.2


class FreeNodes(MessagePassing):
    """A graph network that gives nodes of a chain accelerations; no elasticity, no weight, no solver.

    It has the same edges, features and symmetries as `MessagePassingForce`, and is stepped by semi-implicit Euler.
    Untrained, soft springs draw the edges to their rest lengths and a damper slows the nodes (the network sees stretch
    and speed as features): a chain without these would fly apart before it could learn. Stiffness and damping are
    learned, too.

    Parameters
    ----------
    rest_length : (E,) of the edges of a chain [m].
    rounds, width : rounds of messages and width of the hidden layers.
    acceleration : largest acceleration of a node by an edge, along each of the edge's axes [m/s^2]: without a bound,
        rollouts of hundreds of explicit steps run away while the network is trained.
    speed : speed that counts as one [m/s].
    """

    rest_length: Tensor
    edges: Tensor

    def __init__(
        self,
        rest_length: Tensor,
        rounds: Rounds = 3,
        width: Width = 32,
        acceleration: Positive = 20.0,
        speed: Positive = 1.0,
    ):
        super().__init__()
        count = len(rest_length)
        edges = torch.stack([torch.arange(count, device="cpu"), torch.arange(count, device="cpu") + 1], dim=1)
        self.register_buffer("rest_length", rest_length, persistent=False)
        self.register_buffer("edges", edges, persistent=False)
        self.acceleration, self.speed = float(acceleration), float(speed)
        self.add_networks(seen=1, given=1, rounds=rounds, width=width)
        self.stiffness = nn.Parameter(torch.tensor(6.0, dtype=torch.float64, device="cpu"))  # log of [1/s^2]
        self.damping = nn.Parameter(torch.tensor(1.0, dtype=torch.float64, device="cpu"))  # log of [1/s]

    def step(self, x: Tensor, u: Tensor, held_at: Tensor, held: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """Return positions and velocities (B, N, 3) after dt; nodes in `held` (N,) bool go to `held_at` (B, N, 3)."""
        u_new = u + dt * self(x, u, held)
        x_new = torch.where(held[:, None], held_at, x + dt * u_new)
        return x_new, (x_new - x) / dt

    def forward(self, x: Tensor, u: Tensor, held: Tensor) -> Tensor:
        """Return accelerations (B, N, 3) [m/s^2]."""
        i, j = self.edges[:, 0], self.edges[:, 1]
        mark = held.to(x)[:, None].expand(len(x), -1, 1)
        learned, upward = self.pushes(x, u, self.edges, self.rest_length, [mark], bounded=True)
        e = x[:, j] - x[:, i]
        length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        spring = self.stiffness.clamp(max=STIFFEST).exp() * (self.rest_length[:, None] / length - 1) * e
        between = self.acceleration * learned + spring
        up = torch.cat([torch.zeros_like(u[..., :2]), upward], dim=-1)
        return (self.acceleration * up - self.damping.exp() * u).index_add(1, j, between).index_add(1, i, -between)

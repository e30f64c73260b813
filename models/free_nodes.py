"""The baseline without physics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.edge_features import COUNT, edge_features
from models.messages import edge_outputs, message_passing
from models.mlp import mlp
from models.options import Positive, Rounds, Width

__all__ = ["FreeNodes"]

STIFFEST = 8.0  # log of [1/s^2]: explicit steps of 0.01 s are stable up to 9.2


class FreeNodes(nn.Module):
    """A graph network that gives nodes of a chain accelerations; no elasticity, no weight, no solver.

    The same edges, features and symmetries as `MessagePassingForce`, stepped by semi-implicit Euler. Untrained, a node
    is drawn to where its neighbours' rest lengths would have it by a soft spring and slowed by a damper (both known to
    the network as features): a chain without anything would fly apart before it could learn.

    Parameters
    ----------
    rest_length : (E,) of the edges of a chain [m].
    rounds, width : of the network.
    acceleration : the most that the network gives an edge's node, along each axis [m/s^2]: without a bound, rollouts of
        hundreds of explicit steps run away while it is trained.
    speed : what counts as one [m/s].
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
        self.encode = mlp(3, width, (width,), zero=False)
        self.messages = nn.ModuleList(mlp(2 * width + COUNT, width, (width,), zero=False) for _ in range(rounds))
        self.updates = nn.ModuleList(mlp(2 * width, width, (width,), zero=False) for _ in range(rounds))
        self.push_edge = mlp(2 * width + COUNT, 3, (width,))
        self.push_node = mlp(width, 1, (width,))
        self.stiffness = nn.Parameter(torch.tensor(6.0, dtype=torch.float64, device="cpu"))  # log of [1/s^2]
        self.damping = nn.Parameter(torch.tensor(1.0, dtype=torch.float64, device="cpu"))  # log of [1/s]

    def step(self, x: Tensor, u: Tensor, held_at: Tensor, held: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """Return positions and velocities (B, N, 3) after dt; nodes in `held` (N,) bool go to `held_at` (B, N, 3)."""
        u_new = u + dt * self(x, u, held)
        x_new = torch.where(held[:, None], held_at, x + dt * u_new)
        return x_new, (x_new - x) / dt

    def forward(self, x: Tensor, u: Tensor, held: Tensor) -> Tensor:
        """Return accelerations (B, N, 3) [m/s^2]."""
        edges, v = self.edges, u / self.speed
        i, j = edges[:, 0], edges[:, 1]
        forward = edge_features(x, u, edges, self.rest_length, self.speed)
        back = edge_features(x, u, edges.flip(1), self.rest_length, self.speed)
        mark = held.to(x)[:, None].expand(len(x), -1, 1)
        h = self.encode(torch.cat([v[..., 2:], (v * v).sum(-1, keepdim=True), mark], dim=-1))
        h = message_passing(zip(self.messages, self.updates, strict=True), h, edges, forward, back)
        on_j, on_i = edge_outputs(self.push_edge, h, edges, forward, back)
        learned = forward.vectors(torch.tanh(on_j)) - back.vectors(torch.tanh(on_i))
        e = x[:, j] - x[:, i]
        length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        spring = self.stiffness.clamp(max=STIFFEST).exp() * (self.rest_length[:, None] / length - 1) * e
        between = self.acceleration * learned + spring
        up = torch.cat([torch.zeros_like(v[..., :2]), torch.tanh(self.push_node(h))], dim=-1)
        return (self.acceleration * up - self.damping.exp() * u).index_add(1, j, between).index_add(1, i, -between)

"""`DragLaw`, a learned drag on edges that never adds power."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from models.mlp import mlp
from models.options import Positive, Widths
from torchdismech import Control, State
from torchdismech.forces import LocalForce

__all__ = ["DragLaw"]


class DragLaw(LocalForce):
    """Drag on edges: F = -l (c_t u_t + c_n u_n), u the edge's mean velocity along (t) and across (n) the edge.

    The coefficients [Pa s] are c = start * softplus(network(|u_t|^2, |u_n|^2)) / softplus(0) >= 0: power is only taken
    out, whatever the weights, and everything is smooth at rest. Untrained they are `start`, not zero: at c = 0 the
    gradient by the weights would vanish, and nothing would be learned.

    Claims: equivariant under translation and any rotation; independent of numbering and of the direction of edges.

    Parameters
    ----------
    start : coefficient of the untrained law, along and across alike [Pa s].
    speed : speed that counts as one [m/s].
    hidden : widths of the hidden layers.
    explicit : see `Force`.
    """

    records = True

    def __init__(self, start: Positive = 1e-3, speed: Positive = 1.0, hidden: Widths = (16,), explicit: bool = False):
        super().__init__(reach=1, explicit=explicit)
        self.start, self.speed = float(start), float(speed)
        self.network = mlp(2, 2, tuple(hidden))

    def coefficients(self, along: Tensor, across: Tensor) -> Tensor:
        """Return c_t and c_n (..., 2) [Pa s] at squared speeds along and across the edge, (...) each [m^2/s^2]."""
        seen = torch.stack([along, across], dim=-1) / self.speed**2
        return self.start * softplus(self.network(seen)) / softplus(torch.zeros((), dtype=seen.dtype, device="cpu"))

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force (B, N, 3) [N]: half of each edge's on each of its nodes."""
        x, u = state.positions, state.node_velocities
        i, j = self._edges[:, 0], self._edges[:, 1]
        e = x[:, j] - x[:, i]
        t = e / torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        mean = 0.5 * (u[:, i] + u[:, j])
        along = (mean * t).sum(-1, keepdim=True)
        across = mean - along * t
        c = self.coefficients(along.squeeze(-1).square(), across.square().sum(-1))
        length = self.body.edge_length.unsqueeze(-1)
        half = -0.5 * length * (c[..., :1] * along * t + c[..., 1:] * across)
        return torch.zeros_like(x).index_add(1, i, half).index_add(1, j, half)

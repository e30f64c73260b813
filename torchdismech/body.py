"""What a robot is made of, without its laws: nodes, rods, springs, masses and rest sizes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.geometry.topology import Rod, Springs

__all__ = ["Body", "robots"]


def robots(module: nn.Module, names: Iterable[str]) -> set[int]:
    """Return the numbers of robots (above 1) that the named tensors of a module are given for.

    Each broadcasts against (B, elements): only one with two dimensions says a number.
    """
    tensors = (getattr(module, name) for name in names)
    return {t.shape[0] for t in tensors if t is not None and t.dim() == 2 and t.shape[0] > 1}


class Body(nn.Module):
    """Topology (fixed) and sizes (buffers; each may carry a leading robot dimension).

    Attributes
    ----------
    nodes : (N, 3) rest positions [m].
    rod_edges : (E, 2) node indices, as given.
    rods, springs : the chains and bend-twist springs found in them.
    mass : (..., n) lumped mass of each dof [kg; kg m^2 for twist angles].
    edge_length : (..., E) rest lengths [m].
    edge_radius : (..., E) radius of a circle that drag and contact may use [m].
    node_length : (..., N) length of rod that belongs to each node: half of each edge [m].
    node_volume : (..., N) volume of material that belongs to each node [m^3].
    """

    per_robot = ("mass", "edge_length", "edge_radius", "node_length", "node_volume")
    nodes: Tensor
    mass: Tensor
    edge_length: Tensor
    edge_radius: Tensor
    node_length: Tensor
    node_volume: Tensor

    def __init__(self, nodes: Tensor, rod_edges: np.ndarray, rods: list[Rod], springs: Springs, **sizes: Tensor):
        super().__init__()
        self.rod_edges = rod_edges
        self.rods = rods
        self.springs = springs
        self.register_buffer("nodes", nodes)
        for name in self.per_robot:
            self.register_buffer(name, sizes[name])

    @property
    def n_nodes(self) -> int:
        """Number of nodes N."""
        return self.nodes.shape[0]

    @property
    def n_edges(self) -> int:
        """Number of rod edges E."""
        return len(self.rod_edges)

    @property
    def n_dofs(self) -> int:
        """Number of dofs n = 3 N + E."""
        return 3 * self.n_nodes + self.n_edges

    def on_nodes(self, force: Tensor) -> Tensor:
        """Return the nodal forces (B, N, 3) as a generalised force (B, n)."""
        return torch.cat([force.flatten(1), force.new_zeros(force.shape[0], self.n_edges)], dim=1)

    def node_mass(self) -> Tensor:
        """Return the mass of each node (..., N) [kg]."""
        return self.mass[..., : 3 * self.n_nodes : 3]

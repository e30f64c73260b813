"""Resistive force theory: slender rods feel more drag across than along their axis."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, number
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.state import Control, State

__all__ = ["QuadraticResistive", "Resistive"]


class Resistive(Force):
    """F_i = -L_i [c_t t t^T + c_n (I - t t^T)] u_i, for small Reynolds numbers.

    t = unit(x_{i+1} - x_{i-1}) along the node's rod (one-sided at its ends), L_i the node's share of that rod. At a
    branching node each rod contributes with its own tangent. The derivative includes that of t.

    Parameters
    ----------
    tangential, normal : c_t, c_n, () or (B, 1) [Pa s].
    """

    compiles = True
    per_robot = ("tangential", "normal")
    _before: Tensor
    _node: Tensor
    _after: Tensor
    _edge_in: Tensor
    _edge_out: Tensor
    _share_in: Tensor
    _share_out: Tensor

    def __init__(self, tangential, normal, explicit: bool = False):
        super().__init__(explicit)
        self.tangential = nn.Parameter(number(tangential), requires_grad=False)
        self.normal = nn.Parameter(number(normal), requires_grad=False)

    def bind(self, body: Body) -> None:
        """Find for each node of each rod the nodes before and after it."""
        super().bind(body)
        before, node, after, edge_in, edge_out = [], [], [], [], []
        for rod in body.rods:
            count = len(rod.edges)
            last = count - 1 if rod.closed else count
            for k in range(last + 1):
                at_start, at_end = k == 0 and not rod.closed, k == count
                node.append(rod.nodes[k])
                before.append(rod.nodes[k] if at_start else rod.nodes[k - 1 if k else count - 1])
                after.append(rod.nodes[k] if at_end else rod.nodes[k + 1])
                edge_in.append(-1 if at_start else rod.edges[k - 1])
                edge_out.append(-1 if at_end else rod.edges[k])
        for name, values in (("before", before), ("node", node), ("after", after)):
            self.register_buffer(f"_{name}", torch.as_tensor(np.array(values)), persistent=False)
        for name, values in (("in", edge_in), ("out", edge_out)):
            edges = np.array(values)
            self.register_buffer(f"_edge_{name}", torch.as_tensor(np.maximum(edges, 0)), persistent=False)
            share = torch.as_tensor(np.where(edges >= 0, 0.5, 0.0), dtype=body.nodes.dtype)
            self.register_buffer(f"_share_{name}", share, persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the resistive force (B, n)."""
        t, _, u, length = self._local(state)
        along = (t * u).sum(-1, keepdim=True)
        normal, excess = self._coefficients()
        force = -length * (normal * u + excess * along * t)
        total = torch.zeros_like(state.positions)
        return self.body.on_nodes(total.index_add(1, self._node, force))

    def blocks(self) -> list[Block]:
        """Return rows of a node against columns of the nodes before, at and after it."""
        nodes = [x.cpu().numpy() for x in (self._before, self._node, self._after)]
        dofs = [3 * x[:, None] + np.arange(3) for x in nodes]
        return [Block(dofs[1], np.concatenate([dofs[0], dofs[2]], axis=1)), Block(dofs[1], dofs[1])]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivative by the neighbours' positions and that by the node's velocity."""
        t, span, u, length = self._local(state)
        normal, excess = self._coefficients()
        eye = torch.eye(3, dtype=t.dtype, device=t.device)
        tt = t.unsqueeze(-1) * t.unsqueeze(-2)
        along = (t * u).sum(-1, keepdim=True)
        by_tangent = -(length * excess).unsqueeze(-1) * (along.unsqueeze(-1) * eye + t.unsqueeze(-1) * u.unsqueeze(-2))
        by_span = by_tangent @ ((eye - tt) / span.unsqueeze(-1))
        by_velocity = -length.unsqueeze(-1) * (normal.unsqueeze(-1) * eye + excess.unsqueeze(-1) * tt)
        return [(torch.cat([-by_span, by_span], dim=-1), None), (None, by_velocity)]

    def _coefficients(self) -> tuple[Tensor, Tensor]:
        """Return c_n and c_t - c_n, broadcasting against (B, S, 3)."""
        normal = self.normal.unsqueeze(-1)
        return normal, self.tangential.unsqueeze(-1) - normal

    def _local(self, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tangents (B, S, 3), distances after - before (B, S, 1), velocities (B, S, 3), lengths (..., S, 1)."""
        x = state.positions
        d = x[:, self._after] - x[:, self._before]
        span = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
        edges = self.body.edge_length
        length = edges[..., self._edge_in] * self._share_in + edges[..., self._edge_out] * self._share_out
        return d / span, span, state.node_velocities[:, self._node], length.unsqueeze(-1)


class QuadraticResistive(Force):
    """F = -1/2 rho l 2r [C_t |u_par| u_par + C_n |u_perp| u_perp] per edge, for Reynolds numbers of about 1 to 1000.

    u is the mean velocity of the edge's nodes, split along and across the edge; l its length, r its radius. Half of the
    force acts on each node.

    Parameters
    ----------
    tangential, normal : drag coefficients C_t, C_n, () or (B, 1).
    density : of the fluid, () or (B, 1) [kg/m^3].
    length : "rest": l is the edge's length at rest; "current": its present length. The width 2 r is that at rest
        either way, while a rod that keeps its volume gets thinner as it gets longer: its area grows as sqrt(l), halfway
        between the two. So they are equally far from it, and the simpler one is the default.
    """

    compiles = True
    per_robot = ("tangential", "normal", "density")
    _edges: Tensor

    def __init__(self, tangential, normal, density, explicit: bool = False, length: str = "rest"):
        super().__init__(explicit)
        if length not in ("rest", "current"):
            raise InputError(f"QuadraticResistive.length: expected 'rest' or 'current', got {length!r}")
        self.length = length
        self.tangential = nn.Parameter(number(tangential), requires_grad=False)
        self.normal = nn.Parameter(number(normal), requires_grad=False)
        self.density = nn.Parameter(number(density), requires_grad=False)

    def bind(self, body: Body) -> None:
        """Keep the edges' nodes."""
        super().bind(body)
        self.register_buffer("_edges", torch.as_tensor(body.rod_edges), persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the resistive force (B, n)."""
        t, length, u = self._local(state)
        half = -0.5 * self._scale(length) * self._resistance(t, u)
        total = torch.zeros_like(state.positions)
        return self.body.on_nodes(total.index_add(1, self._edges[:, 0], half).index_add(1, self._edges[:, 1], half))

    def blocks(self) -> list[Block]:
        """Return the edges' two nodes against themselves."""
        edges = self._edges.cpu().numpy()
        dofs = np.concatenate([3 * edges[:, k, None] + np.arange(3) for k in range(2)], axis=1)
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by the positions and by the velocities of the edge's nodes."""
        t, length, u = self._local(state)
        eye = torch.eye(3, dtype=t.dtype, device=t.device)
        tt = t.unsqueeze(-1) * t.unsqueeze(-2)
        along = (t * u).sum(-1, keepdim=True).unsqueeze(-1)
        across = u - along.squeeze(-1) * t
        speed = torch.linalg.vector_norm(across, dim=-1, keepdim=True).unsqueeze(-1)
        c_t, c_n = self.tangential[..., None, None], self.normal[..., None, None]
        # d(|w| w)/dw, which is zero at w = 0
        floor = torch.finfo(speed.dtype).tiny
        by_across = c_n * (speed * eye + across.unsqueeze(-1) * across.unsqueeze(-2) / speed.clamp_min(floor))
        tu = t.unsqueeze(-1) * u.unsqueeze(-2)
        by_u = 2 * c_t * along.abs() * tt + by_across @ (eye - tt)
        by_t = c_t * along.abs() * (2 * tu + along * eye) - by_across @ (tu + along * eye)
        by_e = by_t @ ((eye - tt) / length.unsqueeze(-1))
        if self.length == "current":
            by_e = by_e + self._resistance(t, u).unsqueeze(-1) * (t / length).unsqueeze(-2)
        scale = -0.5 * self._scale(length).unsqueeze(-1)
        by_q = torch.cat([-by_e, by_e], dim=-1) * scale
        by_velocity = torch.cat([by_u, by_u], dim=-1) * (0.5 * scale)
        return [(torch.cat([by_q, by_q], dim=-2), torch.cat([by_velocity, by_velocity], dim=-2))]

    def _resistance(self, t: Tensor, u: Tensor) -> Tensor:
        """Return C_t |u_par| u_par + C_n |u_perp| u_perp (B, E, 3)."""
        along = (t * u).sum(-1, keepdim=True)
        across = u - along * t
        speed = torch.linalg.vector_norm(across, dim=-1, keepdim=True)
        return self.tangential.unsqueeze(-1) * along.abs() * along * t + self.normal.unsqueeze(-1) * speed * across

    def _scale(self, length: Tensor) -> Tensor:
        """Return 1/2 rho l 2r, broadcasting against (B, E, 1), for present lengths (B, E, 1)."""
        at_rest = self.length == "rest"
        lengths = self.body.edge_length if at_rest else length.squeeze(-1)
        return (self.density * lengths * self.body.edge_radius).unsqueeze(-1)

    def _local(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return tangents (B, E, 3), lengths (B, E, 1), mean velocities (B, E, 3)."""
        x, v = state.positions, state.node_velocities
        e = x[:, self._edges[:, 1]] - x[:, self._edges[:, 0]]
        length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        return e / length, length, 0.5 * (v[:, self._edges[:, 0]] + v[:, self._edges[:, 1]])

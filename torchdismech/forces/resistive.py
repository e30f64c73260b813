"""Resistive force theory: slender rods feel more drag across than along their axis."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, number
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.stencils import blocks_of, dofs_of_nodes, node_forces, sizes_of, vectors_at
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Mat3, Vec3, side_by_side
from torchdismech.state import Control, State

__all__ = ["QuadraticResistive", "Resistive"]

LENGTHS = ("rest", "current")  # of edges that drag goes by


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
    _dofs: Tensor
    _edges: Tensor
    _shares: Tensor

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
        edges = np.stack([edge_in, edge_out])
        shares = torch.as_tensor(np.where(edges >= 0, 0.5, 0.0), dtype=body.nodes.dtype)
        self.register_buffer("_dofs", dofs_of_nodes(*map(np.array, (before, node, after))), persistent=False)
        self.register_buffer("_edges", torch.as_tensor(np.maximum(edges, 0)), persistent=False)
        self.register_buffer("_shares", shares.unsqueeze(-1), persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the resistive force (B, n)."""
        return node_forces(self._found(_RESISTIVE, state), self._dofs[1], self.body.n_dofs)

    def blocks(self) -> list[Block]:
        """Return rows of a node against columns of the nodes before, at and after it."""
        before, node, after = self._dofs.transpose(1, 2).cpu().numpy()
        return [Block(node, np.concatenate([before, after], axis=1)), Block(node, node)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivative by the neighbours' positions and that by the node's velocity."""
        by_position, by_velocity = self._found(_RESISTIVE_DERIVATIVES, state).split([18, 9])
        return [(blocks_of(by_position, 3), None), (None, blocks_of(by_velocity, 3))]

    def _found(self, loop: Fused, state: State) -> Tensor:
        """Return what a loop finds (k, S, B)."""
        places = (self._dofs, sizes_of(self.body.edge_length), self._edges, self._shares)
        given = (state.q.t(), state.velocity.t(), *places, self.tangential.t(), self.normal.t())
        return loop(self._dofs.shape[-1], *given)


def _resistive(q: Tensor, velocity: Tensor, dofs: Tensor, *sizes: Tensor) -> tuple[Tensor, ...]:
    """Return the force on a node by components; arguments as `Resistive._found` gives them."""
    t, _, u, length, normal, excess = _along_rods(q, velocity, dofs, *sizes)
    return (u.times(normal) + t.times(excess * t.dot(u))).times(-length).components()


def _resistive_derivatives(q: Tensor, velocity: Tensor, dofs: Tensor, *sizes: Tensor) -> list[Tensor]:
    """Return the derivatives by the positions of both neighbours, then by the node's velocity.

    With P = I - t t^T they are -L (c_t - c_n) ((t . u) I + t u^T) P / span and -L [c_t t t^T + c_n P].
    """
    t, span, u, length, normal, excess = _along_rods(q, velocity, dofs, *sizes)
    along = t.dot(u)
    turning = Mat3.diagonal(along) + Mat3.outer(t, u - t.times(2 * along))
    by_after = turning.times(-length * excess / span)
    by_velocity = (Mat3.diagonal(normal) + Mat3.outer(t, t).times(excess)).times(-length)
    return [*side_by_side(by_after.times(-1.0), by_after), *by_velocity.components()]


def _along_rods(
    q: Tensor,
    velocity: Tensor,
    dofs: Tensor,
    edge_length: Tensor,
    edges: Tensor,
    shares: Tensor,
    tangential: Tensor,
    normal: Tensor,
) -> tuple[Vec3, Tensor, Vec3, Tensor, Tensor, Tensor]:
    """Return tangents, distances after - before, velocities, lengths, c_n and c_t - c_n."""
    before, node, after = dofs.unbind(0)
    way = vectors_at(q, after) - vectors_at(q, before)
    span = torch.sqrt(way.dot(way))
    length = edge_length[edges[0]] * shares[0] + edge_length[edges[1]] * shares[1]
    return way.times(1 / span), span, vectors_at(velocity, node), length, normal, tangential - normal


_RESISTIVE = Fused(_resistive, "resistive forces")
_RESISTIVE_DERIVATIVES = Fused(_resistive_derivatives, "resistive forces")


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
    _dofs: Tensor

    def __init__(self, tangential, normal, density, explicit: bool = False, length: str = "rest"):
        super().__init__(explicit)
        if length not in LENGTHS:
            raise InputError(f"QuadraticResistive.length: expected 'rest' or 'current', got {length!r}")
        self.length = length
        self.tangential = nn.Parameter(number(tangential), requires_grad=False)
        self.normal = nn.Parameter(number(normal), requires_grad=False)
        self.density = nn.Parameter(number(density), requires_grad=False)

    def bind(self, body: Body) -> None:
        """Keep the edges' nodes."""
        super().bind(body)
        self.register_buffer("_dofs", dofs_of_nodes(*body.rod_edges.T), persistent=False)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the resistive force (B, n)."""
        half = self._found(_QUADRATIC[self.length], state)
        first, second = (node_forces(half, dofs, self.body.n_dofs) for dofs in self._dofs)
        return first + second

    def blocks(self) -> list[Block]:
        """Return the edges' two nodes against themselves."""
        dofs = self._dofs.flatten(0, 1).t().cpu().numpy()
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by the positions and by the velocities of the edge's nodes."""
        found = self._found(_QUADRATIC_DERIVATIVES[self.length], state)
        by_position, by_velocity = (blocks_of(part, 6) for part in found.split(36))
        return [(by_position, by_velocity)]

    def _found(self, loop: Fused, state: State) -> Tensor:
        """Return what a loop finds (k, E, B)."""
        sizes = (sizes_of(self.body.edge_length), sizes_of(self.body.edge_radius))
        coefficients = (self.tangential.t(), self.normal.t(), self.density.t())
        return loop(self._dofs.shape[-1], state.q.t(), state.velocity.t(), self._dofs, *sizes, *coefficients)


def _quadratic(
    lengths: str,
    q: Tensor,
    velocity: Tensor,
    dofs: Tensor,
    edge_length: Tensor,
    radius: Tensor,
    tangential: Tensor,
    normal: Tensor,
    density: Tensor,
) -> tuple[Tensor, ...]:
    """Return the force on each node of an edge by components; arguments as `QuadraticResistive._found` gives them."""
    t, length, u = _along_edges(q, velocity, dofs)
    half = -0.5 * density * radius * (edge_length if lengths == "rest" else length)
    return _resistance(t, u, tangential, normal).times(half).components()


def _quadratic_derivatives(
    lengths: str,
    q: Tensor,
    velocity: Tensor,
    dofs: Tensor,
    edge_length: Tensor,
    radius: Tensor,
    tangential: Tensor,
    normal: Tensor,
    density: Tensor,
) -> list[Tensor]:
    """Return the derivatives of both forces by the positions of both nodes, then by their velocities.

    With w = u - (t . u) t and P = I - t t^T, which leaves w as it is: d(|w| w)/dw = |w| I + w w^T / |w|,
    dw/du = P and dw/dt P = -t w^T - (t . u) P.
    """
    t, length, u = _along_edges(q, velocity, dofs)
    along = t.dot(u)
    across = u - t.times(along)
    speed = across.length()
    tt, tw = Mat3.outer(t, t), Mat3.outer(t, across)
    projection = Mat3.diagonal(torch.ones_like(along)) - tt
    # d(|w| w)/dw P; w w^T / |w| is zero at w = 0
    by_across = projection.times(speed) + Mat3.outer(across, across).times(1 / torch.where(speed > 0, speed, 1.0))
    size = torch.abs(along)
    by_u = tt.times(2 * tangential * size) + by_across.times(normal)
    turning = (tw.times(2.0) + projection.times(along)).times(tangential * size)
    by_edge = (turning - (tw.times(speed) + by_across.times(along)).times(normal)).times(1 / length)
    scale = -0.5 * density * radius * (edge_length if lengths == "rest" else length)
    if lengths == "current":
        by_edge = by_edge + Mat3.outer(_resistance(t, u, tangential, normal), t.times(1 / length))
    by_end, by_velocity = by_edge.times(scale), by_u.times(0.5 * scale)
    by_positions, by_velocities = side_by_side(by_end.times(-1.0), by_end), side_by_side(by_velocity, by_velocity)
    return [*by_positions, *by_positions, *by_velocities, *by_velocities]


def _resistance(t: Vec3, u: Vec3, tangential: Tensor, normal: Tensor) -> Vec3:
    """Return C_t |u_par| u_par + C_n |u_perp| u_perp."""
    along = t.dot(u)
    across = u - t.times(along)
    return t.times(tangential * torch.abs(along) * along) + across.times(normal * across.length())


def _along_edges(q: Tensor, velocity: Tensor, dofs: Tensor) -> tuple[Vec3, Tensor, Vec3]:
    """Return tangents, lengths and mean velocities."""
    start, end = dofs.unbind(0)
    edge = vectors_at(q, end) - vectors_at(q, start)
    length = torch.sqrt(edge.dot(edge))
    return edge.times(1 / length), length, (vectors_at(velocity, start) + vectors_at(velocity, end)).times(0.5)


_QUADRATIC = {lengths: Fused(partial(_quadratic, lengths), "quadratic drag") for lengths in LENGTHS}
_QUADRATIC_DERIVATIVES = {
    lengths: Fused(partial(_quadratic_derivatives, lengths), "quadratic drag") for lengths in LENGTHS
}

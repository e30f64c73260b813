"""Drag of slender rods with different coefficients along and across their axis (resistive force theory)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, check_choice
from torchdismech.forces.base import refuse_no_rods
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import (
    ElementForce,
    Loops,
    blocks_of,
    coefficient,
    dofs_of_nodes,
    refuse_other_count,
    sizes_of,
    vectors_at,
)
from torchdismech.geometry.vec3 import Mat3, Vec3, side_by_side
from torchdismech.robot.body import Body
from torchdismech.robot.state import State
from torchdismech.values import Given, untrained

__all__ = ["QuadraticResistive", "Resistive"]

LENGTHS = ("rest", "current")  # which length of an edge drag is proportional to
ON_SHELLS = "of shells take Drag"


class Resistive(ElementForce):
    """F_i = -L_i [c_t t t^T + c_n (I - t t^T)] u_i, for small Reynolds numbers.

    t = unit(x_{i+1} - x_{i-1}) along the node's rod (one-sided at its ends), L_i the node's share of that rod's length.
    At a branching node each rod contributes with its own tangent. Derivatives are exact, with that of t.

    Parameters
    ----------
    tangential, normal : c_t, c_n, 0 or more [Pa s]: () or (B, 1); or one for each node of each rod, rod by rod, (S,) or
        (B, S). There a closed rod lists each of its nodes once; a node where rods meet is listed once for each rod.
    explicit : see `Force`.

    Raises
    ------
    InputError
        A coefficient is below zero, is not finite, or has more than two dimensions; on binding, it is given for another
        number of nodes.
    """

    per_robot = not_negative = ("tangential", "normal")
    tangential: Tensor
    normal: Tensor
    _edges: Tensor
    _shares: Tensor

    def __init__(self, tangential: Given, normal: Given, explicit: bool = False):
        super().__init__(explicit)
        for name, value in (("tangential", tangential), ("normal", normal)):
            setattr(self, name, untrained(coefficient(value, f"{type(self).__name__}.{name}")))

    def bind(self, body: Body) -> None:
        """Store for each node of each rod the nodes before and after it; refuse coefficients for another number."""
        super().bind(body)
        refuse_no_rods(body, "Resistive", ON_SHELLS)
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
        for name in self.not_negative:
            refuse_other_count(getattr(self, name), f"{type(self).__name__}.{name}", len(node), "nodes of rods")
        edges = np.stack([edge_in, edge_out])
        shares = torch.as_tensor(np.where(edges >= 0, 0.5, 0.0), dtype=body.nodes.dtype, device="cpu")
        self.register_buffer("_dofs", dofs_of_nodes(*map(np.array, (before, node, after))), persistent=False)
        self.register_buffer("_edges", torch.as_tensor(np.maximum(edges, 0), device="cpu"), persistent=False)
        self.register_buffer("_shares", shares.unsqueeze(-1), persistent=False)

    @property
    def _loops(self) -> Loops:
        return _RESISTIVE

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        coefficients = (sizes_of(self.tangential), sizes_of(self.normal))
        return sizes_of(self.body.edge_length), self._edges, self._shares, *coefficients

    def _acted_on(self) -> Tensor:
        return self._dofs[1]

    def blocks(self) -> list[Block]:
        """Return rows of each node against columns of the nodes before and after it, then of the node itself."""
        before, node, after = self._dofs.transpose(1, 2).cpu().numpy()
        return [Block(node, np.concatenate([before, after], axis=1)), Block(node, node)]

    def _placed(self, entries: Tensor) -> Derivatives:
        by_position, by_velocity = entries.split([18, 9])
        return [(blocks_of(by_position, 3), None), (None, blocks_of(by_velocity, 3))]


def _resistive(q: Tensor, velocity: Tensor, dofs: Tensor, *sizes: Tensor) -> tuple[Tensor, ...]:
    """Return the components of the force on a node; arguments as `ElementForce` passes them to loops."""
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
    """Return tangents, distances from node before to node after, velocities, lengths L, c_n and c_t - c_n."""
    before, node, after = dofs.unbind(0)
    way = vectors_at(q, after) - vectors_at(q, before)
    span = torch.sqrt(way.dot(way))
    length = edge_length[edges[0]] * shares[0] + edge_length[edges[1]] * shares[1]
    return way.times(1 / span), span, vectors_at(velocity, node), length, normal, tangential - normal


_RESISTIVE = Loops("resistive forces", _resistive, _resistive_derivatives, 3)


class QuadraticResistive(ElementForce):
    """F = -1/2 rho l b [C_t |u_par| u_par + C_n |u_perp| u_perp] per edge, for Reynolds numbers of about 1 to 1000.

    u is the mean velocity of the edge's nodes, split into components along and across the edge; l is its length, b its
    width: the diameter of round sections. Half of the force acts on each node. The width of a rectangle depends on the
    direction of motion, so rectangles are accepted in planar robots only, which move in x and z: b is the side along y.

    Parameters
    ----------
    tangential, normal : drag coefficients C_t, C_n, 0 or more: () or (B, 1); or one for each edge, (E,) or (B, E).
    density : of the fluid [kg/m^3], likewise.
    explicit : see `Force`.
    length : "rest": l is the edge's length at rest; "current": its present length. The width b is that at rest in both
        cases, while a rod of constant volume gets thinner as it gets longer: its frontal area l b grows as sqrt(l),
        half-way between the two. So both are equally far off, and the simpler one is the default.

    Raises
    ------
    InputError
        A coefficient or the density is below zero, is not finite, or has more than two dimensions; `length` is neither
        of the two; on binding, a coefficient or the density is given for another number of edges, or a section is
        a rectangle of a robot in space, or of a planar one and neither of its sides lies along y.
    """

    per_robot = not_negative = ("tangential", "normal", "density")
    tangential: Tensor
    normal: Tensor
    density: Tensor

    def __init__(self, tangential: Given, normal: Given, density: Given, explicit: bool = False, length: str = "rest"):
        super().__init__(explicit)
        check_choice("QuadraticResistive.length", length, LENGTHS)
        self.length = length
        for name, value in (("tangential", tangential), ("normal", normal), ("density", density)):
            setattr(self, name, untrained(coefficient(value, f"{type(self).__name__}.{name}")))

    def bind(self, body: Body) -> None:
        """Store the dofs of the edges' nodes; refuse rectangles of unknown width, and coefficients that do not fit."""
        super().bind(body)
        refuse_no_rods(body, "QuadraticResistive", ON_SHELLS)
        unknown = np.flatnonzero(~body.radius_known)
        if len(unknown):
            raise InputError(
                f"QuadraticResistive: rod edge {unknown[0]} has a rectangular section, whose width across the motion "
                "depends on its direction; expected round sections, or a planar robot whose rectangles have a side "
                "along y. Resistive takes any"
            )
        for name in self.not_negative:
            refuse_other_count(getattr(self, name), f"{type(self).__name__}.{name}", body.n_edges, "rod edges")
        self.register_buffer("_dofs", dofs_of_nodes(*body.rod_edges.T), persistent=False)

    @property
    def _loops(self) -> Loops:
        return _QUADRATIC[self.length]

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        sizes = (self.body.edge_length, self.body.edge_radius)
        return tuple(map(sizes_of, (*sizes, self.tangential, self.normal, self.density)))

    def _placed(self, entries: Tensor) -> Derivatives:
        by_position, by_velocity = (blocks_of(part, 6) for part in entries.split(36))
        return [(by_position, by_velocity)]


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
    """Return the components of the forces on both nodes of an edge; arguments as `ElementForce` passes them."""
    t, length, u = _along_edges(q, velocity, dofs)
    half = -0.5 * density * radius * (edge_length if lengths == "rest" else length)
    return 2 * _resistance(t, u, tangential, normal).times(half).components()


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

    With w = u - (t . u) t and P = I - t t^T, so that P w = w: d(|w| w)/dw = |w| I + w w^T / |w|, dw/du = P and
    dw/dt P = -t w^T - (t . u) P.
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
    """Return tangents, present lengths and mean velocities of edges."""
    start, end = dofs.unbind(0)
    edge = vectors_at(q, end) - vectors_at(q, start)
    length = torch.sqrt(edge.dot(edge))
    return edge.times(1 / length), length, (vectors_at(velocity, start) + vectors_at(velocity, end)).times(0.5)


_QUADRATIC = {
    lengths: Loops("quadratic drag", partial(_quadratic, lengths), partial(_quadratic_derivatives, lengths), 6)
    for lengths in LENGTHS
}

"""Pairs of primitives that may touch in a step, and the forces between those that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw, LawConstants
from torchdismech.geometry.distances import Closest, inverse_gram
from torchdismech.geometry.vec3 import Vec3

__all__ = ["Kernel", "PairBlocks", "PairTable", "Touching", "touching", "vectors"]

Kernel = Callable[..., Closest]  # of four nodes, for edges then the c^2 that rounds them


@dataclass(frozen=True)
class PairTable:
    """Pairs of one kind that may touch within a step, P places a robot.

    Attributes
    ----------
    nodes : (B, P, 4) the nodes of each pair in the order of the kind's kernel; 0 in empty places.
    reach : (B, P) the sum of the two radii [m].
    filled : (B, P) bool, which places hold a pair.
    rounding : of edges, in parts of the reach; see `geometry.distances`.
    """

    nodes: Tensor
    reach: Tensor
    filled: Tensor
    rounding: float = 0.0

    @property
    def capacity(self) -> int:
        """Places a robot, P."""
        return self.filled.shape[1]

    def rows(self, index: Tensor) -> PairTable:
        """Return the table of the robots that `index` selects."""
        return PairTable(self.nodes[index], self.reach[index], self.filled[index], self.rounding)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Robot and place (C,) of each pair."""
        robot, place = self.filled.nonzero(as_tuple=True)
        return robot, place

    @cached_property
    def dofs(self) -> Tensor:
        """Coordinates (12, C) of the nodes of each pair, as numbers in q (B, n) of one robot."""
        nodes = self.nodes[self.places].t()
        return (3 * nodes.unsqueeze(1) + torch.arange(3, device=nodes.device)[:, None]).flatten(0, 1)

    @cached_property
    def reaches(self) -> Tensor:
        """Sum of the radii (C,) of each pair [m]."""
        return self.reach[self.places]

    def closest(self, kernel: Kernel, nodes: tuple[Vec3, ...]) -> Closest:
        """Return the closest points of all pairs whose nodes are where given."""
        return kernel(*nodes, (self.rounding * self.reaches) ** 2) if self.rounding else kernel(*nodes)

    def gathered(self, vector: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the coordinates (12, C) of q, or of velocities, (B, n); of the chosen pairs if given."""
        robot, dofs = self.places[0], self.dofs
        if chosen is not None:
            robot, dofs = robot[chosen], dofs[:, chosen]
        return vector.reshape(-1)[robot * vector.shape[1] + dofs]


@dataclass(frozen=True)
class Touching:
    """The A pairs of a table whose gap is below the tolerance at some q, and how they lie.

    Attributes
    ----------
    chosen : (A,) their places in the list of the table's pairs.
    weights : (4, A) of the nodes; r = sum_i w_i x_i leads from the second primitive to the first.
    slides : (2, 4, A) how the weights change as the closest points move; see `geometry.distances`.
    along : (2, 3, A) dr/ds of the slides [m].
    stiffening : (2, A) what rounding adds to their scalar products [m^2].
    gap : (A,) [m].
    normal, velocity : (A, 3) r over the distance; velocity of the first closest point against the second [m/s].
    distance : (A,) |r|, or D of rounded edges [m].
    nodal_velocity : (4, 3, A) [m/s].
    constants : of the law.
    """

    chosen: Tensor
    weights: Tensor
    slides: Tensor
    along: Tensor
    stiffening: Tensor
    gap: Tensor
    normal: Tensor
    velocity: Tensor
    distance: Tensor
    nodal_velocity: Tensor
    constants: LawConstants

    def nodal(self, force: Tensor) -> Tensor:
        """Return the forces (12, A) on the nodes for forces (A, 3) on the first primitives."""
        return (self.weights.unsqueeze(1) * force.t()).flatten(0, 1)

    def force(self, law: ContactLaw) -> Tensor:
        """Return the force (A, 3) on the first primitive of each pair [N]."""
        return law.force(self.gap, self.normal, self.velocity, self.constants)

    def force_and_blocks(
        self, law: ContactLaw, position_gain: float, velocity_gain: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the force (A, 3), and -position_gain dF/dx - velocity_gain dF/du (A, 12, 12) of the nodal forces."""
        force, blocks = self.force_and_derivative(law, position_gain, velocity_gain)
        entries = blocks.entries(slice(None)).view(3, 3, 4, 4, -1)
        return force, entries.permute(4, 2, 0, 3, 1).reshape(-1, 12, 12)

    def force_and_derivative(
        self, law: ContactLaw, position_gain: float, velocity_gain: float | Tensor
    ) -> tuple[Tensor, PairBlocks]:
        """Return the force (A, 3), and the blocks of `force_and_blocks` not yet multiplied out."""
        unit = torch.eye(3, dtype=self.gap.dtype, device=self.gap.device)
        curvature = (unit - self.normal.unsqueeze(-1) * self.normal.unsqueeze(-2)) / self.distance[:, None, None]
        force, by_gap, by_normal, by_velocity = law.force_and_partials(
            self.gap, self.normal, self.velocity, self.constants
        )
        by_r = by_normal @ curvature + by_gap.unsqueeze(-1) * self.normal.unsqueeze(-2)
        by_r, by_normal = (x.movedim(0, 2).contiguous() for x in (by_r, by_normal))  # (3, 3, A): from here batch last
        slides, along, r = self.slides, self.along, (self.distance[:, None] * self.normal).t()
        # (2, 3, A): the force by each slide; a slide turns the normal and leaves the distance, which is least
        by_slide = _applied(by_normal, along) / self.distance
        matrix = -position_gain * by_r
        if by_velocity is not None:
            by_velocity = by_velocity.movedim(0, 2).contiguous()
            carried = (slides.unsqueeze(2) * self.nodal_velocity).sum(1)
            by_slide = by_slide + _applied(by_velocity, carried)
            matrix = matrix - velocity_gain * by_velocity
        # ds/dx is minus the inverse Gram matrix times the nodal gradient of r . r_s, so its sign is that of the matrix
        e, f = (Vec3(*along[k].unbind(0)) for k in range(2))
        solved = inverse_gram(e, f, self.stiffening)
        slides_solved, along_solved = _combined(solved, slides), _combined(solved, along)
        sliding = _nodal(slides_solved, r.unsqueeze(0)) + _nodal(self.weights.unsqueeze(0), along_solved)
        left = _nodal(self.weights.unsqueeze(0), by_slide) + _nodal(slides, force.t().unsqueeze(0))
        return force, PairBlocks(self.weights, matrix, left, position_gain * sliding)


@dataclass(frozen=True)
class PairBlocks:
    """Derivatives of the nodal forces of A pairs by the nodes' coordinates: w_i w_j M_ab + sum_k l_k,ia r_k,jb.

    Attributes
    ----------
    weights : (4, A) w.
    matrix : (3, 3, A) M.
    left, right : (2, 4, 3, A) l and r.
    """

    weights: Tensor
    matrix: Tensor
    left: Tensor
    right: Tensor

    def entries(self, part: slice) -> Tensor:
        """Return the entries (144, ..) of some of the pairs, in the order (a, b, i, j)."""
        weights = self.weights[:, part]
        left, right = (x[..., part].transpose(1, 2) for x in (self.left, self.right))  # (2, 3, 4, ..)
        total = self.matrix[:, :, None, None, part] * (weights.unsqueeze(1) * weights)
        for k in range(2):
            total.addcmul_(left[k, :, None, :, None], right[k, None, :, None, :])
        return total.flatten(0, 3)


def touching(
    kernel: Kernel, table: PairTable, q: Tensor, velocity: Tensor, constants: LawConstants, follow: bool
) -> Touching:
    """Return the pairs of a table that touch at q (B, n).

    Parameters
    ----------
    kernel : finds closest points.
    velocity : (B, n) [m/s].
    constants : of the law, each () or (B, 1).
    follow : let autograd follow the closest points.
    """
    x = table.gathered(q)
    nodes = vectors(x)
    tolerance = constants.at(table.places[0]).tolerance
    with torch.no_grad():
        closest = table.closest(kernel, nodes)
        chosen = (closest.squared_distance(nodes).sqrt() - table.reaches < tolerance).nonzero().squeeze(1)
    x = x[:, chosen]
    nodes = vectors(x)
    closest = closest.chosen(chosen)
    if follow:
        closest = closest.differentiable(nodes)
    difference = torch.stack(closest.difference(nodes).components(), dim=-1)
    distance = closest.squared_distance(nodes).clamp_min(torch.finfo(q.dtype).tiny).sqrt()
    weights = torch.stack(closest.weights)
    moving = table.gathered(velocity, chosen).unflatten(0, (4, 3))
    return Touching(
        chosen=chosen,
        weights=weights,
        slides=torch.stack([torch.stack(slide) for slide in closest.slides]),
        along=torch.stack([torch.stack(v.components()) for v in closest.slid(nodes)]),
        stiffening=torch.stack([s + torch.zeros_like(distance) for s in closest.stiffening()]),
        gap=distance - table.reaches[chosen],
        normal=difference / distance[:, None],
        velocity=(weights.unsqueeze(1) * moving).sum(0).t(),
        distance=distance,
        nodal_velocity=moving,
        constants=constants.at(table.places[0][chosen]),
    )


def vectors(coordinates: Tensor) -> tuple[Vec3, Vec3, Vec3, Vec3]:
    """Return four nodes of their coordinates (12, C)."""
    return tuple(Vec3(*coordinates[3 * k : 3 * k + 3].unbind(0)) for k in range(4))  # type: ignore[return-value]


def _nodal(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return (k, 4, 3, A): vectors (k, 3, A) spread on nodes by weights (k, 4, A)."""
    return weights.unsqueeze(2) * vectors.unsqueeze(1)


def _applied(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return matrices (3, 3, A) times vectors (k, 3, A)."""
    return (matrix * vectors.unsqueeze(1)).sum(2)


def _combined(gram: tuple[Tensor, Tensor, Tensor], pair: Tensor) -> Tensor:
    """Return symmetric matrices (g11, g12, g22) of (A,) times pairs (2, .., A)."""
    g11, g12, g22 = gram
    return torch.stack([g11 * pair[0] + g12 * pair[1], g12 * pair[0] + g22 * pair[1]])

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

__all__ = ["Kernel", "PairTable", "Touching", "touching", "vectors"]

Kernel = Callable[[Vec3, Vec3, Vec3, Vec3], Closest]


@dataclass(frozen=True)
class PairTable:
    """Pairs of one kind that may touch within a step, P places a robot.

    Attributes
    ----------
    nodes : (B, P, 4) the nodes of each pair in the order of the kind's kernel; 0 in empty places.
    reach : (B, P) the sum of the two radii [m].
    filled : (B, P) bool, which places hold a pair.
    """

    nodes: Tensor
    reach: Tensor
    filled: Tensor

    @property
    def capacity(self) -> int:
        """Places a robot, P."""
        return self.filled.shape[1]

    def rows(self, index: Tensor) -> PairTable:
        """Return the table of the robots that `index` selects."""
        return PairTable(self.nodes[index], self.reach[index], self.filled[index])

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
    gap : (A,) [m].
    normal, velocity : (A, 3) unit vector of r; velocity of the first closest point against the second [m/s].
    distance : (A,) |r| [m].
    nodal_velocity : (4, 3, A) [m/s].
    constants : of the law.
    """

    chosen: Tensor
    weights: Tensor
    slides: Tensor
    along: Tensor
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

    def force_and_blocks(self, law: ContactLaw, position_gain: float, velocity_gain: float) -> tuple[Tensor, Tensor]:
        """Return the force (A, 3), and -position_gain dF/dx - velocity_gain dF/du (A, 12, 12) of the nodal forces."""
        unit = torch.eye(3, dtype=self.gap.dtype, device=self.gap.device)
        curvature = (unit - self.normal.unsqueeze(-1) * self.normal.unsqueeze(-2)) / self.distance[:, None, None]
        force, by_r, by_velocity = law.force_and_derivatives(
            self.gap, self.normal, curvature, self.velocity, self.constants
        )
        weights = self.weights.t()
        slides, along = self.slides.permute(2, 0, 1), self.along.permute(2, 0, 1)  # (A, 2, 4), (A, 2, 3)
        r = self.distance[:, None] * self.normal
        # the nodal gradient of r . r_s, (A, 2, 12), and minus what a slide does by each coordinate
        stationary = _nodal(slides, r.unsqueeze(1)) + _nodal(weights.unsqueeze(1), along)
        e, f = (Vec3(*along[:, k].unbind(-1)) for k in range(2))
        g11, g12, g22 = inverse_gram(e, f)
        gram = torch.stack([g11, g12, g12, g22], dim=-1).unflatten(-1, (2, 2))
        sliding = -gram @ stationary  # ds/dx
        by_slide = along @ by_r.mT  # (A, 2, 3): the force by each slide
        total = -position_gain * by_r
        if by_velocity is not None:
            carried = torch.einsum("aki,ica->akc", slides, self.nodal_velocity)
            by_slide = by_slide + carried @ by_velocity.mT
            total = total - velocity_gain * by_velocity
        left = _nodal(weights.unsqueeze(1), by_slide) + _nodal(slides, force.unsqueeze(1))  # (A, 2, 12)
        blocks = _nodal_blocks(weights, total) - position_gain * (left.mT @ sliding)
        return force, blocks


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
        closest = kernel(*nodes)
        r = closest.difference(nodes)
        chosen = ((r.dot(r)).sqrt() - table.reaches < tolerance).nonzero().squeeze(1)
    x = x[:, chosen]
    nodes = vectors(x)
    closest = Closest(
        tuple(w[chosen] for w in closest.weights),  # type: ignore[arg-type]
        tuple(tuple(w[chosen] for w in slide) for slide in closest.slides),  # type: ignore[arg-type]
    )
    if follow:
        closest = closest.differentiable(nodes)
    difference = torch.stack(closest.difference(nodes).components(), dim=-1)
    distance = torch.linalg.vector_norm(difference, dim=-1).clamp_min(torch.finfo(q.dtype).tiny ** 0.5)
    weights = torch.stack(closest.weights)
    moving = table.gathered(velocity, chosen).unflatten(0, (4, 3))
    return Touching(
        chosen=chosen,
        weights=weights,
        slides=torch.stack([torch.stack(slide) for slide in closest.slides]),
        along=torch.stack([torch.stack(v.components()) for v in closest.slid(nodes)]),
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
    """Return (A, k, 12): vectors (A, k, 3) spread on nodes by weights (A, k, 4)."""
    return (weights.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(2, 3)


def _nodal_blocks(weights: Tensor, matrix: Tensor) -> Tensor:
    """Return (A, 12, 12): w_i w_j times the matrix (A, 3, 3)."""
    count = len(weights)
    pairs = weights.unsqueeze(2) * weights.unsqueeze(1)
    return (pairs[:, :, None, :, None] * matrix[:, None, :, None, :]).reshape(count, 12, 12)

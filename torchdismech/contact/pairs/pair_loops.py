"""What is found for each pair in contact, by components: closest points, forces and their derivatives.

These are functions of arrays over pairs, which are compiled as loops where that can be (see `fused`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor

from torchdismech.contact.law import LawConstants, LawFormulas
from torchdismech.fused import Fused
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import Closest, closest_on_triangle, closest_segments, combined, inverse_gram
from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = [
    "FIRST",
    "FIXED",
    "KNOWN",
    "ROW_OF_GAP",
    "ROW_OF_SHARE",
    "STRAIGHT",
    "Geometry",
    "Kernel",
    "PairLoops",
    "distances",
    "vectors",
]

FIXED = 17  # rows of a `Geometry` before the weights of the nodes
ROW_OF_GAP, ROW_OF_SHARE = 0, 8  # of a `Geometry`
KNOWN = 9  # numbers that searches know of a pair that rubs: traction, normal and velocity; see `contact.rubbing`
# Of the sum of two radii: how far the ends of a pair may move against each other in a step of a search. With a half a
# third more steps of a rope that coils fail, with an eighth searches take longer.
LARGEST_STEP = 0.25
SMALLEST = 1e-37  # m^2, of squared distances, so that normals are finite
Kernel = Callable[..., Closest]  # of the nodes, then what else a pair has: see `PairTable.more`
# which of a pair's nodes are those of the first primitive
FIRST: dict[Kernel, list[int]] = {closest_segments: [0, 1], closest_on_triangle: [0], closest_crossing: [0, 1, 4, 5]}


class PairLoops:
    """What is found for each pair of a kind, as loops over pairs where they can be compiled.

    Parameters
    ----------
    kernel : of the kind.
    law : between two surfaces.
    """

    def __init__(self, kernel: Kernel, law: LawFormulas):
        self.kernel, self.law = kernel, law
        forces, friction, reports = "forces of pairs", "friction of pairs", "reports of pairs"
        self.slack = Fused(partial(_slack, kernel), "gaps of pairs")
        self.step_fraction = Fused(partial(_step_fraction, kernel), "motions of pairs")
        self.geometry = Fused(partial(_geometry, kernel, False), "closest points")
        self.differentiable_geometry = partial(_geometry, kernel, True)
        self.first_friction = law.fused(partial(_first_friction, kernel), friction)
        self.expected_friction = law.fused(partial(_expected_friction, kernel), friction)
        self.force = law.fused(_force, forces)
        self.summary = law.fused(partial(_summary, kernel), reports)
        self.derivatives = law.fused(_derivatives, forces)
        self.primal_dual_derivatives = law.fused(_primal_dual_derivatives, forces)
        # the same from where the nodes are, for compiled code that calls them for some pairs at a time
        self.force_of_nodes = law.fused(partial(_force_of_nodes, kernel), forces)
        self.summary_of_nodes = law.fused(partial(_summary_of_nodes, kernel), reports)
        self.blocks_of_nodes = law.fused(partial(_blocks_of_nodes, kernel), forces)
        self.primal_dual_blocks_of_nodes = law.fused(partial(_primal_dual_blocks_of_nodes, kernel), forces)

    @classmethod
    def of(cls, kernel: Kernel, law: LawFormulas) -> PairLoops:
        """Return those of a kernel and a law, made at the first call."""
        if kernel not in law.of_pairs:
            law.of_pairs[kernel] = cls(kernel, law)
        return law.of_pairs[kernel]

    def __reduce__(self) -> tuple:
        return PairLoops.of, (self.kernel, self.law)


@dataclass(frozen=True)
class Geometry:
    """How pairs of n nodes lie, in components (A,).

    Attributes
    ----------
    gap : [m].
    normal, velocity : r over the distance; velocity of the first closest point against the second [m/s].
    distance : |r|, or D of rounded edges [m].
    share : how far the closest points are this pair's, 0 to 1.
    along : dr/ds of both slides [m].
    stiffening : what rounding and bending add to their scalar products [m^2].
    weights : n of the nodes; r = sum_i w_i x_i leads from the second primitive to the first.
    slides : how the weights change as the closest points move, two ways; see `geometry.distances`.
    """

    gap: Tensor
    normal: Vec3
    velocity: Vec3
    distance: Tensor
    share: Tensor
    along: tuple[Vec3, Vec3]
    stiffening: tuple
    weights: tuple
    slides: tuple[tuple, tuple]

    @classmethod
    def of(cls, rows: Sequence) -> Geometry:
        """Return it of its 17 + 3 n components, one after the other."""
        c = tuple(rows)
        normal, velocity, first, second = (Vec3(*c[k : k + 3]) for k in (1, 4, 9, 12))
        n = (len(c) - FIXED) // 3
        weights, *slides = (c[k : k + n] for k in (FIXED, FIXED + n, FIXED + 2 * n))
        gap, distance, share, stiffening = c[ROW_OF_GAP], c[7], c[ROW_OF_SHARE], c[15:FIXED]
        along, both_slides = (first, second), (slides[0], slides[1])
        return cls(gap, normal, velocity, distance, share, along, stiffening, weights, both_slides)

    def rows(self) -> list:
        """Return its components, one after the other."""
        normal, velocity, first, second = (v.components() for v in (self.normal, self.velocity, *self.along))
        moving = [self.gap, *normal, *velocity, self.distance, self.share, *first, *second]
        return [*moving, *self.stiffening, *self.weights, *self.slides[0], *self.slides[1]]


def distances(kernel: Kernel, coordinates: Tensor) -> Tensor:
    """Return the distances (C,) of pairs of four nodes with these coordinates (12, C), edges not rounded [m]."""
    return _DISTANCES[kernel].of_columns(coordinates)[0]


def _distance(kernel: Kernel, x: Tensor) -> list:
    nodes = vectors(x)
    return [torch.sqrt(kernel(*nodes).squared_distance(nodes))]


def _slack(kernel: Kernel, x: Tensor, reach: Tensor, tolerance: Tensor, *more: Tensor) -> list:
    """Return gap less tolerance: below 0 where pairs touch, infinite where closest points are another pair's."""
    nodes = vectors(x)
    closest = kernel(*nodes, *more)
    gap = torch.sqrt(closest.squared_distance(nodes)) - reach
    if closest.share is not None:
        gap = torch.where(closest.share > 0, gap, torch.full_like(gap, torch.inf))
    return [gap - tolerance]


def _step_fraction(kernel: Kernel, motion: Tensor, reach: Tensor) -> list:
    """Return the fraction, up to 1, of motions (3 n, C) of the nodes after which no pair has moved too far.

    That is where its two sides, two edges or a point and a triangle, have moved by `LARGEST_STEP` of its reach against
    each other.
    """
    moved = vectors(motion)[:4]  # nodes beyond the four bend smooth lines alone
    split = sum(node < 4 for node in FIRST[kernel])
    ways = [a - b for a in moved[:split] for b in moved[split:]]
    farthest = torch.sqrt(reduce(torch.maximum, [way.dot(way) for way in ways]))
    free = LARGEST_STEP * reach
    return [torch.where(farthest > free, free / torch.where(farthest > 0, farthest, 1.0), torch.ones_like(free))]


def _first_friction(kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *given: Tensor) -> list:
    """Return the traction, the normal, and the velocity of the first closest point against the second, by components.

    Given is what `_of_nodes` is.
    """
    at, constants = _of_nodes(kernel, law, x, moving, reach, given)
    return _components(law.traction(at.normal, at.velocity, LawConstants.of(*constants)), at.normal, at.velocity)


def _expected_friction(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, known: Tensor, *given: Tensor
) -> list:
    """Return what `_first_friction` does with the traction to expect, if this (KNOWN, A) was `known` before."""
    at, constants = _of_nodes(kernel, law, x, moving, reach, given)
    traction, turned, slid = vectors(known)
    expected = law.expected_traction(turned, slid, at.velocity - slid, traction, LawConstants.of(*constants))
    return _components(expected, at.normal, at.velocity)


def _components(*vectors: Vec3) -> list:
    return [component for vector in vectors for component in vector.components()]


def _of_nodes(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, given: Sequence[Tensor]
) -> tuple[Geometry, Sequence[Tensor]]:
    """Return how pairs lie whose nodes have these coordinates and velocities (3 n, A), and the law's constants.

    Given are these constants, then `PairTable.more`.
    """
    count = law.constants
    return Geometry.of(_geometry(kernel, False, x, moving, reach, *given[count:])), given[:count]


def _geometry(kernel: Kernel, follow: bool, x: Tensor, moving: Tensor, reach: Tensor, *more: Tensor) -> list:
    """Return the rows of `Geometry` for coordinates and velocities (3 n, A); autograd can `follow` closest points."""
    nodes = vectors(x)
    closest = kernel(*nodes, *more)
    if follow:
        closest = closest.differentiable(nodes)
    squared = closest.squared_distance(nodes)
    distance = torch.sqrt(torch.maximum(squared, torch.full_like(squared, SMALLEST)))
    normal = closest.difference(nodes).times(1 / distance)
    velocity = combined(closest.weights, vectors(moving))
    stiffening = tuple(by + torch.zeros_like(distance) for by in closest.stiffening())
    share = torch.ones_like(distance) if closest.share is None else closest.share
    place = (closest.slid(nodes), stiffening, closest.weights, closest.slides)
    return Geometry(distance - reach, normal, velocity, distance, share, *place).rows()


def _force(law: LawFormulas, geometry: Tensor, *given: Tensor) -> list:
    """Return the forces on the nodes, by components."""
    return _force_at(law, Geometry.of(geometry.unbind(0)), given)


def _force_at(law: LawFormulas, at: Geometry, given: Sequence[Tensor]) -> list:
    force = law.force(at.gap, at.normal, at.velocity, LawConstants.of(*given))
    return _on_nodes(at.weights, force.times(at.share))


def _force_of_nodes(kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *given: Tensor) -> list:
    """Return `_force` from coordinates and velocities (3 n, A); given is what `_of_nodes` is."""
    return _force_at(law, *_of_nodes(kernel, law, x, moving, reach, given))


def _summary(kernel: Kernel, law: LawFormulas, geometry: Tensor, *given: Tensor) -> list:
    """Return the gap, the size of the force on the first surface, and how fast the surfaces slide."""
    return _summary_at(kernel, law, Geometry.of(geometry.unbind(0)), given)


def _summary_at(kernel: Kernel, law: LawFormulas, at: Geometry, given: Sequence[Tensor]) -> list:
    force = _force_at(law, at, given)
    on_first = Vec3(*(reduce(add, [force[3 * node + axis] for node in FIRST[kernel]]) for axis in range(3)))
    along = at.velocity - at.normal.times(at.velocity.dot(at.normal))
    return [at.gap, torch.sqrt(on_first.dot(on_first)), torch.sqrt(along.dot(along))]


def _summary_of_nodes(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *given: Tensor
) -> list:
    """Return `_summary` from coordinates and velocities (3 n, A), given what `_of_nodes` is, then the forces."""
    at, constants = _of_nodes(kernel, law, x, moving, reach, given)
    return [*_summary_at(kernel, law, at, constants), *_force_at(law, at, constants)]


def _derivatives(
    law: LawFormulas, geometry: Tensor, moving: Tensor, position_gain: Tensor, velocity_gain: Tensor, *given: Tensor
) -> list:
    """Return the forces on the nodes, and matrix, left and right of `PairBlocks`, by components."""
    at = Geometry.of(geometry.unbind(0))
    return _derivatives_at(law, at, moving, position_gain, velocity_gain, given)


def _blocks_of_nodes(
    kernel: Kernel,
    law: LawFormulas,
    x: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    reach: Tensor,
    *given: Tensor,
) -> list:
    """Return what `_derivatives` does, then the weights; `x` and what follows as for `_of_nodes`."""
    at, constants = _of_nodes(kernel, law, x, moving, reach, given)
    return [*_derivatives_at(law, at, moving, position_gain, velocity_gain, constants), *at.weights]


def _primal_dual_derivatives(
    law: LawFormulas,
    geometry: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    traction: Tensor,
    *given: Tensor,
) -> list:
    """Return what `_derivatives` does for a traction (3, A) that is expected."""
    at, expected = Geometry.of(geometry.unbind(0)), Vec3(*traction.unbind(0))
    return _derivatives_at(law, at, moving, position_gain, velocity_gain, given, expected)


def _primal_dual_blocks_of_nodes(
    kernel: Kernel,
    law: LawFormulas,
    x: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    reach: Tensor,
    traction: Tensor,
    *given: Tensor,
) -> list:
    """Return what `_blocks_of_nodes` does for a traction (3, A) that is expected."""
    at, constants = _of_nodes(kernel, law, x, moving, reach, given)
    found = _derivatives_at(law, at, moving, position_gain, velocity_gain, constants, Vec3(*traction.unbind(0)))
    return [*found, *at.weights]


def _derivatives_at(
    law: LawFormulas,
    at: Geometry,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    given: Sequence[Tensor],
    traction: Vec3 | None = None,
) -> list:
    partials = law.partials(at.gap, at.normal, at.velocity, LawConstants.of(*given), traction).times(at.share)
    force, by_gap, by_normal, by_velocity = partials
    # the normal turns by (1 - n n^T) / D dr, the gap changes by n dr
    across = by_normal - Mat3.outer(by_normal.applied(at.normal), at.normal)
    matrix = (across.times(1 / at.distance) + Mat3.outer(by_gap, at.normal)).times(-position_gain)
    # the force by each slide, which turns the normal and leaves the distance, which is least
    by_slide = [by_normal.applied(way).times(1 / at.distance) for way in at.along]
    if by_velocity is not None:
        carried = [combined(slide, vectors(moving)) for slide in at.slides]
        by_slide = [turned + by_velocity.applied(by) for turned, by in zip(by_slide, carried, strict=True)]
        matrix = matrix - by_velocity.times(velocity_gain)
    # ds/dx is minus the inverse Gram matrix times the nodal gradient of r . r_s, so its sign is that of the matrix
    e, f = at.along
    g11, g12, g22 = inverse_gram(e, f, at.stiffening)
    r = at.normal.times(at.distance)
    rows = _on_nodes(at.weights, force) + list(matrix.components())
    for slide, by in zip(at.slides, by_slide, strict=True):
        rows += _sums(_on_nodes(at.weights, by), _on_nodes(slide, force))
    for a, b in ((g11, g12), (g12, g22)):
        slide = tuple(a * x + b * y for x, y in zip(*at.slides, strict=True))
        moved = _sums(_on_nodes(slide, r), _on_nodes(at.weights, e.times(a) + f.times(b)))
        rows += [position_gain * x for x in moved]
    return rows


def _on_nodes(weights: tuple, vector: Vec3) -> list:
    """Return a vector on nodes by their weights, three components for each."""
    return [component * weight for weight in weights for component in vector.components()]


def _sums(first: list, second: list) -> list:
    return [a + b for a, b in zip(first, second, strict=True)]


def vectors(coordinates: Tensor) -> tuple[Vec3, ...]:
    """Return the nodes of their coordinates (3 n, C)."""
    x = coordinates.unbind(0)
    return tuple(Vec3(*x[k : k + 3]) for k in range(0, len(x), 3))


STRAIGHT = (closest_segments, closest_on_triangle)  # the kernels of four nodes
_DISTANCES = {kernel: Fused(partial(_distance, kernel), "distances of pairs") for kernel in STRAIGHT}

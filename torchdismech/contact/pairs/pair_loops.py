"""Closest points, contact forces and their derivatives for pairs, as functions by components.

All are elementwise over pairs, so that they can be compiled as loops (see `fused`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor

from torchdismech.contact.law_formulas import LawConstants, LawFormulas
from torchdismech.fused import Fused
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import Closest, closest_on_triangle, closest_segments, combined, inverse_gram
from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = [
    "CONTACTS",
    "FIRST",
    "FIXED",
    "KNOWN",
    "ROW_OF_GAP",
    "ROW_OF_SHARE",
    "STRAIGHT",
    "Geometry",
    "Kernel",
    "PairLoops",
    "contact_of",
    "distances",
    "vectors",
]

FIXED = 17  # number of rows of a `Geometry` before the weights of the nodes
ROW_OF_GAP, ROW_OF_SHARE = 0, 8  # rows of the gap and of the share in a `Geometry`
KNOWN = 9  # numbers of the friction of a pair: traction, normal and velocity; see `contact.rubbing`
# In reaches: how far the two sides of a pair may move against each other in one step of a search. With 0.5, a third
# more steps of a coiling rope fail; with 0.125, searches take longer.
LARGEST_STEP = 0.25
SMALLEST = 1e-37  # m^2, least squared distance by which normals are divided, so that they are finite
# finds closest points from the nodes, and from the tensors of `PairTable.kernel_arguments`
Kernel = Callable[..., Closest]
# for each kernel, the places of the first primitive's nodes among those of a pair
FIRST: dict[Kernel, list[int]] = {closest_segments: [0, 1], closest_on_triangle: [0], closest_crossing: [0, 1, 4, 5]}


class PairLoops:
    """The functions of pairs for one kernel and one contact law, as loops over pairs where these can be compiled.

    `force`, `summary`, `derivatives` and `primal_dual_derivatives` take the rows of a `Geometry` (`pairs.Touching`).
    Those named `.._of_nodes` do the same from the nodes' coordinates, for compiled code that calls them for some pairs
    at a time (`pair_sums`). All others take the nodes' coordinates, too, but `step_fraction` how far the nodes move.

    Parameters
    ----------
    kernel : finds the closest points of a pair.
    law : the law between two surfaces.
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
        self.primal_dual_derivatives = law.fused(partial(_derivatives, primal_dual=True), forces)
        self.force_of_nodes = law.fused(partial(_force_of_nodes, kernel), forces)
        self.summary_of_nodes = law.fused(partial(_summary_of_nodes, kernel), reports)
        self.blocks_of_nodes = law.fused(partial(_blocks_of_nodes, kernel), forces)
        self.primal_dual_blocks_of_nodes = law.fused(partial(_blocks_of_nodes, kernel, primal_dual=True), forces)

    @classmethod
    def of(cls, kernel: Kernel, law: LawFormulas) -> PairLoops:
        """Return the loops of a kernel and a law; they are made once and kept with the law."""
        if kernel not in law.of_pairs:
            law.of_pairs[kernel] = cls(kernel, law)
        return law.of_pairs[kernel]

    def __reduce__(self) -> tuple:
        return PairLoops.of, (self.kernel, self.law)


@dataclass(frozen=True)
class Geometry:
    """The geometry of A pairs of primitives, with n nodes each, at their closest points, in components (A,).

    Symbols are those of `geometry.distances`: r = sum_i w_i x_i leads from the closest point of the second primitive to
    that of the first, and s are the two parameters of these points.

    Attributes
    ----------
    gap : distance less reach [m].
    normal : r over the distance; for rounded edges shorter than 1.
    velocity : of the first closest point relative to the second [m/s].
    distance : |r|, or D of rounded edges [m].
    share : of this pair in the contact, 0 to 1; see `geometry.crossing`.
    along : dr/ds for both parameters [m].
    stiffening : what rounding and bending add to the squares of these [m^2].
    weights : w_i of the n nodes.
    slides : dw_i/ds for both parameters.
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
        """Return the geometry from its 17 + 3 n rows, in the order of `rows`."""
        c = tuple(rows)
        normal, velocity, first, second = (Vec3(*c[k : k + 3]) for k in (1, 4, 9, 12))
        n = (len(c) - FIXED) // 3
        weights, *slides = (c[k : k + n] for k in (FIXED, FIXED + n, FIXED + 2 * n))
        gap, distance, share, stiffening = c[ROW_OF_GAP], c[7], c[ROW_OF_SHARE], c[15:FIXED]
        along, both_slides = (first, second), (slides[0], slides[1])
        return cls(gap, normal, velocity, distance, share, along, stiffening, weights, both_slides)

    def rows(self) -> list:
        """Return the 17 + 3 n components as a flat list."""
        normal, velocity, first, second = (v.components() for v in (self.normal, self.velocity, *self.along))
        moving = [self.gap, *normal, *velocity, self.distance, self.share, *first, *second]
        return [*moving, *self.stiffening, *self.weights, *self.slides[0], *self.slides[1]]


def distances(kernel: Kernel, coordinates: Tensor) -> Tensor:
    """Return the distances (C,) [m] of pairs from the coordinates (12, C) of their four nodes, without rounding."""
    return _DISTANCES[kernel].of_columns(coordinates)[0]


def _distance(kernel: Kernel, x: Tensor) -> list:
    nodes = vectors(x)
    return [torch.sqrt(kernel(*nodes).squared_distance(nodes))]


def _slack(kernel: Kernel, x: Tensor, reach: Tensor, tolerance: Tensor, *kernel_arguments: Tensor) -> list:
    """Return gap less tolerance [m], which is negative for pairs that touch.

    Infinite for smooth lines whose closest points belong to neighbouring lines.
    """
    nodes = vectors(x)
    closest = kernel(*nodes, *kernel_arguments)
    gap = torch.sqrt(closest.squared_distance(nodes)) - reach
    if closest.share is not None:
        gap = torch.where(closest.share > 0, gap, torch.full_like(gap, torch.inf))
    return [gap - tolerance]


def _step_fraction(kernel: Kernel, motion: Tensor, reach: Tensor) -> list:
    """Return the fraction, up to 1, of motions (3 n, C) of the nodes that a search may take for each pair.

    Within it no node of one side moves by more than `LARGEST_STEP` of the reach relative to a node of the other side.
    """
    moved = vectors(motion)[:4]  # the four others of smooth lines only bend these
    split = sum(node < 4 for node in FIRST[kernel])
    ways = [a - b for a in moved[:split] for b in moved[split:]]
    farthest = torch.sqrt(reduce(torch.maximum, [way.dot(way) for way in ways]))
    free = LARGEST_STEP * reach
    return [torch.where(farthest > free, free / torch.where(farthest > 0, farthest, 1.0), torch.ones_like(free))]


def _first_friction(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *further: Tensor
) -> list:
    """Return the nine components of the friction of pairs: traction, normal, and relative velocity.

    Arguments are those of `_of_nodes`.
    """
    at, constants = _of_nodes(kernel, law, x, moving, reach, further)
    return _components(law.traction(at.normal, at.velocity, LawConstants.of(*constants)), at.normal, at.velocity)


def _expected_friction(
    kernel: Kernel,
    law: LawFormulas,
    x: Tensor,
    moving: Tensor,
    reach: Tensor,
    friction_before: Tensor,
    *further: Tensor,
) -> list:
    """Return the friction of pairs at the next iterate, as `_first_friction` does, but with linearised tractions.

    `friction_before` (KNOWN, A) is the friction at the iterate before.
    """
    at, constants = _of_nodes(kernel, law, x, moving, reach, further)
    traction, normal_before, velocity_before = vectors(friction_before)
    expected = law.expected_traction(
        normal_before, velocity_before, at.velocity - velocity_before, traction, LawConstants.of(*constants)
    )
    return _components(expected, at.normal, at.velocity)


def _components(*vectors: Vec3) -> list:
    return [component for vector in vectors for component in vector.components()]


def _of_nodes(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, further: Sequence[Tensor]
) -> tuple[Geometry, Sequence[Tensor]]:
    """Return the geometry of pairs, and the law's constants.

    Parameters
    ----------
    x, moving : (3 n, A) coordinates and velocities of the nodes.
    reach : (A,) sums of two radii.
    further : the law's constants, then the tensors of `PairTable.kernel_arguments`.
    """
    count = law.constants
    return Geometry.of(_geometry(kernel, False, x, moving, reach, *further[count:])), further[:count]


def _geometry(
    kernel: Kernel, follow: bool, x: Tensor, moving: Tensor, reach: Tensor, *kernel_arguments: Tensor
) -> list:
    """Return the rows of `Geometry` for coordinates and velocities (3 n, A) of the nodes.

    With `follow` autograd can differentiate how the closest points move.
    """
    nodes = vectors(x)
    closest = kernel(*nodes, *kernel_arguments)
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


def _force(law: LawFormulas, geometry: Tensor, *constants: Tensor) -> list:
    """Return the forces on the nodes (3 n), by components."""
    return _force_at(law, Geometry.of(geometry.unbind(0)), constants)


def _force_at(law: LawFormulas, at: Geometry, constants: Sequence[Tensor]) -> list:
    force = law.force(at.gap, at.normal, at.velocity, LawConstants.of(*constants))
    return _on_nodes(at.weights, force.times(at.share))


def _force_of_nodes(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *further: Tensor
) -> list:
    """Return the forces on the nodes, as `_force`, from the arguments of `_of_nodes`."""
    return _force_at(law, *_of_nodes(kernel, law, x, moving, reach, further))


def _summary(kernel: Kernel, law: LawFormulas, geometry: Tensor, *constants: Tensor) -> list:
    """Return gap [m], size of the force on the first primitive [N], and 1 for pairs that slide, else 0."""
    return _summary_at(kernel, law, Geometry.of(geometry.unbind(0)), constants)


def _summary_at(kernel: Kernel, law: LawFormulas, at: Geometry, constants: Sequence[Tensor]) -> list:
    force = _force_at(law, at, constants)
    on_first = Vec3(*(reduce(add, [force[3 * node + axis] for node in FIRST[kernel]]) for axis in range(3)))
    return [at.gap, torch.sqrt(on_first.dot(on_first)), _slides(at, LawConstants.of(*constants))]


def _slides(at: Geometry, constants: LawConstants) -> Tensor:
    """Return 1 for pairs that slide faster than the slip velocity of their friction, 0 for others."""
    if constants.friction is None:
        return torch.zeros_like(at.gap)
    along = at.velocity - at.normal.times(at.velocity.dot(at.normal))
    slides = torch.sqrt(along.dot(along)) > constants.friction.slip_velocity
    return torch.where(slides, torch.ones_like(at.gap), torch.zeros_like(at.gap))


def _summary_of_nodes(
    kernel: Kernel, law: LawFormulas, x: Tensor, moving: Tensor, reach: Tensor, *further: Tensor
) -> list:
    """Return the three numbers of `_summary`, then the forces on the nodes, from the arguments of `_of_nodes`."""
    at, constants = _of_nodes(kernel, law, x, moving, reach, further)
    return [*_summary_at(kernel, law, at, constants), *_force_at(law, at, constants)]


def _derivatives(
    law: LawFormulas,
    geometry: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    *further: Tensor,
    primal_dual: bool = False,
) -> list:
    """Return the forces on the nodes, then matrix, left and right of `PairBlocks`, by components.

    Parameters
    ----------
    further : the law's constants; before them an estimated traction (3, A) if the derivatives are to be those of
        `primal_dual` steps.
    """
    at = Geometry.of(geometry.unbind(0))
    return _derivatives_at(law, at, moving, position_gain, velocity_gain, *_traction_and_rest(further, primal_dual))


def _blocks_of_nodes(
    kernel: Kernel,
    law: LawFormulas,
    x: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    reach: Tensor,
    *further: Tensor,
    primal_dual: bool = False,
) -> list:
    """Return the rows of `_derivatives`, then the weights.

    Other arguments are those of `_of_nodes`, but that `further` begins with a traction as in `_derivatives`.
    """
    traction, rest = _traction_and_rest(further, primal_dual)
    at, constants = _of_nodes(kernel, law, x, moving, reach, rest)
    return [*_derivatives_at(law, at, moving, position_gain, velocity_gain, traction, constants), *at.weights]


def _traction_and_rest(further: Sequence[Tensor], primal_dual: bool) -> tuple[Vec3 | None, Sequence[Tensor]]:
    return (Vec3(*further[0].unbind(0)), further[1:]) if primal_dual else (None, further)


def _derivatives_at(
    law: LawFormulas,
    at: Geometry,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    traction: Vec3 | None,
    constants: Sequence[Tensor],
) -> list:
    partials = law.partials(at.gap, at.normal, at.velocity, LawConstants.of(*constants), traction).times(at.share)
    force, by_gap, by_normal, by_velocity = partials
    # the normal turns by (1 - n n^T) / D dr, the gap changes by n dr
    across = by_normal - Mat3.outer(by_normal.applied(at.normal), at.normal)
    matrix = (across.times(1 / at.distance) + Mat3.outer(by_gap, at.normal)).times(-position_gain)
    # derivative of the force by each parameter s: it turns the normal, and leaves the distance, which is stationary
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
    """Return a vector times each node's weight, as three components for each node."""
    return [component * weight for weight in weights for component in vector.components()]


def _sums(first: list, second: list) -> list:
    return [a + b for a, b in zip(first, second, strict=True)]


def vectors(coordinates: Tensor) -> tuple[Vec3, ...]:
    """Return n vectors from their components (3 n, C)."""
    x = coordinates.unbind(0)
    return tuple(Vec3(*x[k : k + 3]) for k in range(0, len(x), 3))


def contact_of(
    kernel: Kernel, follow: bool, with_stiffness: bool, x: Tensor, reach: Tensor, *kernel_arguments: Tensor
) -> list:
    """Return gap, normal (3) and weights (4) of pairs with four nodes, at coordinates (12, C).

    With `follow` autograd can differentiate how the closest points move. With stiffness (12 x 12) the derivatives of
    w_i n by the nodes' coordinates come last, the Hessian of the distance, row by row.
    """
    at = Geometry.of(_geometry(kernel, follow, x, x, reach, *kernel_arguments))
    rows = [at.gap, *at.normal.components(), *at.weights]
    return [*rows, *_hessian_of_distance(at)] if with_stiffness else rows


def _hessian_of_distance(at: Geometry) -> list:
    """Return the second derivatives (12 x 12) of the distance by the nodes' coordinates; see `geometry.distances`."""
    g11, g12, g22 = inverse_gram(*at.along, at.stiffening)
    n, r = at.normal.components(), at.normal.times(at.distance)
    across = [[(1.0 if i == j else 0.0) - n[i] * n[j] for j in range(3)] for i in range(3)]
    first, second = (
        _sums(_on_nodes(slide, r), _on_nodes(at.weights, way)) for slide, way in zip(at.slides, at.along, strict=True)
    )
    size, inverse = range(len(first)), 1 / at.distance

    def entry(i: int, j: int) -> Tensor:
        turned = at.weights[i // 3] * at.weights[j // 3] * across[i % 3][j % 3]
        along_first, along_second = g11 * first[j] + g12 * second[j], g12 * first[j] + g22 * second[j]
        return (turned - first[i] * along_first - second[i] * along_second) * inverse

    upper = {(i, j): entry(i, j) for i in size for j in size if i <= j}
    return [upper[min(i, j), max(i, j)] for i in size for j in size]


STRAIGHT = (closest_segments, closest_on_triangle)  # the kernels of pairs with four nodes
_DISTANCES = {kernel: Fused(partial(_distance, kernel), "distances of pairs") for kernel in STRAIGHT}
# by kernel, and whether with stiffness
CONTACTS = {
    (kernel, with_stiffness): Fused(partial(contact_of, kernel, False, with_stiffness), "contacts of pairs")
    for kernel in STRAIGHT
    for with_stiffness in (False, True)
}

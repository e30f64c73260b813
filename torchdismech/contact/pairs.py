"""Pairs of primitives that may touch in a step, and the forces between those that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw, LawConstants
from torchdismech.fused import Fused, is_own
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import Closest, closest_on_triangle, closest_segments, combined, inverse_gram
from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = [
    "FIRST",
    "Kernel",
    "PairBlocks",
    "PairLoops",
    "PairTable",
    "Touching",
    "distances",
    "numbers_at",
    "touching",
    "vectors",
]

FIXED = 17  # rows of a `Geometry` before the weights of the nodes
SMALLEST = 1e-37  # m^2, of squared distances, so that normals are finite
Kernel = Callable[..., Closest]  # of the nodes, then what else a pair has: see `PairTable.more`
# which of a pair's nodes are those of the first primitive
FIRST: dict[Kernel, list[int]] = {closest_segments: [0, 1], closest_on_triangle: [0], closest_crossing: [0, 1, 4, 5]}


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of one kind that may touch within a step, P places a robot.

    Attributes
    ----------
    kernel : finds closest points of the kind.
    nodes : (B, P, n) the nodes of each pair in the order of the kernel, 4 or 8; 0 in empty places.
    reach : (B, P) the sum of the two radii [m].
    filled : (B, P) bool, which places hold a pair.
    rounding : of edges, in parts of the reach; see `geometry.distances`.
    contact : number of the contact that rules them, among those of the robot's parts.
    goes_on : (B, P, 4) where smooth lines go on, see `geometry.crossing`; None of other kinds.
    """

    kernel: Kernel
    nodes: Tensor
    reach: Tensor
    filled: Tensor
    rounding: float = 0.0
    contact: int = 0
    goes_on: Tensor | None = None
    _flat: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def capacity(self) -> int:
        """Places a robot, P."""
        return self.filled.shape[1]

    def __len__(self) -> int:
        return len(self.places[0])

    def rows(self, index: Tensor) -> PairTable:
        """Return the table of the robots that `index` selects."""
        selected = (self.nodes[index], self.reach[index], self.filled[index])
        goes_on = None if self.goes_on is None else self.goes_on[index]
        return PairTable(self.kernel, *selected, self.rounding, self.contact, goes_on)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Robot and place (C,) of each pair."""
        robot, place = self.filled.nonzero(as_tuple=True)
        return robot, place

    @cached_property
    def listed_nodes(self) -> Tensor:
        """The nodes (C, n) of each pair."""
        return self.nodes[self.places]

    @cached_property
    def dofs(self) -> Tensor:
        """Coordinates (3 n, C) of the nodes of each pair, as numbers in q of one robot."""
        nodes = self.listed_nodes.t()
        return (3 * nodes.unsqueeze(1) + torch.arange(3, device=nodes.device)[:, None]).flatten(0, 1)

    @cached_property
    def reaches(self) -> Tensor:
        """Sum of the radii (C,) of each pair [m]."""
        return self.reach[self.places]

    @cached_property
    def more(self) -> list[Tensor]:
        """What the kernel takes after the nodes (C,): c^2 [m^2] if edges are rounded, where smooth lines go on."""
        if self.goes_on is not None:
            return list(self.goes_on[self.places].t().contiguous())
        return [(self.rounding * self.reaches) ** 2] if self.rounding else []

    def closest(self, nodes: tuple[Vec3, ...]) -> Closest:
        """Return the closest points of all pairs whose nodes are where given."""
        return self.kernel(*nodes, *self.more)

    def gathered(self, vector: Tensor) -> Tensor:
        """Return the nodes' coordinates (3 n, C) in q, or velocities, of all robots."""
        return numbers_at(self.places_in(vector.shape[1]), vector)

    def places_in(self, size: int) -> Tensor:
        """Return where the coordinates (3 n, C) stand in vectors (B, size) of all robots, one after the other."""
        if size not in self._flat:
            self._flat[size] = self.places[0] * size + self.dofs
        return self._flat[size]


def numbers_at(places: Tensor, vector: Tensor) -> Tensor:
    """Return the numbers of a vector (B, n) at some places in all of it."""
    return vector.reshape(-1).index_select(0, places.view(-1)).view(places.shape)  # three times as fast as [places]


class PairLoops:
    """What is found for each pair of a kind, as loops over pairs where they can be compiled.

    Parameters
    ----------
    kernel : of the kind.
    law : between two surfaces.
    """

    def __init__(self, kernel: Kernel, law: ContactLaw):
        own = is_own(law.response)
        self.gap = Fused(partial(_gap, kernel), "gaps of pairs")
        self.geometry = Fused(partial(_geometry, kernel, False), "closest points")
        self.followed = partial(_geometry, kernel, True)
        self.force = Fused(partial(_force, law), "forces of pairs", own)
        self.derivatives = Fused(partial(_derivatives, law), "forces of pairs", own)
        # the same from where the nodes are, for compiled code that calls them for some pairs at a time
        self.on_nodes = Fused(partial(_force_on_nodes, kernel, law), "forces of pairs", own)
        self.blocks = Fused(partial(_blocks_of_nodes, kernel, law), "forces of pairs", own)


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
        return cls(c[0], normal, velocity, c[7], c[8], (first, second), c[15:FIXED], weights, (slides[0], slides[1]))

    def rows(self) -> list:
        """Return its components, one after the other."""
        normal, velocity, first, second = (v.components() for v in (self.normal, self.velocity, *self.along))
        moving = [self.gap, *normal, *velocity, self.distance, self.share, *first, *second]
        return [*moving, *self.stiffening, *self.weights, *self.slides[0], *self.slides[1]]


@dataclass(frozen=True)
class Touching:
    """The A pairs of a table whose gap is below the tolerance at some q, and how they lie.

    Attributes
    ----------
    table : of the pairs.
    chosen : (A,) their places in the list of the table's pairs.
    places : (3 n, A) of their nodes' coordinates in vectors of all robots.
    geometry : (17 + 3 n, A) the rows of `Geometry`.
    nodal_velocity : (3 n, A) [m/s].
    constants : of the law, each () or (A,).
    loops : find forces.
    """

    table: PairTable
    chosen: Tensor
    places: Tensor
    geometry: Tensor
    nodal_velocity: Tensor
    constants: LawConstants
    loops: PairLoops

    @property
    def gap(self) -> Tensor:
        """The gaps (A,) [m]."""
        return self.geometry[0]

    @property
    def share(self) -> Tensor:
        """How far (A,) the closest points are the pair's own, 0 to 1."""
        return self.geometry[8]

    @property
    def robot(self) -> Tensor:
        """Number (A,) of the robot that each pair belongs to."""
        return self.table.places[0][self.chosen]

    def sliding(self) -> Tensor:
        """Return how fast (A,) the surfaces slide along each other [m/s]."""
        normal, velocity = self.geometry[1:4], self.geometry[4:7]
        return torch.linalg.vector_norm(velocity - (velocity * normal).sum(0) * normal, dim=0)

    def force(self) -> Tensor:
        """Return the forces (3 n, A) on the nodes of each pair [N]."""
        return self.loops.force.of_columns(self.geometry, *self.constants.given())

    def force_and_blocks(self, position_gain: float, velocity_gain: float | Tensor) -> tuple[Tensor, PairBlocks]:
        """Return `force` and -position_gain dF/dx - velocity_gain dF/du of it."""
        like = self.geometry
        gains = (torch.as_tensor(gain, dtype=like.dtype, device=like.device) for gain in (position_gain, velocity_gain))
        found = self.loops.derivatives.of_columns(like, self.nodal_velocity, *gains, *self.constants.given())
        n = (len(like) - FIXED) // 3
        force, matrix, left, right = found.split([3 * n, 9, 6 * n, 6 * n])
        left, right = left.view(2, n, 3, -1), right.view(2, n, 3, -1)
        return force, PairBlocks(like[FIXED : FIXED + n], matrix.view(3, 3, -1), left, right)


@dataclass(frozen=True)
class PairBlocks:
    """Derivatives of the nodal forces of A pairs by the nodes' coordinates: w_i w_j M_ab + sum_k l_k,ia r_k,jb.

    Attributes
    ----------
    weights : (n, A) w.
    matrix : (3, 3, A) M.
    left, right : (2, n, 3, A) l and r.
    """

    weights: Tensor
    matrix: Tensor
    left: Tensor
    right: Tensor

    def entries(self, part: slice) -> Tensor:
        """Return the entries (9 n^2, ..) of some of the pairs, in the order (a, b, i, j)."""
        weights = self.weights[:, part]
        left, right = (x[..., part].transpose(1, 2) for x in (self.left, self.right))  # (2, 3, n, ..)
        total = self.matrix[:, :, None, None, part] * (weights.unsqueeze(1) * weights)
        for k in range(2):
            total.addcmul_(left[k, :, None, :, None], right[k, None, :, None, :])
        return total.flatten(0, 3)


def touching(
    loops: PairLoops,
    table: PairTable,
    q: Tensor,
    velocity: Tensor,
    constants: LawConstants,
    chosen: Tensor | None = None,
) -> Touching:
    """Return the pairs of a table that touch at q (B, n).

    Parameters
    ----------
    loops : of the table's kernel.
    velocity : (B, n) [m/s].
    constants : of the law, each () or (B, 1).
    chosen : (A,) where they stand in the list of the table's pairs, if that is known.
    """
    robot = table.places[0]
    if chosen is None:
        with torch.no_grad():
            gap = loops.gap.of_columns(table.gathered(q), table.reaches, *table.more)[0]
            chosen = (gap < constants.at(robot).tolerance).nonzero().squeeze(1)
    places = table.places_in(q.shape[1]).index_select(1, chosen)
    moving = numbers_at(places, velocity)
    of_pairs = (of_all.index_select(0, chosen) for of_all in (table.reaches, *table.more))
    given = (numbers_at(places, q), moving, *of_pairs)
    # autograd has to follow the closest points, too
    geometry = torch.stack(loops.followed(*given)) if torch.is_grad_enabled() else loops.geometry.of_columns(*given)
    return Touching(table, chosen, places, geometry, moving, constants.at(robot[chosen]), loops)


def distances(kernel: Kernel, coordinates: Tensor) -> Tensor:
    """Return the distances (C,) of pairs of four nodes with these coordinates (12, C), edges not rounded [m]."""
    return _DISTANCES[kernel].of_columns(coordinates)[0]


# ---- what is found for each pair, by components ------------------------------------------------------------------


def _distance(kernel: Kernel, x: Tensor) -> list:
    nodes = vectors(x)
    return [torch.sqrt(kernel(*nodes).squared_distance(nodes))]


def _gap(kernel: Kernel, x: Tensor, reach: Tensor, *more: Tensor) -> list:
    """Return the gap; infinite where the closest points are another pair's."""
    nodes = vectors(x)
    closest = kernel(*nodes, *more)
    gap = torch.sqrt(closest.squared_distance(nodes)) - reach
    if closest.share is None:
        return [gap]
    return [torch.where(closest.share > 0, gap, torch.full_like(gap, torch.inf))]


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


def _force(law: ContactLaw, geometry: Tensor, *given: Tensor) -> list:
    """Return the forces on the nodes, by components."""
    return _force_at(law, Geometry.of(geometry.unbind(0)), given)


def _force_at(law: ContactLaw, at: Geometry, given: Sequence[Tensor]) -> list:
    force = law.force(at.gap, at.normal, at.velocity, LawConstants.of(*given))
    return _on_nodes(at.weights, force.times(at.share))


def _force_on_nodes(kernel: Kernel, law: ContactLaw, x: Tensor, moving: Tensor, reach: Tensor, *given: Tensor) -> list:
    """Return `_force` from coordinates and velocities (3 n, A).

    Given are the law's constants, then `PairTable.more`.
    """
    count = len(law.constants.given())
    at = Geometry.of(_geometry(kernel, False, x, moving, reach, *given[count:]))
    return _force_at(law, at, given[:count])


def _derivatives(
    law: ContactLaw, geometry: Tensor, moving: Tensor, position_gain: Tensor, velocity_gain: Tensor, *given: Tensor
) -> list:
    """Return the forces on the nodes, and matrix, left and right of `PairBlocks`, by components."""
    at = Geometry.of(geometry.unbind(0))
    return _derivatives_at(law, at, moving, position_gain, velocity_gain, given)


def _blocks_of_nodes(
    kernel: Kernel,
    law: ContactLaw,
    x: Tensor,
    moving: Tensor,
    position_gain: Tensor,
    velocity_gain: Tensor,
    reach: Tensor,
    *given: Tensor,
) -> list:
    """Return what `_derivatives` does, then the weights; `x` and what follows as for `_force_on_nodes`."""
    count = len(law.constants.given())
    at = Geometry.of(_geometry(kernel, False, x, moving, reach, *given[count:]))
    return [*_derivatives_at(law, at, moving, position_gain, velocity_gain, given[:count]), *at.weights]


def _derivatives_at(
    law: ContactLaw, at: Geometry, moving: Tensor, position_gain: Tensor, velocity_gain: Tensor, given: Sequence[Tensor]
) -> list:
    partials = law.partials(at.gap, at.normal, at.velocity, LawConstants.of(*given)).times(at.share)
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


_DISTANCES = {
    kernel: Fused(partial(_distance, kernel), "distances of pairs")
    for kernel in (closest_segments, closest_on_triangle)
}

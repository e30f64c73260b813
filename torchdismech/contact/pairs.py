"""Pairs of primitives that may touch in a step, and the forces between those that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw, LawConstants
from torchdismech.fused import Fused, is_own
from torchdismech.geometry.distances import Closest, closest_on_triangle, closest_segments, combined, inverse_gram
from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = ["FIRST", "Kernel", "PairBlocks", "PairLoops", "PairTable", "Touching", "distances", "touching", "vectors"]

SMALLEST = 1e-37  # m^2, of squared distances, so that normals are finite
Kernel = Callable[..., Closest]  # of four nodes, for edges then the c^2 that rounds them
FIRST: dict[Kernel, int] = {closest_segments: 2, closest_on_triangle: 1}  # how many nodes are the first primitive's


@dataclass(frozen=True, eq=False)
class PairTable:
    """Pairs of one kind that may touch within a step, P places a robot.

    Attributes
    ----------
    kernel : finds closest points of the kind.
    nodes : (B, P, 4) the nodes of each pair in the order of the kernel; 0 in empty places.
    reach : (B, P) the sum of the two radii [m].
    filled : (B, P) bool, which places hold a pair.
    rounding : of edges, in parts of the reach; see `geometry.distances`.
    contact : number of the contact that rules them, among those of the robot's parts.
    """

    kernel: Kernel
    nodes: Tensor
    reach: Tensor
    filled: Tensor
    rounding: float = 0.0
    contact: int = 0
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
        return PairTable(self.kernel, *selected, self.rounding, self.contact)

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

    @cached_property
    def leans(self) -> list[Tensor]:
        """c^2 of each pair (C,) [m^2], if edges are rounded: what the kernel takes after the nodes."""
        return [(self.rounding * self.reaches) ** 2] if self.rounding else []

    def closest(self, nodes: tuple[Vec3, ...]) -> Closest:
        """Return the closest points of all pairs whose nodes are where given."""
        return self.kernel(*nodes, *self.leans)

    def gathered(self, vector: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the coordinates (12, C) of q, or of velocities, (B, n); of the chosen pairs if given."""
        places = self._places_in(vector.shape[1])
        places = places if chosen is None else places.index_select(1, chosen)
        return vector.reshape(-1).index_select(0, places.view(-1)).view(places.shape)  # three times as fast as [places]

    def _places_in(self, size: int) -> Tensor:
        """Return where the coordinates (12, C) stand in vectors (B, size) of all robots, one after the other."""
        if size not in self._flat:
            self._flat[size] = self.places[0] * size + self.dofs
        return self._flat[size]


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


@dataclass(frozen=True)
class Geometry:
    """How pairs lie, in components (A,).

    Attributes
    ----------
    weights : four of the nodes; r = sum_i w_i x_i leads from the second primitive to the first.
    slides : how the four weights change as the closest points move, two ways; see `geometry.distances`.
    along : dr/ds of both slides [m].
    stiffening : what rounding adds to their scalar products [m^2].
    gap : [m].
    normal, velocity : r over the distance; velocity of the first closest point against the second [m/s].
    distance : |r|, or D of rounded edges [m].
    """

    weights: tuple
    slides: tuple[tuple, tuple]
    along: tuple[Vec3, Vec3]
    stiffening: tuple
    gap: Tensor
    normal: Vec3
    velocity: Vec3
    distance: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Geometry:
        """Return it of its 28 components, one after the other."""
        c = tuple(rows.unbind(0))
        along = Vec3(*c[12:15]), Vec3(*c[15:18])
        return cls(c[:4], (c[4:8], c[8:12]), along, c[18:20], c[20], Vec3(*c[21:24]), Vec3(*c[24:27]), c[27])

    def rows(self) -> list:
        """Return its 28 components, one after the other."""
        along = [*self.along[0].components(), *self.along[1].components()]
        moving = [*self.normal.components(), *self.velocity.components()]
        return [
            *self.weights,
            *self.slides[0],
            *self.slides[1],
            *along,
            *self.stiffening,
            self.gap,
            *moving,
            self.distance,
        ]


@dataclass(frozen=True)
class Touching:
    """The A pairs of a table whose gap is below the tolerance at some q, and how they lie.

    Attributes
    ----------
    table : of the pairs.
    chosen : (A,) their places in the list of the table's pairs.
    geometry : (28, A) the rows of `Geometry`.
    nodal_velocity : (12, A) [m/s].
    constants : of the law, each () or (A,).
    loops : find forces.
    """

    table: PairTable
    chosen: Tensor
    geometry: Tensor
    nodal_velocity: Tensor
    constants: LawConstants
    loops: PairLoops

    @property
    def gap(self) -> Tensor:
        """The gaps (A,) [m]."""
        return self.geometry[20]

    @property
    def robot(self) -> Tensor:
        """Number (A,) of the robot that each pair belongs to."""
        return self.table.places[0][self.chosen]

    def sliding(self) -> Tensor:
        """Return how fast (A,) the surfaces slide along each other [m/s]."""
        normal, velocity = self.geometry[21:24], self.geometry[24:27]
        return torch.linalg.vector_norm(velocity - (velocity * normal).sum(0) * normal, dim=0)

    def force(self) -> Tensor:
        """Return the forces (12, A) on the nodes of each pair [N]."""
        return self.loops.force.of_columns(self.geometry, *self.constants.given())

    def force_and_blocks(self, position_gain: float, velocity_gain: float | Tensor) -> tuple[Tensor, PairBlocks]:
        """Return `force` and -position_gain dF/dx - velocity_gain dF/du of it."""
        like = self.geometry
        gains = (torch.as_tensor(gain, dtype=like.dtype, device=like.device) for gain in (position_gain, velocity_gain))
        found = self.loops.derivatives.of_columns(like, self.nodal_velocity, *gains, *self.constants.given())
        force, matrix, left, right = found.split([12, 9, 24, 24])
        blocks = PairBlocks(like[:4], matrix.view(3, 3, -1), left.view(2, 4, 3, -1), right.view(2, 4, 3, -1))
        return force, blocks


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


def touching(loops: PairLoops, table: PairTable, q: Tensor, velocity: Tensor, constants: LawConstants) -> Touching:
    """Return the pairs of a table that touch at q (B, n).

    Parameters
    ----------
    loops : of the table's kernel.
    velocity : (B, n) [m/s].
    constants : of the law, each () or (B, 1).
    """
    x = table.gathered(q)
    robot = table.places[0]
    with torch.no_grad():
        gap = loops.gap.of_columns(x, table.reaches, *table.leans)[0]
        chosen = (gap < constants.at(robot).tolerance).nonzero().squeeze(1)
    moving = table.gathered(velocity, chosen)
    given = (x[:, chosen], moving, table.reaches[chosen], *(lean[chosen] for lean in table.leans))
    # autograd has to follow the closest points, too
    geometry = torch.stack(loops.followed(*given)) if torch.is_grad_enabled() else loops.geometry.of_columns(*given)
    return Touching(table, chosen, geometry, moving, constants.at(robot[chosen]), loops)


def distances(kernel: Kernel, coordinates: Tensor) -> Tensor:
    """Return the distances (C,) of pairs with these coordinates (12, C), edges not rounded [m]."""
    return _DISTANCES[kernel].of_columns(coordinates)[0]


# ---- what is found for each pair, by components ------------------------------------------------------------------


def _distance(kernel: Kernel, x: Tensor, *lean: Tensor) -> list:
    nodes = vectors(x)
    return [torch.sqrt(kernel(*nodes, *lean).squared_distance(nodes))]


def _gap(kernel: Kernel, x: Tensor, reach: Tensor, *lean: Tensor) -> list:
    return [_distance(kernel, x, *lean)[0] - reach]


def _geometry(kernel: Kernel, follow: bool, x: Tensor, moving: Tensor, reach: Tensor, *lean: Tensor) -> list:
    """Return the rows of `Geometry` for coordinates and velocities (12, A); autograd can `follow` closest points."""
    nodes = vectors(x)
    closest = kernel(*nodes, *lean)
    if follow:
        closest = closest.differentiable(nodes)
    squared = closest.squared_distance(nodes)
    distance = torch.sqrt(torch.maximum(squared, torch.full_like(squared, SMALLEST)))
    normal = closest.difference(nodes).times(1 / distance)
    velocity = combined(closest.weights, vectors(moving))
    along, more = closest.slid(nodes), closest.stiffening()
    stiffening = tuple(by + torch.zeros_like(distance) for by in more)
    gap = distance - reach
    return Geometry(closest.weights, closest.slides, along, stiffening, gap, normal, velocity, distance).rows()


def _force(law: ContactLaw, geometry: Tensor, *given: Tensor) -> list:
    """Return the forces on the nodes, by components."""
    at = Geometry.of(geometry)
    return _on_nodes(at.weights, law.force(at.gap, at.normal, at.velocity, LawConstants.of(*given)))


def _derivatives(
    law: ContactLaw, geometry: Tensor, moving: Tensor, position_gain: Tensor, velocity_gain: Tensor, *given: Tensor
) -> list:
    """Return the forces on the nodes, and matrix, left and right of `PairBlocks`, by components."""
    at = Geometry.of(geometry)
    force, by_gap, by_normal, by_velocity = law.partials(at.gap, at.normal, at.velocity, LawConstants.of(*given))
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
    """Return a vector on four nodes by their weights, twelve components."""
    return [component * weight for weight in weights for component in vector.components()]


def _sums(first: list, second: list) -> list:
    return [a + b for a, b in zip(first, second, strict=True)]


def vectors(coordinates: Tensor) -> tuple[Vec3, Vec3, Vec3, Vec3]:
    """Return four nodes of their coordinates (12, C)."""
    x = coordinates.unbind(0)
    return Vec3(*x[:3]), Vec3(*x[3:6]), Vec3(*x[6:9]), Vec3(*x[9:])


_DISTANCES = {
    kernel: Fused(partial(_distance, kernel), "distances of pairs")
    for kernel in (closest_segments, closest_on_triangle)
}

"""Points, edges and triangles of a robot, and the pairs of them that may touch: by boxes, then by distances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.pairs.broad_phase import overlapping
from torchdismech.contact.pairs.neighbours import Neighbours
from torchdismech.contact.pairs.pair_calls import pair_values
from torchdismech.contact.pairs.pair_loops import FIRST, STRAIGHT, Kernel, vectors
from torchdismech.contact.pairs.pairs import Listed
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3

__all__ = [
    "BoxPairs",
    "NearPairs",
    "Primitives",
    "box_pairs",
    "moving",
    "near_pairs",
    "spare_distance",
    "spare_distances",
]


class Primitives(nn.Module):
    """The points, edges or triangles of a robot to which a contact applies, with the radii of their surfaces.

    Parameters
    ----------
    nodes : (L, k) of all points, edges or triangles of the robot.
    radius : (L,), (1, L) or (B, L) of these [m].
    kind : (L,) their kinds (see `scopes.RuledPairs`).
    chosen : (M,) numbers of those to which the contact applies.
    """

    per_robot = ("radius",)
    nodes: Tensor
    corners: Tensor
    radius: Tensor
    kind: Tensor

    def __init__(self, nodes: np.ndarray, radius: Tensor, kind: np.ndarray, chosen: np.ndarray):
        super().__init__()
        self.register_buffer("nodes", torch.as_tensor(nodes[chosen], device="cpu"), persistent=False)  # (M, k)
        # (k M,) the first node of each primitive, then the second of each
        self.register_buffer("corners", self.nodes.t().flatten(), persistent=False)
        self.register_buffer("radius", radius[..., chosen], persistent=False)  # (M,), (1, M) or (B, M)
        self.register_buffer("kind", torch.as_tensor(kind[chosen], device="cpu"), persistent=False)  # (M,)

    def boxes(self, low: Tensor, high: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
        """Return low and high corners (B, M, 3) of boxes around the surfaces while nodes stay in boxes (B, N, 3) [m].

        Parameters
        ----------
        low, high : (B, N, 3) corners of the nodes' boxes.
        margin : (), (B, 1) or (B, M), by how much the boxes are grown beyond the radii on each side.
        """
        grown = (self.radius + margin).unsqueeze(-1)
        return self._of_corners(torch.minimum, low) - grown, self._of_corners(torch.maximum, high) + grown

    def _of_corners(self, function: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the minimum or maximum (B, M, 3) over each primitive's nodes of x (B, N, 3), by `function`."""
        count, corners = self.nodes.shape
        return reduce(function, x.index_select(1, self.corners).unflatten(1, (corners, count)).unbind(1))

    def radii(self, robot: Tensor, index: Tensor) -> Tensor:
        """Return the radii (K,) of the primitives with numbers `index` (K,) of the robots (K,)."""
        if self.radius.dim() == 1:
            return self.radius.index_select(0, index)
        return self.radius[robot % len(self.radius), index]


class BoxPairs(NamedTuple):
    """K pairs of primitives whose boxes overlap, sorted by robot.

    Attributes
    ----------
    robot : (K,) number of the robot.
    first, second : (K,) numbers of the primitives in their sets.
    reach : (K,) the sum of the two radii [m].
    """

    robot: Tensor
    first: Tensor
    second: Tensor
    reach: Tensor


class NearPairs(NamedTuple):
    """K pairs that may touch in a step.

    Attributes
    ----------
    listed : robots and nodes.
    reach : (K,) the sum of the two radii [m].
    continues : (4, K) whether smooth lines continue beyond their edges' ends, see `PairTable`; None for other pairs.
    """

    listed: Listed
    reach: Tensor
    continues: Tensor | None = None

    def chosen(self, which: Tensor) -> NearPairs:
        """Return the pairs for which `which` (K,) is True."""
        numbers = which.nonzero().squeeze(1)  # once, as indexing each tensor by `which` takes several times as long
        robot, nodes, reach = (of.index_select(0, numbers) for of in (*self.listed, self.reach))
        continues = None if self.continues is None else self.continues.index_select(1, numbers)
        return NearPairs(Listed(robot, nodes), reach, continues)


def box_pairs(
    first: Primitives,
    second: Primitives,
    low: Tensor,
    high: Tensor,
    margins: tuple[Tensor, Tensor],
    excluded: Neighbours,
    kind_pairs: Tensor,
) -> BoxPairs:
    """Return the pairs of primitives whose boxes overlap while the nodes stay in boxes (B, N, 3).

    Parameters
    ----------
    first, second : the two sets; pairs are within the set if both are the same object.
    low, high : (B, N, 3) corners of the nodes' boxes [m].
    margins : by how much the boxes of the first and of the second set are grown beyond the radii [m].
    excluded : pairs that never touch.
    kind_pairs : (U, U) bool, which pairs of kinds the contact rules.
    """
    boxes = first.boxes(low, high, margins[0])
    others: tuple = (None, None) if second is first else second.boxes(low, high, margins[1])
    robot, i, j = overlapping(*boxes, others[0], others[1], excluded.keys)
    if (apart := excluded.may_touch(robot, i * len(second.nodes) + j)) is not None:
        robot, i, j = (of[apart] for of in (robot, i, j))
    if len(kind_pairs) > 1:
        kept = kind_pairs[first.kind[i], second.kind[j]].nonzero().squeeze(1)
        robot, i, j = (of.index_select(0, kept) for of in (robot, i, j))
    return BoxPairs(robot, i, j, first.radii(robot, i) + second.radii(robot, j))


def near_pairs(
    kernel: Kernel, nodes: Tensor, overlapping_pairs: BoxPairs, low: Tensor, high: Tensor, limit: Tensor
) -> NearPairs:
    """Return the pairs whose distance can get down to a `limit` (K,) while the nodes stay in boxes.

    Most pairs of overlapping boxes cannot, as boxes around long oblique edges are mostly empty.

    Parameters
    ----------
    nodes : (K, 4) of the pairs, two edges or a point and a triangle.
    overlapping_pairs : the pairs whose boxes overlap.
    low, high : (B, N, 3) corners of the nodes' boxes [m].
    """
    listed = Listed(overlapping_pairs.robot, nodes)
    return NearPairs(listed, overlapping_pairs.reach).chosen(spare_distances(kernel, listed, low, high, limit) <= 0)


def spare_distances(kernel: Kernel, listed: Listed, low: Tensor, high: Tensor, limit: Tensor) -> Tensor:
    """Return lower bounds (K,) of distance less `limit` (K,) for pairs while the nodes stay in boxes (B, N, 3) [m].

    They are exact where the nodes stay at one place.
    """
    return pair_values(_SPARE_DISTANCE[kernel], listed, low.flatten(1), high.flatten(1), [limit])[0]


def moving(low: Tensor, high: Tensor) -> tuple[tuple[Vec3, ...], list[Tensor]]:
    """Return the centres of the boxes of n nodes and half their diagonals (C,) [m], from their corners (3 n, C)."""
    ends = tuple(zip(vectors(low), vectors(high), strict=True))
    ways = [b - a for a, b in ends]
    return tuple((a + b).times(0.5) for a, b in ends), [0.5 * torch.sqrt(way.dot(way)) for way in ways]


def spare_distance(kernel: Kernel, middles: tuple[Vec3, ...], rooms: list[Tensor], limit: Tensor) -> Tensor:
    """Return a lower bound (C,) of distance less limit for pairs whose four nodes stay in balls.

    A distance changes by no more than the nodes move, so it is the distance at the balls' centres, less the largest
    radius on either side and the limit.

    Parameters
    ----------
    middles, rooms : centres and radii of the balls.
    """
    first = len(FIRST[kernel])
    distance = torch.sqrt(kernel(*middles).squared_distance(middles))
    return distance - reduce(torch.maximum, rooms[:first]) - reduce(torch.maximum, rooms[first:]) - limit


def _spare_distance(kernel: Kernel, low: Tensor, high: Tensor, limit: Tensor) -> list:
    return [spare_distance(kernel, *moving(low, high), limit)]


_SPARE_DISTANCE = {k: Fused(partial(_spare_distance, k), "distances of pairs") for k in STRAIGHT}

"""Whether bodies passed through each other in a step: seen from where they were and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.pair_calls import pair_values
from torchdismech.contact.pairs.pair_loops import FIRST, Kernel, distances, vectors
from torchdismech.contact.pairs.pairs import Pairs, numbers_at
from torchdismech.fused import Fused
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import closest_on_triangle, closest_segments
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.state import State

__all__ = ["NEARNESS", "obstacles_suspected", "pairs_passed", "passed_obstacle", "noticed_width"]

CORNERS = 12  # coordinates of a pair's edges, or point and triangle; those of smooth lines have more
TOUCH = 0.01  # of the sum of the radii: closer, and the middle surfaces count as having met
ADVANCES = 64  # a pair that gets along no faster than this counts as having met
DIP = 0.5  # a way that leads so much of an obstacle's depth deeper than both of its ends leads through it
GRAZE = 0.1  # the same, where both ends are farther outside than `DIP` of the depth: nothing slides round it there
STRIDE = 0.25  # of the depth: how far a point is followed at least between two looks
LOOKS = 10_000  # a point that goes farther than so many strides in a step counts as having passed


@torch.no_grad()
def pairs_passed(pairs: Pairs, start: Tensor, end: Tensor) -> Tensor:
    """Return the robots (B,) of which parts passed through each other, moving straight from `start` to `end` (B, n).

    A distance changes no faster than its points move against each other. So it can only have been zero on the way if
    that motion is at least as long as the sum of the distances at both ends; head-on it is exactly as long, so `TOUCH`
    keeps the comparison clear of rounding. Those pairs are followed by conservative advancement: in parts of the step
    so small that they cannot have met within one.
    """
    passed = torch.zeros(start.shape[0], dtype=torch.bool, device=start.device)
    for table in pairs.tables:
        if not len(table):
            continue
        kernel = _KERNELS[table.kernel]
        nearness = pair_values(NEARNESS[table.kernel], table.listed, start, end, [table.reaches])[0]
        suspect = (nearness >= 0).nonzero().squeeze(1)
        if not len(suspect):
            continue
        flat_dofs = table.flat_dofs(start.shape[1]).index_select(1, suspect)[:CORNERS]
        x0, x1 = numbers_at(flat_dofs, start), numbers_at(flat_dofs, end)
        motion = _relative_motion(kernel, vectors(x1 - x0))
        met = _met(kernel, x0, x1 - x0, motion, table.reaches[suspect])
        passed[table.robot[suspect][met]] = True
    return passed


def _nearness(kernel: Kernel, start: Tensor, end: Tensor, reach: Tensor) -> list[Tensor]:
    """Return by how much (C,) the motion of pairs exceeds what keeps them apart."""
    x0, x1 = vectors(start)[:4], vectors(end)[:4]
    ways = tuple(b - a for a, b in zip(x0, x1, strict=True))
    between = [torch.sqrt(kernel(*x).squared_distance(x)) for x in (x0, x1)]
    return [_relative_motion(kernel, ways) + 2 * TOUCH * reach - (between[0] + between[1])]


# what finds the distances of a table's corners: smooth lines pass where their edges do
_KERNELS: dict[Kernel, Kernel] = {
    closest_segments: closest_segments,
    closest_crossing: closest_segments,
    closest_on_triangle: closest_on_triangle,
}
NEARNESS = {kernel: Fused(partial(_nearness, corners), "pairs that pass") for kernel, corners in _KERNELS.items()}


def _met(kernel: Kernel, x: Tensor, way: Tensor, motion: Tensor, reach: Tensor) -> Tensor:
    """Return which pairs (A,) come within `TOUCH` of each other on the way from x (12, A)."""
    share = torch.zeros_like(motion)
    done = torch.zeros_like(motion, dtype=torch.bool)
    met = torch.zeros_like(done)
    for _ in range(ADVANCES):
        distance = distances(kernel, x + share * way)
        met = met | (~done & ~(distance > TOUCH * reach))  # also where it is NaN
        done = done | met
        share = share + torch.where(done, 0.0, distance / motion)
        done = done | (share >= 1)
        if bool(done.all()):
            return met
    return met | ~done


def _relative_motion(kernel: Kernel, ways: Sequence[Vec3]) -> Tensor:
    """Return a bound (C,) of how far points of two primitives move against each other, of the ways of four nodes."""
    mean = (ways[0] + ways[1] + ways[2] + ways[3]).times(0.25)
    lengths = [torch.sqrt((way - mean).dot(way - mean)) for way in ways]
    first = len(FIRST[kernel])
    return reduce(torch.maximum, lengths[:first]) + reduce(torch.maximum, lengths[first:])


@torch.no_grad()
def obstacles_suspected(obstacles: Sequence[Obstacle], before: State, after: State) -> Tensor:
    """Return the robots (B,) of which a point may have passed through an obstacle, or overlaps a barrier.

    Reads no number: where nothing is suspected there is nothing to look at.
    """
    found = torch.zeros_like(before.time, dtype=torch.bool)
    for obstacle in obstacles:
        if not obstacle.shape.endless:
            way = _Way.of(obstacle, before, after)
            found = found | (way.ahead | way.crosses).any(1)
        if obstacle.law.response.feasible_only:
            found = found | (obstacle.gap(after.q, after.time) <= 0).any(1)
    return found


@torch.no_grad()
def passed_obstacle(obstacle: Obstacle, before: State, after: State) -> Tensor:
    """Return the robots (B,) of which a point passed through the obstacle, moving straight.

    A point is followed as far as it cannot have got deep enough yet, and `STRIDE` at least: whatever leads through the
    middle is found, however far it goes, up to `LOOKS` strides.
    """
    if obstacle.shape.endless:
        return torch.zeros_like(before.time, dtype=torch.bool)
    way = _Way.of(obstacle, before, after)
    passed, ahead = _dived(obstacle, way)
    crosses = way.crosses
    if bool(crosses.any()):
        start, end = way.start[crosses], way.end[crosses]
        through_wall = obstacle.shape.passed(start, end, (way.distances[0][crosses], way.distances[1][crosses]))
        passed = passed.masked_scatter(crosses, passed[crosses] | through_wall)
    return (passed | ahead).any(1)


def _dived(obstacle: Obstacle, way: _Way) -> tuple[Tensor, Tensor]:
    """Return which points (B, P) got so deep on their way that they passed, and which nobody followed to the end."""
    passed = way.ahead & torch.isinf(way.length)  # nobody can follow a way that long
    ahead, share = way.ahead & ~passed, torch.zeros_like(way.length)
    stride = STRIDE * obstacle.shape.depth
    for _ in range(LOOKS):
        if not bool(ahead.any()):
            break
        gap = obstacle.clearance(obstacle.shape.distance(torch.lerp(way.start, way.end, share.unsqueeze(-1))))
        passed = passed | (ahead & (gap < way.through))
        share = share + torch.where(ahead, torch.maximum(gap - way.through, stride) / way.length, 0.0)
        ahead = ahead & ~passed & (share < 1)
    return passed, ahead


def noticed_width(obstacle: Obstacle, radius: float) -> float:
    """Return how far [m] points of a contact radius may be apart so that one at least is noticed as it passes through.

    Points that pass far beside the obstacle's middle get less deep than `GRAZE` asks for, so that is less than its
    width. Thin walls are looked at otherwise.
    """
    least = 0.0 if obstacle.shape.walled else 2 * GRAZE * float(obstacle.shape.depth.min())
    return float(obstacle.shape.width.min()) + 2 * radius - least


class _Way(NamedTuple):
    """How points of the robot moved past an obstacle.

    Attributes
    ----------
    start, end : (B, P, 3) of the points' ways.
    length : of these (B, P).
    through : gap (B, P) below which a point on its way counts as inside.
    ahead : (B, P) points that may have got there.
    crosses : (B, P) points that may have crossed the surface there and back, of a shape that has thin walls.
    distances : (B, P) of the points from the surface, at both ends.
    """

    start: Tensor
    end: Tensor
    length: Tensor
    through: Tensor
    ahead: Tensor
    crosses: Tensor
    distances: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, obstacle: Obstacle, before: State, after: State) -> _Way:
        """Return the ways of the points between two states, as the obstacle sees them."""
        (start, _), (end, _) = obstacle.relative(before), obstacle.relative(after)
        distances = obstacle.shape.distance(start), obstacle.shape.distance(end)
        d0, d1 = (obstacle.clearance(distance) for distance in distances)
        depth, length = obstacle.shape.depth, torch.linalg.vector_norm(end - start, dim=-1)
        ahead = length >= d0.clamp_min(0) + d1.clamp_min(0) + depth
        nearest = torch.minimum(d0, d1)
        through = nearest.clamp_max(0) - torch.where(nearest > DIP * depth, GRAZE, DIP) * depth
        if obstacle.shape.walled:
            far = (length >= distances[0].abs() + distances[1].abs()) & (length > 0) & (length < torch.inf)
            crosses = obstacle.touches & far
        else:
            crosses = torch.zeros_like(ahead)
        return cls(start, end, length, through, ahead, crosses, distances)

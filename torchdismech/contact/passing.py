"""Whether bodies passed through each other in a step, judged from the states before and after it."""

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

__all__ = ["CLEARANCE", "TOUCH", "obstacles_suspected", "pairs_passed", "passed_obstacle", "noticed_width"]

CORNERS = 12  # coordinates of the four nodes of two edges, or of a point and a triangle; smooth lines have more nodes
TOUCH = 0.01  # of the sum of the radii: centre lines or mid-surfaces that get closer count as having met
ADVANCES = 64  # rounds of conservative advancement: a pair that is not at the end of its motion by then counts as met
DIP = 0.5  # of an obstacle's depth: a path that gets so much deeper than both of its ends leads through the obstacle
GRAZE = 0.1  # the same for paths whose ends are both more than `DIP` outside: nothing slides round it from there
STRIDE = 0.25  # of the depth: the least distance by which a point is advanced between two evaluations of its gap
LOOKS = 10_000  # evaluations of the gap: a point that is still on its way then is taken for one that passed


@torch.no_grad()
def pairs_passed(pairs: Pairs, start: Tensor, end: Tensor) -> Tensor:
    """Return the robots (B,) bool whose parts passed through each other, moving straight from `start` to `end` (B, n).

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
        clearance = pair_values(CLEARANCE[table.kernel], table.listed, start, end, [TOUCH * table.reaches])[0]
        suspect = (clearance <= 0).nonzero().squeeze(1)
        if not len(suspect):
            continue
        flat_dofs = table.flat_dofs(start.shape[1]).index_select(1, suspect)[:CORNERS]
        x0, x1 = numbers_at(flat_dofs, start), numbers_at(flat_dofs, end)
        motion = _relative_motion(kernel, vectors(x1 - x0))
        met = _met(kernel, x0, x1 - x0, motion, table.reaches[suspect])
        passed[table.robot[suspect][met]] = True
    return passed


def _clearance(kernel: Kernel, start: Tensor, end: Tensor, near: Tensor) -> list[Tensor]:
    """Return the sum of the distances at start and end, less the relative motion and twice a distance `near`, (C,) [m].

    Pairs above 0 were farther from each other than `near` all the way.
    """
    x0, x1 = vectors(start)[:4], vectors(end)[:4]
    ways = tuple(b - a for a, b in zip(x0, x1, strict=True))
    between = [torch.sqrt(kernel(*x).squared_distance(x)) for x in (x0, x1)]
    return [between[0] + between[1] - _relative_motion(kernel, ways) - 2 * near]


# by kernel of a table, the kernel that gives the distances of its four nodes: smooth lines are judged by their edges
_KERNELS: dict[Kernel, Kernel] = {
    closest_segments: closest_segments,
    closest_crossing: closest_segments,
    closest_on_triangle: closest_on_triangle,
}
CLEARANCE = {kernel: Fused(partial(_clearance, corners), "clearance of pairs") for kernel, corners in _KERNELS.items()}


def _met(kernel: Kernel, x: Tensor, way: Tensor, motion: Tensor, reach: Tensor) -> Tensor:
    """Return which pairs (A,) come within `TOUCH` of their reach as their nodes move from x (12, A) by `way`.

    By conservative advancement: each round goes on by the fraction of the motion within which they cannot meet yet.
    """
    share = torch.zeros_like(motion)
    done = torch.zeros_like(motion, dtype=torch.bool)
    met = torch.zeros_like(done)
    for _ in range(ADVANCES):
        distance = distances(kernel, x + share * way)
        met = met | (~done & ~(distance > TOUCH * reach))  # a distance of NaN counts as met
        done = done | met
        share = share + torch.where(done, 0.0, distance / motion)
        done = done | (share >= 1)
        if bool(done.all()):
            return met
    return met | ~done


def _relative_motion(kernel: Kernel, ways: Sequence[Vec3]) -> Tensor:
    """Return an upper bound (C,) of how far points of two primitives move relative to each other [m].

    Parameters
    ----------
    ways : displacements of the pairs' four nodes.
    """
    mean = (ways[0] + ways[1] + ways[2] + ways[3]).times(0.25)
    lengths = [torch.sqrt((way - mean).dot(way - mean)) for way in ways]
    first = len(FIRST[kernel])
    return reduce(torch.maximum, lengths[:first]) + reduce(torch.maximum, lengths[first:])


@torch.no_grad()
def obstacles_suspected(obstacles: Sequence[Obstacle], before: State, after: State) -> Tensor:
    """Return the robots (B,) bool that may have passed through an obstacle, or that overlap one with a barrier.

    A cheap bound that reads no number on the host, so that recorded steps can hold it. Where it suspects none,
    `passed_obstacle` need not be asked.
    """
    suspected = torch.zeros_like(before.time, dtype=torch.bool)
    for obstacle in obstacles:
        if not obstacle.shape.endless:
            way = _Way.of(obstacle, before, after)
            suspected = suspected | (way.may_pass | way.may_cross).any(1)
        if obstacle.law.response.feasible_only:
            suspected = suspected | (obstacle.gap(after.q, after.time) <= 0).any(1)
    return suspected


@torch.no_grad()
def passed_obstacle(obstacle: Obstacle, before: State, after: State) -> Tensor:
    """Return the robots (B,) bool of which a point passed through the obstacle, moving straight between two states.

    Each point is followed along its path in advances so short that it cannot get deep enough within one, but of
    `STRIDE` at least. So every path through the obstacle's middle is found, however long, up to `LOOKS` advances.
    """
    if obstacle.shape.endless:
        return torch.zeros_like(before.time, dtype=torch.bool)
    way = _Way.of(obstacle, before, after)
    passed, unfinished = _followed(obstacle, way)
    may_cross = way.may_cross
    if bool(may_cross.any()):
        start, end = way.start[may_cross], way.end[may_cross]
        through_wall = obstacle.shape.passed(start, end, (way.distances[0][may_cross], way.distances[1][may_cross]))
        passed = passed.masked_scatter(may_cross, passed[may_cross] | through_wall)
    return (passed | unfinished).any(1)


def _followed(obstacle: Obstacle, way: _Way) -> tuple[Tensor, Tensor]:
    """Return the points (B, P) that got deep enough to have passed, and those that were not followed to the end."""
    passed = way.may_pass & torch.isinf(way.length)  # a path of infinite length cannot be followed
    unfinished, share = way.may_pass & ~passed, torch.zeros_like(way.length)
    stride = STRIDE * obstacle.shape.depth
    for _ in range(LOOKS):
        if not bool(unfinished.any()):
            break
        gap = obstacle.clearance(obstacle.shape.distance(torch.lerp(way.start, way.end, share.unsqueeze(-1))))
        passed = passed | (unfinished & (gap < way.passing_gap))
        share = share + torch.where(unfinished, torch.maximum(gap - way.passing_gap, stride) / way.length, 0.0)
        unfinished = unfinished & ~passed & (share < 1)
    return passed, unfinished


def noticed_width(obstacle: Obstacle, radius: Tensor) -> Tensor:
    """Return the largest spacings (S,) [m] of a robot's points at which this obstacle cannot pass between unnoticed.

    It is the obstacle's width plus two contact radii, less a margin: then at least one point passes through it, but one
    that passes far from its middle gets less deep than `GRAZE` asks for. Shapes with thin walls need no margin, as
    crossings are looked for there.

    Parameters
    ----------
    radius : (S,) contact radii of the points [m].
    """
    least = 0.0 if obstacle.shape.walled else 2 * GRAZE * float(obstacle.shape.depth.min())
    return float(obstacle.shape.width.min()) + 2 * radius - least


class _Way(NamedTuple):
    """The straight paths of a robot's points in the frame of an obstacle, and which of them may lead through it.

    Attributes
    ----------
    start, end : (B, P, 3) ends of the paths [m].
    length : (B, P) of the paths [m].
    passing_gap : (B, P) gap below which a path counts as leading through the obstacle [m].
    may_pass : (B, P) bool, paths long enough to lead through the obstacle at its depth.
    may_cross : (B, P) bool, paths at least as long as both ends' distances from the surface together, so that they may
        cross it; False for shapes without thin walls, and for points that pass through the obstacle.
    distances : (B, P) signed, of both ends from the surface [m], without contact radii.
    """

    start: Tensor
    end: Tensor
    length: Tensor
    passing_gap: Tensor
    may_pass: Tensor
    may_cross: Tensor
    distances: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, obstacle: Obstacle, before: State, after: State) -> _Way:
        """Return the paths of the points between two states."""
        (start, _), (end, _) = obstacle.relative(before), obstacle.relative(after)
        distances = obstacle.shape.distance(start), obstacle.shape.distance(end)
        d0, d1 = (obstacle.clearance(distance) for distance in distances)
        depth, length = obstacle.shape.depth, torch.linalg.vector_norm(end - start, dim=-1)
        may_pass = length >= d0.clamp_min(0) + d1.clamp_min(0) + depth
        nearest = torch.minimum(d0, d1)
        passing_gap = nearest.clamp_max(0) - torch.where(nearest > DIP * depth, GRAZE, DIP) * depth
        if obstacle.shape.walled:
            far = (length >= distances[0].abs() + distances[1].abs()) & (length > 0) & (length < torch.inf)
            may_cross = obstacle.touches & far
        else:
            may_cross = torch.zeros_like(may_pass)
        return cls(start, end, length, passing_gap, may_pass, may_cross, distances)

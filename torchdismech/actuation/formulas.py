"""Formulas of routes, each evaluated by one loop (`torchdismech.fused`): for framed edges, points, segments, columns.

By components and batch last: frames are (13, F, B) for F framed edges, see `_frames`; carried offsets (3, C, B) for C
*pairs* of a point and a framed edge that carries its offset, points (3, K, B), segments (.., M, B). What is constant
has 1 in place of B.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.forces.elements import vectors_at
from torchdismech.fused import Fused
from torchdismech.geometry.carried import CarriedVector
from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Vec3

__all__ = [
    "BENDS",
    "BENT",
    "CARRIED",
    "COLUMNS",
    "COLUMNS_WITH_RATES",
    "EXPECTED_SHARE",
    "FRAMES",
    "FRAME_BLOCKS",
    "MOTION",
    "PAIR_DERIVATIVES",
    "POINTS",
    "PULLS",
    "SEGMENTS",
    "SEGMENT_BLOCKS",
    "SLOPES",
]

STRAIGHT = 1e-2  # angle [rad] of smoothing: a bend of 0.1 counts less by half a per cent, one of 0.3 by 0.06 per cent
TINY = 1e-30  # so that the square root has a derivative at zero
# the same where a tendon comes back along itself; larger, as derivatives there are rounding over the root of this
REVERSED = 1e-18


def _frames(
    q: Tensor, ends: Tensor, angle: Tensor, has_start: Tensor, edge: Tensor, tangent: Tensor, director: Tensor
) -> list:
    """Return t, 1 / |e|, m1, the turn and the anchor's tangent of framed edges; see `EdgeFrame`.

    Parameters
    ----------
    q : (n, B).
    ends, angle : dofs (2, 3, F) of each edge's start and end, and (F,) of its angle.
    has_start : (F, 1) 0 for held tangents, which are the dofs of the end; else 1.
    edge : (F,) its number among those of tangent and director (3, A, B), the anchors.
    """
    e, theta = _edge_and_angle(q, ends, angle, has_start)
    frame = EdgeFrame.of(e, _rows(tangent, edge), _rows(director, edge))
    m1, _ = frame.directors(theta)
    return [
        *frame.t.components(),
        frame.inverse,
        *m1.components(),
        *frame.turn.components(),
        *frame.start.components(),
    ]


def _offset_at(frames: Tensor, edge: Tensor, axes: Tensor, offset: Tensor, point: Tensor) -> CarriedVector:
    """Return the offsets that pairs carry.

    Parameters
    ----------
    frames : (13, F, B).
    edge, point : (C,) of each pair, among the F framed edges and the K points.
    axes : (3, 3, C, 1) frame (t, m1, m2) of the pair's edge at rest.
    offset : (3, K, B or 1) in axes of the world at rest.
    """
    tx, ty, tz, inverse, m1x, m1y, m1z, *turn_and_start = (row[edge] for row in frames.unbind(0))
    t, m1 = Vec3(tx, ty, tz), Vec3(m1x, m1y, m1z)
    m2 = t.cross(m1)
    frame = EdgeFrame(t, inverse, m1, m2, Vec3(*turn_and_start[:3]), Vec3(*turn_and_start[3:]))
    at_rest = _rows(offset, point)
    along, first, second = (Vec3(*axis.unbind(0)).dot(at_rest) for axis in axes.unbind(0))
    return CarriedVector(frame, along, m1.times(first) + m2.times(second))


def _carried(*pair: Tensor) -> tuple:
    """Return the carried offsets (3); arguments as for `_offset_at`."""
    return _offset_at(*pair).value().components()


def _points(
    q: Tensor, dofs: Tensor, weights: Tensor, carried: Tensor, pairs: Tensor, shares: Tensor, *fixed: Tensor
) -> tuple:
    """Return points (3), or with a velocity in place of q their velocities.

    Parameters
    ----------
    dofs, weights : (N, 3, K) and (N, K, 1) of the nodes that carry each point.
    carried : (3, C, B), or its rates.
    pairs, shares : (E, K) and (E, K, 1) the pairs of each point, and their shares in it.
    fixed : positions (3, K, B or 1), and (K, 1) 1 for points that are fixed there, for which all weights are zero.
    """
    first, *others = (vectors_at(q, dof).times(w) for dof, w in zip(dofs.unbind(0), weights.unbind(0), strict=True))
    for other in others:
        first = first + other
    point = _summed(first, carried, pairs, shares)
    if fixed:
        point = point + Vec3(*fixed[0].unbind(0)).times(fixed[1])
    return point.components()


def _segments(points: Tensor, starts: Tensor, ends: Tensor) -> list:
    """Return lengths and directions of segments, from the points (3, K, B) at which they start and end (M,)."""
    e = _rows(points, ends) - _rows(points, starts)
    length = torch.sqrt(e.dot(e))
    return [length, *e.times(1 / length).components()]


def _pulls(tension: Tensor, direction: Tensor, neighbours: Tensor, there: Tensor) -> tuple:
    """Return the forces (3) on points.

    Parameters
    ----------
    tension : (M, B).
    direction : (3, M, B).
    neighbours, there : (2, K) and (2, K, 1) the segments before and after each point, and 1 where there is one.
    """
    before, after = (
        _rows(direction, segment).times(tension[segment] * exists)
        for segment, exists in zip(neighbours.unbind(0), there.unbind(0), strict=True)
    )
    return (after - before).components()


def _bends(
    speed: Tensor,
    direction: Tensor,
    before: Tensor,
    after: Tensor,
    friction: Tensor,
    slip_velocity: Tensor,
    *expected: Tensor,
) -> list:
    """Return mu phi s at bends, and its derivatives by the cosine of the angle and by the speed w.

    The symbols are those of `actuation.tension`; phi is smoothed.

    Parameters
    ----------
    speed : w (I, B).
    direction : (3, M, B) of segments.
    before, after : (I,) the segments at each bend.
    friction, slip_velocity : mu and v (I, B or 1).
    expected : (I, B) s that a primal-dual search expects, whose steps the derivative by w is to be that of.
    """
    u, other = _rows(direction, before), _rows(direction, after)
    apart, together = other - u, other + u
    half = torch.atan2(torch.sqrt(apart.dot(apart) + TINY), torch.sqrt(together.dot(together) + REVERSED))
    angle = 2 * half
    square = angle * angle
    smoothed = torch.sqrt(square + STRAIGHT**2)
    by_cosine = -angle / torch.sin(angle) * (square + 2 * STRAIGHT**2) / (smoothed * smoothed * smoothed)
    size = torch.sqrt(speed * speed + slip_velocity * slip_velocity)
    share = speed / size
    rise = (1 - (expected[0] if expected else share) * share) / size
    by_speed = friction * square / smoothed * rise
    return [friction * square / smoothed * share, friction * share * by_cosine, by_speed]


def _expected_share(speed: Tensor, share: Tensor, speed_before: Tensor, slip_velocity: Tensor) -> list:
    """Return the s that is linearised by w and by s itself, from s and w at the iterate before; it is at most 1.

    The symbols are those of `actuation.tension`: the step solves s sqrt(w^2 + v^2) = w, linearised by both.
    """
    size = torch.sqrt(speed_before * speed_before + slip_velocity * slip_velocity)
    there = speed_before / size
    return [(there + (1 - share * there) / size * (speed - speed_before)).clamp(-1.0, 1.0)]


def _slopes(force: Tensor, has_start: Tensor, share: Tensor, *pair: Tensor) -> list:
    """Return the generalised forces on start, end and angle (7) of forces (3, K, B) on the points.

    `has_start` (C, 1) is that of the pair's edge, `share` (C, 1) that of the pair in its point.
    """
    by_e, by_theta = _offset_at(*pair).slopes(_rows(force, pair[-1]).times(share))
    return [*by_e.times(-has_start).components(), *by_e.components(), by_theta]


def _pair_derivatives(force: Tensor, share: Tensor, *pair: Tensor) -> list:
    """Return the derivatives of the offsets (3 x 4) by e and theta, and the second ones of offset . force (10).

    Those by e and theta are in the order of the rows of the upper triangle of a matrix (4, 4).
    """
    vector = _offset_at(*pair)
    (xx, xy, xz, yy, yz, zz), by_both, twice = vector.curvatures(_rows(force, pair[-1]).times(share))
    x, y, z = by_both.components()
    return [*_by_edge_and_angle(vector), xx, xy, xz, x, yy, yz, y, zz, z, twice]


def _by_edge_and_angle(vector: CarriedVector) -> list:
    """Return the derivatives (3 x 4) of a carried vector by e and theta, row by row."""
    rows = zip(vector.by_edge().rows, vector.by_angle().components(), strict=True)
    return [x for row, by_theta in rows for x in (*row.components(), by_theta)]


def _motion(velocity: Tensor, ends: Tensor, angle: Tensor, has_start: Tensor, *pair: Tensor) -> tuple:
    """Return the rates of the carried offsets (3) at a velocity (n, B), with the dofs of each pair's edge."""
    vector, (e, theta) = _offset_at(*pair), _edge_and_angle(velocity, ends, angle, has_start)
    return (vector.by_edge().applied(e) + vector.by_angle().times(theta)).components()


def _bent(velocity: Tensor, ends: Tensor, angle: Tensor, has_start: Tensor, *pair: Tensor) -> list:
    """Return the derivatives (3 x 4) of the offsets' rates by e and theta, arguments as for `_motion`."""
    vector, (e, theta) = _offset_at(*pair), _edge_and_angle(velocity, ends, angle, has_start)
    one, zero = torch.ones_like(theta), torch.zeros_like(theta)
    found = []
    for axis in (Vec3(one, zero, zero), Vec3(zero, one, zero), Vec3(zero, zero, one)):
        (xx, xy, xz, yy, yz, zz), by_both, twice = vector.curvatures(axis)
        rows = (Vec3(xx, xy, xz), Vec3(xy, yy, yz), Vec3(xz, yz, zz))
        found += [row.dot(e) + x * theta for row, x in zip(rows, by_both.components(), strict=True)]
        found.append(by_both.dot(e) + twice * theta)
    return found


def _edge_and_angle(q: Tensor, ends: Tensor, angle: Tensor, has_start: Tensor) -> tuple[Vec3, Tensor]:
    """Return e and theta, or with a velocity in place of q their rates."""
    start, end = (vectors_at(q, dofs) for dofs in ends.unbind(0))
    return end - start.times(has_start), q[angle]


def _frame_blocks(second: Tensor, has_start: Tensor) -> list:
    """Return the second derivatives (7 x 7) by start, end and angle, from those by e and theta (10, F, B)."""
    xx, xy, xz, x, yy, yz, y, zz, z, twice = second.unbind(0)
    rows = [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]
    end = [[*(-entry * has_start for entry in row), *row, w] for row, w in zip(rows, (x, y, z), strict=True)]
    start = [[-entry * has_start for entry in row] for row in end]
    angle = [-x * has_start, -y * has_start, -z * has_start, x, y, z, twice]
    return [entry for row in (*start, *end, angle) for entry in row]


def _columns(direction: Tensor, segment: Tensor, linear: Tensor, slots: Tensor, signs: Tensor, by: Tensor) -> list:
    """Return the derivative (3) of a segment, end minus start, by one of its dofs, and that of its length.

    Parameters
    ----------
    direction : (3, M, B).
    segment : (S,) whose column it is, for all columns of all segments.
    linear : (3, S, 1) the part through nodes.
    slots, signs : (R, S) and (R, S, 1) the rows of `by` that belong to it, and their factors.
    by : (3, 4 C, B) derivatives of the offsets by e and theta.
    """
    u = _rows(direction, segment)
    column = _summed(Vec3(*linear.unbind(0)), by, slots, signs)
    return [*column.components(), u.dot(column)]


def _columns_with_rates(
    length: Tensor, rate: Tensor, neighbours: Tensor, bent: Tensor, direction: Tensor, segment: Tensor, *column: Tensor
) -> list:
    """Return what `_columns` does, and the derivatives of three more numbers by the same dof.

    These are the rate of the segment's length, and the cosines of the angles to the segments before and after, where
    these keep their directions.

    Parameters
    ----------
    length, rate : (M, B) and (3, M, B) of the segments.
    neighbours : (2, S) the segments before and after; the segment itself where there is none.
    bent : (3, 4 C, B) derivatives of the offsets' rates by e and theta.
    """
    along = _columns(direction, segment, *column)
    u, by_dof, over = _rows(direction, segment), Vec3(*along[:3]), 1 / length[segment]
    _, slots, signs, _ = column
    # what a change of the segment adds to u . x, for constant x
    turned = [
        (x - u.times(u.dot(x))).times(over).dot(by_dof)
        for x in (_rows(rate, segment), *(_rows(direction, other) for other in neighbours.unbind(0)))
    ]
    zero = torch.zeros_like(over)
    by_rate = u.dot(_summed(Vec3(zero, zero, zero), bent, slots, signs)) + turned[0]
    return [*along, by_rate, *turned[1:]]


def _segment_blocks(tension: Tensor, length: Tensor, columns: Tensor) -> list:
    """Return the derivatives (s x s) of a segment's force by its dofs, at constant tension.

    `columns` (4, s, M, B) are those of `_columns`; tension and length (M, B).
    """
    x, y, z, along = (part.unbind(0) for part in columns.unbind(0))
    vectors = [Vec3(*parts) for parts in zip(x, y, z, strict=True)]
    scale = -tension / length
    size = range(len(vectors))
    upper = {(i, j): scale * (vectors[i].dot(vectors[j]) - along[i] * along[j]) for i in size for j in size if i <= j}
    return [upper[min(i, j), max(i, j)] for i in size for j in size]


def _summed(first: Vec3, by: Tensor, slots: Tensor, signs: Tensor) -> Vec3:
    """Return vectors plus the sums of rows of `by` (3, 4 C, B), with their signs."""
    for slot, sign in zip(slots.unbind(0), signs.unbind(0), strict=True):
        first = first + _rows(by, slot).times(sign)
    return first


def _rows(vectors: Tensor, index: Tensor) -> Vec3:
    """Return the vectors (3, .., B) with these indices (S,)."""
    return Vec3(*(component[index] for component in vectors.unbind(0)))


def _fused(function: Callable, name: str) -> Fused:
    return Fused(function, f"{name} of routes")


FRAMES, CARRIED, BENDS = _fused(_frames, "frames"), _fused(_carried, "offsets"), _fused(_bends, "bends")
SEGMENTS, PULLS, SLOPES = _fused(_segments, "segments"), _fused(_pulls, "forces"), _fused(_slopes, "torques")
PAIR_DERIVATIVES, FRAME_BLOCKS = _fused(_pair_derivatives, "derivatives"), _fused(_frame_blocks, "blocks of edges")
EXPECTED_SHARE = _fused(_expected_share, "expected friction")
POINTS, SEGMENT_BLOCKS = _fused(_points, "points"), _fused(_segment_blocks, "blocks of segments")
COLUMNS, COLUMNS_WITH_RATES = _fused(_columns, "columns"), _fused(_columns_with_rates, "columns with rates")
MOTION, BENT = _fused(_motion, "rates"), _fused(_bent, "derivatives of rates")

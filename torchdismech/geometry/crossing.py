r"""Closest points of two rods that cross, on smooth centre lines beside their nodes.

Between the nodes x_0 and x_1 of an edge the line is the cubic

    p(t) = (1 - t) x_0 + t x_1 + (1 - t)^2 (1 - 4 t) / 12 D_0 + t^2 (4 t - 3) / 12 D_1,
    D_0 = x_-1 - 2 x_0 + x_1,  D_1 = x_0 - 2 x_1 + x_2,

the mean of Catmull and Rom's spline, which goes through the nodes, and the uniform B-spline. At the end of a rod D is
zero there, and an edge without neighbours is straight. Tangents are continuous: (x_1 - x_-1) / 2 at x_0. So the
derivative of the distance to a point that slides along the line is continuous, also across nodes, and its second
derivative includes the line's curvature.

Why the mean: straight edges lie inside of a rod's curve, by kappa h^2 / 12 on average (curvature kappa, edges of
length h), and this line does so everywhere; Catmull and Rom's does not, and the B-spline lies twice as far inside. But
a discrete rod under a point load N deflects differently at a node and between two, so that the load feels a potential
in proportion to N^2 h^3 / EI along the edge, half as high on this line as on Catmull and Rom's.

Two lines that cross have one pair of closest points, in one pair of cubics. In all other pairs of cubics the least
distance is beyond an end of one of them; these do not count. Where the closest point is at a node, up to rounding, it
belongs to both cubics beside the node, and each counts in part (its *share*).

E. Catmull and R. Rom, A class of local interpolating splines, Computer Aided Geometric Design, 1974; D. P. Mitchell and
A. N. Netravali, Reconstruction filters in computer graphics, SIGGRAPH 1988, for means of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.distances import Closest, closest_segments
from torchdismech.geometry.vec3 import Vec3

__all__ = ["closest_crossing"]

ROUNDS = 6  # of Newton's method: from a tenth of an edge off, four reach rounding
SHORTER = 0.25  # fraction of a Newton step that is taken where the whole step would increase the distance
NOISE = 1e-12  # relative increase of the squared distance that counts as rounding
# fraction of an edge on both sides of a node within which both cubics count in part; a hundred times float32's rounding
BEYOND = 1e-5
CONVEX = 1e-3  # smallest determinant, over the product of the diagonal, of a Hessian that a Newton step uses


@torch.no_grad()
def closest_crossing(
    a0: Vec3,
    a1: Vec3,
    b0: Vec3,
    b1: Vec3,
    a_before: Vec3,
    a_after: Vec3,
    b_before: Vec3,
    b_after: Vec3,
    a_enters: Tensor,
    a_leaves: Tensor,
    b_enters: Tensor,
    b_leaves: Tensor,
) -> Closest:
    """Return the closest points of two smooth lines, between the nodes a0, a1 and b0, b1, which cross at some angle.

    The nodes of the result are in the order of the arguments. The last four arguments are 1 where a line continues
    beyond a0, a1, b0 and b1, to the nodes before and after; where one is 0, that neighbouring node has no effect.
    """
    a, b = (
        _Line.of(a0, a1, a_before, a_after, a_enters, a_leaves),
        _Line.of(b0, b1, b_before, b_after, b_enters, b_leaves),
    )
    straight = closest_segments(a0, a1, b0, b1)
    s, t = straight.weights[1], -straight.weights[3]
    for _ in range(ROUNDS):
        s, t = _improved(a, b, s, t)
    r = a.at(s) - b.at(t)
    s_free, t_free = a.free(s), b.free(t)
    of_a, of_b = a.weights(s), b.weights(t)
    slide_a, slide_b = a.slides(s, s_free), b.slides(t, t_free)
    zero = torch.zeros_like(s)
    return Closest(
        weights=_in_order(of_a, tuple(-w for w in of_b)),
        slides=(_in_order(slide_a, (zero,) * 4), _in_order((zero,) * 4, tuple(-w for w in slide_b))),
        bending=(s_free * r.dot(a.turn(s)), -t_free * r.dot(b.turn(t))),
        share=a.share(s) * b.share(t),
    )


@dataclass(frozen=True)
class _Line:
    """The cubic start + t first + t^2 second + t^3 third; `enters` and `leaves` are 1 where the line goes on there."""

    start: Vec3
    first: Vec3
    second: Vec3
    third: Vec3
    enters: Tensor
    leaves: Tensor

    @classmethod
    def of(cls, x0: Vec3, x1: Vec3, before: Vec3, after: Vec3, enters: Tensor, leaves: Tensor) -> _Line:
        edge = x1 - x0
        bend0, bend1 = (before - x0 + edge).times(enters), (after - x1 - edge).times(leaves)
        return cls(
            start=x0 + bend0.times(1 / 12),
            first=edge - bend0.times(0.5),
            second=bend0.times(0.75) - bend1.times(0.25),
            third=(bend1 - bend0).times(1 / 3),
            enters=enters,
            leaves=leaves,
        )

    def at(self, t: Tensor) -> Vec3:
        return self.start + (self.first + (self.second + self.third.times(t)).times(t)).times(t)

    def slope(self, t: Tensor) -> Vec3:
        return self.first + (self.second.times(2.0) + self.third.times(3 * t)).times(t)

    def turn(self, t: Tensor) -> Vec3:
        """Return the second derivative."""
        return self.second.times(2.0) + self.third.times(6 * t)

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of t between which the closest point is sought."""
        return -BEYOND * self.enters, 1 + BEYOND * self.leaves

    def free(self, t: Tensor) -> Tensor:
        """Return 1 where t is inside its bounds, 0 where it is at one."""
        low, high = self.limits()
        return torch.where((t > low) & (t < high), torch.ones_like(t), torch.zeros_like(t))

    def share(self, t: Tensor) -> Tensor:
        """Return the share of a closest point at t that belongs to this cubic, not to the next one: 0 to 1."""
        entered, left = (t + BEYOND) / (2 * BEYOND), (1 + BEYOND - t) / (2 * BEYOND)
        entered = torch.where(self.enters > 0, entered, torch.ones_like(t)).clamp(0, 1)
        return entered * torch.where(self.leaves > 0, left, torch.ones_like(t)).clamp(0, 1)

    def weights(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights of the four nodes (start, end, before, after) in the point at t."""
        before = (1 - t) * (1 - t) * (1 - 4 * t) / 12 * self.enters
        after = t * t * (4 * t - 3) / 12 * self.leaves
        return 1 - t - 2 * before + after, t + before - 2 * after, before, after

    def slides(self, t: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the derivatives of the weights by t where t is free; zero elsewhere."""
        before = (t - 1) * (0.5 - t) * self.enters * free
        after = t * (t - 0.5) * self.leaves * free
        return -free - 2 * before + after, free + before - 2 * after, before, after


def _in_order(of_a: tuple, of_b: tuple) -> tuple:
    """Return values for (start, end, before, after) of both lines in the order of a pair's nodes."""
    return (*of_a[:2], *of_b[:2], *of_a[2:], *of_b[2:])


def _improved(a: _Line, b: _Line, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return (s, t) after a Newton step, within the limits, towards the least distance of a(s) and b(t)."""
    r, e, f = a.at(s) - b.at(t), a.slope(s), b.slope(t)
    gs, gt = r.dot(e), -r.dot(f)
    ee, ef, ff = e.dot(e), -e.dot(f), f.dot(f)
    hss, htt = ee + r.dot(a.turn(s)), ff - r.dot(b.turn(t))
    convex = (hss > 0) & (htt > 0) & (hss * htt - ef * ef > CONVEX * hss * htt)
    hss, htt = torch.where(convex, hss, ee), torch.where(convex, htt, ff)
    s_new, t_new = _least(a, b, (s, t), (gs, gt), (hss, ef, htt))
    moved = a.at(s_new) - b.at(t_new)
    part = torch.where(moved.dot(moved) <= (1 + NOISE) * r.dot(r), torch.ones_like(s), torch.full_like(s, SHORTER))
    whole = part == 1  # then take s_new itself: s + (s_new - s) may leave the limits by rounding
    return torch.where(whole, s_new, s + part * (s_new - s)), torch.where(whole, t_new, t + part * (t_new - t))


def _least(a: _Line, b: _Line, at: tuple, slope: tuple, matrix: tuple) -> tuple[Tensor, Tensor]:
    """Return where a quadratic function is least within the limits, from its slope and matrix at `at`."""
    (s, t), (gs, gt), (hss, hst, htt) = at, slope, matrix
    (s_low, s_high), (t_low, t_high) = a.limits(), b.limits()
    det = hss * htt - hst * hst
    proper = det > 0
    safe = torch.where(proper, det, 1.0)
    s_best, t_best = s - (htt * gs - hst * gt) / safe, t - (hss * gt - hst * gs) / safe
    inside = proper & (s_best >= s_low) & (s_best <= s_high) & (t_best >= t_low) & (t_best <= t_high)
    least = torch.where(inside, -torch.inf, torch.full_like(s, torch.inf))
    ends = [(end, _between(t - _quotient(gt + hst * (end - s), htt), t_low, t_high)) for end in (s_low, s_high)]
    ends += [(_between(s - _quotient(gs + hst * (end - t), hss), s_low, s_high), end) for end in (t_low, t_high)]
    for s_end, t_end in ends:
        ds, dt = s_end - s, t_end - t
        value = ds * (gs + 0.5 * hss * ds + hst * dt) + dt * (gt + 0.5 * htt * dt)
        nearer = value < least
        s_best, t_best = torch.where(nearer, s_end, s_best), torch.where(nearer, t_end, t_best)
        least = torch.where(nearer, value, least)
    return s_best, t_best


def _between(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(value, low), high)


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient; 0 where the denominator is."""
    nothing = denominator == 0
    return torch.where(nothing, 0.0, numerator / torch.where(nothing, 1.0, denominator))

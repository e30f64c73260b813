r"""Closest points of two segments and of a point and a triangle, with the derivatives of their distance.

Both are one problem. Four nodes x_i with weights w_i span the difference of the two points,

    r = sum_i w_i x_i,   w = w(s) affine in at most two parameters s (a place on each segment, or two on the triangle),

and the distance is the least |r| over the s that are allowed. At the minimum each s is either *free* (r is normal to
dr/ds, its *slide*) or held at a bound. What follows from that, for the free s, holds for every kind of pair:

    d|r|/dx_i = w_i n,                           n = r / |r|
    ds/dx_i   = -G^-1 (W_i r + w_i r_s),         G = r_s r_s^T,  W_i = dw_i/ds,  r_s = dr/ds
    d2(r^2/2)/dx_i dx_j = w_i w_j 1 + (W_i r + w_i r_s)^T ds/dx_j

Where the closest points are unique the distance is once continuously differentiable; its second derivative jumps where
a parameter gets free. It is not differentiable where the points are not unique (parallel segments side by side): there
one of the closest pairs is taken, at an end of one of the segments.

*Rounded* edges have one closest pair always, and a distance that is continuously differentiable: each edge leans into a
dimension of its own, by a length c from end to end, so that no two are parallel. The distance is then

    D^2 = |r|^2 + c^2 ((s - 1/2)^2 + (t - 1/2)^2)

at its minimum; larger than |r| by c^2 / (4 |r|) at most. All of the above holds with D for |r| and c^2 added to G's
diagonal.

V. J. Lumelsky, On fast computation of distance between line segments, Information Processing Letters 21, 1985.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3

__all__ = ["Closest", "closest_on_triangle", "closest_segments", "combined", "inverse_gram"]

PARALLEL = 1e-10  # segments with a smaller sin^2 of their angle count as parallel; above it s has 6 digits or more
FLAT = 1e-14  # area^2 over side^4 below which a triangle counts as a segment

Weights = tuple[Tensor, ...]  # of the nodes of a pair


@dataclass(frozen=True)
class Closest:
    """Closest points of pairs of primitives (segments, or a point and a triangle); all tensors have one shape.

    Attributes
    ----------
    weights : one tensor w_i for each node: the difference of the closest points is r = sum_i w_i x_i.
    slides : dw/ds for both parameters s, each with one tensor for each node; zero where a parameter is at a bound.
    lean : c^2 of rounded edges [m^2]; None for edges that are not rounded.
    bending : r . r_ss for both parameters [m^2], where w is not affine in s; None where it is.
    share : how far the closest points count for this pair, 0 to 1, as a neighbouring pair may have the same points (see
        `geometry.crossing`); None: they count in full.
    """

    weights: Weights
    slides: tuple[Weights, Weights]
    lean: Tensor | None = None
    bending: tuple[Tensor, Tensor] | None = None
    share: Tensor | None = None

    def difference(self, nodes: tuple[Vec3, ...]) -> Vec3:
        """Return r [m], from the closest point of the second primitive to that of the first."""
        return combined(self.weights, nodes)

    def slid(self, nodes: tuple[Vec3, ...]) -> tuple[Vec3, Vec3]:
        """Return dr/ds for both parameters [m]."""
        return combined(self.slides[0], nodes), combined(self.slides[1], nodes)

    def squared_distance(self, nodes: tuple[Vec3, ...]) -> Tensor:
        """Return |r|^2, or D^2 of rounded edges [m^2]."""
        r = self.difference(nodes)
        if self.lean is None:
            return r.dot(r)
        s, t = self._from_middle()
        return r.dot(r) + self.lean * (s * s + t * t)

    def stiffening(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """Return the terms that rounding and bending add to the diagonal of G [m^2]."""
        if self.bending is not None:
            return self.bending
        return (0.0, 0.0) if self.lean is None else (self.lean * self.slides[0][1], self.lean * self.slides[1][2])

    def differentiable(self, nodes: tuple[Vec3, ...]) -> Closest:
        """Return these closest points with weights that depend on the nodes for autograd, by one exact Newton step.

        The step solves the condition that the distance is stationary, and changes the numbers by rounding at most.
        """
        r, (e, f) = self.difference(nodes), self.slid(nodes)
        more = self.stiffening()
        a, b = -r.dot(e), -r.dot(f)
        if self.lean is not None:
            s, t = self._from_middle()
            a, b = a - more[0] * s, b - more[1] * t
        g11, g12, g22 = inverse_gram(e, f, more)
        s, t = g11 * a + g12 * b, g12 * a + g22 * b
        weights = tuple(w + s * x + t * y for w, x, y in zip(self.weights, self.slides[0], self.slides[1], strict=True))
        return replace(self, weights=weights)

    def _from_middle(self) -> tuple[Tensor, Tensor]:
        """Return s - 1/2 and t - 1/2 of rounded edges."""
        return self.weights[1] - 0.5, -self.weights[3] - 0.5


def combined(weights, vectors) -> Vec3:
    """Return the weighted sum of vectors."""
    total = vectors[0].times(weights[0])
    for w, v in zip(weights[1:], vectors[1:], strict=True):
        total = total + v.times(w)
    return total


def inverse_gram(e: Vec3, f: Vec3, more=(0.0, 0.0)) -> tuple[Tensor, Tensor, Tensor]:
    """Return (g11, g12, g22) of G^-1 for two slides e and f: the inverse of their matrix of scalar products.

    Entries are zero for slides of length 0; others of a `Closest` are independent. `more` is added to the diagonal, see
    `Closest.stiffening`.
    """
    ee, ef, ff = e.dot(e) + more[0], e.dot(f), f.dot(f) + more[1]
    no_e, no_f = ee == 0, ff == 0
    ee, ff = torch.where(no_e, 1.0, ee), torch.where(no_f, 1.0, ff)
    det = ee * ff - ef * ef
    return torch.where(no_e, 0.0, ff / det), -ef / det, torch.where(no_f, 0.0, ee / det)


@torch.no_grad()
def closest_segments(a0: Vec3, a1: Vec3, b0: Vec3, b1: Vec3, lean: Tensor | None = None) -> Closest:
    """Return the closest points of the segments a and b; nodes in the order a0, a1, b0, b1.

    With `lean` (c^2 > 0 [m^2]) the segments are rounded. Segments may have length zero. Of the candidates (both
    parameters free, or one end against the other segment) the nearest is taken, so no case is decided by the order in
    which bounds are tested.
    """
    e, f, g = a1 - a0, b1 - b0, a0 - b0
    c2 = 0.0 if lean is None else lean
    # rounded segments extend along two more dimensions, where g has the components -c/2 and c/2
    ee, ef, ff, eg, fg = e.dot(e) + c2, e.dot(f), f.dot(f) + c2, e.dot(g) - 0.5 * c2, f.dot(g) + 0.5 * c2
    s_ends, t_ends = _clamped(ef - eg, ee), _clamped(fg + ef, ff)  # nearest to b1 on a; nearest to a1 on b
    s_start, t_start = _clamped(-eg, ee), _clamped(fg, ff)  # nearest to b0 on a; nearest to a0 on b
    zero, one = torch.zeros_like(ee), torch.ones_like(ee)
    det = ee * ff - ef * ef
    crossing = det > PARALLEL * ee * ff
    safe = torch.where(crossing, det, 1.0)
    s = (ef * fg - ff * eg) / safe
    # t is that nearest to a(s) on b, as s may be inexact for nearly parallel segments
    t = (fg + s * ef) / torch.where(crossing, ff, 1.0)
    inside = crossing & (s > 0) & (s < 1) & (t > 0) & (t < 1)
    # a stationary point inside the bounds is the minimum
    best = (torch.where(inside, s, zero), torch.where(inside, t, zero))
    least = torch.where(inside, -torch.inf, _distance2(g, e, f, zero, t_start, c2))
    best = (best[0], torch.where(inside, t, t_start))
    for s_end, t_end in ((one, t_ends), (s_start, zero), (s_ends, one)):
        squared = _distance2(g, e, f, s_end, t_end, c2)
        nearer = squared < least
        best = (torch.where(nearer, s_end, best[0]), torch.where(nearer, t_end, best[1]))
        least = torch.where(nearer, squared, least)
    s, t = best
    free_s, free_t = (torch.where((at > 0) & (at < 1), one, zero) for at in (s, t))
    return Closest((1 - s, s, t - 1, -t), ((-free_s, free_s, zero, zero), (zero, zero, free_t, -free_t)), lean)


@torch.no_grad()
def closest_on_triangle(p: Vec3, t0: Vec3, t1: Vec3, t2: Vec3) -> Closest:
    """Return the closest points of a point and a triangle (which may be flat); nodes in the order p, t0, t1, t2."""
    e, f, g = t1 - t0, t2 - t0, p - t0
    ee, ef, ff, eg, fg = e.dot(e), e.dot(f), f.dot(f), e.dot(g), f.dot(g)
    det = ee * ff - ef * ef
    proper = det > FLAT * (ee + ff) ** 2
    safe = torch.where(proper, det, 1.0)
    u = (ff * eg - ef * fg) / safe
    v = (fg - u * ef) / torch.where(proper, ff, 1.0)  # the nearest for this u, which is inexact in thin triangles
    inside = proper & (u > 0) & (v > 0) & (u + v < 1)
    zero, one = torch.zeros_like(ee), torch.ones_like(ee)
    along = _clamped(fg - eg + ee - ef, ee + ff - 2 * ef)  # on the side from t1 to t2
    sides = ((_clamped(eg, ee), zero), (zero, _clamped(fg, ff)), (1 - along, along))
    least = torch.full_like(ee, torch.inf)
    best_u, best_v, side = zero, zero, zero
    for k, (su, sv) in enumerate(sides):
        squared = _distance2(g, -e, f, su, sv)
        nearer = squared < least
        best_u, best_v = torch.where(nearer, su, best_u), torch.where(nearer, sv, best_v)
        side = torch.where(nearer, float(k), side)
        least = torch.where(nearer, squared, least)
    u, v = torch.where(inside, u, best_u), torch.where(inside, v, best_v)
    moves = torch.where(side == 2, v, torch.where(side == 1, v, u))
    moving = ~inside & (moves > 0) & (moves < 1)
    both = torch.where(inside, one, zero)
    on_0, on_1, on_2 = (torch.where(moving & (side == k), one, zero) for k in range(3))
    # r = p - (1 - u - v) t0 - u t1 - v t2; the third side is walked from t1 to t2: u falls as v grows
    first = (zero, both + on_0 + on_1, on_2 - both - on_0, -on_1 - on_2)
    second = (zero, both, zero, -both)
    return Closest((one, u + v - 1, -u, -v), (first, second))


def _clamped(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient clamped to [0, 1]; 0 for 0 / 0."""
    nothing = denominator == 0
    return torch.where(nothing, 0.0, numerator / torch.where(nothing, 1.0, denominator)).clamp(0, 1)


def _distance2(g: Vec3, e: Vec3, f: Vec3, s: Tensor, t: Tensor, lean: Tensor | float = 0.0) -> Tensor:
    """Return |g + s e - t f|^2, or D^2 of rounded segments."""
    r = g + e.times(s) - f.times(t)
    return r.dot(r) + lean * ((s - 0.5) ** 2 + (t - 0.5) ** 2)

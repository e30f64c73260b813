r"""Segments of paths, and how friction makes the tension vary along them, with derivatives.

A path has segments e_j between its points, with lengths l_j and directions u_j. Where a tendon slips over a bend by the
angle phi_k at point k, the tensions on its two sides have the ratio exp(mu phi_k) (capstan equation of Euler and
Eytelwein), and the greater one is on the side towards which the tendon slips:

    T_j = T_0 c_j,   c_j = exp(mu sum_{k <= j} phi_k s_k),
    s_k = w_k / sqrt(w_k^2 + v^2),   w_k = sum_{i >= k} dl_i/dt.

The tendon is fixed at the last point, and w takes it as inextensible: where the path beyond point k becomes longer, the
tendon slips towards the end, and the tension is greater there. The angle is smoothed where the path is nearly straight,
and the sign of the slip over the velocity v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.actuation import formulas

__all__ = ["Paths", "Segments", "Slip", "product"]


class Paths(nn.Module):
    """Topology of T paths through K points: M segments between points, I bends between segments of one path.

    Parameters
    ----------
    counts : number of points of each path.
    like : a tensor of the dtype and on the device that sums over segments and bends are to have.

    Attributes
    ----------
    starts, ends : (M,) the points of each segment.
    before, after : (I,) the segments at each bend.
    neighbours : (2, M) the segments before and after each segment of a path; where there is none, the segment itself.
    at_points : (2, K) the segments before and after each point, 0 where there is none.
    is_at_points : (2, K, 1) 1 where there is one, else zero.
    path_of : (M,) the path of each segment.
    along, of_bends : (T, M) and (T, I) one where a segment, or bend, belongs to a path, else zero.
    passed : (M, I) one where a bend comes before a segment of its path.
    beyond : (I, M) its transpose: one where a segment is beyond a bend.
    """

    starts: Tensor
    ends: Tensor
    before: Tensor
    after: Tensor
    neighbours: Tensor
    at_points: Tensor
    is_at_points: Tensor
    path_of: Tensor
    along: Tensor
    of_bends: Tensor
    passed: Tensor
    beyond: Tensor

    def __init__(self, counts: list[int], like: Tensor):
        super().__init__()
        path_of_point = np.repeat(np.arange(len(counts)), counts)
        starts = np.flatnonzero(path_of_point[1:] == path_of_point[:-1])
        path_of, segments = path_of_point[starts], np.arange(len(starts))
        before = np.flatnonzero(path_of[1:] == path_of[:-1])
        neighbours = np.stack([segments, segments])
        neighbours[0, before + 1], neighbours[1, before] = before, before + 1
        at_points, is_at_points = (
            np.zeros((2, len(path_of_point)), dtype=np.int64),
            np.zeros((2, len(path_of_point), 1)),
        )
        for side, points in enumerate((starts + 1, starts)):
            at_points[side, points], is_at_points[side, points] = segments, 1.0
        passed = (path_of[:, None] == path_of[before][None]) & (segments[:, None] > before[None])
        index = {"starts": starts, "ends": starts + 1, "before": before, "after": before + 1, "path_of": path_of}
        index |= {"neighbours": neighbours, "at_points": at_points}
        along = path_of[None] == np.arange(len(counts))[:, None]
        values = {"along": along, "of_bends": along[:, before], "passed": passed, "beyond": passed.T}
        values["is_at_points"] = is_at_points
        for name, value in index.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu"), persistent=False)
        for name, value in values.items():
            self.register_buffer(name, torch.as_tensor(value.copy(), device="cpu").to(like), persistent=False)

    def summed(self, of_segments: Tensor) -> Tensor:
        """Return the sums (T, ..) over the segments of each path of numbers of the segments (M, ..)."""
        return product(self.along, of_segments)


def product(matrix: Tensor, numbers: Tensor) -> Tensor:
    """Return a matrix (k, M) times numbers (M, ..)."""
    return (matrix @ numbers.flatten(1)).unflatten(1, numbers.shape[1:])


@dataclass(frozen=True)
class Segments:
    """The segments of paths: lengths (M, B) [m] and directions (3, M, B)."""

    paths: Paths
    length: Tensor
    direction: Tensor

    @classmethod
    def between(cls, paths: Paths, points: Tensor) -> Segments:
        """Return the segments between points (3, K, B) [m]."""
        found = formulas.SEGMENTS(len(paths.starts), points, paths.starts, paths.ends)
        return cls(paths, found[0], found[1:])

    @property
    def total(self) -> Tensor:
        """The lengths (T, B) of the paths [m]."""
        return self.paths.along @ self.length

    def rates(self, velocity: Tensor) -> Tensor:
        """Return the rates (3, M, B) of the segments, end minus start, for velocities (3, K, B) of the points [m/s]."""
        return velocity[:, self.paths.ends] - velocity[:, self.paths.starts]

    def speeds(self, rates: Tensor) -> Tensor:
        """Return w (I, B) at the bends: the rates at which the paths beyond them become longer [m/s]."""
        return self.paths.beyond @ (self.direction * rates).sum(0)

    def on_points(self, tension: Tensor) -> Tensor:
        """Return the forces (3, K, B) on the points for tensions (M, B), which pull neighbours together."""
        at, there = self.paths.at_points, self.paths.is_at_points
        return formulas.PULLS(at.shape[1], tension, self.direction, at, there)


@dataclass(frozen=True)
class Slip:
    """How tendons slip at the bends.

    Attributes
    ----------
    paths : the paths.
    log : (M, B) logarithms of the ratios c of tensions.
    by_cosine, by_speed : (I, B) derivatives of the terms mu phi s of these sums by the cosine of the angle at a bend,
        and by the speed w.
    """

    paths: Paths
    log: Tensor
    by_cosine: Tensor
    by_speed: Tensor

    @classmethod
    def of(cls, segments: Segments, rates: Tensor, friction: Tensor, velocity: Tensor, expected: Tensor | None) -> Slip:
        """Return the slip of segments.

        Parameters
        ----------
        rates : (3, M, B) rates of the segments [m/s].
        friction, velocity : mu and v [m/s] at the bends, each (I, B or 1).
        expected : (I, B) s that a primal-dual search expects (see `RubbingForce`), for its derivatives; or None.
        """
        paths, speed = segments.paths, segments.speeds(rates)
        constants = paths.before, paths.after, friction, velocity, *([] if expected is None else [expected])
        found = formulas.BENDS(len(speed), speed, segments.direction, *constants)
        return cls(paths, paths.passed @ found[0], found[1], found[2])

    def by_dofs(self, by_lengthening: Tensor, by_cosines: Tensor | None = None) -> Tensor:
        """Return the derivatives (I, B, D) of the terms mu phi s by D dofs.

        Parameters
        ----------
        by_lengthening : (M, B, D) derivatives of the rates at which segments become longer.
        by_cosines : (2, M, B, D) of the cosines of each segment's angles to those before and after it, which keep their
            directions; None for zero.
        """
        through_speed = self.by_speed.unsqueeze(-1) * product(self.paths.beyond, by_lengthening)
        if by_cosines is None:
            return through_speed
        cosine = by_cosines[1, self.paths.before] + by_cosines[0, self.paths.after]
        return through_speed + self.by_cosine.unsqueeze(-1) * cosine

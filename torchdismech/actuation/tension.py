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

__all__ = ["Paths", "Segments", "Slip"]

STRAIGHT = 1e-2  # angle [rad] of smoothing: a bend of 0.1 counts less by half a per cent, one of 0.3 by 0.06 per cent
TINY = 1e-30  # so that the square root has a derivative at zero


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
    path_of : (M,) the path of each segment.
    along : (M, T) one where a segment belongs to a path, else zero.
    passed : (M, I) one where a bend comes before a segment of its path.
    beyond : (I, M) its transpose: one where a segment is beyond a bend.
    """

    starts: Tensor
    ends: Tensor
    before: Tensor
    after: Tensor
    path_of: Tensor
    along: Tensor
    passed: Tensor
    beyond: Tensor

    def __init__(self, counts: list[int], like: Tensor):
        super().__init__()
        path_of_point = np.repeat(np.arange(len(counts)), counts)
        starts = np.flatnonzero(path_of_point[1:] == path_of_point[:-1])
        path_of = path_of_point[starts]
        before = np.flatnonzero(path_of[1:] == path_of[:-1])
        same = path_of[:, None] == path_of[before][None]
        passed = same & (np.arange(len(starts))[:, None] > before[None])
        index = {"starts": starts, "ends": starts + 1, "before": before, "after": before + 1, "path_of": path_of}
        numbers = {"along": path_of[:, None] == np.arange(len(counts))[None], "passed": passed, "beyond": passed.T}
        for name, value in index.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu"), persistent=False)
        for name, value in numbers.items():
            self.register_buffer(name, torch.as_tensor(value.copy(), device="cpu").to(like), persistent=False)


@dataclass(frozen=True)
class Segments:
    """The segments of paths: lengths (B, M) [m] and directions (B, M, 3)."""

    paths: Paths
    length: Tensor
    direction: Tensor

    @classmethod
    def between(cls, paths: Paths, points: Tensor) -> Segments:
        """Return the segments between points (B, K, 3) [m]."""
        e = points[:, paths.ends] - points[:, paths.starts]
        length = torch.linalg.vector_norm(e, dim=-1)
        return cls(paths, length, e / length.unsqueeze(-1))

    @property
    def total(self) -> Tensor:
        """The lengths (B, T) of the paths [m]."""
        return self.length @ self.paths.along

    def on_points(self, tension: Tensor, count: int) -> Tensor:
        """Return the forces (B, K, 3) on `count` points for tensions (B, M), which pull neighbours together."""
        pull = tension.unsqueeze(-1) * self.direction
        nothing = pull.new_zeros(len(pull), count, 3)
        return nothing.index_add(1, self.paths.starts, pull).index_add(1, self.paths.ends, -pull)

    def turned_by(self) -> Tensor:
        """Return the derivatives (B, M, 3, 3) of the directions by the segments [1/m]."""
        u = self.direction
        across = torch.eye(3, dtype=u.dtype, device=u.device) - u.unsqueeze(-1) * u.unsqueeze(-2)
        return across / self.length[..., None, None]

    def bends(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed angles (B, I) at the bends [rad], and their derivatives by the cosines of the angles."""
        before, after = self.direction[:, self.paths.before], self.direction[:, self.paths.after]
        apart, together = ((after - before) ** 2).sum(-1), ((after + before) ** 2).sum(-1)
        half = torch.atan2(torch.sqrt(apart + TINY), torch.sqrt(together + TINY))
        square = 4 * half**2
        smoothed = torch.sqrt(square + STRAIGHT**2)
        over_sine = 1 / torch.sinc(2 * half / torch.pi)
        by_cosine = -over_sine * (square + 2 * STRAIGHT**2) / smoothed**3
        return square / smoothed, by_cosine


@dataclass(frozen=True)
class Slip:
    """Logarithms of the ratios c (B, M) of tensions, and their derivatives by segments and rates (B, M, M, 3)."""

    log: Tensor
    by_segments: Tensor | None = None
    by_rates: Tensor | None = None

    @classmethod
    def along(cls, segments: Segments, rates: Tensor, friction: Tensor, velocity: Tensor) -> Slip:
        """Return log c without derivatives.

        Parameters
        ----------
        rates : (B, M, 3) rates of the segments [m/s].
        friction, velocity : mu and v [m/s] at the bends, each (B or 1, I).
        """
        angle, _ = segments.bends()
        share, _ = _slipping(_lengthening(segments, rates), velocity)
        return cls((friction * angle * share) @ segments.paths.passed.mT)

    @classmethod
    def with_derivatives(cls, segments: Segments, rates: Tensor, friction: Tensor, velocity: Tensor) -> Slip:
        """Return log c with its derivatives; parameters as in `along`."""
        u, turned, paths = segments.direction, segments.turned_by(), segments.paths
        angle, by_cosine = segments.bends()
        share, rise = _slipping(_lengthening(segments, rates), velocity)
        speed = (turned @ rates.unsqueeze(-1)).squeeze(-1)  # derivatives of the rates of length by the segments
        gain, weight = friction * angle * rise, (friction * share * by_cosine).unsqueeze(-1)
        by_segments = (gain.unsqueeze(-1) * paths.beyond).unsqueeze(-1) * speed.unsqueeze(1)
        k = torch.arange(len(paths.before), device=u.device)
        for one, other in ((paths.before, paths.after), (paths.after, paths.before)):
            bent = weight * (turned[:, one] @ u[:, other].unsqueeze(-1)).squeeze(-1)  # through the angles at the bends
            by_segments = by_segments.index_put((torch.arange(len(u), device=u.device)[:, None], k, one), bent, True)
        by_rates = (gain.unsqueeze(-1) * paths.beyond).unsqueeze(-1) * u.unsqueeze(1)
        summed = [(paths.passed @ by.flatten(2)).unflatten(2, (-1, 3)) for by in (by_segments, by_rates)]
        return cls((friction * angle * share) @ paths.passed.mT, *summed)


def _lengthening(segments: Segments, rates: Tensor) -> Tensor:
    """Return w (B, I), the rate at which the path beyond each bend becomes longer [m/s]."""
    return (segments.direction * rates).sum(-1) @ segments.paths.beyond.mT


def _slipping(speed: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smoothed sign of slip s (B, I) and its derivative by the speed w."""
    size = torch.sqrt(speed**2 + velocity**2)
    return speed / size, velocity**2 / size**3

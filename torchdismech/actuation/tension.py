r"""How the tension varies along a path with friction, and its derivatives.

The path has M segments e_j between its points, with lengths l_j and directions u_j. A tendon that is drawn over a bend
by the angle phi_k at point k has tensions in the ratio exp(mu phi_k) on both sides, by Euler and Eytelwein; against
the direction in which it slips:

    T_j = T_0 c_j,   c_j = exp(mu sum_{k <= j} phi_k s_k),
    s_k = w_k / sqrt(w_k^2 + v^2),   w_k = sum_{i >= k} dl_i/dt.

The tendon ends at the last point and is taken as inextensible in w: where the path beyond point k becomes longer, it
slips towards the end, against more tension there. The angle is smoothed where a point is straight, and the direction
where the tendon sticks, at a velocity v.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Segments", "Slip"]

STRAIGHT = 1e-2  # angle [rad] below which a bend counts less: at .1 by half a per cent, at .3 by .06
TINY = 1e-30  # so that the square root of nothing has a derivative


@dataclass(frozen=True)
class Segments:
    """The segments of a path: lengths (B, M) [m] and directions (B, M, 3)."""

    length: Tensor
    direction: Tensor

    @classmethod
    def between(cls, points: Tensor) -> Segments:
        """Return those between points (B, K, 3)."""
        e = points[:, 1:] - points[:, :-1]
        length = torch.linalg.vector_norm(e, dim=-1)
        return cls(length, e / length.unsqueeze(-1))

    def on_points(self, tension: Tensor) -> Tensor:
        """Return the forces (B, K, 3) on the points for tensions (B, M), which pull neighbours together."""
        pull = tension.unsqueeze(-1) * self.direction
        nothing = torch.zeros_like(pull[:, :1])
        return torch.cat([pull, nothing], dim=1) - torch.cat([nothing, pull], dim=1)

    def turned_by(self) -> Tensor:
        """Return the derivatives (B, M, 3, 3) of the directions by the segments [1/m]."""
        u = self.direction
        across = torch.eye(3, dtype=u.dtype, device=u.device) - u.unsqueeze(-1) * u.unsqueeze(-2)
        return across / self.length[..., None, None]

    def bends(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed angles (B, M - 1) at the inner points, and their derivatives by the cosines."""
        before, after = self.direction[:, :-1], self.direction[:, 1:]
        apart, together = ((after - before) ** 2).sum(-1), ((after + before) ** 2).sum(-1)
        half = torch.atan2(torch.sqrt(apart + TINY), torch.sqrt(together + TINY))
        square = 4 * half**2
        smoothed = torch.sqrt(square + STRAIGHT**2)
        over_sine = 1 / torch.sinc(2 * half / torch.pi)
        by_cosine = -over_sine * (square + 2 * STRAIGHT**2) / smoothed**3
        return square / smoothed, by_cosine


@dataclass(frozen=True)
class Slip:
    """Logarithms of c (B, M), and their derivatives by the segments and by their rates (B, M, M, 3)."""

    log: Tensor
    by_segments: Tensor | None = None
    by_rates: Tensor | None = None

    @classmethod
    def along(cls, segments: Segments, rates: Tensor, friction: Tensor, velocity: Tensor) -> Slip:
        """Return it for rates of the segments (B, M, 3) [m/s], the coefficient mu and the velocity v [m/s]."""
        angle, _ = segments.bends()
        share, _ = _slipping(_beyond(segments, rates), velocity)
        return cls(_from_start(friction * angle * share))

    @classmethod
    def with_derivatives(cls, segments: Segments, rates: Tensor, friction: Tensor, velocity: Tensor) -> Slip:
        """Return it along with its derivatives."""
        u, turned = segments.direction, segments.turned_by()
        angle, by_cosine = segments.bends()
        share, rise = _slipping(_beyond(segments, rates), velocity)
        before = (turned[:, :-1] @ u[:, 1:].unsqueeze(-1)).squeeze(-1)  # of the cosines, by the segments before
        after = (turned[:, 1:] @ u[:, :-1].unsqueeze(-1)).squeeze(-1)
        batch, count = u.shape[:2]
        bent = u.new_zeros(batch, count - 1, count, 3)
        k = torch.arange(count - 1, device=u.device)
        weight = (share * by_cosine).unsqueeze(-1)
        bent[:, k, k] = weight * before
        bent[:, k, k + 1] = weight * after
        later = torch.ones(count, count, dtype=u.dtype, device=u.device).triu()[1:].unsqueeze(-1)  # i >= k
        speed_by_segments = (turned @ rates.unsqueeze(-1)).squeeze(-1).unsqueeze(1) * later
        gain = (angle * rise)[..., None, None]
        scale = friction if friction.dim() == 0 else friction.view(-1, 1, 1, 1)
        by_segments = _from_start(scale * (bent + gain * speed_by_segments))
        by_rates = _from_start(scale * gain * u.unsqueeze(1) * later)
        return cls(_from_start(friction * angle * share), by_segments, by_rates)


def _beyond(segments: Segments, rates: Tensor) -> Tensor:
    """Return by what rate (B, M - 1) the path beyond each inner point becomes longer [m/s]."""
    along = (segments.direction * rates).sum(-1)
    return along[:, 1:].flip(1).cumsum(1).flip(1)


def _slipping(speed: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Return s and its derivative by the speed w."""
    size = torch.sqrt(speed**2 + velocity**2)
    return speed / size, velocity**2 / size**3


def _from_start(at_points: Tensor) -> Tensor:
    """Return sums over the inner points (B, M - 1, ..) before each segment (B, M, ..)."""
    return torch.cat([torch.zeros_like(at_points[:, :1]), at_points.cumsum(1)], dim=1)

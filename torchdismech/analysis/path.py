"""EquilibriumPath: the points of a path of equilibria, and where its load turns or branches leave it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError, Status
from torchdismech.robot.state import State

__all__ = ["EquilibriumPath", "load_back", "load_turn"]

SHORTER_STEPS = "take a smaller length"  # of steps, where a path could not go on


@dataclass(frozen=True, repr=False)
class EquilibriumPath:
    """The points of a path, in turn; robots whose path has ended stay at its last point.

    Attributes
    ----------
    load_factor : (T, B) part of the loads that acts; 0 at the first point.
    slope : (T, B) how it changes with the length of the path; zero at limit points.
    length : (T, B) of the path so far, along its chords; see `torchdismech.analysis.arclength` for the unit.
    states : T states of the B robots.
    stable : (T, B) whether each point is a minimum of the potential energy, where the path has one; None where that is
        not known (loads without a potential).
    points : (B,) how many points each path has; 0 where there was no equilibrium to begin at, or it led nowhere.
    status : (B,) CONVERGED, or why a path ended before it was to.
    reached : (B,) whether it came to the load factor at which it was to end.
    """

    load_factor: Tensor
    slope: Tensor
    length: Tensor
    states: tuple[State, ...]
    stable: Tensor | None
    points: Tensor
    status: Tensor
    reached: Tensor

    def limits(self, robot: int = 0) -> Tensor:
        """Return the load factors (M,) at which the load of a robot turns, in the order in which its path meets them.

        Between two points by the cubic of load factor and slope at both: of fourth order in the distance.
        """
        count = self._count(robot)
        f, slope, length = (v[:count, robot] for v in (self.load_factor, self.slope, self.length))
        found = []
        for k in range(count - 1):
            if slope[k] * slope[k + 1] < 0:
                found.append(load_turn(length[k + 1] - length[k], f[k], f[k + 1], slope[k], slope[k + 1]))
        return torch.stack(found) if found else f.new_zeros(0)

    def branches(self, robot: int = 0) -> Tensor:
        """Return the load factors (M,) after which a robot is stable no more though its load does not turn there.

        Other paths branch off between such a point and the next, and this one goes straight on.
        """
        if self.stable is None:
            return self.load_factor.new_zeros(0)
        count = self._count(robot)
        stable, slope = self.stable[:count, robot], self.slope[:count, robot]
        lost = stable[:-1] & ~stable[1:] & (slope[:-1] * slope[1:] > 0)
        return self.load_factor[: len(lost), robot][lost]

    def failures(self) -> list[str]:
        """Return a sentence for each robot whose path could not go on: where it ends, and why."""
        sentences = []
        for robot in self.status.nonzero().flatten().tolist():
            status, count = Status(int(self.status[robot])), self._count(robot)
            ends = (
                f"ends at the load factor {self.load_factor[count - 1, robot].item():.4g}" if count else "has no start"
            )
            why = f"{status.name.lower()} ({status.explained(SHORTER_STEPS)})"
            sentences.append(f"robot {robot}: its path {ends}: {why}")
        return sentences

    def _count(self, robot: int) -> int:
        """Return how many points the path of a robot has."""
        if not -len(self.points) <= robot < len(self.points):
            raise InputError(f"EquilibriumPath: robot: expected one from 0 to {len(self.points) - 1}, got {robot}")
        return int(self.points[robot])

    def __repr__(self) -> str:
        """Return how many points there are, how many of them are unstable, where the paths end, and which failed."""
        steps, robots = self.load_factor.shape
        ends = ", ".join(f"{value:.4g}" for value in self.load_factor[-1, :6].tolist()) + ", ..." * (robots > 6)
        of = f"{steps} points of {robots} robot{'s' * (robots > 1)}"
        if self.stable is not None:
            there = torch.arange(steps, device=self.points.device)[:, None] < self.points
            of += f", {int((~self.stable & there).sum())} of them unstable"
        failed = self.status[self.status != Status.CONVERGED]
        of += f", to load factors {ends}"
        if len(failed):
            why = ", ".join(Status(code).name.lower() for code in failed.unique().tolist())
            of += f"; {len(failed)} failed: {why}"
        return f"EquilibriumPath({of})"


def load_turn(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return the load where the cubic over a length with such values and slopes at its ends turns."""
    # f = first + rising s + p s^2 + q s^3
    q = (rising + falling) / length**2 - 2 * (last - first) / length**3
    p = (falling - rising) / (2 * length) - 1.5 * q * length
    # the root of rising + 2 p s + 3 q s^2 between the ends, in the form that stays where q is zero
    root = torch.sqrt(p * p - 3 * q * rising)
    s = rising / (-p + torch.where(rising > 0, root, -root))
    return first + s * (rising + s * (p + s * q))


def load_back(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return by how much (B,) the cubic over a length goes back between two turns; 0 where it has not two."""
    # f = first + a s + p s^2 + q s^3 for s from 0 to 1
    a, b, rise = rising * length, falling * length, last - first
    p, q = 3 * rise - 2 * a - b, a + b - 2 * rise
    square = p * p - 3 * q * a  # of half the distance between the turns, times 3 q
    way = -p * torch.sign(q)  # to the middle between them, times 3 |q|
    two = (a * b > 0) & (a * q > 0) & (square > 0) & (way > 0) & (way < 3 * q.abs())
    return torch.where(two, 4 * square.clamp(min=0) ** 1.5 / (27 * q * q), 0.0)

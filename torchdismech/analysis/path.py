"""EquilibriumPath: the points of a path of equilibria, its limit points and its branch points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError, Status
from torchdismech.robot.state import State

__all__ = ["EquilibriumPath", "load_reversal", "load_at_turn"]

SHORTER_STEPS = "take a smaller length"  # the advice where a path could not be continued
NEARER_START = "begin at a state nearer to the equilibrium without loads"  # the advice where a path has no start


@dataclass(frozen=True, repr=False, eq=False)
class EquilibriumPath:
    """The T points of the path of each robot, in order; robots whose path has ended stay at its last point.

    Attributes
    ----------
    load_factor : (T, B) part of the loads that acts; 0 at the first point.
    slope : (T, B) derivative of the load factor by the length of the path; zero at limit points.
    length : (T, B) length of the path up to the point, along its chords; see `torchdismech.analysis.arclength` for the
        unit.
    states : T states of the B robots.
    stable : (T, B) whether each point is a minimum of the potential energy; None where that is not known (loads without
        a potential).
    points : (B,) number of points of each path; 0 where no equilibrium was found to begin at, or it has no tangent.
    status : (B,) CONVERGED, or why a path ended early.
    reached : (B,) whether the path reached the load factor at which it was to end.
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
        """Return the load factors (M,) of a robot's limit points, in the order in which its path meets them.

        They are those of cubics through load factor and slope at neighbouring points, of fourth order in the distance.
        """
        count = self._count(robot)
        f, slope, length = (v[:count, robot] for v in (self.load_factor, self.slope, self.length))
        turns = []
        for k in range(count - 1):
            if slope[k] * slope[k + 1] < 0:
                turns.append(load_at_turn(length[k + 1] - length[k], f[k], f[k + 1], slope[k], slope[k + 1]))
        return torch.stack(turns) if turns else f.new_zeros(0)

    def branches(self, robot: int = 0) -> Tensor:
        """Return the load factors (M,) of the last stable points before branch points of a robot's path.

        Between such a point and the next the path becomes unstable although the load does not turn: other paths branch
        off there, and this one goes straight on.
        """
        if self.stable is None:
            return self.load_factor.new_zeros(0)
        count = self._count(robot)
        stable, slope = self.stable[:count, robot], self.slope[:count, robot]
        lost = stable[:-1] & ~stable[1:] & (slope[:-1] * slope[1:] > 0)
        return self.load_factor[: len(lost), robot][lost]

    def failures(self) -> list[str]:
        """Return a sentence for each robot whose path could not be continued: where it ends, and why."""
        sentences = []
        for robot in self.status.nonzero().flatten().tolist():
            status, count = Status(int(self.status[robot])), self._count(robot)
            ends = (
                f"ends at the load factor {self.load_factor[count - 1, robot].item():.4g}" if count else "has no start"
            )
            why = f"{status.name.lower()} ({status.explained(SHORTER_STEPS if count else NEARER_START)})"
            sentences.append(f"robot {robot}: its path {ends}: {why}")
        return sentences

    def _count(self, robot: int) -> int:
        """Return the number of points of a robot's path."""
        if not -len(self.points) <= robot < len(self.points):
            raise InputError(f"EquilibriumPath: robot: expected one from 0 to {len(self.points) - 1}, got {robot}")
        return int(self.points[robot])

    def __repr__(self) -> str:
        """Return the numbers of points and of unstable points, where the paths end, and how many failed and why."""
        steps, robots = self.load_factor.shape
        ends = ", ".join(f"{value:.4g}" for value in self.load_factor[-1, :6].tolist()) + ", ..." * (robots > 6)
        text = f"{steps} points of {robots} robot{'s' * (robots > 1)}"
        if self.stable is not None:
            on_path = torch.arange(steps, device=self.points.device)[:, None] < self.points
            text += f", {int((~self.stable & on_path).sum())} of them unstable"
        failed = self.status[self.status != Status.CONVERGED]
        text += f", to load factors {ends}"
        if len(failed):
            why = ", ".join(Status(code).name.lower() for code in failed.unique().tolist())
            text += f"; {len(failed)} failed: {why}"
        return f"EquilibriumPath({text})"


def load_at_turn(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return the load at the turn of the cubic with values first, last and slopes rising, falling at its two ends."""
    # f = first + rising s + p s^2 + q s^3
    q = (rising + falling) / length**2 - 2 * (last - first) / length**3
    p = (falling - rising) / (2 * length) - 1.5 * q * length
    # the root of rising + 2 p s + 3 q s^2 between the ends, in the form that holds for q = 0, too
    root = torch.sqrt(p * p - 3 * q * rising)
    s = rising / (-p + torch.where(rising > 0, root, -root))
    return first + s * (rising + s * (p + s * q))


def load_reversal(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return by how much (B,) the cubic with these end values and slopes reverses between two turns; 0 without both."""
    # f = first + a s + p s^2 + q s^3 for s from 0 to 1
    a, b, rise = rising * length, falling * length, last - first
    p, q = 3 * rise - 2 * a - b, a + b - 2 * rise
    square = p * p - 3 * q * a  # (half the distance between the turns, times 3 q)^2
    middle = -p * torch.sign(q)  # position of their middle, times 3 |q|
    two = (a * b > 0) & (a * q > 0) & (square > 0) & (middle > 0) & (middle < 3 * q.abs())
    return torch.where(two, 4 * square.clamp(min=0) ** 1.5 / (27 * q * q), 0.0)

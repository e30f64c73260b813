"""A warning after a run in which a robot sank so deep into an obstacle that it may have passed through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.initial_overlap import deep_overlap
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.response import Penalty
from torchdismech.errors import warn
from torchdismech.robot.state import State

__all__ = ["PenetrationWatch"]

GROWTH = 1.1  # times the penetration at the start of a run: a robot that begins deep and stays there has not sunk
DEEP_SHARE = 0.5  # of an obstacle's depth: a robot whose centre line or mid-surface is deeper is on its way through


class _Penetration(NamedTuple):
    """The deepest penetration so far: the obstacle, the robot, its depth and contact radius [m], and the time [s]."""

    obstacle: Obstacle
    robot: int
    depth: float
    radius: float
    time: float


class PenetrationWatch:
    """Keeps the deepest penetration of robots into obstacles among the frames of a run, and warns of it.

    Penetration counts where a centre line or mid-surface is inside of the obstacle, as at the start of runs (see
    `initial_overlap.warn_of_overlap`). Of a frame that is no deeper than those before, only one number is read on the
    host.
    """

    def __init__(self, obstacles: Sequence[Obstacle]):
        self._obstacles = obstacles
        self._first: Tensor | None = None
        self._least = min((float(_deep(obstacle).min()) for obstacle in obstacles), default=0.0)
        self._deepest: _Penetration | None = None

    @torch.no_grad()
    def see(self, state: State, contact: Mapping[str, Tensor]) -> None:
        """Look at a frame: its state, and the contact report of the steps that led to it."""
        if not self._obstacles:
            return
        penetration = contact["penetration"]
        if self._first is None:
            self._first = penetration
        if float(penetration.max()) <= self._least:
            return
        grown = penetration > GROWTH * self._first
        deepest = float(penetration.where(grown, 0.0).max())
        if deepest <= self._least:
            return
        is_only_obstacle = sum(name.startswith("load/") for name in contact) == 1
        for obstacle in self._obstacles:
            self._keep_deepest(obstacle, state, grown, penetration if is_only_obstacle else None)
        if self._deepest is not None:  # not to `deepest`, which may be an overlap of a robot with itself
            self._least = max(self._least, self._deepest.depth)

    def _keep_deepest(self, obstacle: Obstacle, state: State, robots: Tensor, penetration: Tensor | None) -> None:
        """Keep the deepest penetration of some robots into an obstacle, if it is too deep and deeper than before.

        Parameters
        ----------
        robots : (B,) bool, which robots to look at.
        penetration : (B,) the largest overlap with this obstacle in the steps that led to the frame [m]; None where it
            is not known, as the robot touches other things, too.
        """
        gap = obstacle.gap(state.q, state.time)
        limit = _deep(obstacle).expand_as(gap)
        robot, point = divmod(int((-gap / limit).where(robots[:, None], 0.0).argmax()), gap.shape[1])
        depth = -float(gap[robot, point])
        if penetration is not None:  # its point is unknown, so it counts if it is too deep for the point with most room
            deepest = int((penetration / limit.amax(1)).where(robots, 0.0).argmax())
            if float(penetration[deepest]) > float(limit[deepest].max()):
                robot, point, depth = deepest, int(limit[deepest].argmax()), float(penetration[deepest])
        if depth > float(limit[robot, point]) and (self._deepest is None or depth > self._deepest.depth):
            radius = float(obstacle.points.radius.expand_as(gap)[robot, point])
            self._deepest = _Penetration(obstacle, robot, depth, radius, float(state.time[robot]))

    def warn(self, caller: str) -> None:
        """Warn of the robot that sank the deepest, if one sank too deep; `caller` begins the message."""
        if self._deepest is None:
            return
        obstacle, robot, depth, radius, time = self._deepest
        warn(
            f"{caller}: robot {robot} sank {depth:.3g} m into obstacle {obstacle.name!r} "
            f"({type(obstacle.shape).__name__}) by t = {time:g} s, farther than its contact radius of {radius:.3g} m: "
            f"it may pass through, with status CONVERGED. {_cure(obstacle, robot, depth, radius)}; see docs/contact.md",
            RuntimeWarning,
        )


def _deep(obstacle: Obstacle) -> Tensor:
    """Return the depth (.., P) [m] of each point beyond which a robot is deep in an obstacle and may pass through."""
    return torch.minimum(deep_overlap(obstacle), obstacle.points.radius + DEEP_SHARE * obstacle.shape.depth)


def _cure(obstacle: Obstacle, robot: int, depth: float, radius: float) -> str:
    """Return the advice of a warning: what to change about an obstacle that is too soft for a robot.

    A penalty is a spring of energy k depth^2. To bring the depth down to the contact radius, its stiffness has to grow
    by their ratio under a load at rest, and by the square of the ratio for the energy of an impact.
    """
    instead = "Barrier or Complementarity"
    if obstacle.constrained:
        return "Take a smaller dt, or max_substeps=16"
    response = obstacle.law.response
    if not isinstance(response, Penalty) or radius <= 0:
        return f"Take a stiffer response, or {instead}"
    of_robot = response.stiffness.flatten()
    stiffness, ratio = float(of_robot[robot % len(of_robot)]), depth / radius
    return (
        f"Its stiffness is {stiffness:.3g} N/m; within the contact radius {stiffness * ratio:.2g} N/m bear such a load "
        f"at rest, {stiffness * ratio**2:.2g} N/m stop such an impact; or take {instead}"
    )

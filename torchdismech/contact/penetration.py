"""Robots that sank deep into obstacles in a run: through them, where these are soft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.initial_overlap import DEEP
from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.response import Penalty
from torchdismech.errors import warn
from torchdismech.robot.state import State

__all__ = ["PenetrationWatch"]

MORE = 1.1  # times as deep as where a run began: what begins deep, and rests there, does not sink
WITHIN = 0.5  # of an obstacle's own depth: the middle of a surface that is beyond that is on its way through


class _Found(NamedTuple):
    """Where a robot was the deepest in an obstacle: depth and contact radius [m], time [s]."""

    obstacle: Obstacle
    robot: int
    depth: float
    radius: float
    time: float


class PenetrationWatch:
    """How deep the robots of a run sink into obstacles, from its frames.

    Deep is where the middle of a surface is inside, as where runs begin; see `initial_overlap.warn_of_overlap`. Of a
    frame that is not deeper than those before it one number is read.
    """

    def __init__(self, obstacles: Sequence[Obstacle]):
        self._obstacles = obstacles
        self._first: Tensor | None = None
        self._least = min((float(_deep(obstacle).min()) for obstacle in obstacles), default=0.0)
        self._found: _Found | None = None

    @torch.no_grad()
    def see(self, state: State, contact: Mapping[str, Tensor]) -> None:
        """Take note of a frame: a state, and the report of contact in the steps that led to it."""
        if not self._obstacles:
            return
        penetration = contact["penetration"]
        if self._first is None:
            self._first = penetration
        if float(penetration.max()) <= self._least:
            return
        grown = penetration > MORE * self._first
        deepest = float(penetration.where(grown, 0.0).max())
        if deepest <= self._least:
            return
        only = sum(name.startswith("load/") for name in contact) == 1
        for obstacle in self._obstacles:
            self._look(obstacle, state, grown, penetration if only else None)
        if self._found is not None:  # what robots overlap with themselves by may be deeper, and is no matter here
            self._least = max(self._least, self._found.depth)

    def _look(self, obstacle: Obstacle, state: State, robots: Tensor, penetration: Tensor | None) -> None:
        """Look how deep some robots (B,) are in an obstacle; `penetration` (B,) is between frames, too, if known."""
        gap = obstacle.gap(state.q, state.time)
        limit = _deep(obstacle).expand_as(gap)
        robot, point = divmod(int((-gap / limit).where(robots[:, None], 0.0).argmax()), gap.shape[1])
        depth = -float(gap[robot, point])
        if penetration is not None:  # of which point is not known: it is too deep where it is for all
            deepest = int((penetration / limit.amax(1)).where(robots, 0.0).argmax())
            if float(penetration[deepest]) > float(limit[deepest].max()):
                robot, point, depth = deepest, int(limit[deepest].argmax()), float(penetration[deepest])
        if depth > float(limit[robot, point]) and (self._found is None or depth > self._found.depth):
            radius = float(obstacle.points.radius.expand_as(gap)[robot, point])
            self._found = _Found(obstacle, robot, depth, radius, float(state.time[robot]))

    def warn(self, caller: str) -> None:
        """Say which robot sank the deepest, if one did."""
        if self._found is None:
            return
        obstacle, robot, depth, radius, time = self._found
        warn(
            f"{caller}: robot {robot} sank {depth:.3g} m into obstacle {obstacle.name!r} "
            f"({type(obstacle.shape).__name__}) by t = {time:g} s, farther than its contact radius of {radius:.3g} m: "
            f"it may pass through, with status CONVERGED. {_cure(obstacle, robot, depth, radius)}; see docs/contact.md",
            RuntimeWarning,
        )


def _deep(obstacle: Obstacle) -> Tensor:
    """Return the depth (.., P) [m] beyond which a robot may pass through: its middle is inside."""
    radius, law = obstacle.points.radius, obstacle.law
    deep = radius if isinstance(law, ConstraintLaw) else torch.maximum(radius, DEEP * law.response.tolerance)
    return torch.minimum(deep, radius + WITHIN * obstacle.shape.depth)


def _cure(obstacle: Obstacle, robot: int, depth: float, radius: float) -> str:
    """Return what to do about an obstacle that is too soft for a robot.

    A penalty is a spring: what rests on it is half as deep with twice the stiffness; what falls onto it brings an
    energy k depth^2, of which the stiffness that takes it within the contact radius follows.
    """
    instead = "Barrier or Complementarity"
    if isinstance(obstacle.law, ConstraintLaw):
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

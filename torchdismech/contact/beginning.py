"""Robots that begin inside of obstacles, which throw them out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.obstacle import Obstacle
from torchdismech.state import Control, State

__all__ = ["warn_of_overlap"]

DEEP = 3.0  # tolerances of a potential
UNBALANCED = 0.5  # of an obstacle's push on a node


@torch.no_grad()
def warn_of_overlap(obstacles: Sequence[Obstacle], state: State) -> None:
    """Say so where the middle of a surface of a robot lies inside of an obstacle that will throw it out.

    What rests on a potential is not warned of, however deep: the obstacle's push on it is balanced by other forces, so
    that it has no acceleration. A barrier refuses such a start by itself.
    """
    for obstacle in obstacles:
        law = obstacle.law
        if law.response.feasible_only:
            continue
        gap, deep = obstacle.gap(state.q, state.time), obstacle.points.radius
        if not isinstance(law, ConstraintLaw):
            deep = torch.maximum(deep, DEEP * law.response.tolerance)
        inside = gap < -deep
        if bool(inside.any()) and not isinstance(law, ConstraintLaw):
            inside = inside & _thrown(obstacle, state)
        if bool(inside.any()):
            _warn(obstacle, gap, inside)


def _thrown(obstacle: Obstacle, state: State) -> Tensor:
    """Return the points (B, P) on nodes, or between some, that gain speed by the obstacle's push at a state."""
    nodes, points = 3 * state.n_nodes, obstacle.points
    push = obstacle(state, Control())[:, :nodes].unflatten(1, (-1, 3))
    total = (obstacle.body.mass * state.acceleration)[:, :nodes].unflatten(1, (-1, 3))
    gains = ((total - UNBALANCED * push) * push).sum(2) > 0
    return (gains[:, points.nodes] & (points.weights > 0)).any(2)


def _warn(obstacle: Obstacle, gap: Tensor, inside: Tensor) -> None:
    """Name the deepest of the points that are `inside` (B, P)."""
    robot, point = divmod(int(gap.where(inside, torch.inf).argmin()), gap.shape[1])
    warnings.warn(
        f"obstacle {obstacle.name!r} ({type(obstacle.shape).__name__}): {obstacle.points.said(point)} of robot {robot} "
        f"begins inside of it, {-float(gap[robot, point]):.3g} m deep; it will be thrown out, or its steps fail. Move "
        "the robot out, or look at where the obstacle is and which way it faces",
        RuntimeWarning,
        stacklevel=1,  # of the same place for all callers: a run says it once
    )

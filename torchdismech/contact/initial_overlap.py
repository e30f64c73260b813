"""Robots that begin where they cannot: inside of obstacles, which throw them out, or too close to a barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.model import ContactModel
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.pairs import Touching
from torchdismech.contact.response import of_robots
from torchdismech.errors import warn
from torchdismech.robot.state import Control, State

__all__ = ["ClosedGap", "closed_gap", "warn_of_overlap"]

DEEP = 3.0  # tolerances of a potential
UNBALANCED = 0.5  # of an obstacle's push on a node
# of a barrier's tolerance: closer, it pushes a million times as hard as it is made for. Steps are as exact as the
# forces that they begin with, and could not tell other loads from nothing
CLOSEST = 1e-6
ROUNDINGS = 64.0  # units in the last place of coordinates: a gap of a few is what rounding left of none

_Said = Callable[[int], str]


class ClosedGap(NamedTuple):
    """Where a surface is too close to a barrier: what it touches, robot, place there, gap and the least gap [m]."""

    of: str
    robot: int
    where: str
    gap: float
    least: float


@torch.no_grad()
def closed_gap(contact: ContactModel, state: State) -> ClosedGap | None:
    """Return the first gap of a barrier at a state that is none, or too small to begin with; None without any."""
    of_rounding = ROUNDINGS * torch.finfo(state.q.dtype).eps * state.positions.abs().amax((1, 2))
    for of, robot, gap, tolerance, where in _gaps_of_barriers(contact, state):
        least = torch.maximum(CLOSEST * tolerance, of_rounding[robot])
        if bool((closed := ~(gap > least) & ~torch.isnan(gap)).any()):  # states that are not finite are for others
            k = int(gap.where(closed, torch.inf).argmin())
            return ClosedGap(of, int(robot[k]), where(k), float(gap[k]), float(least[k]))
    return None


def _gaps_of_barriers(contact: ContactModel, state: State) -> Iterator[tuple[str, Tensor, Tensor, Tensor, _Said]]:
    """Yield for each barrier its name, robots, gaps and tolerances (K,), and what says where the k-th is."""
    for obstacle in contact.obstacles:
        if obstacle.law.response.feasible_only:
            gap = obstacle.gap(state.q, state.time)
            robot = torch.arange(len(gap), device=gap.device).repeat_interleave(gap.shape[1])
            tolerance = of_robots(obstacle.law.response.tolerance, robot)
            said = partial(_said_of_points, obstacle)
            yield f"obstacle {obstacle.name!r}", robot, gap.flatten(), tolerance, said
    barriers = {k for k, own in enumerate(contact.self_contacts) if own.law.response.feasible_only}
    pairs = contact.touching(state.q) if barriers else None
    if pairs is not None:
        for found in contact.self_contacts.touching(pairs.listed.of_contacts(barriers), state.q, 0 * state.q):
            own = contact.self_contacts[found.table.contact]
            tolerance = of_robots(own.law.response.tolerance, found.robot)
            yield f"a part of its own ({own.name})", found.robot, found.gap, tolerance, partial(_said_of_pairs, found)


def _said_of_points(obstacle: Obstacle, k: int) -> str:
    return obstacle.points.said(k % obstacle.points.count)


def _said_of_pairs(found: Touching, k: int) -> str:
    return f"node {int(found.table.listed_nodes[found.chosen[k], 0])}"


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
    warn(
        f"obstacle {obstacle.name!r} ({type(obstacle.shape).__name__}): {obstacle.points.said(point)} of robot {robot} "
        f"begins inside of it, {-float(gap[robot, point]):.3g} m deep; it will be thrown out, or its steps fail. Move "
        "the robot out, or look at where the obstacle is and which way it faces",
        RuntimeWarning,
        once=True,
    )

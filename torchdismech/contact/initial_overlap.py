"""Checks of initial states: robots that begin deep inside of obstacles, or too close to a barrier."""

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

__all__ = ["ClosedGap", "closed_gap", "deep_overlap", "warn_of_overlap"]

DEEP = 3.0  # in tolerances of a potential: an overlap of more, and of more than the contact radius, counts as deep
UNBALANCED = 0.5  # of an obstacle's push on a node: if more of it is left unbalanced, it throws the node out
# Least gap of a barrier in tolerances. At a smaller one it would push a million times as hard as it is meant to, and
# beside such a force steps could not resolve any other load.
CLOSEST = 1e-6
ROUNDINGS = 64.0  # units in the last place of coordinates: smaller gaps may be nothing but rounding

_PlaceName = Callable[[int], str]


class ClosedGap(NamedTuple):
    """A place where a gap of a barrier is too small.

    Attributes
    ----------
    of : what the robot is too close to, in words.
    robot : its number in the batch.
    where : the point or node, in words.
    gap, least : the gap, and the least gap that would do [m].
    """

    of: str
    robot: int
    where: str
    gap: float
    least: float


@torch.no_grad()
def closed_gap(contact: ContactModel, state: State) -> ClosedGap | None:
    """Return a gap of a barrier that is too small for a state to begin with; None where all are large enough.

    It is the smallest gap of the first contact that has such gaps.
    """
    of_rounding = ROUNDINGS * torch.finfo(state.q.dtype).eps * state.positions.abs().amax((1, 2))
    for of, robot, gap, tolerance, where in _gaps_of_barriers(contact, state):
        least = torch.maximum(CLOSEST * tolerance, of_rounding[robot])
        if bool((closed := ~(gap > least) & ~torch.isnan(gap)).any()):  # states with NaN are refused elsewhere
            k = int(gap.where(closed, torch.inf).argmin())
            return ClosedGap(of, int(robot[k]), where(k), float(gap[k]), float(least[k]))
    return None


def _gaps_of_barriers(contact: ContactModel, state: State) -> Iterator[tuple[str, Tensor, Tensor, Tensor, _PlaceName]]:
    """Yield for each contact with a barrier its name, then robots (K,), gaps (K,) and tolerances (K,) or () [m].

    The K gaps are those of its points or touching pairs. Last comes a function that names the place of the k-th one.
    """
    for obstacle in contact.obstacles:
        if obstacle.law.response.feasible_only:
            gap = obstacle.gap(state.q, state.time)
            robot = torch.arange(len(gap), device=gap.device).repeat_interleave(gap.shape[1])
            tolerance = of_robots(obstacle.law.response.tolerance, robot)
            place = partial(_name_of_point, obstacle)
            yield f"obstacle {obstacle.name!r}", robot, gap.flatten(), tolerance, place
    barriers = contact.self_contacts.barrier_numbers
    pairs = contact.may_touch_at(state.q) if barriers else None
    if pairs is not None:
        for touching in contact.self_contacts.touching(pairs.listed.of_contacts(barriers), state.q, 0 * state.q):
            self_contact = contact.self_contacts[touching.table.contact]
            tolerance = of_robots(self_contact.law.response.tolerance, touching.robot)
            yield (
                f"a part of its own ({self_contact.name})",
                touching.robot,
                touching.gap,
                tolerance,
                partial(_name_of_node, touching),
            )


def _name_of_point(obstacle: Obstacle, k: int) -> str:
    return obstacle.points.point_name(k % obstacle.points.count)


def _name_of_node(touching: Touching, k: int) -> str:
    return f"node {int(touching.table.listed.nodes[touching.chosen[k], 0])}"


@torch.no_grad()
def warn_of_overlap(obstacles: Sequence[Obstacle], state: State) -> None:
    """Warn where a robot begins so deep inside of an obstacle that this will throw it out, or that steps fail.

    A robot that rests on a potential is not warned of, however deep it is: other forces balance the obstacle's push.
    Barriers are skipped, as they refuse such starts (`closed_gap`).
    """
    for obstacle in obstacles:
        if obstacle.law.response.feasible_only:
            continue
        gap = obstacle.gap(state.q, state.time)
        inside = gap < -deep_overlap(obstacle)
        if bool(inside.any()) and not obstacle.constrained:
            inside = inside & _thrown(obstacle, state)
        if bool(inside.any()):
            _warn(obstacle, gap, inside)


def deep_overlap(obstacle: Obstacle) -> Tensor:
    """Return the overlaps (.., P) [m] of a robot's points with an obstacle beyond which they are deep.

    Deep is more than the contact radius, so that a centre line or mid-surface is inside, and with a potential more than
    `DEEP` tolerances.
    """
    radius, law = obstacle.points.radius, obstacle.law
    return radius if isinstance(law, ConstraintLaw) else torch.maximum(radius, DEEP * law.response.tolerance)


def _thrown(obstacle: Obstacle, state: State) -> Tensor:
    """Return the points (B, P) bool of which a node is accelerated by the obstacle's push at a state."""
    nodes, points = 3 * state.n_nodes, obstacle.points
    push = obstacle(state, Control())[:, :nodes].unflatten(1, (-1, 3))
    total = (obstacle.body.mass * state.acceleration)[:, :nodes].unflatten(1, (-1, 3))
    gains = ((total - UNBALANCED * push) * push).sum(2) > 0
    return (gains[:, points.nodes] & (points.weights > 0)).any(2)


def _warn(obstacle: Obstacle, gap: Tensor, inside: Tensor) -> None:
    """Warn of the deepest of the points that are `inside` (B, P)."""
    robot, point = divmod(int(gap.where(inside, torch.inf).argmin()), gap.shape[1])
    warn(
        f"obstacle {obstacle.name!r} ({type(obstacle.shape).__name__}): {obstacle.points.point_name(point)} of robot "
        f"{robot} begins inside of it, {-float(gap[robot, point]):.3g} m deep; it will be thrown out, or its steps "
        "fail. Move the robot out, or look at where the obstacle is and which way it faces",
        RuntimeWarning,
        once=True,
    )

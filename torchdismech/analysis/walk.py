"""Walk: robots on their paths of equilibria, the lengths of their steps, and which points are accepted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.analysis.arclength import Arclength, PathPoint
from torchdismech.analysis.path import EquilibriumPath, load_at_turn, load_reversal
from torchdismech.errors import Status
from torchdismech.integrate.problem import StepProblem
from torchdismech.model.clamps import RigidWays

__all__ = ["Walk"]

SHORTEST = 2.0**-24  # part of the requested length: a path that would need shorter steps ends
TURN = 0.8  # least cosine of the angle between the tangents of successive points; below it the step is shortened
STRAYED = 0.5  # part of the motion along a tangent by which a point may miss it; more may mean another branch ...
SMALL = 1e-6  # ... except that a point may always miss it by this length
# Part of the requested length. Where a robot becomes unstable although its load does not turn, steps are shortened down
# to this, as an imperfection may lead its path into a branch. If none does, the path goes straight on.
NARROWEST = 2.0**-12
BACK = 0.01  # part of the requested length: steps may not skip a reversal of the load factor by more than this
QUICK, SLOW = 3, 6  # iterations up to which the next step is longer, and from which on it is shorter
# A step is also at most `LONGER` times the one before. Where the path turns, lengths hardly count the load, and a snap
# may move far less than the robot's extent: only the steps so far tell the scale of the path there.
LONGER, SHORTER, HALF = 1.5, 0.7, 0.5


class Walk:
    """A batch of robots on their paths of equilibria, each with its own length of steps.

    Parameters
    ----------
    problem : the static problem, with the control at the load factor 1, except for poses of clamps.
    clamp_motions : motions of clamps that have a pose.
    last : load factor at which paths end.
    longest : requested length of a step, as a part of the load and of the robot's extent.

    Attributes
    ----------
    arclength : measures lengths, and takes points back to the path.
    at : the present points.
    step_share : (B,) length of each robot's next step, as a part of the longest.
    last_size : (B,) length of the step before, infinite before the first.
    search_start : (B,) `step_share` at which a robot began to look for a branch in shorter steps; 0 for those that do
        not look.
    running : (B,) robots whose path has not ended.
    minima_known : () bool, whether positive definiteness of the matrix tells which equilibria are minima.
    """

    def __init__(self, problem: StepProblem, clamp_motions: RigidWays | None, last: float, longest: float):
        model, state = problem.model, problem.state
        self.arclength, self.last, self.longest = Arclength(problem, clamp_motions), last, longest
        self.running = problem.running
        self.status = torch.zeros_like(self.running, dtype=torch.long)
        self.step_share, self.last_size = torch.ones_like(state.time), torch.full_like(state.time, math.inf)
        self.search_start = torch.zeros_like(state.time)
        zero, forward = torch.zeros_like(state.time), torch.full_like(state.time, 1.0 if last > 0 else -1.0)
        x = model.unknowns.of_dofs(state.q)
        self.at = PathPoint(state, zero, torch.zeros_like(x), forward, torch.zeros_like(self.running))
        self.reached = torch.zeros_like(self.running)
        minima_known = model.layout.pattern.symmetric and model.mechanics.conservative(at_rest=True)
        self.minima_known = torch.tensor(minima_known, device=state.q.device)

    def path(self, steps: int) -> EquilibriumPath:
        """Return the path of each robot, with at most `steps` points after the first."""
        first, found, _, status = self.arclength.corrected(self.at, torch.zeros_like(self.step_share), self.running)
        self.at = self.at.merged(self.arclength.measured(first), found)
        self.status, self.running = torch.where(found, self.status, status), self.running & found
        points, lengths, counts = [self.at], [torch.zeros_like(self.step_share)], found.long()
        while len(points) <= steps and bool(self.running.any()):
            arrived = self._go_on()
            distance = self.arclength.distance(points[-1], self.at)
            points.append(self.at)
            lengths.append(lengths[-1] + torch.where(arrived, distance, 0.0))
            counts = counts + arrived
        return EquilibriumPath(
            torch.stack([point.factor for point in points]),
            torch.stack([point.slope for point in points]),
            torch.stack(lengths),
            tuple(point.state for point in points),
            torch.stack([point.minimum for point in points]) if self.minima_known else None,
            counts,
            self.status,
            self.reached,
        )

    def _go_on(self) -> Tensor:
        """Take each running robot to its next point, or end its path; return those (B,) that reached a point."""
        waiting, arrived = self.running, torch.zeros_like(self.running)
        straight_on = ~self.minima_known.expand_as(arrived)
        while bool(waiting.any()):
            longest = self._longest()
            # fmin: where a tangent is NaN the length is, too, and `step_share` is halved until the path ends
            share = torch.fmin(self.step_share, LONGER * self.last_size / longest)
            size = share * longest
            next_point, found, iterations, status = self.arclength.corrected(self.at, size, waiting)
            found = found & self._leads_on(next_point, size) & ~self._over_the_last(next_point)
            branching = found & ~straight_on & self._ceases_to_be_stable(next_point)
            found = found & ~branching
            beyond = found & ((next_point.factor - self.last) * self.last >= 0)
            if bool(beyond.any()):
                next_point, landed = self._landed(next_point, beyond)
                found, beyond = found & (landed | ~beyond), landed
            self.reached = self.reached | beyond
            self.at, self.last_size = self.at.merged(next_point, found), torch.where(found, size, self.last_size)
            arrived, waiting = arrived | found, waiting & ~found
            longer = torch.where(iterations <= QUICK, LONGER * self.step_share, self.step_share).clamp(max=1)
            longer = torch.where(iterations >= SLOW, SHORTER * share, longer)
            self.step_share = torch.where(found, longer, torch.where(waiting, HALF * share, self.step_share))
            straight_on = straight_on | self._searched(branching, share, longest)
            lost = waiting & (self.step_share < SHORTEST)
            status = torch.where(status > 0, status, int(Status.MAX_ITERATIONS))
            self.status = torch.where(lost, status, self.status)
            self.running, waiting = self.running & ~beyond & ~lost, waiting & ~lost
        return arrived

    def _searched(self, branching: Tensor, share: Tensor, longest: Tensor) -> Tensor:
        """Return the robots (B,) that have looked for a branch in vain, down to the narrowest step.

        These get back the length of step at which they began to look.

        Parameters
        ----------
        branching : (B,) robots that became unstable at a branch point in a step of `share` times `longest`.
        """
        self.search_start = torch.where(branching & (self.search_start == 0), share, self.search_start)
        perfect = branching & (self.step_share < NARROWEST)
        self.step_share = torch.where(perfect, self.search_start, self.step_share)
        self.last_size = torch.where(perfect, self.search_start * longest, self.last_size)
        self.search_start = torch.where(perfect | (self.step_share >= self.search_start), 0.0, self.search_start)
        return perfect

    def _longest(self) -> Tensor:
        """Return the length (B,) of a step that has the requested size, from the present points."""
        motion = torch.sqrt(self.arclength.dot(self.at.tangent_x, self.at.tangent_x))
        return self.longest / torch.maximum(motion, self.at.slope.abs())

    def _leads_on(self, next_point: PathPoint, size: Tensor) -> Tensor:
        """Return the points (B,) that are accepted as the next of the path; for others the step is shortened."""
        turned = self.arclength.inner(self.at, next_point.tangent_x, next_point.slope) < TURN
        return ~turned & ~self._strayed(next_point, size) & ~self._over_two_turns(next_point)

    def _strayed(self, next_point: PathPoint, size: Tensor) -> Tensor:
        """Return the points (B,) that are too far from where the tangents of the step lead.

        The tangent at the old point is followed ahead, and compared by the robot's motion; the one at the new point is
        followed back, and compared by motion and load. Two tangents may be parallel and yet on different branches: then
        the chord between the points agrees with neither.
        """
        arclength, displacement = self.arclength, self.arclength.displacement(self.at, next_point)
        ahead = size[:, None] * self.at.tangent_x
        miss_ahead, length_ahead = (
            torch.sqrt(arclength.dot(motion, motion)) for motion in (displacement - ahead, ahead)
        )
        length = arclength.distance(self.at, next_point)
        back, load = (
            displacement - length[:, None] * next_point.tangent_x,
            next_point.factor - self.at.factor - length * next_point.slope,
        )
        miss_back = torch.sqrt(arclength.dot(back, back) + (arclength.unit * load) ** 2)
        return (miss_ahead > STRAYED * length_ahead + SMALL) | (miss_back > STRAYED * length + SMALL)

    def _ceases_to_be_stable(self, next_point: PathPoint) -> Tensor:
        """Return the robots (B,) that a step takes from a stable to an unstable point without a turn of the load."""
        return self.at.minimum & ~next_point.minimum & (self.at.slope * next_point.slope > 0)

    def _over_two_turns(self, next_point: PathPoint) -> Tensor:
        """Return the robots (B,) whose step may skip two turns of the load, which its ends alone do not show."""
        return load_reversal(*self._ends(next_point)) > BACK * self.longest + SMALL

    def _over_the_last(self, next_point: PathPoint) -> Tensor:
        """Return the robots (B,) whose step skips a turn of the load at, or possibly beyond, the last load factor.

        Their steps have to be shorter, as the path reaches the last load factor before that turn. The error of the load
        at the turn is estimated by the difference between the cubic and parabolas between the points.
        """
        ahead = math.copysign(1.0, self.last)
        length, first, last, rising, falling = ends = self._ends(next_point)
        turn, half = load_at_turn(*ends), length / (2 * (rising - falling))
        off = torch.maximum((first + half * rising**2 - turn).abs(), (last + half * falling**2 - turn).abs())
        over = (ahead * rising > 0) & (ahead * falling < 0)
        return over & (torch.maximum(ahead * turn + off, ahead * last) >= abs(self.last))

    def _ends(self, next_point: PathPoint) -> tuple[Tensor, ...]:
        """Return the length of a step, the load factors at its ends, and the slopes there, each (B,)."""
        at = self.at
        length = self.arclength.distance(at, next_point)
        return length, at.factor, next_point.factor, at.slope, next_point.slope

    def _landed(self, next_point: PathPoint, rows: Tensor) -> tuple[PathPoint, Tensor]:
        """Return the points with `rows` (B,) taken back to the last load factor, and which of them (B,) got there."""
        start = next_point._replace(tangent_x=torch.zeros_like(next_point.tangent_x), slope=1 / self.arclength.unit)
        landed, found, _, _ = self.arclength.corrected(
            start, self.arclength.unit * (self.last - next_point.factor), rows
        )
        sign = torch.where(
            self.arclength.inner(next_point, landed.tangent_x, landed.slope) < 0, -1.0, 1.0
        )  # on as before
        landed = landed._replace(tangent_x=sign[:, None] * landed.tangent_x, slope=sign * landed.slope)
        found = found & (self.last * landed.slope > 0)  # else the point is on the other side of a turn
        return next_point.merged(landed, found), found

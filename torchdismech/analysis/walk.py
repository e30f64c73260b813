"""Walk: robots on their paths of equilibria, how long the steps of each are, and which points lead on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.analysis.arclength import Arclength, PathPoint
from torchdismech.analysis.path import EquilibriumPath, load_back, load_turn
from torchdismech.errors import Status
from torchdismech.integrate.problem import StepProblem
from torchdismech.model.clamps import RigidWays

__all__ = ["Walk"]

SHORTEST = 2.0**-24  # of the length that is asked for: where the path cannot be followed in such steps it ends
TURN = 0.8  # the least cosine between tangents of two points: beyond, a shorter step is taken
STRAYED = 0.5  # of the motion along a tangent: a point further away from there may be of another branch ...
SMALL = 1e-6  # ... unless it is as near as this
# Of the length that is asked for: where a robot ceases to be stable though its load does not turn, shorter steps are
# taken down to this one, for an imperfection may lead it into a branch. If none does, it goes straight on.
NARROWEST = 2.0**-12
BACK = 0.01  # of the length that is asked for: a load that falls and rises again by more may not be stepped over
QUICK, SLOW = 3, 6  # iterations up to which the next step is longer, and from which on it is shorter
# A step is at most `LONGER` times the one before, too. Lengths count the load little where the path turns, and the
# robot's extent may be far more than what a snap moves: only the steps so far tell of what size the path is there.
LONGER, SHORTER, HALF = 1.5, 0.7, 0.5


class Walk:
    """Robots on their paths.

    Parameters
    ----------
    problem : of statics, with the control at the load factor 1 but for poses of clamps.
    ways : of clamps with a pose.
    last : load factor at which paths end.
    longest : length of a step that is asked for, in parts of the load and of the robot's extent.

    Attributes
    ----------
    arclength : what measures ways, and takes points back to the path.
    at : where they are.
    part : (B,) of the longest step, how long the next of each is.
    taken : (B,) length of the step before, infinite before the first.
    sought : (B,) part of the longest step at which each began to look for a branch in shorter ones; 0 where none does.
    running : (B,) which are still on their way.
    told : () whether the matrix tells which equilibria are minima.
    """

    def __init__(self, problem: StepProblem, ways: RigidWays | None, last: float, longest: float):
        model, state = problem.model, problem.state
        self.arclength, self.last, self.longest = Arclength(problem, ways), last, longest
        self.running = problem.running
        self.status = torch.zeros_like(self.running, dtype=torch.long)
        self.part, self.taken = torch.ones_like(state.time), torch.full_like(state.time, math.inf)
        self.sought = torch.zeros_like(state.time)
        zero, forward = torch.zeros_like(state.time), torch.full_like(state.time, 1.0 if last > 0 else -1.0)
        x = model.unknowns.picked(state.q)
        self.at = PathPoint(state, zero, torch.zeros_like(x), forward, torch.zeros_like(self.running))
        self.reached = torch.zeros_like(self.running)
        told = model.layout.pattern.symmetric and model.mechanics.conservative(at_rest=True)
        self.told = torch.tensor(told, device=state.q.device)

    def path(self, steps: int) -> EquilibriumPath:
        """Return the points up to so many after the first."""
        first, found, _, status = self.arclength.corrected(self.at, torch.zeros_like(self.part), self.running)
        self.at = self.at.merged(self.arclength.measured(first), found)
        self.status, self.running = torch.where(found, self.status, status), self.running & found
        points, lengths, counts = [self.at], [torch.zeros_like(self.part)], found.long()
        while len(points) <= steps and bool(self.running.any()):
            arrived = self._go_on()
            way = self.arclength.distance(points[-1], self.at)
            points.append(self.at)
            lengths.append(lengths[-1] + torch.where(arrived, way, 0.0))
            counts = counts + arrived
        return EquilibriumPath(
            torch.stack([point.factor for point in points]),
            torch.stack([point.slope for point in points]),
            torch.stack(lengths),
            tuple(point.state for point in points),
            torch.stack([point.minimum for point in points]) if self.told else None,
            counts,
            self.status,
            self.reached,
        )

    def _go_on(self) -> Tensor:
        """Take each robot that runs to its next point, or end its path; return which (B,) came to one."""
        waiting, arrived = self.running, torch.zeros_like(self.running)
        straight_on = ~self.told.expand_as(arrived)
        while bool(waiting.any()):
            longest = self._longest()
            # not of a length where a tangent has no numbers: parts are halved to an end there
            part = torch.fmin(self.part, LONGER * self.taken / longest)
            size = part * longest
            there, found, iterations, status = self.arclength.corrected(self.at, size, waiting)
            found = found & self._leads_on(there, size) & ~self._over_the_last(there)
            branching = found & ~straight_on & self._ceases_to_be_stable(there)
            found = found & ~branching
            beyond = found & ((there.factor - self.last) * self.last >= 0)
            if bool(beyond.any()):
                there, landed = self._landed(there, beyond)
                found, beyond = found & (landed | ~beyond), landed
            self.reached = self.reached | beyond
            self.at, self.taken = self.at.merged(there, found), torch.where(found, size, self.taken)
            arrived, waiting = arrived | found, waiting & ~found
            longer = torch.where(iterations <= QUICK, LONGER * self.part, self.part).clamp(max=1)
            longer = torch.where(iterations >= SLOW, SHORTER * part, longer)
            self.part = torch.where(found, longer, torch.where(waiting, HALF * part, self.part))
            straight_on = straight_on | self._searched(branching, part, longest)
            lost = waiting & (self.part < SHORTEST)
            status = torch.where(status > 0, status, int(Status.MAX_ITERATIONS))
            self.status = torch.where(lost, status, self.status)
            self.running, waiting = self.running & ~beyond & ~lost, waiting & ~lost
        return arrived

    def _searched(self, branching: Tensor, part: Tensor, longest: Tensor) -> Tensor:
        """Return which robots (B,) have looked for a branch in steps as short as there are, and give these their steps.

        Parameters
        ----------
        branching : (B,) which have ceased to be stable in a step of a `part` of the `longest` one.
        """
        self.sought = torch.where(branching & (self.sought == 0), part, self.sought)
        perfect = branching & (self.part < NARROWEST)
        self.part = torch.where(perfect, self.sought, self.part)
        self.taken = torch.where(perfect, self.sought * longest, self.taken)
        self.sought = torch.where(perfect | (self.part >= self.sought), 0.0, self.sought)
        return perfect

    def _longest(self) -> Tensor:
        """Return the length (B,) of the longest step that is asked for, from where robots are."""
        motion = torch.sqrt(self.arclength.dot(self.at.ways, self.at.ways))
        return self.longest / torch.maximum(motion, self.at.slope.abs())

    def _leads_on(self, there: PathPoint, size: Tensor) -> Tensor:
        """Return which points (B,) may be the next of the path; before others, shorter steps have to be taken."""
        turned = self.arclength.inner(self.at, there.ways, there.slope) < TURN
        return ~turned & ~self._strayed(there, size) & ~self._over_two_turns(there)

    def _strayed(self, there: PathPoint, size: Tensor) -> Tensor:
        """Return which points (B,) lie too far from where a tangent leads.

        Ahead from the point before, measured by the motion of the robot; and back from there, measured with the load:
        tangents that agree with one another are of two branches where the way between them agrees with neither.
        """
        arclength, way = self.arclength, self.arclength.way(self.at, there)
        ahead = size[:, None] * self.at.ways
        off, led = (torch.sqrt(arclength.dot(motion, motion)) for motion in (way - ahead, ahead))
        length = arclength.distance(self.at, there)
        back, load = way - length[:, None] * there.ways, there.factor - self.at.factor - length * there.slope
        missed = torch.sqrt(arclength.dot(back, back) + (arclength.unit * load) ** 2)
        return (off > STRAYED * led + SMALL) | (missed > STRAYED * length + SMALL)

    def _ceases_to_be_stable(self, there: PathPoint) -> Tensor:
        """Return whose steps (B,) end at no minimum any more though the load does not turn: paths branch between."""
        return self.at.minimum & ~there.minimum & (self.at.slope * there.slope > 0)

    def _over_two_turns(self, there: PathPoint) -> Tensor:
        """Return whose steps (B,) lead over a load that falls and rises again, of which neither end tells."""
        back = load_back(
            self.arclength.distance(self.at, there), self.at.factor, there.factor, self.at.slope, there.slope
        )
        return back > BACK * self.longest + SMALL

    def _over_the_last(self, there: PathPoint) -> Tensor:
        """Return whose steps (B,) lead over a turn of the load that may be at the last load factor or beyond.

        They have to be shorter: the path comes to the last load factor before it turns. Where the load turns is known
        as exactly as parabolas agree with the cubic between the points.
        """
        ahead = math.copysign(1.0, self.last)
        ends = self.arclength.distance(self.at, there), self.at.factor, there.factor, self.at.slope, there.slope
        length, first, last, rising, falling = ends
        turn, half = load_turn(*ends), length / (2 * (rising - falling))
        off = torch.maximum((first + half * rising**2 - turn).abs(), (last + half * falling**2 - turn).abs())
        over = (ahead * rising > 0) & (ahead * falling < 0)
        return over & (torch.maximum(ahead * turn + off, ahead * last) >= abs(self.last))

    def _landed(self, there: PathPoint, rows: Tensor) -> tuple[PathPoint, Tensor]:
        """Take some points (B,) beyond the last load factor back to it; return all points, and which came there."""
        at = there._replace(ways=torch.zeros_like(there.ways), slope=1 / self.arclength.unit)
        landed, found, _, _ = self.arclength.corrected(at, self.arclength.unit * (self.last - there.factor), rows)
        sign = torch.where(self.arclength.inner(there, landed.ways, landed.slope) < 0, -1.0, 1.0)  # on as the path did
        landed = landed._replace(ways=sign[:, None] * landed.ways, slope=sign * landed.slope)
        found = found & (self.last * landed.slope > 0)  # not on the other side of a turn
        return there.merged(landed, found), found

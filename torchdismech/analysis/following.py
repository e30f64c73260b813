"""Equilibrium paths: how the balance of a robot moves as its load grows, past the largest load that it bears.

The load factor f is an unknown beside the free dofs x. With the unit tangent t of the path at a point, the next point
is where forces balance, and where it has got on by a length s along t (pseudo-arclength: Riks 1979, Keller 1977),

    r(x, f) = 0,    t . ((x, f) - (x, f)_0) = s.

Newton's method for both solves twice with the matrix K = dr/dx: K a = -r and K b = dr/df. Its step is a - b df
for the df that the second equation asks for. So the library's factors serve; K is indefinite beyond limit points.

Lengths are sqrt(dx . dx + u^2 df^2), where u is the length of dx/df of the robot without loads. So the load and what it
does count alike at first, and motion counts most where the path turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import (
    FailureWarning,
    InputError,
    Status,
    refuse_other_kind,
    refuse_other_model,
    warn,
    whole_number,
)
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.equilibria.supports import refuse_unheld
from torchdismech.integrate.integrator import FORCE_TOLERANCE, RELATIVE_TOLERANCE
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.small_loads import warning_of_small_loads
from torchdismech.integrate.static import Static, ramped
from torchdismech.model import Model
from torchdismech.model.clamps import RigidWays, posed
from torchdismech.robot.state import STATES, Control, State, control_of
from torchdismech.rows import weighted_norms
from torchdismech.solve.linear import Factor, JoinedFactor, Solver
from torchdismech.solve.search import rounding_noise

__all__ = ["EquilibriumPath", "follow"]

DIFFERENCE = 1e-4  # of the load factor: dr/df by central differences, exact for loads that grow with it
SHORTEST = 2.0**-24  # of the length that is asked for: where the path cannot be followed in such steps it ends
TURN = 0.8  # the least cosine between tangents of two points: beyond, a shorter step is taken
STRAYED = 0.5  # of the motion along a tangent: a point further away from there may be of another branch ...
SMALL = 1e-6  # ... unless it is as near as this
# Of the length that is asked for: where a robot ceases to be stable though its load does not turn, shorter steps are
# taken down to this one, for an imperfection may lead it into a branch. If none does, it goes straight on.
NARROWEST = 2.0**-12
BACK = 0.01  # of the length that is asked for: a load that falls and rises again by more may not be stepped over
# The smallest eigenvalue of a matrix with ones on its diagonal. Where rounding alone keeps it from zero it is up to
# 3e-15 (a coarse shell with hinges; rods 7e-16); of a clamped rod of 1000 edges that is 15,000 times as long as thick
# it is 5e-14. In single precision rounding leaves 1e-7, and rods of 100 edges have 6e-8 to 4e-7: some of them cannot be
# told apart.
RESISTS = {torch.float64: 1e-14, torch.float32: 2e-7}
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, less their whole parts, are spread evenly and follow no pattern
INVERSE_ITERATIONS = 3  # zero is far from all other eigenvalues
NAMED = 3  # robots that a warning tells of
QUICK, SLOW = 3, 6  # iterations up to which the next step is longer, and from which on it is shorter
# A step is at most `LONGER` times the one before, too. Lengths count the load little where the path turns, and the
# robot's extent may be far more than what a snap moves: only the steps so far tell of what size the path is there.
LONGER, SHORTER, HALF = 1.5, 0.7, 0.5
SHORTER_STEPS = "take a smaller length"  # of steps, where a path could not go on


@dataclass(frozen=True, repr=False)
class EquilibriumPath:
    """The points of a path, in turn; robots whose path has ended stay at its last point.

    Attributes
    ----------
    load_factor : (T, B) part of the loads that acts; 0 at the first point.
    slope : (T, B) how it changes with the length of the path; zero at limit points.
    length : (T, B) of the path so far, along its chords; see `torchdismech.analysis.following` for the unit.
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
                found.append(_turn(length[k + 1] - length[k], f[k], f[k + 1], slope[k], slope[k + 1]))
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


def _turn(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return where the cubic over a length with such values and slopes at its ends turns."""
    # f = first + rising s + p s^2 + q s^3
    q = (rising + falling) / length**2 - 2 * (last - first) / length**3
    p = (falling - rising) / (2 * length) - 1.5 * q * length
    # the root of rising + 2 p s + 3 q s^2 between the ends, in the form that stays where q is zero
    root = torch.sqrt(p * p - 3 * q * rising)
    s = rising / (-p + torch.where(rising > 0, root, -root))
    return first + s * (rising + s * (p + s * q))


def _back(length: Tensor, first: Tensor, last: Tensor, rising: Tensor, falling: Tensor) -> Tensor:
    """Return by how much (B,) the cubic over a length goes back between two turns; 0 where it has not two."""
    # f = first + a s + p s^2 + q s^3 for s from 0 to 1
    a, b, rise = rising * length, falling * length, last - first
    p, q = 3 * rise - 2 * a - b, a + b - 2 * rise
    square = p * p - 3 * q * a  # of half the distance between the turns, times 3 q
    way = -p * torch.sign(q)  # to the middle between them, times 3 |q|
    two = (a * b > 0) & (a * q > 0) & (square > 0) & (way > 0) & (way < 3 * q.abs())
    return torch.where(two, 4 * square.clamp(min=0) ** 1.5 / (27 * q * q), 0.0)


def follow(
    model: Model,
    state: State,
    control: Control | None = None,
    last: float = 1.0,
    steps: int = 100,
    length: float = 0.05,
    max_iterations: int = 10,
    force_tolerance: float = FORCE_TOLERANCE,
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> EquilibriumPath:
    """Return the path of equilibria of each robot from no load towards `last` times its loads.

    The load factor multiplies external forces; natural strains and clamped dofs move in proportion to it from the
    model's own and the state's to those that the control sets; a clamp with a pose moves as a rigid body, its point
    straight and turning evenly, within half a turn. `Control.values` act from the beginning. At limit points
    the load falls, or comes back, and the path goes on, through unstable equilibria, too; at a point where paths branch
    it goes straight on. A robot ends at the load factor `last`, after so many steps, or where it cannot go on.

    Contact by `Penalty` and `Barrier` acts in full from the beginning, and without friction. What may touch is looked
    for before each step, and a step that leads through anything is taken again in half the length.

    Each robot takes steps of its own length, all at once. Nothing is recorded for gradients.

    Robots whose paths could not go on are named by a warning, with the reason.

    A robot that is free to move without any resistance has no path: its status is SINGULAR. One is a rod whose clamps
    hold nodes alone, as hinges do: it may turn about its own axis; `direction="rest"` in a clamp holds it. In single
    precision rods of more than 100 edges may be too soft to be told from free ones: take a model in torch.float64.

    Parameters
    ----------
    state : near the equilibrium without loads, which is the first point.
    control : what acts at the load factor 1; forces of the model act in any case.
    last : load factor at which paths end; negative ones go the other way.
    steps : points after the first, at most.
    length : of a step, at most: this part of the whole load, and nodes move by this part of the robot's extent (root of
        the mean square; angles in rad). That is of the scale of the whole load and the whole robot, which a snap of a
        shallow arch may be far below. So each step is at most 1.5 times the one before, and shorter where the path
        bends, where many iterations are needed, or where the load falls and rises again between two points.
    max_iterations : Newton iterations a step.
    force_tolerance, relative_tolerance : as for `Static`.

    Raises
    ------
    InputError
        Arguments out of range, materials that remember, contact by `Complementarity`, an iterative linear solver, a
        part that nothing holds against its loads.
    """
    refuse_other_model("follow", model, Model)
    refuse_other_kind("follow: state", state, State, STATES)
    control = control_of(control)
    _check(model, state, control, last, steps, length)
    method = Static(1, force_tolerance, relative_tolerance, max_iterations)
    running = torch.ones(state.batch, dtype=torch.bool, device=state.q.device)
    values = model.values_of(control)
    with torch.no_grad(), model.lock, model.compilation.paused(), values.in_place():
        control = control.without_values()
        whole = posed(model.body, state, control)
        refuse_unheld(model, state, whole, running, force_tolerance)
        small = warning_of_small_loads(model, state, whole, None, method.force_tolerance)
        if small is not None:
            warn(small, RuntimeWarning)
        start = method.scheme.started(state.detach(), 0.0)
        ways = None if control.pose is None else RigidWays(model.body, start, control.pose)
        problem = StepProblem(model, method, start, control.replace(pose=None), 0.0, running, values)
        path = _Walk(problem, ways, float(last), float(length)).path(int(steps))
    _warn_of_branches(path)
    _warn_of_failures(path, state, control, model.body.clamped.dofs)
    return path


def _warn_of_branches(path: EquilibriumPath) -> None:
    """Name the first robot whose path goes on unstable from where paths branch."""
    for robot in range(len(path.points)):
        branches = path.branches(robot)
        if len(branches):
            warn(
                f"follow: the path of robot {robot} is stable no more beyond the load factor {branches[0].item():.6g}, "
                "though its load does not turn there: other paths branch off, and this one goes straight on, as a "
                "perfect column does; give the robot an imperfection (a small force across) to follow a branch, or, if "
                "it has one, a larger one or a smaller length",
                RuntimeWarning,
            )
            return


def _warn_of_failures(path: EquilibriumPath, state: State, control: Control, clamped: Tensor) -> None:
    """Name the robots whose paths could not go on, and numbers of the control that are none."""
    if failures := path.failures():
        told = [*failures[:NAMED], "..."] if len(failures) > NAMED else failures
        cause = control.not_finite(path.status != Status.CONVERGED, state.time, clamped)
        warn(f"follow: {'; '.join([*told, cause] if cause else told)}", FailureWarning)


def _check(model: Model, state: State, control: Control, last: object, steps: int, length: object) -> None:
    """Refuse what cannot be followed, by name."""
    model.check_batch(state, control)
    if not isinstance(last, Real) or not math.isfinite(last) or last == 0:
        raise InputError(f"follow.last: expected a number other than 0, got {last!r}")
    whole_number(steps, "follow.steps")
    if not isinstance(length, Real) or not 0 < float(length) <= 1:
        raise InputError(f"follow.length: expected a number above 0 and up to 1, got {length!r}")
    if state.internal is not None:
        raise InputError("follow: equilibria of materials that remember depend on the way; take Static with load_steps")
    if model.contact.constrained:
        raise InputError("follow: a path has a corner where a constraint closes or opens; take Penalty or Barrier")
    if not model.solvers.of(state.batch).solves_indefinite:
        raise InputError(f"follow: solver {model.solvers.name!r} cannot solve beyond limit points; take a direct one")


class _Point(NamedTuple):
    """Points of paths, one of each robot.

    Attributes
    ----------
    state : with the equilibrium.
    factor : (B,) load factor.
    ways, slope : the unit tangent there: of the unknowns (B, n_free) and of the load factor (B,).
    minimum : (B,) whether the matrix is positive definite.
    """

    state: State
    factor: Tensor
    ways: Tensor
    slope: Tensor
    minimum: Tensor

    def merged(self, other: _Point, rows: Tensor) -> _Point:
        """Return this with some rows (B,) replaced by those of other points."""
        return _Point(
            self.state.merged(other.state, rows),
            torch.where(rows, other.factor, self.factor),
            torch.where(rows[:, None], other.ways, self.ways),
            torch.where(rows, other.slope, self.slope),
            torch.where(rows, other.minimum, self.minimum),
        )


class _Walk:
    """Robots on their paths.

    Attributes
    ----------
    ways : of clamps with a pose.
    at : where they are.
    unit : (B,) length of the whole load, beside motions.
    part : (B,) of the longest step, how long the next of each is.
    taken : (B,) length of the step before, infinite before the first.
    sought : (B,) part of the longest step at which each began to look for a branch in shorter ones; 0 where none does.
    running : (B,) which are still on their way.
    told : () whether the matrix tells which equilibria are minima.
    """

    def __init__(self, problem: StepProblem, ways: RigidWays | None, last: float, longest: float):
        self.problem, self.model, self.last, self.longest = problem, problem.model, last, longest
        self.ways = ways
        model, state = self.model, problem.state
        nodes, count = model.nodes, model.body.n_nodes
        extent = torch.linalg.vector_norm(nodes.amax(0) - nodes.amin(0))
        of_nodes = model.unknowns.index < 3 * count
        self.metric = torch.where(of_nodes, 1 / (count * extent**2), 1 / count).to(state.q)
        self.running = problem.running
        self.status = torch.zeros_like(self.running, dtype=torch.long)
        self.unit, self.part = torch.ones_like(state.time), torch.ones_like(state.time)
        self.taken, self.sought = torch.full_like(state.time, math.inf), torch.zeros_like(state.time)
        zero, forward = torch.zeros_like(state.time), torch.full_like(state.time, 1.0 if last > 0 else -1.0)
        x = model.unknowns.picked(state.q)
        self.at = _Point(state, zero, torch.zeros_like(x), forward, torch.zeros_like(self.running))
        self.reached = torch.zeros_like(self.running)
        told = model.layout.pattern.symmetric and model.mechanics.conservative(at_rest=True)
        self.told = torch.tensor(told, device=state.q.device)

    def path(self, steps: int) -> EquilibriumPath:
        """Return the points up to so many after the first."""
        first, found, _, status = self._corrected(self.at, torch.zeros_like(self.part), self.running)
        self.at = self.at.merged(self._measured(first), found)
        self.status, self.running = torch.where(found, self.status, status), self.running & found
        points, lengths, counts = [self.at], [torch.zeros_like(self.part)], found.long()
        while len(points) <= steps and bool(self.running.any()):
            arrived = self._go_on()
            way = self._distance(points[-1], self.at)
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
            there, found, iterations, status = self._corrected(self.at, size, waiting)
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
        motion = torch.sqrt(self._dot(self.at.ways, self.at.ways))
        return self.longest / torch.maximum(motion, self.at.slope.abs())

    def _measured(self, first: _Point) -> _Point:
        """Find the unit of loads by how the robots begin to move, and return their first points in it."""
        motion = torch.sqrt(self._dot(first.ways, first.ways)) / first.slope.abs()
        self.unit = torch.where(motion > 0, motion, 1.0)
        norm = torch.sqrt(self._inner(first, first.ways, first.slope))
        return first._replace(ways=first.ways / norm[:, None], slope=first.slope / norm)

    def _leads_on(self, there: _Point, size: Tensor) -> Tensor:
        """Return which points (B,) may be the next of the path; before others, shorter steps have to be taken."""
        turned = self._inner(self.at, there.ways, there.slope) < TURN
        return ~turned & ~self._strayed(there, size) & ~self._over_two_turns(there)

    def _strayed(self, there: _Point, size: Tensor) -> Tensor:
        """Return which points (B,) lie too far from where a tangent leads.

        Ahead from the point before, measured by the motion of the robot; and back from there, measured with the load:
        tangents that agree with one another are of two branches where the way between them agrees with neither.
        """
        way = self._way(self.at, there)
        ahead = size[:, None] * self.at.ways
        off, led = (torch.sqrt(self._dot(motion, motion)) for motion in (way - ahead, ahead))
        length = self._distance(self.at, there)
        back, load = way - length[:, None] * there.ways, there.factor - self.at.factor - length * there.slope
        missed = torch.sqrt(self._dot(back, back) + (self.unit * load) ** 2)
        return (off > STRAYED * led + SMALL) | (missed > STRAYED * length + SMALL)

    def _ceases_to_be_stable(self, there: _Point) -> Tensor:
        """Return whose steps (B,) end at no minimum any more though the load does not turn: paths branch between."""
        return self.at.minimum & ~there.minimum & (self.at.slope * there.slope > 0)

    def _over_two_turns(self, there: _Point) -> Tensor:
        """Return whose steps (B,) lead over a load that falls and rises again, of which neither end tells."""
        back = _back(self._distance(self.at, there), self.at.factor, there.factor, self.at.slope, there.slope)
        return back > BACK * self.longest + SMALL

    def _over_the_last(self, there: _Point) -> Tensor:
        """Return whose steps (B,) lead over a turn of the load that may be at the last load factor or beyond.

        They have to be shorter: the path comes to the last load factor before it turns. Where the load turns is known
        as exactly as parabolas agree with the cubic between the points.
        """
        ahead = math.copysign(1.0, self.last)
        ends = self._distance(self.at, there), self.at.factor, there.factor, self.at.slope, there.slope
        length, first, last, rising, falling = ends
        turn, half = _turn(*ends), length / (2 * (rising - falling))
        off = torch.maximum((first + half * rising**2 - turn).abs(), (last + half * falling**2 - turn).abs())
        over = (ahead * rising > 0) & (ahead * falling < 0)
        return over & (torch.maximum(ahead * turn + off, ahead * last) >= abs(self.last))

    def _landed(self, there: _Point, rows: Tensor) -> tuple[_Point, Tensor]:
        """Take some points (B,) beyond the last load factor back to it; return all points, and which came there."""
        at = there._replace(ways=torch.zeros_like(there.ways), slope=1 / self.unit)
        landed, found, _, _ = self._corrected(at, self.unit * (self.last - there.factor), rows)
        sign = torch.where(self._inner(there, landed.ways, landed.slope) < 0, -1.0, 1.0)  # on as the path did
        landed = landed._replace(ways=sign[:, None] * landed.ways, slope=sign * landed.slope)
        found = found & (self.last * landed.slope > 0)  # not on the other side of a turn
        return there.merged(landed, found), found

    def _corrected(self, at: _Point, size: Tensor, rows: Tensor) -> tuple[_Point, Tensor, Tensor, Tensor]:
        """Go a length (B,) from points along their tangents, and from there back to the path.

        Return the points, which were found (B,), iterations and status.

        Parameters
        ----------
        rows : (B,) robots to look at.
        """
        weight, method = self.model.unknowns.residual_weight(), self.problem.method
        x0, factor = self.model.unknowns.picked(at.state.q), at.factor + size * at.slope
        candidates = self._candidates(at, size)
        equations = self._equations(at.state, factor, candidates)
        solver = equations.solver()
        tolerance = method.tolerance(equations.force_scale(weight))
        x = equations.advanced(x0, size[:, None] * at.ways)
        going, found, status = rows, torch.zeros_like(rows), torch.zeros_like(self.status)
        iterations = torch.zeros_like(status)
        while True:
            residual, values = equations.residual_and_matrix(x)
            norm = weighted_norms(residual, weight)
            noise = rounding_noise(x, values, solver.diagonal(x.device), weight)
            found = found | (going & (norm <= torch.maximum(tolerance, noise)))
            factors, _ = _factored(solver, values, going & ~found)
            regular = _regular(factors, values[solver.diagonal(x.device)].T)
            status = _ended(going & ~found, status, norm, regular, iterations, method.max_iterations)
            going = going & ~found & (status == 0)
            if not bool(going.any()):
                break
            iterations = iterations + going
            free, by_load = factors.solve(-residual), factors.solve(self._by_load(at.state, x, factor, candidates))
            off = self._inner(at, x - x0, factor - at.factor) - size
            change = -(off + self._dot(at.ways, free)) / self._inner(at, -by_load, torch.ones_like(factor))
            step = torch.where(going[:, None], free - change[:, None] * by_load, 0.0)
            x = torch.where(going[:, None], equations.advanced(x, step), x)
            factor = torch.where(going, factor + change, factor)
            equations = self._equations(at.state, factor, candidates)
        if not candidates.none:
            q = equations.full(x)
            passed = candidates.missed(q) | candidates.passed(equations.accepted_state(q, found))
            passed = found & passed
            status, found = torch.where(passed, int(Status.PASSED_THROUGH), status), found & ~passed
        there, tangent = self._point(at, equations, x, factor, found, candidates)
        status = torch.where(found & ~tangent, int(Status.SINGULAR), status)  # an equilibrium that leads nowhere
        return there, tangent, iterations, status

    def _candidates(self, at: _Point, size: Tensor) -> ContactCandidates:
        """Return what may touch on the way from points along their tangents, so far (B,)."""
        model, q = self.model, at.state.q
        control = self._control(at.state, at.factor + size * at.slope)
        step = model.unknowns.expand(size[:, None] * at.ways, torch.zeros_like(q))
        problem = self.problem.replace(state=at.state, control=control)
        return ContactCandidates(problem, model.unknowns.with_held(q + step, problem.clamped_q))

    def _point(
        self,
        at: _Point,
        equations: StepEquations,
        x: Tensor,
        factor: Tensor,
        rows: Tensor,
        candidates: ContactCandidates,
    ) -> tuple[_Point, Tensor]:
        """Return the points at x (B, n_free) and load factors (B,), and which (B,) of the rows have a tangent there.

        Tangents are turned to lead on as those at the points before do.
        """
        state = equations.accepted_state(equations.full(x), rows)
        there = self._equations(state, factor, candidates)
        x = self.model.unknowns.picked(state.q)
        solver = there.solver()
        _, values = there.residual_and_matrix(x)
        factors, definite = _factored(solver, values, rows)
        ways = -factors.solve(self._by_load(state, x, factor, candidates))
        norm = torch.sqrt(self._dot(ways, ways) + self.unit**2)
        ways, slope = ways / norm[:, None], 1 / norm
        sign = torch.where(self._inner(at, ways, slope) < 0, -1.0, 1.0)
        found = rows & _regular(factors, values[solver.diagonal(x.device)].T)
        return _Point(state, factor, sign[:, None] * ways, sign * slope, definite), found

    def _equations(self, state: State, factor: Tensor, candidates: ContactCandidates) -> StepEquations:
        """Return the equations of equilibria near a state under load factors (B,), with what may touch."""
        control = self._control(state, factor)
        start = self.model.mechanics.start(state, control, None, candidates.pairs, factor)
        held = self.problem.replace(state=state, control=control).clamped_q
        return StepEquations(self.model, self.problem.method.scheme, start, held, 0.0)

    def _control(self, state: State, factor: Tensor) -> Control:
        """Return the control under load factors (B,), for frames whose anchors are those of a state."""
        control = ramped(self.problem, factor)
        return control if self.ways is None else self.ways.posed(control, factor, state)

    def _by_load(self, state: State, x: Tensor, factor: Tensor, candidates: ContactCandidates) -> Tensor:
        """Return the derivative (B, n_free) of the residual at x by the load factor."""
        factors = (factor + sign * DIFFERENCE for sign in (1, -1))
        ahead, behind = (self._equations(state, other, candidates).residual(x) for other in factors)
        return (ahead - behind) / (2 * DIFFERENCE)

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product (B,) of motions (B, n_free)."""
        return (self.metric * a * b).sum(1)

    def _inner(self, at: _Point, ways: Tensor, slope: Tensor) -> Tensor:
        """Return the product (B,) of the tangent at points with another vector."""
        return self._dot(at.ways, ways) + self.unit**2 * at.slope * slope

    def _distance(self, a: _Point, b: _Point) -> Tensor:
        """Return how far (B,) points are from each other."""
        way = self._way(a, b)
        return torch.sqrt(self._dot(way, way) + (self.unit * (b.factor - a.factor)) ** 2)

    def _way(self, a: _Point, b: _Point) -> Tensor:
        """Return the motion (B, n_free) between points."""
        return self.model.unknowns.picked(b.state.q - a.state.q)


def _ended(going: Tensor, status: Tensor, norm: Tensor, solved: Tensor, iterations: Tensor, most: int) -> Tensor:
    """Return the status (B,) with rows marked that cannot go on."""
    status = torch.where(going & (iterations >= most), int(Status.MAX_ITERATIONS), status)
    status = torch.where(going & ~solved, int(Status.SINGULAR), status)
    return torch.where(going & ~torch.isfinite(norm), int(Status.NOT_FINITE), status)


def _factored(solver: Solver, values: Tensor, rows: Tensor) -> tuple[Factor, Tensor]:
    """Return the factor of the matrices of some rows (B,), and which of these are symmetric and positive definite."""
    factor = solver.factor(values, rows=rows)
    if not solver.pattern.symmetric:
        return factor, torch.zeros_like(rows)
    lost = rows & ~factor.ok
    if not bool(lost.any()):
        return factor, factor.ok
    return JoinedFactor(factor, solver.factor(values, rows=lost, indefinite=True)), factor.ok


def _regular(factor: Factor, diagonal: Tensor) -> Tensor:
    """Return for which robots (B,) the matrix resists every motion by more than rounding could.

    The smallest eigenvalue of the matrix, scaled so that its diagonal is one, is found by inverse iteration. A factor
    alone does not tell: where a robot is free to move, rounding leaves a pivot above zero, below it, or none.

    Parameters
    ----------
    diagonal : (B, n) of the matrices.
    """
    scale = torch.sqrt(diagonal.abs())
    numbers = torch.arange(diagonal.shape[1], device=diagonal.device, dtype=torch.float64)
    # all ways are in it, and it is the same in each run
    way = torch.frac(numbers * GOLDEN).sub(0.5).to(scale).expand_as(scale)
    for _ in range(INVERSE_ITERATIONS):
        way = scale * factor.solve(scale * way / torch.linalg.vector_norm(way, dim=1, keepdim=True))
    return factor.ok & (torch.linalg.vector_norm(way, dim=1) * RESISTS[diagonal.dtype] < 1)

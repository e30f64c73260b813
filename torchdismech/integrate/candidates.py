"""ContactCandidates: which contacts a step takes into account, guessed before it and checked after it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from torchdismech.contact.constraints import TOUCHING, ConstraintCandidates, ConstraintSet, slots_of
from torchdismech.contact.model import ContactModel
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.pairs import Pairs
from torchdismech.contact.passing import pairs_passed, passed_obstacle
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.problem import StepProblem
from torchdismech.model.mechanics import Mechanics
from torchdismech.records import replaced
from torchdismech.robot.state import State

__all__ = [
    "ContactCandidates",
    "LoadsOfRecording",
    "LoadsWithPairs",
    "PairsOfStep",
    "PointLoads",
    "PointsOfRecording",
    "StepContacts",
    "constraints_at",
    "constraints_of_points",
]

SEARCHES = 4  # how often a step is solved again with more candidates, at most
# m: any distance, as searches for equilibria may lead anywhere; below the gap of nodes that an obstacle lets pass
ANYWHERE = 1e5
MARGIN = 0.25  # of the largest motion that inertia leads to: added to the search distance, as things may get further


def constraints_at(problem: StepProblem, q: Tensor) -> ConstraintSet | None:
    """Return the contacts that are constraints and touch at q (B, n), where a step was solved.

    None if no contact of the model is a constraint.
    """
    contact, end = problem.model.contact, problem.end
    if not contact.constrained:
        return None
    obstacles, self_contacts, touching = contact.constrained_obstacles, contact.self_contacts, contact.may_touch_at(q)
    near = tuple(obstacle.gap(q, end) <= TOUCHING * obstacle.law.response.tolerance for obstacle in obstacles)
    pairs = None if touching is None else _constrained(contact, touching.listed)
    candidates, rubs = ConstraintCandidates(near, pairs), problem.method.scheme.inertial
    nowhere = torch.zeros_like(end)  # no other contacts are looked for
    return ConstraintSet(obstacles, self_contacts, problem.state, end, candidates, nowhere, rubs)


@dataclass(frozen=True)
class PointLoads:
    """The loads that a step has found at all points of the obstacles that are constraints, and nothing else touches.

    It stands in for `ContactCandidates` after the step.

    Attributes
    ----------
    contact : of the model.
    end : (B,) time at the end of the step [s].
    load : (B, C, 3) [N] of the points, obstacle by obstacle.
    """

    contact: ContactModel
    end: Tensor
    load: Tensor

    @property
    def none(self) -> bool:
        """Whether no point bears a load."""
        return not bool(self.load.any())

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of the step with these loads; see `ContactCandidates.equations`."""
        end, load = (self.end, self.load) if robots is None else (self.end[robots], self.load[robots])
        constraints = constraints_of_points(self.contact, problem.state, end, load)
        return problem.equations(constraints=constraints, mechanics=mechanics)

    def with_found(self, candidates: ContactCandidates | None, robots: Tensor) -> PointLoads:
        """Return the loads with those of some robots (B,) bool that a search among candidates, if any, has found."""
        at_points = torch.zeros_like(self.load)
        if candidates is not None and candidates.load is not None:  # else none bears a load
            near = torch.cat(candidates.near, dim=1)
            found = torch.nn.functional.pad(candidates.load, (0, 0, 0, 1))  # the last slot bears no load
            slot = torch.where(near, near.cumsum(1) - 1, found.shape[1] - 1)
            at_points = found.gather(1, slot.unsqueeze(2).expand(-1, -1, 3))
        return replaced(self, load=torch.where(robots[:, None, None], at_points, self.load))


@dataclass(frozen=True)
class PairsOfStep:
    """The pairs of parts that may touch in a step that a recording took; it stands in for `ContactCandidates` after it.

    Attributes
    ----------
    pairs : all of them.
    """

    pairs: StepPairs

    @property
    def none(self) -> bool:
        """Whether there is no pair."""
        return self.pairs.listed.none

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of the step with these pairs; see `ContactCandidates.equations`."""
        return problem.equations(self.pairs if robots is None else self.pairs.rows(robots), mechanics=mechanics)


@dataclass(frozen=True)
class LoadsWithPairs(PairsOfStep):
    """The pairs that may touch in a step that a recording took, and the loads of all contacts that are constraints.

    Attributes
    ----------
    contact : of the model.
    end : (B,) time at the end of the step [s].
    load : (S, 3) [N] of all points, obstacle by obstacle, then of the pairs of contacts that are constraints.
    """

    contact: ContactModel
    end: Tensor
    load: Tensor

    @property
    def none(self) -> bool:
        """Whether there is no load, and no pair that exerts a force by itself."""
        return not (bool(self.load.any()) or any(map(len, self.contact.self_contacts.force_tables(self.pairs.listed))))

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of the step with these pairs and loads; see `ContactCandidates.equations`."""
        pairs, end, loads = self.pairs, self.end, self._by_slots()
        if robots is not None:
            pairs, end, loads = pairs.rows(robots), end[robots], loads[robots]
        constraints = constraints_of_points(self.contact, problem.state, end, loads, pairs.listed)
        return problem.equations(pairs, constraints, mechanics)

    def _by_slots(self) -> Tensor:
        """Return the loads (B, C, 3) by the slots of contacts, see `ConstraintSet`."""
        batch = len(self.end)
        robots = torch.arange(batch, device=self.end.device)
        of_points = [robots.repeat_interleave(o.points.count) for o in self.contact.constrained_obstacles]
        of_pairs = [table.robot for table in _constrained(self.contact, self.pairs.listed).tables]
        robot = torch.cat([*of_points, *of_pairs])
        most = int(torch.bincount(robot, minlength=batch).max())
        return self.load.new_zeros(batch, most, 3).index_put((robot, slots_of(robot, batch)), self.load)


class PointsOfRecording:
    """The contacts of all points of obstacles, listed once; it stands in for `PointLoads` in recorded backward passes.

    Parameters
    ----------
    problem : a step on static buffers.
    load : (B, C, 3) buffer of the loads, as of `PointLoads`.
    """

    def __init__(self, problem: StepProblem, load: Tensor):
        constraints = constraints_of_points(problem.model.contact, problem.state, problem.end)
        self._load, self._constraints = load, constraints
        self._place = constraints.robot * load.shape[1] + constraints.slot
        # found here, and not by recordings, which read no numbers
        solver = problem.equations(constraints=constraints).solver()
        constraints.found_entries(solver.pattern, problem.model.unknowns.number)

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of the step with these loads, for all robots; see `ContactCandidates.equations`."""
        assert robots is None
        constraints = copy.copy(self._constraints)
        constraints.begin(problem.state, problem.end)
        constraints.load = self._load.flatten(0, 1).index_select(0, self._place)
        return problem.equations(constraints=constraints, mechanics=mechanics)


class LoadsOfRecording:
    """All contacts that are constraints, with pairs; it stands in for `LoadsWithPairs` in recorded backward passes.

    Parameters
    ----------
    constraints : of a step on static buffers.
    pairs : all pairs of that step.
    load : (S, 3) buffer of the loads of these constraints [N].
    """

    def __init__(self, constraints: ConstraintSet, pairs: StepPairs, load: Tensor):
        self._constraints, self._pairs, self._load = constraints, pairs, load

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of the step with these pairs and loads, for all robots."""
        assert robots is None
        constraints = copy.copy(self._constraints)
        constraints.begin(problem.state, problem.end)
        constraints.load = self._load
        return problem.equations(self._pairs, constraints, mechanics)


def constraints_of_points(
    contact: ContactModel, state: State, end: Tensor, loads: Tensor | None = None, pairs: Pairs | None = None
) -> ConstraintSet:
    """Return the constraints of a step from `state` to times `end` (B,) in which all points of obstacles are looked at.

    Parameters
    ----------
    loads : (B, C, 3) [N] of the points, obstacle by obstacle, then of pairs; None: zero.
    pairs : of parts that may touch; None: none are looked at.
    """
    obstacles = contact.constrained_obstacles
    constrained = (
        None if pairs is None or not contact.self_contacts.constrained_numbers else _constrained(contact, pairs)
    )
    all_points = ConstraintCandidates((None,) * len(obstacles), constrained)
    nowhere = torch.zeros_like(end)  # no other contacts are looked for
    return ConstraintSet(obstacles, contact.self_contacts, state, end, all_points, nowhere, loads=loads)


def _constrained(contact: ContactModel, pairs: Pairs) -> Pairs:
    """Return those pairs whose contacts are constraints."""
    return pairs.of_contacts(contact.self_contacts.constrained_numbers)


class ContactCandidates:
    """The contacts that a step takes into account, and whether they were enough.

    Parameters
    ----------
    problem : the step.
    ahead : (B, n) q to which the step may lead; by default where inertia and the clamps do.

    Attributes
    ----------
    none : whether the robots cannot touch anything: then there is nothing to guess or to check.
    searches : whether contacts are searched for: pairs of parts, or what is a constraint.
    search_distance : (B,) [m]; contacts that come nearer than this, between start and `ahead`, are candidates. In the
        search for an equilibrium so are the contacts of all points with obstacles that are constraints (`ANYWHERE`).
    search_distance_of_parts : (B,) [m] the same for contacts of parts with each other, for which it does not count what
        all nodes move together.
    pairs : the pairs of a robot's parts that may touch; None where none can.
    near : for each obstacle that is a constraint (B, P) bool: the points that may get to it.
    load : (B, C, 3) [N] loads of the constraints by their slots; None before the step is solved.
    """

    def __init__(self, problem: StepProblem, ahead: Tensor | None = None):
        self.model, self.state, self.end = problem.model, problem.state, problem.end
        self.contact, self.rubs = problem.model.contact, problem.method.scheme.inertial
        self._forces_at_end = problem.method.scheme.position == 1
        self.pairs: StepPairs | None = None
        self._widened = 0
        self.none = self.contact.none
        self.searches = len(self.contact.self_contacts) > 0 or self.contact.constrained
        self.load: Tensor | None = None
        self.near: tuple[Tensor, ...] = ()
        if not self.none:
            ahead = problem.ahead() if ahead is None else ahead
            motion = (ahead - self.state.q)[:, : 3 * self.model.body.n_nodes].unflatten(1, (-1, 3))
            among_parts = motion - motion.mean(1, keepdim=True)
            least = self._least_search_distance()
            self.search_distance, self.search_distance_of_parts = (
                least + MARGIN * way.abs().flatten(1).amax(1) for way in (motion, among_parts)
            )
            self._find_candidates(ahead)

    def equations(
        self, problem: StepProblem, robots: Tensor | None = None, mechanics: Mechanics | None = None
    ) -> StepEquations:
        """Return the equations of a step with these candidates; of some robots (B,) of the batch, if given.

        Parameters
        ----------
        mechanics : the forces, if not those of the model.
        """
        pairs = self.pairs if self.pairs is None or robots is None else self.pairs.rows(robots)
        return problem.equations(pairs, self.constraints(problem.state, robots), mechanics)

    def without_state(self) -> ContactCandidates:
        """Return a copy for the equations alone, which does not keep the state before the step alive."""
        copied = copy.copy(self)
        del copied.state, copied._ahead
        return copied

    def _least_search_distance(self) -> Tensor:
        """Return the search distance (1,) or (B,) [m] of robots at rest, to which motion adds.

        Penalties and barriers need no more than their tolerance. Constraints have to see a contact before it bears a
        load: from the mean contact radius of its points on, robot by robot. One distance serves all constraints, that
        of the contact whose points are largest.
        """
        self_contacts = self.contact.self_contacts
        if self.contact.constrained:
            radii = [
                contact.points.radius for contact in (*self.contact.obstacles, *self_contacts) if contact.constrained
            ]
            means = [radius.reshape(-1, radius.shape[-1]).mean(1) for radius in radii if radius.numel()]
            return reduce(torch.maximum, means)
        largest = torch.zeros(1, device=self.end.device)
        for contact in self_contacts:
            largest = torch.maximum(largest, contact.law.response.tolerance.reshape(-1))
        return largest

    def _find_candidates(self, ahead: Tensor) -> None:
        """Find the pairs and points that may touch on the way to `ahead` (B, n)."""
        self.pairs = self.contact.may_touch(self.state.q, ahead, self.search_distance_of_parts)
        reach = self.search_distance.unsqueeze(1) if self.rubs else ANYWHERE
        obstacles = self.contact.constrained_obstacles
        gaps = [torch.minimum(o.gap(self.state.q, self.state.time), o.gap(ahead, self.end)) for o in obstacles]
        self.near = tuple(gap < reach for gap in gaps)
        self._near_some = [(gap <= o.law.response.tolerance).any(1) for o, gap in zip(obstacles, gaps, strict=True)]
        self._ahead = ahead

    def seem_apart(self, running: Tensor) -> bool:
        """Return whether no contact that is searched for bears a load in the running robots (B,), as far as is known.

        What is known is whether they are apart where the step begins and where motion leads.
        """
        return not any(bool((running & near).any()) for near in self._near_some) and self.parts_seem_apart(running)

    def parts_seem_apart(self, running: Tensor) -> bool:
        """Return the same for contacts of the robots' parts with each other alone."""
        if self.pairs is None or self.pairs.listed.none:
            return True
        at_both = (self._parts_touch(self.pairs.listed, q) for q in (self.state.q, self._ahead))
        return not any(bool((running & touch).any()) for touch in at_both)

    def stay_apart(self, after: State, running: Tensor) -> bool:
        """Return whether no such contact of the running robots (B,) would have borne a load in a step without them."""
        out_of_reach = (obstacle.out_of_reach(after.q, self.end) for obstacle in self.contact.constrained_obstacles)
        return not any(bool((running & ~out).any()) for out in out_of_reach) and self.parts_stay_apart(after, running)

    def parts_stay_apart(self, after: State, running: Tensor) -> bool:
        """Return the same for contacts of the robots' parts with each other alone."""
        if self.pairs is None:
            return True
        listed = self.pairs.listed
        touch = ~listed.boxes.hold(after.q)
        if not listed.none:
            touch = touch | self._parts_touch(listed, after.q) | pairs_passed(listed, self.state.q, after.q)
        return not bool((running & touch).any())

    def _parts_touch(self, pairs: Pairs, q: Tensor) -> Tensor:
        """Return the robots (B,) of which some pair touches at q (B, n).

        Where forces are evaluated in the middle of a step, its ends do not tell, and all pairs that may touch count.
        """
        return self.contact.self_contacts.touch(pairs, q if self._forces_at_end else None)

    def constraints(self, state: State, robots: Tensor | None) -> ConstraintSet | None:
        """Return the contacts of the step from `state` that are constraints, with their first loads.

        These loads are those that a solved step has left (see `keep`), else zero. None if no contact of the model is a
        constraint.

        Parameters
        ----------
        robots : (B,) numbers of the robots of the batch that the state is of; None: all.
        """
        if not self.contact.constrained:
            return None
        self_contacts = self.contact.self_contacts
        pairs = None if self.pairs is None else _constrained(self.contact, self.pairs.listed)
        candidates = ConstraintCandidates(self.near, pairs)
        end, distance, loads = self.end, self.search_distance, self.load
        if robots is not None:
            candidates, end, distance = candidates.rows(robots), end[robots], distance[robots]
            loads = None if loads is None else loads[robots]
        obstacles = self.contact.constrained_obstacles
        return ConstraintSet(obstacles, self_contacts, state, end, candidates, distance, self.rubs, loads)

    def keep(self, constraints: ConstraintSet | None) -> None:
        """Keep the loads of the constraints that a step found, by slots."""
        if constraints is not None:
            size = int(constraints.slot.max()) + 1 if len(constraints) else 0
            self.load = constraints.load.new_zeros(len(self.end), size, 3)
            self.load[constraints.robot, constraints.slot] = constraints.load

    def missed(self, q: Tensor) -> Tensor:
        """Return the robots (B,) that at q (B, n) touch, or may touch, something that is no candidate."""
        if self.pairs is None:
            missed = torch.zeros(len(q), dtype=torch.bool, device=q.device)
        else:
            missed = ~self.pairs.listed.boxes.hold(q)
        for obstacle, near in zip(self.contact.constrained_obstacles, self.near, strict=True):
            missed = missed | ((obstacle.gap(q, self.end) < 0) & ~near).any(1)
        return missed

    def widen(self, q: Tensor) -> bool:
        """Look for candidates once more, within twice the distance and up to q (B, n), where the step led.

        Return whether that was done: after `SEARCHES` times it is not any more.
        """
        if self._widened == SEARCHES:
            return False
        self._widened += 1
        self.search_distance, self.search_distance_of_parts = (
            2 * self.search_distance,
            2 * self.search_distance_of_parts,
        )
        self._find_candidates(q)
        return True

    def passed(self, after: State) -> Tensor:
        """Return the robots (B,) in which something passed through something else.

        Looked at are the candidate pairs, all points that may touch obstacles, and overlaps with barriers at the end of
        the step.
        """
        passed = torch.zeros_like(self.end, dtype=torch.bool)
        if self.pairs is not None:
            passed = pairs_passed(self.pairs.listed, self.state.q, after.q)
            passed = passed | self.contact.self_contacts.overlapping(self.pairs.listed, after.q)
        for obstacle in self.contact.obstacles:
            passed = passed | passed_obstacle(obstacle, self.state, after)
            # the midpoint rule has looked at gaps in the middle of the step only
            if obstacle.law.response.feasible_only:
                passed = passed | (obstacle.gap(after.q, self.end) <= 0).any(1)
        return passed


# the contacts for which a step was solved
StepContacts = ContactCandidates | PointLoads | PairsOfStep

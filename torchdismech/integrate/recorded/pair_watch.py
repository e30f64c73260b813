"""PairWatch: which pairs of parts may touch, found once for many steps, and watched in each of these.

To look for the pairs of parts that may touch takes several times as long as a recorded step. So they are looked for in
boxes about the nodes that are wider than one step needs, and serve as long as the nodes stay inside. While none of them
touches, steps need not know of them, and recordings only look at their distances. Once some do, recordings take steps
in which they all may touch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.pairs.centre_lines import STILL_CROSSING, CentreLines, node_numbers
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.node_boxes import NodeBoxes
from torchdismech.contact.pairs.pair_calls import BoundLoop, PairCalls
from torchdismech.contact.pairs.pairs import Listed, PairTable
from torchdismech.contact.passing import CLEARANCE, TOUCH
from torchdismech.contact.response import of_robots
from torchdismech.fused import Fused
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import closest_on_triangle
from torchdismech.integrate.problem import StepProblem
from torchdismech.native.graphs import Unrecordable
from torchdismech.robot.state import State

__all__ = ["PairWatch"]

STEPS = 20.0  # boxes are as wide as the nodes move in so many steps, but no wider than edges are long,
FEWEST_STEPS = 4.0  # unless that is less than the nodes move in so many
# Where parts touch, the matrix gets larger with the number of pairs. Boxes reach as far as each node moves in some
# steps, and beyond by a part of that and of the farthest motion of a node in a step. These are few steps where there
# are many pairs, more than nodes, and more and more steps where there are few, less than half as many.
FEW_STEPS, MANY_STEPS, OFF_COURSE, OTHERS = 4.0, 16.0, 0.25, 1.0
OF_RADIUS = 0.1  # part of the smallest radius of a node: boxes of robots at rest are as wide
LONGEST_PAUSE = 64  # steps without a search, after pairs that served no step


class PairWatch:
    """The pairs of parts that may touch while the nodes stay in boxes, in memory that recordings read.

    Parameters
    ----------
    problem : one of the steps.
    sees_touch : whether recordings may take steps in which pairs touch. They may not with barriers between smooth
        lines, whose overlap is not looked at.

    Attributes
    ----------
    robots : how many there are.
    found : the pairs that were found last; None before.
    touching : whether some of them touched when they were found.

    Raises
    ------
    Unrecordable : compiled code cannot look at the pairs.
    """

    def __init__(self, problem: StepProblem, sees_touch: bool):
        q, shape = problem.state.q, (problem.state.batch, problem.model.body.n_nodes, 3)
        self._boxes = NodeBoxes(q.new_full(shape, torch.inf), q.new_full(shape, -torch.inf), q.new_zeros(shape)[:, :1])
        self.robots = problem.state.batch
        self._clearance = q.new_zeros(self.robots)
        pairs = problem.model.contact.may_touch_at(problem.state.q)
        assert pairs is not None
        self._contacts = problem.model.self_contacts
        tables = pairs.listed.tables
        self._apart = [_distances(table, self._touching_distance(table, pairs.listed.boxes)) for table in tables]
        self._unpassed = [_distances(table, TOUCH * table.reaches) for table in tables]
        self._without_overlap = [_distances(table, table.reaches) for table in self._with_barriers(tables)]
        self._crossing = [_compared(*lines, STILL_CROSSING) for lines in self._pairs_of_lines(tables)]
        barriers = (self._contacts[number] for number in self._contacts.barrier_numbers)
        self._sees_touch = sees_touch and not any(contact.lines for contact in barriers)
        self._constants: list[Tensor] = []  # of the contacts, when the pairs were found; empty where none are known
        self._found_at: Tensor | None = None  # (B,) [s] end of the step in which they were found; None: none are known
        self._pause = self._last_pause = 0
        self._steps_touching = FEW_STEPS
        self.found: StepPairs | None = None
        self.touching = False

    @property
    def known(self) -> bool:
        """Whether it is known which pairs may touch, and radii and laws are the same now; NaN equals nothing."""
        now = self._contacts.constants()
        return len(now) == len(self._constants) and all(map(torch.equal, now, self._constants))

    def holds(self, q: Tensor, running: Tensor) -> bool:
        """Return whether the nodes of all running robots (B,) are in their boxes at q (B, n)."""
        return bool((self._boxes.hold(q) | ~running).all())

    def near(self, before: State, after: State, running: Tensor) -> Tensor:
        """Return whether parts of a running robot (B,) may have touched in a step, as a tensor (); for recordings."""
        return self._outside_or_near(self._apart, before, after, running)

    def passed(self, before: State, after: State, running: Tensor) -> Tensor:
        """Return whether unknown pairs may have touched in a step, or known ones may have passed through each other.

        A tensor () for a running robot (B,); for recordings. Pairs with a barrier have passed through it if they
        overlap at the end: the midpoint rule looks at their gaps in the middle of the step only. Smooth lines that
        begin or cease to cross are other pairs.
        """
        passed = self._outside_or_near(self._unpassed, before, after, running)
        if self._without_overlap:
            passed = passed | self._outside_or_near(self._without_overlap, after, after, running)
        if self._crossing:
            passed = passed | self._outside_or_near(self._crossing, before, before, running)
        return passed

    def stands(self, problem: StepProblem, after: State, near: Tensor | None) -> bool:
        """Return whether no parts touched in a step; where nodes have left their boxes, new pairs are looked for.

        Parameters
        ----------
        after : the states after the step.
        near : () what `near` found for it.
        """
        if near is None or not bool(near):
            return True
        if self.holds(after.q, problem.running) and not self._sees_touch:
            self._constants = []  # parts are about to touch: pairs are looked for in each step from now on
        return self.known and self.renew(problem, after) and not self.touching

    def still_touching(self, problem: StepProblem, after: State, anywhere: bool) -> bool:
        """Return whether some of the known pairs touched before a step, and in it, too, in which nodes kept inside.

        With `anywhere` they may have left their boxes.
        """
        if not (self.touching and self.known and (anywhere or self.holds(after.q, problem.running))):
            return False
        return bool(self.near(problem.state, after, problem.running))

    @torch.no_grad()
    def renew(self, problem: StepProblem, after: State) -> bool:
        """Look for the pairs to watch about the way of a step; return whether they are known now.

        There is a pause of some steps after pairs that served no step, and where some touch that may not.
        """
        self._give_up(problem)
        if self._pause:
            self._pause -= 1
            return False
        near = self._look_for_pairs(problem, after)
        if near and self._sees_touch and not self.touching:
            self.touching = True  # once more, in the narrower boxes of parts that touch
            near = self._look_for_pairs(problem, after)
        self.touching = near and self._sees_touch
        if self.touching:
            self._steps_touching = self._steps_ahead(after)
        if near and not self.touching:
            self._wait_longer()
            return False
        self._constants = [constant.clone() for constant in self._contacts.constants()]
        self._found_at = after.time.clone()
        return True

    def _give_up(self, problem: StepProblem) -> None:
        """Give up the pairs that are known; wait longer than last time if they have served no step before this one.

        They have not in the step after they were found, nor if this step begins outside of their boxes, as where chunks
        of a batch are stepped in turn.
        """
        self._constants, before = [], problem.state
        if self._found_at is None:
            return
        if torch.equal(self._found_at, before.time) or not self.holds(before.q, problem.running):
            self._wait_longer()
        else:
            self._last_pause = 0
        self._found_at = None

    def _wait_longer(self) -> None:
        self._pause = self._last_pause = min(2 * self._last_pause + 1, LONGEST_PAUSE)

    def _look_for_pairs(self, problem: StepProblem, after: State) -> bool:
        """Look for the pairs that may touch in some steps like a given one; return whether some touched in that."""
        before = problem.state
        if self.touching:
            end, margin = self._way_ahead(before, after)
        else:
            end, margin = after.q, self._width(before, after)
        self.found = problem.model.contact.may_touch(before.q, end, margin)
        assert self.found is not None
        tables, boxes = self.found.listed.tables, self.found.listed.boxes
        for (apart, _), (unpassed, _), table in zip(self._apart, self._unpassed, tables, strict=True):
            apart.bind(table.listed, [self._touching_distance(table, boxes)], None)
            unpassed.bind(table.listed, [TOUCH * table.reaches], None)
        for (separate, _), table in zip(self._without_overlap, self._with_barriers(tables), strict=True):
            separate.bind(table.listed, [table.reaches], None)
        for (crossing, _), lines in zip(self._crossing, self._pairs_of_lines(tables), strict=True):
            crossing.bind(*lines, None)
        for kept, found in zip(vars(self._boxes).values(), vars(boxes).values(), strict=True):
            kept.copy_(found)
        return bool(self.near(before, after, problem.running))

    def _outside_or_near(
        self, distances: Sequence[tuple[PairCalls, BoundLoop]], before: State, after: State, running: Tensor
    ) -> Tensor:
        """Return whether a running robot was outside of its boxes, or pairs got nearer than some distances, ()."""
        inside = self._boxes.hold(torch.stack([before.q, after.q])).all(0)
        self._clearance.fill_(torch.inf)
        for calls, loop in distances:
            calls.call("pair_least", before.q, after.q, None, loop.address, self._clearance)
        return (running & ~(inside & (self._clearance > 0))).any()

    def _with_barriers(self, tables: Sequence[PairTable]) -> list[PairTable]:
        """Return those tables whose pairs have a barrier between them."""
        return [table for table in tables if table.contact in self._contacts.barrier_numbers]

    def _touching_distance(self, table: PairTable, boxes: NodeBoxes) -> Tensor:
        """Return the distances (C,) [m] of pairs of edges, or of points and triangles, below which they may touch.

        Those of smooth lines count how far these may bulge out of their edges while nodes stay in boxes.
        """
        distance = table.reaches + of_robots(self._contacts[table.contact].law.response.tolerance, table.robot)
        lines = self._lines_of(table)
        if lines is None:
            return distance
        bulges, (_, first, second) = lines.bulges(boxes.low, boxes.high), lines.of_pairs(table.listed)
        return distance + bulges[table.robot, first] + bulges[table.robot, second]

    def _lines_of(self, table: PairTable) -> CentreLines | None:
        """Return the smooth lines that a table's pairs of edges are of; None for straight edges and for triangles."""
        return None if table.kernel is closest_on_triangle else self._contacts[table.contact].lines

    def _pairs_of_lines(self, tables: Sequence[PairTable]) -> list[tuple[Listed, list[Tensor]]]:
        """Return the pairs of smooth lines in each table of such, and the further inputs of `STILL_CROSSING`."""
        pairs = []
        for table in tables:
            lines = self._lines_of(table)
            if lines is not None:
                listed, *_ = lines.of_pairs(table.listed)
                crossed = torch.full_like(table.reaches, 1.0 if table.kernel is closest_crossing else -1.0)
                pairs.append((listed, [table.reaches, crossed, *node_numbers(listed.nodes, crossed)]))
        return pairs

    def _steps_ahead(self, after: State) -> float:
        """Return for how many steps pairs that touch are looked for next time, after some were found."""
        assert self.found is not None
        pairs = sum(map(len, self.found.listed.tables)) / after.batch
        if pairs > after.n_nodes:
            return FEW_STEPS
        return min(2 * self._steps_touching, MANY_STEPS) if 2 * pairs < after.n_nodes else self._steps_touching

    def _way_ahead(self, before: State, after: State) -> tuple[Tensor, Tensor]:
        """Return where steps like the one between two states lead, q (B, n), and how far nodes may be off there (B, N).

        It is for parts that touch, of which few pairs should be among those that may.
        """
        motion = after.positions - before.positions
        lengths = torch.linalg.vector_norm(motion - motion.mean(1, keepdim=True), dim=2)
        steps, radius = self._steps_touching, self._contacts[0].points.radius.min()
        off = OFF_COURSE * steps * lengths + OTHERS * lengths.amax(1, keepdim=True)
        return torch.lerp(before.q, after.q, steps), off + OF_RADIUS * steps / FEW_STEPS * radius

    def _width(self, before: State, after: State) -> Tensor:
        """Return half the size (B,) [m] of boxes that last for some steps like the one between two states."""
        motion = after.positions - before.positions
        apart = (motion - motion.mean(1, keepdim=True)).abs().flatten(1).amax(1)
        points = self._contacts[0].points
        at_most, at_rest = self._contacts[0].body.typical_length(), OF_RADIUS * points.radius.min()
        return (STEPS * apart).clamp_max(at_most).maximum(FEWEST_STEPS * apart).clamp_min(at_rest)


def _distances(table: PairTable, than: Tensor) -> tuple[PairCalls, BoundLoop]:
    """Return calls of compiled code for the pairs of a table, and the loop that compares distances in a step.

    Parameters
    ----------
    than : (C,) the distances that they are compared with [m].
    """
    return _compared(table.listed, [than], CLEARANCE[table.kernel])


def _compared(listed: Listed, further: Sequence[Tensor], loop: Fused) -> tuple[PairCalls, BoundLoop]:
    """Return calls of compiled code for pairs, and the loop whose least value for each robot is looked at."""
    calls = PairCalls(listed, further, further[0].dtype)
    calls.on_tapes = True
    bound = calls.loop(loop, (calls.x, calls.moving, *calls.further))
    if bound is None:
        raise Unrecordable("the clearance of pairs, which has no compiled code")
    return calls, bound

"""PairWatch: which pairs of parts may touch, found once for many steps, and watched in each of these.

To look for the pairs of parts that may touch takes several times as long as a recorded step. So while no parts touch,
pairs are looked for in boxes about the nodes that are wider than one step needs. As long as the nodes stay inside, it
is enough to look at these pairs, which recordings do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.pairs.node_boxes import NodeBoxes
from torchdismech.contact.pairs.pair_calls import BoundLoop, PairCalls
from torchdismech.contact.pairs.pairs import Pairs, PairTable
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.contact.passing import CLEARANCE
from torchdismech.contact.response import of_robots
from torchdismech.integrate.problem import StepProblem
from torchdismech.native.graphs import Unrecordable
from torchdismech.robot.state import State

__all__ = ["PairWatch"]

STEPS = 20.0  # boxes are as wide as the nodes move in so many steps, but no wider than edges are long,
FEWEST_STEPS = 4.0  # unless that is less than the nodes move in so many
OF_RADIUS = 0.1  # part of the smallest radius of a node: boxes of robots at rest are as wide
LONGEST_PAUSE = 64  # steps without a search, after pairs that served no step


class PairWatch:
    """The pairs of parts that may touch while the nodes stay in boxes, in memory that recordings read.

    Parameters
    ----------
    problem : one of the steps.

    Raises
    ------
    Unrecordable : compiled code cannot look at the pairs.
    """

    def __init__(self, problem: StepProblem):
        q, shape = problem.state.q, (problem.state.batch, problem.model.body.n_nodes, 3)
        self._boxes = NodeBoxes(q.new_full(shape, torch.inf), q.new_full(shape, -torch.inf), q.new_zeros(shape)[:, :1])
        self._clearance = q.new_zeros(problem.state.batch)
        pairs = problem.model.contact.may_touch_at(problem.state.q)
        assert pairs is not None
        self._contacts = problem.model.self_contacts
        self._calls = [_calls(self._contacts, table) for table in _of_straight_edges(self._contacts, pairs.listed)]
        self._constants: list[Tensor] = []  # of the contacts, when the pairs were found; empty where none are known
        # (B,) [s] end of the step in which they were found; None where they were not
        self._found_at: Tensor | None = torch.full_like(problem.state.time, torch.nan)
        self._pause = self._last_pause = 0

    @property
    def known(self) -> bool:
        """Whether it is known which pairs may touch, and radii and laws are the same now; NaN equals nothing."""
        now = self._contacts.constants()
        return len(now) == len(self._constants) and all(map(torch.equal, now, self._constants))

    def near(self, before: State, after: State, running: Tensor) -> Tensor:
        """Return whether parts of a running robot (B,) may have touched in a step, as a tensor (); for recordings."""
        inside = self._boxes.hold(torch.stack([before.q, after.q])).all(0)
        self._clearance.fill_(torch.inf)
        for calls, loop in self._calls:
            calls.call("pair_least", before.q, after.q, None, loop.address, self._clearance)
        return (running & ~(inside & (self._clearance > 0))).any()

    def keeps_apart(self, problem: StepProblem, after: State, near: Tensor | None) -> bool:
        """Return whether no parts touched in a step; where nodes have left their boxes, new pairs are looked for.

        Parameters
        ----------
        after : the states after the step.
        near : () what `near` found for it.
        """
        if near is None or not bool(near):
            return True
        if bool(self._boxes.hold(after.q).all()):
            self._constants = []  # parts are about to touch: pairs are looked for in each step from now on
        return self.known and self.renew(problem, after)

    @torch.no_grad()
    def renew(self, problem: StepProblem, after: State) -> bool:
        """Look for the pairs to watch about the way of a step; return whether none of them touched in it.

        After pairs that served no step there is a pause of some steps.
        """
        before, self._constants = problem.state, []
        if self._pause:
            self._pause -= 1
            return False
        served = self._found_at is not None and not torch.equal(self._found_at, before.time)
        self._last_pause = self._pause = 0 if served else min(2 * self._last_pause + 1, LONGEST_PAUSE)
        self._found_at = None
        pairs = problem.model.contact.may_touch(before.q, after.q, self._width(before, after))
        assert pairs is not None
        watched = _of_straight_edges(self._contacts, pairs.listed)
        if any(map(len, set(pairs.listed.tables).difference(watched))):
            return False
        for (calls, _), table in zip(self._calls, watched, strict=True):
            calls.bind(table.listed, [_distance(self._contacts, table)], None)
        for kept, found in zip(vars(self._boxes).values(), vars(pairs.listed.boxes).values(), strict=True):
            kept.copy_(found)
        if bool(self.near(before, after, problem.running)):
            return False
        self._constants = [constant.clone() for constant in self._contacts.constants()]
        self._found_at = after.time.clone()
        return True

    def _width(self, before: State, after: State) -> Tensor:
        """Return half the size (B,) [m] of boxes that last for some steps like the one between two states."""
        motion = after.positions - before.positions
        apart = (motion - motion.mean(1, keepdim=True)).abs().flatten(1).amax(1)
        points = self._contacts[0].points
        at_most, at_rest = self._contacts[0].body.typical_length(), OF_RADIUS * points.radius.min()
        return (STEPS * apart).clamp_max(at_most).maximum(FEWEST_STEPS * apart).clamp_min(at_rest)


def _of_straight_edges(contacts: SelfContacts, pairs: Pairs) -> list[PairTable]:
    """Return the tables of pairs whose distances are those of their nodes' edges and triangles, not of smooth lines."""
    return [table for table in pairs.tables if contacts[table.contact].lines is None]


def _calls(contacts: SelfContacts, table: PairTable) -> tuple[PairCalls, BoundLoop]:
    """Return calls of compiled code for the pairs of a table, and the loop that finds their clearance in a step."""
    calls = PairCalls(table.listed, [_distance(contacts, table)], table.reaches.dtype)
    calls.on_tapes = True
    loop = calls.loop(CLEARANCE[table.kernel], (calls.x, calls.moving, *calls.further))
    if loop is None:
        raise Unrecordable("the clearance of pairs, which has no compiled code")
    return calls, loop


def _distance(contacts: SelfContacts, table: PairTable) -> Tensor:
    """Return the distances (C,) of the closest points of pairs below which they touch [m]."""
    return table.reaches + of_robots(contacts[table.contact].law.response.tolerance, table.robot)

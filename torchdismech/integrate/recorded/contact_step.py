"""RecordedContactStep: a whole step with contacts that are constraints, as recordings of its three parts.

As in `step.py` these are the set-up, rounds and the end, on static buffers. The contacts are those of all points with
obstacles, near or not, so that the tables of contacts stay the same from step to step, and of the pairs of parts that
may touch, in tables of a fixed length (`lasting_pairs.py`). Rounds are those of the first attempt, by semismooth Newton
steps (`integrate.search.semismooth`). Robots that these do not solve are left to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.passing import obstacles_suspected
from torchdismech.contact.report import ContactReport
from torchdismech.errors import Status
from torchdismech.integrate.candidates import LoadsWithPairs, PairsOfStep, PointLoads, constraints_of_points
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.lasting_pairs import TouchWatch
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.integrate.recorded.static_problem import StaticProblem
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.integrate.search.attempts import Search
from torchdismech.integrate.search.semismooth import ContactProgress, contact_begun, contact_round, some_closed
from torchdismech.integrate.step import newton_options, step_contact
from torchdismech.native.calls import CallTable
from torchdismech.native.graphs import Recording, Unrecordable, recorded
from torchdismech.native.step_loop import NO_CALLS, StepCalls
from torchdismech.robot.state import State
from torchdismech.solve.search import RUNNING, NewtonOptions, Root

__all__ = ["RecordedContactStep", "WholeStep"]


class _SetUp(NamedTuple):
    """The results of a step's set-up.

    Attributes
    ----------
    equations, scale, options : the equations, their force scale (B,) [N], and the options of the search.
    progress : how far the search is; rounds write to it.
    """

    equations: StepEquations
    scale: Tensor
    options: NewtonOptions
    progress: ContactProgress


class _End(NamedTuple):
    """The results of a step's end.

    Attributes
    ----------
    after : the states after the step.
    suspect : () whether some robot may have passed through an obstacle.
    near : () whether parts of some robot may have touched, see `PairWatch`; None where none ever do.
    contact : the contact report of the step.
    """

    after: State
    suspect: Tensor
    near: Tensor | None
    contact: ContactReport


@dataclass(frozen=True)
class WholeStep:
    """A step as far as a recording has solved it as a whole.

    Attributes
    ----------
    after, info : the states after the step, and how it went; robots that are unsolved keep the state before it.
    contacts : the loads of all points with obstacles that are constraints, or the pairs of parts that may touch; None
        where nothing that is searched for touches.
    unsolved : (B,) robots that the recording has not solved; None: it has solved all.
    """

    after: State
    info: StepInfo
    contacts: PointLoads | PairsOfStep | None
    unsolved: Tensor | None

    @property
    def bears_load(self) -> bool:
        """Whether some contact of these may bear a load."""
        return self.contacts is not None and not self.contacts.none


class RecordedContactStep:
    """The recordings of steps of one kind, with contacts that are constraints.

    Parameters
    ----------
    kind : of the steps.
    problem : the first of them.
    watch : of the pairs of parts that may touch; None for robots whose parts never do. With a `PairWatch` the step is
        one in which none do, with a `TouchWatch` one in which all may.

    Attributes
    ----------
    static : the buffers, and the step on them.
    constraints : the contacts.
    set_up, rounds, end : the recordings; rounds are those without closed contacts (False) and with them (True).
    flags : (3,) which the set-up and each round write, see `_flags_of`.
    result : the states after a step and how it went, in memory that each replay overwrites; None before the first.

    Raises
    ------
    Unrecordable : the first attempt of these steps is another one, or some operation reads numbers on the host.
    """

    def __init__(self, kind: StepKind, problem: StepProblem, watch: PairWatch | TouchWatch | None = None):
        self.static, self._watch = StaticProblem(kind, problem), watch
        self._pairs = watch.pairs if isinstance(watch, TouchWatch) else None
        self.static.give(kind.inputs(problem), problem.dt)
        device, pool = problem.model.device, self.static.pool
        static = self.static.problem
        with self.static.in_model():
            if self._pairs is None:
                self.constraints = constraints_of_points(problem.model.contact, static.state, static.end)
            else:
                self.constraints = self._pairs.constrain(static)
            self.flags = torch.zeros(3, dtype=torch.bool, device=device)
            self.set_up: Recording[_SetUp] = recorded(self._set_up, device, pool)
            self._results = self.set_up.replay()
            self.rounds: dict[bool, Recording[None]] = {
                closed: recorded(partial(self._round, closed), device, pool) for closed in (False, True)
            }
            self.end: Recording[_End] = recorded(self._end, device, pool)
        self.result: tuple[State, StepInfo] | None = None

    def taken(self, inputs: Sequence[Tensor], problem: StepProblem) -> WholeStep | None:
        """Return a step as rounds take it; None where some robot may have passed through an obstacle.

        Parameters
        ----------
        inputs : of the step, as of `StepKind.inputs`.
        """
        self.static.give(inputs, problem.dt)
        unsolved = self.replayed()
        if self.suspects():
            return None
        assert self.result is not None
        after, info = self.result
        return WholeStep(after.clone(), info.clone(), self._loads(problem), unsolved)

    def _loads(self, problem: StepProblem) -> PointLoads | LoadsWithPairs:
        """Return the loads that the last step has found, and the pairs that it knew of."""
        contact, load, constraints = problem.model.contact, self._results.progress.load, self.constraints
        if self._pairs is None:
            by_robot = [load[part].view(problem.state.batch, -1, 3) for part in constraints.of_obstacles]
            return PointLoads(contact, problem.end, torch.cat(by_robot, 1))
        assert self._pairs.taken is not None
        return LoadsWithPairs(self._pairs.taken, contact, problem.end, self._pairs.without_room(load))

    def replayed(self) -> Tensor | None:
        """Replay a step on the static buffers; return the robots (B,) that rounds have not solved, None for none."""
        self.set_up.replay()
        more, lost, closed = self.flags.tolist()
        while more:
            self.rounds[closed].replay()
            more, lost, closed = self.flags.tolist()
        end = self.end.replay()
        results, progress = self._results, self._results.progress
        if self.result is None:  # made once: its tensors are those that each step overwrites
            root = Root(progress.x, progress.status, progress.iterations, progress.norm, results.options.tolerance)
            self.result = end.after, StepInfo.of(root, progress.status, results.scale, end.contact)
        return progress.status != int(Status.CONVERGED) if lost else None

    def suspects(self) -> bool:
        """Return whether some robot may have passed through an obstacle in the step that was replayed last."""
        return bool(self.end.outputs.suspect)

    def stands(self) -> bool:
        """Return whether nothing touched or passed unseen in the step that was replayed last."""
        end = self.end.outputs
        return not self.suspects() and (
            self._watch is None or self._watch.stands(self.static.problem, end.after, end.near)
        )

    def taken_again(self, other_pairs: bool) -> bool:
        """Take a step with pairs once more with those found last, see `taken_alone`.

        Return False, too, where these are others, unless `other_pairs` are allowed.
        """
        watch = self._watch
        return isinstance(watch, TouchWatch) and watch.takes_known_pairs(other_pairs) and self.taken_alone()

    def taken_alone(self) -> bool:
        """Take the step on the static buffers; return whether recordings alone do so for all robots, see `stands`."""
        return self.replayed() is None and self.stands()

    # ---- for a compiled loop of steps ------------------------------------------------------------------------------

    def parts(self) -> Sequence[Recording]:
        """Return the recordings of set-up, both kinds of rounds, and end."""
        return self.set_up, self.rounds[False], self.rounds[True], self.end

    def calls(self, *parts: CallTable) -> StepCalls:
        """Return the calls of a step, from those of its `parts` and of what hands its state on."""
        set_up, without, with_closed, end, hand_on = parts
        return StepCalls(set_up, without, with_closed, NO_CALLS, end, hand_on, contact_flags=self.flags)

    def checks(self) -> Sequence[Tensor]:
        """Return the tensors that are all zero after a successful step."""
        end = self.end.outputs
        return [end.suspect] if end.near is None else [end.suspect, end.near]

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _set_up(self) -> _SetUp:
        problem, constraints = self.static.problem, self.constraints
        constraints.begin(problem.state, problem.end)
        constraints.load = torch.zeros_like(constraints.load)
        pairs = None if self._pairs is None else self._pairs.pairs
        equations = self.static.prepared_equations(constraints, pairs)
        first = next(iter(problem.method.attempts(equations, problem.divisible)))
        if first.search is not Search.SEMISMOOTH:
            raise Unrecordable("the first attempt of these steps is not by semismooth Newton steps")
        weight, scale, x = equations.setup(None, True)
        options = first.options(newton_options(problem, equations, weight, problem.method.tolerance(scale)))
        progress, options = contact_begun(equations, x, options, problem.running)
        lost = problem.running & (~problem.state.finite() | problem.model.contact.undefined(problem.state))
        progress = progress._replace(status=torch.where(lost, int(Status.NOT_FINITE), progress.status))
        progress = ContactProgress(*(tensor.clone() for tensor in progress))
        self.flags.copy_(_flags_of(equations, progress))
        return _SetUp(equations, scale, options, progress)

    def _round(self, closed: bool) -> None:
        """Take a round, with contacts or without any, and write the flags."""
        results = self._results
        after = contact_round(results.equations, results.progress, results.options, closed)
        for new, static in zip(after, results.progress, strict=True):
            static.copy_(new)
        self.flags.copy_(_flags_of(results.equations, results.progress))

    def _end(self) -> _End:
        problem, equations, progress = self.static.problem, self._results.equations, self._results.progress
        self.constraints.load = progress.load
        q, accepted = equations.full(progress.x), problem.running & (progress.status == int(Status.CONVERGED))
        after = equations.accepted_state(q, accepted)
        suspect = obstacles_suspected(equations.model.obstacles, problem.state, after)
        near = None if self._watch is None else self._watch.near(problem.state, after, problem.running)
        return _End(after, suspect.any(), near, step_contact(equations, q, accepted))


def _flags_of(equations: StepEquations, progress: ContactProgress) -> Tensor:
    """Return whether some row goes on, some row is lost, and some contact of a row that goes on is closed, (3,)."""
    more = progress.status == RUNNING
    lost = ~more & (progress.status != int(Status.CONVERGED))
    return torch.stack([more.any(), lost.any(), some_closed(equations, progress)])

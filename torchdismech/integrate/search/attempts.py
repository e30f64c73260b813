"""Attempts: the searches for the root of a step, one after the other, for the robots that are not solved yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from torchdismech.integrate.search.closed_contacts import uses_active_sets
from torchdismech.solve.search import NewtonOptions

if TYPE_CHECKING:
    from torchdismech.integrate.equations import StepEquations

__all__ = ["Attempt", "Search", "Start", "attempts_at_step"]

# Iterations after which the next attempt is made. Whole steps: few where rubbing contacts go on to stick or slide as
# before, and one more where a recording replays them, as it does where no parts may touch. Most primal-dual searches
# take fewer than the limit, or several times as many. Stages of eased friction that are solved take fewer than 10, as a
# rule. Semismooth steps take 2 to 4 rounds as a rule, 5 to 15 where rods slide on a ball, up to 30 in piles of rough
# rods; replayed rounds cost little beside the next search.
WHOLE_STEPS, WHOLE_STEPS_WITH_PAIRS, WHOLE_STEPS_OF_TENDONS = 3, 2, 6
PRIMAL_DUAL_STEPS, PRIMAL_DUAL_STEPS_OF_TENDONS = 20, 12
SEMISMOOTH_STEPS = 30
STEPS_OF_A_BRIEF_STAGE = 15


class Start(Enum):
    """Where the first iterate of an attempt is."""

    AHEAD = "where motion leads"
    HERE = "where robots are"
    LAST = "where the attempt before ended"


class Search(Enum):
    """By which method an attempt searches."""

    LINE_SEARCH = "Newton steps that a line search shortens, if the integrator has one"
    WHOLE = "Newton steps, each of them whole"
    PRIMAL_DUAL = "tractions of friction as unknowns"
    EASED = "friction let in by stages"
    EASED_BRIEFLY = "friction let in by stages, from one beginning alone"
    RELAXED = "steps with artificial inertia"
    DESCENT = "down the potential"
    SEMISMOOTH = "Newton steps that take from the iterate before which contacts are closed"

    @property
    def eases(self) -> bool:
        """Whether it lets friction in by stages."""
        return self in (Search.EASED, Search.EASED_BRIEFLY)


@dataclass(frozen=True)
class Attempt:
    """A search for the root of a step.

    Attributes
    ----------
    start : the first iterate.
    search : the method.
    max_iterations : iterations after which the next attempt is made; None: as many as the integrator allows.
    """

    start: Start
    search: Search
    max_iterations: int | None = None

    def options(self, options: NewtonOptions) -> NewtonOptions:
        """Return the integrator's options, changed as this attempt needs."""
        if self.search is Search.WHOLE:
            options = dataclasses.replace(options, shortest=1.0)
        if self.max_iterations is not None:
            limit = min(self.max_iterations, options.max_iterations)
            options = dataclasses.replace(options, max_iterations=limit)
        return options


def attempts_at_step(equations: StepEquations, line_search: bool, divisible: bool) -> Iterator[Attempt]:
    """Yield the attempts at a step in time, in turn.

    In smooth motion the root is nearest to where inertia leads, in violent motion to where the robot is. To descend the
    potential is slow but sure; where there is no potential, relaxed steps take its place. Robots that rub take whole
    Newton steps first, primal-dual steps where these are no good, and friction is eased in where these fail in turn.
    Robots that still fail buckle, and take relaxed steps. Where only tendons rub, primal-dual steps come second: stiff
    tendons that become slack and taut need a line search, eased friction or not. With constraints only Newton steps are
    tried, semismooth ones first where active sets are used.

    Parameters
    ----------
    line_search : whether Newton steps may be shortened.
    divisible : whether robots that are not solved take the step again in smaller parts. For robots that rub, long
        searches with eased friction, and what comes after these, are left to the smallest parts: shorter steps are
        solved in fewer iterations.
    """
    contact, rubs = equations.model.contact, equations.rubbing.some
    if rubs and contact.none and line_search:
        yield Attempt(Start.AHEAD, Search.WHOLE, WHOLE_STEPS_OF_TENDONS)
        yield Attempt(Start.LAST, Search.PRIMAL_DUAL, PRIMAL_DUAL_STEPS_OF_TENDONS)
        yield from _newton_attempts(equations, line_search)
    elif rubs and line_search and equations.constraints is None:
        pairs = len(contact.self_contacts)
        yield Attempt(Start.AHEAD, Search.WHOLE, WHOLE_STEPS_WITH_PAIRS if pairs else WHOLE_STEPS)
        yield Attempt(Start.LAST, Search.PRIMAL_DUAL, PRIMAL_DUAL_STEPS)
        if divisible:
            yield Attempt(Start.HERE, Search.EASED_BRIEFLY, STEPS_OF_A_BRIEF_STAGE)
            return
        yield Attempt(Start.HERE, Search.EASED)
    else:
        if equations.constraints is not None and uses_active_sets(equations, equations.constraints):
            yield Attempt(Start.AHEAD, Search.SEMISMOOTH, SEMISMOOTH_STEPS)
        yield from _newton_attempts(equations, line_search)
    if equations.constraints is not None:
        return
    if equations.has_potential:
        yield Attempt(Start.HERE, Search.DESCENT)
    elif line_search:  # False asks for whole Newton steps, and relaxed steps may be taken back
        yield Attempt(Start.HERE, Search.RELAXED)


def _newton_attempts(equations: StepEquations, line_search: bool) -> Iterator[Attempt]:
    """Yield attempts by Newton steps, from where motion leads and from where robots are.

    If whole steps from one of these do not lead a free rod to a root, those from the other do, mostly in two or three
    steps, where a line search takes ten to fifty. So free rods take whole steps from both at first. For shells this
    seldom helps, and robots that touch something do not move so smoothly.
    """
    if line_search and equations.model.contact.none and not len(equations.model.triangles):
        yield Attempt(Start.AHEAD, Search.WHOLE)
        yield Attempt(Start.HERE, Search.WHOLE)
        yield Attempt(Start.HERE, Search.LINE_SEARCH)
        yield Attempt(Start.AHEAD, Search.LINE_SEARCH)
    else:
        yield Attempt(Start.AHEAD, Search.LINE_SEARCH)
        yield Attempt(Start.HERE, Search.LINE_SEARCH)

"""Semismooth Newton steps with contact constraints: what is closed and what slides is taken from the iterate before.

Each round takes some contacts for closed and some of them for sliding, solves the equations that are left linearised
(`closed_contacts.py`), and evaluates everything anew where this leads: the residual, the gaps, and so which contacts
are closed next (a primal-dual active-set method; Hintermueller, Ito and Kunisch, 2002). Near a root this converges in
as many rounds as Newton's method without contact. A round asks nothing on the host and its shapes do not depend on
what touches, so that recordings can hold it.

Contacts that share nodes, as points between two nodes on a ball, may be too many to be closed at once. So in each round
only the deepest close at each node, and others follow if they still overlap. At the first iterate this holds for
obstacles alone: sheets that lie flat on each other would take a round for each ring of nodes.

Nothing ensures that it converges. It is the first attempt at a step; robots that it does not solve in some rounds are
left to `constrained.py`, which finds all loads of an iterate and shortens its steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.closed_contacts import ClosedContacts
from torchdismech.integrate.search.contact_formulas import VIOLATION
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.solve.search import RUNNING, Iterate, NewtonOptions, Root

__all__ = ["ContactProgress", "contact_begun", "contact_round", "semismooth_newton", "some_closed"]

OPEN, SLIDES, STICKS = 0, 1, 2  # what contacts do in a round
OFF = 0.2  # by so much of the friction that its cone allows a guess is outside of the cone, or inside
EXACT = 1e-2  # of the contacts' tolerance: larger overlaps of open contacts close them


class ContactProgress(NamedTuple):
    """State of a search between two rounds, as a flat tuple of tensors so that recordings can hold it.

    Attributes
    ----------
    x, residual, values, norm : the iterates, as of `Iterate`; the residual is that with the loads.
    status, iterations : (B,) RUNNING or the `Status` that a row ended with, and the rounds that it has taken.
    load : (S, 3) of the constraints.
    gap, normal, weights : (S,), (S, 3), (S, 4) the contacts at the iterates, as of `Contacts`.
    closed : (S,) bool the contacts that the next round takes for closed.
    guess, slide : (S, 3), (S, 2) the loads and slides that tell which of these slide.
    state, state_before : (S,) what each contact did in the last round and in the one before: OPEN, SLIDES or STICKS.
    """

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor
    status: Tensor
    iterations: Tensor
    load: Tensor
    gap: Tensor
    normal: Tensor
    weights: Tensor
    closed: Tensor
    guess: Tensor
    slide: Tensor
    state: Tensor
    state_before: Tensor


def semismooth_newton(equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor) -> Root:
    """Find x and loads of the contacts with |weight * r(x)| <= tolerance and no contact violated.

    The loads are left in `equations.constraints.load`; those of rows that end without a root mean nothing. Arguments as
    for `solve.newton.newton`.
    """
    progress, options = contact_begun(equations, x, options, running)
    while bool((progress.status == RUNNING).any()):
        closed = bool(some_closed(equations, progress))
        progress = contact_round(equations, progress, options, closed)
    last = Iterate(*progress[:4])
    return Root(progress.x, progress.status, progress.iterations, progress.norm, options.tolerance, last)


def contact_begun(
    equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor
) -> tuple[ContactProgress, NewtonOptions]:
    """Return the state of a search at its first iterate x (B, n_free), and its options, with noise in the tolerance.

    No contact bears a load there. Those that touch are taken for closed, and of these those that slide by more than the
    tolerance for sliding. Rows that are solved without any load have converged.
    """
    constraints = equations.constraints
    assert constraints is not None
    status = torch.where(running, RUNNING, int(Status.CONVERGED))
    constraints.load = torch.where(running[constraints.robot].unsqueeze(1), 0.0, constraints.load)
    residual, values, contacts = equations.constrained(x)
    norm, tolerance = options.norm(residual), constraints.tolerance[constraints.robot]
    overlaps = constraints.largest(torch.where(contacts.gap >= -tolerance, 0.0, 1.0)) > 0  # also where a gap is NaN
    status = torch.where((status == RUNNING) & (norm <= options.tolerance) & ~overlaps, int(Status.CONVERGED), status)
    options = options.with_tolerance_above_noise(x, values)
    slide = constraints.slide(equations.full(x))
    closed = constraints.deepest(contacts.gap <= tolerance, contacts.gap, also_pairs=False)
    slides = closed & (slide.square().sum(1) > tolerance.square())
    progress = ContactProgress(
        x,
        residual,
        values,
        norm,
        status,
        torch.zeros_like(status),
        constraints.load,
        contacts.gap,
        contacts.normal,
        contacts.weights,
        closed,
        torch.zeros_like(constraints.load),
        torch.where(slides.unsqueeze(1), slide, 0.0),
        torch.full_like(constraints.robot, OPEN),
        torch.full_like(constraints.robot, OPEN),
    )
    return progress, options


def some_closed(equations: StepEquations, progress: ContactProgress) -> Tensor:
    """Return () whether some contact of a row that runs is taken for closed."""
    assert equations.constraints is not None
    return (progress.closed & (progress.status == RUNNING)[equations.constraints.robot]).any()


def contact_round(
    equations: StepEquations, progress: ContactProgress, options: NewtonOptions, closed: bool = True
) -> ContactProgress:
    """Return the state of a search after a step in each row that runs.

    Parameters
    ----------
    closed : False where no contact of a running row is taken for closed, for a Newton step without contact.
    """
    constraints, rows = equations.constraints, progress.status == RUNNING
    assert constraints is not None
    robot, running = constraints.robot, rows[constraints.robot]
    constraints.load = progress.load
    linear = LinearContacts(equations, constraints, Contacts(progress.gap, progress.normal, progress.weights, None))
    closing = ClosedContacts(equations, Iterate(*progress[:4]), linear)
    active = progress.closed & closing.moves
    step, load, after, sticks, ok = (
        closing.solution(active, progress.guess, progress.slide, rows, friction_follows=True)
        if closed
        else closing.solution_without(rows)
    )
    slide = after[:, 1:]
    pulls = active & (load[:, 0] < 0)
    load = torch.where(pulls.unsqueeze(1), 0.0, load)
    constraints.load = torch.where(running.unsqueeze(1), closing.load_by_law(load, slide, sticks), progress.load)
    x = torch.where(rows[:, None], equations.advanced(progress.x, step), progress.x)
    residual, values, contacts = equations.constrained(x)
    norm, iterations, tolerance = options.norm(residual), progress.iterations + rows, constraints.tolerance[robot]
    status = _status(options, norm, iterations, _laws_hold(closing, contacts.gap, constraints.slide(equations.full(x))))
    stuck = constraints.any(closing.partly & (contacts.gap < tolerance))
    status = torch.where(ok & ~stuck, status, int(Status.CONTACT_UNSOLVED))
    closes = constraints.deepest(~active & (contacts.gap < -EXACT * tolerance), contacts.gap)
    state = torch.where(active, torch.where(sticks, STICKS, SLIDES), OPEN)
    slid, active = active & ~sticks, (active & ~pulls) | closes
    guess = torch.where(active.unsqueeze(1), closing.with_full_friction(load, slid), 0.0)
    if closing.rubs:
        guess, slide = _out_of_cycles(constraints, progress, state, guess, slide)
    return ContactProgress(
        x,
        residual,
        values,
        norm,
        torch.where(rows, status, progress.status),
        iterations,
        constraints.load,
        contacts.gap,
        contacts.normal,
        contacts.weights,
        active,
        guess,
        slide,
        state,
        progress.state,
    )


def _out_of_cycles(
    constraints: ConstraintSet, progress: ContactProgress, state: Tensor, guess: Tensor, slide: Tensor
) -> tuple[Tensor, Tensor]:
    """Return guessed loads (S, 3) and slides (S, 2) for the next round, changed where rounds go to and fro.

    That is where all contacts of a robot do what they did two rounds before, but some now stick that slid in between,
    or the other way round. Neither is right for these, as another contact with a node of theirs slides that has to
    stick: so these are to slide, and that one to stick.
    """
    goes_round = ~constraints.any(state != progress.state_before)[constraints.robot]
    turns = goes_round & (state != progress.state) & (torch.minimum(state, progress.state) > OPEN)
    holds = (state == SLIDES) & ~turns & constraints.beside(turns)
    share = torch.where(turns, 1 + OFF, torch.where(holds, 1 - OFF, 1.0)).unsqueeze(1)
    guess = torch.cat([guess[:, :1], guess[:, 1:] * share], dim=1)
    return guess, torch.where((turns | holds).unsqueeze(1), 0.0, slide)


def _laws_hold(closing: ClosedContacts, gap: Tensor, slide: Tensor) -> Tensor:
    """Return the robots (B,) whose contacts obey their laws within the tolerance, with gaps (S,) and slides (S, 2).

    Contacts that no unknown moves do not count.
    """
    constraints, counts = closing.constraints, closing.moves | closing.partly
    violation = VIOLATION(gap, constraints.load, slide, constraints.friction, counts)[0]
    return constraints.largest(violation) <= constraints.tolerance


def _status(options: NewtonOptions, norm: Tensor, iterations: Tensor, laws_hold: Tensor) -> Tensor:
    """Return the status (B,) of rows with these norms of the residual after so many rounds."""
    status = torch.where(iterations >= options.max_iterations, int(Status.MAX_ITERATIONS), RUNNING)
    status = torch.where((norm <= options.tolerance) & laws_hold, int(Status.CONVERGED), status)
    return torch.where(norm < torch.inf, status, int(Status.NOT_FINITE))

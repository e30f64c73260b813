"""An active-set method for contact constraints: the step of an iterate where it can be found which contacts bear loads.

Each contact of the active set contributes equations, gap and (unless it slides) slide zero, and no complementarity
problem is left; `closed_contacts.py` solves them.

Contacts that would pull leave the active set, those that would overlap join it. A result counts only if all laws hold;
else the complementarity problem is solved (`delassus.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.closed_contacts import ClosedContacts
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.rows import weighted_norms
from torchdismech.solve.search import Iterate

__all__ = ["ActiveSet", "ActiveSetStep"]

FEWEST_CONTACTS = 8  # of a robot: with fewer, W costs less than a second factor
EXACT = 1e-2  # of the contacts' tolerance: how exactly gaps and slides are zero
# Of friction: how far it may be off its law before it is put on it. Stiffness times the rounding of gaps is 1e-8 of the
# loads of a thin sheet. Where this leaves a residual above the tolerance, up to so many rounds more are tried.
SETTLED, FURTHER_ROUNDS = 1e-6, 8
NEWTON_ROUNDS = 25  # for friction and the active set; then the complementarity problem is solved instead


@dataclass(frozen=True)
class ActiveSetStep:
    """Steps and loads of the robots whose active set was found.

    Attributes
    ----------
    rows : (B,) these robots; the others have zeros.
    step, load : (B, n_free), (S, 3).
    """

    rows: Tensor
    step: Tensor
    load: Tensor

    @classmethod
    def none(cls, at: Iterate, constraints: ConstraintSet) -> ActiveSetStep:
        """Return the result that no robot's active set was found."""
        found = torch.zeros_like(at.norm, dtype=torch.bool)
        return cls(found, torch.zeros_like(at.x), torch.zeros_like(constraints.load))

    def with_others(self, others: ActiveSetStep) -> ActiveSetStep:
        """Return this together with the result for other robots."""
        return ActiveSetStep(self.rows | others.rows, self.step + others.step, self.load + others.load)


class ActiveSet(ClosedContacts):
    """The search for the active set at an iterate, and so for its step and loads.

    Parameters
    ----------
    at : the iterate, its residual with the present loads in it.
    linear : the contacts there.
    tolerance : (B,) norm of the residual that counts as solved.
    descends : whether the step is to go down the potential; then matrices that are indefinite even with the active
        contacts are shifted until they are positive definite.

    Attributes
    ----------
    before : (S, 3) the loads before.
    """

    def __init__(
        self, equations: StepEquations, at: Iterate, linear: LinearContacts, tolerance: Tensor, descends: bool
    ):
        super().__init__(equations, at, linear, descends)
        self.before, self.tolerance = linear.constraints.load, tolerance

    def from_loads(self, free: Tensor, rows: Tensor, guesses: bool) -> ActiveSetStep:
        """Return steps and loads of some rows (B,), beginning with the contacts that bear loads.

        Parameters
        ----------
        free : (B, n_free) the step without loads.
        guesses : whether robots without loads begin with the contacts that overlap after this step.
        """
        constraints, bears = self.constraints, self.before[:, 0] > 0
        closed = bears
        if guesses:
            # without loads everything falls, also parts that are lifted: a guess only where no loads are known yet
            closed = bears | ((self.after(free)[:, 0] <= 0) & ~constraints.any(bears)[constraints.robot])
        closed = closed & self.moves & rows[constraints.robot]
        count = torch.bincount(constraints.robot[closed], minlength=len(rows))
        rows = rows & ~constraints.any(self.partly & bears)
        return self._solved(closed, rows & (count >= (1 if self.descends else FEWEST_CONTACTS)))

    def from_touching(self, rows: Tensor) -> ActiveSetStep:
        """Return steps and loads of some rows (B,), beginning with all contacts that touch.

        This is for robots that contacts hold: where A is indefinite without contacts, as that of an arch that a plate
        has pressed beyond its limit load, neither a step without loads nor W tells which contacts bear any. Nothing may
        overlap at the iterate, and contacts that bear a load have to touch.
        """
        constraints = self.constraints
        touches = self.linear.contacts.gap <= constraints.tolerance[constraints.robot]
        closed = touches & self.moves & rows[constraints.robot]
        return self._solved(closed, rows & constraints.any(closed) & ~constraints.any(self.partly & touches))

    def _solved(self, closed: Tensor, rows: Tensor) -> ActiveSetStep:
        """Return steps and loads in the rows (B,) whose active set is found.

        Parameters
        ----------
        closed : (S,) contacts to begin with.
        """
        robot, solved, further = self.constraints.robot, torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.int)
        steps, loads = torch.zeros_like(self.unloaded), torch.zeros_like(self.before)
        slack = EXACT * self.constraints.tolerance[robot]
        load = torch.where(closed.unsqueeze(1), self.before, 0.0)
        # contacts without a load yet stick at first
        slide = torch.where(self.before[:, :1] > 0, self.offset[:, 1:], 0.0)
        for _ in range(NEWTON_ROUNDS):
            if not bool(rows.any()):
                break
            step, load, after, sticks, ok = self.solution(closed, load, slide, rows)
            slide = after[:, 1:]
            pulls = closed & (load[:, 0] < 0)
            closes = ~closed & self.moves & (after[:, 0] < -slack)
            fixed = torch.stack([closed, sticks, sticks], dim=1)
            off_zero = torch.where(fixed, after, 0.0).abs().amax(1) > slack
            wrong = off_zero | ~torch.isfinite(load).all(1) | (self.partly & (after[:, 0] < -slack))
            load_by_law = self.load_by_law(load, slide, sticks)
            off_law = (
                torch.linalg.vector_norm(load - load_by_law, dim=1) > SETTLED * self.constraints.friction * load[:, 0]
            )
            exact = self._left(load - load_by_law) <= self.tolerance
            changes = self.constraints.any(pulls | closes) | (self.constraints.any(closed & off_law) & ~exact)
            solved_now = rows & ok & ~changes & ~self.constraints.any(wrong)
            steps = torch.where(solved_now[:, None], step, steps)
            loads = torch.where(solved_now[robot].unsqueeze(1), load_by_law, loads)
            solved, inexact = solved | solved_now, solved_now & ~exact
            further = further + inexact
            rows = rows & ok & (changes | (inexact & (further < FURTHER_ROUNDS)))
            slid = closed & ~sticks
            closed = (closed & ~pulls) | (closes & rows[robot])
            load = torch.where(closed.unsqueeze(1), self.with_full_friction(load, slid), 0.0)
        return ActiveSetStep(solved, steps, loads)

    def _left(self, off: Tensor) -> Tensor:
        """Return the norm (B,) of the residual that is left where loads are changed by (S, 3)."""
        return weighted_norms(self.linear.forces_of(off), self.weight)

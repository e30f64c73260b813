"""Contacts that stay as they are: the loads of an iterate if those that bear one neither open nor slide.

Then each of them is an equation, gap and slide zero, and no complementarity problem is left. The loads p and the step d
that obey A d = -r + J^T p and c + J d = 0 come from the method of multipliers (Hestenes; Powell):

    (A + s J^T J) d = -r + J^T (p - s c),    p <- p - s (c + J d),

with a stiffness s far above A's, so that few rounds reach rounding. A contact couples the nodes that it has and no
others, so the matrix has the pattern of A and one factor does for all contacts, however many there are; W = J A^-1 J^T,
which costs a solve for each of them and is full, is not needed. Contacts that would pull are let go, those that would
close are held, and what is found holds where no load leaves its cone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.integrate.equations import StepEquations
from torchdismech.solve.search import Iterate

__all__ = ["HeldContacts", "held_contacts", "stiffened"]

FEW = 8  # contacts of a robot below which W costs less than a second factor
STIFFNESS = 1e6  # of a contact, in parts of the largest entry on A's diagonal
MULTIPLIERS = 4  # rounds, each of which leaves some 1e-6 of gaps and slides
CHANGES = 6  # of which contacts are held, until the complementarity problem is solved instead
EXACT = 1e-2  # of the contacts' tolerance: how exactly gaps and slides are zero


@dataclass(frozen=True)
class HeldContacts:
    """Steps and loads with contacts held.

    Attributes
    ----------
    rows : (B,) robots for which this is the solution; the others have zeros.
    step, load : (B, n_free), (S, 3).
    """

    rows: Tensor
    step: Tensor
    load: Tensor


def held_contacts(
    equations: StepEquations, at: Iterate, contacts: Contacts, arms: Tensor, free: Tensor, rows: Tensor
) -> HeldContacts:
    """Return what an iterate's step and loads are if contacts stay as they are.

    Parameters
    ----------
    at : the iterate, its residual with the present loads in it.
    contacts, arms : there; see `ConstraintSet.arms`.
    free : (B, n_free) the step without loads.
    rows : (B,) robots to look at.
    """
    constraints = equations.constraints
    assert constraints is not None
    if constraints.method != "interior_point" or not equations.model.unknowns.slides.none:
        return HeldContacts(torch.zeros_like(rows), torch.zeros_like(at.x), torch.zeros_like(constraints.load))
    search = _Holding(equations, constraints, at, contacts, arms)
    bears = constraints.load[:, 0] > 0
    # without loads all fall, also what is lifted: that is a guess only where nothing is known of loads
    closes = (search.after(free)[:, 0] <= 0) & ~search.any(bears)[constraints.robot]
    which = (bears | closes) & search.moves & rows[constraints.robot]
    count = torch.bincount(constraints.robot[which], minlength=len(rows))
    return search.found(which, rows & (count >= FEW))


def stiffened(equations: StepEquations, values: Tensor, arms: Tensor, held: Tensor, stiffness: Tensor) -> Tensor:
    """Return the values (nnz, B) of A + s J^T J for those of A.

    Parameters
    ----------
    arms : (S, 3, 12) of the contacts, see `ConstraintSet.arms`.
    held : (S, 3) which gaps and slides have a stiffness s.
    stiffness : (S, 1) s [N/m].
    """
    assert equations.constraints is not None
    pulling = torch.where(held.unsqueeze(2), arms, 0.0)
    blocks, values = stiffness.unsqueeze(2) * (pulling.mT @ pulling), values.clone()
    equations.constraints.add_blocks(values, blocks, equations.solver().pattern, equations.model.unknowns.number)
    return values


class _Holding:
    """The equations of held contacts at an iterate."""

    def __init__(
        self, equations: StepEquations, constraints: ConstraintSet, at: Iterate, contacts: Contacts, arms: Tensor
    ):
        self.equations, self.constraints, self.at, self.arms = equations, constraints, at, arms
        model, self.solver = equations.model, equations.solver()
        slide = constraints.slide(equations.full(at.x))
        self.offset = torch.cat([contacts.gap.unsqueeze(1), slide], dim=1)  # (S, 3)
        rubs = constraints.friction > 0
        self.wanted = torch.stack([torch.ones_like(rubs), rubs, rubs], dim=1)
        felt = (arms.square() * model.free[constraints.dofs].unsqueeze(1)).sum(2) > 0
        self.moves = (felt | ~self.wanted).all(1)
        self.before = constraints.load
        self.unloaded = at.residual + self.forces_of(self.before)
        diagonal = at.values[self.solver.diagonal(at.values.device)].abs().amax(0)
        self.stiffness = STIFFNESS * diagonal[constraints.robot].unsqueeze(1)  # (S, 1)

    def forces_of(self, load: Tensor) -> Tensor:
        """Return the loads' force on the free dofs (B, n_free)."""
        return self.equations.model.unknowns.felt(self.constraints.forces_of(self.arms, load, self.equations.base))

    def after(self, step: Tensor) -> Tensor:
        """Return gaps and slides (S, 3) after a step (B, n_free)."""
        whole = self.equations.model.unknowns.expand(step, torch.zeros_like(self.equations.base))
        return self.offset + self.constraints.motions_of(self.arms, whole)

    def found(self, which: Tensor, rows: Tensor) -> HeldContacts:
        """Return the solution in the rows (B,) where there is one, beginning with some contacts (S,) held."""
        robot, solved = self.constraints.robot, torch.zeros_like(rows)
        steps, loads = torch.zeros_like(self.at.x), torch.zeros_like(self.before)
        slack = EXACT * self.constraints.tolerance
        for _ in range(CHANGES):
            if not bool(rows.any()):
                break
            step, load, ok = self._solution(which, rows)
            after = self.after(step)
            pulls = which & (load[:, 0] < 0)
            closes = ~which & self.moves & (after[:, 0] < -slack[robot])
            off = torch.where(which.unsqueeze(1) & self.wanted, after, 0.0).abs().amax(1) > slack[robot]
            wrong = off | (which & self._outside(load))
            changes = self.any(pulls | closes)
            here = rows & ok & ~changes & ~self.any(wrong)
            steps = torch.where(here[:, None], step, steps)
            loads = torch.where(here[robot].unsqueeze(1), load, loads)
            solved, rows = solved | here, rows & ok & changes
            which = (which & ~pulls) | (closes & rows[robot])
        return HeldContacts(solved, steps, loads)

    def _solution(self, which: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return step (B, n_free) and loads (S, 3) with these contacts (S,) held, and where (B,) there are some."""
        held = which.unsqueeze(1) & self.wanted
        values = stiffened(self.equations, self.at.values, self.arms, held, self.stiffness)
        factor = self.solver.factor(values, rows=rows)
        load = torch.where(held, self.before, 0.0)
        for _ in range(MULTIPLIERS):
            step = factor.solve(
                self.forces_of(torch.where(held, load - self.stiffness * self.offset, 0.0)) - self.unloaded
            )
            load = torch.where(held, load - self.stiffness * self.after(step), 0.0)
        return step, load, factor.ok

    def _outside(self, load: Tensor) -> Tensor:
        """Return which loads (S,) are outside of their cones, or not finite."""
        size = torch.linalg.vector_norm(load[:, 1:], dim=1)
        return ~(size <= self.constraints.friction * load[:, 0]) | ~torch.isfinite(load).all(1)

    def any(self, which: Tensor) -> Tensor:
        """Return the robots (B,) with a contact (S,) of which this is true."""
        return torch.bincount(self.constraints.robot[which], minlength=len(self.at.x)) > 0

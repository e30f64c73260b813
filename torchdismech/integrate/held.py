"""Contacts as equations: the loads of an iterate if it is known which contacts bear one, and which of these slide.

Then each of them is an equation, gap and slide zero, and no complementarity problem is left. The loads p and the step d
that obey A d = -r + J^T p and c + J d = 0 come from the method of multipliers (Hestenes; Powell):

    (A + s J^T J) d = -r + J^T (p - s c),    p <- p - s (c + J d),

with a stiffness s far above A's, so that few rounds reach rounding. A contact couples the nodes that it has and no
others, so the matrix has the pattern of A and one factor does for all contacts, however many there are; W = J A^-1 J^T,
which costs a solve for each of them and is full, is not needed. Of a contact that slides the gap alone is held, and its
friction -mu p_n s/|s| goes with the load and the slide s of the round before, which settles fast where much is slid.

Contacts that would pull are let go, those that would close are held, those whose load leaves its cone slide, and those
whose friction does not settle are held. What is found counts where all laws hold; else the complementarity problem is
solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.integrate.equations import StepEquations
from torchdismech.solve.linear import Factor, JoinedFactor, shifted_factor
from torchdismech.solve.linear.shifted import LEAST_SHIFT
from torchdismech.solve.search import Iterate

__all__ = ["HeldContacts", "held_contacts", "stiffened"]

FEW = 8  # contacts of a robot below which W costs less than a second factor
STIFFNESS = 1e6  # of a contact, in parts of the largest entry on A's diagonal
MULTIPLIERS = 4  # rounds, each of which leaves some 1e-6 of gaps and slides
SLIDING = 20  # rounds, at most, in which friction and pressure of contacts that slide find each other ...
SETTLED = 1e-9  # ... until friction changes by no more, in parts of itself; beyond, a contact does not slide
ON_CONE = 1e-9  # relative: loads so near to their cone are on it
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
    equations: StepEquations,
    at: Iterate,
    contacts: Contacts,
    arms: Tensor,
    free: Tensor,
    rows: Tensor,
    descends: bool = False,
) -> HeldContacts:
    """Return what an iterate's step and loads are if contacts stay as they are.

    Parameters
    ----------
    at : the iterate, its residual with the present loads in it.
    contacts, arms : there; see `ConstraintSet.arms`.
    free : (B, n_free) the step without loads.
    rows : (B,) robots to look at.
    descends : whether the step is to go down the potential; matrices that are indefinite with contacts closed, too, are
        raised then.
    """
    constraints = equations.constraints
    assert constraints is not None
    if constraints.method != "interior_point" or not equations.model.unknowns.slides.none:
        return HeldContacts(torch.zeros_like(rows), torch.zeros_like(at.x), torch.zeros_like(constraints.load))
    search = _Holding(equations, constraints, at, contacts, arms, descends)
    bears = constraints.load[:, 0] > 0
    # without loads all fall, also what is lifted: that is a guess only where nothing is known of loads
    closes = (search.after(free)[:, 0] <= 0) & ~constraints.any(bears)[constraints.robot]
    which = (bears | closes) & search.moves & rows[constraints.robot]
    count = torch.bincount(constraints.robot[which], minlength=len(rows))
    return search.found(which, rows & (count >= (1 if descends else FEW)))


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


def on_cone(load: Tensor, friction: Tensor) -> Tensor:
    """Return which loads (S, 3) that press are as large along as friction (S,) may be: those of what slides."""
    most = friction * load[:, 0]
    return (most > 0) & (torch.linalg.vector_norm(load[:, 1:], dim=1) >= (1 - ON_CONE) * most)


def directions(slide: Tensor) -> Tensor:
    """Return unit vectors (S, 2), zero where there is no slide."""
    length = torch.linalg.vector_norm(slide, dim=1, keepdim=True)
    return slide / torch.where(length > 0, length, 1.0)


def misdirected(load: Tensor, slide: Tensor, friction: Tensor) -> Tensor:
    """Return the part (S,) of slides (S, 2) [m] that loads (S, 3) on their cones do not point against."""
    most = (friction * load[:, 0]).clamp_min(torch.finfo(load.dtype).tiny).unsqueeze(1)
    return torch.linalg.vector_norm(slide, dim=1) * torch.linalg.vector_norm(
        load[:, 1:] / most + directions(slide), dim=1
    )


class _Holding:
    """The equations of held contacts at an iterate."""

    def __init__(
        self,
        equations: StepEquations,
        constraints: ConstraintSet,
        at: Iterate,
        contacts: Contacts,
        arms: Tensor,
        descends: bool,
    ):
        self.equations, self.constraints, self.at, self.arms = equations, constraints, at, arms
        self.descends = descends
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
        slides = which & on_cone(self.before, self.constraints.friction)
        for _ in range(CHANGES):
            if not bool(rows.any()):
                break
            step, load, settled, ok = self._solution(which, slides, rows)
            after = self.after(step)
            pulls = which & (load[:, 0] < 0)
            closes = ~which & self.moves & (after[:, 0] < -slack[robot])
            slips = which & ~slides & ~pulls & self._outside(load)
            held = self._held(which, slides)
            off = torch.where(held, after, 0.0).abs().amax(1) > slack[robot]
            sticks = slides & ~pulls & ~settled
            wrong = off | ~torch.isfinite(load).all(1)
            changes = self.constraints.any(pulls | closes | slips | sticks)
            here = rows & ok & ~changes & ~self.constraints.any(wrong)
            steps = torch.where(here[:, None], step, steps)
            loads = torch.where(here[robot].unsqueeze(1), load, loads)
            solved, rows = solved | here, rows & ok & changes
            which = (which & ~pulls) | (closes & rows[robot])
            slides = (slides | slips) & which & ~sticks
        return HeldContacts(solved, steps, loads)

    def _held(self, which: Tensor, slides: Tensor) -> Tensor:
        """Return which gaps and slides (S, 3) are held of contacts (S,), of which some slide."""
        return torch.cat([which[:, None], (which & ~slides)[:, None].expand(-1, 2)], dim=1) & self.wanted

    def _solution(self, which: Tensor, slides: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return step (B, n_free) and loads (S, 3) with these contacts (S,) held, and where (B,) there are some.

        The friction of those that slide is found along with the loads that press them together, round by round; third
        is for which (S,) it settled.
        """
        held = self._held(which, slides)
        values = stiffened(self.equations, self.at.values, self.arms, held, self.stiffness)
        factor = self._factored(values, rows)
        friction, here = self.constraints.friction, slides & rows[self.constraints.robot]
        free = slides.unsqueeze(1) & ~held  # friction that is given by the normal load and the direction of sliding
        free[:, 0] = False
        load = torch.where(held | free, self.before, 0.0)
        for k in range(SLIDING):
            pressing = torch.where(held, load - self.stiffness * self.offset, torch.where(free, load, 0.0))
            step = factor.solve(self.forces_of(pressing) - self.unloaded)
            after = self.after(step)
            load = torch.where(held, load - self.stiffness * after, load)
            rubbing = -(friction * load[:, 0].clamp_min(0)).unsqueeze(1) * directions(after[:, 1:])
            before, load = load, torch.where(free, torch.cat([load[:, :1], rubbing], dim=1), load)
            settled = torch.linalg.vector_norm((load - before)[:, 1:], dim=1) <= SETTLED * friction * load[:, 0]
            if k + 1 >= MULTIPLIERS and not bool((here & ~settled).any()):
                break
        return step, load, settled, factor.ok

    def _factored(self, values: Tensor, rows: Tensor) -> Factor:
        """Return the factor of some rows' stiffened matrix, raised until it is positive definite for a descent."""
        factor = self.solver.factor(values, rows=rows)
        lost = rows & ~factor.ok
        if not self.descends or not bool(lost.any()):
            return factor
        return JoinedFactor(factor, shifted_factor(self.solver, values, lost, LEAST_SHIFT / STIFFNESS))

    def _outside(self, load: Tensor) -> Tensor:
        """Return which loads (S,) are outside of their cones."""
        size = torch.linalg.vector_norm(load[:, 1:], dim=1)
        return ~(size <= self.constraints.friction * load[:, 0])

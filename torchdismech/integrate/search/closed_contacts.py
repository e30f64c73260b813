r"""Steps with closed contacts: those that bear a load, whose gap is zero after the step, and the slide if they stick.

The loads p and the step d that obey A d = -r + J^T p and c + J d = 0, with gaps and slides c at an iterate and their
Jacobian J, come from the method of multipliers (augmented Lagrangian; Hestenes, Powell):

    (A + s J^T J) d = -r + J^T (p - s c),    p <- p - s (c + J d),

with a stiffness s far above A's, so that few rounds reach rounding. A contact couples its own nodes and no others, so
the matrix has the pattern of A, and one factor serves all contacts, however many there are; Delassus' operator W = J
A^-1 J^T, which costs a solve for each of them and is full, is not needed.

Which contacts slide, and where to, is found by Newton's method for friction (Alart and Curnier, 1991): with t the load
along the surface, u the slide and k a stiffness, a contact sticks where |t - k u| <= mu p_n, and else its friction is
mu p_n e with e the direction of t - k u. So for a contact that slides the gap alone is an equation, and as the slide
turns, its friction turns, too: this acts as a spring across e. The load p_n that presses it is that of the round
before, so that the matrix stays symmetric; when t is compared with the cone, it has the length that the present load
allows. The stiffness k is that of inertia alone, the least with which robots
resist. With a larger one, k u of many contacts that slide together exceeds their friction, they seem to slide the other
way, and rounds go to and fro.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.solve.linear import Factor, JoinedFactor, largest_entry, shifted_factor
from torchdismech.solve.linear.shifted import LEAST_SHIFT
from torchdismech.solve.search import Iterate

__all__ = ["ClosedContacts", "Solution", "stiffened", "uses_active_sets"]

STIFFNESS = 1e6  # of a contact, in parts of A's largest entry
MULTIPLIERS = 4  # solves of an augmented system, each of which leaves some 1e-6 of gaps and slides
# largest share mu p_n / |t - k u| of a contact that slides: nearer to 1 its slide is no more than rounding
ALMOST_ONE = 1 - 1e-12


class SlidingFriction(NamedTuple):
    """The friction of the contacts that slide, linear in the slide; zero for others.

    Attributes
    ----------
    slips : (S,) bool those that slide.
    size : (S,) of the friction, mu p_n [N].
    along, across : (S, 2) unit vectors along the friction and across it.
    spring : (S,) [N/m] by which it turns with the slide.
    """

    slips: Tensor
    size: Tensor
    along: Tensor
    across: Tensor
    spring: Tensor

    def at(self, slide: Tensor) -> Tensor:
        """Return the loads (S, 3) of this friction at slides (S, 2)."""
        turned = self.spring * (slide * self.across).sum(1)
        friction = self.size.unsqueeze(1) * self.along - turned.unsqueeze(1) * self.across
        return torch.nn.functional.pad(friction, (1, 0))

    def pressed_by(self, normal: Tensor, coefficient: Tensor) -> SlidingFriction:
        """Return the friction under other normal loads (S,)."""
        return self._replace(size=torch.where(self.slips, (coefficient * normal).clamp_min(0), 0.0))


class Solution(NamedTuple):
    """The step with some contacts closed.

    Attributes
    ----------
    step, load : (B, n_free), (S, 3).
    fixed : (S, 3) bool the gaps and slides that are zero after it.
    ok : (B,) where the matrix could be factored.
    """

    step: Tensor
    load: Tensor
    fixed: Tensor
    ok: Tensor


def uses_active_sets(equations: StepEquations, constraints: ConstraintSet) -> bool:
    """Return whether active sets are used: not where users chose another method, nor where nodes slide."""
    return constraints.method == "interior_point" and equations.model.unknowns.slides.none


def stiffened(equations: StepEquations, values: Tensor, jacobian: Tensor, stiffness: Tensor) -> Tensor:
    """Return the values (nnz, B) of A + J^T s J, given those of A.

    Parameters
    ----------
    jacobian : (S, m, 3 k) rows J of the contacts, see `ConstraintSet.jacobian`.
    stiffness : (S, m) s [N/m] of gaps and slides.
    """
    assert equations.constraints is not None
    blocks, values = jacobian.mT @ (stiffness.unsqueeze(2) * jacobian), values.clone()
    equations.constraints.add_blocks(values, blocks, equations.solver().pattern, equations.model.unknowns.number)
    return values


class ClosedContacts:
    """The equations of closed contacts at an iterate.

    Parameters
    ----------
    at : the iterate, its residual with the loads of the constraints in it.
    linear : the contacts there.
    descends : whether matrices that are indefinite even with the closed contacts are shifted until they are positive
        definite.

    Attributes
    ----------
    offset : (S, 3) gaps and slides at the iterate [m].
    moves : (S,) contacts that the unknowns can move in every direction in which they may bear a load. Directions along
        the surface in which clamps hold them, as in a planar robot, need no load where these do not slide.
    partly : (S,) contacts that they can move in some of these directions only, as clamps hold the others.
    rubs : (S,) contacts with friction.
    unloaded : (B, n_free) the residual without loads.
    weight : (n_free,) of the residual's norm.
    stiffness : (S, 1) [N/m] that keeps gaps and slides at zero, s in the formulas above.
    slide_stiffness : (S, 1) [N/m] by which slides count beside loads in telling what sticks, k in the formulas above.
    """

    def __init__(self, equations: StepEquations, at: Iterate, linear: LinearContacts, descends: bool = False):
        self.equations, self.values, self.linear, self.descends = equations, at.values, linear, descends
        constraints, jacobian, model = linear.constraints, linear.jacobian, equations.model
        self.constraints, self.jacobian, self.solver = constraints, jacobian, equations.solver()
        slide = constraints.slide(equations.full(at.x))
        self.offset = torch.cat([linear.contacts.gap.unsqueeze(1), slide], dim=1)
        self.rubs = constraints.friction > 0
        movable = (jacobian.square() * constraints.at_nodes(model.free).unsqueeze(1)).sum(2) > 0  # (S, 3)
        self.moves = movable[:, 0] & ((movable[:, 1:] | (slide == 0)).all(1) | ~self.rubs)
        self.partly = movable.any(1) & ~self.moves
        self.unloaded = at.residual + linear.forces_of(constraints.load)
        self.weight = model.unknowns.residual_weight()
        diagonal = at.values[self.solver.diagonal(at.values.device)].abs()
        largest = largest_entry(diagonal, self.weight)
        self.stiffness = STIFFNESS * largest[constraints.robot].unsqueeze(1)  # (S, 1)
        mass = equations.gains.mass * model.mechanics.inertia.mass.expand(equations.base.shape)
        mass = model.unknowns.with_held(mass, 0.0)  # what clamps hold does not slide, however heavy it is
        own = constraints.at_nodes(mass).unsqueeze(1)
        self.slide_stiffness = (jacobian[:, 1:].square() * own).sum(2).mean(1, keepdim=True)  # (S, 1)

    def after(self, step: Tensor) -> Tensor:
        """Return gaps and slides (S, 3) after a step (B, n_free)."""
        return self.offset + self.linear.motions_of(step)

    def solution(
        self, closed: Tensor, load: Tensor, slide: Tensor, rows: Tensor, friction_follows: bool = False
    ) -> Solution:
        """Return the step with some contacts closed (S,), by one round of Newton's method for friction.

        Parameters
        ----------
        load, slide : (S, 3), (S, 2) in the round before.
        rows : (B,) robots to look at.
        friction_follows : whether the friction of contacts that slide follows the loads that press them within the
            round, and not from round to round. That takes fewer rounds, but not where contacts are redundant, as their
            single loads are chance.
        """
        friction = self._sliding_friction(closed, load, slide)
        sticks = closed & self.rubs & ~friction.slips
        fixed = torch.stack([closed, sticks, sticks], dim=1)
        directions = torch.cat([self.jacobian, friction.across.unsqueeze(1) @ self.jacobian[:, 1:]], dim=1)
        stiffness = torch.cat([torch.where(fixed, self.stiffness, 0.0), friction.spring.unsqueeze(1)], dim=1)
        factor = self._factored(stiffened(self.equations, self.values, directions, stiffness), rows)
        load = torch.where(fixed, load, 0.0)
        for _ in range(MULTIPLIERS):
            pressing = torch.where(fixed, load - self.stiffness * self.offset, 0.0) + friction.at(self.offset[:, 1:])
            step = factor.solve(self.linear.forces_of(pressing) - self.unloaded)
            after = self.after(step)
            load = torch.where(fixed, load - self.stiffness * after, 0.0)
            rubbing = friction.at(after[:, 1:])
            if friction_follows:
                friction = friction.pressed_by(load[:, 0], self.constraints.friction)
        return Solution(step, load + rubbing, fixed, factor.ok)

    def with_full_friction(self, load: Tensor, slid: Tensor) -> Tensor:
        """Return the loads (S, 3), with the friction of contacts that `slid` (S,) as large as their cones allow.

        Their friction is that of the load that pressed them in the round before. If it counted as it is, a contact
        would seem to stick as soon as the load on it grows.
        """
        most = (self.constraints.friction * load[:, 0]).clamp_min(0).unsqueeze(1)
        return torch.cat(
            [load[:, :1], torch.where(slid.unsqueeze(1), most * unit_or_zero(load[:, 1:]), load[:, 1:])], dim=1
        )

    def load_by_law(self, load: Tensor, slide: Tensor, fixed: Tensor) -> Tensor:
        """Return the loads (S, 3) with friction that obeys its law.

        Where slides are fixed at zero it is within its cone, elsewhere on the cone, against the slide (S, 2).

        Parameters
        ----------
        fixed : (S, 3) gaps and slides that are fixed at zero.
        """
        most = (self.constraints.friction * load[:, 0]).clamp_min(0).unsqueeze(1)
        size = torch.linalg.vector_norm(load[:, 1:], dim=1, keepdim=True)
        within = torch.where(size > most, most * unit_or_zero(load[:, 1:]), load[:, 1:])
        friction = torch.where(fixed[:, 1:], within, -most * unit_or_zero(slide))
        return torch.cat([load[:, :1], torch.where(self.rubs.unsqueeze(1), friction, 0.0)], dim=1)

    def solution_without(self, rows: Tensor) -> Solution:
        """Return the step with no contact closed, in the rows (B,)."""
        factor, load = self._factored(self.values, rows), torch.zeros_like(self.offset)
        return Solution(factor.solve(-self.unloaded), load, load != 0, factor.ok)

    def _sliding_friction(self, closed: Tensor, load: Tensor, slide: Tensor) -> SlidingFriction:
        """Return the friction of those closed contacts (S,) that slide, by loads (S, 3) and slides (S, 2)."""
        most = (self.constraints.friction * load[:, 0]).clamp_min(0)
        pushed = load[:, 1:] - self.slide_stiffness * slide
        size, along = torch.linalg.vector_norm(pushed, dim=1), unit_or_zero(pushed)
        slips = closed & self.rubs & (size > most)
        share = (most / torch.where(slips, size, 1.0)).clamp(max=ALMOST_ONE)
        spring = torch.where(slips, share / (1 - share), 0.0) * self.slide_stiffness.squeeze(1)
        across = torch.stack([-along[:, 1], along[:, 0]], dim=1)
        return SlidingFriction(slips, torch.where(slips, most, 0.0), along, across, spring)

    def _factored(self, values: Tensor, rows: Tensor) -> Factor:
        """Return the factor of some rows' matrix (nnz, B); in a descent shifted until it is positive definite."""
        factor = self.solver.factor(values, rows=rows)
        lost = rows & ~factor.ok
        if not self.descends or not bool(lost.any()):
            return factor
        return JoinedFactor(factor, shifted_factor(self.solver, values, self.weight, lost, LEAST_SHIFT / STIFFNESS))

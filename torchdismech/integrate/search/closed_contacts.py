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
turns, its friction turns, too: this acts as a spring across e. When t is compared with the cone, it has the length that
the present load allows. The stiffness k is that of inertia alone, the least with which robots resist. With a larger
one, k u of many contacts that slide together exceeds their friction, they seem to slide the other way, and rounds go to
and fro.

So that the matrix stays symmetric, the size f of friction is held in a solve, and follows mu p_n from solve to solve.
Where friction changes the load p_n much, as where rods cross, f alone would go to and fro. So the next f of a robot is
that of a secant of mu p_n - f, which is linear in f (Anderson's acceleration, 1965, with one solve of memory).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search import contact_formulas as formulas
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.solve.linear import Factor, JoinedFactor, largest_entry, shifted_factor
from torchdismech.solve.linear.shifted import LEAST_SHIFT
from torchdismech.solve.search import Iterate

__all__ = ["ClosedContacts", "Solution", "stiffened", "uses_active_sets"]

STIFFNESS = 1e6  # of a contact, in parts of A's largest entry
MULTIPLIERS = 4  # solves of an augmented system, each of which leaves some 1e-6 of gaps and slides
ADJOINT_SOLVES = 12  # the same for adjoint equations with friction, which no later round makes more exact
SETTLED = 1e-9  # relative change of the solution of these by the last solve


class Solution(NamedTuple):
    """The step with some contacts closed.

    Attributes
    ----------
    step, load : (B, n_free), (S, 3).
    after : (S, 3) gaps and slides after it; those of closed contacts, and the slides of those that stick, are zero.
    sticks : (S,) bool.
    ok : (B,) where the matrix could be factored.
    """

    step: Tensor
    load: Tensor
    after: Tensor
    sticks: Tensor
    ok: Tensor


class Multipliers(NamedTuple):
    """The solution of the adjoint equations at the root of a step, see `ClosedContacts.multipliers`.

    Attributes
    ----------
    of_forces : (B, n_free) of the balance of forces.
    of_contacts : (S, 3) of the contacts' conditions: gap, and slide or friction; zero for contacts without load.
    by_friction : (S,) bool whether the last two conditions of a contact are its friction, and not its slide.
    ok : (B,) where the matrix could be factored and the solves have converged.
    """

    of_forces: Tensor
    of_contacts: Tensor
    by_friction: Tensor
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
    return _with_blocks(equations, values, formulas.STIFFENING(jacobian, stiffness))


def _with_blocks(equations: StepEquations, values: Tensor, blocks: Tensor) -> Tensor:
    """Return matrix values (nnz, B) with blocks (3 k x 3 k, S) of contacts added."""
    assert equations.constraints is not None
    size, values = equations.constraints.dofs.shape[1], values.clone()
    pattern, number = equations.solver().pattern, equations.model.unknowns.number
    equations.constraints.add_blocks(values, blocks.unflatten(0, (size, size)), pattern, number)
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
    unloaded : (B, n_free) the residual without loads.
    weight : (n_free,) of the residual's norm.
    largest : (B,) A's largest entry on its diagonal [N/m].
    stiffness : (S,) [N/m] that keeps gaps and slides at zero, s in the formulas above.
    slide_stiffness : (S,) [N/m] by which slides count beside loads in telling what sticks, k in the formulas above.
    """

    def __init__(self, equations: StepEquations, at: Iterate, linear: LinearContacts, descends: bool = False):
        self.equations, self.values, self.linear, self.descends = equations, at.values, linear, descends
        constraints, jacobian, model = linear.constraints, linear.jacobian, equations.model
        self.constraints, self.jacobian, self.solver = constraints, jacobian, equations.solver()
        slide = constraints.slide(equations.full(at.x))
        self.offset = torch.cat([linear.contacts.gap.unsqueeze(1), slide], dim=1)
        mass = equations.gains.mass * model.mechanics.inertia.mass.expand(equations.base.shape)
        mass = model.unknowns.with_held(mass, 0.0)  # what clamps hold does not slide, however heavy it is
        free = model.free.to(mass.dtype).expand(mass.shape)
        dofs = free.flatten(), mass.flatten(), constraints.dofs_in_batch
        moves, partly, self.slide_stiffness = formulas.MOVABLE(jacobian, slide, constraints.friction, *dofs)
        self.moves, self.partly = moves > 0, partly > 0
        self.unloaded = at.residual + linear.forces_of(constraints.load)
        self.weight = model.unknowns.residual_weight()
        diagonal = at.values[self.solver.diagonal(at.values.device)].abs()
        self.largest = largest_entry(diagonal, self.weight)
        self.stiffness = STIFFNESS * self.largest[constraints.robot]

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
        constraints, jacobian, offset = self.constraints, self.jacobian, self.offset
        coefficients, nodal = (constraints.friction, self.stiffness), constraints.dofs.shape[1]
        first = formulas.FIRST_FRICTION(load, slide, offset, closed, *coefficients, self.slide_stiffness, jacobian)
        state, (size,), loads, forces, blocks = first.split([formulas.STATE, 1, 3, nodal, nodal * nodal])
        factor = self._factored(_with_blocks(self.equations, self.values, blocks), rows)
        missing = size_before = missing_before = torch.zeros_like(size)
        sums = load.new_zeros(2, len(rows))
        for solve in range(MULTIPLIERS):
            if solve:
                history = (missing, size_before, missing_before, sums, constraints.robot) if friction_follows else ()
                found = formulas.NEXT_FORCES(jacobian, offset, self.stiffness, state, loads, size, *history)
                size_before, missing_before, ((size,), forces) = size, missing, found.split([1, nodal])
            step = factor.solve(self.linear.summed(forces) - self.unloaded)
            motion = self.equations.motion(step).flatten(), constraints.dofs_in_batch
            found = formulas.LOADS(jacobian, offset, *coefficients, state, size, loads, missing, *motion)
            loads, after, whole, (missing,), products = found.split([3, 3, 3, 1, 2])
            if solve:
                sums = torch.zeros_like(sums).index_add(1, constraints.robot, products)
        return Solution(step, whole.t(), after.t(), state[1] > 0, factor.ok)

    def with_full_friction(self, load: Tensor, slid: Tensor) -> Tensor:
        """Return the loads (S, 3), with the friction of contacts that `slid` (S,) as large as their cones allow.

        Their friction is that of the load that pressed them in the round before. If it counted as it is, a contact
        would seem to stick as soon as the load on it grows.
        """
        return formulas.WHOLE_FRICTION(load, slid, self.constraints.friction).t()

    def load_by_law(self, load: Tensor, slide: Tensor, sticks: Tensor) -> Tensor:
        """Return the loads (S, 3) with friction that obeys its law.

        Of contacts that stick (S,) it is within its cone, else on the cone, against the slide (S, 2).
        """
        return formulas.BY_LAW(load, slide, sticks, self.constraints.friction).t()

    def solution_without(self, rows: Tensor) -> Solution:
        """Return the step with no contact closed, in the rows (B,)."""
        factor, load = self._factored(self.values, rows), torch.zeros_like(self.offset)
        step = factor.solve(-self.unloaded)
        return Solution(step, load, self.after(step), torch.zeros_like(self.moves), factor.ok)

    def multipliers(self, rhs: Tensor, rows: Tensor) -> Multipliers:
        """Return the multipliers a of the balance of forces and c of the contacts' conditions, at the root of a step.

        For a loss with gradient g (`rhs`, (B, n_free)) by the unknowns they obey

            A^T a + J^T c + J_t^T K J_t a = g,    J_n a + mu e J_t a = 0,    J_t a = 0 (contacts that stick)

        where c are multipliers of what is fixed: gaps of contacts under load, and slides of those that stick. Friction
        of others has the direction e and turns as a spring K. These are solved as `solution` solves a round: the method
        of multipliers, in which mu e J_t a of contacts that slide follows by secants.
        """
        constraints, jacobian, load = self.constraints, self.jacobian, self.constraints.load
        closed, slide, nodal = load[:, 0] > 0, self.offset[:, 1:], constraints.dofs.shape[1]
        coefficients = constraints.friction, self.stiffness
        known = load, slide, self.offset, closed, *coefficients, self.slide_stiffness, jacobian
        state, _, _, _, blocks = formulas.FIRST_FRICTION(*known).split([formulas.STATE, 1, 3, nodal, nodal * nodal])
        values = _with_blocks(self.equations, self.values, blocks)
        factor, _ = self.solver.factor_any_sign(values, rows=rows)
        fixed, sums = load.new_zeros(3, len(load)), load.new_zeros(2, len(rows))
        approach = missing = approach_before = missing_before = load.new_zeros(len(load))
        forces, solution = load.new_zeros(nodal, len(load)), torch.zeros_like(rhs)
        for solve in range(ADJOINT_SOLVES if self.rubs else MULTIPLIERS):
            if solve:
                history = missing, approach_before, missing_before, sums, constraints.robot
                found = formulas.ADJOINT_FORCES(jacobian, self.stiffness, state, fixed, approach, *history)
                approach_before, missing_before, ((approach,), forces) = approach, missing, found.split([1, nodal])
            before, solution = solution, factor.solve(rhs - self.linear.summed(forces), transpose=True)
            motion = self.equations.motion(solution).flatten(), constraints.dofs_in_batch
            found = formulas.MULTIPLIERS(jacobian, *coefficients, state, fixed, approach, missing, *motion)
            fixed, whole, (missing,), products = found.split([3, 3, 1, 2])
            if solve:
                sums = torch.zeros_like(sums).index_add(1, constraints.robot, products)
        # where contacts hold a robot, the solution is no more than rounding of what the loss moves its stiffest part by
        least = rhs.abs().amax(1) / self.largest
        settled = (solution - before).abs().amax(1) <= SETTLED * torch.maximum(solution.abs().amax(1), least)
        return Multipliers(solution, whole.t(), closed & ~(state[1] > 0), factor.ok & settled)

    @property
    def rubs(self) -> bool:
        """Whether some contact may have friction."""
        contacts = (*self.constraints.obstacles, *self.constraints.self_contacts)
        return any(contact.constrained and contact.law.friction is not None for contact in contacts)

    def _factored(self, values: Tensor, rows: Tensor) -> Factor:
        """Return the factor of some rows' matrix (nnz, B); in a descent shifted until it is positive definite."""
        factor = self.solver.factor(values, rows=rows)
        lost = rows & ~factor.ok
        if not self.descends or not bool(lost.any()):
            return factor
        return JoinedFactor(factor, shifted_factor(self.solver, values, self.weight, lost, LEAST_SHIFT / STIFFNESS))

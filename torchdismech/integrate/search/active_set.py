"""An active-set method for contact constraints: the step of an iterate where it can be found which contacts bear loads.

Each contact of the active set contributes equations, gap and (unless it slides) slide zero, and no complementarity
problem is left. The loads p and the step d that obey A d = -r + J^T p and c + J d = 0 come from the method of
multipliers (augmented Lagrangian; Hestenes, Powell):

    (A + s J^T J) d = -r + J^T (p - s c),    p <- p - s (c + J d),

with a stiffness s far above A's, so that few rounds reach rounding. A contact couples its own nodes and no others, so
the matrix has the pattern of A, and one factor serves all contacts, however many there are; Delassus' operator W = J
A^-1 J^T, which costs a solve for each of them and is full, is not needed.

Which contacts slide, and where to, is found by Newton's method for friction (Alart and Curnier, 1991): with t the load
along the surface, u the slide and k a stiffness, a contact sticks where |t - k u| <= mu p_n, and else its friction is
mu p_n e with e the direction of t - k u. So for a contact that slides the gap alone is an equation, and as the slide
turns, its friction turns, too: this acts as a spring across e. The load p_n that presses it is that of the round
before; when t is compared with the cone, it has the length that the present load allows. The stiffness k is that of
inertia alone, the least with which robots resist. With a larger one, k u of many contacts that slide together exceeds
their friction, they seem to slide the other way, and rounds go to and fro.

Contacts that would pull leave the active set, those that would overlap join it. A result counts only if all laws hold;
else the complementarity problem is solved (`delassus.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.delassus import Delassus
from torchdismech.rows import weighted_norms
from torchdismech.solve.linear import Factor, JoinedFactor, largest_entry, shifted_factor
from torchdismech.solve.linear.shifted import LEAST_SHIFT
from torchdismech.solve.search import Iterate

__all__ = ["ActiveSetStep", "active_set_step", "stiffened", "touching_step"]

FEWEST_CONTACTS = 8  # of a robot: with fewer, W costs less than a second factor
EXACT = 1e-2  # of the contacts' tolerance: how exactly gaps and slides are zero
STIFFNESS = 1e6  # of a contact, in parts of A's largest entry
MULTIPLIERS = 4  # solves of an augmented system, each of which leaves some 1e-6 of gaps and slides
# Of friction: how far it may be off its law before it is put on it. Stiffness times the rounding of gaps is 1e-8 of the
# loads of a thin sheet. Where this leaves a residual above the tolerance, up to so many rounds more are tried.
SETTLED, FURTHER_ROUNDS = 1e-6, 8
# largest share mu p_n / |t - k u| of a contact that slides: nearer to 1 its slide is no more than rounding
ALMOST_ONE = 1 - 1e-12
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


def active_set_step(
    equations: StepEquations,
    at: Iterate,
    delassus: Delassus,
    free: Tensor,
    tolerance: Tensor,
    rows: Tensor,
    descends: bool = False,
) -> ActiveSetStep:
    """Return an iterate's step and loads by the active set, beginning with the contacts that bear loads.

    Parameters
    ----------
    at : the iterate, its residual with the present loads in it.
    delassus : of the iterate; its contacts and their Jacobian are used, not the operator.
    free : (B, n_free) the step without loads.
    tolerance : (B,) norm of the residual that counts as solved.
    rows : (B,) robots to look at.
    descends : whether the step is to go down the potential; then matrices that are indefinite even with the active
        contacts are shifted until they are positive definite.
    """
    constraints = delassus.constraints
    if not _uses_active_sets(equations, constraints):
        return ActiveSetStep.none(at, constraints)
    search = _ActiveSet(equations, at, delassus, tolerance, descends)
    bears = constraints.load[:, 0] > 0
    # without loads everything falls, also parts that are lifted: a guess only where no loads are known yet
    closes = (search.after(free)[:, 0] <= 0) & ~constraints.any(bears)[constraints.robot]
    closed = (bears | closes) & search.moves & rows[constraints.robot]
    count = torch.bincount(constraints.robot[closed], minlength=len(rows))
    rows = rows & ~constraints.any(search.partly & bears)
    return search.solve(closed, rows & (count >= (1 if descends else FEWEST_CONTACTS)))


def touching_step(
    equations: StepEquations, at: Iterate, delassus: Delassus, tolerance: Tensor, rows: Tensor, descends: bool = False
) -> ActiveSetStep:
    """Return an iterate's step and loads by the active set, beginning with all contacts that touch.

    This is for robots that contacts hold: where A is indefinite without contacts, as that of an arch that a plate has
    pressed beyond its limit load, neither a step without loads nor W tells which contacts bear any. Arguments as for
    `active_set_step`; nothing may overlap at the iterate, and contacts that bear a load have to touch.
    """
    constraints = delassus.constraints
    if not _uses_active_sets(equations, constraints):
        return ActiveSetStep.none(at, constraints)
    search = _ActiveSet(equations, at, delassus, tolerance, descends)
    touches = delassus.contacts.gap <= constraints.tolerance[constraints.robot]
    closed = touches & search.moves & rows[constraints.robot]
    return search.solve(closed, rows & constraints.any(closed) & ~constraints.any(search.partly & touches))


def _uses_active_sets(equations: StepEquations, constraints: ConstraintSet) -> bool:
    """Return whether active sets are used: not where users chose another method, nor where nodes slide."""
    return constraints.method == "interior_point" and equations.model.unknowns.slides.none


def stiffened(equations: StepEquations, values: Tensor, jacobian: Tensor, stiffness: Tensor) -> Tensor:
    """Return the values (nnz, B) of A + J^T s J, given those of A.

    Parameters
    ----------
    jacobian : (S, k, 12) rows J of the contacts, see `ConstraintSet.jacobian`.
    stiffness : (S, k) s [N/m] of gaps and slides.
    """
    assert equations.constraints is not None
    blocks, values = jacobian.mT @ (stiffness.unsqueeze(2) * jacobian), values.clone()
    equations.constraints.add_blocks(values, blocks, equations.solver().pattern, equations.model.unknowns.number)
    return values


class _ActiveSet:
    """The equations of the contacts of the active set, here called closed, at an iterate.

    Attributes
    ----------
    offset : (S, 3) gaps and slides at the iterate [m].
    moves : (S,) contacts that the unknowns can move in every direction in which they may bear a load.
    partly : (S,) contacts that they can move in some of these directions only, as clamps hold the others: their loads
        need W.
    before : (S, 3) the loads before.
    unloaded : (B, n_free) the residual without these loads.
    weight : (n_free,) of the residual's norm.
    tolerance : (B,) norm of the residual that counts as solved.
    stiffness : (S, 1) [N/m] that keeps gaps and slides at zero, s in the formulas above.
    slide_stiffness : (S, 1) [N/m] by which slides count beside loads in telling what sticks, k in the formulas above.
    """

    def __init__(self, equations: StepEquations, at: Iterate, delassus: Delassus, tolerance: Tensor, descends: bool):
        self.equations, self.at, self.delassus = equations, at, delassus
        self.tolerance, self.descends = tolerance, descends
        constraints, jacobian = delassus.constraints, delassus.jacobian
        self.constraints, self.jacobian = constraints, jacobian
        model, self.solver = equations.model, equations.solver()
        slide = constraints.slide(equations.full(at.x))
        self.offset = torch.cat([delassus.contacts.gap.unsqueeze(1), slide], dim=1)
        self.rubs = constraints.friction > 0
        movable = (jacobian.square() * model.free[constraints.dofs].unsqueeze(1)).sum(2) > 0  # (S, 3)
        self.moves = movable[:, 0] & (movable.all(1) | ~self.rubs)
        self.partly = movable.any(1) & ~self.moves
        self.before = constraints.load
        self.unloaded = at.residual + delassus.forces_of(self.before)
        self.weight = model.unknowns.residual_weight()
        diagonal = at.values[self.solver.diagonal(at.values.device)].abs()
        largest = largest_entry(diagonal, self.weight)
        self.stiffness = STIFFNESS * largest[constraints.robot].unsqueeze(1)  # (S, 1)
        mass = equations.gains.mass * model.mechanics.inertia.mass.expand(equations.base.shape)
        mass = model.unknowns.with_held(mass, 0.0)  # what clamps hold does not slide, however heavy it is
        own = mass[constraints.robot.unsqueeze(1), constraints.dofs].unsqueeze(1)
        self.slide_stiffness = (jacobian[:, 1:].square() * own).sum(2).mean(1, keepdim=True)  # (S, 1)

    def after(self, step: Tensor) -> Tensor:
        """Return gaps and slides (S, 3) after a step (B, n_free)."""
        return self.offset + self.delassus.motions_of(step)

    def solve(self, closed: Tensor, rows: Tensor) -> ActiveSetStep:
        """Return steps and loads in the rows (B,) whose active set is found.

        Parameters
        ----------
        closed : (S,) contacts to begin with.
        """
        robot, solved, further = self.constraints.robot, torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.int)
        steps, loads = torch.zeros_like(self.at.x), torch.zeros_like(self.before)
        slack = EXACT * self.constraints.tolerance[robot]
        load = torch.where(closed.unsqueeze(1), self.before, 0.0)
        # contacts without a load yet stick at first
        slide = torch.where(self.before[:, :1] > 0, self.offset[:, 1:], 0.0)
        for _ in range(NEWTON_ROUNDS):
            if not bool(rows.any()):
                break
            step, load, fixed, ok = self._solution(closed, load, slide, rows)
            after = self.after(step)
            slide = after[:, 1:]
            pulls = closed & (load[:, 0] < 0)
            closes = ~closed & self.moves & (after[:, 0] < -slack)
            off_zero = torch.where(fixed, after, 0.0).abs().amax(1) > slack
            wrong = off_zero | ~torch.isfinite(load).all(1) | (self.partly & (after[:, 0] < -slack))
            load_by_law = self._load_by_law(load, slide, fixed)
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
            slid = closed & ~fixed[:, 1]
            closed = (closed & ~pulls) | (closes & rows[robot])
            load = torch.where(closed.unsqueeze(1), self._with_full_friction(load, slid), 0.0)
        return ActiveSetStep(solved, steps, loads)

    def _with_full_friction(self, load: Tensor, slid: Tensor) -> Tensor:
        """Return the loads (S, 3), with the friction of contacts that `slid` (S,) as large as their cones allow.

        Their friction is that of the load that pressed them in the round before. If it counted as it is, a contact
        would seem to stick as soon as the load on it grows.
        """
        most = (self.constraints.friction * load[:, 0]).clamp_min(0).unsqueeze(1)
        return torch.cat(
            [load[:, :1], torch.where(slid.unsqueeze(1), most * unit_or_zero(load[:, 1:]), load[:, 1:])], dim=1
        )

    def _left(self, off: Tensor) -> Tensor:
        """Return the norm (B,) of the residual that is left where loads are changed by (S, 3)."""
        return weighted_norms(self.delassus.forces_of(off), self.weight)

    def _load_by_law(self, load: Tensor, slide: Tensor, fixed: Tensor) -> Tensor:
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

    def _solution(
        self, closed: Tensor, load: Tensor, slide: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the step (B, n_free) and loads (S, 3) with some contacts closed (S,), by one round of Newton's method.

        Also returned: which gaps and slides (S, 3) are fixed at zero, and where (B,) the matrix was positive definite.

        Parameters
        ----------
        load, slide : (S, 3), (S, 2) in the round before.
        """
        slips, friction, spring, across = self._slipping(closed, load, slide)
        sticks = closed & self.rubs & ~slips
        fixed = torch.stack([closed, sticks, sticks], dim=1)
        directions = torch.cat([self.jacobian, across.unsqueeze(1) @ self.jacobian[:, 1:]], dim=1)
        stiffness = torch.cat([torch.where(fixed, self.stiffness, 0.0), spring], dim=1)
        values = stiffened(self.equations, self.at.values, directions, stiffness)
        factor, load = self._factored(values, rows), torch.where(fixed, load, 0.0)

        def rubbing(slide: Tensor) -> Tensor:
            """Return the linearised friction (S, 3) of sliding contacts, for their slides (S, 2)."""
            turned = friction - spring * (slide * across).sum(1, keepdim=True) * across
            return torch.nn.functional.pad(turned, (1, 0))

        for _ in range(MULTIPLIERS):
            pressing = torch.where(fixed, load - self.stiffness * self.offset, 0.0) + rubbing(self.offset[:, 1:])
            step = factor.solve(self.delassus.forces_of(pressing) - self.unloaded)
            after = self.after(step)
            load = torch.where(fixed, load - self.stiffness * after, 0.0)
        return step, load + rubbing(after[:, 1:]), fixed, factor.ok

    def _slipping(self, closed: Tensor, load: Tensor, slide: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return which of the closed contacts (S,) slide, and their linearised friction; zero for others.

        The friction is a force (S, 2), and a spring (S, 1) [N/m] across it, along the unit vectors (S, 2) that are
        returned last.
        """
        most = (self.constraints.friction * load[:, 0]).clamp_min(0)
        pushed = load[:, 1:] - self.slide_stiffness * slide
        size, along = torch.linalg.vector_norm(pushed, dim=1), unit_or_zero(pushed)
        slips = closed & self.rubs & (size > most)
        share = (most / torch.where(slips, size, 1.0)).clamp(max=ALMOST_ONE)
        spring = torch.where(slips, share / (1 - share), 0.0).unsqueeze(1) * self.slide_stiffness
        friction = torch.where(slips, most, 0.0).unsqueeze(1) * along
        return slips, friction, spring, torch.stack([-along[:, 1], along[:, 0]], dim=1)

    def _factored(self, values: Tensor, rows: Tensor) -> Factor:
        """Return the factor of some rows' matrix (nnz, B); in a descent shifted until it is positive definite."""
        factor = self.solver.factor(values, rows=rows)
        lost = rows & ~factor.ok
        if not self.descends or not bool(lost.any()):
            return factor
        return JoinedFactor(factor, shifted_factor(self.solver, values, self.weight, lost, LEAST_SHIFT / STIFFNESS))

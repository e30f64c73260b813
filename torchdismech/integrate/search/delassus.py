"""Delassus' operator of an iterate with contact constraints, and the loads found with it.

The step x + d and the loads p of an iterate obey A d = -r + J^T p, with A the matrix of all other forces and of the
turning of the present loads. So gaps and slides after the step are linear in the loads, W p + b with Delassus' operator
W = J A^-1 J^T, and the loads solve a frictional contact problem with W and b.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, slots_of
from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.contact_formulas import OFF_CONE
from torchdismech.integrate.search.linear_contacts import LinearContacts
from torchdismech.solve.complementarity import LCP_METHODS, solve_contact, solve_lcp
from torchdismech.solve.linear import Factor

__all__ = ["Delassus"]

NEAR_PART = 0.1  # of the search distance: contacts that come nearer than this without loads may bear one
MANY = 64  # contacts of a robot with friction; with more it pays to find out first which stay apart without friction
ACCURACY = 1e-10  # of the contact problem of an iterate, in parts of its largest gap or slide
# Of the contacts' tolerance: how exactly loads have to be found at least. Contacts that almost coincide, as where rods
# cross at nodes, make W so nearly singular that rounding leaves some hundredths.
ENOUGH = 0.3


class Delassus(LinearContacts):
    """How gaps and slides respond to loads at an iterate: W = J A^-1 J^T over the contacts that may bear a load.

    Parameters
    ----------
    constraints : the contacts of the step.
    q : (B, n) at the iterate.
    factor : of A there.
    rows : (B,) robots to look at.

    Attributes
    ----------
    chosen : (A,) numbers of the contacts that W is over, with their `robot` and `slot` (A,); see `choose`.
    size : C, the largest number of chosen contacts of a robot.
    compliance : (S, 3) diagonal of W [m/N], by which loads move their own contacts; zero where it was not found.
    """

    def __init__(self, equations: StepEquations, constraints: ConstraintSet, q: Tensor, factor: Factor, rows: Tensor):
        super().__init__(equations, constraints, constraints.at(q, constraints.time))
        self.factor, self.rows = factor, rows
        self.compliance = q.new_zeros(len(constraints), 3)
        self.choose(torch.zeros_like(constraints.robot, dtype=torch.bool))

    def choose(self, which: Tensor) -> None:
        """From now on take W over the contacts where `which` (S,) holds, of the robots in `rows`."""
        self.chosen = (which & self.rows[self.constraints.robot]).nonzero().flatten()
        self.robot = self.constraints.robot[self.chosen]
        self.slot = slots_of(self.robot, len(self.rows))
        self.size = int(self.slot.max()) + 1 if len(self.slot) else 0

    def padded(self, values: Tensor) -> Tensor:
        """Return values (A, ..) of the chosen contacts by robots and slots (B, C, ..), with zeros in empty slots."""
        shape = (len(self.rows), self.size, *values.shape[1:])
        return values.new_zeros(shape).index_put((self.robot, self.slot), values)

    def loads(self, q: Tensor, free: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loads (S, 3) at the end of the step, and the rows (B,) where they were found.

        Contacts that stay apart without any load, and bear none now, are left out; if the loads of others push them
        together, the next iteration sees it. Contacts of clamped nodes are left out, too: no load moves them.

        Parameters
        ----------
        q : (B, n) at the iterate.
        free : (B, n_free) the step without loads.
        before : (S, 3) the present loads.
        """
        constraints = self.constraints
        moved = self.motions_of(free)
        gap = self.contacts.gap + moved[:, 0]
        slide = constraints.slide(q) + moved[:, 1:]
        near = torch.minimum(gap, self.contacts.gap) < NEAR_PART * constraints.search_distance[constraints.robot]
        self.choose(near | (before[:, 0] > 0))
        if not self.size:
            return torch.zeros_like(before), torch.ones_like(self.rows)
        # without friction gaps are enough, a third of the numbers
        rubs = constraints.method not in LCP_METHODS or bool((constraints.friction > 0).any())
        axes = 3 if rubs else 1
        matrix = self.matrix(axes)
        active = self.padded(self.compliance[self.chosen, 0] != 0)
        # a negative compliance, as A is indefinite: loads would pull their contacts in, and cannot be found
        definite = ~self.padded(self.compliance[self.chosen].amin(1) < 0).any(1)
        active = active & definite.unsqueeze(1)
        symmetric = 0.5 * (matrix + matrix.mT)
        present = self.padded(before[self.chosen, :axes]).flatten(1)
        # the skew part of W (by drag, friction elsewhere) acts on the present loads; that is exact where they are right
        rest = ((matrix - symmetric) @ present.unsqueeze(2)).squeeze(2)
        motion = torch.cat([gap.unsqueeze(1), slide], dim=1)[self.chosen, :axes]
        b = self.padded(motion).flatten(1) + rest
        found, solved = self._rubbing(symmetric, b, active, present) if rubs else self._pressing(symmetric, b, active)
        loads = torch.zeros_like(before)
        loads[self.chosen, :axes] = found.unflatten(1, (-1, axes))[self.robot, self.slot]
        return loads, definite & (solved | ~active.any(1))

    def _rubbing(self, matrix: Tensor, b: Tensor, active: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, 3 C) where some contacts have friction, and the rows (B,) where they were found.

        Where contacts are many, those that stay apart without friction are left out at first.
        """
        if self.constraints.method not in LCP_METHODS or self.size <= MANY:
            return self._with_friction(matrix, b, active, present)
        likely = active & self._closes(matrix, b, active)
        loads, solved = self._with_friction(matrix, b, likely, present)
        gap = (b + (matrix @ loads.unsqueeze(2)).squeeze(2))[:, ::3]
        solved = solved & ~(active & (gap < -self.acceptable.unsqueeze(1))).any(1)
        if bool(solved.all()):
            return loads, solved
        others, found = self._with_friction(matrix, b, active & ~solved.unsqueeze(1), present)
        return torch.where(solved.unsqueeze(1), loads, others), solved | found

    def _closes(self, matrix: Tensor, b: Tensor, active: Tensor) -> Tensor:
        """Return the contacts (B, C) that bear a load when friction is left out."""
        matrix, gap = matrix[:, ::3, ::3], b[:, ::3]
        loads, _ = self._pressing(matrix, gap, active)
        apart = gap + (matrix @ loads.unsqueeze(2)).squeeze(2)
        return matrix.diagonal(dim1=1, dim2=2) * loads > apart  # a load of no more than rounding does not count

    def _with_friction(self, matrix: Tensor, b: Tensor, active: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, 3 C) of active contacts (B, C) with friction, and the rows (B,) where they were found.

        Where redundant contacts are at the limit of friction no attempt may get as far as `acceptable`. Loads that are
        right within the contacts' tolerance count as found, too: in the end the search judges contacts by no more.
        """
        method, mu = self.constraints.method, self.padded(self.constraints.friction[self.chosen].detach())
        guess = None if method == "gauss_seidel" else present
        solution = solve_contact(
            matrix, b, mu, active, method=method, tolerance=ACCURACY, acceptable=self.acceptable, guess=guess
        )
        closed = (solution.sticking | solution.sliding).unsqueeze(2)  # loads of open contacts are rounding
        loads = torch.where(closed, solution.impulses.unflatten(1, (-1, 3)), 0.0).flatten(1)
        within_tolerance = solution.residual <= self.constraints.tolerance
        return loads, (solution.status == Status.CONVERGED) | within_tolerance

    def _pressing(self, matrix: Tensor, gap: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, C) of contacts without friction, and the rows (B,) where they were found."""
        pairs = active.unsqueeze(2) & active.unsqueeze(1)
        matrix = torch.where(pairs, matrix, torch.diag_embed((~active).to(gap.dtype)))
        gap = torch.where(active, gap, 0.0)
        solution = solve_lcp(matrix, gap, self.constraints.method, ACCURACY, acceptable=self.acceptable)
        return torch.where(active, solution.z, 0.0), solution.status == Status.CONVERGED

    @property
    def acceptable(self) -> Tensor:
        """How exactly (B,) [m] gaps and slides have to be found at least."""
        return ENOUGH * self.constraints.tolerance

    def matrix(self, axes: int = 3, transpose: bool = False) -> Tensor:
        """Return W (B, axes C, axes C) over the chosen contacts by slots; with `transpose` by A transposed.

        Its diagonal is kept in `compliance`.

        Parameters
        ----------
        axes : 3 for gaps and slides, 1 for gaps alone.
        """
        like, on_unknowns = self.equations.base, self.equations.model.unknowns.on_unknowns
        jacobian, dofs = self.jacobian[self.chosen, :axes], self.constraints.dofs[self.chosen]
        matrix = like.new_zeros(len(self.rows), self.size, axes, self.size, axes)
        axis = torch.arange(axes, device=like.device).view(-1, 1)
        for k in range(self.size):
            here = (self.slot == k).nonzero().flatten()  # no more than one of each robot
            at = (axis, self.robot[here].view(-1, 1, 1), dofs[here].unsqueeze(1))
            forces = like.new_zeros(axes, *like.shape).index_put(at, jacobian[here], accumulate=True)
            steps = [self.factor.solve(on_unknowns(force), transpose) for force in forces]
            moved = torch.stack([self.equations.motion(step) for step in steps])
            reached = moved[:, self.robot.unsqueeze(1), dofs].permute(1, 2, 0)  # (A, 3 k, axes)
            matrix[self.robot, self.slot, :, k] = jacobian @ reached
        matrix = matrix.flatten(3).flatten(1, 2)
        compliance = matrix.diagonal(dim1=1, dim2=2).unflatten(1, (self.size, axes))
        self.compliance[self.chosen, :axes] = compliance[self.robot, self.slot]
        return matrix

    def violation(self, q: Tensor, by_active_set: Tensor) -> Tensor:
        """Return by how much (B,) [m] the worst contact of each robot breaks a law at q (B, n).

        What counts is overlap, the gap of a contact under load, and for friction how far surfaces slid other than
        against a load on its cone. A load counts as the length by which it moves its own contact. Where loads were
        found by the active set that is not known, and any load counts as large: contacts that bear one may neither be
        apart nor slide. Contacts of clamped nodes do not count: no load keeps these apart.

        Parameters
        ----------
        by_active_set : (B,) robots whose loads were found by the active set.
        """
        constraints = self.constraints
        gap = constraints.at(q, constraints.time).gap
        stays = by_active_set[constraints.robot] & (constraints.load[:, 0] > 0)
        bearing = torch.where(stays.unsqueeze(1), torch.inf, self.compliance) * constraints.load
        worst = torch.maximum(torch.minimum(bearing[:, 0], gap).abs(), -gap).where(
            bearing[:, 0] != 0, (-gap).clamp_min(0)
        )
        worst = torch.where(torch.isnan(gap), torch.inf, worst)
        if bool((constraints.friction > 0).any()):
            off = self._off_friction(constraints.slide(q), stays)
            worst = torch.where(constraints.load[:, 0] > 0, torch.maximum(worst, off), worst)
        moves = constraints.moved_by(self.equations.model.free, self.contacts)
        return constraints.largest(torch.where(moves, worst, 0.0))

    def _off_friction(self, slide: Tensor, stays: Tensor) -> Tensor:
        """Return by how much (S,) [m] contacts that slide by (S, 2) [m] break the law of friction.

        Parameters
        ----------
        stays : (S,) contacts that bear a load in an active set that was found.
        """
        load, mu = self.constraints.load, self.constraints.friction
        tiny = torch.finfo(load.dtype).tiny
        compliance, tangential = self.compliance[:, 1:].mean(1).clamp_min(tiny), load[:, 1:]
        wanted = tangential - slide / compliance.unsqueeze(1)
        length = torch.linalg.vector_norm(wanted, dim=1)
        back = wanted * (mu * load[:, 0] / length.clamp_min(tiny)).clamp(max=1).unsqueeze(1)
        off = torch.linalg.vector_norm(tangential - back, dim=1) * compliance
        return torch.where(stays, torch.where(mu > 0, OFF_CONE(load, slide, mu)[0], 0.0), off)

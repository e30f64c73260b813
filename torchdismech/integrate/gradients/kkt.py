"""KKTConditions: the conditions that contact constraints obey at the root of a step, for backward passes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.constraints import REDUNDANT
from torchdismech.geometry.frames import unit_or_zero
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.closed_contacts import stiffened
from torchdismech.integrate.search.delassus import Delassus
from torchdismech.solve.linear import factored, largest_entry

__all__ = ["KKTConditions"]

# Slides that are a smaller part of what friction resists are rounding: such contacts stick. The direction of rounding
# says nothing, and friction that turns with it would be stiffer than all else.
AT_REST = 1e-9


class KKTConditions:
    """The KKT conditions that contacts of a solved step obey, as equations in metres, to be differentiated.

    A contact without load is left out; one that sticks has neither gap nor slide; one that slides has no gap, and its
    friction is -mu N s / |s|. With these equations the loads are unknowns like the dofs, and for a loss whose gradient
    by the dofs is g

        A^T a + J^T D^T c = g,    E^T c = J a

    give the multipliers a of the balance of forces and c of these equations; D and E are the equations' derivatives by
    (gap, slide) and by the loads.

    Without friction J a = 0 along the normals, so A may be stiffened there by J^T s J, which changes no solution. It is
    stiffened, as contacts alone may hold a robot at rest: A is singular then, and how one contact responds drowns in
    how far the robot would move as a whole. With s the stiffness of A's stiffest part all contacts respond to loads
    alike. Slides, which nothing may hold, are left out of the equations that are solved.

    Parameters
    ----------
    equations : of the step, with the loads found.
    x : (B, n_free) its root.
    values : (nnz, B) of the matrix A there.
    rows : (B,) robots that were solved.

    Attributes
    ----------
    values : of the matrix, stiffened where nothing rubs.
    factor : of that matrix.
    robot : (A,) the robot of each contact that bears a load.
    """

    def __init__(self, equations: StepEquations, x: Tensor, values: Tensor, rows: Tensor):
        constraints = equations.constraints
        assert constraints is not None
        self.constraints, self.rows = constraints, rows
        q, closed, solver = equations.full(x), constraints.load[:, 0] > 0, equations.solver()
        self._rubs = bool((constraints.friction > 0).any())
        if not self._rubs:
            diagonal, weight = values[solver.diagonal(values.device)], equations.model.unknowns.residual_weight()
            stiffness = largest_entry(diagonal, weight)[constraints.robot]
            normals = constraints.jacobian(equations.contacts_at(x))[:, :1]
            values = stiffened(equations, values, normals, torch.where(closed, stiffness, 0.0).unsqueeze(1))
        self.values, self.factor = values, factored(solver, values, rows, nearly=not equations.scheme.inertial)[0]
        self._delassus = Delassus(equations, constraints, q, self.factor, rows)
        self._delassus.choose(closed)
        self.chosen, self.robot = self._delassus.chosen, self._delassus.robot
        self._matrix = self._delassus.matrix(3 if self._rubs else 1, transpose=True)
        slide, load, mu = constraints.slide(q)[self.chosen], constraints.load[self.chosen], self._friction()
        scale = self._delassus.compliance[self.chosen, 1:].mean(1, keepdim=True)
        self._scale = scale if self._rubs else torch.ones_like(scale)
        wanted = torch.linalg.vector_norm(load[:, 1:] * self._scale - slide, dim=1)
        most = mu * load[:, 0] * self._scale.squeeze(1)
        self._slides = ((most < (1 - AT_REST) * wanted) | (mu == 0)).unsqueeze(1)
        self._slide, self._load = slide, load

    def residual(self, equations: StepEquations, x: Tensor) -> Tensor:
        """Return the residuals (A, 3) of the conditions in the same step; autograd follows all but x and the loads."""
        constraints, q = equations.constraints, equations.full(x)
        assert constraints is not None
        gap, slide = constraints.at(q, constraints.time).gap[self.chosen], constraints.slide(q)[self.chosen]
        mu = constraints.friction[self.chosen]
        friction = self._load[:, 1:] + (mu * self._load[:, 0]).unsqueeze(1) * unit_or_zero(slide)
        return torch.cat([gap.unsqueeze(1), torch.where(self._slides, self._scale * friction, slide)], dim=1)

    def multipliers(self, rhs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the multipliers a (B, n_free) and c (A, 3) for a loss's gradient g (B, n_free) by the dofs."""
        first = self.factor.solve(rhs, transpose=True)
        if not self._delassus.size:
            return first, rhs.new_zeros(0, 3)
        return self._with_friction(rhs, first) if self._rubs else self._smooth(rhs, first)

    def _smooth(self, rhs: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the multipliers a and c where nothing rubs.

        Parameters
        ----------
        rhs : (B, n_free) the gradient g.
        first : (B, n_free) A^-T g.
        """
        delassus = self._delassus
        gaps = delassus.padded(delassus.motions_of(first)[self.chosen, :1])
        c = torch.zeros_like(self.constraints.load)
        c[self.chosen, :1] = self._solved(self._matrix, gaps)
        a = self.factor.solve(rhs - delassus.forces_of(c), transpose=True)
        # the multipliers by which a coefficient of friction would count
        c[self.chosen, 1:] = delassus.motions_of(a)[self.chosen, 1:]
        return a, c[self.chosen]

    def _solved(self, system: Tensor, motions: Tensor) -> Tensor:
        """Return the solution (A, k) of a system (B, k C, k C) over contacts for motions (B, C, k).

        Redundant contacts may share their load in many ways: the pseudo-inverse takes the smallest.
        """
        found = torch.linalg.pinv(system, rtol=REDUNDANT) @ motions.flatten(1).unsqueeze(2)
        return found.view_as(motions)[self._delassus.robot, self._delassus.slot]

    def _with_friction(self, rhs: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the multipliers a and c where something rubs.

        Parameters
        ----------
        rhs : (B, n_free) the gradient g.
        first : (B, n_free) A^-T g.
        """
        delassus = self._delassus
        by_motion, by_load = self._derivatives()
        moved = delassus.padded(delassus.motions_of(first)[self.chosen])
        # Delassus' operator of A^T times D^T; E^T is added on the diagonal below
        blocks = self._matrix.unflatten(2, (-1, 3)).transpose(1, 2) @ delassus.padded(by_motion).mT  # (B, C, 3 C, 3)
        system = blocks.transpose(1, 2).flatten(2)
        taken = delassus.padded(torch.ones_like(self.chosen, dtype=torch.bool))[..., None, None]
        unit = torch.eye(3, dtype=rhs.dtype, device=rhs.device)
        own = torch.where(taken, delassus.padded(by_load).mT, unit)
        for k in range(delassus.size):
            system[:, 3 * k : 3 * k + 3, 3 * k : 3 * k + 3] += own[:, k]
        own_c = self._solved(system, moved)
        back = torch.zeros_like(self.constraints.load)
        back[self.chosen] = (by_motion.mT @ own_c.unsqueeze(2)).squeeze(2)
        return self.factor.solve(rhs - delassus.forces_of(back), transpose=True), own_c

    def _friction(self) -> Tensor:
        return self.constraints.friction[self.chosen].detach()

    def _derivatives(self) -> tuple[Tensor, Tensor]:
        """Return the derivatives D and E (A, 3, 3) of the equations by (gap, slide) and by the loads."""
        count = len(self.chosen)
        by_motion = self._slide.new_zeros(count, 3, 3)
        by_load = torch.zeros_like(by_motion)
        plane = torch.eye(2, dtype=by_motion.dtype, device=by_motion.device)
        mu, scale, slides = self._friction(), self._scale.unsqueeze(2), self._slides.unsqueeze(2)
        length = torch.linalg.vector_norm(self._slide, dim=1)[:, None, None]
        way = unit_or_zero(self._slide)
        across = plane - way.unsqueeze(2) * way.unsqueeze(1)
        turning = (mu * self._load[:, 0])[:, None, None] * scale * across / torch.where(length > 0, length, 1.0)
        by_motion[:, 0, 0] = 1
        by_motion[:, 1:, 1:] = torch.where(slides, turning, plane)
        by_load[:, 1:, :1] = torch.where(slides, scale * (mu.unsqueeze(1) * way).unsqueeze(2), 0.0)
        by_load[:, 1:, 1:] = torch.where(slides, scale * plane, 0.0)
        return by_motion, by_load

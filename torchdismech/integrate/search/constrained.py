"""Newton's method with contact constraints, and the derivatives of these for backward passes.

In each iteration the loads solve a complementarity problem.

The step x + d and the loads p of an iterate obey A d = -r + J^T p, with the matrix A that all other forces (and the
present loads, whose directions turn) give. So gaps and slides after it are linear in the loads, W p + b with Delassus'
operator W = J A^-1 J^T, and the loads are the solution of a frictional contact problem with W and b.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.constraints import REDUNDANT, ConstraintSet, slots_of
from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.search.active_set import EXACT, active_set_step, misdirected, on_cone
from torchdismech.solve.complementarity import LCP_METHODS, solve_contact, solve_lcp
from torchdismech.solve.linear import Factor, JoinedFactor, shifted_factor
from torchdismech.solve.search import RUNNING, Iterate, NewtonOptions, Root, RootSearch

__all__ = ["ConstrainedSearch", "KKTConditions", "constrained_newton"]

SMALLEST_STEP = 2.0**-10
NEAR_PART = 0.1  # of the distance that a step looks at: contacts that come nearer without loads may bear one
# Of the largest entry of a matrix: what holds a part where contacts alone do. The loads of a pile of rods are found at
# 1e-7 to 1e-5; below, gaps without loads are so large that differences of them are lost.
SUPPORT = 1e-7
MANY = 64  # contacts of a robot with friction, beyond which it pays to find out first which of them stay apart
ACCURACY = 1e-10  # of the contact problem of an iterate, in parts of its largest gap or slide


def constrained_newton(equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor) -> Root:
    """Find x and loads of the contacts with |weight * r(x)| <= tolerance and no contact violated.

    The loads are left in `equations.constraints.load`. Arguments as for `solve.newton.newton`.
    """
    return ConstrainedSearch(equations, x, options, running).root()


class ConstrainedSearch(RootSearch):
    """Newton steps of which each begins with loads of the contacts.

    Attributes
    ----------
    descends : whether steps are to go down the potential.
    violation : (B,) [m] how much contacts are violated, unknown before the first step.
    """

    descends = False

    def __init__(self, equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor):
        assert equations.constraints is not None
        self.equations, self.constraints = equations, equations.constraints
        load = self.constraints.load
        self.constraints.load = torch.where(running[self.constraints.robot].unsqueeze(1), 0.0, load)
        self.at = Iterate.of(equations, x, options)
        self._asked = options
        self._allow_noise()
        self.violation = torch.full_like(self.at.norm, torch.inf)
        self.status = self._judged(torch.where(running, RUNNING, int(Status.CONVERGED)))
        self.iterations = torch.zeros_like(self.status)

    def _allow_noise(self) -> None:
        """Let the tolerance be that which is asked for, or the rounding noise at the iterate if that is larger."""
        self.options = self._asked.at_noise(self.at.x, self.at.values)
        self.tolerance = self.options.tolerance

    def round(self) -> bool:
        """Take a step; return whether some row still runs."""
        active = self.status == RUNNING
        self.at, violation, outcome = self._step(self.at, active)
        self.violation = torch.where(active, violation, self.violation)
        self.iterations = self.iterations + active
        if self.options.unbounded:
            self._allow_noise()
        status = self._judged(torch.where(active & (outcome != RUNNING), outcome, self.status))
        spent = (status == RUNNING) & (self.iterations >= self.options.max_iterations)
        self.status = torch.where(spent, int(Status.MAX_ITERATIONS), status)
        return bool((self.status == RUNNING).any())

    def _judged(self, status: Tensor) -> Tensor:
        """Return the status (B,) with running rows marked that are solved, or whose residual is not finite."""
        done = (self.at.norm <= self.tolerance) & (self.violation <= self.constraints.tolerance)
        status = torch.where((status == RUNNING) & ~torch.isfinite(self.at.norm), int(Status.NOT_FINITE), status)
        return torch.where((status == RUNNING) & done, int(Status.CONVERGED), status)

    def _step(self, at: Iterate, active: Tensor) -> tuple[Iterate, Tensor, Tensor]:
        """Return the next iterate, how much contacts are violated (B,) [m], and RUNNING or why a row cannot go on."""
        constraints, before = self.constraints, self.constraints.load
        factor = self._factored(at, active)
        outcome = torch.where(active & ~factor.ok, int(Status.SINGULAR), RUNNING)
        q = self.equations.full(at.x)
        delassus = _Delassus(self.equations, constraints, q, factor, active)
        free = factor.solve(-(at.residual + delassus.forces_of(before)))  # the residual has the present loads in it
        by_active_set = active_set_step(
            self.equations, at, delassus.contacts, delassus.arms, free, active & factor.ok, self.descends
        )
        delassus.rows = active & ~by_active_set.rows
        loads, solved = delassus.loads(q, free, before)
        loads = torch.where(by_active_set.rows[constraints.robot].unsqueeze(1), by_active_set.load, loads)
        outcome = torch.where(active & ~solved & (outcome == RUNNING), int(Status.CONTACT_UNSOLVED), outcome)
        going = active & (outcome == RUNNING)
        constraints.load = torch.where(going[constraints.robot].unsqueeze(1), loads, before)
        step = torch.where(by_active_set.rows[:, None], by_active_set.step, free + delassus.carried(loads))
        step = torch.where(going[:, None], step, 0.0)
        residual = at.residual - delassus.forces_of(constraints.load - before)
        there, found = self._searched(at, step, residual, factor, going)
        outcome = torch.where(going & ~found, int(Status.LINE_SEARCH_FAILED), outcome)
        return there, delassus.violation(self.equations.full(there.x), by_active_set.rows), outcome

    def _factored(self, at: Iterate, active: Tensor) -> Factor:
        """Return the factor of the iterate's matrix; where that is indefinite, without the loads' geometric stiffness.

        A large load on a curved surface may make it so, and then says nothing of how contacts answer to loads. If it is
        indefinite without, too, as that of a rod under strong compression, its diagonal is raised. Where it is no more
        than singular, as that of what contacts alone keep from falling, a trace on the diagonal is enough.
        """
        solver, equations = self.options.solver, self.equations
        factor = solver.factor(at.values, rows=active)
        lost = active & ~factor.ok
        if not solver.pattern.symmetric or not bool(lost.any()):
            return factor
        factor = JoinedFactor(factor, shifted_factor(solver, at.values, lost, SUPPORT, shifts=1))
        lost = active & ~factor.ok
        if not bool(lost.any()):
            return factor
        values = equations.without_geometric_stiffness(at.values, at.x)
        factor = JoinedFactor(factor, solver.factor(values, rows=lost))
        lost = active & ~factor.ok
        return JoinedFactor(factor, shifted_factor(solver, values, lost)) if bool(lost.any()) else factor

    def _searched(
        self, at: Iterate, step: Tensor, residual: Tensor, factor: Factor, rows: Tensor
    ) -> tuple[Iterate, Tensor]:
        """Return the iterate along the step, whole or halved until it is good enough, and where (B,) one was found.

        The tests are those of `solve.newton`, with the new loads held: the norm falls below that of the `residual`
        (B, n_free) here, or the next correction by the same factor is shorter.
        """
        size, start = self._size(step / self.options.weight), self.options.norm(residual)
        fraction, found, searching = torch.ones_like(start), ~rows, rows
        x = at.x
        while True:
            x = torch.where(searching[:, None], self.equations.advanced(at.x, fraction[:, None] * step), x)
            trial = Iterate.of(self.equations, x, self.options)
            good = (trial.norm < start) | (trial.norm <= self.options.tolerance) | (not self.options.line_search)
            if bool((searching & ~good).any()):
                correction = self._size(factor.solve(-trial.residual) / self.options.weight)
                good = good | (correction < (1 - 0.5 * fraction) * size)
            found = found | (searching & good & torch.isfinite(trial.norm))
            searching = ~found & (fraction > SMALLEST_STEP) & self.options.line_search
            if not bool(searching.any()):
                return trial, found
            fraction = torch.where(searching, 0.5 * fraction, fraction)

    @staticmethod
    def _size(vector: Tensor) -> Tensor:
        return torch.linalg.vector_norm(vector, dim=1)


class _Delassus:
    """How gaps and slides answer to loads at an iterate: W = J A^-1 J^T over the contacts that may bear a load.

    Parameters
    ----------
    constraints : of the step.
    q : (B, n) the iterate.
    factor : of A there.
    rows : (B,) robots to look at.
    """

    def __init__(self, equations: StepEquations, constraints: ConstraintSet, q: Tensor, factor: Factor, rows: Tensor):
        self.equations, self.constraints = equations, constraints
        self.contacts = constraints.at(q, constraints.time)
        self.arms = constraints.arms(self.contacts)
        self.factor, self.rows = factor, rows
        self.compliance = q.new_zeros(len(constraints), 3)
        self.choose(torch.zeros_like(constraints.robot, dtype=torch.bool))

    def forces_of(self, load: Tensor) -> Tensor:
        """Return the loads' force on the free dofs (B, n_free)."""
        like = self.equations.base
        return self.equations.model.unknowns.on_unknowns(self.constraints.forces_of(self.arms, load, like))

    def motions_of(self, step: Tensor) -> Tensor:
        """Return how gaps and slides (S, 3) change with the free dofs (B, n_free)."""
        whole = self.equations.model.unknowns.expand(step, torch.zeros_like(self.equations.base))
        return self.constraints.motions_of(self.arms, whole)

    def carried(self, load: Tensor) -> Tensor:
        """Return A^-1 J^T load on the free dofs (B, n_free)."""
        return self.factor.solve(self.forces_of(load))

    def choose(self, which: Tensor) -> None:
        """Look at the contacts where `which` (S,) holds from now on, of the robots that count."""
        self.chosen = (which & self.rows[self.constraints.robot]).nonzero().flatten()
        self.robot = self.constraints.robot[self.chosen]
        self.slot = slots_of(self.robot, len(self.rows))
        self.size = int(self.slot.max()) + 1 if len(self.slot) else 0

    def padded(self, values: Tensor) -> Tensor:
        """Return (B, C, ..) of what the chosen contacts have (A, ..), zeros in empty slots."""
        shape = (len(self.rows), self.size, *values.shape[1:])
        return values.new_zeros(shape).index_put((self.robot, self.slot), values)

    def loads(self, q: Tensor, free: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loads (S, 3) after the step that is `free` without them, and the rows (B,) where they were found.

        Contacts that stay apart without any load, and bear none now, are left out; if the loads of others push them
        together, the next iteration sees it. So are those of clamped nodes: no load moves them.
        """
        constraints = self.constraints
        moved = self.motions_of(free)
        gap = self.contacts.gap + moved[:, 0]
        slide = constraints.slide(q) + moved[:, 1:]
        near = torch.minimum(gap, self.contacts.gap) < NEAR_PART * constraints.search_distance[constraints.robot]
        self.choose(near | (before[:, 0] > 0))
        if not self.size:
            return torch.zeros_like(before), torch.ones_like(self.rows)
        # where nothing rubs gaps say all, a third of the numbers
        rubs = constraints.method not in LCP_METHODS or bool((constraints.friction > 0).any())
        axes = 3 if rubs else 1
        matrix = self.matrix(axes)
        active = self.padded(self.compliance[self.chosen, 0] != 0)
        # a negative answer: loads that pull their contacts in, as A is indefinite; there is nothing to be had from it
        definite = ~self.padded(self.compliance[self.chosen].amin(1) < 0).any(1)
        active = active & definite.unsqueeze(1)
        symmetric = 0.5 * (matrix + matrix.mT)
        present = self.padded(before[self.chosen, :axes]).flatten(1)
        # what is not symmetric (drag, friction elsewhere) acts through the present loads; exact where they are right
        rest = ((matrix - symmetric) @ present.unsqueeze(2)).squeeze(2)
        motion = torch.cat([gap.unsqueeze(1), slide], dim=1)[self.chosen, :axes]
        b = self.padded(motion).flatten(1) + rest
        found, solved = self._rubbing(symmetric, b, active, present) if rubs else self._pressing(symmetric, b, active)
        loads = torch.zeros_like(before)
        loads[self.chosen, :axes] = found.unflatten(1, (-1, axes))[self.robot, self.slot]
        return loads, definite & (solved | ~active.any(1))

    def _rubbing(self, matrix: Tensor, b: Tensor, active: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, 3 C) of contacts some of which rub, and the rows (B,) where they were found.

        Where contacts are many, those that would stay apart without friction are left out at first.
        """
        if self.constraints.method not in LCP_METHODS or self.size <= MANY:
            return self._with_friction(matrix, b, active, present)
        likely = active & self._closes(matrix, b, active)
        loads, solved = self._with_friction(matrix, b, likely, present)
        gap = (b + (matrix @ loads.unsqueeze(2)).squeeze(2))[:, ::3]
        solved = solved & ~(active & (gap < -self.enough.unsqueeze(1))).any(1)
        if bool(solved.all()):
            return loads, solved
        others, found = self._with_friction(matrix, b, active & ~solved.unsqueeze(1), present)
        return torch.where(solved.unsqueeze(1), loads, others), solved | found

    def _closes(self, matrix: Tensor, b: Tensor, active: Tensor) -> Tensor:
        """Return the contacts (B, C) that bear a load without friction."""
        matrix, gap = matrix[:, ::3, ::3], b[:, ::3]
        loads, _ = self._pressing(matrix, gap, active)
        apart = gap + (matrix @ loads.unsqueeze(2)).squeeze(2)
        return matrix.diagonal(dim1=1, dim2=2) * loads > apart  # a load that is no more than rounding is none

    def _with_friction(self, matrix: Tensor, b: Tensor, active: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, 3 C) of active contacts (B, C) with friction, and the rows (B,) where they were found."""
        method, mu = self.constraints.method, self.padded(self.constraints.friction[self.chosen].detach())
        guess = None if method == "gauss_seidel" else present
        solution = solve_contact(
            matrix, b, mu, active, method=method, tolerance=ACCURACY, enough=self.enough, guess=guess
        )
        closed = (solution.sticking | solution.sliding).unsqueeze(2)  # open ones may have a rounding of a load
        loads = torch.where(closed, solution.impulses.unflatten(1, (-1, 3)), 0.0).flatten(1)
        return loads, solution.status == Status.CONVERGED

    def _pressing(self, matrix: Tensor, gap: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return loads (B, C) of contacts without friction, and the rows (B,) where they were found."""
        pairs = active.unsqueeze(2) & active.unsqueeze(1)
        matrix = torch.where(pairs, matrix, torch.diag_embed((~active).to(gap.dtype)))
        gap = torch.where(active, gap, 0.0)
        solution = solve_lcp(matrix, gap, self.constraints.method, ACCURACY, enough=self.enough)
        return torch.where(active, solution.z, 0.0), solution.status == Status.CONVERGED

    @property
    def enough(self) -> Tensor:
        """How exactly (B,) gaps and slides are found at least [m]."""
        return EXACT * self.constraints.tolerance

    def matrix(self, axes: int = 3, transpose: bool = False) -> Tensor:
        """Return W (B, axes C, axes C) over the chosen contacts in their slots; with `transpose` that of A transposed.

        Parameters
        ----------
        axes : 3 for gaps and slides, 1 for gaps alone.
        """
        like, unknowns = self.equations.base, self.equations.model.unknowns
        arms, dofs = self.arms[self.chosen, :axes], self.constraints.dofs[self.chosen]
        matrix = like.new_zeros(len(self.rows), self.size, axes, self.size, axes)
        axis = torch.arange(axes, device=like.device).view(-1, 1)
        for k in range(self.size):
            here = (self.slot == k).nonzero().flatten()  # no more than one of each robot
            at = (axis, self.robot[here].view(-1, 1, 1), dofs[here].unsqueeze(1))
            forces = like.new_zeros(axes, *like.shape).index_put(at, arms[here], accumulate=True)
            steps = [self.factor.solve(unknowns.on_unknowns(force), transpose) for force in forces]
            moved = torch.stack([unknowns.expand(step, torch.zeros_like(like)) for step in steps])
            reached = moved[:, self.robot.unsqueeze(1), dofs].permute(1, 2, 0)  # (A, 12, axes)
            matrix[self.robot, self.slot, :, k] = arms @ reached
        matrix = matrix.flatten(3).flatten(1, 2)
        compliance = matrix.diagonal(dim1=1, dim2=2).unflatten(1, (self.size, axes))
        self.compliance[self.chosen, :axes] = compliance[self.robot, self.slot]
        return matrix

    def violation(self, q: Tensor, by_active_set: Tensor) -> Tensor:
        """Return by how much (B,) [m] the worst contact of each robot breaks a law at q (B, n).

        Overlap; distance under load; of friction, how far the surfaces slid against what a load on the cone does. A
        load counts as the length that it moves its own contact by. Where loads were found `by_active_set` (B,) that is
        not known, and any load counts as large: contacts that bear one may neither be apart nor slide. Contacts of
        clamped nodes do not count: no load keeps these out.
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
        """Return by how much (S,) [m] contacts break the law of friction, which slide by (S, 2) [m].

        Parameters
        ----------
        stays : (S,) contacts of active sets that were found, which bear a load.
        """
        load, mu = self.constraints.load, self.constraints.friction
        tiny = torch.finfo(load.dtype).tiny
        compliance, tangential = self.compliance[:, 1:].mean(1).clamp_min(tiny), load[:, 1:]
        wanted = tangential - slide / compliance.unsqueeze(1)
        length = torch.linalg.vector_norm(wanted, dim=1)
        back = wanted * (mu * load[:, 0] / length.clamp_min(tiny)).clamp(max=1).unsqueeze(1)
        off = torch.linalg.vector_norm(tangential - back, dim=1) * compliance
        slid = torch.where(on_cone(load, mu), misdirected(load, slide, mu), torch.linalg.vector_norm(slide, dim=1))
        return torch.where(stays, torch.where(mu > 0, slid, 0.0), off)


class KKTConditions:
    """The KKT conditions that contacts of a solved step obey, as equations in metres whose derivatives are wanted.

    A contact without load is left out; one that sticks has neither gap nor slide; one that slides has no gap, and its
    friction is -mu N s / |s|. With these equations the loads are unknowns like the dofs, and for a loss whose gradient
    by the dofs is g

        A^T a + J^T D^T c = g,    E^T c = J a

    give the multipliers a of the balance of forces and c of these equations; D and E are the equations' derivatives by
    (gap, slide) and by the loads.

    Parameters
    ----------
    equations : of the step, with the loads found.
    x : (B, n_free) its root.
    factor : of the matrix A there.
    rows : (B,) robots that were solved.
    """

    def __init__(self, equations: StepEquations, x: Tensor, factor: Factor, rows: Tensor):
        constraints = equations.constraints
        assert constraints is not None
        self.constraints, self.rows = constraints, rows
        q = equations.full(x)
        self._delassus = _Delassus(equations, constraints, q, factor, rows)
        self._delassus.choose(constraints.load[:, 0] > 0)
        self.chosen = self._delassus.chosen
        self._matrix = self._delassus.matrix(transpose=True)
        self._scale = self._delassus.compliance[self.chosen, 1:].mean(1, keepdim=True)
        slide, load, mu = constraints.slide(q)[self.chosen], constraints.load[self.chosen], self._friction()
        wanted = torch.linalg.vector_norm(load[:, 1:] * self._scale - slide, dim=1)
        self._slides = ((wanted > mu * load[:, 0] * self._scale.squeeze(1)) | (mu == 0)).unsqueeze(1)
        self._slide, self._load = slide, load

    def residual(self, equations: StepEquations, x: Tensor) -> Tensor:
        """Return the conditions (A, 3) in the same step; autograd follows all but x and the loads."""
        constraints, q = equations.constraints, equations.full(x)
        assert constraints is not None
        gap, slide = constraints.at(q, constraints.time).gap[self.chosen], constraints.slide(q)[self.chosen]
        mu = constraints.friction[self.chosen]
        friction = self._load[:, 1:] + (mu * self._load[:, 0]).unsqueeze(1) * _direction(slide)
        return torch.cat([gap.unsqueeze(1), torch.where(self._slides, self._scale * friction, slide)], dim=1)

    def multipliers(self, rhs: Tensor) -> tuple[Tensor, Tensor]:
        """Return a (B, n_free) and c (A, 3) for a gradient (B, n_free)."""
        factor, delassus = self._delassus.factor, self._delassus
        first = factor.solve(rhs, transpose=True)
        if not delassus.size:
            return first, rhs.new_zeros(0, 3)
        by_motion, by_load = self._derivatives()
        moved = delassus.padded(delassus.motions_of(first)[self.chosen])
        # W of A^T times D^T, then E^T on the diagonal
        blocks = self._matrix.unflatten(2, (-1, 3)).transpose(1, 2) @ delassus.padded(by_motion).mT  # (B, C, 3 C, 3)
        system = blocks.transpose(1, 2).flatten(2)
        taken = delassus.padded(torch.ones_like(self.chosen, dtype=torch.bool))[..., None, None]
        unit = torch.eye(3, dtype=rhs.dtype, device=rhs.device)
        own = torch.where(taken, delassus.padded(by_load).mT, unit)
        for k in range(delassus.size):
            system[:, 3 * k : 3 * k + 3, 3 * k : 3 * k + 3] += own[:, k]
        # redundant contacts share their load in many ways: the pseudo-inverse takes the smallest
        c = (torch.linalg.pinv(system, rtol=REDUNDANT) @ moved.flatten(1).unsqueeze(2)).squeeze(2)
        own_c = c.unflatten(1, (-1, 3))[delassus.robot, delassus.slot]
        back = torch.zeros_like(self.constraints.load)
        back[self.chosen] = (by_motion.mT @ own_c.unsqueeze(2)).squeeze(2)
        return factor.solve(rhs - delassus.forces_of(back), transpose=True), own_c

    def _friction(self) -> Tensor:
        return self.constraints.friction[self.chosen].detach()

    def _derivatives(self) -> tuple[Tensor, Tensor]:
        """Return the derivatives (A, 3, 3) of the equations by (gap, slide) and by the loads."""
        count = len(self.chosen)
        by_motion = self._slide.new_zeros(count, 3, 3)
        by_load = torch.zeros_like(by_motion)
        plane = torch.eye(2, dtype=by_motion.dtype, device=by_motion.device)
        mu, scale, slides = self._friction(), self._scale.unsqueeze(2), self._slides.unsqueeze(2)
        length = torch.linalg.vector_norm(self._slide, dim=1)[:, None, None]
        way = _direction(self._slide)
        across = plane - way.unsqueeze(2) * way.unsqueeze(1)
        turning = (mu * self._load[:, 0])[:, None, None] * scale * across / torch.where(length > 0, length, 1.0)
        by_motion[:, 0, 0] = 1
        by_motion[:, 1:, 1:] = torch.where(slides, turning, plane)
        by_load[:, 1:, :1] = torch.where(slides, scale * (mu.unsqueeze(1) * way).unsqueeze(2), 0.0)
        by_load[:, 1:, 1:] = torch.where(slides, scale * plane, 0.0)
        return by_motion, by_load


def _direction(slide: Tensor) -> Tensor:
    """Return unit vectors (A, 2); zero where there is no slide."""
    square = (slide * slide).sum(1, keepdim=True)
    moves = square > 0
    return torch.where(moves, slide / torch.where(moves, square, 1.0).sqrt(), 0.0)

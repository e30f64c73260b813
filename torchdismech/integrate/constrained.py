"""Newton's method with contact constraints: in each iteration the loads solve a complementarity problem.

The step x + d and the loads p of an iterate obey A d = -r + J^T p, with the matrix A that all other forces (and the
present loads, whose directions turn) give. So gaps and slides after it are linear in the loads, W p + b with Delassus'
operator W = J A^-1 J^T, and the loads are the solution of a frictional contact problem with W and b.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, places_of
from torchdismech.errors import Status
from torchdismech.integrate.balance import Balance
from torchdismech.solve.complementarity import solve_contact
from torchdismech.solve.linear import Factor
from torchdismech.solve.newton import Root, rounding_noise, shifted_factor

__all__ = ["Laws", "constrained_newton"]

RUNNING = -1
SMALLEST_STEP = 2.0**-10
REDUNDANT = 1e-11  # singular values below this part of the largest count as zero
ACCURACY = 1e-10  # of the contact problem of an iterate, in parts of its largest gap or slide


def constrained_newton(
    balance: Balance, x: Tensor, solver, tolerance: Tensor, weight: Tensor, max_iterations: int, running: Tensor
) -> Root:
    """Find x and loads of the contacts with |weight * r(x)| <= tolerance and no contact violated.

    The loads are left in `balance.constraints.load`. Arguments as for `solve.newton.newton`.
    """
    constraints = balance.constraints
    assert constraints is not None
    status = torch.where(running, RUNNING, int(Status.CONVERGED))
    constraints.load = torch.where(running[constraints.robot].unsqueeze(1), 0.0, constraints.load)
    iterations = torch.zeros_like(status)
    at = _Iterate.of(balance, x, weight)
    violation = torch.full_like(at.norm, torch.inf)
    tolerance = torch.maximum(tolerance, rounding_noise(x, at.values, solver, weight))
    for _ in range(max_iterations + 1):
        finite = torch.isfinite(at.norm)
        done = (at.norm <= tolerance) & (violation <= constraints.tolerance)
        status = torch.where((status == RUNNING) & ~finite, int(Status.NOT_FINITE), status)
        status = torch.where((status == RUNNING) & done, int(Status.CONVERGED), status)
        active = status == RUNNING
        if not bool(active.any()) or bool((iterations[active] >= max_iterations).any()):
            break
        at, violation, outcome = _stepped(balance, at, solver, weight, tolerance, violation, active)
        status = torch.where(active & (outcome != RUNNING), outcome, status)
        iterations += active
    status = torch.where(status == RUNNING, int(Status.MAX_ITERATIONS), status)
    return Root(at.x, status, iterations, at.norm, tolerance)


@dataclass(frozen=True)
class _Iterate:
    """A point with its residual and matrix under the present loads."""

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor

    @classmethod
    def of(cls, balance: Balance, x: Tensor, weight: Tensor) -> _Iterate:
        residual, values = balance.residual_and_matrix(x)
        return cls(x, residual, values, torch.linalg.vector_norm(residual * weight, dim=1))


def _stepped(
    balance: Balance, at: _Iterate, solver, weight: Tensor, tolerance: Tensor, violation: Tensor, active: Tensor
) -> tuple[_Iterate, Tensor, Tensor]:
    """Return the next iterate, how much its contacts are violated (B,) [m], and RUNNING or why a row cannot go on."""
    constraints = balance.constraints
    assert constraints is not None
    before = constraints.load
    outcome = torch.full_like(active, RUNNING, dtype=torch.long)
    factor = _factored(balance, at, solver, active)
    outcome = torch.where(active & ~factor.ok, int(Status.SINGULAR), outcome)
    q = balance.full(at.x)
    delassus = _Delassus(balance, constraints, q, factor, active)
    # without the loads; the residual has them
    free = factor.solve(-(at.residual + delassus.pushed(before)))
    loads, solved = delassus.loads(q, free, before)
    outcome = torch.where(active & ~solved & (outcome == RUNNING), int(Status.CONTACT_UNSOLVED), outcome)
    going = active & (outcome == RUNNING)
    constraints.load = torch.where(going[constraints.robot].unsqueeze(1), loads, before)
    step = torch.where(going[:, None], free + delassus.carried(constraints.load), 0.0)
    start = torch.linalg.vector_norm(weight * (at.residual - delassus.pushed(constraints.load - before)), dim=1)
    there, found = _searched(balance, at, step, start, factor, weight, tolerance, going)
    outcome = torch.where(going & ~found, int(Status.LINE_SEARCH_FAILED), outcome)
    return there, torch.where(active, delassus.violation(balance.full(there.x)), violation), outcome


def _factored(balance: Balance, at: _Iterate, solver, active: Tensor) -> Factor:
    """Return the factor of the iterate's matrix; of rows where that is indefinite, without the turning of the loads.

    A large load on a curved surface may make it so, and then says nothing of how contacts answer to loads. If it is
    indefinite without, too, as that of a rod under strong compression, its diagonal is raised.
    """
    factor = solver.factor(at.values, rows=active)
    lost = active & ~factor.ok
    if not solver.pattern.symmetric or not bool(lost.any()):
        return factor
    assert balance.constraints is not None
    values = at.values.clone()
    balance.constraints.add_turning(values, balance.full(at.x), solver.pattern, balance.model.unknown, -1.0)
    factor = _JoinedFactor(factor, solver.factor(values, rows=lost))
    lost = active & ~factor.ok
    return _JoinedFactor(factor, shifted_factor(solver, values, lost)) if bool(lost.any()) else factor


class _JoinedFactor(Factor):
    """Factors of unlike rows of a batch as one: each gives zeros in the rows of the other."""

    def __init__(self, first: Factor, second: Factor):
        self.parts = (first, second)
        self.ok = first.ok | second.ok
        self.dtype, self.shape = first.dtype, first.shape

    def solve(self, rhs: Tensor, transpose: bool = False) -> Tensor:
        """Return the solutions (B, n)."""
        return self.parts[0].solve(rhs, transpose) + self.parts[1].solve(rhs, transpose)


def _searched(
    balance: Balance,
    at: _Iterate,
    step: Tensor,
    start: Tensor,
    factor: Factor,
    weight: Tensor,
    tolerance: Tensor,
    rows: Tensor,
) -> tuple[_Iterate, Tensor]:
    """Return the iterate along the step, whole or halved until it is good enough, and where (B,) one was found.

    The tests are those of `solve.newton`, with the new loads held: the norm falls below `start` (B,), or the next
    correction by the same factor is shorter.
    """
    size = torch.linalg.vector_norm(step / weight, dim=1)
    fraction, found, searching = torch.ones_like(start), ~rows, rows
    x = at.x
    while True:
        x = torch.where(searching[:, None], balance.advanced(at.x, fraction[:, None] * step), x)
        trial = _Iterate.of(balance, x, weight)
        good = (trial.norm < start) | (trial.norm <= tolerance)
        if bool((searching & ~good).any()):
            correction = torch.linalg.vector_norm(factor.solve(-trial.residual) / weight, dim=1)
            good = good | (correction < (1 - 0.5 * fraction) * size)
        found = found | (searching & good & torch.isfinite(trial.norm))
        searching = ~found & (fraction > SMALLEST_STEP)
        if not bool(searching.any()):
            return trial, found
        fraction = torch.where(searching, 0.5 * fraction, fraction)


class _Delassus:
    """How gaps and slides answer to loads at an iterate: W = J A^-1 J^T over the contacts that may bear a load.

    Parameters
    ----------
    constraints : of the step.
    q : (B, n) the iterate.
    factor : of A there.
    rows : (B,) robots to look at.
    """

    def __init__(self, balance: Balance, constraints: ConstraintSet, q: Tensor, factor: Factor, rows: Tensor):
        self.balance, self.constraints = balance, constraints
        self.contacts = constraints.at(q, constraints.time)
        self.arms = constraints.arms(self.contacts)
        self.factor, self.rows = factor, rows
        self.compliance = q.new_zeros(len(constraints), 3)
        self.chosen = constraints.robot[:0]

    def pushed(self, load: Tensor) -> Tensor:
        """Return the loads' force on the free dofs (B, n_free)."""
        like = self.balance.base
        return self.constraints.pushed(self.arms, load, like).index_select(1, self.balance.model.free_index)

    def pulled(self, step: Tensor) -> Tensor:
        """Return how gaps and slides (S, 3) change with the free dofs (B, n_free)."""
        return self.constraints.pulled(self.arms, self.balance.model.spread(step, torch.zeros_like(self.balance.base)))

    def carried(self, load: Tensor) -> Tensor:
        """Return A^-1 J^T load on the free dofs (B, n_free)."""
        return self.factor.solve(self.pushed(load))

    def loads(self, q: Tensor, free: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loads (S, 3) after the step that is `free` without them, and the rows (B,) where they were found.

        Contacts that stay apart without any load, and bear none now, are left out; if the loads of others push them
        together, the next iteration sees it.
        """
        constraints, contacts = self.constraints, self.contacts
        moved = self.pulled(free)
        gap = contacts.gap + moved[:, 0]
        slide = constraints.slide(q) + moved[:, 1:]
        near = (torch.minimum(gap, contacts.gap) < constraints.reach[constraints.robot]) | (before[:, 0] > 0)
        self.chosen = (near & self.rows[constraints.robot]).nonzero().flatten()
        robot = constraints.robot[self.chosen]
        if not len(robot):
            return torch.zeros_like(before), torch.ones_like(self.rows)
        batch, place = len(self.rows), places_of(robot, len(self.rows))
        size = int(place.max()) + 1
        matrix, active = self.matrix(robot, place, size)
        b = free.new_zeros(batch, size, 3)
        b[robot, place] = torch.cat([gap.unsqueeze(1), slide], dim=1)[self.chosen]
        mu = free.new_zeros(batch, size)
        mu[robot, place] = constraints.friction[self.chosen].detach()
        present = free.new_zeros(batch, size, 3)
        present[robot, place] = before[self.chosen]
        symmetric = 0.5 * (matrix + matrix.mT)
        # loads that pull their own contacts in: A is indefinite, and there is no answer to be had from it
        definite = (symmetric.diagonal(dim1=1, dim2=2) >= 0).all(1)
        active = active & definite.unsqueeze(1)
        # what is not symmetric (drag, friction elsewhere) acts through the present loads; exact where they are right
        rest = ((matrix - symmetric) @ present.flatten(1).unsqueeze(2)).squeeze(2)
        solution = solve_contact(
            symmetric, b.flatten(1) + rest, mu, active, method=constraints.method, tolerance=ACCURACY
        )
        loads = torch.zeros_like(before)
        loads[self.chosen] = solution.impulses.unflatten(1, (-1, 3))[robot, place]
        return loads, definite & ((solution.status == Status.CONVERGED) | ~active.any(1))

    def matrix(self, robot: Tensor, place: Tensor, size: int, transpose: bool = False) -> tuple[Tensor, Tensor]:
        """Return W (B, 3 size, 3 size) over the chosen contacts at their places, and the places taken (B, size).

        With `transpose` that of A transposed.
        """
        batch = len(self.rows)
        like = self.balance.base
        active = torch.zeros(batch, size, dtype=torch.bool, device=like.device)
        active[robot, place] = True
        matrix = like.new_zeros(batch, size, 3, size, 3)
        for k in range(size):
            here = self.chosen[place == k]
            for axis in range(3):
                unit = like.new_zeros(len(self.constraints), 3)
                unit[here, axis] = 1
                answer = self.pulled(self.factor.solve(self.pushed(unit), transpose))[self.chosen]
                matrix[robot, place, :, k, axis] = answer
        compliance = matrix.flatten(3).flatten(1, 2).diagonal(dim1=1, dim2=2).unflatten(1, (size, 3))
        self.compliance[self.chosen] = compliance[robot, place]
        return matrix.flatten(3).flatten(1, 2), active

    def violation(self, q: Tensor) -> Tensor:
        """Return by how much (B,) [m] the worst contact of each robot breaks a law at q (B, n).

        Overlap; distance under load; of friction, how far the surfaces slid against what a load on the cone does. A
        load counts as the length that it moves its own contact by.
        """
        constraints = self.constraints
        gap = constraints.at(q, constraints.time).gap
        bearing = self.compliance * constraints.load
        worst = torch.maximum(torch.minimum(bearing[:, 0], gap).abs(), -gap).where(
            bearing[:, 0] != 0, (-gap).clamp_min(0)
        )
        worst = torch.where(torch.isnan(gap), torch.inf, worst)
        if bool((constraints.friction > 0).any()):
            stiff = self.compliance[:, 1:].mean(1).clamp_min(torch.finfo(gap.dtype).tiny)
            drag = constraints.load[:, 1:]
            wanted = drag - constraints.slide(q) / stiff.unsqueeze(1)
            most = constraints.friction * constraints.load[:, 0]
            length = torch.linalg.vector_norm(wanted, dim=1)
            back = wanted * (most / length.clamp_min(torch.finfo(gap.dtype).tiny)).clamp(max=1).unsqueeze(1)
            off = torch.linalg.vector_norm(drag - back, dim=1) * stiff
            worst = torch.where(constraints.load[:, 0] > 0, torch.maximum(worst, off), worst)
        return gap.new_zeros(len(self.rows)).scatter_reduce(0, constraints.robot, worst, "amax")


class Laws:
    """What the contacts of a solved step obey, as equations in metres whose derivatives are wanted.

    A contact without load is left out; one that sticks has neither gap nor slide; one that slides has no gap, and its
    friction is -mu N s / |s|. With these equations the loads are unknowns like the dofs, and for a loss whose gradient
    by the dofs is g

        A^T a + J^T D^T c = g,    E^T c = J a

    give the multipliers a of the balance of forces and c of these equations; D and E are the equations' derivatives by
    (gap, slide) and by the loads.

    Parameters
    ----------
    balance : of the step, with the loads found.
    x : (B, n_free) its root.
    factor : of the matrix A there.
    rows : (B,) robots that were solved.
    """

    def __init__(self, balance: Balance, x: Tensor, factor: Factor, rows: Tensor):
        constraints = balance.constraints
        assert constraints is not None
        self.balance, self.constraints, self.rows = balance, constraints, rows
        q = balance.full(x)
        self._delassus = _Delassus(balance, constraints, q, factor, rows)
        bearing = (constraints.load[:, 0] > 0) & rows[constraints.robot]
        self._delassus.chosen = self.chosen = bearing.nonzero().flatten()
        self._robot = constraints.robot[self.chosen]
        self._place = places_of(self._robot, len(rows))
        self._size = int(self._place.max()) + 1 if len(self._place) else 0
        self._matrix, self._taken = self._delassus.matrix(self._robot, self._place, self._size, transpose=True)
        self._scale = self._delassus.compliance[self.chosen, 1:].mean(1, keepdim=True)
        slide, load, mu = constraints.slide(q)[self.chosen], constraints.load[self.chosen], self._friction()
        wanted = torch.linalg.vector_norm(load[:, 1:] * self._scale - slide, dim=1)
        self._slides = ((wanted > mu * load[:, 0] * self._scale.squeeze(1)) | (mu == 0)).unsqueeze(1)
        self._slide, self._load = slide, load

    def equations(self, balance: Balance, x: Tensor) -> Tensor:
        """Return the equations (A, 3) of a balance of the same step; autograd follows all but x and the loads."""
        constraints, q = balance.constraints, balance.full(x)
        assert constraints is not None
        gap, slide = constraints.at(q, constraints.time).gap[self.chosen], constraints.slide(q)[self.chosen]
        mu = constraints.friction[self.chosen]
        friction = self._load[:, 1:] + (mu * self._load[:, 0]).unsqueeze(1) * _direction(slide)
        return torch.cat([gap.unsqueeze(1), torch.where(self._slides, self._scale * friction, slide)], dim=1)

    def multipliers(self, rhs: Tensor) -> tuple[Tensor, Tensor]:
        """Return a (B, n_free) and c (A, 3) for a gradient (B, n_free)."""
        factor, delassus = self._delassus.factor, self._delassus
        first = factor.solve(rhs, transpose=True)
        if not self._size:
            return first, rhs.new_zeros(0, 3)
        by_motion, by_load = self._derivatives()
        moved = self._placed(delassus.pulled(first)[self.chosen])
        # W of A^T times D^T, then E^T on the diagonal
        blocks = self._matrix.unflatten(2, (-1, 3)).transpose(1, 2) @ self._placed(by_motion).mT  # (B, C, 3 C, 3)
        system = blocks.transpose(1, 2).flatten(2)
        own = self._placed(by_load).mT
        own = torch.where(self._taken[..., None, None], own, torch.eye(3, dtype=rhs.dtype, device=rhs.device))
        for k in range(self._size):
            system[:, 3 * k : 3 * k + 3, 3 * k : 3 * k + 3] += own[:, k]
        # redundant contacts share their load in many ways: the pseudo-inverse takes the smallest
        c = (torch.linalg.pinv(system, rtol=REDUNDANT) @ moved.flatten(1).unsqueeze(2)).squeeze(2)
        own_c = c.unflatten(1, (-1, 3))[self._robot, self._place]
        back = torch.zeros_like(self.constraints.load)
        back[self.chosen] = (by_motion.mT @ own_c.unsqueeze(2)).squeeze(2)
        return factor.solve(rhs - delassus.pushed(back), transpose=True), own_c

    def _friction(self) -> Tensor:
        return self.constraints.friction[self.chosen].detach()

    def _placed(self, values: Tensor) -> Tensor:
        """Return (B, C, ..) of what the contacts have, (A, ..)."""
        shape = (len(self.rows), self._size, *values.shape[1:])
        return values.new_zeros(shape).index_put((self._robot, self._place), values)

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

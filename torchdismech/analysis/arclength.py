"""Pseudo-arclength steps along a path of equilibria: along its tangent, then back to the path by Newton's method.

The load factor f is an unknown beside the free dofs x. With the unit tangent t of the path at a point, the next point
is where forces balance and the advance along t is a length s (pseudo-arclength: Riks 1979, Keller 1977),

    r(x, f) = 0,    t . ((x, f) - (x, f)_0) = s.

Newton's method for both solves twice with the matrix K = dr/dx: K a = -r and K b = dr/df. Its step is a - b df, with df
from the second equation. So the model's linear solver serves; K is indefinite beyond limit points.

Lengths are sqrt(dx . dx + u^2 df^2), where u is the length of dx/df of the robot without loads. So at first the load
and the motion that it causes count equally; where the path turns, the motion counts most.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.static import ramped
from torchdismech.model.clamps import RigidWays
from torchdismech.robot.state import Control, State
from torchdismech.rows import weighted_norms
from torchdismech.solve.linear import SMALLEST_EIGENVALUE, Factor, factored
from torchdismech.solve.noise import lengths, rounding_noise, settled, short_length

__all__ = ["Arclength", "PathPoint"]

DIFFERENCE = 1e-4  # step of the load factor in central differences for dr/df, which are exact for linear loads
GOLDEN = (math.sqrt(5) - 1) / 2  # the fractional parts of its multiples are spread evenly, without a pattern
INVERSE_ITERATIONS = 3  # few are enough, as an eigenvalue of zero is far from all others


class PathPoint(NamedTuple):
    """A point on the path of equilibria of each robot.

    Attributes
    ----------
    state : the equilibria.
    factor : (B,) load factors.
    tangent_x, slope : the unit tangent of the path there: its part of the unknowns x (B, n_free) and of the load factor
        (B,).
    minimum : (B,) bool, whether the matrix is positive definite.
    """

    state: State
    factor: Tensor
    tangent_x: Tensor
    slope: Tensor
    minimum: Tensor

    def merged(self, other: PathPoint, rows: Tensor) -> PathPoint:
        """Return a copy in which some `rows` (B,) are those of `other`."""
        return PathPoint(
            self.state.merged(other.state, rows),
            torch.where(rows, other.factor, self.factor),
            torch.where(rows[:, None], other.tangent_x, self.tangent_x),
            torch.where(rows, other.slope, self.slope),
            torch.where(rows, other.minimum, self.minimum),
        )


class Arclength:
    """Pseudo-arclength steps of a batch of robots: the measure of lengths, and Newton's method back to the paths.

    Parameters
    ----------
    problem : the static problem, with the control at the load factor 1, except for poses of clamps.
    clamp_motions : motions of clamps that have a pose.

    Attributes
    ----------
    metric : (n_free,) weights of the squared unknowns in the length of a motion.
    unit : (B,) u, the length that counts for the load factor 1; it is 1 until `measured` sets it.
    """

    def __init__(self, problem: StepProblem, clamp_motions: RigidWays | None):
        self.problem, self.model, self.clamp_motions = problem, problem.model, clamp_motions
        model, state = self.model, problem.state
        count, extent = model.body.n_nodes, model.body.extent()
        of_nodes = model.unknowns.index < 3 * count
        self.metric = torch.where(of_nodes, 1 / (count * extent**2), 1 / count).to(state.q)
        self.unit = torch.ones_like(state.time)

    def measured(self, first: PathPoint) -> PathPoint:
        """Set `unit` from how the robots begin to move, and return their first points with tangents of unit length."""
        motion = torch.sqrt(self.dot(first.tangent_x, first.tangent_x)) / first.slope.abs()
        self.unit = torch.where(motion > 0, motion, 1.0)
        norm = torch.sqrt(self.inner(first, first.tangent_x, first.slope))
        return first._replace(tangent_x=first.tangent_x / norm[:, None], slope=first.slope / norm)

    def corrected(self, at: PathPoint, size: Tensor, rows: Tensor) -> tuple[PathPoint, Tensor, Tensor, Tensor]:
        """Return the points of the paths at a length `size` (B,) along the tangents from the points `at`.

        Also return which of them were found (B,), the numbers of iterations and the status, each (B,).

        Parameters
        ----------
        rows : (B,) bool, the robots to step.
        """
        candidates = self._candidates(at, size)
        equations, x, factor, status, iterations = self._root(at, size, rows, candidates)
        found = rows & (status == Status.CONVERGED)
        if not candidates.none:
            q = equations.full(x)
            passed = found & (candidates.missed(q) | candidates.passed(equations.accepted_state(q, found)))
            status, found = torch.where(passed, int(Status.PASSED_THROUGH), status), found & ~passed
        point, tangent = self._point(at, equations, x, factor, found, candidates)
        status = torch.where(found & ~tangent, int(Status.SINGULAR), status)  # an equilibrium without a tangent
        return point, tangent, iterations, status

    def _root(
        self, at: PathPoint, size: Tensor, rows: Tensor, candidates: ContactCandidates
    ) -> tuple[StepEquations, Tensor, Tensor, Tensor, Tensor]:
        """Return equations, unknowns x (B, n_free) and load factors at the last iterate, status and iterations (B,)."""
        weight, method = self.model.unknowns.residual_weight(), self.problem.method
        x0, factor = self.model.unknowns.of_dofs(at.state.q), at.factor + size * at.slope
        equations = self._equations(at.state, factor, candidates)
        solver = equations.solver()
        tolerance = method.tolerance(equations.force_scale(weight))
        x = equations.advanced(x0, size[:, None] * at.tangent_x)
        going, found, status = rows, torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.long)
        iterations = torch.zeros_like(status)
        last_length = length = torch.full_like(factor, torch.inf)  # lengths of the last two steps
        short = short_length(equations, x)
        while True:
            residual, values = equations.residual_and_matrix(x)
            norm = weighted_norms(residual, weight)
            noise = rounding_noise(x, values, solver.diagonal(x.device), weight)
            near = settled(norm, length, last_length, noise, short)
            found = found | (going & ((norm <= tolerance) | near))
            factors, _ = factored(solver, values, going & ~found)
            regular = _regular(factors, values[solver.diagonal(x.device)].T)
            status = _ended(going & ~found, status, norm, regular, iterations, method.max_iterations)
            going = going & ~found & (status == 0)
            if not bool(going.any()):
                return equations, x, factor, status, iterations
            iterations = iterations + going
            free, by_load = factors.solve(-residual), factors.solve(self._by_load(at.state, x, factor, candidates))
            excess = self.inner(at, x - x0, factor - at.factor) - size
            change = -(excess + self.dot(at.tangent_x, free)) / self.inner(at, -by_load, torch.ones_like(factor))
            step = torch.where(going[:, None], free - change[:, None] * by_load, 0.0)
            last_length, length = length, lengths(step, weight)
            x = torch.where(going[:, None], equations.advanced(x, step), x)
            factor = torch.where(going, factor + change, factor)
            equations = self._equations(at.state, factor, candidates)

    def _candidates(self, at: PathPoint, size: Tensor) -> ContactCandidates:
        """Return the contact candidates for steps of a length `size` (B,) from points along their tangents."""
        model, q = self.model, at.state.q
        control = self._control(at.state, at.factor + size * at.slope)
        step = model.unknowns.into_dofs(size[:, None] * at.tangent_x, torch.zeros_like(q))
        problem = self.problem.replace(state=at.state, control=control)
        return ContactCandidates(problem, model.unknowns.with_held(q + step, problem.clamped_q))

    def _point(
        self,
        at: PathPoint,
        equations: StepEquations,
        x: Tensor,
        factor: Tensor,
        rows: Tensor,
        candidates: ContactCandidates,
    ) -> tuple[PathPoint, Tensor]:
        """Return the points at x (B, n_free) and load factors (B,), and which of the rows (B,) have a tangent there.

        Each tangent gets the sign by which it goes on in the direction of the one at the point before.
        """
        state = equations.accepted_state(equations.full(x), rows)
        anchored = self._equations(state, factor, candidates)
        x = self.model.unknowns.of_dofs(state.q)
        solver = anchored.solver()
        _, values = anchored.residual_and_matrix(x)
        factors, definite = factored(solver, values, rows)
        tangent_x = -factors.solve(self._by_load(state, x, factor, candidates))
        norm = torch.sqrt(self.dot(tangent_x, tangent_x) + self.unit**2)
        tangent_x, slope = tangent_x / norm[:, None], 1 / norm
        sign = torch.where(self.inner(at, tangent_x, slope) < 0, -1.0, 1.0)
        regular = rows & _regular(factors, values[solver.diagonal(x.device)].T)
        return PathPoint(state, factor, sign[:, None] * tangent_x, sign * slope, definite), regular

    def _equations(self, state: State, factor: Tensor, candidates: ContactCandidates) -> StepEquations:
        """Return the equations of equilibria near a state under load factors (B,), with contact candidates."""
        control = self._control(state, factor)
        start = self.model.mechanics.start(state, control, None, candidates.pairs, factor)
        clamped_q = self.problem.replace(state=state, control=control).clamped_q
        return StepEquations(self.model, self.problem.method.scheme, start, clamped_q, 0.0)

    def _control(self, state: State, factor: Tensor) -> Control:
        """Return the control under load factors (B,), for frames anchored at a state."""
        control = ramped(self.problem, factor)
        return control if self.clamp_motions is None else self.clamp_motions.posed(control, factor, state)

    def _by_load(self, state: State, x: Tensor, factor: Tensor, candidates: ContactCandidates) -> Tensor:
        """Return the derivative (B, n_free) of the residual at x by the load factor."""
        factors = (factor + sign * DIFFERENCE for sign in (1, -1))
        ahead, behind = (self._equations(state, other, candidates).residual(x) for other in factors)
        return (ahead - behind) / (2 * DIFFERENCE)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner product (B,) of motions (B, n_free) of the unknowns."""
        return (self.metric * a * b).sum(1)

    def inner(self, at: PathPoint, x: Tensor, slope: Tensor) -> Tensor:
        """Return the inner product (B,) of the tangent at points with the vector (x, slope)."""
        return self.dot(at.tangent_x, x) + self.unit**2 * at.slope * slope

    def distance(self, a: PathPoint, b: PathPoint) -> Tensor:
        """Return the distance (B,) between points, of unknowns and load factor together."""
        displacement = self.displacement(a, b)
        return torch.sqrt(self.dot(displacement, displacement) + (self.unit * (b.factor - a.factor)) ** 2)

    def displacement(self, a: PathPoint, b: PathPoint) -> Tensor:
        """Return the change (B, n_free) of the unknowns from a to b."""
        return self.model.unknowns.of_dofs(b.state.q - a.state.q)


def _ended(going: Tensor, status: Tensor, norm: Tensor, solved: Tensor, iterations: Tensor, most: int) -> Tensor:
    """Return the status (B,), set for rows whose iteration cannot go on."""
    status = torch.where(going & (iterations >= most), int(Status.MAX_ITERATIONS), status)
    status = torch.where(going & ~solved, int(Status.SINGULAR), status)
    return torch.where(going & ~torch.isfinite(norm), int(Status.NOT_FINITE), status)


def _regular(factor: Factor, diagonal: Tensor) -> Tensor:
    """Return the robots (B,) whose matrix is regular: no eigenvalue is zero within rounding.

    The eigenvalue closest to zero of the matrix, scaled to a unit diagonal, is found by inverse iteration. Success of
    the factorization is not enough: where a robot is free to move, rounding may leave a pivot above, below or at zero.

    Parameters
    ----------
    diagonal : (B, n) diagonals of the matrices.
    """
    scale = torch.sqrt(diagonal.abs())
    numbers = torch.arange(diagonal.shape[1], device=diagonal.device, dtype=torch.float64)
    # the start has a part of every eigenvector, and is the same in each run
    vector = torch.frac(numbers * GOLDEN).sub(0.5).to(scale).expand_as(scale)
    for _ in range(INVERSE_ITERATIONS):
        vector = scale * factor.solve(scale * vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True))
    return factor.ok & (torch.linalg.vector_norm(vector, dim=1) * SMALLEST_EIGENVALUE[diagonal.dtype] < 1)

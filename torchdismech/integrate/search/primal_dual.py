"""Newton's method for robots that rub, with the traction of friction as an unknown beside the motion.

Friction F = -N mu gamma(v) v/|v| rises to its full size within the slip velocity, a thousandth of most velocities.
Newton's method for F(v) takes a contact to slide, where F does not change, or to stick, where it is a stiff spring, by
where the iterate is. From sliding it jumps over sticking into sliding the other way, and a line search creeps.

With the traction T = -F/N and r(v) = mu gamma(|v|)/|v|, the same root solves T = r(v) v. Linearised by both T and v as
T/r(v) = v, which is nearly linear in v, this takes steps

    dT = r (v + dv) - T + (r'/r) T (d . dv),    d = v/|v|,

so that the matrix is that of Newton's method with T in the place of r v in one factor: a contact whose traction is less
than that of its slide is about to stick, and is stiff. At the root both matrices are the same, and so is the order of
convergence. T is kept below mu. Chan, Golub and Mulet, SIAM J. Sci. Comput. 20, 1999, do so for total variation, whose
smoothed absolute value has the same kink. Steps are whole, but where parts of a robot would move far against each other
(`SmoothedFriction.step_fraction`), or where they go to and fro between sliding forward and backward along rods
(`NO_PROGRESS`); after a search that fails other ones follow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.fused import Fused
from torchdismech.integrate.equations import StepEquations
from torchdismech.rows import weighted_norms
from torchdismech.solve.noise import lengths, settled
from torchdismech.solve.progress import Progress, begun, begun_at
from torchdismech.solve.search import RUNNING, DividingSearch, Iterate, NewtonOptions, Root

__all__ = [
    "after_step",
    "expected_friction",
    "first_friction",
    "judged_step",
    "judged_step_arguments",
    "nodal_motion",
    "primal_dual_newton",
]

# Growth of the residual's norm beyond which a search is given up, from the first iterate or the second: of 2,900
# searches that found roots of rods thrown on floors and balls one was above 10, none above 20. Those that diverge are
# of rods that bend too far, for which only a line search helps. The second iterate counts as ropes that are fed onto a
# pile have a small residual before they are moved.
LARGEST_GROWTH = 20.0
# Where rods rub by direction, tractions have a second kink, between forward and backward, which is no unknown. Steps
# across it may go to and fro between two iterates. From the fifth step on they are halved where the norm is not below
# this part of the least so far: of 3,840 searches of worms that crawl 57 went on for ever, and none with halved steps.
NO_PROGRESS, FIRST_STEPS = 0.9, 4
# Unknowns of a robot up to which recorded searches are not divided: 256 worms of 15 nodes, each bent at random, take
# two fifths of the time so. Searches without recordings are divided, but robots so small not into so few that their
# factors are those for robots one by one, with other rounding: so they find the same bits.
LARGEST_UNDIVIDED = 400


def primal_dual_newton(
    equations: StepEquations, x: Tensor, options: NewtonOptions, running: Tensor, first: Iterate | None = None
) -> Root:
    """Find x as `newton` does, by primal-dual steps; the first is a Newton step.

    Parameters
    ----------
    first : the iterate at x, if a search before has found it.
    Others as for `newton`.
    """
    at = begun(equations, x, options, running) if first is None else begun_at(equations, first, options, running)
    q, velocity, *friction = equations.compiled(first_friction)(equations, at.x)
    friction += equations.rubbing.on_pairs(q, velocity)
    least = torch.full_like(at.norm, torch.inf)
    return _PrimalDual(equations, at, options, friction, LARGEST_GROWTH * at.norm, least).root()


class _PrimalDual(DividingSearch):
    """A search by primal-dual steps.

    Parameters
    ----------
    friction : (B, P, k) at the iterate, of each force and each table of pairs that rub: tractions, and what they are
        linearised by (see `SmoothedFriction`).
    limit : (B,) norm of the residual beyond which a row is given up.
    least : (B,) least norm of the iterates before, infinite at the first.
    Others as for `newton`.
    """

    system: StepEquations

    def __init__(
        self,
        equations: StepEquations,
        at: Progress,
        options: NewtonOptions,
        friction: list[Tensor],
        limit: Tensor,
        least: Tensor,
    ):
        self.system, self.options = equations, options
        self.at, self.status, self.iterations = at.iterate, at.status, at.iterations
        self.length, self.tolerance, self.short = at.length, at.noise, at.short
        self.friction, self.limit, self.least = friction, limit, least
        self._max_iterations = torch.full_like(options.tolerance[:1], options.max_iterations).squeeze(0)

    def divides(self) -> bool:
        """Return whether the search may go on with fewer rows: not if those of small robots are recorded.

        Steps of fewer rows are not recorded, so those of small robots take longer than recorded steps of all.
        """
        recorded = self.system.start.pairs is None and self.system.recording(next_iterates) is not None
        return not recorded or self.at.x.shape[1] > LARGEST_UNDIVIDED

    def of_rows(self, rows: Tensor, system: StepEquations) -> _PrimalDual:  # type: ignore[override]
        """Return the search of some rows alone, as far as it has come."""
        of_rows = (self.status, self.iterations, self.length, self.tolerance, self.short)
        progress = Progress.of(self.at.rows(rows), *(own[rows] for own in of_rows))
        options, friction = self.options.rows(rows, system.solver()), [known[rows] for known in self.friction]
        return _PrimalDual(system, progress, options, friction, self.limit[rows], self.least[rows])

    def round(self) -> bool:
        """Take a step; return whether some row still runs."""
        iterate = self.at
        of_rows = (self.length, self.tolerance, self.short, self.limit, self.least, self.status, self.iterations)
        next_rows = self.system.recording(next_iterates) or next_iterates
        rows = (iterate.x, iterate.residual, iterate.values, iterate.norm, *of_rows)
        results = next_rows(self.system, self.options, self._max_iterations, *rows, *self.friction)
        self.at = Iterate(*results[:4])
        self.length, self.tolerance, self.short, self.limit, self.least = results[4:9]
        self.status, self.iterations, going_on = results[9:12]
        self.friction = results[12:]
        return bool(going_on)


def next_iterates(
    equations: StepEquations, options: NewtonOptions, max_iterations: Tensor, *rows: Tensor
) -> list[Tensor]:
    """Return the rows after a step in those that run, then whether some row still runs (), then the friction.

    It reads no number on the host. The rows come in the order of `rows`.

    Parameters
    ----------
    max_iterations : () iterations that a row may take.
    rows : x (B, n_free), residual, values (nnz, B), and norm, length, noise, short (see `progress.Progress`), limit,
        least norm, status and iterations (B,) before it; then the friction (B, P, k) of all that rubs.
    """
    x, residual, values, norm, length, noise, short, limit, least, status, iterations, *friction = rows
    active = status == RUNNING
    factor = options.solver.factor(values, rows=active)
    step = factor.solve(-residual)
    solved = active & factor.ok
    step = torch.where(solved[:, None], step, 0.0)
    if equations.rubbing.directional:
        to_and_fro = (iterations >= FIRST_STEPS) & (norm > NO_PROGRESS * least)
        step, least = torch.where(to_and_fro[:, None], 0.5 * step, step), torch.minimum(least, norm)
    next_x, new_residual, new_values, *friction = equations.compiled(after_step)(equations, x, step, *friction)
    least_noise = noise
    if options.noise_at_each_iterate:
        noise = options.with_tolerance_above_noise(next_x, new_values).tolerance
        least_noise = torch.minimum(least_noise, noise)
    of_rows = (norm, length, options.tolerance, least_noise, short, limit, status, iterations, factor.ok)
    judgement = equations.compiled(judged_step)
    results = judgement(equations, new_residual, step, options.weight, max_iterations, *of_rows)
    new_norm, length, limit, status, iterations, going_on = results
    at = Iterate(x, residual, values, norm).merged(Iterate(next_x, new_residual, new_values, new_norm), solved)
    results = [at.x, at.residual, at.values, at.norm, length, noise, short, limit, least, status, iterations]
    return [*results, going_on.any(), *friction]


def judged_step(
    _: StepEquations, residual: Tensor, step: Tensor, weight: Tensor, max_iterations: Tensor, *rows: Tensor
) -> list[Tensor]:
    """Return norm, length, limit, status and iterations (B,) of rows after a step, and whether they go on.

    Parameters
    ----------
    residual, step : (B, n_free) the residual after the step; weight : (n_free,) of its numbers in the norm.
    max_iterations : () iterations that a row may take.
    rows : (B,) before the step: norm, length, tolerance, noise, short, limit, status, iterations; and whether a row had
        a step.
    """
    there, length = weighted_norms(residual, weight), lengths(step, weight)
    columns = _JUDGED.of_columns(there, length, max_iterations, *(row.to(residual.dtype) for row in rows))
    return [columns[0], length, columns[1], columns[2].long(), columns[3].long(), columns[4]]


def judged_step_arguments(x: Tensor, weight: Tensor, running: Tensor) -> list[Tensor]:
    """Return tensors shaped as arguments of `judged_step`, for unknowns x (B, n_free) and rows (B,) that run."""
    norm, status = torch.zeros_like(x[:, 0]), running.long()
    return [x, x, weight, norm[0], *[norm] * 6, status, status, running]


def _judged(
    there: Tensor,
    length: Tensor,
    max_iterations: Tensor,
    norm: Tensor,
    before: Tensor,
    tolerance: Tensor,
    noise: Tensor,
    short: Tensor,
    limit: Tensor,
    status: Tensor,
    iterations: Tensor,
    ok: Tensor,
) -> list[Tensor]:
    """Return norm, limit, status and iterations of rows after a step, and whether they go on (1, or 0).

    Parameters
    ----------
    there, length : norm of the residual after the step, and how long it was.
    max_iterations : iterations that a row may take.
    norm, before, limit, status, iterations : before the step.
    tolerance, noise, short : see `trial.Move`.
    ok : whether a row had a step (not 0).
    """
    active = status == RUNNING
    norm = torch.where(active & (ok > 0), there, norm)
    limit = torch.where(iterations == 0, torch.maximum(limit, LARGEST_GROWTH * norm), limit)
    iterations = torch.where(active, iterations + 1, iterations)
    within = (norm <= tolerance) | settled(norm, length, before, noise, short)
    ended = torch.where(active & within, int(Status.CONVERGED), status)
    ended = torch.where(active & ~(norm < torch.inf), int(Status.NOT_FINITE), ended)
    ended = torch.where(active & ~(ok > 0), int(Status.SINGULAR), ended)
    ended = torch.where((ended == RUNNING) & (norm > limit), int(Status.LINE_SEARCH_FAILED), ended)
    ended = torch.where((ended == RUNNING) & (iterations >= max_iterations), int(Status.MAX_ITERATIONS), ended)
    going_on = torch.where(ended == RUNNING, torch.ones_like(norm), torch.zeros_like(norm))
    return [norm, limit, ended, iterations, going_on]


_JUDGED = Fused(_judged, "rows of primal-dual searches")


def after_step(equations: StepEquations, x: Tensor, step: Tensor, *friction: Tensor) -> list[Tensor]:
    """Return x (B, n_free) after a step, residual and matrix values there, and the friction to expect, as it is given.

    The matrix is for the tractions to expect, in place of those that follow from the velocities.

    Parameters
    ----------
    step : (B, n_free), of which a part is taken where the whole would move a pair of the robot's parts too far.
    friction : (B, P, k) at x, of all that rubs; see `SmoothedFriction`.
    """
    rubbing = equations.rubbing
    fraction = rubbing.step_fraction(nodal_motion(equations, step))
    there = equations.advanced(x, step if fraction is None else fraction * step)
    q, velocity, *expected = equations.compiled(expected_friction)(equations, there, *friction[: rubbing.force_count])
    expected += rubbing.on_pairs(q, velocity, friction[rubbing.force_count :])
    with rubbing.with_tractions(expected):
        residual, values = equations.residual_and_matrix(there)
    return [there, residual, values, *expected]


def nodal_motion(equations: StepEquations, step: Tensor) -> Tensor:
    """Return how a step (B, n_free) moves the nodes' coordinates (B, 3 N)."""
    return equations.motion(step)[:, : 3 * equations.model.body.n_nodes]


def first_friction(equations: StepEquations, x: Tensor) -> list[Tensor]:
    """Return q and velocity (B, n) where forces are evaluated for x, and the friction of forces as a search begins.

    The friction is (B, P, k) for each force that rubs, with the tractions of these velocities (see `SmoothedFriction`).
    """
    state = equations.evaluated_state(equations.full(x))
    return [state.q, state.velocity, *equations.rubbing.of_forces(state)]


def expected_friction(equations: StepEquations, x: Tensor, *friction: Tensor) -> list[Tensor]:
    """Return q and velocity (B, n) where forces are evaluated for x, and the friction to expect of forces there.

    Parameters
    ----------
    x : (B, n_free) the iterate.
    friction : (B, P, k) of forces at the iterate before; see `SmoothedFriction`.
    """
    state = equations.evaluated_state(equations.full(x))
    return [state.q, state.velocity, *equations.rubbing.of_forces(state, friction)]

"""Impulses of frictional contact in one time step, for a batch of robots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.solve.complementarity.cone import ConeLaw, polished
from torchdismech.solve.complementarity.fischer_burmeister import fischer_burmeister
from torchdismech.solve.complementarity.gauss_seidel import gauss_seidel
from torchdismech.solve.complementarity.interior_point import crossed_over, interior_point
from torchdismech.solve.complementarity.lcp import check_options, status_of
from torchdismech.solve.complementarity.problem import (
    ScaledContacts,
    admitted,
    entries_of,
    first_places,
    independent_contacts,
    scaled_contacts,
    without_padding,
)
from torchdismech.solve.complementarity.pyramid import (
    PyramidSystem,
    joined,
    pyramid_directions,
    pyramid_matrix,
)

__all__ = ["CONES", "CONTACT_METHODS", "ContactSolution", "solve_contact"]

CONTACT_METHODS = ("interior_point", "fischer_burmeister", "gauss_seidel")
CONES = ("second_order", "pyramid")
DIRECTIONS, REGULARISATION = 8, 1e-10  # of the pyramid
MAX_ITERATIONS = {"interior_point": 60, "fischer_burmeister": 200, "gauss_seidel": 2000}
POLISHING = 60  # Newton iterations on the exact cone
VISITS = 20_000  # of contacts, in the sweeps over a row that no start solves: some seconds
RESUMING = 12  # from a guess: near ones take less, and from others it is better to begin anew


class _Start(NamedTuple):
    """Where an attempt at the scaled problem begins.

    Attributes
    ----------
    impulse : the first impulses.
    ratio : of the first velocities to these.
    finer : how many times as many edges the pyramid has, if its solution is polished.
    """

    impulse: float
    ratio: float
    finer: int


# rows that one start does not solve try the next
STARTS = (
    _Start(10.0, 0.1, 1),
    _Start(1.0, 0.1, 2),
    _Start(100.0, 0.1, 2),
    _Start(1.0, 1.0, 4),
    _Start(1000.0, 0.01, 4),
    _Start(0.1, 1.0, 4),
)


@dataclass(frozen=True)
class ContactSolution:
    """Impulses of frictional contact.

    Attributes
    ----------
    impulses : (B, 3C) per contact (normal, tangent 1, tangent 2). Exactly zero where a contact is not active. Where the
        row did not converge the best iterate; zeros where its input is not finite. Look at `status` first.
    velocity : (B, 3C) W p + b, also of contacts that rank selection dropped; zero where a contact is not active.
    status : (B,) `Status` values: CONVERGED, MAX_ITERATIONS, NOT_FINITE.
    iterations : (B,) of the method and of the polish together.
    residual : (B,) largest violation on the problem as given, in the units of b; NaN where the input is not finite.
        With w_n and w_t the contact's own entries of W: normal |min(w_n p_n, v_n)|, which bounds penetration velocity,
        tension and lack of complementarity; tangential w_t |p_t - (p_t - v_t / w_t put back into the cone)|, which
        bounds the excess over the cone and the lack of dissipation. On the pyramid its own complementarity conditions,
        likewise.
    sticking, sliding : (B, C) bool; neither where a contact is open, dropped or not active.
    dropped : (B, C) bool, contacts that rank selection left out: no impulse, not part of the residual.
    cone : the cone on which the impulses are a solution.
    """

    impulses: Tensor
    velocity: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    sticking: Tensor
    sliding: Tensor
    dropped: Tensor
    cone: str

    @classmethod
    def of(
        cls,
        law: ConeLaw,
        impulses: Tensor,
        rows: tuple[Tensor, Tensor, Tensor],
        goal: Tensor,
        iterations: Tensor,
        cone: str,
        error: Tensor | None = None,
    ) -> ContactSolution:
        """Return what impulses (B, 3C) mean on the problem as given.

        Parameters
        ----------
        law : of the problem.
        rows : contacts that are active and that were kept (B, C), robots whose input is finite (B,).
        goal : (B,) what a row is held against to have converged: its residual, or `error` (B,) where that is given.
        """
        active, kept, finite = rows
        residual = law.residual(impulses)
        sticking, sliding = law.modes(impulses)
        return cls(
            impulses=impulses,
            velocity=torch.where(active.repeat_interleave(3, 1), law.velocity(impulses).flatten(1), 0.0),
            status=status_of(finite, residual if error is None else error, goal),
            iterations=iterations,
            residual=torch.where(finite, residual, torch.nan),
            sticking=sticking,
            sliding=sliding,
            dropped=active & ~kept,
            cone=cone,
        )


def solve_contact(
    delassus: Tensor,
    free: Tensor,
    mu: Tensor,
    active: Tensor,
    *,
    method: str = "interior_point",
    cone: str = "second_order",
    directions: int | None = None,
    angle: Tensor | None = None,
    regularisation: float | None = None,
    rank_tolerance: float | None = None,
    tolerance: float = 1e-8,
    enough: Tensor | None = None,
    max_iterations: int | None = None,
    guess: Tensor | None = None,
) -> ContactSolution:
    """Find impulses p with v = W p + b, 0 <= p_n complementary to v_n >= 0, and Coulomb friction |p_t| <= mu p_n.

    The cone is first taken as a pyramid (Stewart and Trinkle; Anitescu and Potra), which makes it a linear
    complementarity problem; its solution is then polished by Newton's method on the exact cone, so that friction
    opposes the sliding velocity exactly. A row that fails starts again, from other first values and with its pyramid
    turned to where the best impulses so far point, and finer; with "interior_point" its last attempt are sweeps as of
    "gauss_seidel". Rows do not influence each other, nor do contacts that are not active.

    Solutions need not be unique: of redundant contacts only what they do together is determined.

    Parameters
    ----------
    delassus : (B, 3C, 3C) W, symmetric positive semidefinite; per contact (normal, tangent 1, tangent 2).
    free : (B, 3C) b, relative velocity (or displacement) without contact, positive normals separate.
    mu : (B, C) coefficients of friction.
    active : (B, C) bool; False is padding, whose numbers are not read.
    method : "interior_point"; "fischer_burmeister" (semismooth Newton with Levenberg-Marquardt on the full matrix of
        the pyramid's problem); "gauss_seidel" (projected, on the exact cone from the start, without any factorisation).
    cone : "second_order" or "pyramid" (the pyramid's solution as it is).
    directions : edges of the pyramid, even, at least 4; by default 8.
    angle : (B, C) of the first direction from tangent 1 [rad]; by default it lies along the tangential part of b. On
        the second-order cone it is where the first attempt begins.
    regularisation : what is added to the unit-scaled diagonal of W at the normals while the pyramid's problem is
        solved, by default 1e-10: the normal velocity is off by this times w_n p_n until the last steps, which work
        without it. The residual is always that of the problem as given.
    rank_tolerance : where given, contacts with redundant normals are dropped first, see `independent_contacts`.
    tolerance : of the residual, relative to the largest |b| of the row.
    enough : (B,) residual at which a row counts as solved if the first start gets no nearer, in the units of b.
    max_iterations : from each start; by default 60, 200 (fischer_burmeister), 2000 sweeps (gauss_seidel).
    guess : (B, 3C) impulses that may be near, for example zeros or those of a problem that differs little: Newton's
        method on the exact cone first tries to go on from there. For the second-order cone, not for gauss_seidel.

    Raises
    ------
    InputError
        Shapes or types that do not fit, negative mu, W not symmetric, an unknown or contradictory option.
    """
    if method == "gauss_seidel":
        _check_no_pyramid(cone=cone, directions=directions, angle=angle, regularisation=regularisation)
    options = _Options.with_defaults(method, cone, directions, regularisation, tolerance, max_iterations)
    _check_rank_tolerance(rank_tolerance)
    _check_shapes(free, mu, angle, guess, cone, method)
    delassus, free, mu, active, finite = admitted(delassus, free, mu, active)
    kept = active if rank_tolerance is None else independent_contacts(delassus, active, rank_tolerance)
    angle = _angle(free) if angle is None else angle
    pyramid = (angle, options.directions) if cone == "pyramid" else None
    law = ConeLaw(delassus, free, mu, kept, free.new_ones(*mu.shape, 2), pyramid)
    goal = tolerance * free.abs().amax(1)
    enough = goal if enough is None else torch.maximum(goal, enough)
    places = first_places(kept)  # what is not there is no unknown
    entries = entries_of(places)
    guess = None if guess is None else guess.gather(1, entries)
    found, iterations = _solved(law.at(places), options, (goal, enough), angle.gather(1, places), guess)
    impulses = torch.zeros_like(free).scatter(1, entries, found)
    return ContactSolution.of(law, impulses, (active, kept, finite), enough, iterations, cone)


def _solved(
    law: ConeLaw, options: _Options, goals: tuple[Tensor, Tensor], angle: Tensor, guess: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return impulses (B, 3C) of a law and the iterations (B,); goals are `goal` and `enough` of `_Attempt`."""
    problem = scaled_contacts(*without_padding(law.delassus, law.free, law.mu, law.active), law.active)
    first = _Attempt(problem, options, STARTS[0], *goals)
    if guess is None:
        return _best(first, law, torch.zeros_like(law.free), angle)
    found, resuming = first.resumed(guess)
    found, iterations = _best(first, law, found, angle)
    return found, resuming + iterations


def _best(first: _Attempt, law: ConeLaw, impulses: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return the impulses (B, 3C) of least residual that all starts lead to, and the iterations (B,) of these.

    A row is tried again, by the next attempt, until it is near enough; the first attempt is to come to its goal.
    """
    residual, enough = law.residual(impulses), first.enough
    iterations = torch.zeros_like(enough, dtype=torch.long)
    for k, (options, start) in enumerate(first.options.attempts(law.mu.shape[1])):
        rows = (residual > (enough if k else first.goal)).nonzero().flatten()
        if not len(rows):
            break
        if k and first.options.cone == "second_order":
            angle = torch.where((residual > enough)[:, None], _angle(impulses), angle)
        problem = first.problem.rows(rows)
        attempt = _Attempt(problem, options, start, first.goal[rows], enough[rows])
        found, used = attempt.solved(angle[rows])
        iterations[rows] += used
        trial = impulses.index_copy(0, rows, found)
        error = law.residual(trial)
        better = error < residual  # False where it is NaN
        impulses, residual = torch.where(better[:, None], trial, impulses), torch.where(better, error, residual)
    return impulses, iterations


def _angle(vector: Tensor) -> Tensor:
    """Return the angle (B, C) of the tangential parts of (B, 3C)."""
    each = vector.unflatten(1, (-1, 3))
    return torch.atan2(each[..., 2], each[..., 1])


def _check_no_pyramid(cone: str, **options: object) -> None:
    """Refuse what only a pyramid has a use for."""
    given = [name for name, value in options.items() if value is not None] + ["cone"] * (cone != "second_order")
    if given:
        raise InputError(
            f"solve_contact: gauss_seidel works on the second-order cone without a pyramid, so it takes no "
            f"{', '.join(given)}; leave it out or choose interior_point"
        )


def _check_shapes(free: Tensor, mu: Tensor, angle: Tensor | None, guess: Tensor | None, cone: str, method: str) -> None:
    """Refuse a guess and angles that do not fit the problem."""
    if guess is not None and (method == "gauss_seidel" or cone != "second_order" or guess.shape != free.shape):
        raise InputError(
            f"solve_contact: a guess has the shape of b, {tuple(free.shape)}, and goes with the second-order cone and "
            f"not with gauss_seidel; got {tuple(guess.shape)}, {cone}, {method}"
        )
    if angle is not None and angle.shape != mu.shape:
        raise InputError(f"solve_contact: expected angle of shape {tuple(mu.shape)}, got {tuple(angle.shape)}")


def _check_rank_tolerance(rank_tolerance: float | None) -> None:
    """Refuse what is not a part between 0 and 1."""
    if rank_tolerance is not None and not 0 < rank_tolerance < 1:
        raise InputError(f"solve_contact: rank_tolerance must lie between 0 and 1, got {rank_tolerance}")


@dataclass(frozen=True)
class _Options:
    """The options of `solve_contact`, with their defaults."""

    method: str
    cone: str
    directions: int
    regularisation: float
    tolerance: float
    limit: int  # of iterations from each start

    @classmethod
    def with_defaults(
        cls,
        method: str,
        cone: str,
        directions: int | None,
        regularisation: float | None,
        tolerance: float,
        max_iterations: int | None,
    ) -> _Options:
        """Return the options with the defaults of what is None; refuse values that make no sense."""
        limit = MAX_ITERATIONS.get(method, 1) if max_iterations is None else max_iterations
        check_options("solve_contact", method, CONTACT_METHODS, tolerance, limit)
        if cone not in CONES:
            raise InputError(f"solve_contact: cone must be one of {', '.join(CONES)}, got {cone!r}")
        directions = DIRECTIONS if directions is None else directions
        if directions < 4 or directions % 2:
            raise InputError(f"solve_contact: directions must be even and at least 4, got {directions}")
        regularisation = REGULARISATION if regularisation is None else regularisation
        if not regularisation >= 0:
            raise InputError(f"solve_contact: regularisation must not be negative, got {regularisation}")
        return cls(method, cone, directions, regularisation, tolerance, limit)

    def attempts(self, contacts: int) -> list[tuple[_Options, _Start]]:
        """Return the options and starts of the attempts, one after the other, on problems of so many contacts.

        Sweeps come last: they are slow, but arrive where redundant contacts are about to let go, at some of which
        neither impulse nor velocity is far from zero, so that Newton's method on the exact cone stalls.
        """
        if self.method != "interior_point":
            return [(self, STARTS[0])]
        from_starts = [(self, start) for start in STARTS]
        if self.cone == "pyramid":
            return from_starts
        limit = min(MAX_ITERATIONS["gauss_seidel"], VISITS // contacts)
        sweeps = replace(self, method="gauss_seidel", limit=limit)
        return [*from_starts, (sweeps, STARTS[0])]


@dataclass(frozen=True)
class _Attempt:
    """One try at the scaled problem, from one start."""

    problem: ScaledContacts
    options: _Options
    start: _Start
    goal: Tensor  # (B,) of the residual on the problem as given
    enough: Tensor  # (B,) at least that: where a row is solved that does not get nearer

    def solved(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Return impulses (B, 3C) of the problem as given and the iterations (B,), from an angle (B, C)."""
        problem, law, options = self.problem, self._law(), self.options
        if options.method == "gauss_seidel":
            p, iterations = gauss_seidel(law, torch.zeros_like(problem.free), self.goal, options.limit)
        else:
            finer = self.start.finer if options.cone == "second_order" else 1
            p, iterations = self._on_pyramid(pyramid_directions(angle, finer * options.directions))
            if options.cone == "second_order":
                p, polishing = polished(law, p, self.goal, self.enough, POLISHING)
                iterations = iterations + polishing
        p = torch.where(problem.active.repeat_interleave(3, 1), p, 0.0)
        return problem.magnitude[:, None] * problem.scale * p, iterations

    def resumed(self, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return impulses (B, 3C) near a guess and the iterations (B,)."""
        problem = self.problem
        size = problem.magnitude[:, None] * problem.scale
        active = problem.active.repeat_interleave(3, 1)
        first = torch.where(active, guess / torch.where(size > 0, size, 1.0), 0.0)
        p, iterations = polished(self._law(), first, self.goal, self.enough, RESUMING)
        return torch.where(active, size * p, 0.0), iterations

    def _law(self) -> ConeLaw:
        problem = self.problem
        each = problem.scale.unflatten(1, (-1, 3))[..., :2]
        unit = problem.magnitude[:, None, None] / each
        return ConeLaw(problem.delassus, problem.free, problem.mu, problem.active, unit)

    def _on_pyramid(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return impulses (B, 3C) on pyramids with these directions (B, C, 2, d), and the iterations (B,)."""
        problem, options = self.problem, self.options
        rubs = problem.active & (problem.mu > 0)
        directions = torch.where(rubs[..., None, None], directions, 0.0)
        count = directions.shape[3]
        system = PyramidSystem(problem.delassus, problem.free, problem.mu, directions)
        present = joined(problem.active, rubs[..., None].expand(-1, -1, count), rubs)
        regularised = problem.delassus.clone()
        regularised.diagonal(dim1=1, dim2=2)[:, ::3].add_(options.regularisation)
        softened = PyramidSystem(regularised, problem.free, problem.mu, directions)
        tolerance = 0.1 * options.tolerance
        if options.method == "interior_point":
            z, w = self._interior_start(rubs, count)
            z, iterations = interior_point(softened, z, w, present, tolerance, options.limit)
        else:
            z = torch.zeros_like(system.q)
            z, iterations = fischer_burmeister(pyramid_matrix(softened), system.q, z, present, tolerance, options.limit)
        z = crossed_over(system, torch.where(present, z.clamp(min=0.0), 0.0), present)
        return system.impulse(z).flatten(1), iterations

    def _interior_start(self, rubs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return z and w inside the pyramids of so many edges, by the numbers of the start."""
        impulse, ratio = self.start.impulse, self.start.ratio
        one = torch.ones_like(self.problem.mu)
        mu = torch.where(rubs, self.problem.mu, 1.0)
        weights = (mu / (2 * count))[..., None].expand(-1, -1, count)
        z = joined(one, weights, ratio * one) * impulse
        w = joined(ratio * one, ratio * torch.ones_like(weights), 0.5 * mu) * impulse
        return z, w

"""Impulses of frictional contact in one time step, for a batch of robots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.solve.complementarity.attempts import CONTACT_METHODS, STARTS, Attempt, ContactOptions
from torchdismech.solve.complementarity.cone import ConeLaw
from torchdismech.solve.complementarity.lcp import status_of
from torchdismech.solve.complementarity.problem import (
    admitted,
    entries_of,
    first_places,
    scaled_contacts,
)

__all__ = ["CONTACT_METHODS", "ContactSolution", "solve_contact"]


@dataclass(frozen=True, eq=False)
class ContactSolution:
    """Impulses of frictional contact, with the velocities, residuals and contact modes that they lead to.

    Attributes
    ----------
    impulses : (B, 3C) per contact (normal, tangent 1, tangent 2). Exactly zero where a contact is not active. Where the
        row did not converge the best iterate; zeros where its input is not finite. Look at `status` first.
    velocity : (B, 3C) W p + b, also of dropped contacts; zero where a contact is not active.
    status : (B,) `Status` values: CONVERGED, MAX_ITERATIONS, NOT_FINITE.
    iterations : (B,) of the method and of the Newton polish together.
    residual : (B,) largest violation of the problem as given, in the units of b; NaN where the input is not finite.
        With w_n and w_t the contact's diagonal entries of W: normal |min(w_n p_n, v_n)|, which bounds penetration
        velocity, tension and lack of complementarity; tangential w_t |p_t - (p_t - v_t / w_t projected onto the disk
        of admissible friction)|, which bounds the excess over the cone and the lack of dissipation. On the pyramid the
        disk is a polygon.
    sticking, sliding : (B, C) bool; neither where a contact is open, dropped or not active.
    dropped : (B, C) bool, active contacts that a selection left out: no impulse, not part of the residual. Solutions of
        `solve_contact` have none.
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
        """Return the solution with these impulses (B, 3C), its other fields evaluated on the problem as given.

        Parameters
        ----------
        law : Coulomb's law of the problem as given.
        rows : contacts that are active (B, C), and those kept by a selection (B, C); robots whose input is finite (B,).
        goal : (B,) largest residual with which a row has converged.
        error : (B,) compared with `goal` in place of the residual; None: the residual is.
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
    tolerance: float = 1e-8,
    acceptable: Tensor | None = None,
    max_iterations: int | None = None,
    guess: Tensor | None = None,
) -> ContactSolution:
    """Find impulses p with v = W p + b, 0 <= p_n complementary to v_n >= 0, and Coulomb friction |p_t| <= mu p_n.

    The cone is first taken as a pyramid (Stewart and Trinkle; Anitescu and Potra), which makes it a linear
    complementarity problem; its solution is then polished by Newton's method on the exact cone, so that friction
    opposes the sliding velocity exactly. With "interior_point" a row that fails starts again from other first values,
    on the second-order cone with a finer pyramid that is turned to where the best impulses so far point, and there its
    last attempt is by sweeps as of "gauss_seidel". Rows do not influence each other, and contacts that are not active
    influence nothing.

    Solutions need not be unique: of redundant contacts only the joint effect is determined. To leave redundant ones
    out, give `independent_contacts` as `active`.

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
    angle : (B, C) of the pyramid's first edge from tangent 1 [rad]; by default it lies along the tangential part of b.
        On the second-order cone it is the angle of the first attempt's pyramid.
    tolerance : of the residual, relative to the largest |b| of the row, below 1.
    acceptable : (B,) residual, in the units of b, at which a row counts as solved and no further start is tried,
        although the first start has not met `tolerance`.
    max_iterations : from each start; by default 60, 200 (fischer_burmeister), 2000 sweeps (gauss_seidel).
    guess : (B, 3C) impulses that may be near the solution, for example zeros or those of a problem that differs little:
        Newton's method on the exact cone is first tried from there; numbers that are not finite count as zero. For the
        second-order cone, not for gauss_seidel.

    Raises
    ------
    InputError
        Shapes or types that do not fit, negative mu, W not symmetric, an unknown or contradictory option.
    """
    if method == "gauss_seidel":
        _check_no_pyramid(cone=cone, directions=directions, angle=angle)
    options = ContactOptions.with_defaults(method, cone, directions, tolerance, max_iterations)
    _check_shapes(free, mu, angle, acceptable, guess, cone, method)
    if angle is not None:
        mu = mu + 0 * angle.to(mu)  # NaN where an angle is not finite: such a row is no problem either
    delassus, free, mu, active, finite = admitted(delassus, free, mu, active)
    angle = _angle(free) if angle is None else torch.where(active, angle.to(free), 0.0)
    pyramid = (angle, options.directions) if cone == "pyramid" else None
    law = ConeLaw(delassus, free, mu, active, free.new_ones(*mu.shape, 2), pyramid)
    goal = tolerance * free.abs().amax(1)
    acceptable = goal if acceptable is None else torch.maximum(goal, acceptable)
    contact_places = first_places(active)  # contacts that are not active are no unknowns
    entries = entries_of(contact_places)
    guess = None if guess is None else torch.nan_to_num(guess.gather(1, entries), 0.0, 0.0, 0.0)
    solved_impulses, iterations = _solved_impulses(
        law.at(contact_places), options, (goal, acceptable), angle.gather(1, contact_places), guess
    )
    impulses = torch.zeros_like(free).scatter(1, entries, solved_impulses)
    return ContactSolution.of(law, impulses, (active, active, finite), acceptable, iterations, cone)


def _solved_impulses(
    law: ConeLaw, options: ContactOptions, goals: tuple[Tensor, Tensor], angle: Tensor, guess: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the impulses (B, 3C) that solve a law, and the iterations (B,), from a guess first if there is one.

    Parameters
    ----------
    goals : `goal` and `acceptable` of `Attempt`.
    angle : (B, C) of the pyramids' first edges.
    guess : (B, 3C) impulses near the solution, or None.
    """
    problem = scaled_contacts(law.delassus, law.free, law.mu, law.active)
    first = Attempt(problem, options, STARTS[0], *goals)
    if guess is None:
        return _best_impulses(first, law, torch.zeros_like(law.free), angle)
    impulses, resumed_iterations = first.resumed(guess)
    impulses, iterations = _best_impulses(first, law, impulses, angle)
    return impulses, resumed_iterations + iterations


def _best_impulses(first: Attempt, law: ConeLaw, impulses: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return the impulses (B, 3C) of least residual among all attempts, and the iterations (B,) of all together.

    The first attempt is for rows that do not meet `goal`; each later one for rows whose residual still exceeds
    `acceptable`.

    Parameters
    ----------
    first : the first attempt, whose options list the others.
    impulses : (B, 3C) to begin with: zeros, or those found from a guess.
    """
    residual, acceptable = law.residual(impulses), first.acceptable
    iterations = torch.zeros_like(acceptable, dtype=torch.long)
    for k, (options, start) in enumerate(first.options.attempts(law.mu.shape[1])):
        rows = (residual > (acceptable if k else first.goal)).nonzero().flatten()
        if not len(rows):
            break
        if k and first.options.cone == "second_order":
            angle = torch.where((residual > acceptable)[:, None], _angle(impulses), angle)
        problem = first.problem.rows(rows)
        attempt = Attempt(problem, options, start, first.goal[rows], acceptable[rows])
        impulses_of_rows, iterations_of_rows = attempt.solved(angle[rows])
        iterations[rows] += iterations_of_rows
        trial = impulses.index_copy(0, rows, impulses_of_rows)
        error = law.residual(trial)
        better = error < residual  # False where it is NaN
        impulses, residual = torch.where(better[:, None], trial, impulses), torch.where(better, error, residual)
    return impulses, iterations


def _angle(vector: Tensor) -> Tensor:
    """Return the angle (B, C) from tangent 1 of the tangential part of each contact's vector in (B, 3C)."""
    each = vector.unflatten(1, (-1, 3))
    return torch.atan2(each[..., 2], each[..., 1])


def _check_no_pyramid(cone: str, **options: object) -> None:
    """Refuse options that only methods with a pyramid use."""
    given = [name for name, value in options.items() if value is not None] + ["cone"] * (cone != "second_order")
    if given:
        raise InputError(
            f"solve_contact: gauss_seidel works on the second-order cone without a pyramid, so it takes no "
            f"{', '.join(given)}; leave it out or choose interior_point"
        )


def _check_shapes(
    free: Tensor,
    mu: Tensor,
    angle: Tensor | None,
    acceptable: Tensor | None,
    guess: Tensor | None,
    cone: str,
    method: str,
) -> None:
    """Refuse a guess, angles and acceptable residuals that do not fit the problem."""
    if guess is not None and (method == "gauss_seidel" or cone != "second_order" or guess.shape != free.shape):
        raise InputError(
            f"solve_contact: a guess has the shape of b, {tuple(free.shape)}, and goes with the second-order cone and "
            f"not with gauss_seidel; got {tuple(guess.shape)}, {cone}, {method}"
        )
    for name, value, shape in (("angle", angle, mu.shape), ("acceptable", acceptable, free.shape[:1])):
        if value is not None and value.shape != shape:
            raise InputError(f"solve_contact: expected {name} of shape {tuple(shape)}, got {tuple(value.shape)}")

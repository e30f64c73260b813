"""Attempts at a contact problem: the options of `solve_contact`, its list of starts, and the solve from one start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.errors import InputError, check_choice, whole_number
from torchdismech.solve.complementarity.cone import ConeLaw, polished
from torchdismech.solve.complementarity.fischer_burmeister import fischer_burmeister
from torchdismech.solve.complementarity.gauss_seidel import gauss_seidel
from torchdismech.solve.complementarity.interior_point import active_set_polished, interior_point
from torchdismech.solve.complementarity.lcp import check_options
from torchdismech.solve.complementarity.problem import ScaledContacts
from torchdismech.solve.complementarity.pyramid import PyramidSystem, joined, pyramid_directions, pyramid_matrix

__all__ = ["CONTACT_METHODS", "STARTS", "Attempt", "ContactOptions", "Start"]

CONTACT_METHODS = ("interior_point", "fischer_burmeister", "gauss_seidel")
CONES = ("second_order", "pyramid")
DIRECTIONS = 8  # edges of the pyramid by default
# Added to the unit-scaled diagonal of W at the normals while the pyramid's problem is solved: normal velocities are off
# by this times w_n p_n until the last steps, which work without it.
REGULARISATION = 1e-10
MAX_ITERATIONS = {"interior_point": 60, "fischer_burmeister": 200, "gauss_seidel": 2000}
POLISHING = 60  # most Newton iterations on the exact cone after the pyramid's solution
VISITS = 20_000  # most contacts visited by the sweeps (sweeps times contacts) over a row that no start solves: seconds
RESUMING = 12  # most Newton iterations from a guess: near ones take less, and from others it is better to begin anew


class Start(NamedTuple):
    """First values of an attempt at the scaled problem.

    Attributes
    ----------
    impulse : size of the first impulses.
    ratio : first velocities divided by the first impulses.
    finer : factor of the number of the pyramid's edges; used on the second-order cone alone.
    """

    impulse: float
    ratio: float
    finer: int


# rows that one start does not solve try the next
STARTS = (
    Start(10.0, 0.1, 1),
    Start(1.0, 0.1, 2),
    Start(100.0, 0.1, 2),
    Start(1.0, 1.0, 4),
    Start(1000.0, 0.01, 4),
    Start(0.1, 1.0, 4),
)


@dataclass(frozen=True)
class ContactOptions:
    """The options of `solve_contact`, with their defaults."""

    method: str
    cone: str
    directions: int
    tolerance: float
    limit: int  # of iterations from each start

    @classmethod
    def with_defaults(
        cls, method: str, cone: str, directions: int | None, tolerance: float, max_iterations: int | None
    ) -> ContactOptions:
        """Return the options with defaults in place of None; refuse invalid values."""
        limit = MAX_ITERATIONS.get(method, 1) if max_iterations is None else max_iterations
        check_options("solve_contact", method, CONTACT_METHODS, tolerance, limit)
        check_choice("solve_contact: cone", cone, CONES)
        directions = DIRECTIONS if directions is None else directions
        if whole_number(directions, "solve_contact: directions", least=4) % 2:
            raise InputError(f"solve_contact: directions must be even, got {directions}")
        return cls(method, cone, directions, tolerance, limit)

    def attempts(self, contacts: int) -> list[tuple[ContactOptions, Start]]:
        """Return the options and the start of each attempt, in order, at problems with this number of contacts.

        Gauss-Seidel sweeps come last: they are slow, but also converge where redundant contacts are about to open.
        Some contacts then have impulse and velocity near zero, so that Newton's method on the exact cone stalls.
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
class Attempt:
    """One attempt at the scaled problem, from one start."""

    problem: ScaledContacts
    options: ContactOptions
    start: Start
    goal: Tensor  # (B,) residual to be reached, in the units of the problem as given
    acceptable: Tensor  # (B,) residual, not below the goal, with which a row that converges no further counts as solved

    def solved(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Return the impulses (B, 3C), in the units of the problem as given, and the iterations (B,).

        Parameters
        ----------
        angle : (B, C) of each pyramid's first edge.
        """
        problem, law, options = self.problem, self._law(), self.options
        if options.method == "gauss_seidel":
            p, iterations = gauss_seidel(law, torch.zeros_like(problem.free), self.goal, options.limit)
        else:
            finer = self.start.finer if options.cone == "second_order" else 1
            p, iterations = self._on_pyramid(pyramid_directions(angle, finer * options.directions))
            if options.cone == "second_order":
                p, polishing = polished(law, p, self.goal, self.acceptable, POLISHING)
                iterations = iterations + polishing
        p = torch.where(problem.active.repeat_interleave(3, 1), p, 0.0)
        return problem.magnitude[:, None] * problem.scale * p, iterations

    def resumed(self, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return impulses (B, 3C) from Newton's method on the exact cone begun at a guess, and the iterations (B,).

        Guess and impulses are in the units of the problem as given.
        """
        problem = self.problem
        size = problem.magnitude[:, None] * problem.scale
        active = problem.active.repeat_interleave(3, 1)
        first = torch.where(active, guess / torch.where(size > 0, size, 1.0), 0.0)
        p, iterations = polished(self._law(), first, self.goal, self.acceptable, RESUMING)
        return torch.where(active, size * p, 0.0), iterations

    def _law(self) -> ConeLaw:
        problem = self.problem
        scale_of_contact = problem.scale.unflatten(1, (-1, 3))[..., :2]
        residual_scale = problem.magnitude[:, None, None] / scale_of_contact
        return ConeLaw(problem.delassus, problem.free, problem.mu, problem.active, residual_scale)

    def _on_pyramid(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled impulses (B, 3C) on pyramids with these directions (B, C, 2, d), and the iterations (B,)."""
        problem, options = self.problem, self.options
        rubs = problem.active & (problem.mu > 0)
        directions = torch.where(rubs[..., None, None], directions, 0.0)
        count = directions.shape[3]
        system = PyramidSystem(problem.delassus, problem.free, problem.mu, directions)
        present = joined(problem.active, rubs[..., None].expand(-1, -1, count), rubs)
        regularised = problem.delassus.clone()
        regularised.diagonal(dim1=1, dim2=2)[:, ::3].add_(REGULARISATION)
        softened = PyramidSystem(regularised, problem.free, problem.mu, directions)
        tolerance = 0.1 * options.tolerance
        if options.method == "interior_point":
            z, w = self._interior_start(rubs, count)
            z, iterations = interior_point(softened, z, w, present, tolerance, options.limit)
        else:
            z = torch.zeros_like(system.q)
            z, iterations = fischer_burmeister(pyramid_matrix(softened), system.q, z, present, tolerance, options.limit)
        z = active_set_polished(system, torch.where(present, z.clamp(min=0.0), 0.0), present)
        return system.impulse(z).flatten(1), iterations

    def _interior_start(self, rubs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return first z and w (B, m), strictly inside pyramids of `count` edges, by the numbers of the start.

        Parameters
        ----------
        rubs : (B, C) active contacts with friction.
        """
        impulse, ratio = self.start.impulse, self.start.ratio
        one = torch.ones_like(self.problem.mu)
        mu = torch.where(rubs, self.problem.mu, 1.0)
        weights = (mu / (2 * count))[..., None].expand(-1, -1, count)
        z = joined(one, weights, ratio * one) * impulse
        w = joined(ratio * one, ratio * torch.ones_like(weights), 0.5 * mu) * impulse
        return z, w

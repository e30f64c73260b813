"""The impulses by which an arm's contacts change its velocities in a step: see `integrate` for the equations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.contacts import Contacts, contact_frames, jacobian
from torchdismech.constant_curvature.posture import Posture
from torchdismech.contact import Complementarity
from torchdismech.errors import InputError, Status, refuse_other_kind
from torchdismech.solve.complementarity import (
    ContactSolution,
    differentiable_impulses,
    solve_contact,
)

__all__ = ["ContactOptions", "ContactSolver", "Impulses", "StepContacts", "smallest_tolerance"]

# Parts of the smallest tolerance of an arm's contacts, by default 1e-8 m, which is given in the arm's own units
CLOSING = 1e3  # contacts whose gap would be less at the end of the step are looked at
MISSED = 0.1  # a contact that was not looked at may end so deep
ROUNDS = 4  # of adding contacts that were missed

# Returns W (B, 3 K, 3 K) and relative velocities (B, K, 3) where obstacles give way, from those of the arm alone, the
# contacts' frames and the contacts.
Yielding = Callable[[Tensor, Tensor, Tensor, Contacts], tuple[Tensor, Tensor]]

# Returns the solution for W (B, 3 K, 3 K), relative velocities (B, 3 K) without contact, coefficients of friction
# (B, K), and which contacts are there (B, K).
ContactSolver = Callable[[Tensor, Tensor, Tensor, Tensor], ContactSolution]


@dataclass(frozen=True)
class ContactOptions:
    """How the contact problem of a step is posed and solved; see `ArmIntegrator`."""

    dt: float
    cone: str
    directions: int
    stabilisation: float
    solver: ContactSolver | None


@dataclass(frozen=True)
class Impulses:
    """What contact did to the velocities.

    Attributes
    ----------
    velocity : (B, n) at the end of the step, with derivatives; nothing else has any.
    impulse : (B, C, 3) per contact, normal first; force : (B, C, 3) per contact, along the world's axes [N].
    sticking, sliding : (B, C) which contacts bear a load and stick or slide.
    solved : (B,) where the contact problem was solved.
    iterations, residual : (B,) of the contact problem.
    """

    velocity: Tensor
    impulse: Tensor
    force: Tensor
    sticking: Tensor
    sliding: Tensor
    solved: Tensor
    iterations: Tensor
    residual: Tensor

    @classmethod
    def none(cls, velocity: Tensor, count: int) -> Impulses:
        """Return those of `count` contacts that bear no load, with the velocity (B, n) as it is without them."""
        rows = len(velocity)
        nothing = velocity.new_zeros(rows, count, 3)
        open_ = torch.zeros(rows, count, dtype=torch.bool, device=velocity.device)
        zero = torch.zeros(rows, dtype=torch.long, device=velocity.device)
        solved = torch.ones(rows, dtype=torch.bool, device=velocity.device)
        return cls(velocity, nothing, nothing, open_, open_, solved, zero, velocity.new_zeros(rows))

    def closed(self) -> Tensor:
        """Return which contacts (B, C) bear load."""
        return self.sticking | self.sliding


@dataclass(frozen=True)
class StepContacts:
    """The contacts of a step, and what they act on.

    Attributes
    ----------
    model, posture : the arms, as they are at the start.
    contacts : of all plates with all obstacles, at the start.
    factor : (B, n, n) the Cholesky factor of H.
    free : (B, n) velocities at the end of the step without contact.
    before : (B, C, 3) impulses of the step before, from which the search starts.
    options : of the problem.
    yielding : see `Yielding`.
    """

    model: PneumaticArm
    posture: Posture
    contacts: Contacts
    factor: Tensor
    free: Tensor
    before: Tensor
    options: ContactOptions
    yielding: Yielding

    def corrected(self, gap_correction: Tensor) -> StepContacts:
        """Return the same with what is known of how gaps end off a straight line, see `Contacts.gap_correction`."""
        return dataclasses.replace(self, contacts=dataclasses.replace(self.contacts, gap_correction=gap_correction))

    def impulses(self) -> Impulses:
        """Return the velocities at the end of the step, and what contact did to get there."""
        with torch.no_grad():
            tolerance = smallest_tolerance(self.model)
            near = self.gaps_at_end(self.free) < CLOSING * tolerance
            near = near | (self.before[..., 0] > 0)
        found = untouched = Impulses.none(self.free, near.shape[1])
        for _ in range(ROUNDS):
            most = int(near.sum(1).max()) if len(near) else 0
            if not most:
                return untouched
            order = near.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
            found = self._impulses_of(order, near.gather(1, order))
            with torch.no_grad():
                missed = ~near & (self.gaps_at_end(found.velocity) < -MISSED * tolerance)
            if not bool(missed.any()):
                return found
            near = near | missed
        return dataclasses.replace(found, solved=found.solved & ~missed.any(1))

    def gaps_at_end(self, velocity: Tensor) -> Tensor:
        """Return the gaps (B, C) at the end of a step with a velocity (B, n) [m]: to first order, and corrected."""
        contacts = self.contacts
        rate = self.model.shape_rate(velocity).permute(2, 1, 0)
        moved = self.options.dt * contacts.approach(self.posture, rate) - contacts.obstacle_motion
        return contacts.gap + contacts.gap_correction + (contacts.normal * moved).sum(2)

    def _impulses_of(self, order: Tensor, active: Tensor) -> Impulses:
        """Return what the contacts (B, K) with these numbers do; those that are not active are padding."""
        chosen = self.contacts.chosen(order)
        frames = contact_frames(chosen.normal)
        moved = (frames @ jacobian(self.model, self.posture, chosen, order % self.model.n_plates)).flatten(1, 2)
        shared = torch.linalg.solve_triangular(self.factor, moved.mT, upper=False)  # (B, n, 3 K)
        relative = (moved @ self.free[..., None])[..., 0].unflatten(1, (-1, 3))
        delassus, start = self._problem(shared.mT @ shared, relative, frames, chosen)
        index = order[..., None].expand(-1, -1, 3)
        guess = torch.where(active[..., None], self.before.gather(1, index), 0.0).flatten(1)
        solution = self._solution(delassus, start, chosen.mu, active, guess)
        impulse = _loaded_impulses(solution, delassus, start, chosen.mu)
        step = torch.linalg.solve_triangular(self.factor.mT, shared @ impulse[..., None], upper=True)[..., 0]
        each = impulse.detach().unflatten(1, (-1, 3))
        world = (frames.detach().mT @ each[..., None])[..., 0] / self.options.dt
        none = torch.zeros_like(self.contacts.gap, dtype=torch.bool)
        close = solution.residual * self.options.dt <= smallest_tolerance(self.model)
        return Impulses(
            velocity=self.free + step,
            impulse=torch.zeros_like(self.before).scatter(1, index, each),
            force=torch.zeros_like(self.before).scatter(1, index, world),
            sticking=none.scatter(1, order, solution.sticking),
            sliding=none.scatter(1, order, solution.sliding),
            solved=(solution.status == Status.CONVERGED) | close,
            iterations=solution.iterations,
            residual=torch.where(active.any(1), solution.residual, 0.0),
        )

    def _problem(self, delassus: Tensor, relative: Tensor, frames: Tensor, contacts: Contacts) -> tuple[Tensor, Tensor]:
        """Return W (B, 3 K, 3 K) and b (B, 3 K) of the contact problem [m/s].

        Parameters
        ----------
        delassus : (B, 3 K, 3 K) of the arm alone.
        relative : (B, K, 3) velocities of the arm's points without contact, along the frames.
        """
        dt, stabilisation = self.options.dt, self.options.stabilisation
        relative = relative - (frames @ contacts.obstacle_motion[..., None])[..., 0] / dt
        delassus, relative = self.yielding(delassus, relative, frames, contacts)
        # a share of an overlap that was there before is removed, but all of what this step would add
        correction = torch.where(contacts.gap > 0, contacts.gap, stabilisation * contacts.gap) + contacts.gap_correction
        normal = relative[..., :1] + correction[..., None] / dt
        return delassus, torch.cat([normal, relative[..., 1:]], 2).flatten(1)

    def _solution(self, delassus: Tensor, start: Tensor, mu: Tensor, active: Tensor, guess: Tensor) -> ContactSolution:
        """Return the solution of the contacts' problem."""
        options = self.options
        if options.solver is not None:
            solution = options.solver(delassus, start, mu, active)
            refuse_other_kind("solver", solution, ContactSolution, "to return a solve.complementarity.ContactSolution")
            return solution
        method = _method(self.model)
        if options.cone == "pyramid":
            return solve_contact(
                delassus, start, mu, active, method=method, cone="pyramid", directions=options.directions
            )
        if method == "gauss_seidel":
            return solve_contact(delassus, start, mu, active, method=method)
        return solve_contact(
            delassus, start, mu, active, method=method, directions=options.directions, guess=guess.detach()
        )


def _method(model: PneumaticArm) -> str:
    """Return the method that the obstacles' responses ask for."""
    responses = [obstacle.law.response for obstacle in model.obstacles]
    methods = {response.method for response in responses if isinstance(response, Complementarity)}
    if len(methods) > 1:
        raise InputError(
            f"Complementarity.method: all obstacles of an arm share one problem, so they need one method, "
            f"got {', '.join(sorted(methods))}"
        )
    return methods.pop()


def smallest_tolerance(model: PneumaticArm) -> Tensor:
    """Return the smallest tolerance () of the obstacles' responses [m]."""
    return torch.stack([obstacle.law.response.tolerance.detach().min() for obstacle in model.obstacles]).min()


def _loaded_impulses(solution: ContactSolution, delassus: Tensor, start: Tensor, mu: Tensor) -> Tensor:
    """Return the impulses (B, 3 K) of contacts that bear a load, zero elsewhere, with derivatives if asked for."""
    impulse = solution.impulses
    if torch.is_grad_enabled() and (delassus.requires_grad or start.requires_grad or mu.requires_grad):
        impulse = differentiable_impulses(solution, delassus, start, mu)
    return torch.where((solution.sticking | solution.sliding).repeat_interleave(3, 1), impulse, 0.0)

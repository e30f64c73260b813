"""The contact impulses that change an arm's velocities in a step; `integrate` has the equations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.contacts import Contacts, contact_frames, jacobian
from torchdismech.constant_curvature.posture import Posture
from torchdismech.errors import InputError, Status, refuse_other_kind
from torchdismech.solve.complementarity import ContactSolution, differentiable_impulses, solve_contact

__all__ = ["ContactOptions", "ContactSolver", "Impulses", "StepContacts", "smallest_tolerance"]

# Multiples of the smallest tolerance of an arm's contacts (1e-8 m by default), so that they have the arm's units
CLOSING = 1e3  # contacts whose gap would be less than this at the end of a step without contact are solved for
MISSED = 0.1  # a contact that was not solved for may end at most this deep
ROUNDS = 4  # most solutions of a step's problem, each with the contacts added that the one before missed

# Returns W (B, 3 K, 3 K) and relative velocities (B, K, 3) with obstacles that yield to impulses, from W and velocities
# of the arm alone, the contacts' frames and the contacts.
Yielding = Callable[[Tensor, Tensor, Tensor, Contacts], tuple[Tensor, Tensor]]

# Returns the solution for W (B, 3 K, 3 K), relative velocities b (B, 3 K) without contact, coefficients of friction
# (B, K), and which contacts are active (B, K); the others are padding.
ContactSolver = Callable[[Tensor, Tensor, Tensor, Tensor], ContactSolution]


@dataclass(frozen=True)
class ContactOptions:
    """How the contact problem of a step is posed and solved; see `ArmIntegrator`."""

    dt: float
    cone: str
    directions: int | None
    stabilisation: float
    solver: ContactSolver | None


@dataclass(frozen=True)
class Impulses:
    """The impulses of all contacts in a step, and the velocities that they lead to.

    Attributes
    ----------
    velocity : (B, n) rates of the elongations at the end of the step [m/s]; the only field with derivatives.
    impulse : (B, C, 3) of each contact in its frame (normal, tangent 1, tangent 2) [N s].
    force : (B, C, 3) mean over the step of each contact's force, along the world's axes [N].
    sticking, sliding : (B, C) bool, contacts that bear a load and stick or slide.
    solved : (B,) bool, whether the contact problem was solved.
    iterations, residual : (B,) of the contact problem's solver.
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
    def zero(cls, velocity: Tensor, count: int) -> Impulses:
        """Return zero impulses of `count` contacts, with the velocity (B, n) at the end of the step without contact."""
        rows = len(velocity)
        zeros = velocity.new_zeros(rows, count, 3)
        open_ = torch.zeros(rows, count, dtype=torch.bool, device=velocity.device)
        no_iterations = torch.zeros(rows, dtype=torch.long, device=velocity.device)
        solved = torch.ones(rows, dtype=torch.bool, device=velocity.device)
        return cls(velocity, zeros, zeros, open_, open_, solved, no_iterations, velocity.new_zeros(rows))

    def closed(self) -> Tensor:
        """Return the contacts that bear a load, bool (B, C)."""
        return self.sticking | self.sliding


@dataclass(frozen=True)
class StepContacts:
    """The contact problem of a step: contacts, the arm's inertia and its motion without contact.

    Attributes
    ----------
    model, posture : the arms, and their posture at the start of the step.
    contacts : of all plates with all obstacles, at the start of the step.
    factor : (B, n, n) the Cholesky factor of H.
    free : (B, n) velocities at the end of the step without contact.
    previous : (B, C, 3) impulses of the step before, where the solver starts.
    going : (B,) bool, robots that make the step; contacts of the others are not solved for.
    options : how the problem is posed and solved.
    yielding : adds obstacles that yield to impulses, see `Yielding`.
    """

    model: PneumaticArm
    posture: Posture
    contacts: Contacts
    factor: Tensor
    free: Tensor
    previous: Tensor
    going: Tensor
    options: ContactOptions
    yielding: Yielding

    def corrected(self, gap_correction: Tensor) -> StepContacts:
        """Return the same problem with corrections (B, C) of the predicted gaps, see `Contacts.gap_correction`."""
        return dataclasses.replace(self, contacts=dataclasses.replace(self.contacts, gap_correction=gap_correction))

    def impulses(self) -> Impulses:
        """Return the impulses of the step and the velocities at its end.

        Only contacts that are about to close, or bore a load in the step before, are solved for. Where others turn out
        to end inside an obstacle, they are added and the problem is solved again.
        """
        with torch.no_grad():
            tolerance = smallest_tolerance(self.model)
            near = self.gaps_at_end(self.free) < CLOSING * tolerance
            near = (near | (self.previous[..., 0] > 0)) & self.going[:, None]
        impulses = no_impulses = Impulses.zero(self.free, near.shape[1])
        for _ in range(ROUNDS):
            most = int(near.sum(1).max()) if len(near) else 0
            if not most:
                return no_impulses
            order = near.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
            impulses = self._impulses_of(order, near.gather(1, order))
            with torch.no_grad():
                missed = ~near & (self.gaps_at_end(impulses.velocity) < -MISSED * tolerance) & self.going[:, None]
            if not bool(missed.any()):
                return impulses
            near = near | missed
        return dataclasses.replace(impulses, solved=impulses.solved & ~missed.any(1))

    def gaps_at_end(self, velocity: Tensor) -> Tensor:
        """Return the gaps (B, C) at the end of a step with a velocity (B, n): a linear prediction, corrected [m]."""
        contacts = self.contacts
        rate = self.model.shape_rate(velocity).permute(2, 1, 0)
        motion = self.options.dt * contacts.approach(self.posture, rate) - contacts.obstacle_motion
        return contacts.gap + contacts.gap_correction + (contacts.normal * motion).sum(2)

    def _impulses_of(self, order: Tensor, active: Tensor) -> Impulses:
        """Return the impulses where only the contacts with indices `order` (B, K) act; inactive ones are padding."""
        chosen = self.contacts.chosen(order)
        frames = contact_frames(chosen.normal)
        contact_jacobian = (frames @ jacobian(self.model, self.posture, chosen, order % self.model.n_plates)).flatten(
            1, 2
        )
        scaled_jacobian = torch.linalg.solve_triangular(self.factor, contact_jacobian.mT, upper=False)  # (B, n, 3 K)
        relative = (contact_jacobian @ self.free[..., None])[..., 0].unflatten(1, (-1, 3))
        delassus, start = self._problem(scaled_jacobian.mT @ scaled_jacobian, relative, frames, chosen)
        index = order[..., None].expand(-1, -1, 3)
        guess = torch.where(active[..., None], self.previous.gather(1, index), 0.0).flatten(1)
        solution = self._solution(delassus, start, chosen.mu, active, guess)
        impulse = _loaded_impulses(solution, delassus, start, chosen.mu)
        step = torch.linalg.solve_triangular(self.factor.mT, scaled_jacobian @ impulse[..., None], upper=True)[..., 0]
        by_contact = impulse.detach().unflatten(1, (-1, 3))
        world = (frames.detach().mT @ by_contact[..., None])[..., 0] / self.options.dt
        nowhere = torch.zeros_like(self.contacts.gap, dtype=torch.bool)
        close = solution.residual * self.options.dt <= smallest_tolerance(self.model)
        return Impulses(
            velocity=self.free + step,
            impulse=torch.zeros_like(self.previous).scatter(1, index, by_contact),
            force=torch.zeros_like(self.previous).scatter(1, index, world),
            sticking=nowhere.scatter(1, order, solution.sticking),
            sliding=nowhere.scatter(1, order, solution.sliding),
            solved=(solution.status == Status.CONVERGED) | close,
            iterations=solution.iterations,
            residual=torch.where(active.any(1), solution.residual, 0.0),
        )

    def _problem(self, delassus: Tensor, relative: Tensor, frames: Tensor, contacts: Contacts) -> tuple[Tensor, Tensor]:
        """Return W (B, 3 K, 3 K) [1/kg] and b (B, 3 K) [m/s] of the contact problem.

        Parameters
        ----------
        delassus : (B, 3 K, 3 K) J H^-1 J^T of the arm alone.
        relative : (B, K, 3) velocities of the arm's points without contact, in the contacts' frames.
        """
        dt, stabilisation = self.options.dt, self.options.stabilisation
        relative = relative - (frames @ contacts.obstacle_motion[..., None])[..., 0] / dt
        delassus, relative = self.yielding(delassus, relative, frames, contacts)
        # stabilisation removes only part of an earlier overlap; overlap that this step would add is removed in full
        correction = torch.where(contacts.gap > 0, contacts.gap, stabilisation * contacts.gap) + contacts.gap_correction
        normal = relative[..., :1] + correction[..., None] / dt
        return delassus, torch.cat([normal, relative[..., 1:]], 2).flatten(1)

    def _solution(self, delassus: Tensor, start: Tensor, mu: Tensor, active: Tensor, guess: Tensor) -> ContactSolution:
        """Return the solution of the contact problem, by the user's solver or by `solve_contact`."""
        options = self.options
        if options.solver is not None:
            solution = options.solver(delassus, start, mu, active)
            refuse_other_kind("solver", solution, ContactSolution, "to return a solve.complementarity.ContactSolution")
            return solution
        method, cone, directions = _method(self.model), options.cone, options.directions
        near = None if cone == "pyramid" or method == "gauss_seidel" else guess.detach()  # neither takes a guess
        return solve_contact(delassus, start, mu, active, method=method, cone=cone, directions=directions, guess=near)


def _method(model: PneumaticArm) -> str:
    """Return the solver's method, which the responses of all obstacles must have in common."""
    methods = {str(obstacle.law.response.method) for obstacle in model.obstacles}
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
    """Return the impulses (B, 3 K), zero for contacts without load; with derivatives where autograd records."""
    impulse = solution.impulses
    if torch.is_grad_enabled() and (delassus.requires_grad or start.requires_grad or mu.requires_grad):
        impulse = differentiable_impulses(solution, delassus, start, mu)
    return torch.where((solution.sticking | solution.sliding).repeat_interleave(3, 1), impulse, 0.0)

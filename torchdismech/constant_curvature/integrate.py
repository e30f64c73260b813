r"""Steps of pneumatic arms: free motion, then the impulses of contact.

A step of the length h from (l, v) first finds the velocity without contact, then impulses p of the contacts:

    v+ = v_free + H^-1 J^T p,    l+ = l + h v+,
    v_free = v + h H^-1 (tau - C v - G - K l - B v - h K v),    H = M + h B + h^2 K.

The springs and dampers are those of the end of the step (linearly implicit Euler), so stiff dampers do not limit h; all
else is evaluated at its start. The relative velocities W p + b of the contacts, W = J H^-1 J^T, obey Coulomb's law and

    0 <= p_n  complementary to  J_n v+ - v_obstacle + g / h >= 0     (alpha g / h where the gap g is negative already):

a contact acts where it would close within the step. That predicts the gap at the end of the step linearly. Where the
gap is so curved that a plate ends deeper in an obstacle than this law allows, the step is solved again, corrected by
the prediction's error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import ArmDynamics, PneumaticArm
from torchdismech.constant_curvature.contacts import Contacts, contacts_at
from torchdismech.constant_curvature.failures import (
    long_enough,
    passed_through,
    status_after,
    status_before,
    warn_of_overlap,
)
from torchdismech.constant_curvature.impulses import (
    ContactOptions,
    ContactSolver,
    Impulses,
    StepContacts,
    smallest_tolerance,
)
from torchdismech.constant_curvature.info import ArmStepInfo, PlateReport
from torchdismech.constant_curvature.posture import Posture
from torchdismech.constant_curvature.state import ArmState
from torchdismech.errors import (
    InputError,
    Status,
    check_choice,
    positive_number,
    real_number,
    refuse_unstepped,
    truth,
    whole_number,
)
from torchdismech.model.reduced import report_failures
from torchdismech.robot.state import Control, control_of, running_robots
from torchdismech.rows import finite_rows
from torchdismech.system.uncompiled import uncompiled
from torchdismech.trainable import refuse_trained_out_of_bounds

__all__ = ["ArmIntegrator"]

Schedule = Callable[[Tensor, PneumaticArm], Control]
SCHEMES = ("implicit", "explicit", "rk23")
# A step is solved again where a plate ends deeper than it should by this many times the smallest tolerance.
OVERLAP = 10.0
CORRECTIONS = 4  # attempts at a step, each corrected by how gaps ended in the one before
RK_PARTS = 8  # parts of a step in "rk23": its real stability limit is 2.5, h B / M reaches 11 at 1 ms


class _Start(NamedTuple):
    """Start of the step of the robots that make one, `going` (B,), and the forces on them; zeros for the others."""

    q: Tensor
    velocity: Tensor
    force: Tensor
    time: Tensor
    going: Tensor


class _Free(NamedTuple):
    """Velocities (B, n) of a step without contact: their mean over the step, and at its end."""

    mean: Tensor
    end: Tensor


class _End(NamedTuple):
    """End of a step: elongations (B, n), the postures and gaps (B, C) there, and the impulses of contact.

    `gap` has no derivatives.
    """

    q: Tensor
    posture: Posture
    gap: Tensor
    impulses: Impulses


class ArmIntegrator:
    """One step for every arm of a batch.

    Parameters
    ----------
    dt : step [s].
    scheme : "implicit": springs and dampers at the end of the step; the choice for damped arms, as it adds damping of
        its own, like dampers of dt times the stiffness (docs/pneumatic_arm.md). "explicit": semi-implicit Euler with M
        in place of H, which keeps energy, and which dampers of the paper's size limit to dt below 1.8e-4 s. "rk23": the
        free motion by eight parts of Bogacki and Shampine's third-order method, then contact with M. The latter two
        need exactly three chambers a section: with more, M is singular.
    cone : "second_order", Coulomb's cone, or "pyramid".
    directions : edges of the pyramid, even, at least 4; on the second-order cone where the search starts. By default 4
        for "pyramid", else 8.
    stabilisation : alpha in (0, 1], the share of an overlap that a step removes.
    solver : a function that solves the contact problem in place of `solve_contact`: of W (B, 3 K, 3 K), the relative
        velocities b (B, 3 K) without contact, the coefficients of friction (B, K) and which contacts are active (B, K),
        it returns a `solve.complementarity.ContactSolution`. Which cone it uses is then its own choice.
    unsolved : "fail": a step whose contact problem is not solved has the status CONTACT_UNSOLVED. "take": the step is
        made with the best impulses that were found, and `ArmStepInfo.solved` is False; for comparisons of solvers.

    Raises
    ------
    InputError
        A number out of its range, an unknown scheme or cone, a cone or directions beside a solver.
    """

    def __init__(
        self,
        dt: float,
        scheme: str = "implicit",
        cone: str = "second_order",
        directions: int | None = None,
        stabilisation: float = 0.2,
        solver: ContactSolver | None = None,
        unsolved: str = "fail",
    ):
        dt = positive_number(dt, "dt", "a number of seconds above 0")
        stabilisation = real_number(stabilisation, "stabilisation")
        check_choice("scheme", scheme, SCHEMES)
        check_choice("cone", cone, ("second_order", "pyramid"))
        if not 0 < stabilisation <= 1:
            raise InputError(f"stabilisation: expected alpha above 0 and up to 1, got {stabilisation}")
        if solver is not None and not callable(solver):
            raise InputError(f"solver: expected a function of W, b, mu and active, got {type(solver).__name__}")
        if solver is not None and (cone != "second_order" or directions is not None):
            raise InputError("solver: cone and directions are for solve_contact; leave them out beside a solver")
        if directions is not None and whole_number(directions, "directions", 4) % 2:
            raise InputError(f"directions: expected an even number from 4 up, got {directions}")
        check_choice("unsolved", unsolved, ("fail", "take"))
        self.unsolved = unsolved
        self.dt, self.scheme, self.cone = dt, scheme, cone
        self.directions = 4 if cone == "pyramid" and directions is None else directions
        self.stabilisation, self.solver = stabilisation, solver

    def __repr__(self) -> str:
        """Return the kind of steps and their length, but no other options."""
        return f"{type(self).__name__}(dt={self.dt:g})"

    def prepare(self, model: PneumaticArm, state: ArmState, steps: int) -> None:
        """Check model and state before a run, and warn of plates that begin inside obstacles; nothing is compiled."""
        refuse_unstepped(self, model, PneumaticArm)
        model.check_batch(state, Control())
        warn_of_overlap(model, state)

    def sample(self, schedule: Schedule, state: ArmState, model: PneumaticArm) -> Control:
        """Return the control that `schedule` sets for the step from `state`: that at the start of the step."""
        return schedule(state.time, model)

    @uncompiled
    def step(
        self,
        model: PneumaticArm,
        state: ArmState,
        control: Control | None = None,
        running: Tensor | None = None,
        throw: bool = False,
    ) -> tuple[ArmState, ArmStepInfo]:
        """Return the state after one step and how it went.

        A robot whose step fails keeps the state it had; the others go on. Where autograd records, the new state can be
        differentiated by the state, the control, the arm's constants, friction and the obstacles' places and sizes.

        Parameters
        ----------
        control : forces on the chambers, `Control.force`, held over the step.
        running : (B,) bool, robots to step; the others are left alone and reported as converged.
        throw : raise a `SimulationError` that names the failed robots instead of reporting them.
        """
        refuse_unstepped(self, model, PneumaticArm)
        control, throw = control_of(control), truth(throw, "step: throw")
        running = running_robots(state, running)
        model.check_batch(state, control)
        self._check_arm(model)
        force = torch.zeros_like(state.q) if control.force is None else control.force
        status = status_before(model, state, force)
        going = running & (status == Status.CONVERGED)
        # rows that do not run, or cannot be computed with, are stepped from zeros and keep their state in the end
        q, velocity, force = (torch.where(going[:, None], x, 0.0) for x in (state.q, state.velocity, force))
        start = _Start(q, velocity, force, torch.where(going, state.time, 0.0), going)
        dynamics = model.dynamics(start.q, start.velocity)
        factor, singular = torch.linalg.cholesky_ex(self._effective_mass(model, dynamics.mass))
        free = self._free(model, dynamics, factor, start)
        end = self._end(model, start, dynamics.posture, factor, free, state.impulses)
        impulses = end.impulses
        with torch.no_grad():
            passed = passed_through(model, dynamics.posture, end.posture, start.time, start.time + self.dt)
            unsolved = ~impulses.solved if self.unsolved == "fail" else torch.zeros_like(impulses.solved)
            not_finite = ~finite_rows([end.q, impulses.velocity])
            status = status_after(status, unsolved, singular != 0, passed, ~long_enough(model, end.q), not_finite)
            status = torch.where(running, status, int(Status.CONVERGED))
        succeeded = running & (status == Status.CONVERGED)
        after = model.state(end.q, impulses.velocity, impulses.impulse, start.time + self.dt, end.posture)
        info = self._info(model, end, status, succeeded)
        report_failures(info.status, control, state.time, throw)
        return state.merged(after, succeeded), info

    def _effective_mass(self, model: PneumaticArm, mass: Tensor) -> Tensor:
        """Return H (B, n, n) from M; M itself for the schemes with springs and dampers at the start."""
        if self.scheme != "implicit":
            return mass
        diagonal = self.dt * (model.damping + self.dt * model.stiffness)
        return mass + torch.diag_embed(diagonal.expand(mass.shape[:-1]))

    def _end(
        self,
        model: PneumaticArm,
        start: _Start,
        posture: Posture,
        factor: Tensor,
        free: _Free,
        previous: Tensor,
    ) -> _End:
        """Return the end of the step; it is solved again for robots of which a gap ends deeper than the law allows.

        Parameters
        ----------
        posture : at the start of the step.
        factor : (B, n, n) Cholesky factor of H.
        previous : (B, C, 3) impulses of the step before.
        """
        until = start.time + self.dt
        contacts = corrected = None
        if len(model.obstacles):
            options = ContactOptions(self.dt, self.cone, self.directions, self.stabilisation, self.solver)
            plate_contacts = contacts_at(model, posture, start.time, until)
            contacts = corrected = StepContacts(
                model,
                posture,
                plate_contacts,
                factor,
                free.end,
                previous,
                start.going,
                options,
                self._with_yielding_obstacles,
            )
        for _ in range(CORRECTIONS):
            impulses = Impulses.zero(free.end, 0) if corrected is None else corrected.impulses()
            q = start.q + self.dt * (free.mean + impulses.velocity - free.end)
            posture = model.posture(q)
            with torch.no_grad():  # if the step is not solved again, no derivatives depend on these gaps
                gap = _gaps(model, posture, until)
            if contacts is None or corrected is None:
                break
            again = self._overlaps(model, contacts.contacts.gap, gap).any(1) & start.going
            if self.unsolved == "fail":  # how gaps end under impulses that are no solution tells of no correction
                again = again & impulses.solved
            again = again[:, None]
            if not bool(again.any()):
                break
            end_gap = _gaps(model, posture, until) if torch.is_grad_enabled() else gap
            correction = end_gap - contacts.gaps_at_end((q - start.q) / self.dt)
            # other robots keep the step that they have made
            corrected = contacts.corrected(torch.where(again, correction, corrected.contacts.gap_correction))
        return _End(q, posture, gap, impulses)

    def _overlaps(self, model: PneumaticArm, start_gap: Tensor, gap: Tensor) -> Tensor:
        """Return the gaps that ended deeper than the contact law with stabilisation allows, bool (B, C)."""
        return gap < (1 - self.stabilisation) * start_gap.clamp(max=0.0) - OVERLAP * smallest_tolerance(model)

    def _check_arm(self, model: PneumaticArm) -> None:
        """Refuse arms that this scheme cannot step."""
        refuse_trained_out_of_bounds(model)
        if len(model.obstacles) and model.dtype != torch.float64:
            raise InputError(f"contact of an arm needs an arm in torch.float64, got {model.dtype}; take arm.double()")
        sweeps = any(obstacle.law.response.method == "gauss_seidel" for obstacle in model.obstacles)
        if sweeps and self.directions is not None:  # None unless they are given, or those of a pyramid
            raise InputError(
                "directions, or a pyramid as cone: gauss_seidel, the method of an obstacle's response, has none; leave "
                "them out or set Complementarity(method=) otherwise"
            )
        if self.scheme != "implicit" and model.chambers != 3:
            raise InputError(
                f"scheme {self.scheme}: the mass matrix of sections with {model.chambers} chambers is singular, "
                'as what they do together has three degrees of freedom; set scheme="implicit"'
            )

    def _free(self, model: PneumaticArm, dynamics: ArmDynamics, factor: Tensor, start: _Start) -> _Free:
        """Return the velocities without contact."""
        if self.scheme == "rk23":
            return self._runge_kutta(model, start)
        load = start.force - dynamics.bias - model.springs(start.q, start.velocity)
        if self.scheme == "implicit":
            load = load - self.dt * model.stiffness * start.velocity
        end = start.velocity + self.dt * torch.cholesky_solve(load[..., None], factor)[..., 0]
        return _Free(end, end)

    def _runge_kutta(self, model: PneumaticArm, start: _Start) -> _Free:
        """Return the velocities without contact by eight parts of Bogacki and Shampine's third-order method."""
        h = self.dt / RK_PARTS

        def rates(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            dynamics = model.dynamics(q, v)
            load = start.force - dynamics.bias - model.springs(q, v)
            return v, torch.linalg.solve_ex(dynamics.mass, load[..., None])[0][..., 0]

        x, v = start.q, start.velocity
        for _ in range(RK_PARTS):
            v1, a1 = rates(x, v)
            v2, a2 = rates(x + 0.5 * h * v1, v + 0.5 * h * a1)
            v3, a3 = rates(x + 0.75 * h * v2, v + 0.75 * h * a2)
            x, v = x + h / 9 * (2 * v1 + 3 * v2 + 4 * v3), v + h / 9 * (2 * a1 + 3 * a2 + 4 * a3)
        return _Free((x - start.q) / self.dt, v)

    def _with_yielding_obstacles(
        self, delassus: Tensor, relative: Tensor, frames: Tensor, contacts: Contacts
    ) -> tuple[Tensor, Tensor]:
        """Return W (B, 3 K, 3 K) and relative velocities (B, K, 3) with obstacles that yield; here none does."""
        return delassus, relative

    def _info(self, model: PneumaticArm, end: _End, status: Tensor, succeeded: Tensor) -> ArmStepInfo:
        """Return the report of a step."""
        impulses, ones = end.impulses, torch.ones_like(status)
        if not len(model.obstacles):
            return ArmStepInfo(status, impulses.iterations, impulses.residual, ones, solved=impulses.solved)
        rub = torch.tensor([obstacle.law.friction is not None for obstacle in model.obstacles], device=status.device)
        rubbing = rub.repeat_interleave(model.n_plates)  # (C,)
        counts = {
            "active": impulses.closed(),
            "sticking": impulses.sticking & rubbing,
            "sliding": impulses.sliding & rubbing,
        }
        contact = {name: torch.where(succeeded, mask.sum(1), 0) for name, mask in counts.items()}
        contact["penetration"] = torch.where(succeeded, (-end.gap).clamp(min=0.0).amax(1), 0.0)
        force = torch.where(succeeded[:, None, None], impulses.force, 0.0)
        contact |= model.reported_forces(force)
        report = PlateReport(
            torch.where(succeeded[:, None], end.gap, torch.nan),
            torch.where(succeeded[:, None, None], impulses.impulse, 0.0),
            impulses.sticking & succeeded[:, None],
            impulses.sliding & succeeded[:, None],
        )
        return ArmStepInfo(status, impulses.iterations, impulses.residual, ones, contact, report, impulses.solved)


def _gaps(model: PneumaticArm, posture: Posture, time: Tensor) -> Tensor:
    """Return the gaps (B, C) at the times (B,) [m]."""
    if not len(model.obstacles):
        return time.new_zeros(len(time), 0)
    return contacts_at(model, posture, time, time).gap

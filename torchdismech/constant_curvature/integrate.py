r"""Steps of pneumatic arms: free motion, then the impulses of contact.

A step of the length h from (l, v) first finds the velocity without contact, then impulses p of the contacts:

    v+ = v_free + H^-1 J^T p,    l+ = l + h v+,
    v_free = v + h H^-1 (tau - C v - G - K l - B v - h K v),    H = M + h B + h^2 K.

The springs and dampers are those of the end of the step (linearly implicit Euler), so stiff dampers do not limit h; all
else is evaluated at its start. The relative velocities W p + b of the contacts, W = J H^-1 J^T, obey Coulomb's law and

    0 <= p_n  complementary to  J_n v+ - v_obstacle + g / h >= 0     (alpha g / h where the gap g is negative already):

a contact acts where it would close within the step. Where a gap is no straight line over the step, so that a loaded
contact ends overlapping, the step is solved again with what the line missed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import ArmDynamics, PneumaticArm
from torchdismech.constant_curvature.contacts import Contacts, contact_frames, contacts_at, jacobian
from torchdismech.constant_curvature.failures import long_enough, status_after, status_before
from torchdismech.constant_curvature.info import ArmStepInfo, PlateReport
from torchdismech.constant_curvature.initial_overlap import warn_of_overlap
from torchdismech.constant_curvature.posture import Posture
from torchdismech.constant_curvature.state import ArmState
from torchdismech.contact import Complementarity
from torchdismech.errors import (
    InputError,
    Status,
    real_number,
    refuse_other_kind,
    refuse_unstepped,
    truth,
    whole_number,
)
from torchdismech.model.reduced import report_failures
from torchdismech.robot.state import Control, control_of, running_robots
from torchdismech.rows import finite_rows
from torchdismech.solve.complementarity import (
    Conditioning,
    ContactSolution,
    differentiable_impulses,
    solve_conditioned,
    solve_contact,
)
from torchdismech.trainable import refuse_trained_out_of_bounds

__all__ = ["ArmIntegrator"]

Schedule = Callable[[Tensor, PneumaticArm], Control]
SCHEMES = ("implicit", "explicit", "rk23")
# Parts of the smallest tolerance of an arm's contacts, by default 1e-8 m, which is given in the arm's own units
CLOSING = 1e3  # contacts whose gap would be less at the end of the step are looked at
MISSED = 0.1  # a contact that was not looked at may end so deep
OVERLAP = 10.0  # a step at whose end a plate is so much deeper than it should be is solved again
ROUNDS = 4  # of adding contacts that were missed
CORRECTIONS = 4  # attempts at a step, each with the gaps' curvature over the one before
RK_PARTS = 8  # parts that RK23 takes a step in: its real stability limit is 2.5, h B / M reaches 11 at 1 ms


@dataclass(frozen=True)
class _Impulses:
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

    def closed(self) -> Tensor:
        """Return which contacts (B, C) bear load."""
        return self.sticking | self.sliding


class ArmIntegrator:
    """One step for every arm of a batch.

    Parameters
    ----------
    dt : step [s].
    scheme : "implicit": springs and dampers at the end of the step; the choice for damped arms, as it damps by itself,
        like dampers of dt times the stiffness (docs/pneumatic_arm.md). "explicit": semi-implicit Euler with M in place
        of H, which keeps energy, and which dampers of the paper's size limit to dt below 1.8e-4 s. "rk23":
        the free motion by eight parts of Bogacki and Shampine's third-order method, then contact with M. The latter two
        need exactly three chambers a section: with more, M is singular.
    cone : "second_order", Coulomb's cone, or "pyramid".
    directions : edges of the pyramid, even, at least 4; on the second-order cone where the search starts. By default 4
        for "pyramid", else 8.
    stabilisation : alpha in (0, 1], the share of an overlap that a step removes.
    conditioning : solve the pyramid's complementarity problem conditioned in this way, by `solve_conditioned`, for
        comparisons; None (the default) leaves it to `solve_contact`.
    unsolved : "fail": a step whose contact problem is not solved has the status CONTACT_UNSOLVED. "take": it is made
        with the best impulses that were found, and `ArmStepInfo.solved` says so; for comparisons of solvers.

    Raises
    ------
    InputError
        A number out of its range, an unknown scheme or cone, a conditioning without the pyramid.
    """

    def __init__(
        self,
        dt: float,
        scheme: str = "implicit",
        cone: str = "second_order",
        directions: int | None = None,
        stabilisation: float = 0.2,
        conditioning: Conditioning | None = None,
        unsolved: str = "fail",
    ):
        dt = real_number(dt, "dt", "a number of seconds")
        stabilisation = real_number(stabilisation, "stabilisation")
        if not (math.isfinite(dt) and dt > 0):
            raise InputError(f"dt: expected a finite number above 0, got {dt}")
        if scheme not in SCHEMES:
            raise InputError(f"scheme: expected one of {', '.join(SCHEMES)}, got {scheme!r}")
        if cone not in ("second_order", "pyramid"):
            raise InputError(f"cone: expected second_order or pyramid, got {cone!r}")
        if not 0 < stabilisation <= 1:
            raise InputError(f"stabilisation: expected alpha above 0 and up to 1, got {stabilisation}")
        if conditioning is not None and cone != "pyramid":
            raise InputError('conditioning: it is of the pyramid\'s problem; set cone="pyramid"')
        if conditioning is not None:
            refuse_other_kind("conditioning", conditioning, Conditioning, "a solve.complementarity.Conditioning")
        if directions is not None and whole_number(directions, "directions", 4) % 2:
            raise InputError(f"directions: expected an even number from 4 up, got {directions}")
        if unsolved not in ("fail", "take"):
            raise InputError(f"unsolved: expected fail or take, got {unsolved!r}")
        self.unsolved = unsolved
        self.dt, self.scheme, self.cone = dt, scheme, cone
        self.directions = (4 if cone == "pyramid" else 8) if directions is None else directions
        self.stabilisation, self.conditioning = stabilisation, conditioning

    def prepare(self, model: PneumaticArm, state: ArmState, steps: int) -> None:
        """Make ready for so many steps: nothing is compiled; warn of plates that begin inside of obstacles."""
        refuse_unstepped(self, model, PneumaticArm)
        model.check_batch(state, Control())
        warn_of_overlap(model, state)

    def sample(self, schedule: Schedule, state: ArmState, model: PneumaticArm) -> Control:
        """Return the control that `schedule` sets for the step from `state`: at its start, where it begins to hold."""
        return schedule(state.time, model)

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
        fit = (status == Status.CONVERGED)[:, None]
        # what does not run, or is not sound, is computed with harmless numbers and then left as it was
        going = fit & running[:, None]
        q, velocity, force = (torch.where(going, x, 0.0) for x in (state.q, state.velocity, force))
        time = torch.where(going[:, 0], state.time, 0.0)
        dynamics = model.dynamics(q, velocity)
        inertia = dynamics.mass
        if self.scheme == "implicit":
            inertia = inertia + torch.diag_embed((self.dt * (model.damping + self.dt * model.stiffness)).expand_as(q))
        factor, singular = torch.linalg.cholesky_ex(inertia)
        middle, free = self._free_velocities(model, dynamics, factor, q, velocity, force)
        reach = contacts_at(model, dynamics.posture, time, time + self.dt) if len(model.obstacles) else None
        gap_correction = None
        for _ in range(CORRECTIONS):
            touched = self._contact_impulses(model, dynamics.posture, reach, gap_correction, factor, free, state)
            end_velocity = touched.velocity
            end = q + self.dt * (middle + end_velocity - free)
            posture = model.posture(end)
            with torch.no_grad():  # of a step that stands, nothing is differentiated that depends on these gaps
                gap = _gaps(model, posture, time + self.dt)
            if reach is None or not bool(self._overlaps(model, reach.gap, gap).any()):
                break
            ended = _gaps(model, posture, time + self.dt) if torch.is_grad_enabled() else gap
            gap_correction = ended - self._gaps_at_end(model, dynamics.posture, reach, (end - q) / self.dt)
        with torch.no_grad():
            passed, lost = self._passed(model, dynamics.posture, posture), ~finite_rows([end, end_velocity])
            unsolved = ~touched.solved if self.unsolved == "fail" else torch.zeros_like(touched.solved)
            status = status_after(status, unsolved, singular != 0, passed, ~long_enough(model, end), lost)
            status = torch.where(running, status, int(Status.CONVERGED))
        made = running & (status == Status.CONVERGED)
        after = model.state(end, end_velocity, touched.impulse, time + self.dt, posture)
        info = self._info(model, touched, gap, status, made)
        report_failures(info.status, control, state.time, throw)
        return state.merged(after, made), info

    def _overlaps(self, model: PneumaticArm, before: Tensor, gap: Tensor) -> Tensor:
        """Return which gaps (B, C) ended deeper than the laws of contact let them."""
        return gap < (1 - self.stabilisation) * before.clamp(max=0.0) - OVERLAP * _tolerance(model)

    def _check_arm(self, model: PneumaticArm) -> None:
        """Refuse arms that this scheme cannot step."""
        refuse_trained_out_of_bounds(model)
        if len(model.obstacles) and model.dtype != torch.float64:
            raise InputError(f"contact of an arm needs an arm in torch.float64, got {model.dtype}; take arm.double()")
        if self.scheme != "implicit" and model.chambers != 3:
            raise InputError(
                f"scheme {self.scheme}: the mass matrix of sections with {model.chambers} chambers is singular, "
                'as what they do together has three degrees of freedom; set scheme="implicit"'
            )

    def _free_velocities(
        self, model: PneumaticArm, dynamics: ArmDynamics, factor: Tensor, q: Tensor, velocity: Tensor, force: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean velocity over the step and that at its end (B, n), without contact."""
        if self.scheme == "rk23":
            return self._runge_kutta(model, q, velocity, force)
        load = force - dynamics.bias - model.springs(q, velocity)
        if self.scheme == "implicit":
            load = load - self.dt * model.stiffness * velocity
        free = velocity + self.dt * torch.cholesky_solve(load[..., None], factor)[..., 0]
        return free, free

    def _runge_kutta(self, model: PneumaticArm, q: Tensor, velocity: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same by eight parts of the third-order method of Bogacki and Shampine."""
        h = self.dt / RK_PARTS

        def rates(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            dynamics = model.dynamics(q, v)
            load = force - dynamics.bias - model.springs(q, v)
            return v, torch.linalg.solve_ex(dynamics.mass, load[..., None])[0][..., 0]

        x, v = q, velocity
        for _ in range(RK_PARTS):
            v1, a1 = rates(x, v)
            v2, a2 = rates(x + 0.5 * h * v1, v + 0.5 * h * a1)
            v3, a3 = rates(x + 0.75 * h * v2, v + 0.75 * h * a2)
            x, v = x + h / 9 * (2 * v1 + 3 * v2 + 4 * v3), v + h / 9 * (2 * a1 + 3 * a2 + 4 * a3)
        return (x - q) / self.dt, v

    def _contact_impulses(
        self,
        model: PneumaticArm,
        posture: Posture,
        contacts: Contacts | None,
        gap_correction: Tensor | None,
        factor: Tensor,
        free: Tensor,
        state: ArmState,
    ) -> _Impulses:
        """Return the velocities at the end of the step, and what contact did to get there.

        Parameters
        ----------
        gap_correction : (B, C) by how much gaps ended off a straight line over the step, in the attempt before [m].
        """
        rows, count = len(free), len(model.obstacles) * model.n_plates
        nothing = free.new_zeros(rows, count, 3)
        none = torch.zeros(rows, count, dtype=torch.bool, device=free.device)
        zero = torch.zeros(rows, dtype=torch.long, device=free.device)
        solved = torch.ones(rows, dtype=torch.bool, device=free.device)
        untouched = _Impulses(free, nothing, nothing, none, none, solved, zero, free.new_zeros(rows))
        if contacts is None:
            return untouched
        if gap_correction is not None:
            contacts = dataclasses.replace(contacts, gap_correction=gap_correction)
        with torch.no_grad():
            tolerance = _tolerance(model)
            near = self._gaps_at_end(model, posture, contacts, free) < CLOSING * tolerance
            near = near | (state.impulses[..., 0] > 0)
        found = untouched
        for _ in range(ROUNDS):
            most = int(near.sum(1).max()) if rows else 0
            if not most:
                return untouched
            order = near.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
            found = self._solved(model, posture, contacts, factor, free, order, near.gather(1, order), state.impulses)
            with torch.no_grad():
                missed = ~near & (self._gaps_at_end(model, posture, contacts, found.velocity) < -MISSED * tolerance)
            if not bool(missed.any()):
                return found
            near = near | missed
        return _Impulses(**{**vars(found), "solved": found.solved & ~missed.any(1)})

    def _gaps_at_end(self, model: PneumaticArm, posture: Posture, contacts: Contacts, velocity: Tensor) -> Tensor:
        """Return the gaps (B, C) at the end of the step [m], to first order, with the correction that is known."""
        moved = (
            self.dt * contacts.approach(posture, model.shape_rate(velocity).permute(2, 1, 0)) - contacts.obstacle_motion
        )
        return contacts.gap + contacts.gap_correction + (contacts.normal * moved).sum(2)

    def _solved(
        self,
        model: PneumaticArm,
        posture: Posture,
        contacts: Contacts,
        factor: Tensor,
        free: Tensor,
        order: Tensor,
        active: Tensor,
        before: Tensor,
    ) -> _Impulses:
        """Return what the contacts (B, K) with these numbers do; those that are not active are padding."""
        chosen = contacts.chosen(order)
        frames = contact_frames(chosen.normal)
        moved = (frames @ jacobian(model, posture, chosen, order % model.n_plates)).flatten(1, 2)  # (B, 3 K, n)
        shared = torch.linalg.solve_triangular(factor, moved.mT, upper=False)  # (B, n, 3 K)
        relative = (moved @ free[..., None])[..., 0].unflatten(1, (-1, 3))
        delassus, start = self._problem(shared.mT @ shared, relative, frames, chosen)
        index = order[..., None].expand(-1, -1, 3)
        guess = torch.where(active[..., None], before.gather(1, index), 0.0).flatten(1)
        solution = self._solution(model, delassus, start, chosen.mu, active, guess)
        impulse = _loaded_impulses(solution, delassus, start, chosen.mu)
        step = torch.linalg.solve_triangular(factor.mT, shared @ impulse[..., None], upper=True)[..., 0]
        each = impulse.detach().unflatten(1, (-1, 3))
        world = (frames.detach().mT @ each[..., None])[..., 0] / self.dt
        none = torch.zeros_like(contacts.gap, dtype=torch.bool)
        close = solution.residual * self.dt <= _tolerance(model)
        return _Impulses(
            velocity=free + step,
            impulse=torch.zeros_like(before).scatter(1, index, each),
            force=torch.zeros_like(before).scatter(1, index, world),
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
        relative = relative - (frames @ contacts.obstacle_motion[..., None])[..., 0] / self.dt
        delassus, relative = self._with_yielding_obstacles(delassus, relative, frames, contacts)
        # a share of an overlap that was there before is removed, but all of what this step would add
        correction = (
            torch.where(contacts.gap > 0, contacts.gap, self.stabilisation * contacts.gap) + contacts.gap_correction
        )
        normal = relative[..., :1] + correction[..., None] / self.dt
        return delassus, torch.cat([normal, relative[..., 1:]], 2).flatten(1)

    def _with_yielding_obstacles(
        self, delassus: Tensor, relative: Tensor, frames: Tensor, contacts: Contacts
    ) -> tuple[Tensor, Tensor]:
        """Return W (B, 3 K, 3 K) and relative velocities (B, K, 3) where obstacles give way; here none does."""
        return delassus, relative

    def _solution(
        self, model: PneumaticArm, delassus: Tensor, start: Tensor, mu: Tensor, active: Tensor, guess: Tensor
    ) -> ContactSolution:
        """Return the solution of the contacts' problem."""
        method = _method(model)
        if self.conditioning is not None:
            return solve_conditioned(delassus, start, mu, active, self.conditioning, method, self.directions)
        if self.cone == "pyramid":
            return solve_contact(delassus, start, mu, active, method=method, cone="pyramid", directions=self.directions)
        if method == "gauss_seidel":
            return solve_contact(delassus, start, mu, active, method=method)
        return solve_contact(
            delassus, start, mu, active, method=method, directions=self.directions, guess=guess.detach()
        )

    def _passed(self, model: PneumaticArm, before: Posture, after: Posture) -> Tensor:
        """Return the robots (B,) of which a plate moved by more than half of the thickness of an obstacle near by.

        Such a plate may have been on the other side of it without a trace in the gaps.
        """
        passed = torch.zeros(before.starts.shape[2], dtype=torch.bool, device=before.starts.device)
        if not len(model.obstacles):
            return passed
        middle, frames = model.plates(before)
        end, end_frames = model.plates(after)
        radius = model.plate_radius
        turned = torch.linalg.matrix_norm(end_frames - frames)
        way = torch.linalg.vector_norm(end - middle, dim=2) + radius * turned
        for obstacle in model.obstacles:
            thin = way > obstacle.shape.depth
            if bool(thin.any()):
                near = obstacle.shape.distance(middle) - radius < way
                passed = passed | (thin & near).any(1)
        return passed

    def _info(self, model: PneumaticArm, touched: _Impulses, gap: Tensor, status: Tensor, made: Tensor) -> ArmStepInfo:
        """Return the report of a step."""
        ones = torch.ones_like(status)
        if not len(model.obstacles):
            return ArmStepInfo(status, touched.iterations, touched.residual, ones, solved=touched.solved)
        counts = {"active": touched.closed(), "sticking": touched.sticking, "sliding": touched.sliding}
        contact = {name: torch.where(made, which.sum(1), 0) for name, which in counts.items()}
        contact["penetration"] = torch.where(made, (-gap).clamp(min=0.0).amax(1), 0.0)
        force = torch.where(made[:, None, None], touched.force, 0.0)
        contact |= model.reported_forces(force)
        report = PlateReport(
            torch.where(made[:, None], gap, torch.nan),
            torch.where(made[:, None, None], touched.impulse, 0.0),
            counts["sticking"] & made[:, None],
            counts["sliding"] & made[:, None],
        )
        return ArmStepInfo(status, touched.iterations, touched.residual, ones, contact, report, touched.solved)


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


def _tolerance(model: PneumaticArm) -> Tensor:
    """Return the smallest tolerance () of the obstacles' responses [m]."""
    return torch.stack([obstacle.law.response.tolerance.detach().min() for obstacle in model.obstacles]).min()


def _gaps(model: PneumaticArm, posture: Posture, time: Tensor) -> Tensor:
    """Return the gaps (B, C) at the times (B,) [m]."""
    if not len(model.obstacles):
        return time.new_zeros(len(time), 0)
    return contacts_at(model, posture, time, time).gap


def _loaded_impulses(solution: ContactSolution, delassus: Tensor, start: Tensor, mu: Tensor) -> Tensor:
    """Return the impulses (B, 3 K) of contacts that bear a load, zero elsewhere, with derivatives if asked for."""
    impulse = solution.impulses
    if torch.is_grad_enabled() and (delassus.requires_grad or start.requires_grad or mu.requires_grad):
        impulse = differentiable_impulses(solution, delassus, start, mu)
    return torch.where((solution.sticking | solution.sliding).repeat_interleave(3, 1), impulse, 0.0)

"""What all integrators share: Newton on the balance of forces, failed rows, smaller steps for them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdismech.contact.coupling import StepPairs
from torchdismech.contact.report import Report, contact_report
from torchdismech.errors import InputError, SimulationError, Status
from torchdismech.integrate.adjoint import Equations, implicit_step, merged_after
from torchdismech.integrate.balance import Balance
from torchdismech.integrate.chunks import check_chunk, chunk_size, in_chunks
from torchdismech.integrate.constrained import constrained_newton
from torchdismech.integrate.easing import eased_newton, is_sharp
from torchdismech.integrate.encounters import Encounters
from torchdismech.integrate.inspection import cause_in_hooks, refuse_hidden_tensors
from torchdismech.integrate.standing import StandingStep, standing_step
from torchdismech.model import Model, StepStart
from torchdismech.solve.newton import Root, newton, relaxed_newton, resumed
from torchdismech.state import Control, State
from torchdismech.trainable import refuse_negative

__all__ = ["Integrator", "Schedule", "StepInfo"]

LARGEST_TOLERANCE = 1e3  # N; soft robots weigh less, and heavy ones have the relative tolerance
# what a caller sets over time: schedule(time (B,), model) -> Control
Schedule = Callable[[Tensor, Model], Control]


@dataclass(frozen=True)
class StepInfo:
    """How the step of each robot went; every field is (B,).

    Attributes
    ----------
    status : `Status` values.
    iterations : Newton iterations, over all substeps and attempts.
    residual : norm of the residual at the accepted iterate [N] (torques count over the mean edge length).
    tolerance : what the residual was held against [N].
    force_scale : norm of momentum over dt + external + internal force at the start of the step [N].
    substeps : number of equal parts the step was taken in.
    contact : what contact did (see `contact.report`), of the last part; {} for robots that touch nothing.
    stable : of static equilibria, whether each is a minimum of the potential energy, by its matrix: False at a saddle.
        None where that is not known: in motion, and under loads without a potential (drag, friction).
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor
    force_scale: Tensor
    substeps: Tensor
    contact: Report = field(default_factory=dict)
    stable: Tensor | None = None

    @property
    def converged(self) -> Tensor:
        """Which robots (B,) made the step."""
        return self.status == Status.CONVERGED

    def merged(self, other: StepInfo, take: Tensor) -> StepInfo:
        """Return this with the rows where `take` holds replaced by those of `other`."""
        own, others = self._numbers(), other._numbers()
        merged = {k: torch.where(take, others[k], v) for k, v in own.items()}
        names = set(self.contact) & set(other.contact)
        contact = {k: _where(take, other.contact[k], self.contact[k]) for k in self.contact if k in names}
        return StepInfo(**merged, contact=contact)

    def rows(self, index) -> StepInfo:
        """Return how it went for the robots that `index` selects."""
        own = {k: v[index] for k, v in self._numbers().items()}
        return StepInfo(**own, contact={k: v[index] for k, v in self.contact.items()})

    @classmethod
    def joined(cls, parts: Sequence[StepInfo]) -> StepInfo:
        """Return how it went for parts of a batch as one."""
        own = {k: torch.cat([getattr(p, k) for p in parts]) for k in parts[0]._numbers()}
        return cls(**own, contact={k: torch.cat([p.contact[k] for p in parts]) for k in parts[0].contact})

    def _numbers(self) -> dict[str, Tensor]:
        """Return the fields but contact, those that are not None."""
        return {k: v for k, v in vars(self).items() if k != "contact" and v is not None}


class Integrator(ABC):
    """One step for every robot of a batch.

    Parameters
    ----------
    dt : step [s].
    force_tolerance : residual [N] at which a step counts as converged ...
    relative_tolerance : ... or this much of the step's force scale, whichever is larger.
    max_iterations : Newton iterations per attempt.
    line_search : False takes every Newton step whole.
    max_substeps : robots whose step fails try again in 2, 4, ... up to this many equal parts; 0 or 1 turns that off.
    chunk : how many robots of a batch are stepped at a time. They do not know each other, so this changes no more than
        rounding: which solver is the fastest, and how sums are grouped, depends on their number. "auto" takes as many
        as are fastest on a CPU, and no more than memory is enough for, with a warning; None takes all.
    """

    def __init__(
        self,
        dt: float,
        force_tolerance: float = 1e-8,
        relative_tolerance: float = 1e-8,
        max_iterations: int = 50,
        line_search: bool = True,
        max_substeps: int = 0,
        chunk: int | str | None = "auto",
    ):
        if not (math.isfinite(dt) and dt > 0):
            raise InputError(f"dt: expected a finite number above 0, got {dt}")
        if not 0 < force_tolerance <= LARGEST_TOLERANCE:
            raise InputError(
                f"force_tolerance: expected a number above 0 and up to {LARGEST_TOLERANCE:g} N (no step could miss a "
                f"larger one, so nothing would move), got {force_tolerance}; relative_tolerance grows with the loads"
            )
        if not 0 <= relative_tolerance < 1:
            raise InputError(f"relative_tolerance: expected a number from 0 up to 1, got {relative_tolerance}")
        if max_iterations < 1 or max_substeps < 0:
            raise InputError("max_iterations has to be at least 1 and max_substeps at least 0")
        self.dt = float(dt)
        self.force_tolerance = float(force_tolerance)
        self.relative_tolerance = float(relative_tolerance)
        self.max_iterations = int(max_iterations)
        self.line_search = bool(line_search)
        self.max_substeps = int(max_substeps)
        self.chunk = check_chunk(chunk)

    # ---- for the caller ----------------------------------------------------------------------------------------

    def step(
        self,
        model: Model,
        state: State,
        control: Control | None = None,
        running: Tensor | None = None,
        throw: bool = False,
    ) -> tuple[State, StepInfo]:
        """Return the state after one step and how it went.

        A robot whose step fails keeps the state it had; the others go on. Where autograd records, the new state can be
        differentiated by the state, the control and the model's tensors that require it: see `integrate.adjoint`.

        Parameters
        ----------
        control : what the caller sets for this step.
        running : (B,) bool, robots to step; the others are left alone and reported as converged.
        throw : raise a `SimulationError` that names the failed robots instead of reporting them.
        """
        control = control or Control()
        running = torch.ones(state.batch, dtype=torch.bool, device=state.q.device) if running is None else running
        model.check_batch(state, control)
        refuse_negative(model)
        if torch.is_grad_enabled():
            refuse_hidden_tensors(model, state, control)
        size = chunk_size(model, state.batch, self.chunk)
        model.compile_if_long(size, state.q)

        def stepped() -> tuple[State, StepInfo]:
            if size < state.batch:
                return in_chunks(self._stepped, model, state, control, running, size)
            return self._stepped(model, state, control, running)

        after, info = model.compilation.guarded(stepped)
        cause = self._cause_of_failure(model, state, control, info)
        if throw and not bool(info.converged.all()):
            raise SimulationError.from_status(info.status, self._occasion(state), cause)
        if cause is not None:
            warnings.warn(f"{self._occasion(state)}: {cause}", RuntimeWarning, stacklevel=2)
        return after, info

    def prepare(self, model: Model, state: State, steps: int) -> None:
        """Get ready for so many steps from a state: compile if the model does so and it pays, look at the tolerance."""
        self._warn_of_loads_that_do_not_count(model, state)
        rows = chunk_size(model, state.batch, self.chunk)
        model.compile_if_long(rows, state.q, steps * self.step_work(model, state.batch))

    @torch.no_grad()
    def _warn_of_loads_that_do_not_count(self, model: Model, state: State) -> None:
        """Say so where a robot's loads are below the residual that counts as solved: it would not move."""
        start = StepStart(state, Control(), [], model.held_force(state, Control()), None)
        load = model.constant_load(start, state.time).index_select(1, model.free_index).norm(dim=1)
        small = (load > 0) & (load < self.force_tolerance)
        if bool(small.any()):
            robot = int(small.nonzero()[0])
            warnings.warn(
                f"robot {robot}: its loads are {float(load[robot]):.2g} N, below force_tolerance = "
                f"{self.force_tolerance:g} N, at which a step counts as solved: they would not move it; set "
                "force_tolerance a million times smaller than the loads",
                RuntimeWarning,
                stacklevel=3,
            )

    def step_work(self, model: Model, batch: int) -> float:
        """Return an estimate of the eager work [s] of a step, as `Compilation` counts it."""
        rows = chunk_size(model, batch, self.chunk)
        return self._evaluations * -(-batch // rows) * model.compilation.cost.of(rows, model.device)

    def sample(self, schedule: Schedule, state: State, model: Model) -> Control:
        """Return the control that `schedule` sets for the step from `state`."""
        return schedule(state.time + self.dt, model)

    @property
    def _evaluations(self) -> int:
        """Evaluations that a step is expected to take: 3 for rods that move smoothly, 4.5 for shells."""
        return 4

    # ---- inside ------------------------------------------------------------------------------------------------

    def _cause_of_failure(self, model: Model, state: State, control: Control, info: StepInfo) -> str | None:
        """Return what is wrong with a user's force or energy where robots failed; None where nothing is known to be."""
        if not model.has_user_hooks or bool(info.converged.all()):
            return None
        return cause_in_hooks(model, state, control, ~info.converged)

    def _stepped(self, model: Model, state: State, control: Control, running: Tensor) -> tuple[State, StepInfo]:
        """Return the state after one step, if need be in parts, and how it went."""
        after, info = self._attempt(model, state, control, self.dt, running)
        parts = 2
        while parts <= self.max_substeps and bool((failed := running & ~info.converged).any()):
            after, info = self._in_parts(model, state, control, parts, failed, after, info)
            parts *= 2
        return after, info

    def _occasion(self, state: State) -> str:
        """Return what an error calls the step from this state."""
        return f"step from t = {float(state.time.max()):g} s"

    def _in_parts(self, model, state, control, parts, rows, after, info) -> tuple[State, StepInfo]:
        """Take the step of `rows` in equal parts and return `after` and `info` with those that made it.

        Clamped dofs move evenly over the parts; the rest of the control holds.
        """
        target = control.clamped_q
        at, running, iterations = state, rows, info.iterations
        for part in range(1, parts + 1):
            if target is not None:
                control = control.replace(clamped_q=state.q + (target - state.q) * (part / parts))
            at, last = self._attempt(model, at, control, self.dt / parts, running)
            iterations = iterations + torch.where(running, last.iterations, 0)
            running = running & last.converged
            if not bool(running.any()):
                break
        last = dataclasses.replace(last, substeps=torch.full_like(last.substeps, parts))
        info = dataclasses.replace(info.merged(last, running), iterations=iterations)
        return after.merged(at, running), info

    def _attempt(self, model, state, control, dt, running) -> tuple[State, StepInfo]:
        """Solve one step of dt."""
        infos: list[StepInfo] = []
        lost = running & ~state.finite()  # a residual need not show it: no force may read that number
        running = running & ~lost
        with torch.no_grad():
            self._check_contact(model)
            elapsed = self._elapsed(dt)
            end = state.time if elapsed is None else state.time + dt
            encounters = Encounters(model, state, lambda: self._ahead(model, state, control, dt), end)

        def equations(state: State, control: Control, robots: Tensor | None = None) -> Balance:
            pairs = encounters.pairs
            pairs = pairs if pairs is None or robots is None else pairs.rows(robots)
            balance = self.equations(model, state, control, dt, pairs)
            balance.constraints = encounters.constraints(state, robots)
            return balance

        def solved(state: State, control: Control) -> tuple[State, Tensor]:
            step = standing_step(self, model, state, control, running, dt) if model.recorded(state.q) else None
            if step is not None:
                after, info = self._replayed(step, running)
            else:
                balance = equations(state, control)
                q, info = self._solved(balance, running)
                if not encounters.none:
                    q, info = self._met(balance, q, info, running, encounters, equations)
                after = balance.fused(merged_after)(balance, self._after, q, running & info.converged)
            infos.append(info)
            return after, running & info.converged

        after = implicit_step(model, state, control, equations, solved, self._after)
        status = torch.where(lost, int(Status.NOT_FINITE), infos[0].status)
        return after, dataclasses.replace(infos[0], status=status)

    def equations(
        self, model: Model, state: State, control: Control, dt: float | Tensor, pairs: StepPairs | None = None
    ) -> Balance:
        """Return the balance of forces of a step of dt [s], a number or a tensor ()."""
        start = model.unchecked_start(state, control, self._elapsed(dt), pairs)
        clamped_q = state.q if control.clamped_q is None else torch.where(model.free, state.q, control.clamped_q)
        return self._balance(model, start, clamped_q, dt)

    def _replayed(self, step: StandingStep, running: Tensor) -> tuple[State, StepInfo]:
        """Return the state after a step that graphs hold, and how it went; what they do not hold runs as without."""
        if step.search():
            after, root, scale = step.end()
            return after, _info(root, root.status, scale)
        balance, scale, at, tolerance = step.balance, step.scale.clone(), step.progress(), step.noise_tolerance.clone()
        _, *others = self._attempts(balance)
        balance.descending = False
        solver = balance.model.solver_for(balance.start.state.batch)
        root = resumed(balance, at, solver, tolerance, step.weight, self.max_iterations, self.line_search)
        q, info = self._finished(balance, root, others, step.tolerance, step.weight, scale, running)
        return balance.fused(merged_after)(balance, self._after, q, running & info.converged), info

    def _met(
        self,
        balance: Balance,
        q: Tensor,
        info: StepInfo,
        running: Tensor,
        encounters: Encounters,
        equations: Equations,
    ) -> tuple[Tensor, StepInfo]:
        """Return q (B, n) and how it was found once nothing was overlooked that may touch, with what contact did."""
        missed = running & info.converged & encounters.missed(q)
        while bool(missed.any()) and encounters.widen(q):
            balance = equations(balance.start.state, balance.start.control, None)
            # loads belong to the contacts that were looked at: with constraints all are found anew
            rows = missed if balance.constraints is None else running
            again, second = self._solved(balance, rows, near=q)
            second = dataclasses.replace(second, iterations=second.iterations + info.iterations)
            q, info = torch.where(rows[:, None], again, q), info.merged(second, rows)
            missed = running & info.converged & encounters.missed(q)
        passed = running & info.converged & encounters.passed(self._after(balance, q))
        status = torch.where(passed, int(Status.PASSED_THROUGH), info.status)
        encounters.keep(balance.constraints)
        report = self._report(balance, q, status == Status.CONVERGED)
        return q, dataclasses.replace(info, status=status, contact=report)

    def _solved(self, balance: Balance, running: Tensor, near: Tensor | None = None) -> tuple[Tensor, StepInfo]:
        """Return q (B, n) where the forces balance and how it was found; `near` is tried first as an iterate."""
        attempts = [(False, "plain")] * (near is not None) + list(self._attempts(balance))
        guess = None if near is None else near.index_select(1, balance.model.free_index)
        balance.prepare()
        weight, scale, guess = balance.fused(Balance.opening)(balance, guess, attempts[0][0])
        tolerance, (_, method) = self.tolerance(scale), attempts[0]
        balance.descending = method == "descending"
        root = self._newton(balance, guess, tolerance, weight, running, method)
        return self._finished(balance, root, attempts[1:], tolerance, weight, scale, running)

    def _finished(
        self,
        balance: Balance,
        root: Root,
        attempts: Sequence[tuple[bool, str]],
        tolerance: Tensor,
        weight: Tensor,
        scale: Tensor,
        running: Tensor,
    ) -> tuple[Tensor, StepInfo]:
        """Return q (B, n) where the forces balance and how it was found, by more `attempts` where `root` is none."""
        failed = running & (root.status != Status.CONVERGED)
        some = bool(failed.any())
        for ahead, method in attempts:
            if not some:
                break
            balance.descending = method == "descending"
            found = self._newton(balance, balance.guess(ahead), tolerance, weight, failed, method)
            root = _merged_roots(root, found, failed)
            failed = running & (root.status != Status.CONVERGED)
            some = bool(failed.any())
        q, status = balance.full(root.x), root.status
        if some:
            folded = failed & balance.model.folded(balance.start.state, q)
            status = torch.where(folded, int(Status.FOLDED_EDGE), status)
        return q, _info(root, status, scale)

    def tolerance(self, scale: Tensor) -> Tensor:
        """Return the residual (B,) at which steps with these force scales (B,) count as converged [N]."""
        return (self.relative_tolerance * scale).clamp_min(self.force_tolerance)

    def _elapsed(self, dt: float | Tensor) -> float | Tensor | None:
        """Return the time [s] from the start of a step to where forces are evaluated; None where no time passes."""
        return dt

    @abstractmethod
    def _balance(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor) -> Balance:
        """Return the equations of one step."""

    def _attempts(self, balance: Balance) -> Iterator[tuple[bool, str]]:
        """Yield whether the first iterate is ahead (see `Balance.guess`) and the method, for rows not solved yet.

        Where inertia leads is closest for smooth motion, where the robot is for violent motion. Descending the
        potential is slow far from the root and sure; where there is none, relaxed steps take its place. Friction that
        is smoothed over a small slip velocity is eased in.
        """
        eases = bool(balance.model.slip_velocities()) and self.line_search and balance.constraints is None
        sharp = eases and is_sharp(balance)
        if sharp:
            yield False, "eased"
        yield True, "plain"
        if eases and not sharp:
            yield False, "eased"
        yield False, "plain"
        if balance.constraints is not None:
            return
        if balance.has_potential:
            yield False, "descending"
        elif self.line_search:  # relaxed steps may be taken back: not whole Newton steps
            yield False, "relaxed"

    def _newton(
        self,
        balance: Balance,
        guess: Tensor,
        tolerance: Tensor,
        weight: Tensor,
        running: Tensor,
        method: str,
    ) -> Root:
        model = balance.model
        solver = model.solver_for(guess.shape[0], balance.start.pairs)
        if balance.constraints is not None:
            return constrained_newton(
                balance, guess, solver, tolerance, weight, self.max_iterations, self.line_search, running
            )
        if method == "eased":
            return eased_newton(balance, guess, solver, tolerance, weight, self.max_iterations, running)
        if method == "relaxed":
            inertia = balance.inertia()
            return relaxed_newton(balance, guess, solver, tolerance, weight, inertia, self.max_iterations, running)
        return newton(balance, guess, solver, tolerance, weight, self.max_iterations, self.line_search, running)

    def _report(self, balance: Balance, q: Tensor, rows: Tensor) -> Report:
        """Return what contact did in a step to q (B, n); zeros in rows (B,) that did not make it."""
        model, start = balance.model, balance.start
        position, velocity, time = balance.evaluated_at(q)
        state = start.state.replace(q=position, velocity=velocity, time=time)
        pairs = None if start.pairs is None else start.pairs.pairs
        found = contact_report(model.body, model.obstacles, model.self_contact, state, pairs, balance.constraints)
        return {name: _where(rows, value, torch.zeros_like(value)) for name, value in found.items()}

    def _check_contact(self, model: Model) -> None:
        """Refuse contact that this integrator cannot take."""
        if model.constrained:
            raise InputError(
                f"contact by Complementarity goes with ImplicitEuler, got {type(self).__name__}: a constraint that "
                "stops a moving body takes its energy, which this integrator would keep; or take Penalty or Barrier"
            )
        if not self.line_search and model.needs_feasible_iterates:
            raise InputError("line_search: contact by Barrier needs it, to keep surfaces apart; set line_search=True")

    def _ahead(self, model: Model, state: State, control: Control, dt: float) -> Tensor:
        """Return where (B, n) inertia and the clamps lead in dt."""
        held = state.q if control.clamped_q is None else control.clamped_q
        return torch.where(model.free, state.q + dt * state.velocity, held)

    @abstractmethod
    def _after(self, balance: Balance, q: Tensor) -> State:
        """Return the state after the step, at q (B, n)."""


def _info(root: Root, status: Tensor, scale: Tensor) -> StepInfo:
    """Return how a whole step went."""
    return StepInfo(status, root.iterations, root.residual, root.tolerance, scale, torch.ones_like(root.iterations))


def _where(take: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the rows (B, ..) of `first` where `take` (B,) holds, else those of `second`."""
    return torch.where(take.view(-1, *[1] * (first.dim() - 1)), first, second)


def _merged_roots(first: Root, second: Root, take: Tensor) -> Root:
    """Return `first` with the rows where `take` holds replaced by `second`; iterations add up."""
    iterations = torch.where(take, first.iterations + second.iterations, first.iterations)
    return Root(
        torch.where(take[:, None], second.x, first.x),
        torch.where(take, second.status, first.status),
        iterations,
        torch.where(take, second.residual, first.residual),
        torch.where(take, second.tolerance, first.tolerance),
    )

"""Static: static equilibrium, found as one step without inertia."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial

import torch
from torch import Tensor

from torchdismech.errors import InputError, Status, check_choice, listed, warn, whole_number
from torchdismech.integrate.chunks import in_chunks
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.equilibria.settling import settled, settled_step
from torchdismech.integrate.equilibria.stability import no_saddles, stability, without_saddles
from torchdismech.integrate.equilibria.supports import refuse_unheld
from torchdismech.integrate.equilibria.turning import free_torques, left_out, torques_as_cause
from torchdismech.integrate.gradients.gradient import differentiable_step
from torchdismech.integrate.idle_friction import (
    STEPS_DOWN,
    friction_as_cause,
    refuse_driven_tangents,
    warn_of_idle_friction,
)
from torchdismech.integrate.idle_loads import warn_of_absent_loads, warn_of_small_loads
from torchdismech.integrate.integrator import FORCE_TOLERANCE, RELATIVE_TOLERANCE, StepInfo, SteppingMethod
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.scheme import Scheme
from torchdismech.integrate.search.attempts import Attempt, Search, Start
from torchdismech.integrate.substeps import in_parts
from torchdismech.model import Model
from torchdismech.model.mechanics import times_load_factor
from torchdismech.robot.state import Control, State

__all__ = ["Static", "ramped"]

UNSTABLE = ("leave", "report", "fail")
MOST_PARTS = 16  # into which a share of the load is divided that fails as a whole
# Searches in which edges are to stop turning under torques on their angles. Each divides what is left by 30 where the
# torque turns a rod by .3 rad, by 3 where by 3 rad.
MOST_FOLLOWING = 60
AT_REST = Scheme(velocity=(0, 0, 0), acceleration=(0, 0, 0), end_velocity=(0, 0, 0))


class Static(SteppingMethod):
    """The equilibrium that the loads lead to: one `step` ramps them from what holds now to their full size.

    External forces grow in equal shares (obstacles push in full), natural strains and clamped dofs move evenly from the
    model's own and the state's to those that the control sets; `Control.values` act from the first share on. Time does
    not advance; velocity and acceleration become zero. A warning names loads whose start and stop are not around the
    state's time: they do not act.

    Where the loads have a potential (gravity, point forces, a penalty's contact) the search goes down the potential
    energy. A start that is balanced already may be a saddle, though, which the smallest push ends: a straight column
    under more than its buckling load. By default such robots leave the saddle: after each share they are pushed along
    the lowest mode of small vibrations, as far as that lowers the potential, and search anew, until they are at a
    minimum. Where several sides are alike they are pushed towards +z, else +y, else +x. `StepInfo.stable` tells
    minima from other equilibria. Robots that nothing holds against their loads are refused. Friction is left out,
    as nothing slides, and a warning names the friction of contacts that bear a load: robots that friction holds
    settle by time steps. But an obstacle by `Penalty` or `Barrier` whose `Path` has a velocity pulls along what
    touches it, as a belt does.

    Where `Control.pose` turns a clamp, its nodes go straight from where they are to where they are to be, so that
    between two shares the clamped edges are shorter than they are (by half, in the middle of a turn of 120 degrees).
    An equilibrium that does not depend on the way is not changed by this; `follow` turns clamps as rigid bodies.

    Torques on the angles of edges (`Control.force`) turn these about themselves wherever they point in the end: the
    search is repeated until their edges no longer turn. This fails for torques that turn a rod by some 6 rad or more,
    for which `forces.PointMoment` with frame="material" gives the same equilibrium in one search.

    Parameters
    ----------
    load_steps : number of shares. Robots that fail in one take it in 2, 4, 8 or 16 parts (`StepInfo.substeps`), unless
        there is contact, or their search for all of it ran out of `max_iterations`. Those that still fail settle in
        short steps from rest to rest, which take 2,000 iterations in all, or ten times `max_iterations` where that is
        more.
    unstable : what becomes of robots whose equilibrium is no minimum. "leave": they search on, as said above, and where
        that fails settle, with or without contact; those for whom there is no way down (a part is free to move without
        any force), or none is found, are reported. "report": they stay there, `StepInfo.stable` is False and a warning
        names them. "fail": their status is `UNSTABLE` and they keep the state they had. With "report" and "fail", where
        the search down the potential ends without an equilibrium, as it may beyond a bifurcation, Newton's method
        searches anew from where the share began, for any equilibrium, be it a saddle; with "leave" it does so for
        minima alone. Stability is told by the Cholesky factor of the matrix. A robot with nodes that are free to move
        without any force is not stable, unless the residual that `force_tolerance` leaves happens to hold it; in single
        precision rounding decides. Where there is no factor (loads without a potential such as drag, friction, pressure
        on a surface with a free rim; an iterative linear solver) "leave" and "report" leave `StepInfo.stable` at None,
        and "fail" is refused. Where contacts are constraints, those that bear a load stay closed in a push, and those
        that touch without any may open.
    max_substeps : for integrators with a time step; above 1 it is refused, as there is no time step to divide.
    Others as for `SteppingMethod`.
    """

    takes_constraints = True
    reactions_after_parts = True
    scheme = AT_REST

    def __init__(
        self,
        load_steps: int = 1,
        force_tolerance: float = FORCE_TOLERANCE,
        relative_tolerance: float = RELATIVE_TOLERANCE,
        max_iterations: int = 200,
        line_search: bool = True,
        chunk: int | str | None = "auto",
        unstable: str = "leave",
        max_substeps: int = 0,
    ):
        super().__init__(force_tolerance, relative_tolerance, max_iterations, line_search, chunk)
        if whole_number(max_substeps, "max_substeps", least=0) > 1:
            raise InputError(
                f"Static: has no time step to divide, got max_substeps = {max_substeps}; take more load_steps (shares "
                "that fail are taken in parts by themselves)"
            )
        check_choice("unstable", unstable, UNSTABLE)
        self.load_steps, self.unstable = whole_number(load_steps, "load_steps"), unstable
        self.step_evaluations = 10 * self.load_steps
        # True in a search for any equilibrium, be it a saddle, in place of one down the potential
        self.any_balance = False

    def __repr__(self) -> str:
        """Return the number of shares, but no other options."""
        return f"Static(load_steps={self.load_steps})"

    def reactions(self, model: Model, before: State, after: State, control: Control | None = None) -> Tensor:
        """Return the force [N] and torque [N m] that each clamp exerts at the equilibrium `after` (B, C, 6).

        As `SteppingMethod.reactions`, but it does not matter in which shares and parts the load grew: all of it acts at
        the equilibrium, and that state holds what materials remember of the way. `before` is ignored.
        """
        return super().reactions(model, after, after, control)

    def _warn_of(self, saddles: Tensor, reasons: list[str]) -> None:
        """Warn of the robots (B,) at an equilibrium that is no minimum, with the reasons why they stay."""
        robots = saddles.nonzero().flatten().tolist()
        if robots:
            why = "; ".join([self._hint, *reasons])
            warn(
                f"Static: the equilibrium of robot {listed(robots)} is no minimum of the potential energy: {why}",
                RuntimeWarning,
            )

    @property
    def _hint(self) -> str:
        """What a warning says of equilibria that are no minima."""
        if self.unstable == "leave":
            return (
                "a part is free to move without any force (clamp it), or no minimum was found from there (allow more "
                f"max_iterations or load_steps, or {STEPS_DOWN}: the way down may be long)"
            )
        return 'the smallest push ends it, or a part is free to move; unstable="leave" goes on to a minimum'

    def attempts(self, equations: StepEquations, divisible: bool = False) -> list[Attempt]:
        """Return the one attempt at an equilibrium."""
        return [Attempt(Start.HERE, Search.DESCENT if self._descends(equations.model) else Search.LINE_SEARCH)]

    def _descends(self, model: Model) -> bool:
        """Return whether the search goes down a potential."""
        # constraints have none, but only bound where the robot may be
        has_potential = model.mechanics.conservative(at_rest=True)
        return has_potential and not self.any_balance

    @property
    def _step_length(self) -> float:
        return 0.0

    def _advanced(self, problem: StepProblem, size: int) -> tuple[State, StepInfo]:
        refuse_driven_tangents("Static", problem.model, problem.state)
        warn_of_small_loads(problem.model, problem.state, problem.control, problem.running, self.force_tolerance)
        warn_of_absent_loads("Static", problem.model, problem.state, problem.running)
        reasons: list[str] = []
        after, info = in_chunks(partial(self._ramped, reasons), problem, size)
        balanced = info.converged & problem.running
        if info.stable is not None:
            self._warn_of(balanced & ~info.stable, reasons)
        warn_of_idle_friction("Static", problem.model, after, info.contact, balanced, info.tolerance)
        return after, info

    def _ramped(self, reasons: list[str], problem: StepProblem) -> tuple[State, StepInfo]:
        """Return the equilibria of some robots and how the search went, with the load growing in shares.

        `reasons` is appended to: why some of them are on saddles that they did not leave.
        """
        refuse_unheld(problem.model, problem.state, problem.control, problem.running, self.force_tolerance)
        running, new_reasons = problem.running, list[str]()
        at, info = self._after_share(problem, problem.state, running, 0, new_reasons)
        for k in range(1, self.load_steps):
            running, new_reasons = running & info.converged, []
            at, share = self._after_share(problem, at, running, k, new_reasons)
            info = dataclasses.replace(
                share.merged(info, problem.running & ~running),
                iterations=info.iterations + torch.where(running, share.iterations, 0),
                substeps=torch.maximum(info.substeps, share.substeps),
                stable=share.stable,
            )
        at, info = self._where_edges_stay(problem, at, running & info.converged, info, new_reasons)
        running = running & info.converged
        reasons += [reason for reason in new_reasons if reason not in reasons]
        if self.unstable != "leave":
            info = dataclasses.replace(info, stable=stability(problem.replace(state=at, running=running)))
        if self.unstable == "fail":
            running, info = self._without_unstable(running, info)
        return problem.state.merged(at, running), info

    def _after_share(
        self, problem: StepProblem, start: State, running: Tensor, k: int, reasons: list[str]
    ) -> tuple[State, StepInfo]:
        """Return the equilibria after share k of the load, and how they were found.

        Robots that fail take the share in 2, 4, ... parts, unless their search for all of it ran out of
        `max_iterations`, and settle if that fails, too. Robots that may touch something have settled in vain by then.
        """

        def take_part(state: State, running: Tensor, share: float) -> tuple[State, StepInfo]:
            return self._equilibria_at(problem, state, running, (k + share) / self.load_steps, reasons)

        (at, info), parts = take_part(start, running, 1), 2
        while parts <= MOST_PARTS and problem.model.contact.none:
            failed = running & ~info.converged & (info.status != Status.MAX_ITERATIONS)
            if not bool(failed.any()):
                break
            at, info = in_parts(take_part, parts, start, failed, at, info)
            parts *= 2
        failed = running & ~info.converged
        if problem.model.contact.none and bool(failed.any()):
            last = _under_load(problem, start, failed, (k + 1) / self.load_steps)
            after, settled_info = settled(last, at, dataclasses.replace(info, stable=None))
            if self.unstable == "leave":
                after, settled_info = without_saddles(last, after, settled_info, reasons)
            at, info = at.merged(after, failed), info.merged(settled_info, failed)
        return at, info

    def _equilibria_at(
        self, problem: StepProblem, start: State, running: Tensor, factor: float, reasons: list[str]
    ) -> tuple[State, StepInfo]:
        """Return the equilibria to which a search from states leads while the load factor has this value."""
        loaded_problem = _under_load(problem, start, running, factor)
        after, info = settled_step(loaded_problem)
        if self.unstable == "leave":
            after, info = self._with_further_minima(loaded_problem, after, info)
            return without_saddles(loaded_problem, after, info, reasons)
        return self._with_any_balance(loaded_problem, after, info)

    def _where_edges_stay(
        self, problem: StepProblem, at: State, running: Tensor, info: StepInfo, reasons: list[str]
    ) -> tuple[State, StepInfo]:
        """Return equilibria and how they were found, after searches until edges under torques no longer turn.

        Else equilibria would depend on where their search began; see `equilibria/turning.py`.
        """
        torques = free_torques(problem.replace(state=at))
        if torques is None:
            return at, info
        turning = running & (torques != 0).any(1)
        for _ in range(MOST_FOLLOWING):
            if not bool(turning.any()):
                return at, info
            after, found = self._equilibria_at(problem, at, turning, 1.0, reasons)
            iterations = info.iterations + torch.where(turning, found.iterations, 0)
            substeps = torch.maximum(info.substeps, found.substeps)
            info = dataclasses.replace(found.merged(info, ~turning), iterations=iterations, substeps=substeps)
            turning = turning & info.converged & (left_out(problem, at, after, torques) > info.tolerance)
            at = after
        status = torch.where(turning, int(Status.MAX_ITERATIONS), info.status)
        return at, dataclasses.replace(info, status=status)

    def _with_any_balance(self, problem: StepProblem, at: State, info: StepInfo) -> tuple[State, StepInfo]:
        """Return equilibria and how they were found, after a search for any equilibrium where the first search failed.

        Beyond a bifurcation a search down the potential leaves the equilibrium that it began near to, and may come to
        no other. That is for those who ask for minima, so the search that takes saddles, too, comes second.
        """
        failed = problem.running & ~info.converged
        if not self._descends(problem.model) or not bool(failed.any()):
            return at, info
        method = copy.copy(self)
        method.any_balance = True
        second_state, second_info = differentiable_step(problem.replace(method=method, running=failed))
        iterations = torch.where(failed, info.iterations + second_info.iterations, info.iterations)
        balanced = failed & second_info.converged
        return at.merged(second_state, balanced), dataclasses.replace(
            info.merged(second_info, balanced), iterations=iterations
        )

    def _with_further_minima(self, problem: StepProblem, at: State, info: StepInfo) -> tuple[State, StepInfo]:
        """Return equilibria and how they were found, after a second search, of which saddles do not count.

        Where a matrix is indefinite without a force that way, as that of a flat sheet under pressure in its plane, the
        search down the potential may be slow, and plain Newton steps quick.
        """
        second_state, second_info = self._with_any_balance(problem, at, info)
        newly_balanced = problem.running & second_info.converged & ~info.converged
        accepted = (
            no_saddles(problem.replace(state=second_state), newly_balanced)
            if bool(newly_balanced.any())
            else newly_balanced
        )
        return at.merged(second_state, accepted), dataclasses.replace(
            info.merged(second_info, accepted), iterations=second_info.iterations
        )

    def _without_unstable(self, balanced: Tensor, info: StepInfo) -> tuple[Tensor, StepInfo]:
        """Return which robots (B,) are at a minimum, and how it went, with status UNSTABLE for those that are not."""
        if info.stable is None:
            raise InputError(
                'unstable="fail": nothing tells whether equilibria are stable under loads without a potential (drag, '
                'friction, pressure on a surface with a free rim) or by an iterative linear solver; take "leave" or '
                '"report"'
            )
        status = torch.where(balanced & ~info.stable, int(Status.UNSTABLE), info.status)
        return balanced & info.stable, dataclasses.replace(info, status=status)

    def _own_cause(self, problem: StepProblem, info: StepInfo) -> str | None:
        failed = problem.running & ~info.converged
        return friction_as_cause(problem.model, problem.state, failed) or torques_as_cause(problem, failed)

    def _occasion(self, state: State) -> str:
        return "static equilibrium"


def _under_load(problem: StepProblem, start: State, running: Tensor, factor: float) -> StepProblem:
    """Return the problem of equilibria of some robots under a part of the load, searched from states."""
    return problem.replace(state=start, control=ramped(problem, factor), running=running, load_factor=factor)


def ramped(problem: StepProblem, load_factor: float | Tensor) -> Control:
    """Return the control at a load factor, between the model's natural strains and state's q, and the full control.

    Parameters
    ----------
    load_factor : one for all robots, or of each (B,).
    """
    control, state = problem.control, problem.state
    if isinstance(load_factor, float) and load_factor == 1:
        return control
    unloaded = problem.model.natural_strains(state.batch).replace(clamped_q=state.q).tensors()
    tensors = dict(control.tensors())
    for name in tensors.keys() - {"force"}:  # the force is scaled with the other loads
        tensors[name] = unloaded[name] + times_load_factor(load_factor, tensors[name] - unloaded[name])
    return Control.of(tensors)

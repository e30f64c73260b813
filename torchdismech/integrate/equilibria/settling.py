"""Settling: how robots reach an equilibrium for which they have to touch something, or to which it is a long way down.

Newton's method for an equilibrium goes through whatever stands in its way, as it is guided by the shape without contact
alone, and it fails where edges have to turn by 180 degrees on the way. Here a robot takes steps of implicit Euler, each
from rest, that are short at first, so that it comes down onto what it touches, and grow where little happens
(pseudo-transient continuation: Kelley and Keyes, 1998). The search for the equilibrium goes on from there.
"""

from __future__ import annotations

import dataclasses

import torch

from torchdismech.errors import Status
from torchdismech.integrate.gradients.gradient import differentiable_step
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.schemes import ImplicitEuler
from torchdismech.robot.state import Control, State

__all__ = ["settled", "settled_step"]

MAX_STEPS = 200  # steps on the way to an equilibrium
# Iterations on the way, in all: as many as this, or this many times those that a search may take. A rope that comes to
# lie on another takes 100, a cloth on a ball 1,500; what rolls off a ball and falls for good takes any number.
MAX_ITERATIONS, PATIENCE = 2000, 10
ITERATIONS = 30  # of Newton's method, at most, in one of these steps
REACH = 0.5  # of the smallest contact radius: how far robots move in their first step
GROWTH, CAREFUL = 2.0, 1.2  # factors by which steps grow: before a step has failed, and from then on
CLAMPS = 4.0  # times the motion of the first step: how far clamps move in a step
# Of the way that the first forces would move a robot in a step: where it moves less, the equilibrium is searched for.
STILL = 0.01
SHORTEST, LONGEST = 1e-7, 1e3  # s: limits of a step
LEAST_ACCELERATION = 0.1  # m/s^2: the least that counts as the acceleration by the first forces


def settled_step(problem: StepProblem, touching: bool = True) -> tuple[State, StepInfo]:
    """Return the equilibria of robots and how they were found; robots for which the search fails settle.

    Parameters
    ----------
    touching : whether only robots that may touch something settle; else others do, too, but for those that spent
        `max_iterations`.
    """
    after, info = differentiable_step(problem)
    failed = problem.running & ~info.converged
    if problem.model.contact.none:
        failed = torch.zeros_like(failed) if touching else failed & (info.status != Status.MAX_ITERATIONS)
    return settled(problem.replace(running=failed), after, info) if bool(failed.any()) else (after, info)


def settled(problem: StepProblem, after: State, info: StepInfo) -> tuple[State, StepInfo]:
    """Return `after` and `info` with those of the running robots replaced, which settle one by one.

    Robots whose state is not finite are left as they are.

    Parameters
    ----------
    after, info : the equilibria of the other robots, and how searches ended.
    """
    running = problem.running & problem.state.finite()
    rows = [slice(k, k + 1) for k in range(len(running))]
    states, reports = [after.rows(row) for row in rows], [info.rows(row) for row in rows]
    parts = problem.model.parts(problem.state, problem.control, 1)
    for robot in running.nonzero().flatten().tolist():
        values, state, control = parts[robot]
        robot_problem = problem.replace(state=state, control=control, running=running[robot : robot + 1])
        values = problem.values | values
        with values.in_place():
            states[robot], reports[robot] = _settled(robot_problem.replace(values=values), reports[robot])
    return State.joined(states), StepInfo.joined(reports)


def _settled(problem: StepProblem, search_info: StepInfo) -> tuple[State, StepInfo]:
    """Return the equilibrium at which a single robot comes to rest, and how that went.

    Where none is found the robot stays where it is, and the report is that of the search before.

    Parameters
    ----------
    search_info : report of the search before, which failed.
    """
    after, info, descent = problem.state, search_info, _Descent(problem)
    while (pause := descent.next_pause()) is not None:
        start = pause.replace(q=problem.model.unknowns.with_held(pause.q, problem.clamped_q), time=problem.state.time)
        equilibrium, info = differentiable_step(problem.replace(state=start))
        descent.count(info)
        if bool(info.converged.all()):
            after = equilibrium
            break
    else:
        info = search_info
    return after, dataclasses.replace(info, iterations=search_info.iterations + descent.iterations)


class _Descent:
    """The way of a robot to its rest, in steps from rest to rest.

    Attributes
    ----------
    at : the state that it has come to.
    reach : how far it moves in the first step [m].
    acceleration : of its fastest node by the first forces [m/s^2].
    dt, first : length of the next step, and of the first [s].
    growth : factor by which steps grow.
    still : part of the way by the first forces; where the robot moves less, the equilibrium is searched for.
    steps, iterations, most : steps so far, Newton iterations so far, and the limit of these.
    """

    def __init__(self, problem: StepProblem):
        self.problem, self.at = problem, _at_rest(problem.state)
        self.reach = REACH * float(problem.model.body.smallest_contact_radius())
        self.acceleration = _first_acceleration(problem)
        self.dt = min(max((2 * self.reach / self.acceleration) ** 0.5, SHORTEST), LONGEST)
        self.first, self.growth, self.still, self.steps = self.dt, GROWTH, STILL, 0
        self.iterations = torch.zeros_like(problem.running, dtype=torch.long)
        self.most = max(MAX_ITERATIONS, PATIENCE * problem.method.max_iterations)

    def count(self, info: StepInfo) -> None:
        """Count the iterations of a step, or of a search for the equilibrium, on the way."""
        self.iterations = self.iterations + info.iterations

    @torch.no_grad()
    def next_pause(self) -> State | None:
        """Return the next state in which the robot hardly moves, or None if none is found in time.

        Each time it has to move less.
        """
        while self.steps < MAX_STEPS and self.dt > SHORTEST and int(self.iterations) < self.most:
            self.steps += 1
            moved, arrived = self._step()
            if moved is None:
                continue
            if not arrived:
                self.dt = min(self.growth * self.dt, self.first)
                continue
            paused = self.dt >= LONGEST or moved < self.still * 0.5 * self.acceleration * self.dt**2
            self.dt = min(self.growth * self.dt, LONGEST)
            if paused:
                self.still *= 0.1
                return self.at
        return None

    def _step(self) -> tuple[float | None, bool]:
        """Take a step; return how far a node moved [m], None where it failed, and whether all clamps have arrived."""
        problem, dt = self.problem, self.dt
        tolerance = float(problem.method.tolerance(torch.zeros_like(self.at.time)))
        euler = ImplicitEuler(dt, tolerance, max_iterations=ITERATIONS)
        way = CLAMPS * self.reach * min(1.0, dt / self.first)
        start, control = self.at.replace(time=problem.state.time - dt), _with_clamps_nearer(problem, self.at, way)
        after, info = differentiable_step(problem.replace(method=euler, dt=dt, state=start, control=control))
        self.count(info)
        if not bool(info.converged.all()):
            self.dt, self.growth = 0.25 * dt, CAREFUL
            return None, False
        moved = float((after.q - self.at.q)[:, : 3 * problem.model.body.n_nodes].abs().max())
        self.at = _at_rest(after)
        assert control.clamped_q is not None
        return moved, torch.equal(control.clamped_q, problem.clamped_q)


def _with_clamps_nearer(problem: StepProblem, at: State, most: float) -> Control:
    """Return the control with clamps moved towards their targets by at most so many metres."""
    way = problem.model.unknowns.with_held(torch.zeros_like(at.q), problem.clamped_q - at.q)
    share = (most / way.abs().amax(1, keepdim=True)).clamp(max=1.0)
    return problem.control.replace(clamped_q=torch.where(share < 1, at.q + share * way, problem.clamped_q))


def _at_rest(state: State) -> State:
    zero = torch.zeros_like(state.q)
    return state.replace(velocity=zero, acceleration=zero)


@torch.no_grad()
def _first_acceleration(problem: StepProblem) -> float:
    """Return the largest acceleration [m/s^2] of a node under the present forces, `LEAST_ACCELERATION` at least."""
    model, state = problem.model, problem.state
    equations = problem.replace(control=problem.control.replace(clamped_q=None)).equations(
        model.contact.may_touch_at(state.q)
    )
    mass = model.body.mass[..., model.unknowns.index]
    force = equations.residual(model.unknowns.of_dofs(state.q)).abs()
    nodes = (mass.reshape(-1, mass.shape[-1])[0] > 0) & (model.unknowns.index < 3 * model.body.n_nodes)
    return max(float(torch.where(nodes, force / mass, 0.0).max()), LEAST_ACCELERATION)

"""Steps of chains of rigid elements: stiff Runge-Kutta methods, the control held over a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchdismech.errors import (
    InputError,
    Status,
    check_choice,
    ends_in_words,
    positive_number,
    refuse_unstepped,
    truth,
    whole_number,
)
from torchdismech.model.reduced import report_failures
from torchdismech.rigid.adjoint import differentiable
from torchdismech.rigid.chain import RigidChain
from torchdismech.rigid.newton import solved
from torchdismech.rigid.stages import Stages
from torchdismech.rigid.state import ChainState
from torchdismech.rigid.tableau import StageBlock, radau_iia, sdirk2
from torchdismech.robot.state import Control, control_of, running_robots
from torchdismech.system.uncompiled import uncompiled
from torchdismech.trainable import refuse_trained_out_of_bounds

__all__ = ["ChainIntegrator", "ChainStepInfo", "Radau", "Sdirk2", "chain_integrator"]

Schedule = Callable[[Tensor, RigidChain], Control]

# [rad]; chains of 30 soft elements do not reach 1e-7 in float32
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-6}
NEAR_LOCK = 0.2  # [rad] a step that fails nearer than this to an angle of 90 degrees about y is reported as GIMBAL_LOCK


@dataclass(frozen=True, eq=False)
class ChainStepInfo:
    """How the step of each robot went; every field is (B,).

    Attributes
    ----------
    status : `Status` values.
    iterations : Newton iterations, over all parts and attempts.
    residual : largest change of an angle in the last iteration of a part [rad].
    substeps : number of equal parts the step was taken in.
    contact : always empty.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    substeps: Tensor
    contact: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return how many robots ended with which status, and their iterations, but no tensors."""
        return f"{type(self).__name__}({ends_in_words(self.status, self.iterations)})"

    @property
    def converged(self) -> Tensor:
        """Robots whose step did not fail, bool (B,), also those that were not to step."""
        return self.status == Status.CONVERGED


class ChainIntegrator:
    """One step for every chain of a batch, in equal parts of h; the control is held over the step.

    Parameters
    ----------
    dt : step, over which the control is held [s].
    h : length of the equal parts in which the step is taken [s]; by default dt, one part.
    tolerance : Newton's method ends where its next iteration would change no angle by more than this [rad]; by default
        1e-10 for chains in torch.float64 and 1e-6 in torch.float32, whose rounding is larger.
    max_iterations : of Newton's method, for each part.
    max_substeps : robots whose step fails try again in 2, 4, ... up to this many times as many parts; 0 or 1 turns
        that off.

    Raises
    ------
    InputError
        A number out of its range; h above dt, or no whole part of it.
    """

    blocks: tuple[StageBlock, ...]

    def __init__(
        self,
        dt: float,
        h: float | None = None,
        tolerance: float | None = None,
        max_iterations: int = 30,
        max_substeps: int = 0,
    ):
        dt = positive_number(dt, "dt", "a number of seconds above 0")
        h = dt if h is None else positive_number(h, "h", "a number of seconds above 0")
        tolerance = None if tolerance is None else positive_number(tolerance, "tolerance")
        parts = round(dt / h)
        if h > dt or abs(parts * h - dt) > 1e-9 * dt:
            raise InputError(f"h: expected a whole part of dt = {dt:g} s, over which the control is held, got {h:g} s")
        self.dt, self.parts = dt, parts
        self.tolerance, self.max_iterations = tolerance, whole_number(max_iterations, "max_iterations")
        self.max_substeps = whole_number(max_substeps, "max_substeps", least=0)

    def __repr__(self) -> str:
        """Return the kind of steps and their length, but no other options."""
        return f"{type(self).__name__}(dt={self.dt:g})"

    @uncompiled
    def step(
        self,
        model: RigidChain,
        state: ChainState,
        control: Control | None = None,
        running: Tensor | None = None,
        throw: bool = False,
    ) -> tuple[ChainState, ChainStepInfo]:
        """Return the state after one step and how it went.

        A robot whose step fails keeps the state it had; the others go on. Where autograd records, the new state can be
        differentiated by the state, the control and the model's constants, by implicit differentiation.

        Parameters
        ----------
        control : torques on the joints, `Control.force`.
        running : (B,) bool, robots to step; the others are left alone and reported as converged.
        throw : raise a `SimulationError` that names the failed robots instead of reporting them.
        """
        refuse_unstepped(self, model, RigidChain)
        control, throw = control_of(control), truth(throw, "step: throw")
        running = running_robots(state, running)
        model.check_batch(state, control)
        refuse_trained_out_of_bounds(model)
        after, info = self._attempt(model, state, control, self.parts, running)
        more = 2
        while more <= self.max_substeps and bool((failed := running & ~info.converged).any()):
            retried, retried_info = self._attempt(model, state, control, self.parts * more, failed)
            iterations = info.iterations + retried_info.iterations
            succeeded = failed & retried_info.converged
            pairs = (
                (info.status, retried_info.status),
                (info.residual, retried_info.residual),
                (info.substeps, retried_info.substeps),
            )
            status, residual, substeps = (torch.where(failed, new, old) for old, new in pairs)
            after, info = after.merged(retried, succeeded), ChainStepInfo(status, iterations, residual, substeps)
            more *= 2
        report_failures(info.status, control, state.time, throw)
        return after, info

    def prepare(self, model: RigidChain, state: ChainState, steps: int) -> None:
        """Do nothing: chains need no preparation before a run."""

    def sample(self, schedule: Schedule, state: ChainState, model: RigidChain) -> Control:
        """Return the control that `schedule` sets for the step from `state`: that at the start of the step."""
        return schedule(state.time, model)

    def _attempt(
        self, model: RigidChain, state: ChainState, control: Control, parts: int, running: Tensor
    ) -> tuple[ChainState, ChainStepInfo]:
        """Return the state after a step in `parts` equal parts, and how it went."""
        h, tolerance = self.dt / parts, TOLERANCES[model.dtype] if self.tolerance is None else self.tolerance
        dynamics = model.dynamics()
        q, velocity, acceleration = (x.t().contiguous()[:, None] for x in (state.q, state.velocity, state.acceleration))
        force = torch.zeros_like(q) if control.force is None else control.force.t().contiguous()[:, None]
        with torch.no_grad():
            sound = torch.isfinite(q + velocity + acceleration + force).all(0)[0]
        status = torch.where(running & ~sound, int(Status.NOT_FINITE), int(Status.CONVERGED))
        going = running & sound
        acceleration = torch.where(sound, acceleration, 0.0)
        iterations, residual = torch.zeros_like(status), torch.zeros_like(state.time)
        stages: list[tuple[Tensor, Tensor]] = []
        for _ in range(parts):
            stages.clear()
            for block in self.blocks:
                known_v, known_q = velocity, q
                for k, (v, a) in enumerate(stages):
                    gain = h * block.before[:, k].item()
                    known_v, known_q = known_v + gain * a, known_q + gain * v
                count = len(block.times)
                known_v, known_q = known_v.expand(-1, count, -1), known_q.expand(-1, count, -1)
                problem = Stages(block, h, dynamics, known_v, known_q, force)
                root = solved(problem, acceleration.detach(), going, tolerance, self.max_iterations)
                failed = going & (root.status != Status.CONVERGED)
                status = torch.where(failed, _status_at_lock(model, q, root.status), status)
                going = going & (root.status == Status.CONVERGED)
                iterations, residual = iterations + root.iterations, torch.maximum(residual, root.change)
                accelerations = differentiable(problem, root, going)
                stage_q, stage_velocity = problem.at(accelerations)
                acceleration = accelerations[:, -1:]
                stages.append((stage_velocity[:, -1:], acceleration))
            q, velocity = stage_q[:, -1:], stage_velocity[:, -1:]
            if not bool(going.any()):
                break
        time = torch.where(going, state.time + self.dt, state.time)
        ends = ((state.q, q), (state.velocity, velocity), (state.acceleration, acceleration))
        end_q, end_velocity, end_acceleration = (torch.where(going[:, None], new[:, 0].t(), old) for old, new in ends)
        info = ChainStepInfo(status, iterations, residual, torch.full_like(status, parts))
        return model.state(end_q, end_velocity, end_acceleration, time), info


def _status_at_lock(model: RigidChain, q: Tensor, status: Tensor) -> Tensor:
    """Return the status (B,) of failed robots: GIMBAL_LOCK where the angles q (J, 1, B) are near it, else `status`."""
    if not model.space:
        return status
    about_y = q.detach()[2::3, 0]  # the second of each joint's three angles, about z, y and x
    locked = (about_y.cos().abs() < NEAR_LOCK).any(0)
    return torch.where(locked, int(Status.GIMBAL_LOCK), status)


class Radau(ChainIntegrator):
    """Radau IIA: order 5, three stages solved together; the accurate choice, and cheap at h = 5 to 10 ms.

    Where chains in space vibrate fast at large angles, steps may have to be far shorter: set `max_substeps`
    (docs/rigid_elements.md).

    Parameters as for `ChainIntegrator`.
    """

    blocks = radau_iia()


class Sdirk2(ChainIntegrator):
    """Two implicit stages one after the other, order 2, cheap; h = 2 ms suits cables.

    Parameters as for `ChainIntegrator`.
    """

    blocks = sdirk2()


INTEGRATORS = {"radau": Radau, "sdirk2": Sdirk2}


def chain_integrator(name: str, dt: float, **settings: Any) -> ChainIntegrator:
    """Return the integrator of this name, "radau" or "sdirk2"; further parameters as for `ChainIntegrator`."""
    check_choice("integrator", name, INTEGRATORS)
    return INTEGRATORS[name](dt, **settings)

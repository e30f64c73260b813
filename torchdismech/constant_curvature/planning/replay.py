"""Plans replayed in the simulator: its steps and contact law, with the forces of the plan."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.planning.ball import Ball
from torchdismech.constant_curvature.planning.plan import Plan
from torchdismech.constant_curvature.planning.rotation import refuse_other_models
from torchdismech.constant_curvature.planning.turning import TurningBall
from torchdismech.contact import Complementarity, Friction, Obstacle, Sphere
from torchdismech.errors import InputError, positive_number, refuse_other_kind
from torchdismech.robot.state import Control

__all__ = ["Replay", "angle_between", "replay"]


@dataclass(frozen=True, eq=False)
class Replay:
    """The motion that the simulator finds for a plan's forces, at the plan's times.

    Attributes
    ----------
    times : (N + 1,) [s].
    q : (N + 1, n) elongations of the chambers [m].
    orientation, spin : (N + 1, 4) quaternions and (N + 1, 3) angular velocities of the ball [rad/s].
    contact_force : (N, 3) force of the ball on the arm, mean over each of the plan's steps [N].
    """

    times: Tensor
    q: Tensor
    orientation: Tensor
    spin: Tensor
    contact_force: Tensor

    @property
    def angle(self) -> float:
        """Angle between the ball's first and last orientation [rad]."""
        return angle_between(self.orientation[0], self.orientation[-1])

    def difference(self, plan: Plan) -> float:
        """Return the angle between the ball's last orientation here and in the plan [rad]."""
        return angle_between(plan.orientation[-1], self.orientation[-1])


def angle_between(a: Tensor, b: Tensor) -> float:
    """Return the angle of the rotation between two orientations (4,), from 0 to pi [rad]."""
    a, b = a / a.norm(), b / b.norm()
    b = b * (-1.0 if float(a @ b) < 0 else 1.0)
    return 4 * math.atan2(float((a - b).norm()), float((a + b).norm()))


def replay(
    arm: PneumaticArm, ball: Ball, plan: Plan, *, dt: float = 2e-3, gain: float = 0.0, progress: bool = False
) -> Replay:
    """Return the motion of arm and ball in the simulator under a plan's forces, from the plan's first state.

    Parameters
    ----------
    arm, ball : those of the plan. All plates of the arm may touch the ball.
    dt : step of the simulator [s]; a whole number of them makes a step of the plan.
    gain : of a proportional feedback that pulls the elongations to those of the plan [N/m]; 0 replays open loop.
    progress : show a progress bar.

    Raises
    ------
    InputError
        A step that does not divide the plan's, a gain below zero, an arm with obstacles or other chambers.
    SimulationError
        A step of the simulator failed.
    """
    refuse_other_models("replay", arm, ball)
    refuse_other_kind("replay: plan", plan, Plan, "a Plan")
    dt, gain = positive_number(dt, "dt"), positive_number(gain, "gain", or_zero=True)
    parts = round(plan.step / dt)
    if parts < 1 or not math.isclose(parts * dt, plan.step, rel_tol=1e-9):
        raise InputError(f"dt: expected a step that divides the plan's, {plan.step:g} s, got {dt!r}")
    if plan.q.shape[1] != arm.n_dofs:
        raise InputError(f"replay: expected the plan's arm, of {plan.q.shape[1]} chambers, got one of {arm.n_dofs}")
    from tqdm import tqdm

    arm_and_ball = _with_ball(arm, ball)
    state = arm_and_ball.initial_state(1, q=plan.q[0], velocity=plan.velocity[0])
    orientation, spin = (x[:1].to(state.q) for x in (plan.orientation, plan.spin))
    q, turns, spins, forces = [state.q[0]], [orientation[0]], [spin[0]], []
    with torch.no_grad():
        for number, planned_force in enumerate(tqdm(plan.force.to(state.q), desc="replay", disable=not progress)):
            total = torch.zeros_like(spin[0])
            for part in range(1, parts + 1):
                goal = torch.lerp(plan.q[number], plan.q[number + 1], part / parts).to(state.q)
                control = Control(force=planned_force + gain * (goal - state.q))
                state, turning, info = TurningBall(dt, ball, spin).step_both(arm_and_ball, state, orientation, control)
                orientation, spin = turning.orientation, turning.spin
                total = total + info.contact["force/ball"][0] / parts
            q.append(state.q[0])
            turns.append(orientation[0])
            spins.append(spin[0])
            forces.append(total)
    tensors = (torch.stack(x).double().cpu() for x in (q, turns, spins, forces))
    return Replay(plan.times, *tensors)


def _with_ball(arm: PneumaticArm, ball: Ball) -> PneumaticArm:
    """Return a copy of the arm whose only obstacle is the ball."""
    twin = copy.deepcopy(arm)
    shape = Sphere(
        torch.tensor(list(ball.center), dtype=arm.dtype, device="cpu"),
        torch.tensor(ball.radius, dtype=arm.dtype, device="cpu"),
    )
    obstacle = Obstacle(shape, Complementarity(), Friction(ball.friction), name="ball")
    twin.obstacles = nn.ModuleList([obstacle]).to(arm.device)  # type: ignore[assignment]
    return twin

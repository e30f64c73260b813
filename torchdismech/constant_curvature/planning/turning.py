r"""Steps of arms against a ball that turns about its fixed centre: the simulator's contact law, without CasADi.

The ball's spin w is an unknown of the contact problem beside the arm's velocities. At the contacts the ball's surface
moves by w x r, r = radius times the normal. So A w_free is added to the relative velocities, A = [r]x in the contacts'
frames, and A A^T / (I + h D) to W, with the damping D at the end of the step:

    (I + h D) w+ = I w + A^T p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.contacts import Contacts, contact_frames, contacts_at
from torchdismech.constant_curvature.info import ArmStepInfo
from torchdismech.constant_curvature.integrate import ArmIntegrator
from torchdismech.constant_curvature.planning.ball import Ball
from torchdismech.constant_curvature.state import ArmState
from torchdismech.geometry.quaternions import product
from torchdismech.robot.state import Control

__all__ = ["BallState", "TurningBall", "turned"]


@dataclass(frozen=True, eq=False)
class BallState:
    """Orientations (B, 4) of B balls, quaternions (w, x, y, z), and spins (B, 3) along the world's axes [rad/s]."""

    orientation: Tensor
    spin: Tensor


class TurningBall(ArmIntegrator):
    """One step of arms and of a ball that is their only obstacle.

    Parameters
    ----------
    dt : step [s].
    ball : gives radius, inertia and damping.
    spin : (B, 3) the ball's angular velocity at the start of the step [rad/s].
    """

    def __init__(self, dt: float, ball: Ball, spin: Tensor):
        super().__init__(dt)
        self.ball, self.spin = ball, spin

    @property
    def _inertia(self) -> float:
        """I + h D [kg m^2]."""
        return self.ball.inertia + self.dt * self.ball.damping

    def _free_spin(self) -> Tensor:
        """Return the spin (B, 3) at the end of the step without contact."""
        return self.spin * (self.ball.inertia / self._inertia)

    def _with_yielding_obstacles(
        self, delassus: Tensor, relative: Tensor, frames: Tensor, contacts: Contacts
    ) -> tuple[Tensor, Tensor]:
        turning = self._turning(frames, contacts)
        relative = relative + (turning @ self._free_spin()[:, None, :, None])[..., 0]
        turning = turning.flatten(1, 2)
        return delassus + turning @ turning.mT / self._inertia, relative

    def _turning(self, frames: Tensor, contacts: Contacts) -> Tensor:
        """Return A (B, K, 3, 3), the derivatives of relative velocities at contacts by the ball's spin."""
        lever = self.ball.radius * contacts.normal
        # the rows f of the frames times [lever]x are f x lever
        return torch.linalg.cross(frames, lever[..., None, :].expand_as(frames))

    def step_both(
        self, model: PneumaticArm, state: ArmState, turn: Tensor, control: Control
    ) -> tuple[ArmState, BallState, ArmStepInfo]:
        """Return arms and balls after the step, and how it went; `turn` (B, 4) is the balls' orientation before.

        Raises
        ------
        SimulationError
            The step of an arm failed.
        """
        after, info = self.step(model, state, control, throw=True)
        assert info.plates is not None  # the ball is an obstacle
        contacts = contacts_at(model, model.posture(state.q), state.time, state.time)
        turning = self._turning(contact_frames(contacts.normal), contacts)
        spin_change = (turning.mT @ info.plates.impulse[..., None])[..., 0].sum(1) / self._inertia
        spin = self._free_spin() + spin_change
        return after, BallState(turned(turn, self.dt * spin), spin), info


def turned(orientation: Tensor, rotation: Tensor) -> Tensor:
    """Return quaternions (B, 4) turned by rotation vectors (B, 3) along the world's axes."""
    half = 0.5 * rotation
    angle = torch.linalg.vector_norm(half, dim=-1, keepdim=True)
    return product(torch.cat([angle.cos(), torch.sinc(angle / torch.pi) * half], 1), orientation)

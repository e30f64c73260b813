"""The equations of a block of Runge-Kutta stages, their matrices and derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.rigid.dynamics import Dynamics, Factor
from torchdismech.rigid.tableau import StageBlock

__all__ = ["Linearised", "Stages"]


@dataclass(frozen=True)
class Stages:
    """The equations of a block of s stages in a part h of a step, whose unknowns are the accelerations a.

    With v = V + h A a and q = Q + h A v, the residual of the equations of motion is zero at each stage.

    Attributes
    ----------
    velocity, q : V and Q (J, s, B).
    force : (J, 1, B) torques on the joints, held over the step.
    """

    block: StageBlock
    h: float
    dynamics: Dynamics
    velocity: Tensor
    q: Tensor
    force: Tensor

    @property
    def angle_per_acceleration(self) -> float:
        """Largest angle by which accelerations of 1 rad/s^2 turn a joint up to any stage: the norm of h^2 A^2 [s^2]."""
        return self.h**2 * float(abs(self.block.within @ self.block.within).sum(1).max())

    def coefficients(self) -> Tensor:
        """Return h A (s, s)."""
        return self.h * torch.from_numpy(self.block.within).to(self.q)

    def at(self, acceleration: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and velocity of the stages (J, s, B)."""
        gain = self.coefficients()
        velocity = self.velocity + gain @ acceleration
        return self.q + gain @ velocity, velocity

    def residual(self, acceleration: Tensor) -> Tensor:
        """Return the residual (J, s, B) of the equations of motion [N m]."""
        q, velocity = self.at(acceleration)
        return self.dynamics.residual(self.dynamics.chain.at(q), q, velocity, acceleration, self.force)

    def factor(self, acceleration: Tensor) -> Factor:
        """Return the factored M + x D + x^2 K for x = h lambda, with eigenvalues lambda of A and M at the middle."""
        middle = self.at(acceleration)[0][:, self.block.middle, None]
        values = torch.from_numpy(self.h * self.block.eigenvalues).to(middle.device)
        values = (values.real.to(middle) if self.block.real else values.to(middle.dtype.to_complex()))[:, None]
        dynamics = self.dynamics
        return dynamics.chain.at(middle).factor(values * (dynamics.damping + values * dynamics.stiffness))

    def rows(self, index: Tensor) -> Stages:
        """Return the stages of the robots that `index` selects."""
        tensors = (_rows(x, index) for x in self.dynamics.tensors())
        motion = (_rows(x, index) for x in (self.velocity, self.q, self.force))
        dynamics = self.dynamics.with_tensors(tuple(tensors))
        return Stages(self.block, self.h, dynamics, *motion)

    def matrix(self, acceleration: Tensor) -> Tensor:
        """Return the exact matrix dr/da (B, n, n) of n = J s unknowns each, dense."""
        joints, stages, batch = acceleration.shape
        count = joints * stages
        robots = torch.arange(batch, device=acceleration.device).repeat_interleave(count)
        unit = torch.eye(count, dtype=acceleration.dtype, device=acceleration.device).repeat(1, batch)
        products = Linearised(self.rows(robots), acceleration[..., robots]).pulled_back(unit.view(joints, stages, -1))[
            0
        ]
        return products.reshape(count, batch, count).permute(1, 2, 0)


class Linearised:
    """The exact derivatives of the residual at given accelerations, by their products with vectors.

    Attributes
    ----------
    q, velocity : (J, s, B) of the stages.
    """

    def __init__(self, stages: Stages, acceleration: Tensor):
        self.stages = stages
        self.q, self.velocity = stages.at(acceleration)
        self.motion = stages.dynamics.chain.motion(self.q, self.velocity, acceleration)

    def pulled_back(self, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the products (J, s, B) of a vector with the residual's derivatives by a, V and Q."""
        dynamics, gain = self.stages.dynamics, self.stages.coefficients().t()
        by_q, by_velocity, by_acceleration = self.motion.pulled_back(multiplier)
        by_q = torch.addcmul(by_q, dynamics.stiffness, multiplier)
        by_velocity = torch.addcmul(by_velocity, dynamics.damping, multiplier) + gain @ by_q
        return by_acceleration + gain @ by_velocity, by_velocity, by_q

    def by_constants(self, multiplier: Tensor, wanted: list[bool]) -> list[Tensor | None]:
        """Return the products of a vector with the residual's derivatives by the constants, where wanted."""
        *of_chain, of_stiffness, of_damping = wanted
        gradients: list[Tensor | None] = [None] * len(of_chain)
        if any(of_chain):
            gradients = self.motion.by_constants(multiplier, of_chain)
        dynamics = self.stages.dynamics
        for needed, motion, constant in (
            (of_stiffness, self.q, dynamics.stiffness),
            (of_damping, self.velocity, dynamics.damping),
        ):
            gradients.append((multiplier * motion).sum(1, keepdim=True).sum_to_size(constant.shape) if needed else None)
        return gradients


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the columns `index` of a tensor (.., B); one (.., 1), which all robots share, comes back unchanged."""
    return x if x.dim() < 3 or x.shape[-1] == 1 else x[..., index]

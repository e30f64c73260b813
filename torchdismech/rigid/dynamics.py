"""Equations of motion of chains with springs and dampers, batch last."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.rigid.compiled import CompiledFactor, serves
from torchdismech.rigid.planar import Planar, PlanarFactor, PlanarPosture
from torchdismech.rigid.spatial import Spatial, SpatialFactor, SpatialPosture
from torchdismech.solve.linear import solved_at_root

__all__ = ["Dynamics", "Factor", "Posture", "accelerations"]

Factor = PlanarFactor | SpatialFactor | CompiledFactor
Posture = PlanarPosture | SpatialPosture


@dataclass(frozen=True)
class Dynamics:
    """Chains and their springs: residual M(q) q'' + C q' + g + K q + D q' - tau.

    Attributes
    ----------
    stiffness, damping : (J, 1, B or 1), zero at the active joint.
    """

    chain: Planar | Spatial
    stiffness: Tensor
    damping: Tensor

    def springs(self, q: Tensor, velocity: Tensor) -> Tensor:
        """Return K q + D q' (J, S, B), the torques that it takes to move springs and dampers [N m]."""
        return torch.addcmul(self.stiffness * q, self.damping, velocity)

    def residual(self, posture: Posture, q: Tensor, velocity: Tensor, acceleration: Tensor, force: Tensor) -> Tensor:
        """Return the residual (J, S, B) of the equations of motion [N m]; `posture` is that at q."""
        return posture.torque(velocity, acceleration) + self.springs(q, velocity) - force

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the constants of the chains, then stiffness and damping."""
        return (*self.chain.tensors(), self.stiffness, self.damping)

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Dynamics:
        """Return a copy with other constants, in the order of `tensors`."""
        *chain, stiffness, damping = tensors
        return Dynamics(self.chain.with_tensors(tuple(chain)), stiffness, damping)


def accelerations(dynamics: Dynamics, q: Tensor, velocity: Tensor, force: Tensor) -> Tensor:
    """Return q'' (J, 1, B) under a force, by articulated bodies.

    Where autograd records, derivatives come from implicit differentiation of the residual, so that the recursion over
    the bodies is not recorded.
    """
    if not torch.is_grad_enabled() and serves(q):
        return dynamics.chain.at(q).compiled.acceleration(q, velocity, force, dynamics.stiffness, dynamics.damping)
    with torch.no_grad():
        posture = dynamics.chain.at(q)
        factor = posture.factor()
        acceleration = factor.solve(-dynamics.residual(posture, q, velocity, torch.zeros_like(q), force))
    if not torch.is_grad_enabled():
        return acceleration
    residual = dynamics.residual(dynamics.chain.at(q), q, velocity, acceleration, force)
    return (
        acceleration - solved_at_root(factor.solve, factor.solve, residual) if residual.requires_grad else acceleration
    )

r"""The force between two surfaces, from their gap, their normal and how they slide.

    F = N n - mu N gamma(|v_t|) v_t / |v_t|,    N = -dphi/dd,    v_t = v - (n . v) n

acts on the body, its opposite on what is touched; d is the gap, n = dd/dx the normal towards the body and v the
body's relative velocity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdismech.contact.response import Complementarity, Friction, Potential, Response, of_robots
from torchdismech.errors import InputError

__all__ = ["ConstraintLaw", "ContactLaw", "LawConstants", "law_of"]


@dataclass(frozen=True)
class LawConstants:
    """The constants of a law for each contact, broadcasting against the gaps."""

    stiffness: Tensor
    tolerance: Tensor
    friction: tuple[Tensor, Tensor] | None  # coefficient and slip velocity

    def at(self, robot: Tensor) -> LawConstants:
        """Return the constants of single contacts (A,), of the robots with these numbers; () stay as they are."""
        friction = None if self.friction is None else tuple(of_robots(v, robot) for v in self.friction)
        return LawConstants(of_robots(self.stiffness, robot), of_robots(self.tolerance, robot), friction)  # type: ignore[arg-type]


class ConstraintLaw(nn.Module):
    """No overlap, and the friction that goes with it (None: smooth), as constraints: see `contact.constraints`."""

    def __init__(self, response: Complementarity, friction: Friction | None = None):
        super().__init__()
        if friction is not None and friction.slip_velocity is not None:
            raise InputError("Friction.slip_velocity: Complementarity does not smooth friction; leave it out")
        self.response = response
        self.friction = friction


class ContactLaw(nn.Module):
    """A normal response by a potential and the friction that goes with it (None: smooth)."""

    response: Potential

    def __init__(self, response: Potential, friction: Friction | None = None):
        super().__init__()
        if friction is not None and friction.slip_velocity is None:
            raise InputError(
                f"Friction.slip_velocity: {type(response).__name__} needs one, the velocity [m/s] at which friction "
                "has its full size"
            )
        self.response = response
        self.friction = friction

    @property
    def constants(self) -> LawConstants:
        """The law's constants as they are now, each () or (B, 1)."""
        if self.friction is None:
            return LawConstants(self.response.stiffness, self.response.tolerance, None)
        assert self.friction.slip_velocity is not None
        friction = (self.friction.coefficient, self.friction.slip_velocity)
        return LawConstants(self.response.stiffness, self.response.tolerance, friction)

    def energy(self, gap: Tensor, constants: LawConstants) -> Tensor:
        """Return the potential (..) of the normal force [J]."""
        return self.response.energy(gap, constants.stiffness, constants.tolerance)

    def force(self, gap: Tensor, normal: Tensor, velocity: Tensor, constants: LawConstants) -> Tensor:
        """Return F (.., 3) of gaps (..), normals and relative velocities (.., 3); autograd can follow it."""
        slope, _ = self.response.derivatives(gap, constants.stiffness, constants.tolerance)
        load = -slope.unsqueeze(-1)
        if constants.friction is None:
            return load * normal
        coefficient, slip_velocity = constants.friction
        sliding = velocity - _dot(velocity, normal) * normal
        ratio, _ = self.response.slipping(_speed(sliding).squeeze(-1), slip_velocity)
        return load * (normal - (coefficient * ratio).unsqueeze(-1) * sliding)

    def force_and_derivatives(
        self, gap: Tensor, normal: Tensor, curvature: Tensor, velocity: Tensor, constants: LawConstants
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return F (.., 3), dF/dx and dF/dvelocity (.., 3, 3); the last is None without friction.

        `curvature` (.., 3, 3) is dn/dx, symmetric [1/m].
        """
        force, by_gap, by_normal, by_velocity = self.force_and_partials(gap, normal, velocity, constants)
        return force, by_normal @ curvature + _outer(by_gap, normal), by_velocity

    def force_and_partials(
        self, gap: Tensor, normal: Tensor, velocity: Tensor, constants: LawConstants
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return F and dF/dd (.., 3), dF/dn and dF/dvelocity (.., 3, 3); the last is None without friction."""
        slope, stiffness = self.response.derivatives(gap, constants.stiffness, constants.tolerance)
        load = -slope.unsqueeze(-1)
        force, by_gap = load * normal, -stiffness.unsqueeze(-1) * normal
        unit = torch.eye(3, dtype=gap.dtype, device=gap.device)
        by_normal = load.unsqueeze(-1) * unit
        if constants.friction is None:
            return force, by_gap, by_normal, None
        mu, slip_velocity = constants.friction[0].unsqueeze(-1), constants.friction[1]
        along = _dot(velocity, normal)
        sliding = velocity - along * normal
        speed = _speed(sliding)
        ratio, rise = (k.unsqueeze(-1) for k in self.response.slipping(speed.squeeze(-1), slip_velocity))
        by_gap = by_gap + stiffness.unsqueeze(-1) * mu * ratio * sliding
        direction = sliding / torch.where(speed > 0, speed, 1.0)
        # dF/dv_t, then v_t by the normal and by the velocity (projected)
        by_sliding = -(mu * load).unsqueeze(-1) * (
            ratio.unsqueeze(-1) * unit + (rise - ratio).unsqueeze(-1) * _outer(direction, direction)
        )
        by_normal = by_normal - by_sliding @ (along.unsqueeze(-1) * unit + _outer(normal, velocity))
        by_velocity = by_sliding @ (unit - _outer(normal, normal))
        return force - mu * load * ratio * sliding, by_gap, by_normal, by_velocity


def law_of(response: Response, friction: Friction | None) -> ContactLaw | ConstraintLaw:
    """Return the law of a response with friction."""
    if isinstance(response, Potential):
        return ContactLaw(response, friction)
    if isinstance(response, Complementarity):
        return ConstraintLaw(response, friction)
    raise InputError(f"response: expected Penalty, Barrier or Complementarity, got {type(response).__name__}")


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar products (.., 1)."""
    return (a * b).sum(-1, keepdim=True)


def _speed(v: Tensor) -> Tensor:
    """Return the lengths (.., 1); their gradient at zero is zero."""
    square = _dot(v, v)
    moving = square > 0
    return torch.where(moving, torch.where(moving, square, 1.0).sqrt(), 0.0)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)

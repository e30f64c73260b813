"""How surfaces that come close push each other apart and rub: normal potentials of the gap, and friction."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from torchdismech.errors import InputError
from torchdismech.forces.base import scalar

__all__ = ["Barrier", "Friction", "Penalty", "Response"]

SHARPNESS = 15.0  # K1 delta and K2 v_slip: at the tolerance, and at the slip velocity, exp(-15) = 3e-7 is left


class Response(nn.Module):
    """A potential phi(d) of the gap d between two surfaces, zero where d is the tolerance or more.

    Parameters
    ----------
    stiffness : () or (B, 1) [N/m].
    tolerance : () or (B, 1) [m], the gap at which contact begins.
    """

    per_robot = ("stiffness", "tolerance")
    feasible_only = False  # whether gaps have to stay above zero
    stiffness: Tensor
    tolerance: Tensor

    def __init__(self, stiffness, tolerance):
        super().__init__()
        for name, value in (("stiffness", stiffness), ("tolerance", tolerance)):
            tensor = scalar(value, f"{type(self).__name__}.{name}")
            if not bool((tensor > 0).all()):
                raise InputError(f"{type(self).__name__}.{name}: expected a number above 0, got {value}")
            setattr(self, name, nn.Parameter(tensor, requires_grad=False))

    @abstractmethod
    def energy(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> Tensor:
        """Return phi [J]."""

    @abstractmethod
    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd [N] (negative: repulsive) and d2phi/dd2 [N/m]."""

    @staticmethod
    @abstractmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma(v) / v and dgamma/dv: friction is mu N gamma, gamma rising from 0 at rest to 1 in sliding."""


class Penalty(Response):
    r"""phi = k (log(1 + exp(-K1 d)) / K1)^2 with K1 = 15 / tolerance: a spring of stiffness 2 k with a smooth onset.

    Bodies in contact overlap by what their load needs. Implicit contact model of Tong, Choi, Joo and Jawed (Discrete
    Elastic Rods and Plates with contact, MAT-DiSMech eq. 25).
    """

    def energy(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> Tensor:
        """Return phi [J]."""
        overlap = self._overlap(gap, tolerance)
        return torch.where(gap < tolerance, stiffness * overlap**2, 0.0)

    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd [N] and d2phi/dd2 [N/m]."""
        sharpness = SHARPNESS / tolerance
        overlap, share = self._overlap(gap, tolerance), torch.sigmoid(-sharpness * gap)
        slope = -2 * stiffness * overlap * share
        curvature = 2 * stiffness * (share**2 + overlap * sharpness * share * (1 - share))
        near = gap < tolerance
        return torch.where(near, slope, 0.0), torch.where(near, curvature, 0.0)

    @staticmethod
    def _overlap(gap: Tensor, tolerance: Tensor) -> Tensor:
        """Return how deep the surfaces overlap [m], smoothed."""
        sharpness = SHARPNESS / tolerance
        return softplus(-sharpness * gap, threshold=700.0) / sharpness

    @staticmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma / v and dgamma/dv of gamma = 2 / (1 + exp(-K2 v)) - 1 = tanh(K2 v / 2), K2 = 15 / v_slip."""
        half = 0.5 * SHARPNESS / slip_velocity
        gamma = torch.tanh(half * speed)
        moving = speed > 0
        ratio = torch.where(moving, gamma / torch.where(moving, speed, 1.0), half)
        return ratio, half * (1 - gamma**2)


class Barrier(Response):
    r"""phi = -k (d - tolerance)^2 log(d / tolerance): grows without bound as the gap closes, so surfaces never touch.

    Li et al., Incremental Potential Contact, ACM Trans. Graph. 39, 2020. Needs a line search, and a start without
    overlap.
    """

    feasible_only = True

    def energy(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> Tensor:
        """Return phi [J]; infinite where surfaces overlap."""
        inside, safe = self._inside(gap, tolerance)
        phi = -stiffness * (safe - tolerance) ** 2 * torch.log(safe / tolerance)
        return torch.where(gap > 0, torch.where(inside, phi, 0.0), torch.inf)

    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd [N] and d2phi/dd2 [N/m]; infinite where surfaces overlap."""
        inside, safe = self._inside(gap, tolerance)
        rest, log = safe - tolerance, torch.log(safe / tolerance)
        slope = -stiffness * (2 * rest * log + rest**2 / safe)
        curvature = -stiffness * (2 * log + 4 * rest / safe - (rest / safe) ** 2)
        outside = torch.where(gap > 0, 0.0, torch.inf)
        return torch.where(inside, slope, -outside), torch.where(inside, curvature, outside)

    @staticmethod
    def _inside(gap: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the barrier acts, and gaps that are safe to evaluate everywhere."""
        inside = (gap > 0) & (gap < tolerance)
        return inside, torch.where(inside, gap, tolerance)

    @staticmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma / v and dgamma/dv of gamma = 2 y - y^2 with y = v / v_slip up to 1, then 1."""
        y = speed / slip_velocity
        sticking = y < 1
        sliding = 1 / torch.where(sticking, 1.0, speed)
        return torch.where(sticking, (2 - y) / slip_velocity, sliding), torch.where(
            sticking, 2 * (1 - y) / slip_velocity, 0.0
        )


class Friction(nn.Module):
    """Coulomb friction, smoothed about zero velocity so that a resting contact creeps below `slip_velocity`.

    Parameters
    ----------
    coefficient : mu, () or (B, 1).
    slip_velocity : () or (B, 1) [m/s], at which friction has (nearly) its full size.
    """

    per_robot = ("coefficient", "slip_velocity")
    coefficient: Tensor
    slip_velocity: Tensor

    def __init__(self, coefficient, slip_velocity):
        super().__init__()
        mu, slip = scalar(coefficient, "Friction.coefficient"), scalar(slip_velocity, "Friction.slip_velocity")
        if bool((mu < 0).any()):
            raise InputError(f"Friction.coefficient: expected 0 or more, got {coefficient}")
        if not bool((slip > 0).all()):
            raise InputError(f"Friction.slip_velocity: expected a number above 0, got {slip_velocity}")
        self.coefficient = nn.Parameter(mu, requires_grad=False)
        self.slip_velocity = nn.Parameter(slip, requires_grad=False)

"""How surfaces that come close push each other apart and rub: potentials of the gap or constraints, and friction."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from torchdismech.errors import InputError
from torchdismech.forces.base import scalar
from torchdismech.solve.complementarity import CONTACT_METHODS

__all__ = ["Barrier", "Complementarity", "Friction", "Penalty", "Potential", "Response", "of_robots"]

SHARPNESS = 15.0  # K1 delta and K2 v_slip: at the tolerance, and at the slip velocity, exp(-15) = 3e-7 is left


class Response(nn.Module):
    """What keeps surfaces apart: a `Potential`, or the constraint `Complementarity`."""

    per_robot: tuple[str, ...] = ("tolerance",)
    feasible_only = False  # whether gaps have to stay above zero, between iterations, too
    tolerance: Tensor

    def _set(self, name: str, value) -> None:
        """Make a parameter of a number above 0, () or (B, 1)."""
        tensor = scalar(value, f"{type(self).__name__}.{name}")
        if not bool((tensor > 0).all()):
            raise InputError(f"{type(self).__name__}.{name}: expected a number above 0, got {value}")
        setattr(self, name, nn.Parameter(tensor.clone(), requires_grad=False))


class Complementarity(Response):
    """No overlap, and friction in Coulomb's cone, as constraints that hold at the end of a step.

    The loads come from a complementarity problem in each Newton iteration (see `integrate.constrained`); nothing has to
    be tuned. A normal load is there where surfaces touch only, impacts are inelastic. For `ImplicitEuler`.

    Parameters
    ----------
    tolerance : () or (B, 1) [m], by how much surfaces may overlap, or be apart under load.
    method : of `solve.complementarity.solve_contact`: "interior_point" solves nearly all problems; "fischer_burmeister"
        and "gauss_seidel" solve fewer, the latter needs no factorisation of what many contacts share.
    """

    def __init__(self, tolerance=1e-8, method: str = "interior_point"):
        super().__init__()
        self._set("tolerance", tolerance)
        if method not in CONTACT_METHODS:
            raise InputError(f"Complementarity.method: expected one of {', '.join(CONTACT_METHODS)}, got {method!r}")
        self.method = method


class Potential(Response):
    """A potential phi(d) of the gap d between two surfaces, zero where d is the tolerance or more.

    Parameters
    ----------
    stiffness : () or (B, 1) [N/m].
    tolerance : () or (B, 1) [m], the gap at which contact begins.
    """

    per_robot = ("stiffness", "tolerance")
    stiffness: Tensor

    def __init__(self, stiffness, tolerance):
        super().__init__()
        self._set("stiffness", stiffness)
        self._set("tolerance", tolerance)

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


class Penalty(Potential):
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
        # beyond 40 it is its argument, to rounding; exp(40) overflows in no dtype
        return softplus(-sharpness * gap, 1.0, 40.0) / sharpness

    @staticmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma / v and dgamma/dv of gamma = 2 / (1 + exp(-K2 v)) - 1 = tanh(K2 v / 2), K2 = 15 / v_slip."""
        half = 0.5 * SHARPNESS / slip_velocity
        gamma = torch.tanh(half * speed)
        moving = speed > 0
        ratio = torch.where(moving, gamma / torch.where(moving, speed, 1.0), half)
        return ratio, half * (1 - gamma**2)


class Barrier(Potential):
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
    """Coulomb friction; with potentials it is smoothed about zero velocity: a resting contact creeps.

    Parameters
    ----------
    coefficient : mu, () or (B, 1).
    slip_velocity : () or (B, 1) [m/s], at which smoothed friction has (nearly) its full size; None for
        `Complementarity`, whose friction is not smoothed.
    """

    per_robot = ("coefficient", "slip_velocity")
    coefficient: Tensor
    slip_velocity: Tensor | None

    def __init__(self, coefficient, slip_velocity=None):
        super().__init__()
        mu = scalar(coefficient, "Friction.coefficient")
        if bool((mu < 0).any()):
            raise InputError(f"Friction.coefficient: expected 0 or more, got {coefficient}")
        self.coefficient = nn.Parameter(mu.clone(), requires_grad=False)
        slip = None if slip_velocity is None else scalar(slip_velocity, "Friction.slip_velocity")
        if slip is not None and not bool((slip > 0).all()):
            raise InputError(f"Friction.slip_velocity: expected a number above 0, got {slip_velocity}")
        self.slip_velocity = None if slip is None else nn.Parameter(slip.clone(), requires_grad=False)


def of_robots(value: Tensor, robot: Tensor) -> Tensor:
    """Return a constant, () or (B, 1), for contacts of the robots with these numbers (A,): () or (A,)."""
    if value.dim() == 0:
        return value
    return value[0, 0] if value.shape[0] == 1 else value[:, 0][robot]

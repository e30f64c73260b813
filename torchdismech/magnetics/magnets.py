"""Magnetic fields of small magnets, which stand still or are moved."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from torchdismech.errors import warn
from torchdismech.forces.base import vector
from torchdismech.forces.over_time import between, of_times, rising
from torchdismech.magnetics.field import Field, FieldDerivatives
from torchdismech.values import Given, untrained

__all__ = ["Dipole", "MovingDipole"]


class _Magnet(Field):
    r"""The field of a small magnet: B = mu0 / (4 pi r^3) (3 (m . n) n - m), n = (x - center) / r."""

    closed_form = True
    MU0_OVER_4_PI = 1e-7  # T m/A

    @property
    @abstractmethod
    def places(self) -> Tensor:
        """Positions (.., 3) [m] of the magnet: its center, or the centers at all times of a moving one."""

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3)."""
        n, m, _, scale = self._local(position, time)
        return scale * (3 * _dot(m, n) * n - m)

    def derivatives(self, position: Tensor, time: Tensor, moment: Tensor | None = None) -> FieldDerivatives:
        """Return the field, its gradient and the curvature of moment . B.

        With (a b) for a b^T + b a^T and mn = m . n, pn = p . n, mp = m . p:
        r dB / scale = 3 (m n) + 3 mn (I - 5 n n^T),
        r^2 d2(p . B) / scale = 3 (m p) - 15 [pn (m n) + mn (p n) + mp n n^T] + 105 mn pn n n^T + (3 mp - 15 mn pn) I.
        """
        n, m, inverse_r, scale = self._local(position, time)
        mn = _dot(m, n)
        eye = torch.eye(3, dtype=n.dtype, device=n.device)
        along = _outer(n, n)
        slope = (3 * scale * inverse_r).unsqueeze(-1)
        gradient = slope * (_both(m, n) + mn.unsqueeze(-1) * (eye - 5 * along))
        field = scale * (3 * mn * n - m)
        if moment is None:
            return field, gradient, None
        pn, mp = _dot(moment, n).unsqueeze(-1), _dot(moment, m).unsqueeze(-1)
        mn = mn.unsqueeze(-1)
        mixed = _both(m, moment) - 5 * (pn * _both(m, n) + mn * _both(moment, n) + mp * along)
        alike = (mp - 5 * mn * pn) * eye + 35 * mn * pn * along
        return field, gradient, slope * inverse_r.unsqueeze(-1) * (mixed + alike)

    def warn_of_near(self, position: Tensor, size: Tensor, what: str) -> None:
        """Warn of elements nearer to the magnet than their own length.

        There the mean of the field along an element that points to the magnet is 1.8 times the value at its middle.
        """
        distance = torch.linalg.vector_norm(position - self.places.detach().reshape(-1, 1, 3), dim=-1)
        near = distance / size
        if bool((near < 1).any()):
            place, element = divmod(int(near.argmin()), len(position))
            warn(
                f"{type(self).__name__}: the magnet is {distance[place, element].item():.3g} m from the middle of a "
                f"magnetised {what} that is {size[element].item():.3g} m long: there the field of a point, which each "
                f"{what} reads at its middle, is far off, and without bounds in the magnet itself: move it away, or "
                "take more and shorter ones"
            )

    @abstractmethod
    def magnet(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return moment and center, each (3,) or (B, 3), at the times (B,)."""

    def _local(self, position: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return directions n and the moment, both (B, E, 3), and 1 / r and mu0 / (4 pi r^3), both (B, E, 1)."""
        moment, center = self.magnet(time)
        arm = position - center.unsqueeze(-2)
        inverse_r = 1 / torch.linalg.vector_norm(arm, dim=-1, keepdim=True)
        n = arm * inverse_r
        return n, moment.unsqueeze(-2).expand_as(n), inverse_r, self.MU0_OVER_4_PI * inverse_r**3


class Dipole(_Magnet):
    r"""The field of a small magnet: B = mu0 / (4 pi r^3) (3 (m . n) n - m), n = (x - center) / r.

    Parameters
    ----------
    moment : m, (3,) or (B, 3) [A m^2].
    center : where the magnet is, (3,) or (B, 3) [m].
    """

    per_robot = ("moment", "center")

    def __init__(self, moment: Given, center: Given):
        super().__init__()
        self.moment = untrained(vector(moment, "Dipole.moment"))
        self.center = untrained(vector(center, "Dipole.center"))

    @property
    def places(self) -> Tensor:
        """Where the magnet is, (3,) or (B, 3) [m]."""
        return self.center

    def magnet(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return moment and center."""
        return self.moment, self.center


class MovingDipole(_Magnet):
    """The field of a small magnet that is moved and turned: at each time that of a `Dipole`.

    Moment and center are linear in time between rows, and held before the first and after the last. A magnet that
    turns takes rows close to each other: between two that are apart by an angle a it is weaker, by cos(a / 2) halfway.

    Parameters
    ----------
    times : (T,) rising [s].
    moments : (T, 3), or (T, B, 3) if they differ between robots [A m^2].
    centers : where the magnet is, (T, 3) or (T, B, 3) [m].
    """

    per_robot = ("moments", "centers")
    robot_dimension = 1
    times: Tensor
    moments: Tensor
    centers: Tensor

    def __init__(self, times: Given, moments: Given, centers: Given):
        super().__init__()
        self.register_buffer("times", rising(times, "MovingDipole.times"))
        for name, rows in (("moments", moments), ("centers", centers)):
            setattr(self, name, untrained(of_times(rows, len(self.times), f"MovingDipole.{name}")))

    @property
    def places(self) -> Tensor:
        """Where the magnet is at the times of its rows, (T, 3) or (T, B, 3) [m]."""
        return self.centers

    def magnet(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return moment and center (B, 3) at the times (B,)."""
        return between(self.times, self.moments, time), between(self.times, self.centers, time)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar products (.., 1)."""
    return (a * b).sum(-1, keepdim=True)


def _both(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T + b a^T."""
    return _outer(a, b) + _outer(b, a)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T (.., 3, 3)."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)

r"""Magnetic fields B [T], uniform or different from place to place, over time.

A uniform field says what it is `at` a time. One in space says what it is at positions and times, and gives its
derivatives by position, by autograd until it writes them in closed form.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, warn
from torchdismech.forces.base import number, scalar, vector

__all__ = [
    "Constant",
    "Dipole",
    "Field",
    "Gradient",
    "Learned",
    "MovingDipole",
    "Rotating",
    "Table",
    "Timed",
    "field_of",
]

SOURCES = 1e-6  # part of the largest entry of a gradient that its divergence or curl may have by rounding in float32
FieldDerivatives = tuple[Tensor, Tensor, Tensor | None]


SHOWN = 3  # numbers of a constant that print shows


class Field(nn.Module):
    """A magnetic field B(position, time) [T].

    A subclass writes `forward`; if the field is the same everywhere, it sets `uniform` and writes `at` instead.

    Attributes
    ----------
    uniform : whether the field is the same everywhere.
    closed_form : whether `derivatives` are in closed form: then steps may be compiled.
    per_robot : names of parameters that may have a leading robot dimension, as those of forces.
    """

    uniform = False
    closed_form = False
    per_robot: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """Return numbers, or shapes where there are many, for print."""
        found = {name: getattr(self, name) for name in self.per_robot}
        numbers = {name: value for name, value in found.items() if value is not None}
        return ", ".join(f"{n}={t.tolist() if t.numel() <= SHOWN else tuple(t.shape)}" for n, t in numbers.items())

    def at(self, time: Tensor) -> Tensor:
        """Return a uniform field (B, 3) at the times (B,)."""
        raise TypeError(f"{type(self).__name__} has to define at(time), or to set uniform = False")

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3) at positions (B, E, 3) [m] and times (B,) [s]."""
        if not self.uniform:
            raise TypeError(f"{type(self).__name__} has to define forward(position, time)")
        return self.at(time).unsqueeze(1).expand_as(position)

    def derivatives(self, position: Tensor, time: Tensor, moment: Tensor | None = None) -> FieldDerivatives:
        """Return the field (B, E, 3), dB_i/dx_j (B, E, 3, 3), and d2(moment . B)/dx_i dx_j for a moment (B, E, 3).

        Where autograd records, the first two can be differentiated further.
        """
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            x = position if recorded and position.requires_grad else position.detach().requires_grad_()
            field = self(x, time)
            rows = [_gradient(field[..., i], x, create_graph=True) for i in range(3)]
            gradient, curvature = torch.stack(rows, dim=-2), None
            if moment is not None:
                slope = (moment.detach().unsqueeze(-2) @ gradient).squeeze(-2)
                second = [_gradient(slope[..., i], x, create_graph=False) for i in range(3)]
                curvature = torch.stack(second, dim=-2).detach()
        return (field, gradient, curvature) if recorded else (field.detach(), gradient.detach(), curvature)

    def warn_of_near(self, position: Tensor, size: Tensor, what: str) -> None:
        """Warn of elements in which the field changes too much to be read at their middles.

        Parameters
        ----------
        position, size : middles (E, 3) and lengths (E,) of magnetised elements, of the robot as built [m].
        what : what messages call an element.
        """


def _gradient(values: Tensor, by: Tensor, create_graph: bool) -> Tensor:
    """Return the gradient of each value (B, E) by its own position (B, E, 3)."""
    if not values.requires_grad:
        return torch.zeros_like(by)
    (found,) = torch.autograd.grad(values.sum(), by, create_graph=create_graph, retain_graph=True, allow_unused=True)
    return torch.zeros_like(by) if found is None else found


def field_of(value) -> Field:
    """Return the field that is meant: a `Field`, another module B(position, time), a function of time, or a vector."""
    if isinstance(value, type):
        raise InputError(
            f"magnetic field: expected a field, a function of time or a vector, got the class {value.__name__} itself; "
            f"make one of it, {value.__name__}(...)"
        )
    if isinstance(value, Field):
        return value
    if isinstance(value, nn.Module):
        return Learned(value)
    return Timed(value) if callable(value) else Constant(value)


# ---- uniform -----------------------------------------------------------------------------------------------------


class Uniform(Field):
    """What uniform fields share."""

    uniform = True
    closed_form = True


class Constant(Uniform):
    """The field `value`, (3,) or (B, 3) [T], at all times."""

    per_robot = ("value",)

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(vector(value, "field"), requires_grad=False)

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        return self.value.expand(len(time), 3)


class Rotating(Uniform):
    """A field of constant size that turns in the plane of two directions.

        B = amplitude (first cos(2 pi frequency t + phase) + second sin(2 pi frequency t + phase)).

    Parameters
    ----------
    amplitude : () or (B, 1) [T].
    frequency : () or (B, 1) [1/s]; below zero it turns from the second direction to the first.
    first, second : directions (3,) at right angles, of any length. In the plane of planar robots x and z.
    phase : () or (B, 1) [rad].
    """

    per_robot = ("amplitude", "frequency", "phase")
    amplitude: Tensor
    frequency: Tensor
    phase: Tensor
    first: Tensor
    second: Tensor

    def __init__(self, amplitude, frequency, first=(1.0, 0.0, 0.0), second=(0.0, 0.0, 1.0), phase=0.0):
        super().__init__()
        for name, value in (("amplitude", amplitude), ("frequency", frequency), ("phase", phase)):
            setattr(self, name, nn.Parameter(scalar(value, f"Rotating.{name}"), requires_grad=False))
        for name, direction in (("first", first), ("second", second)):
            given = number(direction, f"Rotating.{name}")
            if given.shape != (3,) or not bool(given.any()):
                raise InputError(f"Rotating.{name}: expected a direction (3,) that is not zero, got {direction}")
            self.register_buffer(name, given / torch.linalg.vector_norm(given))
        if abs(float(self.first @ self.second)) > 1e-9:
            raise InputError(f"Rotating: first and second have to be at right angles, got {first} and {second}")

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        angle = 2 * math.pi * self.frequency * time.unsqueeze(1) + self.phase
        return self.amplitude * (torch.cos(angle) * self.first + torch.sin(angle) * self.second)


class Table(Uniform):
    """A field that is linear in time between rows, and held before the first and after the last.

    Parameters
    ----------
    times : (T,) rising [s].
    values : (T, 3), or (T, B, 3) for one of each robot [T]; the constant that they are is called `rows`.
    """

    per_robot = ("rows",)
    robot_dimension = 1
    times: Tensor

    def __init__(self, times, values):
        super().__init__()
        times = _rising(times, "Table.times")
        values = _of_times(values, len(times), "Table.values")
        self.register_buffer("times", times)
        self.rows = nn.Parameter(values, requires_grad=False)

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        return _between(self.times, self.rows, time)


class Timed(Uniform):
    """A field that a function gives: `function(time (B,))` returns (3,) or (B, 3) [T], for any number of robots.

    It is asked for other numbers than the model's, too, so fields that differ from robot to robot are a `Table`.

    It is evaluated once for each step, before it, and given to the step as data: so steps are recorded, and gradients
    reach all tensors that the function uses.
    """

    runs_users_code = True

    def __init__(self, function: Callable[[Tensor], Tensor | Sequence[float]]):
        super().__init__()
        self.function = function

    def at(self, time: Tensor) -> Tensor:
        """Return the field (B, 3)."""
        given = self.function(time)
        try:
            found = torch.as_tensor(given, dtype=time.dtype, device=time.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"magnetic field: the function of time has to return (3,) or (B, 3) = ({len(time)}, 3) numbers, got "
                f"{given!r:.80} ({error})"
            ) from error
        if found.shape not in ((3,), (len(time), 3)):
            raise InputError(
                f"magnetic field: the function of time has to return (3,) or (B, 3) = ({len(time)}, 3), got "
                f"{tuple(found.shape)}"
            )
        return found.expand(len(time), 3)


# ---- in space ----------------------------------------------------------------------------------------------------


class Gradient(Field):
    """A field that is linear in space: B = value + gradient (x - center).

    Between magnets the divergence of a field is zero, and so is its curl: then the gradient is a symmetric matrix
    whose diagonal adds up to zero. Another one is warned of when the field is made, and taken as it is.

    Parameters
    ----------
    value : at the center, (3,) or (B, 3) [T].
    gradient : dB_i/dx_j, (3, 3) or (B, 3, 3) [T/m].
    center : (3,) or (B, 3) [m].
    """

    closed_form = True
    per_robot = ("value", "gradient", "center")

    def __init__(self, value, gradient, center=(0.0, 0.0, 0.0)):
        super().__init__()
        matrix = number(gradient, "Gradient.gradient")
        if matrix.shape[-2:] != (3, 3) or matrix.dim() > 3:
            raise InputError(f"Gradient.gradient: expected shape (3, 3) or (B, 3, 3), got {tuple(matrix.shape)}")
        _warn_of_sources(matrix.detach().reshape(-1, 3, 3))
        self.value = nn.Parameter(vector(value, "Gradient.value"), requires_grad=False)
        self.gradient = nn.Parameter(matrix.reshape(-1, 3, 3), requires_grad=False)
        self.center = nn.Parameter(vector(center, "Gradient.center"), requires_grad=False)

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3)."""
        return self.value.unsqueeze(-2) + (position - self.center.unsqueeze(-2)) @ self.gradient.mT

    def derivatives(self, position: Tensor, time: Tensor, moment: Tensor | None = None) -> FieldDerivatives:
        """Return the field, its gradient, and no curvature."""
        field = self(position, time)
        gradient = self.gradient.unsqueeze(-3).expand(*position.shape, 3)
        return field, gradient, None if moment is None else torch.zeros_like(gradient)


def _warn_of_sources(gradient: Tensor) -> None:
    """Warn of gradients (B, 3, 3) that no static field has where no current flows: with a trace, or not symmetric."""
    size = SOURCES * gradient.abs().amax((1, 2))
    trace = gradient.diagonal(dim1=1, dim2=2).sum(1)
    odd = 0.5 * (gradient - gradient.mT)
    found = []
    if bool((trace.abs() > size).any()):
        found.append(f"a trace of {trace[trace.abs().argmax()].item():.3g} T/m, a divergence")
    if bool((odd.abs().amax((1, 2)) > size).any()):
        found.append(f"an antisymmetric part of up to {odd.abs().max().item():.3g} T/m, a curl")
    if found:
        warn(
            f"Gradient.gradient: has {' and '.join(found)}; a static field where no current flows has neither: "
            "expected a symmetric matrix dB_i/dx_j whose diagonal adds up to zero. Take (G + G^T) / 2 less a third of "
            "its trace on the diagonal, or a Field of your own if that is meant",
            UserWarning,
        )


class _Magnet(Field):
    r"""The field of a small magnet: B = mu0 / (4 pi r^3) (3 (m . n) n - m), n = (x - center) / r."""

    closed_form = True
    MU0_OVER_4_PI = 1e-7  # T m/A

    @property
    @abstractmethod
    def places(self) -> Tensor:
        """Where the magnet is, at any time, (.., 3) [m]."""

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
        n, m, over, scale = self._local(position, time)
        mn = _dot(m, n)
        eye = torch.eye(3, dtype=n.dtype, device=n.device)
        along = _outer(n, n)
        slope = (3 * scale * over).unsqueeze(-1)
        gradient = slope * (_both(m, n) + mn.unsqueeze(-1) * (eye - 5 * along))
        field = scale * (3 * mn * n - m)
        if moment is None:
            return field, gradient, None
        pn, mp = _dot(moment, n).unsqueeze(-1), _dot(moment, m).unsqueeze(-1)
        mn = mn.unsqueeze(-1)
        mixed = _both(m, moment) - 5 * (pn * _both(m, n) + mn * _both(moment, n) + mp * along)
        alike = (mp - 5 * mn * pn) * eye + 35 * mn * pn * along
        return field, gradient, slope * over.unsqueeze(-1) * (mixed + alike)

    def warn_of_near(self, position: Tensor, size: Tensor, what: str) -> None:
        """Warn of elements that are nearer than they are long: the field along one is 1.8 times that of its middle."""
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
        """Return directions n (B, E, 3), the moment (.., 1 or E, 3), 1 / r and mu0 / (4 pi r^3), each (B, E, 1)."""
        moment, center = self.magnet(time)
        arm = position - center.unsqueeze(-2)
        over = 1 / torch.linalg.vector_norm(arm, dim=-1, keepdim=True)
        n = arm * over
        return n, moment.unsqueeze(-2).expand_as(n), over, self.MU0_OVER_4_PI * over**3


class Dipole(_Magnet):
    r"""The field of a small magnet: B = mu0 / (4 pi r^3) (3 (m . n) n - m), n = (x - center) / r.

    Parameters
    ----------
    moment : m, (3,) or (B, 3) [A m^2].
    center : where the magnet is, (3,) or (B, 3) [m].
    """

    per_robot = ("moment", "center")

    def __init__(self, moment, center):
        super().__init__()
        self.moment = nn.Parameter(vector(moment, "Dipole.moment"), requires_grad=False)
        self.center = nn.Parameter(vector(center, "Dipole.center"), requires_grad=False)

    @property
    def places(self) -> Tensor:
        """Where the magnet is, (3,) or (B, 3) [m]."""
        return self.center

    def magnet(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return moment and center."""
        return self.moment, self.center


class MovingDipole(_Magnet):
    """The field of a small magnet that is moved and turned: of a `Dipole`, at each time.

    Moment and center are linear in time between rows, and held before the first and after the last. A magnet that
    turns takes rows close to each other: between two that are apart by an angle a it is weaker, by cos(a / 2) halfway.

    Parameters
    ----------
    times : (T,) rising [s].
    moments : (T, 3), or (T, B, 3) for one of each robot [A m^2].
    centers : where the magnet is, (T, 3) or (T, B, 3) [m].
    """

    per_robot = ("moments", "centers")
    robot_dimension = 1
    times: Tensor
    moments: Tensor
    centers: Tensor

    def __init__(self, times, moments, centers):
        super().__init__()
        self.register_buffer("times", _rising(times, "MovingDipole.times"))
        for name, rows in (("moments", moments), ("centers", centers)):
            given = _of_times(rows, len(self.times), f"MovingDipole.{name}")
            setattr(self, name, nn.Parameter(given, requires_grad=False))

    @property
    def places(self) -> Tensor:
        """Where the magnet is at the times of its rows, (T, 3) or (T, B, 3) [m]."""
        return self.centers

    def magnet(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return moment and center (B, 3) at the times (B,)."""
        return _between(self.times, self.moments, time), _between(self.times, self.centers, time)


class Learned(Field):
    """A field that a module gives: `module(position (B, E, 3), time (B,))` returns (B, E, 3) [T]."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3)."""
        found = self.module(position, time)
        if found.shape != position.shape:
            raise InputError(
                f"magnetic field: {type(self.module).__name__} has to return (B, E, 3) = {tuple(position.shape)}, got "
                f"{tuple(found.shape)}"
            )
        return found


def _rising(times, what: str) -> Tensor:
    """Return the times (T,) of rows; refuse others than rising ones."""
    times = number(times, what)
    if times.dim() != 1 or not len(times) or not bool((times.diff() > 0).all()):
        raise InputError(f"{what}: expected rising numbers (T,), got {times.tolist()}")
    return times


def _of_times(rows, count: int, what: str) -> Tensor:
    """Return vectors at so many times, (T, 3) or (T, B, 3)."""
    rows = number(rows, what)
    if rows.dim() not in (2, 3) or len(rows) != count or rows.shape[-1] != 3:
        raise InputError(f"{what}: expected ({count}, 3) or ({count}, B, 3), got {tuple(rows.shape)}")
    return rows


def _between(times: Tensor, rows: Tensor, time: Tensor) -> Tensor:
    """Return vectors (B, 3) at times (B,), linear between rows (T, 3) or (T, B, 3) and held at their ends."""
    whole = rows if rows.dim() == 3 else rows.unsqueeze(1)
    robot = torch.arange(len(time), device=time.device) % whole.shape[1]
    last = len(times) - 1
    after = torch.searchsorted(times, time.detach().contiguous()).clamp(min(1, last), last)
    before = (after - 1).clamp_min(0)
    span = torch.where(after > before, times[after] - times[before], 1.0)
    share = ((time - times[before]) / span).clamp(0, 1)
    return torch.lerp(whole[before, robot], whole[after, robot], share.unsqueeze(1))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar products (.., 1)."""
    return (a * b).sum(-1, keepdim=True)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _both(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T + b a^T."""
    return _outer(a, b) + _outer(b, a)

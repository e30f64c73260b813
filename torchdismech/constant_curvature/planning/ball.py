"""A ball that turns about its fixed centre, and its contact with a plate as CasADi expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchdismech.constant_curvature.planning.casadi import casadi
from torchdismech.constant_curvature.planning.checks import finite_numbers
from torchdismech.constant_curvature.planning.expressions import bend_series
from torchdismech.errors import positive_number

__all__ = ["Ball", "Touch", "quaternion_after", "touch"]

ROUNDING = 1e-12  # [m^2] smooths absolute values and maxima
Expression = Any  # of CasADi, which has no types


@dataclass(frozen=True)
class Ball:
    """A homogeneous ball with a fixed centre.

    Attributes
    ----------
    center : (3,) [m].
    radius, mass : [m], [kg].
    damping : torque against its rotation per angular velocity [N m s/rad].
    friction : coefficient of friction between ball and plate.

    Raises
    ------
    InputError
        Values that are no finite numbers, a radius or mass not above zero, damping or friction below zero.
    """

    center: Sequence[float] = (0.0, 0.1, 0.7)
    radius: float = 0.05
    mass: float = 0.2
    damping: float = 1e-3
    friction: float = 0.6
    inertia: float = field(init=False)  # about any axis through the middle [kg m^2]

    def __post_init__(self):
        object.__setattr__(self, "center", finite_numbers(self.center, "Ball.center", "three finite numbers", 3))
        for name in ("radius", "mass", "damping", "friction"):
            or_zero = name in ("damping", "friction")
            object.__setattr__(self, name, positive_number(getattr(self, name), f"Ball.{name}", or_zero=or_zero))
        object.__setattr__(self, "inertia", 0.4 * self.mass * self.radius**2)


@dataclass(frozen=True)
class Touch:
    """The gap between a plate and a ball with its geometry, as expressions.

    Attributes
    ----------
    gap : [m].
    normal : (3,) from the plate to the ball, of unit length.
    point : (3,) of the ball that is closest to the plate [m].
    tangents : (3, 2) unit vectors orthogonal to the normal and to each other.
    """

    gap: Expression
    normal: Expression
    point: Expression
    tangents: Expression


def touch(ball: Ball, middle: Expression, frame: Expression, radius: float, thickness: float, up: Any) -> Touch:
    """Return gap, normal and closest point of a ball and a plate, which is a cylinder with an end face at `middle`.

    Parameters
    ----------
    middle, frame : centre (3,) [m] and axes (3, 3) of the end face; the cylinder extends from it towards negative z.
    radius, thickness : of the cylinder [m].
    up : (3, 3) a frame whose negative z axis no normal meets, as the tangents are undefined there.
    """
    ca = casadi()
    local = ca.SX.sym("seen", 3)  # the ball's middle in the plate's frame
    radial = ca.sqrt(local[0] ** 2 + local[1] ** 2 + ROUNDING) - radius
    axial = _absolute(local[2] + thickness / 2) - thickness / 2
    inside = -_larger(-_larger(radial, axial), 0)
    outside = ca.sqrt(_larger(radial, 0) ** 2 + _larger(axial, 0) ** 2 + ROUNDING)
    distance = inside + outside
    steepest = ca.gradient(distance, local)
    gap_and_normal = ca.Function("measured", [local], [distance - ball.radius, steepest / ca.norm_2(steepest)])
    gap, normal = gap_and_normal(frame.T @ (ca.DM(list(ball.center)) - middle))
    normal = frame @ normal
    return Touch(gap, normal, ca.DM(list(ball.center)) - ball.radius * normal, _tangents(normal, up))


def quaternion_after(quaternion: Expression, spin: Expression, h: float) -> Expression:
    """Return the orientation (w, x, y, z) after the time h at an angular velocity (3,) along the world's axes."""
    ca = casadi()
    half = 0.5 * h * spin
    q = ca.dot(half, half)
    a, b, _ = bend_series(q)
    w, x = 1 - q * b, a * half
    return ca.vertcat(
        w * quaternion[0] - ca.dot(x, quaternion[1:]),
        w * quaternion[1:] + quaternion[0] * x + ca.cross(x, quaternion[1:]),
    )


def _tangents(normal: Expression, up: Any) -> Expression:
    """Return two tangents (3, 2) of a normal (Duff et al., 2017), continuous except where it is -z of `up`."""
    ca = casadi()
    x, y, z = ca.vertsplit(up.T @ normal)
    a = -1 / (1 + z)
    first = ca.vertcat(1 + x * x * a, x * y * a, -x)
    second = ca.vertcat(x * y * a, 1 + y * y * a, -y)
    return up @ ca.horzcat(first, second)


def _absolute(s: Expression) -> Expression:
    return casadi().sqrt(s * s + ROUNDING)


def _larger(a: Expression, b: Expression) -> Expression:
    return (a + b + casadi().sqrt((a - b) ** 2 + ROUNDING)) / 2

"""Contact responses: normal forces from a potential of the gap or from constraints, and Coulomb friction."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from torchdismech.errors import InputError, check_choice, warn
from torchdismech.forces.base import scalar
from torchdismech.solve.complementarity import CONTACT_METHODS
from torchdismech.values import Given, constants_in_words, untrained

__all__ = [
    "Barrier",
    "Complementarity",
    "Friction",
    "FrictionConstants",
    "Penalty",
    "Potential",
    "Response",
    "of_robots",
    "stribeck",
    "warn_of_wide_tolerance",
]

SHARPNESS = 15.0  # K1 * tolerance and K2 * slip velocity: exp(-30) of a penalty's force is left at the tolerance

LARGEST_COEFFICIENT = 5.0  # of friction, above which there is a warning: gels and racing tyres have 2
WIDE = 100.0  # in contact radii: a potential with a wider tolerance was probably given another number by mistake
RELEASE = 10.0  # default of `Friction.release`, in slip velocities


class Response(nn.Module):
    """The normal response of a contact: a `Potential`, or the constraint `Complementarity`."""

    records = False
    per_robot: tuple[str, ...] = ("tolerance",)  # names of the parameters that may be given per robot, (B, 1)
    not_negative: tuple[str, ...] = ("tolerance",)  # names of the parameters that a step refuses below zero
    positive: tuple[str, ...] = ("tolerance",)  # names of those that it refuses at zero, too
    feasible_only = False  # whether every iterate of a search, not only its solution, needs gaps above zero
    tolerance: Tensor

    def extra_repr(self) -> str:
        """Return the constants for print."""
        return constants_in_words(self)

    def _set(self, name: str, value) -> None:
        """Set the parameter `name` to a value above 0, () or (B, 1); refuse others."""
        tensor = scalar(value, f"{type(self).__name__}.{name}")
        if not bool((tensor > 0).all()):
            raise InputError(f"{type(self).__name__}.{name}: expected a number above 0, got {value}")
        setattr(self, name, untrained(tensor))


class Complementarity(Response):
    """No overlap, and friction in Coulomb's cone, as constraints that hold at the end of a step.

    The loads come from a complementarity problem in each Newton iteration (see `integrate.search.constrained`), and no
    stiffness has to be tuned. Only surfaces that touch bear a normal load, and impacts are inelastic. Works with
    `ImplicitEuler` and `Static`.

    Parameters
    ----------
    tolerance : () or (B, 1) [m], by how much surfaces may overlap, or be apart and still bear a load. A robot's
        contacts are solved together, so the least tolerance of all of them applies to each.
    method : of `solve.complementarity.solve_contact`: "interior_point" solves nearly all problems; "fischer_burmeister"
        and "gauss_seidel" solve fewer, but the latter factorizes no matrix.
    """

    def __init__(self, tolerance: Given = 1e-8, method: str = "interior_point"):
        super().__init__()
        self._set("tolerance", tolerance)
        check_choice("Complementarity.method", method, CONTACT_METHODS)
        self.method = method


class Potential(Response):
    """A potential phi(d) of the gap d between two surfaces, zero where d is the tolerance or more.

    `Penalty` and `Barrier` are two such laws. For a law of your own, derive from this class and write `energy`,
    `derivatives` and, for friction, `slipping`. These methods get many contacts of many robots as one tensor of any
    shape (..), and return tensors of that shape, by elementwise torch operations that autograd can follow. phi has to
    be smooth and to fall as the gap grows; parts of a robot that are farther apart than the tolerance are skipped. A
    gap that is NaN has to give NaN: write `torch.where(gap >= tolerance, 0.0, ...)`, where NaN does not count as far
    apart. Your own laws are evaluated by torch, more slowly than the library's, which are compiled loops. When a model
    is built, your own laws are tried out, and refused where they break these rules.

    Parameters
    ----------
    stiffness : above 0, () or (B, 1) [N/m].
    tolerance : above 0, () or (B, 1) [m], the gap at which contact begins.

    Attributes
    ----------
    stiffness, tolerance : as given; `trainable` and `Control.values` may change them. The methods get them in a shape
        that broadcasts against the gaps. Further numbers of a subclass are the same for all robots.
    records : whether recordings of steps may hold your own law where an obstacle has it. True promises that its
        methods read nothing that changes except their arguments, and no number of a tensor on the host; see
        `forces.Force`. Between parts of a robot such laws are evaluated outside of recordings.
    feasible_only : whether gaps have to stay above zero in every iteration: set it to True in a class whose phi is
        infinite for gaps of zero and less, as a barrier's is. Steps then need a line search, and initial states gaps
        above zero.

    Raises
    ------
    InputError
        Stiffness or tolerance is not above zero, not finite, or has another shape.
    """

    per_robot = not_negative = positive = ("stiffness", "tolerance")
    stiffness: Tensor

    def __init__(self, stiffness: Given, tolerance: Given):
        super().__init__()
        self._set("stiffness", stiffness)
        self._set("tolerance", tolerance)

    def energy(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> Tensor:
        """Return phi (..) [J] of gaps (..) [m]; stiffness [N/m] and tolerance [m] broadcast against these."""
        raise TypeError(f"{type(self).__name__} has to define energy(gap, stiffness, tolerance)")

    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd (..) [N] (negative: repulsive) and d2phi/dd2 (..) [N/m] for the arguments of `energy`."""
        raise TypeError(f"{type(self).__name__} has to define derivatives(gap, stiffness, tolerance)")

    @staticmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma(v) / v and dgamma/dv, each (..) [s/m], for sliding speeds v (..), 0 or more [m/s].

        The size of friction is mu N gamma, for a normal load N. gamma rises from 0 at rest to 1, or nearly 1, at the
        slip velocity [m/s]. At v = 0 gamma(v) / v is its limit, dgamma/dv.
        """
        raise TypeError("a Potential has to define slipping(speed, slip_velocity), where there is friction")


class Penalty(Potential):
    r"""phi = k (log(1 + exp(-K1 d)) / K1)^2 with K1 = 15 / tolerance: a spring of stiffness 2 k with a smooth onset.

    Under a load F surfaces overlap by F / (2 k), to 3 %, where that is more than a fifth of the tolerance; where it is
    less than .023 of it they stay apart ("Which response" in docs/contact.md has the whole relation): for an overlap o
    take k = F / (2 o) and a tolerance of 5 o or less. Implicit contact model of Tong, Choi, Joo and Jawed, A
    fully implicit method for robust frictional contact handling in elastic rods, Extreme Mech. Lett. 58, 101924, 2023
    (MAT-DiSMech eq. 25).
    """

    def energy(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> Tensor:
        """Return phi [J]."""
        overlap = self._overlap(gap, tolerance)
        return torch.where(gap >= tolerance, 0.0, stiffness * overlap**2)  # so that a gap of NaN gives NaN

    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd [N] and d2phi/dd2 [N/m]."""
        sharpness = SHARPNESS / tolerance
        overlap, share = self._overlap(gap, tolerance), torch.sigmoid(-sharpness * gap)
        slope = -2 * stiffness * overlap * share
        curvature = 2 * stiffness * (share**2 + overlap * sharpness * share * (1 - share))
        apart = gap >= tolerance  # False for a gap of NaN, which then gives NaN
        return torch.where(apart, 0.0, slope), torch.where(apart, 0.0, curvature)

    @staticmethod
    def _overlap(gap: Tensor, tolerance: Tensor) -> Tensor:
        """Return the smoothed overlap log(1 + exp(-K1 d)) / K1 (..) [m]."""
        sharpness = SHARPNESS / tolerance
        # for arguments above 40 softplus is its argument, to rounding; exp(40) overflows in no dtype
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
        return torch.where(gap <= 0, torch.inf, torch.where(inside, phi, 0.0))

    def derivatives(self, gap: Tensor, stiffness: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return dphi/dd [N] and d2phi/dd2 [N/m]; infinite where surfaces overlap."""
        inside, safe = self._inside(gap, tolerance)
        rest, log = safe - tolerance, torch.log(safe / tolerance)
        slope = -stiffness * (2 * rest * log + rest**2 / safe)
        curvature = -stiffness * (2 * log + 4 * rest / safe - (rest / safe) ** 2)
        outside = torch.where(gap <= 0, torch.inf, 0.0)
        return torch.where(inside, slope, -outside), torch.where(inside, curvature, outside)

    @staticmethod
    def _inside(gap: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the barrier acts (..) bool, and the gaps with the tolerance in the place of all others."""
        inside = ~(gap <= 0) & ~(gap >= tolerance)  # written so that NaN of either gives NaN
        return inside, torch.where(inside, gap, tolerance)

    @staticmethod
    def slipping(speed: Tensor, slip_velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return gamma / v and dgamma/dv of gamma = 2 y - y^2 with y = v / v_slip up to 1, then 1."""
        y = speed / slip_velocity
        sticking = y < 1
        ratio = torch.where(sticking, (2 - y) / slip_velocity, 1 / torch.where(sticking, 1.0, speed))
        return ratio, torch.where(sticking, 2 * (1 - y) / slip_velocity, 0.0)


class FrictionConstants(NamedTuple):
    """The constants of friction as laws take them, each () or (B, 1), or one for each contact.

    A constant is None only if all those after it are: with coefficients along rods `static` and `release` are given.

    Attributes
    ----------
    coefficient, slip_velocity : the coefficient of sliding, and the speed at which friction has its full size [m/s].
    static, release : the coefficient at rest, and the speed, in slip velocities, at which it has fallen to
        `coefficient`; None where the coefficient at rest is the same.
    forward, backward : coefficients along rods; None where friction is the same in all directions.
    """

    coefficient: Tensor
    slip_velocity: Tensor
    static: Tensor | None = None
    release: Tensor | None = None
    forward: Tensor | None = None
    backward: Tensor | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the constants that are not None, in order: `FrictionConstants(*tensors)` restores them."""
        return tuple(constant for constant in self if constant is not None)

    @property
    def at_rest(self) -> Tensor:
        """The coefficient at rest, which is the largest one if those along rods are left aside."""
        return self.coefficient if self.static is None else self.static


class Friction(nn.Module):
    """Coulomb friction; with potentials it is smoothed about zero velocity: a resting contact creeps.

    With a static coefficient, this holds surfaces up to the slip velocity; from there to `release` times that speed the
    coefficient falls smoothly to that of sliding (the Stribeck effect). A step has a unique solution, in which a
    contact either holds or slides, if the inertia of the sliding mass exceeds the slope of that fall: m / dt > 1.5 N
    (static - coefficient) / ((release - 1) slip_velocity), N the load on a mass m. With a longer dt a contact may let
    go early or late.

    Scales, bristles and bellows rub less one way than another. With coefficients along rods friction on an obstacle is

        F = -N (1 + (s - 1) p t^T) T,    s = (forward or backward coefficient) / coefficient

    instead of -N T, where T = mu gamma v / |v| is the traction, t the rod's tangent at the start of the step (it points
    from the rod's first node to its last), and p the component of t in the surface's plane. On a rod that lies flat
    the components of the sliding direction along and across it have a coefficient each (Hu, Nirody, Scott and Shelley,
    The mechanics of slithering locomotion, PNAS 106, 2009). On a rod that rises by an angle the difference falls by the
    square of the angle's cosine, so that an upright rod has the same coefficient in all directions. The larger of the
    two coefficients along the rod sets in smoothly: it falls short by a fifteenth of their difference at the slip
    velocity, by a 150th at ten times that (`directional.AlongRods`).

    Parameters
    ----------
    coefficient : mu, () or (B, 1). With `static` it is that of sliding, with coefficients along rods that across them.
    slip_velocity : () or (B, 1) [m/s], at which smoothed friction has (nearly) its full size; None for
        `Complementarity`, whose friction is not smoothed.
    static : () or (B, 1), the coefficient at rest, not below `coefficient`; None: the same. For potentials.
    release : () or (B, 1), above 1, 10 by default: the speed, in slip velocities, from which on surfaces slide with
        `coefficient`.
    forward_coefficient, backward_coefficient : () or (B, 1), of rods that slide along themselves, in the direction of
        their tangents and against it. If one alone is given, the other begins with the same value as a constant of
        its own; if neither is, friction is the same in all directions. At rest `static` enlarges them in the same
        ratio as `coefficient`. For obstacles whose response is a potential.
    """

    per_robot = not_negative = (
        "coefficient",
        "slip_velocity",
        "static",
        "release",
        "forward_coefficient",
        "backward_coefficient",
    )
    positive: tuple[str, ...] = ("slip_velocity",)
    open_intervals = {"release": (1.0, math.inf)}
    not_below = (("static", "coefficient"),)
    coefficient: Tensor
    slip_velocity: Tensor | None
    static: Tensor | None
    release: Tensor | None
    forward_coefficient: Tensor | None
    backward_coefficient: Tensor | None

    def __init__(
        self,
        coefficient: Given,
        slip_velocity: Given | None = None,
        static: Given | None = None,
        release: Given | None = None,
        forward_coefficient: Given | None = None,
        backward_coefficient: Given | None = None,
    ):
        super().__init__()
        mu = scalar(coefficient, "Friction.coefficient")
        if bool((mu < 0).any()):
            raise InputError(f"Friction.coefficient: expected 0 or more, got {coefficient}")
        _warn_of_angles(mu)
        slip = None if slip_velocity is None else scalar(slip_velocity, "Friction.slip_velocity")
        if slip is not None and not bool((slip > 0).all()):
            raise InputError(f"Friction.slip_velocity: expected a number above 0, got {slip_velocity}")
        at_rest, end = _fall(mu, static, release)
        ahead, back = _along_rods(mu, forward_coefficient, backward_coefficient)
        self.coefficient = untrained(mu)
        self.slip_velocity, self.static, self.release, self.forward_coefficient, self.backward_coefficient = (
            None if value is None else untrained(value.clone()) for value in (slip, at_rest, end, ahead, back)
        )
        if self.directional:
            self.positive = ("coefficient", "slip_velocity")  # laws divide the coefficients along rods by `coefficient`

    def extra_repr(self) -> str:
        """Return the constants for print."""
        return constants_in_words(self)

    @property
    def directional(self) -> bool:
        """Whether rods have other coefficients along themselves than across."""
        return self.forward_coefficient is not None

    def given(self) -> FrictionConstants:
        """Return the present constants as laws take them; only for smoothed friction, which has a slip velocity."""
        assert self.slip_velocity is not None
        static, release = self.static, self.release
        if self.directional and static is None:
            static, release = self.coefficient, torch.full_like(self.slip_velocity, RELEASE)
        along_rods = self.forward_coefficient, self.backward_coefficient
        return FrictionConstants(self.coefficient, self.slip_velocity, static, release, *along_rods)


def _warn_of_angles(mu: Tensor, name: str = "coefficient") -> None:
    """Warn of coefficients so large that they are probably angles of friction in degrees."""
    if bool((mu > LARGEST_COEFFICIENT).any()):
        degrees, largest = "", float(mu.max())
        if largest < 90:
            degrees = f"; an angle of {largest:.4g} degrees is the coefficient {math.tan(math.radians(largest)):.3g}"
        warn(
            f"Friction.{name}: {largest:.4g} is more than any dry surfaces have (rubber has about 1): it is the "
            f"force along over the force across{degrees}; or, if that is meant, warnings.filterwarnings('ignore', "
            f"'Friction.{name}')"
        )


def _fall(mu: Tensor, static, release) -> tuple[Tensor | None, Tensor | None]:
    """Return `static` and `release` checked and as tensors; (None, None) where no static coefficient is given."""
    if static is None:
        if release is not None:
            raise InputError("Friction.release: belongs to static, the coefficient at rest, which is not given")
        return None, None
    at_rest = scalar(static, "Friction.static")
    if len({len(given) for given in (at_rest, mu) if given.numel() > 1}) > 1:
        raise InputError(f"Friction.static: expected one, or one for each of {len(mu)} robots, got {len(at_rest)}")
    if not bool((at_rest >= mu).all()):
        raise InputError(f"Friction.static: expected the coefficient or more, got {static}")
    end = scalar(RELEASE if release is None else release, "Friction.release")
    if not bool((end > 1).all()):
        raise InputError(f"Friction.release: expected a number above 1, got {release}")
    return at_rest, end


def _along_rods(mu: Tensor, forward, backward) -> tuple[Tensor | None, Tensor | None]:
    """Return the checked coefficients along rods, forward and backward; (None, None) where neither is given."""
    if forward is None and backward is None:
        return None, None
    if not bool((mu > 0).all()):
        raise InputError(
            f"Friction.coefficient: expected more than 0 beside coefficients along rods, got {float(mu.min()):g}; it "
            "is that across them"
        )
    coefficients: list[Tensor | None] = []
    for name, value in (("forward_coefficient", forward), ("backward_coefficient", backward)):
        coefficients.append(None if value is None else scalar(value, f"Friction.{name}", from_zero=True))
        if coefficients[-1] is not None:
            _warn_of_angles(coefficients[-1], name)
    ahead, back = coefficients
    return (back if ahead is None else ahead), (ahead if back is None else back)


def warn_of_wide_tolerance(label: str, response: Response, radius: Tensor) -> None:
    """Warn of a tolerance far above the contact radii (..) of a robot: it may have been swapped with the stiffness."""
    widest, largest = float(response.tolerance.detach().max()), float(radius.max()) if radius.numel() else 0.0
    if isinstance(response, Potential) and widest > WIDE * largest > 0:
        kind = type(response).__name__
        warn(
            f"{label}: {kind}.tolerance: {widest:.4g} m, the gap at which contact begins, is {widest / largest:.3g} "
            f"times the robot's contact radius, {largest:.4g} m, and the stiffness is "
            f"{float(response.stiffness.detach().max()):.4g} N/m: expected {kind}(stiffness, tolerance) in this order, "
            "with a tolerance of about the contact radius or less; or, if that is meant, "
            f"warnings.filterwarnings('ignore', '.*{kind}.tolerance')"
        )


def stribeck(
    speed: Tensor, mu: Tensor, slip_velocity: Tensor, static: Tensor, release: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the coefficient of friction at a sliding speed, and its derivative by the speed [s/m].

    It is `static` up to the slip velocity and `mu` from `release` slip velocities on; a cubic in between makes its
    derivative continuous.
    """
    width = (release - 1) * slip_velocity
    way = ((speed - slip_velocity) / width).clamp(0.0, 1.0)
    return static - (static - mu) * way * way * (3 - 2 * way), -6 * (static - mu) * way * (1 - way) / width


def of_robots(value: Tensor, robot: Tensor) -> Tensor:
    """Return the values, () or (A,), of a constant, () or (B, 1), for contacts that belong to the robots (A,)."""
    if value.dim() == 0:
        return value
    return value[0, 0] if value.shape[0] == 1 else value[:, 0][robot]

r"""The contact force between two surfaces, from their gap, normal and relative velocity.

    F = N n - mu N gamma(|v_t|) v_t / |v_t|,    N = -dphi/dd,    v_t = v - (n . v) n

acts on the body, -F on the obstacle or part that it touches; d is the gap, n = dd/dx the normal towards the body and v
the body's relative velocity. N is the load and T = mu gamma(|v_t|) v_t / |v_t| the *traction*, so that F = N (n - T).
With a static coefficient mu is a function of |v_t|. Along rods friction may have other coefficients: see `Friction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.directional import AlongRods
from torchdismech.contact.response import FrictionConstants, Potential, of_robots, stribeck
from torchdismech.fused import Fused, is_own
from torchdismech.geometry.vec3 import Mat3, Vec3

__all__ = ["LawConstants", "LawFormulas"]


@dataclass(frozen=True)
class LawConstants:
    """The constants of a law for each contact, broadcasting against the gaps.

    Attributes
    ----------
    stiffness, tolerance : of the response [N/m], [m].
    friction : None where surfaces are frictionless.
    tangent : unit tangent of the rod at each contact, zero where there is no rod; None unless friction has other
        coefficients along rods.
    """

    stiffness: Tensor
    tolerance: Tensor
    friction: FrictionConstants | None
    tangent: Vec3 | None = None

    @classmethod
    def of(cls, stiffness: Tensor, tolerance: Tensor, *friction: Tensor) -> LawConstants:
        """Return the constants from the tensors that `tensors` lists, after which tangents (3, ..) of rods may come."""
        if not friction:
            return cls(stiffness, tolerance, None)
        constants, tangents = friction[: len(FrictionConstants._fields)], friction[len(FrictionConstants._fields) :]
        tangent = Vec3(*tangents[0].unbind(0)) if tangents else None
        return cls(stiffness, tolerance, FrictionConstants(*constants), tangent)

    def along_rods(self, sliding: Vec3) -> AlongRods | None:
        """Return the operator that turns tractions by the coefficients along rods; None where there are none."""
        friction = self.friction
        if friction is None or self.tangent is None or friction.forward is None or friction.backward is None:
            return None
        coefficients = friction.coefficient, friction.forward, friction.backward
        return AlongRods.of(self.tangent, sliding, *coefficients, friction.slip_velocity)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return stiffness, tolerance and the constants of friction that are given, without tangents."""
        return self.stiffness, self.tolerance, *(() if self.friction is None else self.friction.tensors())

    def at(self, robot: Tensor) -> LawConstants:
        """Return the constants, () or (A,), for contacts that belong to the robots (A,)."""
        return LawConstants.of(*(of_robots(constant, robot) for constant in self.tensors()))


class LawFormulas:
    """The formulas of a contact law, by components; the law's constants come with each call.

    Laws with as many constants and the same kind of response, if it is the library's, share one object, so that its
    formulas are recorded and compiled once (`fused`), however many models there are.

    Parameters
    ----------
    response : gives the potential and how friction sets in (`slipping`); its stiffness and tolerance are not read.
    constants : number of tensors that `LawConstants.tensors` lists.

    Attributes
    ----------
    is_own : whether the response is one of the library's, whose formulas can be compiled.
    of_pairs : the loops over pairs that use these formulas, by kernel (`contact.pairs.pair_loops.PairLoops`).
    """

    def __init__(self, response: Potential, constants: int):
        self.response, self.constants = response, constants
        self.is_own = is_own(response)
        self.of_pairs: dict[Any, Any] = {}
        of_contact, of_friction = "forces of contact", "friction of contact"
        self.forces = self.fused(_forces, of_contact)
        self.forces_and_derivatives = self.fused(_forces_and_derivatives, of_contact)
        self.primal_dual_derivatives = self.fused(partial(_forces_and_derivatives, primal_dual=True), of_contact)
        self.tractions = self.fused(_tractions, of_friction)
        self.expected_tractions = self.fused(_expected_tractions, of_friction)

    @classmethod
    def of(cls, response: Potential, constants: int) -> LawFormulas:
        """Return the formulas of a response: shared by kind for the library's responses, new for a user's."""
        kind = type(response)
        if not is_own(response):
            return cls(response, constants)
        if (kind, constants) not in _OF_KINDS:
            _OF_KINDS[kind, constants] = cls(kind(1.0, 1.0), constants)
        return _OF_KINDS[kind, constants]

    def __reduce__(self) -> tuple:
        return LawFormulas.of, (self.response, self.constants)

    def fused(self, function: Callable[..., Sequence], name: str) -> Fused:
        """Return `function(formulas, *tensors)` as one compiled loop, if it can be; warnings call it `name`."""
        return Fused(partial(function, self), name, self.is_own)

    def force(self, gap: Tensor, normal: Vec3, velocity: Vec3, constants: LawConstants) -> Vec3:
        """Return the force F on the body [N]; autograd can follow it."""
        slope, _ = self.response.derivatives(gap, constants.stiffness, constants.tolerance)
        if constants.friction is None:
            return normal.times(-slope)
        traction = self.traction(normal, velocity, constants)
        along_rods = constants.along_rods(_along_surface(normal, velocity))
        if along_rods is not None:
            traction = along_rods.directed(traction, normal)
        return (normal - traction).times(-slope)

    def partials(
        self, gap: Tensor, normal: Vec3, velocity: Vec3, constants: LawConstants, traction: Vec3 | None = None
    ) -> Partials:
        """Return F and its partial derivatives by gap, normal and velocity, each with the other two held fixed.

        Parameters
        ----------
        traction : an estimate of T at the root of a search. The derivatives of friction are then those of primal-dual
            Newton steps (`integrate.search.primal_dual`). None: T follows from the velocity, and the derivatives are
            exact.
        """
        slope, stiffness = self.response.derivatives(gap, constants.stiffness, constants.tolerance)
        load = -slope
        if constants.friction is None:
            return Partials(normal.times(load), normal.times(-stiffness), Mat3.diagonal(load), None)
        along = velocity.dot(normal)
        sliding = velocity - normal.times(along)
        speed = sliding.length()
        ratio, rise = self.friction_ratio(speed, constants.friction)
        direction = sliding.times(1 / torch.where(speed > 0, speed, 1.0))
        exact_traction, along_rods = sliding.times(ratio), constants.along_rods(sliding)
        # dF/dv_t = across 1 + ahead d d^T, d the direction of sliding; in primal-dual steps the traction's direction
        # stands in the place of the first d
        across = -load * ratio
        ahead = -load * rise - across
        if traction is None:
            along_traction = direction.times(ahead)
        else:
            along_traction = traction.times(-load * _log_slope(speed, ratio, rise))
        by_sliding, by_turning = Mat3.diagonal(across) + Mat3.outer(along_traction, direction), Mat3.diagonal(load)
        if along_rods is not None:
            by_sliding = along_rods.directed_changes(by_sliding, across, normal)
            by_turning = by_turning - along_rods.by_normal(exact_traction, normal).times(load)
            exact_traction = along_rods.directed(exact_traction, normal)
        pull = normal - exact_traction  # F over the load
        # v_t changes by -(along 1 + n v^T) dn and by (1 - n n^T) dv. Nothing here takes |n| for 1: rounded edges have
        # shorter "normals"
        by_along = by_sliding.applied(normal)
        by_normal = by_turning - by_sliding.times(along) - Mat3.outer(by_along, velocity)
        by_velocity = by_sliding - Mat3.outer(by_along, normal)
        return Partials(pull.times(load), pull.times(-stiffness), by_normal, by_velocity)

    def traction(self, normal: Vec3, velocity: Vec3, constants: LawConstants) -> Vec3:
        """Return the traction T = mu gamma(|v_t|) v_t / |v_t|, without coefficients along rods."""
        assert constants.friction is not None
        sliding = _along_surface(normal, velocity)
        ratio, _ = self.friction_ratio(sliding.length(), constants.friction)
        return sliding.times(ratio)

    def expected_traction(
        self, normal: Vec3, velocity: Vec3, change: Vec3, traction: Vec3, constants: LawConstants
    ) -> Vec3:
        """Return the linearised traction after a `change` of the velocity, cut off at the largest coefficient.

        Parameters
        ----------
        normal, velocity, traction : before the change.
        """
        assert constants.friction is not None
        sliding, changes = (_along_surface(normal, v) for v in (velocity, change))
        speed, friction = sliding.length(), constants.friction
        ratio, rise = self.friction_ratio(speed, friction)
        ahead = sliding.dot(changes) / torch.where(speed > 0, speed, 1.0)
        expected = (sliding + changes).times(ratio) + traction.times(_log_slope(speed, ratio, rise) * ahead)
        size = expected.length()
        return expected.times(
            torch.where(size > friction.at_rest, friction.at_rest / torch.where(size > 0, size, 1.0), 1.0)
        )

    def friction_ratio(self, speed: Tensor, friction: FrictionConstants) -> tuple[Tensor, Tensor]:
        """Return T / v_t = mu gamma(v) / v and d(mu gamma)/dv [s/m], without coefficients along rods."""
        ratio, rise = self.response.slipping(speed, friction.slip_velocity)
        mu, static, release = friction.coefficient, friction.static, friction.release
        if static is None or release is None:
            return mu * ratio, mu * rise
        present, slope = stribeck(speed, mu, friction.slip_velocity, static, release)
        return present * ratio, present * rise + slope * speed * ratio


_OF_KINDS: dict[tuple[type[Potential], int], LawFormulas] = {}


class Partials(NamedTuple):
    """The force of a contact and its partial derivatives; `by_velocity` is None without friction."""

    force: Vec3
    by_gap: Vec3
    by_normal: Mat3
    by_velocity: Mat3 | None

    def times(self, share: Tensor) -> Partials:
        """Return the force and its derivatives multiplied by `share`."""
        by_velocity = None if self.by_velocity is None else self.by_velocity.times(share)
        return Partials(self.force.times(share), self.by_gap.times(share), self.by_normal.times(share), by_velocity)


def _forces(law: LawFormulas, gap: Tensor, normal: Tensor, velocity: Tensor, *constants: Tensor) -> tuple:
    normals, velocities = Vec3(*normal.unbind(0)), Vec3(*velocity.unbind(0))
    return law.force(gap, normals, velocities, LawConstants.of(*constants)).components()


def _forces_and_derivatives(
    law: LawFormulas,
    gap: Tensor,
    normal: Tensor,
    velocity: Tensor,
    curvature: Tensor,
    *constants: Tensor,
    primal_dual: bool = False,
) -> list:
    """Return the components of F (3), dF/dx (9) and, with friction, dF/dvelocity (9).

    With `primal_dual` the first of the constants is an estimated traction, and derivatives are those of such steps.
    """
    normals, velocities = Vec3(*normal.unbind(0)), Vec3(*velocity.unbind(0))
    expected, constants = (Vec3(*constants[0].unbind(0)), constants[1:]) if primal_dual else (None, constants)
    force, by_gap, by_normal, by_velocity = law.partials(
        gap, normals, velocities, LawConstants.of(*constants), expected
    )
    turning = [Vec3(*row.unbind(0)) for row in curvature.unbind(0)]  # its columns are its rows
    columns = [
        by_normal.applied(column) + by_gap.times(n) for column, n in zip(turning, normals.components(), strict=True)
    ]
    rows = zip(*(column.components() for column in columns), strict=True)
    by_x = [entry for row in rows for entry in row]
    return [*force.components(), *by_x, *(() if by_velocity is None else by_velocity.components())]


def _tractions(law: LawFormulas, normal: Tensor, velocity: Tensor, *constants: Tensor) -> tuple:
    normals, velocities = Vec3(*normal.unbind(0)), Vec3(*velocity.unbind(0))
    return law.traction(normals, velocities, LawConstants.of(*constants)).components()


def _expected_tractions(
    law: LawFormulas, normal: Tensor, velocity: Tensor, change: Tensor, traction: Tensor, *constants: Tensor
) -> tuple:
    normals, velocities, changes, tractions = (Vec3(*x.unbind(0)) for x in (normal, velocity, change, traction))
    return law.expected_traction(normals, velocities, changes, tractions, LawConstants.of(*constants)).components()


def _log_slope(speed: Tensor, ratio: Tensor, rise: Tensor) -> Tensor:
    """Return d ln(r)/dv [s/m] for r(v) = mu gamma(v) / v, by which T = r v_t is linearised; 0 at rest.

    Parameters
    ----------
    speed, ratio, rise : v, r and d(mu gamma)/dv.
    """
    size = speed * ratio
    return torch.where(size > 0, (rise - ratio) / torch.where(size > 0, size, 1.0), 0.0)


def _along_surface(normal: Vec3, velocity: Vec3) -> Vec3:
    """Return the component v_t of a velocity in the plane of the surface."""
    return velocity - normal.times(velocity.dot(normal))

"""The law of a contact: a force (`ContactLaw`), whose formulas are in `law_formulas.py`, or a constraint."""

from __future__ import annotations

from torch import Tensor, nn

from torchdismech.contact.copies import own_copy
from torchdismech.contact.law_formulas import LawConstants, LawFormulas
from torchdismech.contact.response import Complementarity, Friction, Potential, Response
from torchdismech.errors import InputError, refuse_other_kind

__all__ = ["ConstraintLaw", "ContactLaw", "Ruled", "constants_of", "law_of"]


class ConstraintLaw(nn.Module):
    """Contact as a constraint, with Coulomb friction or none: see `contact.constraints`."""

    def __init__(self, response: Complementarity, friction: Friction | None = None):
        super().__init__()
        if friction is not None and friction.slip_velocity is not None:
            raise InputError("Friction.slip_velocity: Complementarity does not smooth friction; leave it out")
        if friction is not None and friction.static is not None:
            raise InputError("Friction.static: Complementarity has one coefficient; take Penalty or Barrier")
        if friction is not None and friction.directional:
            raise InputError(
                "Friction.forward_coefficient: Complementarity has one coefficient, the same all around; take Penalty "
                "or Barrier"
            )
        self.response = response
        self.friction = friction


class ContactLaw(nn.Module):
    """A contact law that is a force: the normal response of a potential, with friction or none.

    Attributes
    ----------
    formulas : the law without its constants.
    """

    response: Potential
    formulas: LawFormulas

    def __init__(self, response: Potential, friction: Friction | None = None):
        super().__init__()
        if friction is not None and friction.slip_velocity is None:
            raise InputError(
                f"Friction.slip_velocity: {type(response).__name__} needs one, the velocity [m/s] at which friction "
                "has its full size"
            )
        self.response = response
        self.friction = friction
        self.formulas = LawFormulas.of(response, len(self.constants.tensors()))

    @property
    def constants(self) -> LawConstants:
        """The law's present constants, each () or (B, 1)."""
        friction = None if self.friction is None else self.friction.given()
        return LawConstants(self.response.stiffness, self.response.tolerance, friction)

    def energy(self, gap: Tensor, constants: LawConstants) -> Tensor:
        """Return the potential (..) of the normal force [J]."""
        return self.response.energy(gap, constants.stiffness, constants.tolerance)

    def forces(self, gap: Tensor, normal: Tensor, velocity: Tensor, tangent: Tensor | None = None) -> Tensor:
        """Return F (B, N, 3) [N] for gaps (B, N), normals and relative velocities (B, N, 3); autograd can follow it.

        Parameters
        ----------
        tangent : (B, N, 3) of rods, zero where there is none; only needed for coefficients along rods.
        """
        arguments = self._last_arguments(tangent)
        rows = self.formulas.forces(
            gap.shape[1], gap.t(), normal.permute(2, 1, 0), velocity.permute(2, 1, 0), *arguments
        )
        return rows.permute(2, 1, 0)

    def forces_and_derivatives(
        self,
        gap: Tensor,
        normal: Tensor,
        curvature: Tensor,
        velocity: Tensor,
        traction: Tensor | None = None,
        tangent: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return F (B, N, 3), dF/dx and dF/dvelocity (B, N, 3, 3); the last is None without friction.

        Parameters
        ----------
        curvature : (B, N, 3, 3) dn/dx, symmetric [1/m].
        traction : (B, N, 3) an estimate of T at the root of a search; see `LawFormulas.partials`.
        tangent : as for `forces`; derivatives take it for constant.
        """
        moving = (normal.permute(2, 1, 0), velocity.permute(2, 1, 0))
        arguments = self._last_arguments(tangent)
        turning = curvature.permute(3, 2, 1, 0)
        if traction is None:
            rows = self.formulas.forces_and_derivatives(gap.shape[1], gap.t(), *moving, turning, *arguments)
        else:
            expected = traction.permute(2, 1, 0)
            rows = self.formulas.primal_dual_derivatives(gap.shape[1], gap.t(), *moving, turning, expected, *arguments)
        force = rows[:3].permute(2, 1, 0)
        by_x, *by_velocity = (part.unflatten(0, (3, 3)).permute(3, 2, 0, 1) for part in rows[3:].split(9))
        return force, by_x, by_velocity[0] if by_velocity else None

    def tractions(self, normal: Tensor, velocity: Tensor) -> Tensor:
        """Return the tractions T (B, N, 3) for normals and velocities (B, N, 3), without coefficients along rods."""
        moving = (normal.permute(2, 1, 0), velocity.permute(2, 1, 0))
        return self.formulas.tractions(normal.shape[1], *moving, *self._numbers).permute(2, 1, 0)

    def expected_tractions(self, normal: Tensor, velocity: Tensor, change: Tensor, traction: Tensor) -> Tensor:
        """Return the linearised tractions (B, N, 3) after a `change` of the velocities, as primal-dual steps need them.

        They are linearised as in `LawFormulas.partials`, and cut off at the largest coefficient.

        Parameters
        ----------
        normal, velocity, traction : (B, N, 3) before the change.
        """
        tensors = (x.permute(2, 1, 0) for x in (normal, velocity, change, traction))
        return self.formulas.expected_tractions(normal.shape[1], *tensors, *self._numbers).permute(2, 1, 0)

    def _last_arguments(self, tangent: Tensor | None) -> tuple[Tensor, ...]:
        """Return the last arguments of formulas: the constants, then tangents if friction needs them."""
        if self.friction is None or not self.friction.directional:
            return self._numbers
        assert tangent is not None
        return *self._numbers, tangent.permute(2, 1, 0)

    @property
    def _numbers(self) -> tuple[Tensor, ...]:
        """The present constants, (1, B) or ()."""
        return tuple(tensor.t() for tensor in self.constants.tensors())


def law_of(response: Response, friction: Friction | None) -> ContactLaw | ConstraintLaw:
    """Return the law of a response and friction, of which it takes copies unless they are trained (`own_copy`)."""
    if friction is not None:
        refuse_other_kind("friction", friction, Friction, "a Friction or None")
    if not isinstance(response, Potential | Complementarity):
        expected = "Penalty, Barrier, another Potential or Complementarity"
        raise InputError(f"response: expected {expected}, got {type(response).__name__}")
    response, friction = own_copy(response), None if friction is None else own_copy(friction)
    return ContactLaw(response, friction) if isinstance(response, Potential) else ConstraintLaw(response, friction)


def constants_of(law: ContactLaw | ConstraintLaw) -> list[Tensor]:
    """Return the constants of a law's response and friction, each () or (B, 1)."""
    parts = [law.response] if law.friction is None else [law.response, law.friction]
    named = (getattr(part, name) for part in parts for name in part.per_robot)
    return [constant for constant in named if constant is not None]


class Ruled:
    """What obstacles and contacts between parts have in common: a law, whose contacts are forces or constraints."""

    law: ContactLaw | ConstraintLaw

    @property
    def constrained(self) -> bool:
        """Whether the contact is a constraint, whose loads the integrator solves for, and no force."""
        return isinstance(self.law, ConstraintLaw)

    @property
    def rubs(self) -> bool:
        """Whether it has smoothed friction: it is no constraint, and has a `Friction`."""
        return not self.constrained and self.law.friction is not None

    @property
    def force_law(self) -> ContactLaw:
        """The law, of a contact that is a force and no constraint."""
        assert isinstance(self.law, ContactLaw)
        return self.law

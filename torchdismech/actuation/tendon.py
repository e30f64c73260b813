"""Tendons: what runs through routing points of a robot and is pulled by a motor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.actuation.routed import Route, RoutedForce
from torchdismech.actuation.tension import Segments, Slip
from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import scalar
from torchdismech.state import Control, State

__all__ = ["Tendon"]


class Tendon(RoutedForce):
    r"""A tendon that a motor pulls at the first point of its route and that ends at the last.

    It is driven by tension or by length. By tension T it has the energy T L, L the length of the path. By length it is
    a spring that does not push: with the unstretched length l_0 = L_rest / (1 + pretension / EA), of which the motor
    takes in `pull`,

        T = EA / l_0 max(0, L - l_0 + pull).

    With friction the tension falls or grows from point to point by the law of capstans (see `actuation.tension`), and
    the force depends on velocity: there is none at rest, so `Static` finds equilibria without it. The matrix of a step
    is unsymmetric then. Driven by length or with friction, a tendon couples all dofs on its path: the matrix is full
    there.

    Contact of the tendon itself with bodies is not modelled: between its points it is straight.

    Parameters
    ----------
    route : its points from the motor on; see `AtNodes`, `OnEdges`, `Fixed`.
    tension : T at the motor, 0 or more, () or (B, 1) [N]; `Control(values={"Tendon.tension": ...})` sets it in a step.
    pull : length that the motor takes in, () or (B, 1) [m]; below zero it lets out. Set by "Tendon.pull".
    stiffness : EA of a tendon driven by length, () or (B, 1) [N].
    pretension : of a tendon driven by length, as built with pull = 0, () or (B, 1) [N].
    friction : coefficient mu at the points, () or (B, 1); None for none.
    slip_velocity : below this velocity of slip friction fades, () or (B, 1) [m/s].
    """

    tension: Tensor | None
    pull: Tensor
    stiffness: Tensor
    pretension: Tensor
    friction: Tensor | None
    slip_velocity: Tensor
    not_negative = ("tension", "stiffness", "pretension", "friction", "slip_velocity")

    def __init__(
        self,
        route: Route | Sequence[Route],
        tension=None,
        pull=None,
        stiffness=None,
        pretension=None,
        friction=None,
        slip_velocity=1e-3,
    ):
        super().__init__(route)  # type: ignore[arg-type]
        if (tension is None) == (pull is None):
            raise InputError("Tendon: give either tension, the force [N], or pull, the length taken in [m]")
        if pull is None and (stiffness is not None or pretension is not None):
            raise InputError("Tendon: stiffness and pretension are of tendons driven by length; leave them out")
        if pull is not None and stiffness is None:
            raise InputError("Tendon.stiffness: a tendon driven by length needs its stiffness EA [N]")
        given = {"tension": tension, "pull": pull, "stiffness": stiffness, "friction": friction}
        given["pretension"] = None if pull is None else 0.0 if pretension is None else pretension
        given["slip_velocity"] = None if friction is None else slip_velocity
        for name, value in given.items():
            number = None if value is None else scalar(value, f"Tendon.{name}")
            if number is not None and name in self.not_negative:
                _refuse_small(name, number)
            parameter = None if number is None else nn.Parameter(number.detach().clone(), requires_grad=False)
            self.register_parameter(name, parameter)
        self.per_robot = ("offset", *(name for name, value in given.items() if value is not None))
        self.conservative = friction is None

    def bind(self, body: Body) -> None:
        """Find what carries the points; refuse friction where there is nothing to rub at."""
        super().bind(body)
        if self.rubs and len(self.path.dofs) < 3:
            raise InputError("Tendon.friction: a route of two points has no inner point to rub at; leave friction out")

    @property
    def coupled(self) -> bool:
        """Whether the tension in a segment changes with other segments."""
        return self.tension is None or self.rubs

    @property
    def rubs(self) -> bool:
        """Whether there is friction."""
        return self.friction is not None

    def tensions(self, state: State) -> Tensor:
        """Return the tensions (B, M) in the segments at a state, with the model's own constants [N]."""
        at = self._at(state)
        rates = at.velocity(state).diff(dim=1) if self.rubs else None
        return self.tension_in(Segments.between(at.points), rates)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) without friction [J]."""
        length = Segments.between(self.points(state)).length
        if self.tension is not None:
            return (self.tension * length).sum(1)
        tension, stiffness = self._at_motor(length)
        taut = stiffness > 0
        return torch.where(taut, 0.5 * tension**2 / torch.where(taut, stiffness, 1.0), 0.0).squeeze(1)

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (B, M) [N]."""
        length = segments.length
        tension, _ = self._at_motor(length)
        if rates is None or self.friction is None:
            return tension.expand_as(length)
        gain = torch.exp(Slip.along(segments, rates, self.friction, self.slip_velocity).log)
        return tension * gain if self.tension is not None else tension * gain / _mean(gain, length)

    def tension_derivatives(self, segments: Segments, rates: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return those by the segments and by their rates (B, M, M, 3); None for zero."""
        length, u = segments.length, segments.direction
        at_motor, stiffness = self._at_motor(length)
        if rates is None or self.friction is None:
            every = stiffness.unsqueeze(-1) * u
            return every.unsqueeze(1).expand(-1, u.shape[1], -1, -1), None
        slip = Slip.with_derivatives(segments, rates, self.friction, self.slip_velocity)
        assert slip.by_segments is not None and slip.by_rates is not None
        gain = torch.exp(slip.log)
        if self.tension is not None:
            tension = (at_motor * gain)[..., None, None]
            return tension * slip.by_segments, tension * slip.by_rates
        # the mean of c, weighted by length, divides the tension at the motor
        total, mean = length.sum(1, keepdim=True), _mean(gain, length)
        weight = (gain * length / total)[..., None, None]
        mean_by_segments = (weight * slip.by_segments).sum(1) + ((gain - mean) / total).unsqueeze(-1) * u
        mean_by_rates = (weight * slip.by_rates).sum(1)
        share = (at_motor / mean).unsqueeze(-1)  # of the tension at the motor, and by the mean
        motor_by_segments = (stiffness.unsqueeze(-1) * u - share * mean_by_segments).unsqueeze(1)
        motor_by_rates = -(share * mean_by_rates).unsqueeze(1)
        along, share = (gain / mean)[..., None, None], share.unsqueeze(-1) * gain[..., None, None]
        return along * motor_by_segments + share * slip.by_segments, along * motor_by_rates + share * slip.by_rates

    def _at_motor(self, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tension (B, 1) at the motor and its derivative by the length of the path.

        Driven by length with friction it is the tension that the tendon would have without.
        """
        if self.tension is not None:
            return self.tension.expand(len(length), 1), torch.zeros_like(length[:, :1])
        unstretched = self.rest_segments().length.sum(1, keepdim=True) / (1 + self.pretension / self.stiffness)
        stretch = length.sum(1, keepdim=True) - unstretched + self.pull
        spring = self.stiffness / unstretched
        return spring * stretch.clamp(min=0), torch.where(stretch > 0, spring, 0.0)


def _mean(gain: Tensor, length: Tensor) -> Tensor:
    return (gain * length).sum(1, keepdim=True) / length.sum(1, keepdim=True)


def _refuse_small(name: str, number: Tensor) -> None:
    """Refuse numbers below zero, and zero where it has no meaning."""
    positive = name in ("stiffness", "slip_velocity")
    if bool((number <= 0 if positive else number < 0).any()):
        expected = "more than 0" if positive else "0 or more"
        raise InputError(f"Tendon.{name}: expected {expected}, got {number.min().item():g}")

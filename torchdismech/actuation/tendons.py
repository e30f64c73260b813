"""Tendons: cables through routing points of a robot, pulled by motors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.actuation.routed import Route, RoutedForce, per_route
from torchdismech.actuation.tension import Segments, Slip
from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given

__all__ = ["SLIP_VELOCITY", "Tendons"]

SLIP_VELOCITY = 1e-3  # default [m/s]


class Tendons(RoutedForce):
    r"""Tendons, each pulled by a motor at the first point of its route, that end at the last.

    They are driven by tension or by length. Driven by tension T, a tendon has the energy T L, L the length of its path.
    Driven by length, it is a spring that does not push: with the unstretched length
    l_0 = L_rest / (1 + pretension / EA), of which the motor takes in `pull`,

        T = EA / l_0 max(0, L - l_0 + pull).

    With friction the tension falls or grows from point to point by the capstan equation (see `actuation.tension`), and
    the force depends on velocity. There is no friction at rest, so `Static` finds equilibria without it. With friction
    the matrix of a step is unsymmetric. Driven by length or with friction, a tendon couples all dofs on its path: the
    matrix is full there.

    Contact of the tendons themselves with bodies is not modelled: between its points a tendon is straight.

    A number holds for all tendons, or is given for each (T,), for each robot (B, 1), or for each of both (B, T).

    Parameters
    ----------
    routes : for each of the T tendons its points from the motor on, a part or a list of them; see `AtNodes`, `OnEdges`
        and `Fixed`.
    tension : T at the motors, 0 or more [N]; `Control(values={"Tendons.tension": (B, T)})` sets it in a step, if it was
        given for each tendon here.
    pull : lengths that the motors take in [m]; below zero they let out. Set by "Tendons.pull".
    stiffness : EA of tendons driven by length [N].
    pretension : of tendons driven by length, as built with pull = 0 [N].
    friction : coefficient mu at the inner points; None: no friction.
    slip_velocity : slip velocity below which friction fades, by default 1e-3 [m/s].
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
        routes: Sequence[Route | Sequence[Route]],
        tension: Given | None = None,
        pull: Given | None = None,
        stiffness: Given | None = None,
        pretension: Given | None = None,
        friction: Given | None = None,
        slip_velocity: Given | None = None,
    ):
        super().__init__(routes)
        if (tension is None) == (pull is None):
            raise InputError("Tendons: give either tension, the force [N], or pull, the length taken in [m]")
        if pull is None and (stiffness is not None or pretension is not None):
            raise InputError("Tendons: stiffness and pretension are of tendons driven by length; leave them out")
        if pull is not None and stiffness is None:
            raise InputError("Tendons.stiffness: tendons driven by length need their stiffness EA [N]")
        if friction is None and slip_velocity is not None:
            raise InputError("Tendons.slip_velocity: belongs to friction, which is not given; leave it out")
        constants = {"tension": tension, "pull": pull, "stiffness": stiffness, "friction": friction}
        constants["pretension"] = None if pull is None else 0.0 if pretension is None else pretension
        constants["slip_velocity"] = SLIP_VELOCITY if friction is not None and slip_velocity is None else slip_velocity
        for name, value in constants.items():
            number = None if value is None else per_route(value, f"Tendons.{name}", len(self.routes))
            if number is not None and name in self.not_negative:
                _refuse_small(name, number)
            parameter = None if number is None else nn.Parameter(number, requires_grad=False)
            self.register_parameter(name, parameter)
        self.per_robot = ("offset", *(name for name, value in constants.items() if value is not None))
        self.conservative = friction is None

    def bind(self, body: Body) -> None:
        """Find what carries the points; refuse friction without inner points, and pulls longer than a tendon."""
        super().bind(body)
        if self.rubs and not len(self.paths.before):
            raise InputError("Tendons.friction: routes of two points have no inner point to rub at; leave friction out")
        if self.pull is not None and (problem := self.problem_of_pull(self.pull.detach())):
            raise InputError(f"Tendons.pull: {problem}")

    def problem_of_pull(self, pull: Tensor) -> str | None:
        """Return the problem, in words, of a pull [m] as long as a tendon or longer; None where there is none.

        The pull is (), (T,), (B, 1) or (B, T).
        """
        with torch.no_grad():
            length, pull = torch.broadcast_tensors(self.rest_segments().total, pull)
            if not bool((pull >= length).any()):
                return None
            robot, tendon = divmod(int((pull - length).argmax()), length.shape[1])
            pulled, rest = float(pull[robot, tendon]), float(length[robot, tendon])
        whose = f" of robot {robot}" if len(length) > 1 else ""
        return (
            f"tendon {tendon}{whose} is to be pulled in by {pulled:.4g} m, and is {rest:.4g} m long: give the "
            "length that the motor takes in, in m"
        )

    @property
    def coupled(self) -> bool:
        """Whether the tension in a segment changes with other segments."""
        return self.tension is None or self.rubs

    @property
    def rubs(self) -> bool:
        """Whether there is friction."""
        return self.friction is not None

    def tensions(self, state: State) -> Tensor:
        """Return the tensions (B, M) in the segments at a state, with the constants that the model holds [N].

        With the constants that a control sets, call it within `with model.holding(state, control):`.
        """
        at = self._at(state)
        rates = self.route_points.differences(at.velocity(state)) if self.rubs else None
        return self.tension_in(Segments.between(self.paths, at.points), rates)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) without friction [J]."""
        segments = self.segments(state)
        tension, stiffness = self._at_motors(segments)
        if self.tension is not None:
            return (tension * segments.total).sum(1)
        taut = stiffness > 0
        return torch.where(taut, 0.5 * tension**2 / torch.where(taut, stiffness, 1.0), 0.0).sum(1)

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (B, M) in the segments [N]."""
        tension, _ = self._at_motors(segments)
        path_of = self.paths.path_of
        if rates is None or self.friction is None:
            return tension[:, path_of]
        gain = torch.exp(Slip.along(segments, rates, *self._at_bends()).log)
        if self.tension is None:
            tension = tension / self._mean(gain, segments)
        return tension[:, path_of] * gain

    def tension_derivatives(self, segments: Segments, rates: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the tensions' derivatives by the segments and by their rates (B, M, M, 3); None for zero."""
        tension, stiffness = self._at_motors(segments)
        along, path_of = self.paths.along, self.paths.path_of
        of_path = along.mT.unsqueeze(-1) * segments.direction.unsqueeze(1)  # (B, T, M, 3) derivatives of path lengths
        if rates is None or self.friction is None:
            return (stiffness[..., None, None] * of_path)[:, path_of], None
        slip = Slip.with_derivatives(segments, rates, *self._at_bends())
        assert slip.by_segments is not None and slip.by_rates is not None
        gain = torch.exp(slip.log)
        if self.tension is not None:
            weight = (tension[:, path_of] * gain)[..., None, None]
            return weight * slip.by_segments, weight * slip.by_rates
        # driven by length, the tension at the motor is that without friction over the mean of c, weighted by length
        total, mean = segments.total, self._mean(gain, segments)
        weight = (gain * segments.length / total[:, path_of])[..., None, None]
        excess = ((gain - mean[:, path_of]) / total[:, path_of]).unsqueeze(-1)
        mean_by_segments = self._summed(weight * slip.by_segments) + excess.unsqueeze(1) * of_path
        mean_by_rates = self._summed(weight * slip.by_rates)
        at_motor, stiffness = (x[..., None, None] for x in (tension / mean, stiffness / mean))
        motor_by_segments = stiffness * of_path - at_motor / mean[..., None, None] * mean_by_segments
        motor_by_rates = -at_motor / mean[..., None, None] * mean_by_rates
        segment_tension, gain = at_motor[:, path_of] * gain[..., None, None], gain[..., None, None]
        return (
            gain * motor_by_segments[:, path_of] + segment_tension * slip.by_segments,
            gain * motor_by_rates[:, path_of] + segment_tension * slip.by_rates,
        )

    def _at_motors(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """Return the tensions (B, T) at the motors and their derivatives by the lengths of the paths.

        For tendons driven by length they are those without friction.
        """
        total = segments.total
        if self.tension is not None:
            return self.tension.expand_as(total), torch.zeros_like(total)
        unstretched = self.rest_segments().total / (1 + self.pretension / self.stiffness)
        stretch, spring = total - unstretched + self.pull, (self.stiffness / unstretched).expand_as(total)
        return spring * stretch.clamp(min=0), torch.where(stretch > 0, spring, 0.0)

    def _at_bends(self) -> tuple[Tensor, Tensor]:
        """Return friction coefficient and slip velocity, each (B or 1, I), at the bends."""
        bends, count = self.paths.path_of[self.paths.before], len(self.routes)
        assert self.friction is not None
        mu, velocity = (torch.atleast_2d(x) for x in (self.friction, self.slip_velocity))
        return mu.expand(-1, count)[:, bends], velocity.expand(-1, count)[:, bends]

    def _mean(self, gain: Tensor, segments: Segments) -> Tensor:
        """Return the means (B, T) along the paths, weighted by length, of a gain (B, M) of the segments."""
        return (gain * segments.length) @ self.paths.along / segments.total

    def _summed(self, by: Tensor) -> Tensor:
        """Return the sums (B, T, M, 3), over the segments of each path, of derivatives (B, M, M, 3)."""
        return (self.paths.along.mT @ by.flatten(2)).unflatten(2, (-1, 3))


def _refuse_small(name: str, number: Tensor) -> None:
    """Refuse numbers below zero, and zero for stiffness and slip velocity."""
    positive = name in ("stiffness", "slip_velocity")
    if bool((number <= 0 if positive else number < 0).any()):
        expected = "more than 0" if positive else "0 or more"
        raise InputError(f"Tendons.{name}: expected {expected}, got {number.min().item():g}")

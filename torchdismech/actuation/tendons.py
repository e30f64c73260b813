"""Tendons: cables through routing points of a robot, pulled by motors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.actuation import formulas
from torchdismech.actuation.routed import Coupling, Route, RoutedForce, by_route, per_route
from torchdismech.actuation.tension import Segments, Slip, product
from torchdismech.errors import InputError
from torchdismech.forces.rubbing import RubbingForce
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["SLIP_VELOCITY", "Tendons"]

SLIP_VELOCITY = 1e-3  # default [m/s]


class Tendons(RoutedForce, RubbingForce):
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
            self.register_parameter(name, None if number is None else untrained(number))
        self.register_buffer("traction", None, persistent=False)
        self.per_robot = ("offset", "traction", *(name for name, value in constants.items() if value is not None))
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
            length, pull = torch.broadcast_tensors(self.rest_segments().total.t(), pull)
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
        return self._evaluated(state).tension.t()

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) without friction [J]."""
        segments = self.segments(state)
        tension, stiffness = self._at_motors(segments)
        if self.tension is not None:
            return (tension * segments.total).sum(0)
        taut = stiffness > 0
        return torch.where(taut, 0.5 * tension**2 / torch.where(taut, stiffness, 1.0), 0.0).sum(0)

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (M, B) in the segments [N]."""
        tension, _ = self._at_motors(segments)
        path_of = self.paths.path_of
        if rates is None:
            return tension[path_of]
        gain = torch.exp(self._slip(segments, rates).log)
        if self.tension is None:
            tension = tension / self._mean(gain, segments)
        return tension[path_of] * gain

    def coupling(self, segments: Segments, rates: Tensor | None, columns: Tensor) -> Coupling:
        """Return how the tensions change with the dofs, see `RoutedForce.coupling`."""
        by_length = columns[0]
        if rates is None:
            _, stiffness = self._at_motors(segments)
            of_paths = self.paths.summed(by_length)
            return Coupling(of_paths, stiffness.unsqueeze(-1) * of_paths, None)
        slip = self._slip(segments, rates)
        by_q, by_velocity = slip.by_dofs(columns[1], columns[2:]), slip.by_dofs(by_length)
        # a change of the term at a bend changes the logarithms of all tensions beyond it
        beyond = product(self.paths.beyond, self.tension_in(segments, rates).unsqueeze(-1) * by_length)
        if self.tension is not None:
            return Coupling(beyond, by_q, by_velocity)
        motor, motor_by_q, motor_by_velocity = self._at_motors_by_dofs(segments, slip, by_length, by_q, by_velocity)
        return Coupling(
            torch.cat([beyond, motor]), torch.cat([by_q, motor_by_q]), torch.cat([by_velocity, motor_by_velocity])
        )

    def _at_motors_by_dofs(
        self, segments: Segments, slip: Slip, by_length: Tensor, by_q: Tensor, by_velocity: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return for tensions at the motors their pulls, and their derivatives by positions and velocities (T, B, D).

        With friction, the tension at the motor of a tendon that is driven by length is that without friction over the
        mean of c, weighted by length.

        Parameters
        ----------
        by_length : (M, B, D) derivatives of the segments' lengths.
        by_q, by_velocity : (I, B, D) derivatives of the terms at bends.
        """
        paths, gain = self.paths, torch.exp(slip.log)
        tension, stiffness = self._at_motors(segments)
        mean, total = self._mean(gain, segments), segments.total
        excess = ((gain - mean[paths.path_of]) / total[paths.path_of]).unsqueeze(-1)
        shares = paths.beyond @ (gain * segments.length / total[paths.path_of])  # (I, B): of what is beyond a bend
        shares = shares.unsqueeze(-1)
        mean_by_q = paths.summed(excess * by_length) + product(paths.of_bends, shares * by_q)
        mean_by_velocity = product(paths.of_bends, shares * by_velocity)
        spring, loss = (x.unsqueeze(-1) for x in (stiffness / mean, tension / mean**2))
        return (
            paths.summed(gain.unsqueeze(-1) * by_length),
            spring * paths.summed(by_length) - loss * mean_by_q,
            -loss * mean_by_velocity,
        )

    def _at_motors(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """Return the tensions (T, B) at the motors and their derivatives by the lengths of the paths.

        For tendons driven by length they are those without friction.
        """
        total, count = segments.total, len(self.routes)
        if self.tension is not None:
            return by_route(self.tension, count).expand_as(total), torch.zeros_like(total)
        stiffness, pretension, pull = (by_route(x, count) for x in (self.stiffness, self.pretension, self.pull))
        unstretched = self.rest_segments().total / (1 + pretension / stiffness)
        stretch, spring = total - unstretched + pull, (stiffness / unstretched).expand_as(total)
        return spring * stretch.clamp(min=0), torch.where(stretch > 0, spring, 0.0)

    def _slip(self, segments: Segments, rates: Tensor) -> Slip:
        """Return the slip at the bends."""
        assert self.friction is not None
        expected = None if self.traction is None else self.traction[..., 0].t()
        return Slip.of(segments, rates, self._at_bends(self.friction), self._at_bends(self.slip_velocity), expected)

    def _at_bends(self, constant: Tensor) -> Tensor:
        """Return a constant (I, 1 or B) of the tendons at their bends."""
        return by_route(constant, len(self.routes))[self.paths.path_of[self.paths.before]]

    def first_friction(self, state: State) -> Tensor:
        """Return s and w (B, I, 2) at the bends; see `actuation.tension`."""
        speed = self._speeds(state)
        share = speed / torch.sqrt(speed**2 + self._at_bends(self.slip_velocity) ** 2)
        return torch.stack([share.t(), speed.t()], dim=-1)

    def expected_friction(self, state: State, before: Tensor) -> Tensor:
        """Return the linearised s, and w (B, I, 2), at the next iterate."""
        speed = self._speeds(state)
        share, speed_before = before.permute(2, 1, 0)
        found = formulas.EXPECTED_SHARE(len(speed), speed, share, speed_before, self._at_bends(self.slip_velocity))
        return torch.stack([found[0].t(), speed.t()], dim=-1)

    def _speeds(self, state: State) -> Tensor:
        """Return w (I, B) at the bends."""
        at = self._at(state)
        segments = Segments.between(self.paths, at.position)
        return segments.speeds(segments.rates(at.velocity()))

    def _mean(self, gain: Tensor, segments: Segments) -> Tensor:
        """Return the means (T, B) along the paths, weighted by length, of a gain (M, B) of the segments."""
        return self.paths.along @ (gain * segments.length) / segments.total


def _refuse_small(name: str, number: Tensor) -> None:
    """Refuse numbers below zero, and zero for stiffness and slip velocity."""
    positive = name in ("stiffness", "slip_velocity")
    if bool((number <= 0 if positive else number < 0).any()):
        expected = "more than 0" if positive else "0 or more"
        raise InputError(f"Tendons.{name}: expected {expected}, got {number.min().item():g}")

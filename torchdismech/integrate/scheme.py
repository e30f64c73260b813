"""Scheme: a rule of time stepping as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.elastic.term_constants import StrainRate
from torchdismech.robot.state import State

__all__ = ["Scheme"]


@dataclass(frozen=True)
class Scheme:
    """A rule of time stepping: how velocity and acceleration follow from the q at the end of a step, its unknown.

    With d = q - q_n, the velocity at which forces are evaluated is sum_k velocity_k r_k of the rates
    r = (d / dt, u_n, dt a_n), which all have the unit of a velocity; the acceleration of the inertial force is the sum
    with the weights `acceleration`, divided by dt. Multi-step rules have further rates, see `known_rates`.

    Attributes
    ----------
    velocity, acceleration : weights of the rates, for the velocity that forces see and for the inertial force.
    end_velocity : weights of the rates for the velocity after the step.
    position : forces are evaluated at q_n + position * d.
    time : forces are evaluated at the time t_n + time * dt.
    damps : whether the rule damps fast motion.
    order : of the rule in dt.
    """

    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    end_velocity: tuple[float, ...]
    position: float = 1.0
    time: float = 1.0
    damps: bool = False
    order: int = 2

    @property
    def inertial(self) -> bool:
        """Whether there is an inertial force: not in equilibria."""
        return any(self.acceleration)

    @property
    def reads_acceleration(self) -> bool:
        """Whether a step sees the forces at its start, too, by the acceleration there."""
        return any(self.acceleration[2:])

    @property
    def rings(self) -> bool:
        """Whether each velocity takes the one before with the other sign, as it would for prescribed dofs for ever."""
        return self.inertial and any(self.end_velocity[1:])

    def started(self, state: State, dt: float) -> State:
        """Return the state with all that the rule remembers of steps before, made up where there were none.

        What other rules remember does not outlive a step of this one.
        """
        if type(state) is State:
            return state
        return State.of(state)

    def known_rates(self, state: State, dt: Tensor) -> list[Tensor]:
        """Return the rates (B, n) besides d / dt."""
        return [state.velocity, dt * state.acceleration]

    def rate(self, weights: Sequence[float], state: State, q: Tensor, dt: Tensor) -> Tensor:
        """Return the weighted sum (B, n) of the rates for q (B, n) at the end of the step."""
        known = self.known_rate(weights, state, dt)
        if not weights[0]:
            return torch.zeros_like(q) if known is None else known
        gained = (weights[0] / dt) * (q - state.q)
        return gained if known is None else gained + known

    def known_rate(self, weights: Sequence[float], state: State, dt: Tensor) -> Tensor | None:
        """Return what of the weighted sum (B, n) of the rates is known before the step; None where that is nothing."""
        if not any(weights[1:]):
            return None
        terms = []
        for weight, rate in zip(weights[1:], self.known_rates(state, dt), strict=True):
            if weight:
                terms.append(rate if weight == 1 else weight * rate)
        return sum(terms[1:], start=terms[0])

    def strain_rate(self, state: State, dt: float | Tensor) -> StrainRate | None:
        """Return by which rates strains dissipate in a step; None: by their difference from those at its start.

        The velocity u that forces see is (q - q*) / time, with q* known. Along u a strain is off by its curvature: its
        rate is (strain(q) - strain(q*)) / time + time / 2 strain'' u^2, to second order. The curvature is found from
        three points about q*, along the velocity at the start of the step.
        """
        if self.order < 2 or not self.inertial:
            return None
        length = dt if isinstance(dt, Tensor) else state.q.new_tensor(dt)
        time, known = self.position * length / self.velocity[0], torch.zeros_like(state.q)
        for weight, rate in zip(self.velocity[1:], self.known_rates(state, length), strict=True):
            if weight:
                known = known + weight * rate
        there, ahead = state.q - time * known, time * state.velocity
        return StrainRate(time, (2.0, -0.5, -0.5), (there, there + ahead, there - ahead))

    def remembered(self, state: State, q: Tensor, velocity: Tensor) -> dict[str, Tensor]:
        """Return the fields of the state after a step that hold what the next steps need of this one.

        Parameters
        ----------
        state : before the step.
        q, velocity : (B, n) after it.
        """
        return {}

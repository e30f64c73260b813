"""Scheme: a rule of time stepping, given by the weights of its formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.elastic.term_constants import StrainRate
from torchdismech.robot.state import State
from torchdismech.robot.unknowns import Unknowns

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
    damps_strongly : whether the rule damps fast motion so strongly that first iterates may count on it, as implicit
        Euler does; see `search.first_iterate.smooth_change`.
    order : order of accuracy in dt.
    """

    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    end_velocity: tuple[float, ...]
    position: float = 1.0
    time: float = 1.0
    damps_strongly: bool = False
    order: int = 2

    @property
    def inertial(self) -> bool:
        """Whether there is an inertial force: False for the search for equilibria."""
        return any(self.acceleration)

    @property
    def reads_acceleration(self) -> bool:
        """Whether a step depends on the acceleration at its start, and so on the forces there.

        BDF2 counts, as the first step of a run does: its history is made up from that acceleration.
        """
        return any(self.acceleration[2:])

    @property
    def rings(self) -> bool:
        """Whether the velocity after a step contains the one before with the opposite sign.

        Where positions are prescribed such a velocity would alternate for ever; see `PrescribedMotion`.
        """
        return self.inertial and any(self.end_velocity[1:])

    def started(self, state: State, dt: float) -> State:
        """Return the state with the history that the rule needs, made up for robots that have none.

        The history that another rule has left in the state is dropped.
        """
        if type(state) is State:
            return state
        return State.of(state)

    def known_rates(self, state: State, dt: Tensor) -> list[Tensor]:
        """Return the rates (B, n) that are known before the step: all but d / dt."""
        return [state.velocity, dt * state.acceleration]

    def rate(self, weights: Sequence[float], state: State, q: Tensor, dt: Tensor) -> Tensor:
        """Return the weighted sum (B, n) of the rates, for q (B, n) at the end of the step."""
        known = self.known_rate(weights, state, dt)
        if not weights[0]:
            return torch.zeros_like(q) if known is None else known
        gained = (weights[0] / dt) * (q - state.q)
        return gained if known is None else gained + known

    def known_rate(self, weights: Sequence[float], state: State, dt: Tensor) -> Tensor | None:
        """Return the part (B, n) of the weighted sum of rates that is known before the step; None if there is none."""
        if not any(weights[1:]):
            return None
        terms = []
        for weight, rate in zip(weights[1:], self.known_rates(state, dt), strict=True):
            if weight:
                terms.append(rate if weight == 1 else weight * rate)
        return sum(terms[1:], start=terms[0])

    def strain_rate(self, state: State, dt: float | Tensor, unknowns: Unknowns) -> StrainRate | None:
        """Return how rates of strains are found for dissipation; None: from the strain at the start of the step alone.

        The velocity u that forces see is (q - q*) / time, with q* known. Along u a strain differs from its
        linearisation by its curvature: its rate is (strain(q) - strain(q*)) / time + time / 2 strain'' u^2, to second
        order. The curvature is found from three points about q*, along the velocity at the start of the step.

        Angles without inertia are in the state where forces were evaluated last: before the start of the step, if that
        was not the end of the step before. Their velocity takes them from there to the start.
        """
        if self.order < 2 or not self.inertial:
            return None
        length = dt if isinstance(dt, Tensor) else state.q.new_tensor(dt)
        time, known = self.position * length / self.velocity[0], torch.zeros_like(state.q)
        for weight, rate in zip(self.velocity[1:], self.known_rates(state, length), strict=True):
            if weight:
                known = known + weight * rate
        there, ahead = state.q - time * known, time * state.velocity
        if self.position < 1:
            late = (1 - self.position) * length
            there = unknowns.where_algebraic(there + late * state.velocity, there)
        return StrainRate(time, (2.0, -0.5, -0.5), (there, there + ahead, there - ahead))

    def remembered(self, state: State, q: Tensor, velocity: Tensor) -> dict[str, Tensor]:
        """Return the fields of the state after a step that hold the history for next ones, by name; none by default.

        Parameters
        ----------
        state : before the step.
        q, velocity : (B, n) after it.
        """
        return {}

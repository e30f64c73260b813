"""Velocity and acceleration of dofs whose position is prescribed: what clamps hold, and move."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.integrate.scheme import Scheme
from torchdismech.robot.state import State

__all__ = ["PrescribedMotion"]


@dataclass(frozen=True)
class PrescribedMotion:
    """How prescribed dofs move in a step, by differences of where they are.

    Rules of second order find a velocity as twice the mean velocity of a step less the velocity before. Where positions
    are unknowns, forces keep that in check. Where they are prescribed nothing does: the velocity of a clamp that has
    stopped changes its sign in each step, for ever, and the acceleration that follows from it grows. Differences of
    three positions forget: they are right to second order, and zero two steps after a clamp has stopped.

    The state holds what the next step needs: of the mean velocity u of a step and u' of the one before, all steps of
    length dt, its acceleration is (u - u') / dt, that in the middle of both steps, and its velocity
    u + (u - u') / 2, that at their end.

    Attributes
    ----------
    velocity, acceleration : (B, K) in the state after the step.
    inertial : (B, K) acceleration in the inertial force, at the time at which the rule has that.
    """

    velocity: Tensor
    acceleration: Tensor
    inertial: Tensor

    @classmethod
    def of(cls, scheme: Scheme, state: State, reached: Tensor, dt: Tensor, index: Tensor) -> PrescribedMotion:
        """Return the motion of dofs (K,) in a step from a state to where prescribed dofs are (B, n) at its end."""
        q, velocity, acceleration, end = (
            x.index_select(1, index) for x in (state.q, state.velocity, state.acceleration, reached)
        )
        mean, before = (end - q) / dt, velocity - 0.5 * dt * acceleration
        change = (mean - before) / dt
        ahead = scheme.time  # of the beginning of the step, in steps: there the change is that in the velocity
        inertial = change + ahead * (change - acceleration)
        return cls(mean + 0.5 * dt * change, change, inertial)

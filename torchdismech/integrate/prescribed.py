"""Velocity and acceleration of dofs whose position is prescribed, as clamps hold or move them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.integrate.scheme import Scheme
from torchdismech.robot.state import State

__all__ = ["PrescribedMotion"]


@dataclass(frozen=True)
class PrescribedMotion:
    """How prescribed dofs move in a step, found from differences of their positions.

    Rules of second order find a velocity as twice the mean velocity of a step less the velocity before. Where positions
    are unknowns, forces keep that in check. Where they are prescribed nothing does: the velocity of a clamp that has
    stopped changes its sign in each step, for ever, and the acceleration that follows from it grows. Differences of
    three positions forget: they are right to second order, and zero two steps after a clamp has stopped.

    With u the mean velocity in a step, u' that in the step before, and all steps of length dt, the acceleration in the
    state after the step is (u - u') / dt, that in the middle of both steps, and the velocity u + (u - u') / 2, that at
    the end. From these the next step recovers u.

    Attributes
    ----------
    velocity, acceleration : (B, K) in the state after the step.
    inertial : (B, K) acceleration in the inertial force, at the time at which the rule evaluates it.
    """

    velocity: Tensor
    acceleration: Tensor
    inertial: Tensor

    @classmethod
    def of(cls, scheme: Scheme, state: State, reached: Tensor, dt: Tensor, index: Tensor) -> PrescribedMotion:
        """Return the motion of prescribed dofs in a step.

        Parameters
        ----------
        state : before the step.
        reached : (B, n) q with the prescribed dofs where they are at its end.
        dt : its length () [s].
        index : (K,) the prescribed dofs.
        """
        q, velocity, acceleration, end = (
            x.index_select(1, index) for x in (state.q, state.velocity, state.acceleration, reached)
        )
        mean, before = (end - q) / dt, velocity - 0.5 * dt * acceleration
        change = (mean - before) / dt
        ahead = scheme.time  # steps since the start of the step, where the acceleration is `change`
        inertial = change + ahead * (change - acceleration)
        return cls(mean + 0.5 * dt * change, change, inertial)

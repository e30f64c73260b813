"""BDF2: the backward differentiation formula of second order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.integrator import Integrator
from torchdismech.integrate.scheme import Scheme
from torchdismech.robot.state import State

__all__ = ["BDF2", "TwoStepState"]


ROUNDING = 1e-6  # relative difference of step lengths that counts as none: single precision holds them no better


@dataclass(frozen=True, repr=False, eq=False)
class TwoStepState(State):
    """A state with the history that BDF2 needs: the step before.

    Attributes
    ----------
    previous_step : (B, n) change of q in the step before.
    previous_velocity : (B, n) velocity at its start.
    step_length : (B,) its length [s].
    reached_velocity : (B, n) velocity at its end. If the state's velocity is another one, the robot was thrown since,
        and its history counts for nothing.
    """

    previous_step: Tensor
    previous_velocity: Tensor
    step_length: Tensor
    reached_velocity: Tensor


@dataclass(frozen=True)
class _TwoStepScheme(Scheme):
    """The rates of BDF2: d / dt, u_n, (q_n - q_{n-1}) / dt and u_{n-1}."""

    @property
    def rings(self) -> bool:
        """Return False: velocities of prescribed dofs are differences of three positions, which do not alternate."""
        return False

    def started(self, state: State, dt: float) -> State:
        """Return the state with its history, made up for robots without one."""
        if not isinstance(state, TwoStepState):
            return self._begun(state, dt)
        off = (state.step_length - dt).abs() > ROUNDING * dt
        if bool(off.any()):
            raise InputError(
                f"BDF2: expected a state after steps of {dt:g} s, got one after steps of "
                f"{float(state.step_length.detach()[off][0]):g} s; State.of(state) begins anew"
            )
        if torch.equal(state.velocity, state.reached_velocity):
            return state
        thrown = (state.velocity != state.reached_velocity).any(1)
        return state.merged(self._begun(state, dt), thrown)

    def _begun(self, state: State, dt: float) -> TwoStepState:
        """Return the state with a history made up from velocity and acceleration.

        The velocity that forces see in the first step is then free of the acceleration. A load that acts all at once
        accelerates vibrations that are far faster than the step by far more than they move, and their damping would
        turn this into a push in the opposite direction. Velocities after the step are still of second order.
        """
        step, velocity = dt * state.velocity, state.velocity - dt * state.acceleration
        known: dict[str, Any] = {field.name: getattr(state, field.name) for field in dataclasses.fields(State)}
        length = torch.full_like(state.time, dt)
        return TwoStepState(**known | _history(step, velocity, state.velocity), step_length=length)

    def known_rates(self, state: State, dt: Tensor) -> list[Tensor]:
        """Return the rates (B, n) that are known before the step: all but d / dt."""
        assert isinstance(state, TwoStepState)
        return [state.velocity, state.previous_step / dt, state.previous_velocity]

    def remembered(self, state: State, q: Tensor, velocity: Tensor) -> dict[str, Tensor]:
        """Return the history fields of the state after a step, by name."""
        return _history(q - state.q, state.velocity, velocity)


def _history(step: Tensor, before: Tensor, reached: Tensor) -> dict[str, Tensor]:
    """Return the history fields of a step (B, n), from the velocities (B, n) before and after it."""
    return {"previous_step": step, "previous_velocity": before, "reached_velocity": reached.clone()}


class BDF2(Integrator):
    """Second order. It damps fast motion, less than implicit Euler does, and slow motion hardly at all.

    u = (3 q - 4 q_n + q_{n-1}) / (2 dt), M (3 u - 4 u_n + u_{n-1}) / (2 dt) = F(q, u). For the first step, the step
    before is made up from velocity and acceleration, which `Model.initial_state` gives: q_{n-1} = q_n - dt u_n,
    u_{n-1} = u_n - dt a_n. So it is when a robot was thrown, by `Model.thrown` or by `state.replace(velocity=...)`:
    then its velocity is not the one that the step before ended with. All steps have one length.

    Parameters
    ----------
    dt : step [s].
    options : the other parameters of `Integrator`; max_substeps above 1 is refused.
    """

    scheme = _TwoStepScheme(
        velocity=(1.5, 0, -0.5, 0), acceleration=(2.25, -2, -0.75, 0.5), end_velocity=(1.5, 0, -0.5, 0)
    )

    def __init__(self, dt: float, **options: Any):
        super().__init__(dt, **options)
        if self.max_substeps > 1:
            raise InputError(
                f"BDF2: all steps have one length, got max_substeps = {self.max_substeps}; take ImplicitEuler, or a "
                "smaller dt"
            )

"""Integrators with inertia."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.balance import Balance
from torchdismech.integrate.base import Integrator, Schedule
from torchdismech.model import Model, StepStart
from torchdismech.state import Control, State

__all__ = ["ImplicitEuler", "ImplicitMidpoint", "Newmark"]


class _EulerBalance(Balance):
    """M ((q - q_n)/dt - u_n)/dt = F(q, (q - q_n)/dt)."""

    damped = True

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor):
        super().__init__(model, start, clamped_q, dt)
        self.mass_gain, self.position_gain, self.velocity_gain = 1 / self.dt**2, 1.0, 1 / self.dt

    def velocity(self, q: Tensor) -> Tensor:
        return (q - self.start.state.q) / self.dt

    def acceleration(self, q: Tensor) -> Tensor:
        return (self.velocity(q) - self.start.state.velocity) / self.dt

    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.velocity(q), self.start.state.time + self.dt


class ImplicitEuler(Integrator):
    """First order, damps fast motion strongly: the robust choice. Parameters as for `Integrator`.

    It damps instabilities, too: a step much longer than the time in which a buckling grows may stay on the unstable
    branch. Take steps of about that time where robots buckle.
    """

    def _check_contact(self, model: Model) -> None:
        if not model.constrained:
            super()._check_contact(model)

    def _balance(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor) -> Balance:
        return _EulerBalance(model, start, clamped_q, dt)

    def _after(self, balance: Balance, q: Tensor) -> State:
        return _moved(balance, q, balance.velocity(q), balance.acceleration(q))  # type: ignore[attr-defined]


class _MidpointBalance(_EulerBalance):
    """M (u - u_n)/dt = F((q + q_n)/2, (q - q_n)/dt) with (u + u_n)/2 = (q - q_n)/dt."""

    damped = False

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor):
        super().__init__(model, start, clamped_q, dt)
        self.mass_gain, self.position_gain, self.velocity_gain = 2 / self.dt**2, 0.5, 1 / self.dt

    def acceleration(self, q: Tensor) -> Tensor:
        return 2 * (self.velocity(q) - self.start.state.velocity) / self.dt

    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.start.state
        return self.at(0.5 * (q + state.q), q), self.velocity(q), state.time + 0.5 * self.dt


class ImplicitMidpoint(Integrator):
    """Second order, keeps momentum, angular momentum and (nearly) energy. Parameters as for `Integrator`."""

    def _elapsed(self, dt: float | Tensor) -> float | Tensor:
        return 0.5 * dt

    def _balance(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor) -> Balance:
        return _MidpointBalance(model, start, clamped_q, dt)

    def sample(self, schedule: Schedule, state: State, model: Model) -> Control:
        """Return natural strains and forces at the middle of the step, clamped dofs at its end."""
        middle = schedule(state.time + 0.5 * self.dt, model)
        return middle.replace(clamped_q=schedule(state.time + self.dt, model).clamped_q)

    def _after(self, balance: Balance, q: Tensor) -> State:
        velocity = 2 * balance.velocity(q) - balance.start.state.velocity  # type: ignore[attr-defined]
        return _moved(balance, q, velocity, balance.acceleration(q))


class _NewmarkBalance(Balance):
    """M a = F(q, u), q = q_n + dt u_n + dt^2 [(1/2 - beta) a_n + beta a], u = u_n + dt [(1 - gamma) a_n + gamma a]."""

    def __init__(
        self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor, beta: float, gamma: float
    ):
        super().__init__(model, start, clamped_q, dt)
        self.beta, self.gamma = beta, gamma
        self.mass_gain, self.position_gain = 1 / (beta * self.dt**2), 1.0
        self.velocity_gain = gamma / (beta * self.dt)

    def acceleration(self, q: Tensor) -> Tensor:
        state, dt = self.start.state, self.dt
        new = (q - state.q - dt * state.velocity) / dt**2 - (0.5 - self.beta) * state.acceleration
        return new / self.beta

    def velocity(self, q: Tensor) -> Tensor:
        state = self.start.state
        mean = (1 - self.gamma) * state.acceleration + self.gamma * self.acceleration(q)
        return state.velocity + self.dt * mean

    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.velocity(q), self.start.state.time + self.dt


class Newmark(Integrator):
    """Newmark's method; beta = 1/4, gamma = 1/2 is the trapezoidal rule (second order, no damping).

    Needs the acceleration of the state it starts from: `Model.initial_state` gives it.

    Parameters
    ----------
    beta, gamma : beta > 0; gamma = 1/2 is second order, gamma > 1/2 damps.
    Others as for `Integrator`.
    """

    def __init__(self, dt: float, beta: float = 0.25, gamma: float = 0.5, **options):
        super().__init__(dt, **options)
        if not (beta > 0 and 0 <= gamma <= 1):
            raise InputError(f"Newmark: expected beta > 0 and 0 <= gamma <= 1, got beta={beta}, gamma={gamma}")
        self.beta, self.gamma = float(beta), float(gamma)

    def _balance(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor) -> Balance:
        return _NewmarkBalance(model, start, clamped_q, dt, self.beta, self.gamma)

    def _after(self, balance: Balance, q: Tensor) -> State:
        return _moved(balance, q, balance.velocity(q), balance.acceleration(q))  # type: ignore[attr-defined]


def _moved(balance: Balance, q: Tensor, velocity: Tensor, acceleration: Tensor) -> State:
    """Return the state at q; the velocity of algebraic angles is their mean one (it has no other use than a guess)."""
    state, algebraic = balance.start.state, balance.model.algebraic
    velocity = torch.where(algebraic, (q - state.q) / balance.dt, velocity)
    acceleration = torch.where(algebraic, 0.0, acceleration)
    moved = balance.model.moved(state, q)
    return moved.replace(velocity=velocity, acceleration=acceleration, time=state.time + balance.dt)

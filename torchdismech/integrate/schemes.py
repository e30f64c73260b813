"""The one-step integrators with inertia: each is `Integrator` with a `Scheme` of its own."""

from __future__ import annotations

from typing import Any

from torchdismech.errors import InputError, real_number
from torchdismech.integrate.integrator import Integrator, Schedule
from torchdismech.integrate.scheme import Scheme
from torchdismech.model import Model
from torchdismech.robot.state import Control, State

__all__ = ["ImplicitEuler", "ImplicitMidpoint", "Newmark"]


class ImplicitEuler(Integrator):
    """First order, damps fast motion strongly: the robust choice. Parameters as for `Integrator`.

    M ((q - q_n)/dt - u_n)/dt = F(q, (q - q_n)/dt). It damps instabilities, too: a step much longer than the time in
    which a buckling grows may stay on the unstable branch. Take steps of about that time where robots buckle; `minima`
    says which robots are on such a branch.
    """

    takes_constraints = True
    scheme = Scheme(velocity=(1, 0, 0), acceleration=(1, -1, 0), end_velocity=(1, 0, 0), damps_strongly=True, order=1)


class ImplicitMidpoint(Integrator):
    """Second order, keeps momentum, angular momentum and (nearly) energy. Parameters as for `Integrator`.

    Angular momentum is that of nodes; spin of edges about themselves has no gyroscopic force (docs/rods.md).

    M (u - u_n)/dt = F((q + q_n)/2, (q - q_n)/dt) with (u + u_n)/2 = (q - q_n)/dt.
    """

    scheme = Scheme(velocity=(1, 0, 0), acceleration=(2, -2, 0), end_velocity=(2, -1, 0), position=0.5, time=0.5)

    def sample(self, schedule: Schedule, state: State, model: Model) -> Control:
        """Return the control of the middle of the step, but clamped dofs and poses of its end."""
        middle = schedule(state.time + 0.5 * self.dt, model)
        end = schedule(state.time + self.dt, model)
        return middle.replace(clamped_q=end.clamped_q, pose=end.pose)


class Newmark(Integrator):
    """Newmark's method; beta = 1/4, gamma = 1/2 is the trapezoidal rule (second order, no damping).

    M a = F(q, u), q = q_n + dt u_n + dt^2 [(1/2 - beta) a_n + beta a], u = u_n + dt [(1 - gamma) a_n + gamma a]. Needs
    the acceleration of the state that it starts from: `Model.initial_state` gives it.

    Parameters
    ----------
    dt : step [s].
    beta, gamma : 1/2 <= gamma <= 1 and gamma <= 2 beta, which makes the method stable at any step (Hughes, The Finite
        Element Method, 1987, 9.2); gamma = 1/2 is second order, gamma > 1/2 damps.
    options : the other parameters of `Integrator`.

    Raises
    ------
    InputError
        The method is not stable at every step: with gamma < 1/2 it gains energy in each, however short, and with
        2 beta < gamma in those that are too long for the fastest vibration of the mesh.
    """

    def __init__(self, dt: float, beta: float = 0.25, gamma: float = 0.5, **options: Any):
        super().__init__(dt, **options)
        beta, gamma = real_number(beta, "Newmark: beta"), real_number(gamma, "Newmark: gamma")
        if not 0.5 <= gamma <= min(1, 2 * beta):
            raise InputError(
                f"Newmark: expected 1/2 <= gamma <= 1 and gamma <= 2 beta, got beta={beta}, gamma={gamma}. "
                "Vibrations grow at any dt if gamma < 1/2, and unless dt is short if 2 beta < gamma. Take beta=0.25, "
                "gamma=0.5, which do not damp, or beta=0.3025, gamma=0.6, which do"
            )
        self.beta, self.gamma = beta, gamma
        velocity = (gamma / beta, 1 - gamma / beta, 1 - gamma / (2 * beta))
        acceleration, order = (1 / beta, -1 / beta, 1 - 1 / (2 * beta)), 2 if gamma == 0.5 else 1
        self.scheme = Scheme(velocity, acceleration, velocity, order=order)

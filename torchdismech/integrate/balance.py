"""The balance of forces that a step solves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.model import Model, StepStart

__all__ = ["Balance"]

# Change of the velocity in a step, as a part of itself, up to which first iterates count on acceleration. Beyond, it
# tells nothing of the next step: at 0.1 a plate that folds takes up to 12 iterations instead of 5, at 0.6 a helix let
# go 56 instead of 8. Smaller limits leave more swinging rods without: steps of 2 ms take 1.5 iterations, without it 2.
SMOOTH = 0.06
# Damped rods do not snap that way: swinging ones take 2.0 iterations instead of 2.2 in steps of 10 ms, and a helix let
# go no more than with a smaller limit.
SMOOTH_RODS = 0.2
REACH = 0.3  # of the robot's extent: equilibria of rods, bent and pressed at once, take the same from 0.1 to 0.3


class Balance(ABC):
    """The balance of forces of one step, as equations in the free dofs; each integrator has its own.

    `mass_gain`, `position_gain` and `velocity_gain` are the derivatives by q of: the acceleration that the inertial
    force sees, the position and the velocity at which the other forces are evaluated.

    Angles without inertia (mid-edge normals, joint edges) are algebraic: they are what balances the torques on them
    where the forces are evaluated, so their position there is the unknown itself, whatever the position gain of the
    others (as a mean of old and new they would ring). Their rows are divided by the position gain, which keeps the
    matrix symmetric and the residual a gradient.
    """

    inertial = True  # whether there is an inertial force
    damped = False  # whether the integrator damps fast motion
    mass_gain: float | Tensor
    position_gain: float
    velocity_gain: float | Tensor

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor):
        self.model = model
        self.start = start
        self.base = clamped_q  # (B, n): clamped dofs are read from here
        # a tensor: compiled code is for any step
        self.dt = dt if isinstance(dt, Tensor) else torch.full((), dt, dtype=model.dtype, device=model.device)
        self.descending = False
        self._closed_form, self._eager_loads = not model.uncompiled_terms(), model.eager_loads
        self._smooth = SMOOTH_RODS if self.damped and not len(model.triangles) else SMOOTH
        self.constraints: ConstraintSet | None = None
        self._load: Tensor | None = None

    def fused(self, function: Callable) -> Callable:
        """Return the function, which takes this balance first: compiled as a whole where the model is and this allows.

        Contact, constraints and loads that do not compile (learned forces) run eagerly, and the function with them.
        """
        return self.model.fused(function, self.base) if self.closed else function

    @property
    def closed(self) -> bool:
        """Whether nothing varies with the iterate but elastic forces and loads that can be compiled along with them."""
        others = self.constraints is not None or self.start.pairs is not None or self._eager_loads
        return self._closed_form and not others

    def prepare(self) -> None:
        """Find what stays the same in all evaluations, so that a `fused` function need not."""
        if self._load is None:
            _, _, time = self.evaluated_at(self.start.state.q)
            load = self.model.constant_load(self.start, time)
            self._load = load if self.load_factor() == 1 else self.load_factor() * load

    def hold(self, load: Tensor) -> None:
        """Take the external forces (B, n) that do not change within the step, instead of finding them."""
        self._load = load

    @property
    def load(self) -> Tensor:
        """The external forces (B, n) that do not change within the step, as much of them as acts."""
        self.prepare()
        assert self._load is not None
        return self._load

    def at(self, moving: Tensor, q: Tensor) -> Tensor:
        """Return the position (B, n) where forces are evaluated: `moving`, algebraic angles as in q."""
        return torch.where(self.model.algebraic, q, moving)

    @property
    def has_potential(self) -> bool:
        """Whether the residual is the gradient of a potential."""
        return self.model.conservative and self.constraints is None

    @abstractmethod
    def acceleration(self, q: Tensor) -> Tensor:
        """Return the acceleration (B, n) in the inertial force."""

    @abstractmethod
    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return position, velocity (B, n) and time (B,) at which elastic and external forces are evaluated."""

    def load_factor(self) -> float:
        """Return the share of the external forces that acts."""
        return 1.0

    def full(self, x: Tensor) -> Tensor:
        """Return q (B, n) for the unknowns x (B, n_free)."""
        return self.model.spread(x, self.base)

    def residual(self, x: Tensor) -> Tensor:
        """Return inertial minus elastic minus external force on the free dofs (B, n_free)."""
        self._count()
        q = self.full(x)
        position, velocity, time = self.evaluated_at(q)
        force = self.model.internal_force(self.start, position, velocity) + self.load
        if self.model.varying_loads:
            force = force + self.load_factor() * self.model.varying_load(self.start, position, velocity, time)
        return self._with_inertia(q, force + self._constraint_force(q))

    def residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual (B, n_free) and its derivative by x as values (nnz, B)."""
        self._count()
        q = self.full(x)
        at, gains = self.evaluated_at(q), (self.position_gain, self.velocity_gain, self.mass_gain)
        force, values = self.model.varying_force_and_stiffness(self.start, *at, *gains, self.load_factor())
        if self.constraints is not None:
            pattern = self.model.solver_for(q.shape[0], self.start.pairs).pattern
            self.constraints.add_turning(values, q, pattern, self.model.unknown)
        return self._with_inertia(q, force + self.load + self._constraint_force(q)), values

    def _count(self) -> None:
        """Add an evaluation to what the model has done, but for those that are traced."""
        if not torch.compiler.is_compiling():
            self.model.compilation.count(self.base.shape[0], self.base)

    def _constraint_force(self, q: Tensor) -> Tensor | float:
        """Return the force (B, n) of the present loads of contacts that are constraints."""
        return 0.0 if self.constraints is None else self.constraints.force(q)

    def _with_inertia(self, q: Tensor, force: Tensor) -> Tensor:
        balance = self.model.body.mass * self.acceleration(q) - force if self.inertial else -force
        return (balance * self._row_weight()).index_select(1, self.model.free_index)

    def _row_weight(self) -> Tensor | float:
        """Return what the rows of the residual (n,) are multiplied by: 1, for algebraic angles 1 / position_gain."""
        if self.position_gain == 1:
            return 1.0
        return torch.where(self.model.algebraic, 1 / self.position_gain, 1.0)

    def inertia(self) -> Tensor:
        """Return the inertia's part of the matrix's diagonal (n_free, 1) or (n_free, B)."""
        mass = self.mass_gain * self.model.body.mass[..., self.model.free_index]
        return mass.unsqueeze(-1) if mass.dim() == 1 else mass.t()

    def force_scale(self, weight: Tensor) -> Tensor:
        """Return the sum of the weighted norms of momentum over dt, external and internal force at the start (B,)."""
        state, model = self.start.state, self.model
        load = self.load
        if model.varying_loads:
            varying = model.varying_load(self.start, state.q, state.velocity, state.time)
            load = load + self.load_factor() * varying
        summed = model.stencil_load(self.start, state.q)
        load = load + summed
        if self.inertial:  # the internal force is what the state's acceleration leaves of the external one
            mass = model.body.mass
            internal = torch.where(model.algebraic, 0.0, mass * state.acceleration - load)
            forces = [internal, load, mass * state.velocity / self.dt]
        else:
            forces = [model.elastic_force(self.start, state.q) - summed, load]
        return sum(torch.linalg.vector_norm(f.index_select(1, model.free_index) * weight, dim=1) for f in forces)

    def opening(self, x: Tensor | None, ahead: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of a residual's norm (n_free,), the force scale (B,) and the first iterate (B, n_free).

        Parameters
        ----------
        x : first iterate, or None for the guess that is `ahead` or not.
        """
        weight = self.model.residual_weight()
        return weight, self.force_scale(weight), self.guess(ahead) if x is None else x

    def guess(self, ahead: bool) -> Tensor:
        """Return a first iterate (B, n_free): where the robots are, or `ahead` where their motion leads.

        Clamped dofs are at their targets.
        """
        model, state = self.model, self.start.state
        step = self.base - state.q
        if ahead:
            step = torch.where(model.free, self.dt * (state.velocity + self._gained()), step)
        there = model.moved_by(state.q, step)
        for obstacle in model.obstacles:
            if obstacle.law.response.feasible_only:
                there = obstacle.kept_out(there, state, state.time + self.dt)
        return there.index_select(1, model.free_index)

    def _gained(self) -> Tensor | float:
        """Return the velocity (B, n) that the present acceleration adds on average, where it is smooth enough to tell.

        A robot that gains much of its velocity in a step vibrates too fast for the steps, or is let go; one that
        touches something may be pushed back any time.
        """
        model, state = self.model, self.start.state
        if model.obstacles or model.self_contact is not None or not self.inertial:
            return 0.0
        change, nodes = self.dt * state.acceleration, 3 * model.body.n_nodes
        size = change[:, :nodes].abs().amax(1, keepdim=True)
        speed = state.velocity[:, :nodes].abs().amax(1, keepdim=True)
        # the whole would suit implicit Euler, but goes too far where a load ends: 7 iterations instead of 3
        return torch.where(size <= self._smooth * speed, 0.5 * change, 0.0)

    def advanced(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x moved by the step, edges keeping the length that the step asks for to first order."""
        q = self.full(x)
        moved = self.model.moved_by(q, self.model.spread(step, torch.zeros_like(q)))
        return moved.index_select(1, self.model.free_index)

    def reach(self) -> Tensor:
        """Return how far (), in m, a step that descends the potential may move a node; angles count by their arc."""
        nodes = self.model.nodes
        return REACH * torch.linalg.vector_norm(nodes.amax(0) - nodes.amin(0))

    def potential(self, x: Tensor) -> Tensor | None:
        """Return the potential (B,) if Newton's steps are to descend it, else None: the residual's norm judges them."""
        if not self.descending:
            return None
        q = self.full(x)
        position, velocity, time = self.evaluated_at(q)
        internal = self.model.internal_potential(self.start, position)
        varying = self.model.load_potential(self.start, position, velocity, time)
        potential = (internal + self.load_factor() * varying) / self.position_gain
        potential = potential - (self.load * self._row_weight() * q).sum(1)
        if self.inertial:
            potential = potential + (0.5 / self.mass_gain) * (self.model.body.mass * self.acceleration(q) ** 2).sum(1)
        return potential

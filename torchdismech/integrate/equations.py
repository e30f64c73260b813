"""StepEquations: the equations that a step solves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, reduce

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet, Contacts
from torchdismech.contact.rubbing import SmoothedFriction
from torchdismech.elastic.assembly import dofs_of
from torchdismech.elastic.inelastic import FOREVER
from torchdismech.errors import InputError
from torchdismech.integrate.prescribed import PrescribedMotion
from torchdismech.integrate.scheme import Scheme
from torchdismech.integrate.search.first_iterate import first_iterate, smooth_change
from torchdismech.model import Model
from torchdismech.model.mechanics import Gains, Mechanics, StepStart
from torchdismech.robot.slides import SlidingEntries
from torchdismech.robot.state import State
from torchdismech.rows import weighted_norms
from torchdismech.solve.linear import Solver
from torchdismech.values import per_robot

__all__ = ["StepEquations"]

# of the robot's extent: 0.1 to 0.3 find the same equilibria of rods that are bent and pressed at once
TRUST_RADIUS = 0.3


class StepEquations:
    """Inertial minus elastic minus external force is zero: the equations of one step in the free dofs.

    The unknowns x are the free dofs of q at the end of the step; the scheme says what velocity and acceleration they
    mean and where forces are evaluated.

    Angles without inertia (mid-edge normals, joint edges) are algebraic: where the forces are evaluated, the torques on
    them balance. Their unknown is therefore their position there, while that of other dofs is at the end of the step:
    if they were a mean of an old and a new position they would ring. Their rows are divided by the position gain, which
    keeps the matrix symmetric and the residual a gradient.

    The residual is put together in three layers: the *bare* residual has neither contact between a robot's own parts
    nor loads of constraints; the *unconstrained* one adds the contact, the whole one the loads, too.

    Parameters
    ----------
    model : the robots.
    scheme : the rule of time stepping.
    start : the state before the step, and what else stays fixed in it.
    clamped_q : (B, n) q with the clamped dofs where they are at the end of the step.
    dt : its length [s], a number or a tensor ().
    mechanics : the forces, if not those of the model.
    constraints : contacts that are constraints, with their present loads.

    Attributes
    ----------
    descending : whether Newton's method is to descend the potential; see `descended`.
    smooth_change : largest relative change of the velocity in a step that counts as smooth motion; see `first_iterate`.
    """

    def __init__(
        self,
        model: Model,
        scheme: Scheme,
        start: StepStart,
        clamped_q: Tensor,
        dt: float | Tensor,
        mechanics: Mechanics | None = None,
        constraints: ConstraintSet | None = None,
    ):
        self.model, self.scheme, self.start = model, scheme, start
        self.mechanics = model.mechanics if mechanics is None else mechanics
        self.base = clamped_q
        # a tensor, so that compiled code serves for any dt
        self.dt = dt if isinstance(dt, Tensor) else torch.full((), dt, dtype=model.dtype, device=model.device)
        self.constraints, self.descending = constraints, False
        self._closed_form, self._eager_loads = not model.mechanics.uncompiled_terms(), self.mechanics.eager_loads
        # found here, as torch.compile takes no arrays of NumPy, which triangles are
        self.smooth_change = smooth_change(model, scheme)
        self._bare_start = start if start.pairs is None else dataclasses.replace(start, pairs=None)

    @property
    def gains(self) -> Gains:
        """Derivatives by q of the position and velocity at which forces are evaluated, and of the acceleration."""
        scheme, dt = self.scheme, self.dt
        velocity = scheme.velocity[0] / dt if scheme.velocity[0] else 0.0
        return Gains(scheme.position, velocity, scheme.acceleration[0] / dt**2 if scheme.inertial else 0.0)

    def compiled(self, function: Callable) -> Callable:
        """Return a function whose first argument is these equations, compiled as a whole if the model's steps are.

        The function itself is returned, to run eagerly, where not all of it compiles (see `compiles_whole`): where
        parts of the robots may touch each other, with constraints, with elastic terms whose derivatives come from
        autograd, and with loads that do not compile (learned forces).
        """
        if not self.compiles_whole:
            return function
        return self.model.compilation.compiled(function, self.base.shape[0], self.base)

    def recording(self, _: Callable) -> Callable | None:
        """Return the recording of a function whose first argument is these equations: here None, as there is none."""
        return None

    @contextmanager
    def with_slips(self, factor: Tensor) -> Iterator[None]:
        """Multiply the slip velocities of smoothed friction by factors (B, 1) within the block."""
        with self.model.contact.with_slip(factor).in_place():
            yield

    @contextmanager
    def descended(self, descending: bool = True) -> Iterator[None]:
        """Let Newton steps be judged by the potential within the block, or, if False, by the residual's norm."""
        before, self.descending = self.descending, descending
        try:
            yield
        finally:
            self.descending = before

    @contextmanager
    def of_robots(self, robots: Tensor) -> Iterator[StepEquations]:
        """Give the equations of some robots of the batch alone, by their numbers (R,).

        Within the block the model holds the values of these robots. With contacts that are constraints this is refused:
        their loads are kept for all robots together.
        """
        if self.constraints is not None:
            raise InputError("StepEquations.of_robots: the loads of constraints are those of all robots")
        start, rows = self.start, self.start.state.rows
        pairs = None if start.pairs is None else start.pairs.rows(robots)
        with per_robot(self.model).taken(robots).in_place():
            state, control = rows(robots), start.control.rows(robots)
            elapsed = self.scheme.time * self.dt if self.scheme.inertial else None
            load_factor = start.load_factor[robots] if isinstance(start.load_factor, Tensor) else start.load_factor
            rate = self.scheme.strain_rate(state, self.dt, self.model.unknowns)
            constants = self.mechanics.term_constants(
                state, control, elapsed, load_factor, not self.scheme.inertial, rate
            )
            start_of_part = StepStart(state, control, constants, start.held_force[robots], pairs, load_factor)
            equations = StepEquations(
                self.model, self.scheme, start_of_part, self.base[robots], self.dt, self.mechanics
            )
            equations.load = self.load[robots]
            with equations.descended(self.descending):
                yield equations

    def solver(self) -> Solver:
        """Return the linear solver for the matrices of these robots."""
        return self.model.solvers.of(self.base.shape[0], self.start.pairs)

    @cached_property
    def rubbing(self) -> SmoothedFriction:
        """The forces and pairs of parts with smoothed friction."""
        return self.model.contact.rubbing(self.start.pairs)

    @property
    def compiles_whole(self) -> bool:
        """Whether one compiled function can evaluate everything that varies with the iterate.

        It can if that is elastic forces and loads, obstacles among them, whose derivatives have closed forms, and
        nothing else.
        """
        others = self.constraints is not None or self.start.pairs is not None or self._eager_loads
        return self._closed_form and not others

    @property
    def evaluates_once(self) -> bool:
        """Whether one evaluation gives the matrix, and the residual as autograd records it."""
        return self._closed_form and self.constraints is None and self.start.pairs is None

    def prepare(self) -> None:
        """Find what is the same in all evaluations of the step, once, so that compiled functions need not."""
        _ = self._acceleration, self.load, self.keeps_edge_lengths
        if self.compiles_whole and self.model.compilation.runs_compiled(self.base.shape[0], self.base):
            self.mechanics.layout.elastic.record(dofs_of(self.base), self.start.constants)

    @cached_property
    def _acceleration(self) -> tuple[Tensor, Tensor | float]:
        """The acceleration as a linear function of the change of q in the step.

        That is its derivative () by the change, and the acceleration (B, n) without any change.
        """
        state, scheme = self.start.state, self.scheme
        gain, known = scheme.acceleration[0] / self.dt**2, scheme.known_rate(scheme.acceleration, state, self.dt)
        if known is None:
            return gain, 0.0
        known = known / self.dt
        if self._prescribed is not None:
            change = (self.base - state.q).index_select(1, self.model.unknowns.prescribed)
            known = self.model.unknowns.with_prescribed(known, self._prescribed.inertial - gain * change)
        return gain, known

    @cached_property
    def _prescribed(self) -> PrescribedMotion | None:
        """The motion of prescribed dofs; None where the scheme finds it, as that of others, or there are none."""
        prescribed = self.model.unknowns.prescribed
        if not (self.scheme.rings and len(prescribed)):
            return None
        return PrescribedMotion.of(self.scheme, self.start.state, self.base, self.dt, prescribed)

    @cached_property
    def load(self) -> Tensor:
        """The external forces (B, n) that do not change within the step; set it where they are known already."""
        _, _, time = self.evaluated_at(self.start.state.q)
        return self.mechanics.constant_load(self.start, time)

    @property
    def has_potential(self) -> bool:
        """Whether the residual is the gradient of a potential."""
        return self.mechanics.conservative(at_rest=not self.scheme.inertial) and self.constraints is None

    def acceleration(self, q: Tensor) -> Tensor:
        """Return the acceleration (B, n) of the inertial force for q (B, n) at the end of the step."""
        gain, known = self._acceleration
        return gain * (q - self.start.state.q) + known

    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return position, velocity (B, n) and time (B,) at which elastic and external forces are evaluated."""
        state, scheme = self.start.state, self.scheme
        velocity = scheme.rate(scheme.velocity, state, q, self.dt)
        time = state.time + scheme.time * self.dt if scheme.inertial else state.time
        if scheme.position == 1:
            return q, velocity, time
        there = state.q + scheme.position * (q - state.q)
        return self.model.unknowns.where_algebraic(q, there), velocity, time

    def evaluated_state(self, q: Tensor) -> State:
        """Return the state at which elastic and external forces are evaluated; all but q, velocity, time as before."""
        position, velocity, time = self.evaluated_at(q)
        return self.start.state.replace(q=position, velocity=velocity, time=time)

    def state_after(self, q: Tensor) -> State:
        """Return the state after the step, at q (B, n).

        Algebraic angles get their mean velocity in the step, which only serves as a guess in the next one.
        """
        state, scheme, unknowns = self.start.state, self.scheme, self.model.unknowns
        elapsed = self.dt if scheme.inertial else torch.full_like(self.dt, FOREVER)
        internal = self.mechanics.internal_after(self.start, q, elapsed)
        moved = self.model.frames.moved(state, q, self.mechanics.plane)
        moved = moved if internal is None else moved.replace(internal=internal)
        if not scheme.inertial:
            zero = torch.zeros_like(q)
            return moved.replace(velocity=zero, acceleration=zero)
        velocity = scheme.rate(scheme.end_velocity, state, q, self.dt)
        if unknowns.some_algebraic:
            velocity = unknowns.where_algebraic((q - state.q) / self.dt, velocity)
        acceleration = unknowns.where_algebraic(0.0, self.acceleration(q))
        if self._prescribed is not None:
            velocity = unknowns.with_prescribed(velocity, self._prescribed.velocity)
            acceleration = unknowns.with_prescribed(acceleration, self._prescribed.acceleration)
        time, history = state.time + self.dt, scheme.remembered(state, q, velocity)
        return moved.replace(velocity=velocity, acceleration=acceleration, time=time, **history)

    def accepted_state(self, q: Tensor, accepted: Tensor) -> State:
        """Return the state after a step to q (B, n) in the accepted rows (B,), the state before it in the others."""
        return self.start.state.merged(self.state_after(q), accepted)

    def full(self, x: Tensor) -> Tensor:
        """Return q (B, n) for the unknowns x (B, n_free)."""
        return self.model.unknowns.into_dofs(x, self.base)

    def motion(self, step: Tensor) -> Tensor:
        """Return how all dofs move (B, n) by a step (B, n_free) of the unknowns."""
        return self.model.unknowns.into_dofs(step, torch.zeros_like(self.base))

    def residual(self, x: Tensor) -> Tensor:
        """Return the residual (B, n_free): inertial minus elastic minus external force on the free dofs."""
        self._count()
        residual = self.unconstrained_residual(x)
        if self.constraints is not None:
            residual = residual - self.residual_of(self.constraints.force(self.full(x)))
        return residual

    def residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual (B, n_free) and its derivative by x as values (nnz, B)."""
        if self.constraints is None:
            self._count()
            residual, values = self.unconstrained(x)
        else:
            residual, values, _ = self.constrained(x)
        if (sliding := self.sliding) is not None:
            sliding.constrain(values)
        return residual, values

    def constrained(self, x: Tensor) -> tuple[Tensor, Tensor, Contacts]:
        """Return residual and matrix values with the present loads of constraints, and the contacts at x (B, n_free).

        The matrix is not constrained by nodes that slide along lines.
        """
        constraints = self.constraints
        assert constraints is not None
        self._count()
        residual, values = self.unconstrained(x)
        q, pattern = self.full(x), self.solver().pattern
        contacts = constraints.at(q, constraints.time, with_stiffness=True)
        constraints.add_geometric_stiffness(values, contacts, pattern, self.model.unknowns.number)
        return residual - self.residual_of(constraints.force_at(contacts, q)), values, contacts

    def unconstrained_residual(self, x: Tensor) -> Tensor:
        """Return the residual (B, n_free) without the loads of constraints."""
        residual, position, velocity = self.bare_residual(x)
        pairs = self.start.pairs
        if pairs is None:
            return residual
        return residual - self.residual_of(self.mechanics.self_contacts.force(pairs.listed, position, velocity))

    def unconstrained(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual (B, n_free) without the loads of constraints, and its derivative as values (nnz, B)."""
        residual, values, position, velocity = self.bare_residual_and_matrix(x)
        pairs = self.start.pairs
        if pairs is None:
            return residual, values
        gains, contacts = self.gains_outside_of_tapes, self.mechanics.self_contacts
        force, values = pairs.force_and_values(contacts, position, velocity, values, gains.position, gains.velocity)
        return residual - self.residual_of(force), values

    @cached_property
    def gains_outside_of_tapes(self) -> Gains:
        """The gains, found once a step.

        What is recorded on a tape has to read `gains` in their place, so that each replay finds those of its dt.
        """
        return self.gains

    def bare_residual(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bare residual (B, n_free), and q and velocity (B, n) where forces are evaluated."""
        q = self.full(x)
        at = self.evaluated_at(q)
        return self._with_inertia(q, self.mechanics.force(self._bare_start, *at, self.load)), *at[:2]

    def bare_residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the bare residual and its derivative by x, then q and velocity where forces are evaluated.

        Shapes are (B, n_free), values (nnz, B), and (B, n).
        """
        q = self.full(x)
        at = self.evaluated_at(q)
        force, values = self.mechanics.force_and_stiffness(self._bare_start, *at, self.gains, self.load)
        return self._with_inertia(q, force), values, *at[:2]

    @property
    def sliding(self) -> SlidingEntries | None:
        """How sliding nodes constrain the values of the step's matrix; None if no node slides."""
        pairs = self.start.pairs
        return self.model.layout.sliding if pairs is None else pairs.coupling.sliding

    def without_geometric_stiffness(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the values (nnz, B) of the matrix at x without the geometric stiffness of the loads of constraints."""
        assert self.constraints is not None
        stiffness = torch.zeros_like(values)
        contacts = self.constraints.at(self.full(x), self.constraints.time, with_stiffness=True)
        self.constraints.add_geometric_stiffness(stiffness, contacts, self.solver().pattern, self.model.unknowns.number)
        if (sliding := self.sliding) is not None:
            sliding.project(stiffness)
        return values - stiffness

    def reaction(self, q: Tensor) -> Tensor:
        """Return the generalised force (B, n) of the clamps on the robot at q (B, n), zero where it moves freely.

        With contacts that are constraints, their loads are found from the balance of forces at q and left in
        `constraints.load`.
        """
        force = self.mechanics.force(self.start, *self.evaluated_at(q), self.load)
        inertia = self.mechanics.inertia.times(self.acceleration(q)) if self.scheme.inertial else 0.0
        missing = inertia - force
        if self.constraints is not None:
            self.constraints.load = self.constraints.loads_for_force(q, missing, self.model.unknowns.on_unknowns)
            missing = missing - self.constraints.force(q)
        return self.model.unknowns.with_held(torch.zeros_like(q), missing)

    def contacts_at(self, x: Tensor) -> Contacts:
        """Return the contacts that are constraints, for the unknowns x (B, n_free)."""
        assert self.constraints is not None
        return self.constraints.at(self.full(x), self.constraints.time)

    def _count(self) -> None:
        """Count an evaluation, by which it is decided whether compiling pays; not one that the compiler traces."""
        if not torch.compiler.is_compiling():
            self.model.compilation.count(self.base.shape[0], self.base)

    def _with_inertia(self, q: Tensor, force: Tensor) -> Tensor:
        inertia = self.mechanics.inertia.times(self.acceleration(q)) if self.scheme.inertial else 0.0
        return self.residual_of(inertia - force)

    def residual_of(self, force: Tensor) -> Tensor:
        """Return the residual (B, n_free) that forces (B, n) would make alone, with the sign that they are given."""
        return self.model.unknowns.on_unknowns(self._weighed(force))

    def _weighed(self, force: Tensor) -> Tensor:
        """Return forces (B, n) as the residual counts them: those on algebraic angles divided by `Scheme.position`."""
        if self.scheme.position == 1 or not self.model.unknowns.some_algebraic:
            return force
        return force * torch.where(self.model.unknowns.algebraic, 1 / self.scheme.position, 1.0)

    def inertia(self) -> Tensor:
        """Return the contribution of lumped masses to the matrix's diagonal, (n_free, 1) or (n_free, B).

        What a consistent mass matrix takes off the diagonal (see `Inertia`) is left out.
        """
        mass = self.gains.mass * self.model.body.mass[..., self.model.unknowns.index]
        return mass.unsqueeze(-1) if mass.dim() == 1 else mass.t()

    def force_scale(self, weight: Tensor) -> Tensor:
        """Return the force scale (B,) [N] of the step, to which the relative tolerance refers.

        It is the sum of the weighted norms of momentum over dt, external force and internal force at the start of the
        step.
        """
        state, model, mechanics, start = self.start.state, self.model, self.mechanics, self.start
        load = self.load
        if mechanics.varying_forces:
            load = load + mechanics.varying_load(start, state.q, state.velocity, state.time)
        summed = mechanics.stencil_load(start, state.q)
        load = load + summed
        # the internal force is the inertial force of the state's acceleration less the external one
        if self.scheme.inertial:
            times = mechanics.inertia.times
            internal = model.unknowns.where_algebraic(0.0, times(state.acceleration) - load)
            forces = [internal, load, times(state.velocity) / self.dt]
        else:
            forces = [mechanics.elastic_force(start, state.q) - summed, load]
        return reduce(torch.add, (weighted_norms(model.unknowns.on_unknowns(f), weight) for f in forces))

    def setup(self, x: Tensor | None, ahead: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of a residual's norm (n_free,), the force scale (B,) and the first iterate (B, n_free).

        Parameters
        ----------
        x : first iterate; None: that of `first_iterate`.
        ahead : where that begins: where the motion leads, or where the robots are.
        """
        weight = self.model.unknowns.residual_weight()
        return weight, self.force_scale(weight), first_iterate(self, ahead) if x is None else x

    @cached_property
    def keeps_edge_lengths(self) -> Tensor | None:
        """For each robot (B,) 1 where moves keep the lengths of edges, 0 where an obstacle pushes; None: 1 for all.

        Where an edge turns, a move that keeps lengths lifts all that hangs on the edge, by as much as it would have
        stretched. That is far more than the distance within which surfaces press on each other. Where contact is a
        constraint, its loads take care of that.
        """
        pushing = [obstacle for obstacle in self.model.obstacles if not obstacle.constrained]
        if not pushing:
            return None
        with torch.no_grad():
            q, time = self.start.state.q, self.start.state.time
            return reduce(torch.logical_and, (obstacle.out_of_reach(q, time) for obstacle in pushing)).to(q.dtype)

    def advanced(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x moved by the step, with edges as long as the step would make them to first order."""
        return self.model.unknowns.of_dofs(self.moved(self.full(x), self.motion(step)))

    def moved(self, q: Tensor, step: Tensor) -> Tensor:
        """Return q (B, n) moved by a step, with edges as long as it would make them to first order.

        That is where forces are evaluated: an edge that keeps its length in the middle of a step is longer at its end.
        """
        frames, part, start = self.model.frames, self.scheme.position, self.start.state.q
        if part == 1:
            return frames.moved_by(q, step, self.keeps_edge_lengths)
        there = start + part * (q - start)
        return start + (frames.moved_by(there, part * step, self.keeps_edge_lengths) - start) / part

    def trust_radius(self) -> Tensor:
        """Return how far () [m] a step that descends the potential may move a node; angles count by their arc.

        It is a part of the robot's extent. Parts that stand far apart do not make a robot larger: its size is at most
        the length of all edges of a part together.
        """
        body = self.model.body
        edges_of_a_part = (body.edge_length.shape[-1] + body.shell_edge_length.shape[-1]) / body.parts()
        return TRUST_RADIUS * torch.minimum(body.extent(), edges_of_a_part * body.typical_length())

    def potential(self, x: Tensor) -> Tensor | None:
        """Return the potential (B,) if Newton steps are judged by it; None: they are judged by the residual's norm."""
        return self.potential_at(x) if self.descending else None

    def potential_at(self, x: Tensor) -> Tensor:
        """Return the potential (B,) at x (B, n_free); its gradient is the residual without loads of constraints."""
        q = self.full(x)
        gain = self.scheme.position
        at = self.evaluated_at(q)
        potential = self.mechanics.potential(self.start, *at) / gain
        potential = potential - (self._weighed(self.load) * q).sum(1)
        if self.scheme.velocity[0]:
            potential = potential + self.mechanics.rayleigh(self.start, *at) / self.gains.velocity
        if self.scheme.inertial:
            acceleration = self.acceleration(q)
            inertia = self.mechanics.inertia.times(acceleration)
            potential = potential + (0.5 / self.gains.mass) * (inertia * acceleration).sum(1)
        return potential

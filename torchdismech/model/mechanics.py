"""`Mechanics`: the sum of all forces on a robot, and the matrix of their derivatives."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Self

import torch
from torch import Tensor

from torchdismech.contact import Obstacle
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.assembly import dofs_of
from torchdismech.elastic.term_constants import PresentRate, StrainRate, TermConstants
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.model.layout import MatrixLayout
from torchdismech.native import Unavailable, compiler
from torchdismech.robot.body import Body
from torchdismech.robot.inertia import Inertia
from torchdismech.robot.plane import Plane
from torchdismech.robot.state import Control, State
from torchdismech.values import leading

__all__ = ["Gains", "Mechanics", "StepStart", "times_load_factor"]


@dataclass(frozen=True)
class Gains:
    """Weights of the matrix of a step: mass * M - position * dF/dq - velocity * dF/dvelocity."""

    position: float = 1.0
    velocity: float | Tensor = 0.0
    mass: float | Tensor = 0.0


@dataclass(frozen=True)
class StepStart:
    """Data that all evaluations of one step share: the state it starts from, and what stays fixed in it.

    Attributes
    ----------
    state : at the start of the step.
    control : of the step.
    constants : of the elastic terms, then of the loads that are sums over stencils.
    held_force : (B, n) sum of the explicit forces and the control's force, which are held over the step.
    pairs : parts of the robot that may touch each other; None: none.
    load_factor : fraction of the external forces that acts, a number or one for each robot (B,); obstacles act in full.
    """

    state: State
    control: Control
    constants: list[TermConstants]
    held_force: Tensor
    pairs: StepPairs | None = None
    load_factor: float | Tensor = 1.0


class Mechanics:
    """Sums the elastic, contact and external forces on a robot, and their derivatives on the pattern of its matrix.

    It is no module itself: the modules that it uses are registered with the model.

    Parameters
    ----------
    body, terms, forces, self_contacts : of the robot.
    layout : of its matrix.

    Attributes
    ----------
    plane : how the robots lie in their plane; None: not known.
    """

    def __init__(
        self,
        body: Body,
        terms: Sequence[ElasticTerm],
        forces: Sequence[Force],
        self_contacts: SelfContacts,
        layout: MatrixLayout,
    ):
        self.body, self.self_contacts, self.layout = body, self_contacts, layout
        self.terms, self.forces = terms, forces
        self.plane: Plane | None = None

    def of_robots_in(self, plane: Plane | None) -> Self:
        """Return a copy of these mechanics with another `plane`."""
        other = copy.copy(self)
        other.plane = plane
        return other

    @property
    def loads_by_stencils(self) -> list[Any]:
        """External forces that are sums over stencils, as magnetic ones; evaluated along with the elastic terms."""
        return [force for force in self.forces if force.varies and force.by_stencils]

    @property
    def varying_forces(self) -> list[Force]:
        """The other external forces that change with q or velocity."""
        return [force for force in self.forces if force.varies and not force.by_stencils]

    @property
    def inertia(self) -> Inertia:
        """The mass matrix."""
        return self.layout.inertia

    # ---- a step ------------------------------------------------------------------------------------------------

    def start(
        self,
        state: State,
        control: Control,
        elapsed: float | Tensor | None,
        pairs: StepPairs | None,
        load_factor: float | Tensor = 1.0,
        equilibrium: bool = False,
        rate: StrainRate | PresentRate | None = None,
    ) -> StepStart:
        """Return the data that all evaluations of a step from `state` share.

        Parameters
        ----------
        elapsed : time [s] from the state to where forces are evaluated; None: nothing dissipates, unless by a
            `PresentRate`.
        pairs : parts of the robot that may touch each other in the step.
        load_factor : fraction of the external forces that acts, a number or one for each robot (B,); obstacles act in
            full.
        equilibrium : whether an equilibrium is sought.
        rate : the strain rates at which materials dissipate; None: the change of strains since `state`, over `elapsed`.
        """
        constants = self.term_constants(state, control, elapsed, load_factor, equilibrium, rate)
        return StepStart(state, control, constants, self.held_force(state, control), pairs, load_factor)

    def term_constants(
        self,
        state: State,
        control: Control,
        elapsed: float | Tensor | None,
        load_factor: float | Tensor = 1.0,
        equilibrium: bool = False,
        rate: StrainRate | PresentRate | None = None,
    ) -> list[TermConstants]:
        """Return the constants of each elastic term in a step, then of each load over stencils; see `start`."""
        strains = [partial(self.layout.elastic.elastic_strains, k) for k in range(len(self.terms))]
        acting = zip(self.terms, strains, strict=True)
        constants = [term.constants(state, control, elapsed, equilibrium, strain, rate) for term, strain in acting]
        for of_term in constants:
            of_term.plane = self.plane
        for load in self.loads_by_stencils:
            of_load = load.term_constants(state, control, elapsed)
            whole = isinstance(load_factor, float) and load_factor == 1
            constants.append(of_load if whole else dataclasses.replace(of_load, measure=load_factor * of_load.measure))
        return constants

    def held_force(self, state: State, control: Control) -> Tensor:
        """Return the sum (B, n) of the explicit forces and the control's force."""
        held = torch.zeros_like(state.q) if control.force is None else control.force.clone()
        for force in self.forces:
            if force.explicit:
                held = held + force(state, control)
        return held

    # ---- forces ------------------------------------------------------------------------------------------------

    def force(
        self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor, constant_load: Tensor | None = None
    ) -> Tensor:
        """Return the sum of all forces (B, n) at q, velocity (B, n) and time (B,), without loads of constraints.

        Constraint forces are unknowns of a step, which `StepEquations` adds.

        Parameters
        ----------
        constant_load : the result of the method `constant_load`, if the caller has it already.
        """
        load = self.constant_load(start, time) if constant_load is None else constant_load
        force = self.elastic_force(start, q)
        if start.pairs is not None:
            force = force + self.self_contacts.force(start.pairs.listed, q, velocity)
        force = load + force  # in this order the sum is batch first in memory, as the following terms are
        return force + self.varying_load(start, q, velocity, time) if self.varying_forces else force

    def elastic_force(self, start: StepStart, q: Tensor) -> Tensor:
        """Return the elastic force (B, n) at q (B, n), including loads that are sums over stencils."""
        return self.layout.elastic.force(dofs_of(q), start.constants).t()

    def constant_load(self, start: StepStart, time: Tensor) -> Tensor:
        """Return the sum (B, n) of external forces that depend on neither q nor velocity, times the load factor."""
        return times_load_factor(start.load_factor, reduce(torch.add, self.constant_loads(start, time)))

    def constant_loads(self, start: StepStart, time: Tensor) -> list[Tensor]:
        """Return the summands (B, n) of `constant_load` without the load factor.

        The first is the sum of explicit forces and the control's force; then comes one for each constant force.
        """
        trial = start.state.replace(time=time)
        acting = (force for force in self.forces if force.constant and not force.explicit)
        return [start.held_force, *(force(trial, start.control) for force in acting)]

    def varying_load(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the sum (B, n) of external forces that change with q or velocity, without sums over stencils."""
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        total = torch.zeros_like(q)
        for force in self.varying_forces:
            total = total + _scaled_unless_obstacle(start, force, force(trial, start.control))
        return total

    def stencil_load(self, start: StepStart, q: Tensor) -> Tensor | float:
        """Return the sum (B, n) of loads that are sums over stencils, 0 without any; `elastic_force` includes them."""
        if not self.loads_by_stencils:
            return 0.0
        elastic, transposed = self.layout.elastic, dofs_of(q)
        numbered = enumerate(self.loads_by_stencils, len(self.terms))
        return sum(load.summed(elastic.gradient(k, transposed, start.constants)) for k, load in numbered)

    def stencil_load_energy(self, start: StepStart, q: Tensor) -> Tensor | float:
        """Return the sum (B,) [J] of the sizes of the energies that loads by stencils have in each stencil."""
        elastic, transposed = self.layout.elastic, dofs_of(q)
        numbers = range(len(self.terms), len(elastic.terms))
        parts = [part for k in numbers for part in elastic.terms[k].parts(transposed, start.constants[k]).values()]
        return sum(part.abs().sum(0) for part in parts)

    # ---- their matrix ------------------------------------------------------------------------------------------

    def force_and_stiffness(
        self,
        start: StepStart,
        q: Tensor,
        velocity: Tensor,
        time: Tensor,
        gains: Gains = Gains(),
        constant_load: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of all forces (B, n), and the matrix mass * M - position * dF/dq - velocity * dF/dvelocity.

        The matrix is given by values (nnz, B) on the pattern of the robot, which is larger where `start.pairs` couple
        nodes. Rows and columns of unknowns without inertia have other gains (see `MatrixLayout.entry_gains`).
        """
        by_position, by_velocity = self.layout.entry_gains(gains.position, gains.velocity, q.dtype)
        elastic, values = self.layout.elastic.force_and_stiffness(dofs_of(q), start.constants)
        if not (isinstance(by_position, float) and by_position == 1):
            values = by_position * values
        loads: Tensor | None = None
        if self.varying_forces:
            loads = self._subtract_load_derivatives(values, start, q, velocity, time, (by_position, by_velocity))
        if not (isinstance(gains.mass, float) and gains.mass == 0):
            self.layout.add_mass(values, gains.mass)
        force = (self.constant_load(start, time) if constant_load is None else constant_load) + elastic.t()
        if loads is not None:
            force = force + loads
        if start.pairs is None:
            return force, values
        contact_force, values = start.pairs.force_and_values(
            self.self_contacts, q, velocity, values, gains.position, gains.velocity
        )
        return force + contact_force, values

    def _subtract_load_derivatives(
        self, values: Tensor, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor, gains: tuple
    ) -> Tensor:
        """Subtract the varying loads' derivatives from the values (nnz, B), in place; return the loads (B, n).

        Parameters
        ----------
        gains : of the derivatives by position and by velocity, as `MatrixLayout.entry_gains` returns them.
        """
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        total = torch.zeros_like(q)
        for force, scatters in zip(self.forces, self.layout.force_scatters, strict=True):
            if not force.varies or force.by_stencils:
                continue
            load, derivatives = force.with_derivatives(trial, start.control)
            total = total + _scaled_unless_obstacle(start, force, load)
            with torch.no_grad():
                for scatter, derivative in zip(scatters, derivatives, strict=True):
                    for gain, blocks in zip(gains, derivative, strict=True):
                        if blocks is not None and not _is_zero(gain):
                            entries = _scaled_unless_obstacle(start, force, blocks).permute(2, 3, 1, 0).flatten(0, 2)
                            scatter.subtract(values, gain, entries)
        return total

    # ---- internal variables of materials -----------------------------------------------------------------------

    def internal_after(self, start: StepStart, q: Tensor, elapsed: Tensor) -> Tensor | None:
        """Return the internal variables (B, M) of materials after a step to q (B, n); None where no material has any.

        Parameters
        ----------
        elapsed : () the length of the step [s].
        """
        if start.state.internal is None:
            return None
        transposed, variables = q.t().contiguous(), []
        for k, (term, constants) in enumerate(zip(self.terms, start.constants, strict=False)):
            if constants.internal:
                strain = self.layout.elastic.elastic_strains(k, transposed, constants)
                variables += term.updated(strain, constants, elapsed)
        return torch.cat(variables).t().contiguous()

    # ---- potentials --------------------------------------------------------------------------------------------

    def conservative(self, at_rest: bool) -> bool:
        """Return whether the forces that vary within a step have a potential.

        With `at_rest`, drag is left out, since it is zero there. In motion it has one within a step where it has a
        Rayleigh function: see `rayleigh`.
        """
        acting = [force for force in self.forces if force.varies and not (at_rest and force.drag)]
        return self.self_contacts.symmetric and all(force.conservative or force.has_rayleigh for force in acting)

    def potential(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the potential (B,) [J] of forces that change with q: elastic, dissipation, contact, loads."""
        transposed = q.t().contiguous()
        total = q.new_zeros(q.shape[0])
        for term, constants in zip(self.layout.elastic.terms, start.constants, strict=True):
            total = total + term.potential(transposed, constants)
        if start.pairs is not None:
            total = total + self.self_contacts.energy(start.pairs.listed, q)
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        for force in self.varying_forces:
            if not force.drag:
                total = total + _scaled_unless_obstacle(start, force, force.potential(trial, start.control))
        return total

    def rayleigh(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor | float:
        """Return the Rayleigh function (B,) [W] of drag; its gradient by velocity (B, n) is minus the drag.

        The velocity in a step is linear in q, so this, divided by the derivative of velocity by q, is a potential.
        """
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        drags = [force for force in self.varying_forces if force.drag]
        return sum(times_load_factor(start.load_factor, force.rayleigh(trial, start.control)) for force in drags)

    # ---- reports -----------------------------------------------------------------------------------------------

    def refuse_equal_names(self, robots: int | None) -> None:
        """Refuse a robot for which `energies` would report two parts under one name.

        Parameters
        ----------
        robots : number of robots that the terms' tensors are given for; None: any number.
        """
        names = ["kinetic", *(contact.name for contact in self.self_contacts)]
        names += [force.name for force in self.forces if isinstance(force, Obstacle)]
        for term in self.layout.elastic.terms:
            with leading(term, robots, 1):
                names += term.part_names(self.body.nodes)
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(
                f"two energies of this robot are called {twice!r}; give the term, the part of an energy, the obstacle "
                "or the contact that has this name another one"
            )

    def energies(self, state: State, control: Control) -> dict[str, Tensor]:
        """Return the energies, each (B,) [J]: kinetic, of elastic terms by part, of magnets, and of obstacles."""
        transposed = state.q.t().contiguous()
        momentum = self.inertia.times(state.velocity)
        by_name = {"kinetic": 0.5 * (momentum * state.velocity).sum(1)}
        for which, constants in enumerate(self.term_constants(state, control, None)):
            by_name.update(self.layout.elastic.energies(which, transposed, constants))
        for force in self.forces:
            if isinstance(force, Obstacle):
                by_name[force.name] = force.potential(state, control)
        return by_name

    def strains(self, state: State, control: Control, names: Container[str] | None = None) -> dict[str, Tensor]:
        """Return the strains (B, stencils) of elastic terms by name; `names` selects terms, by default all."""
        transposed = state.q.t().contiguous()
        by_name: dict[str, Tensor] = {}
        for which, term in enumerate(self.terms):
            if names is None or term.name in names:
                constants = term.constants(state, control)
                values = self.layout.elastic.strains(which, transposed, constants)
                by_name |= {name: value.t() for name, value in values.items()}
        return by_name

    # ---- compilation -------------------------------------------------------------------------------------------

    @property
    def eager_loads(self) -> bool:
        """Whether some varying load always runs eagerly, whatever else is compiled."""
        return not all(force.compiles and force.closed_form for force in self.varying_forces)

    def uncompiled_terms(self) -> list[str]:
        """Return the names of terms whose derivatives come from autograd, which stay eager when a step is compiled."""
        return [term.name for term in self.layout.elastic.terms if not term.closed_form]

    def why_eager(self) -> str | None:
        """Return the reason why compile="auto" does not compile this robot; None where it may."""
        if names := self.uncompiled_terms():
            which = f"derivatives of {', '.join(names)} come from autograd"
            return f"{which}: write them in closed form, or say `records`, which is faster"
        if self.body.nodes.device.type == "cpu":
            try:
                compiler()
            except Unavailable as error:
                return str(error)
        return None


def times_load_factor(load_factor: float | Tensor, values: Tensor) -> Tensor:
    """Return values (B, ..) times a load factor, one for all robots or one for each (B,)."""
    if isinstance(load_factor, Tensor):
        return load_factor.view(-1, *[1] * (values.dim() - 1)) * values
    return values if load_factor == 1 else load_factor * values


def _scaled_unless_obstacle(start: StepStart, force: Force, values: Tensor) -> Tensor:
    """Return a force's values (B, ..) times the load factor; those of an obstacle are returned unscaled."""
    return values if isinstance(force, Obstacle) else times_load_factor(start.load_factor, values)


def _is_zero(gain: Any) -> bool:
    return isinstance(gain, float) and gain == 0

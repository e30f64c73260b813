"""`Model`: a robot's laws (elastic terms, external forces, contact), its clamps and the solvers for its matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.compilation import Compilation, Cost, Setting
from torchdismech.contact import Obstacle, SelfContact
from torchdismech.contact.model import ContactModel
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.contact.report import ContactReport
from torchdismech.elastic import BendTwistStencil, ElasticTerm
from torchdismech.elastic.inelastic import internal_at_rest, internal_variables, number_internal
from torchdismech.elastic.natural import natural_strains
from torchdismech.elastic.term import number_equal
from torchdismech.elastic.term_constants import PresentRate
from torchdismech.elastic.twist_warning import warn_of_twist
from torchdismech.errors import InputError, refuse_other_kind, whole_number
from torchdismech.forces import Force
from torchdismech.forces.rubbing import RubbingForce
from torchdismech.fused import is_own
from torchdismech.geometry.checks import Indices
from torchdismech.geometry.frames import rotated, transported
from torchdismech.model import constants
from torchdismech.model.appearance import Appearance
from torchdismech.model.checked import CheckedModel
from torchdismech.model.clamps import rest_poses
from torchdismech.model.initial import (
    as_tensor,
    initial_motion,
    placed_state,
    posture,
    refuse_closed_gaps,
    rest_state,
    rigid_velocity,
)
from torchdismech.model.layout import MatrixLayout
from torchdismech.model.mechanics import Mechanics, StepStart
from torchdismech.model.planar import PlanarRobot
from torchdismech.model.rates import with_balanced_rates
from torchdismech.model.recorded_energies import RecordedEnergies
from torchdismech.model.refusals import refuse_other_batch, refuse_other_dofs, refuse_other_state, refuse_transforms
from torchdismech.model.released import released
from torchdismech.model.solvers import Solvers
from torchdismech.model.step_memory import block_entries, derivatives, robots_at_a_time
from torchdismech.model.user_code import holds_users_code
from torchdismech.robot.body import Body
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.slides import Slides
from torchdismech.robot.state import Control, State, control_of
from torchdismech.robot.unknowns import Unknowns
from torchdismech.snapshot import Snapshot
from torchdismech.solve import linear
from torchdismech.system.uncompiled import uncompiled
from torchdismech.values import Place, Values, per_robot, places_by_batch_size

__all__ = ["Model"]


class Model(CheckedModel):
    """A robot, for any number of copies at once. Holds no state of motion: see `State`.

    It owns the modules: the body, elastic terms, forces and self-contact, whose tensors are its parameters (material
    constants) and buffers (rest sizes); each may be per element and per robot. Other parts work on these: `unknowns`
    has the dofs that a step solves for, `frames` moves the frames of edges with the nodes, `mechanics` sums forces and
    their matrix, `layout` has the matrix's sparsity pattern, `solvers` the linear solvers, `contact` finds what may
    touch, `compilation` decides what runs compiled.

    Parameters
    ----------
    body : topology and sizes.
    terms, forces : elastic terms and external forces that act on it.
    free : (n,) bool, dofs that move; the others are clamped (or prescribed by `Control.clamped_q`).
    slides : nodes that move along lines or in planes alone.
    solver : name of a linear solver, or "auto"; with options a mapping, see `solve.linear.named`.
    compile : True compiles what a step evaluates at its first use, for each number of robots anew (about a
        minute, seconds once it is in the cache on disk). False never does. "auto" steps eagerly and compiles once that
        has been worth it: before the first step of a `rollout` or `unroll` that is long enough, else when the steps so
        far were. It goes by the number of evaluations, of robots and of springs, not by a clock, so the same calls
        compile at the same step; what is compiled agrees with what is eager up to rounding. Copies of a model count
        anew. Eager steps of the library's own code are recorded: on a GPU as CUDA graphs, unless
        `integrate.recorded.recordable.why_steps_unrecorded` says why not; on a CPU as tapes, with every bit the same,
        where few robots are stepped at a time. That is as fast as compiled steps or faster, so "auto" compiles only
        what is not recorded (docs/speed.md). On a GPU compiled steps are recorded, too.
    self_contacts : how parts of the robot touch each other; without any they pass through each other.

    Attributes
    ----------
    block_entries : how many derivatives by position a robot's forces without stencils have, for estimates of memory.
    in_plane : checks of a planar robot; None for a robot whose nodes may move along y, or edges turn about themselves.
    """

    of_this_object = ("recordings", "lock", "turn", "_snapshot", "_recorded_energies")
    called = "rods and shells"
    stepped_by = "ImplicitEuler, ImplicitMidpoint, BDF2, Newmark or Static"
    self_contacts: SelfContacts

    def __init__(
        self,
        body: Body,
        terms: Sequence[ElasticTerm],
        forces: Sequence[Force],
        free: np.ndarray,
        solver: linear.Setting = "auto",
        compile: Setting = "auto",
        self_contacts: Sequence[SelfContact] = (),
        slides: Slides | None = None,
    ):
        super().__init__()
        self.body = body
        self.terms = nn.ModuleList(terms)  # type: ignore[assignment]
        self.forces = nn.ModuleList(forces)  # type: ignore[assignment]
        self.unknowns = Unknowns(body, free, slides)
        for force in forces:
            force.bind(body)
            force.learn_free(free)
        self.self_contacts = SelfContacts(self_contacts, body)
        loads = [force.term for force in forces if force.varies and force.by_stencils]
        summed = [*terms, *loads]
        number_internal(terms)
        number_equal(loads)
        self.compilation = Compilation(compile, Cost.estimated(len(terms), derivatives(summed)))
        self.frames = Frames(body, free, self.compilation)
        self._try_hooks()
        self.block_entries = block_entries(forces)  # known now that users' forces have been tried
        self.compilation.cost = Cost.estimated(len(terms), derivatives(summed) + self.block_entries)
        self._lay_out()
        self.mechanics.refuse_equal_names(self.batch)
        self.solvers = Solvers(solver, body, self.layout.pattern)
        self.has_user_hooks = holds_users_code(self)
        stencils = [term.stencil for term in terms]
        self._bending = [stencil for stencil in stencils if isinstance(stencil, BendTwistStencil)]
        self.in_plane = None
        if self.unknowns.planar:
            tangents = self.frames.tangents(self.rest_state(1).q)[0]
            self.in_plane = PlanarRobot(body, self.unknowns.out_of_plane, tangents)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make the attributes that belong to this object alone, empty; copies do not take them along."""
        super().begin_anew()
        self.recordings: list[Any] = []  # see `integrate.recorded.recording`
        self._recorded_energies = RecordedEnergies(self.mechanics)
        self._snapshot: Snapshot | None = None

    # ---- parts that work on the modules ------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Make the layout of the matrix for the present terms and forces, and the parts that work with it."""
        self._laid_out = len(self.terms), len(self.forces)
        symmetric = all(f.symmetric for f in self.forces if f.varies)
        symmetric &= self.self_contacts.symmetric
        rooms = (self.body, self.terms, self.forces)
        self.layout = MatrixLayout(*rooms, self.unknowns, symmetric, self.compilation)
        self.mechanics = Mechanics(*rooms, self.self_contacts, self.layout)
        of_matrix = (self.unknowns, self.layout.pattern, self.layout.sliding)
        rubbing = [force for force in self.forces if isinstance(force, RubbingForce) and force.rubs]
        self.contact = ContactModel(self.body, self.obstacles, rubbing, self.self_contacts, *of_matrix)

    # ---- modules and sizes -------------------------------------------------------------------------------------

    @property
    def n_dofs(self) -> int:
        """Number of dofs n = 3 N + A + 3 H."""
        return self.body.n_dofs

    @property
    def free(self) -> Tensor:
        """Dofs that move (n,), bool; the others are clamped."""
        return self.unknowns.free

    @property
    def alignments(self) -> list[Tensor]:
        """Angles (S,) [rad] between the frames that meet at each spring at rest, for each term that bends rods."""
        return [stencil.alignment for stencil in self._bending]

    @property
    def planar(self) -> bool:
        """Whether no node may move along y, and no edge turn about itself."""
        return self.in_plane is not None

    @property
    def nodes(self) -> Tensor:
        """Rest positions (N, 3) [m]."""
        return self.body.nodes

    @property
    def directors(self) -> Tensor:
        """Reference directors (A, 3) of the framed edges at rest."""
        return self.body.directors

    @property
    def rod_edges(self) -> np.ndarray:
        """Rod edges (E, 2), node indices."""
        return self.body.rod_edges

    @property
    def triangles(self) -> np.ndarray:
        """Triangles (F, 3), node indices."""
        return self.body.triangles

    @property
    def hinges(self) -> np.ndarray:
        """Hinges (H, 4): start and end of an edge with two triangles, nodes opposite to it."""
        return self.body.surface.hinges

    @property
    def springs(self) -> np.ndarray:
        """Bend-twist springs between edges (S, 3): node before, centre, node after."""
        return self.body.springs.nodes[: self.body.n_springs]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of positions and forces."""
        return self.body.nodes.dtype

    @property
    def device(self) -> torch.device:
        """Device of the buffers."""
        return self.body.nodes.device

    @property
    def obstacles(self) -> list[Obstacle]:
        """The obstacles that the robot may touch."""
        return [force for force in self.forces if isinstance(force, Obstacle)]

    def term(self, name: str) -> ElasticTerm:
        """Return the elastic term of that name."""
        for term in self.terms:
            if term.name == name:
                return term
        raise InputError(f"no elastic term {name!r}; there are: {', '.join(t.name for t in self.terms)}")

    @property
    def batch(self) -> int | None:
        """Number of robots that the parameters are given for; None where they serve any number."""
        sizes = places_by_batch_size(self)
        if len(sizes) > 1:
            constants.raise_unlike_batches(sizes, self.places)
        return max(sizes, default=None)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of what the model holds, the same object as before unless something has changed since."""
        if self._snapshot is None or not self._snapshot.is_current(self):
            if "places" in vars(self):  # of the parts before, which may have been exchanged
                self.places = constants.constants(self)
            self._snapshot = Snapshot(self, "_snapshot")
        return self._snapshot

    # ---- its numbers -------------------------------------------------------------------------------------------

    @cached_property
    def places(self) -> dict[str, Place]:
        """The constants of the model by name, each as (module, attribute); for the names see `constants.constants`."""
        return constants.constants(self)

    def values_of(self, control: Control) -> Values:
        """Return the `Values` that a control sets in place of the model's own; `check_batch` has to have seen it."""
        return Values({self.places[name]: value for name, value in control.values.items()})

    @contextmanager
    def holding(self, state: State, control: Control) -> Iterator[None]:
        """Let the model and its forces hold `Control.values` in a block, in place of its own constants.

        Methods of a force take no control: within `with model.holding(state, control):` the call
        `model.forces[k].tensions(state)` returns the tensions of a step that is driven by the control. Gradients reach
        the values. Other threads wait meanwhile; steps are taken outside of the block.

        Parameters
        ----------
        state : of the robots.
        control : its `values` are set, nothing else of it.

        Raises
        ------
        InputError
            State or control do not fit the model.
        """
        with self.lock, self._checked_values(state, control_of(control)).in_place():
            yield

    # ---- parts of a batch --------------------------------------------------------------------------------------

    def parts(self, state: State, control: Control, size: int) -> list[tuple[Values, State, Control]]:
        """Return chunks of `size` robots of a batch, each as (values to hold, state, control); see `values.split`."""
        states = state.split(size)
        values = [Values()] * len(states) if self.batch is None else per_robot(self).split(size, len(states))
        return list(zip(values, states, control.split(size, len(states)), strict=True))

    def _by_parts(
        self, function: Callable[[State, Control], dict[str, Tensor]], state: State, control: Control
    ) -> dict[str, Tensor]:
        """Evaluate a function for some robots at a time; return its tensors by name, (B, ..) for the whole batch."""
        size = robots_at_a_time(self, state.batch)
        with self.lock:
            if size == state.batch:
                return function(state, control)
            parts = []
            for values, states, controls in self.parts(state, control, size):
                with values.in_place():
                    parts.append(function(states, controls))
        parts[-1] = {name: value[-state.batch % size :] for name, value in parts[-1].items()}
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    # ---- states ------------------------------------------------------------------------------------------------

    @uncompiled
    def initial_state(
        self,
        batch: int | None = None,
        q: Tensor | Sequence[float] | None = None,
        velocity: Tensor | Sequence[float] | None = None,
        control: Control | None = None,
    ) -> State:
        """Return a state at rest in the rest shape, or at the given q and velocity, each (n,) or (B, n).

        Directors are those at rest, transported to q. The acceleration of the free dofs is the one that the forces give
        them there (under `control`, if given). The batch size defaults to that of q, velocity or the model's own
        parameters. Planar robots refuse shapes that leave their plane, velocities along y, and of edges about
        themselves.

        Where the model has trained constants, the acceleration depends on them: make the state anew for each backward
        pass, or `detach()` it.
        """
        at, moving = initial_motion(batch, q, velocity, self.batch, self.n_dofs, self.body.nodes)
        placed = placed_state(self.body, self.frames, at, moving)
        if self.in_plane is not None:
            if at is not None:
                self.in_plane.refuse_shape("initial_state: q", placed.q)
            self.in_plane.refuse_velocity("initial_state: velocity", moving)
        return self.accelerated(placed.replace(internal=internal_at_rest(self.terms, placed.q)), control)

    def posture(self, positions: Tensor | Sequence) -> Tensor:
        """Return the q (B, n) of robots whose nodes are at positions (B, N, 3) [m], for `initial_state`.

        The twist of rods is that of frames transported from the rest shape, as positions do not tell how sections are
        turned; mid-edge normals are the means of the triangles' normals. Edges of length zero are refused.
        """
        return posture(self.body, self.frames, as_tensor("posture: positions", positions, self.body.nodes))

    def thrown(
        self,
        state: State,
        velocity: Tensor | Sequence[float] = (0.0, 0.0, 0.0),
        angular_velocity: Tensor | Sequence[float] = (0.0, 0.0, 0.0),
        center: Tensor | Sequence[float] | None = None,
        nodes: Indices | None = None,
        control: Control | None = None,
    ) -> State:
        """Return the state with its nodes, or some of them, moving as a rigid body; the others keep their velocity.

        The acceleration is the one that the forces give there (under `control`, if given). Frames turn along; clamped
        dofs are at rest. Refused are velocities of a planar robot out of its plane, velocities of clamped dofs alone,
        and an angular velocity that turns nothing, as all moving nodes are on its axis.

        Parameters
        ----------
        velocity, angular_velocity : (3,) or (B, 3) [m/s, rad/s], of the centre and about it, each by default zero.
        center : (3,) or (B, 3) [m]; None: the centre of mass of these nodes.
        nodes : which nodes move, by indices or a bool mask (N,); None: all.
        """
        self.check_batch(state, control_of(control))
        moving = rigid_velocity(self.body, state, velocity, angular_velocity, center, nodes)
        if self.in_plane is not None:
            self.in_plane.refuse_velocity("thrown", moving)
        velocities = self.unknowns.with_held(moving, 0.0)
        if bool(moving.any()) and not bool(velocities.any()):
            raise InputError(
                "thrown: clamps hold all that this velocity moves, so nothing moves; take other nodes, or another "
                "direction (clamps are moved by Control.pose or clamped_q, in scenes by [[move]])"
            )
        return self.accelerated(state.replace(velocity=velocities), control)

    def released(self, state: State, before: Model, control: Control | None = None) -> State:
        """Return the state of a robot that was built with more clamps as a state of this model, which has let some go.

        Everything else keeps its place, velocity, frames and internal variables. The acceleration is the one that the
        forces give here (under `control`, if given). The clamps of this model hold where the state has them.

        Parameters
        ----------
        state : of `before`.
        before : the model of the same robot, built by the same calls of a `RobotBuilder` except for its clamps.
        """
        refuse_other_kind("released: before", before, Model, "the model that the state is of")
        before.check_batch(state, Control())
        return self.accelerated(released(state, before.body, before.terms, self.body, self.terms), control)

    def accelerated(self, state: State, control: Control | None = None) -> State:
        """Return the state with the acceleration that the forces give its free dofs there.

        Angles without inertia, such as those of normals between triangles, get new rates where something dissipates as
        they turn: those at which the dissipation balances the torques on them.
        """
        control = control_of(control)
        if self.has_user_hooks:  # autograd differentiates them within the evaluation
            refuse_transforms(self, state, control)
        with self.lock, self.compilation.paused(), self._checked_values(state, control).in_place():
            if self.contact.needs_feasible_iterates:
                refuse_closed_gaps(self.contact, state)
            rates_and_forces = self._by_parts(self._force_at, state, control)
            acceleration = self.mechanics.inertia.solved(rates_and_forces["force"], self.unknowns)
        # contiguous as after a step, as code is compiled for one memory layout
        return state.replace(velocity=rates_and_forces["velocity"].contiguous(), acceleration=acceleration.contiguous())

    @property
    def rest_poses(self) -> Tensor:
        """Poses (C, 7) of the clamps at rest, in the order in which they were made.

        They are for one robot: `Control.pose` is (B, C, 7), such as `model.rest_poses.expand(B, -1, -1)`.
        """
        return rest_poses(self.body)

    def rest_state(self, batch: int) -> State:
        """Return robots at rest in the rest shape, with zeros for the acceleration, which is not known yet."""
        rest = rest_state(self.body, self.frames, whole_number(batch, "rest_state: batch", least=0))
        return rest.replace(internal=internal_at_rest(self.terms, rest.q))

    def start_step(
        self,
        state: State,
        control: Control | None = None,
        elapsed: float | None = None,
        pairs: StepPairs | None = None,
    ) -> StepStart:
        """Return the data that all evaluations of a step from `state` share, for `mechanics`.

        Parameters
        ----------
        elapsed : time [s] from the state to where forces are evaluated; None: nothing dissipates.
        pairs : parts of the robot that may touch on the way (see `ContactModel.may_touch`); None: those that touch at
            the state.
        control : its `values` count only while they stand in the model, within
            `with model.values_of(control).in_place():`.
        """
        control = control_of(control)
        self.check_batch(state, control)
        return self.mechanics.start(state, control, elapsed, pairs or self.contact.may_touch_at(state.q))

    def _checked_values(self, state: State, control: Control, snapshot: Snapshot | None = None) -> Values:
        """Return the `Values` that a control sets, after a check that state and control fit."""
        if control.values and snapshot is None:
            self.snapshot()  # finds the constants anew where parts were exchanged
        self.check_batch(state, control, snapshot)
        return self.values_of(control)

    def _force_at(self, state: State, control: Control) -> dict[str, Tensor]:
        velocity = with_balanced_rates(self.mechanics, self.unknowns, self.solvers, state, control)
        moving, pairs = state.replace(velocity=velocity), self.contact.may_touch_at(state.q)
        start = self.mechanics.start(moving, control, None, pairs, rate=PresentRate())
        return {"force": self.mechanics.force(start, state.q, velocity, state.time), "velocity": velocity}

    # ---- reports -----------------------------------------------------------------------------------------------

    def natural_strains(self, batch: int) -> Control:
        """Return a control (B, ...) that sets copies of the model's own natural strains and rest lengths."""
        own = natural_strains(self.body, self.terms, whole_number(batch, "natural_strains: batch", least=0))
        return Control.of({k: v.clone(memory_format=torch.contiguous_format) for k, v in own.tensors().items()})

    @uncompiled
    def energies(self, state: State, control: Control | None = None) -> dict[str, Tensor]:
        """Return the kinetic energy, the elastic energy by part and that of contact, each (B,) [J].

        Of loads only magnets have an energy here ("magnetic", "magnetic_shells"); gravity and others have none.
        They can be differentiated by the state, the control and the model's tensors.
        """
        control = control_of(control)
        with self.lock, self._checked_values(state, control, snapshot := self.snapshot()).in_place():
            recorded = None if control.values else self._recorded_energies.replayed(state, control, snapshot)
            return (
                self._by_parts(self._energies, state, control)
                if recorded is None
                else self._with_pairs(recorded, state)
            )

    @property
    def has_own_energies(self) -> bool:
        """Whether all code that evaluates energies is the library's; then the rows of a batch may be any robots."""
        evaluated = self._recorded_energies.evaluated()
        return all(is_own(module) for owner in evaluated for module in owner.modules())

    def energies_of_steps(self, state: State, control: Control, steps: int) -> dict[str, Tensor]:
        """Return the energies of several steps at once, each (steps B,) [J], named as by `energies`.

        Only for robots with `has_own_energies`.

        Parameters
        ----------
        state, control : of all robots at the first of these steps, then of all at the next, and so on.
        """
        batch = state.batch // steps
        if batch == 1 or not (own := per_robot(self)):
            return self.energies(state, control)
        robots = torch.arange(batch, device=self.device).repeat(steps)
        with self.lock, own.taken(robots).in_place():
            return self._energies(state, control)

    def _energies(self, state: State, control: Control) -> dict[str, Tensor]:
        return self._with_pairs(self.mechanics.energies(state, control), state)

    def _with_pairs(self, energies: dict[str, Tensor], state: State) -> dict[str, Tensor]:
        """Return the energies plus those of contact between the robot's parts; warn of rods that twist too far."""
        warn_of_twist(self.terms, state)
        pairs = self.contact.may_touch_at(state.q)
        return energies if pairs is None else energies | self.self_contacts.energies(pairs.listed, state.q)

    def appearance(self) -> Appearance:
        """Return how the robots look beside their nodes: sections of rods, and obstacles."""
        return Appearance.of(self.body.sections, self.obstacles)

    def contact_report(self, state: State) -> ContactReport:
        """Return a report of contact at a state (see `contact.report`); constraints have no loads outside of a step."""
        with self.lock:
            refuse_other_dofs(state, self.body)
            refuse_other_batch(state, self.batch)
            return self._by_parts(lambda part, _: self.contact.report(part), state, Control())

    def strains(self, state: State) -> dict[str, Tensor]:
        """Return the strains of each term by name, (B, stencils): stretch, kappa1, kappa2, tau, ...

        Natural strains are not subtracted, and rest lengths are the model's own. Curvatures of rods are integrated
        over their Voronoi lengths [1], twists over these [rad]; those of plates are in 1/m. kappa1 above 0 is a bend
        towards m1 of the sections, kappa2 one towards m2, tau above 0 a twist as of a right-handed screw. kappa1 and
        kappa2 are about axes half-way between the sections of both edges; where rods branch, and at shells, about those
        of the edge that was added first (docs/rods.md, "Axes at joints"). Those of the springs at held tangents come
        after those between edges. They can be differentiated by the state and the model's tensors.
        """
        refuse_other_dofs(state, self.body)
        return self._by_parts(self.mechanics.strains, state, Control())

    def orientations(self, state: State) -> Tensor:
        """Return the orientations of the sections of the rod edges as rotation matrices (B, E, 3, 3).

        Their columns are the directors m1 and m2 of a section, including its twist, and its tangent t, from the first
        node of the edge in `rod_edges` to the second. They can be differentiated by the state. The rotation of an edge
        since it was built is `model.orientations(state) @ model.orientations(model.rest_state(1)).mT`.

        Raises
        ------
        InputError
            The state is of another model.
        """
        self.check_batch(state, Control())
        (starts, ends), count = self.rod_edges.T, len(self.rod_edges)
        along = state.positions[:, ends] - state.positions[:, starts]
        t = along / torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        director = transported(state.director[:, :count], state.tangent[:, :count], t)
        m1 = rotated(director, t, state.twist[:, :count])
        return torch.stack([m1, torch.linalg.cross(t, m1), t], dim=-1)

    def internal_variables(self, state: State) -> dict[str, Tensor]:
        """Return materials' internal variables, (B, springs) by name: "bend_twist.dahl.EI1_strain", ...

        They are stored in `State.internal`. In the library's own laws they are strains; at corners of rods, the strains
        that laws see there (docs/rods.md, "Corners and branches").
        """
        refuse_other_state(state, self.body, self.terms, None)
        return internal_variables(self.terms, state)

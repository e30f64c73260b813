"""Model: the laws of a robot: its elastic terms, external forces, clamps and the solver for its matrix."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.compilation import Compilation, Cost, Setting
from torchdismech.contact import Obstacle, SelfContact
from torchdismech.contact.coupling import CouplingCache, StepPairs
from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.report import Report, contact_report
from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.assembly import dofs_of
from torchdismech.elastic.term import TermConstants
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.geometry.retraction import LengthPreservingMove
from torchdismech.geometry.vec3 import Vec3
from torchdismech.hooks import TRIALS, check_hooks, is_of_user, settle_dependence
from torchdismech.layout import MatrixLayout
from torchdismech.memory import block_entries, derivatives, robots_at_a_time
from torchdismech.native import Unavailable, compiler
from torchdismech.solve import linear
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.sparse import Pattern
from torchdismech.split import Splitter, every_module, leading, robots, with_changes
from torchdismech.state import Control, State

__all__ = ["Model", "StepStart"]

# Factorisations that the pattern of a step with contact is expected to serve: a knot and folded sheets that move needed
# a new one every 1 to 5 steps of 2 to 5 iterations.
COUPLING_SERVES = 30


@dataclass(frozen=True)
class StepStart:
    """What the evaluations of one step share: the state it starts from and what stays fixed in it.

    `constants` are those of the elastic terms, then those of the loads that are sums over stencils, too.
    """

    state: State
    control: Control
    constants: list[TermConstants]
    held_force: Tensor  # (B, n) explicit forces and the control's force
    pairs: StepPairs | None = None  # what may touch each other


class Model(nn.Module):
    """A robot, for any number of copies at once. Holds no state of motion: see `State`.

    Material constants are parameters, rest sizes buffers; each may be per element and per robot.

    Parameters
    ----------
    body : topology and sizes.
    terms, forces : elastic terms and external forces that act on it.
    free : (n,) bool, dofs that move; the others are clamped (or prescribed by `Control.clamped_q`).
    solver : name of a linear solver, or "auto".
    compile : True compiles what a step evaluates at its first use, for each number of robots anew (about a
        minute, seconds once it is in the cache on disk); steps are then 1.3 to 2.5 times as fast. False never does.
        "auto" steps eagerly and compiles once that has been worth it: before the first step of a `rollout` or `unroll`
        that is long enough, else when the steps so far were. It goes by the number of evaluations, of robots and of
        springs, not by a clock, so the same calls compile at the same step; what is compiled agrees with what is eager
        up to rounding. Copies of a model count anew.
        On a GPU compiled steps are recorded as CUDA graphs, too, unless `unrecorded` says why not.
    self_contact : how parts of the robot touch each other; None lets them pass through each other.
    """

    self_contact: SelfContact | None
    terms: Sequence[ElasticTerm]
    forces: Sequence[Force]
    free: Tensor
    free_index: Tensor
    algebraic: Tensor
    advance: LengthPreservingMove
    _edges: Tensor
    _spring_edges: Tensor
    _spring_signs: Tensor

    def __init__(
        self,
        body: Body,
        terms: Sequence[ElasticTerm],
        forces: Sequence[Force],
        free: np.ndarray,
        solver: str = "auto",
        compile: Setting = "auto",
        self_contact: SelfContact | None = None,
    ):
        super().__init__()
        self.body = body
        self.terms = nn.ModuleList(terms)  # type: ignore[assignment]
        self.forces = nn.ModuleList(forces)  # type: ignore[assignment]
        self.self_contact = self_contact
        for force in forces:
            force.bind(body)
        if self_contact is not None:
            self_contact.bind(body)
        self._check_constraints()
        self._number_unknowns(free)
        self._check_hooks()
        work = derivatives([*terms, *(load.term for load in self._stencil_loads())]) + block_entries(forces)
        self.compilation = Compilation(compile, Cost.estimated(len(terms), work))
        self._lay_out_matrix()
        self._couplings = CouplingCache(self.pattern, self._unknown[: 3 * body.n_nodes])
        if solver != "auto" and solver not in linear.SOLVERS:
            raise InputError(f"solver: expected auto or one of {', '.join(linear.SOLVERS)}, got {solver!r}")
        self.solver_name = solver
        self._solvers: dict[tuple[torch.device, int], linear.Solver] = {}
        if solver != "auto":
            self.solver_for(1)  # refuse here what does not go with the matrix
        self.recordings: dict[tuple, Any] = {}  # see `integrate.standing`
        self.has_user_hooks = is_of_user(self)

    def __getstate__(self) -> dict:
        # recordings belong to this object
        return {name: value for name, value in self.__dict__.items() if name != "recordings"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.recordings = {}

    # ---- eager or compiled -------------------------------------------------------------------------------------

    def fused(self, function: Callable, q: Tensor) -> Callable:
        """Return the function as it is to run for robots with q (B, n), compiled as a whole where steps are.

        It may call the model's own methods, but derivatives by autograd cannot be compiled: see `Balance.closed`.
        """
        return self.compilation.form(function, q.shape[0], q)

    def compile_if_long(self, rows: int, q: Tensor, ahead: float = 0.0) -> None:
        """Compile for so many robots at a time from now on, under "auto" and if the work done and `ahead` pays for it.

        Parameters
        ----------
        q : of all robots.
        ahead : eager work that is known to come [s], see `Compilation`.
        """
        self.compilation.consider(rows, q, self.why_eager, ahead)

    def why_eager(self) -> str | None:
        """Return why "auto" does not compile this model; None where it may."""
        if self.compilation.refusal is not None:
            return self.compilation.refusal
        if names := self.uncompiled_terms():
            return f"derivatives of {', '.join(names)} come from autograd, write them in closed form"
        if self.device.type == "cpu":
            try:
                compiler()
            except Unavailable as error:
                return str(error)
        return None

    # ---- what it is made of ------------------------------------------------------------------------------------

    @property
    def n_dofs(self) -> int:
        """Number of dofs n = 3 N + A."""
        return self.body.n_dofs

    @property
    def n_free(self) -> int:
        """Number of unknowns: dofs that are not clamped."""
        return len(self.free_index)

    @property
    def pattern(self) -> Pattern:
        """Where the entries of the matrix stand (of a robot whose parts do not touch each other)."""
        return self._layout.pattern

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
        """Bend-twist springs (S, 3): node before, centre, node after."""
        return self.body.springs.nodes

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
        """What the robot may touch."""
        return [force for force in self.forces if isinstance(force, Obstacle)]

    def _check_constraints(self) -> None:
        """Refuse constraints that ask for different methods (all contacts of a step are one problem), or are coarse."""
        laws = [o.law for o in self.obstacles] + ([] if self.self_contact is None else [self.self_contact.law])
        methods = {law.response.method for law in laws if isinstance(law, ConstraintLaw)}
        if len(methods) > 1:
            raise InputError(
                f"Complementarity.method: one for all contacts of a robot, got {', '.join(sorted(methods))}"
            )
        if methods and self.dtype != torch.float64:
            raise InputError(
                f"Complementarity: contact without overlap needs a model in float64, got {self.dtype}; or take Penalty"
            )

    @property
    def constrained(self) -> bool:
        """Whether some contact is a constraint."""
        own = self.self_contact is not None and self.self_contact.constrained
        return own or any(o.constrained for o in self.obstacles)

    def slip_velocities(self) -> list[Tensor]:
        """Return the slip velocities, () or (B, 1) [m/s], of all friction that is smoothed."""
        laws = [o.law for o in self.obstacles] + ([] if self.self_contact is None else [self.self_contact.law])
        found = [None if law.friction is None else law.friction.slip_velocity for law in laws]
        return [slip for slip in found if slip is not None]

    def with_slip(self, factor: float) -> Model:
        """Return this with all slip velocities of friction multiplied; all else shared."""
        children: dict[str, nn.Module] = {
            "forces": nn.ModuleList(_slipping(f, factor) if isinstance(f, Obstacle) else f for f in self.forces)
        }
        if self.self_contact is not None:
            children["self_contact"] = _slipping(self.self_contact, factor)
        return with_changes(self, {}, children)

    @property
    def needs_feasible_iterates(self) -> bool:
        """Whether some contact needs surfaces apart in every iteration."""
        laws = [o.law for o in self.obstacles] + ([] if self.self_contact is None else [self.self_contact.law])
        return any(law.response.feasible_only for law in laws)

    @property
    def unknown(self) -> np.ndarray:
        """Number (n,) of each dof among the unknowns, -1 where it is clamped."""
        return self._unknown

    def term(self, name: str) -> ElasticTerm:
        """Return the elastic term of that name."""
        for term in self.terms:
            if term.name == name:
                return term
        raise InputError(f"no elastic term {name!r}; there are: {', '.join(t.name for t in self.terms)}")

    def uncompiled_terms(self) -> list[str]:
        """Return the terms whose derivatives come from autograd and therefore stay eager when compiling."""
        return [t.name for t in self._layout.elastic.terms if not t.closed_form]

    @property
    def batch(self) -> int | None:
        """Number of robots that the parameters are given for, or None where they serve any number."""
        numbers = set().union(*(robots(m) for m in every_module(self)))
        if len(numbers) > 1:
            raise InputError(f"the model's parameters are given for different numbers of robots: {sorted(numbers)}")
        return max(numbers, default=None)

    def solver_for(self, batch: int, pairs: StepPairs | None = None) -> linear.Solver:
        """Return the linear solver for the matrices of so many robots on the model's device."""
        if self.solver_name != "auto":
            batch = 1  # a named solver is the same for all
        key = (self.device, batch)
        pattern, solvers = (
            (self.pattern, self._solvers) if pairs is None else (pairs.coupling.pattern, pairs.coupling.solvers)
        )
        if key not in solvers:
            if self.solver_name == "auto":
                served = math.inf if pairs is None else COUPLING_SERVES
                solvers[key] = linear.choose(pattern, batch, self.device, served)
            else:
                solvers[key] = linear.make(self.solver_name, pattern)
        return solvers[key]

    def may_touch(self, start: Tensor, end: Tensor, slack: Tensor) -> StepPairs | None:
        """Return the parts that may touch while q goes from `start` to `end` (B, n), up to `slack` (B,) [m] beside.

        None where nothing can.
        """
        if self.self_contact is None:
            return None
        x0, x1 = (q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3)) for q in (start, end))
        return StepPairs(self.self_contact.pairs(x0, x1, slack), self._couplings)

    def parts(self, state: State, control: Control, size: int) -> list[tuple[Model, State, Control]]:
        """Return the parts of a batch of so many robots each, with models for them; the last as `split` has it.

        The models share everything with this one: parameters, solvers, compiled kernels, what contact found out. What
        is given per robot is a part of this model's tensors, through which gradients come back.
        """
        states = state.split(size)
        models = [self] * len(states) if self.batch is None else self._split(state.batch, size)
        return list(zip(models, states, control.split(size, len(states)), strict=True))

    def of_robot(self, robot: int) -> Model:
        """Return the model of one robot of the batch; this one where it serves any number."""
        return self if self.batch is None else self._split(self.batch, 1, robot)[0]

    def _split(self, batch: int, size: int, start: int | None = None) -> list[Model]:
        """Return models for parts of the batch that the parameters are given for, or for the one part at `start`."""
        splitter = Splitter(batch, size, start)
        parts = {name: splitter.parts(m) for name, m in self.named_children() if name not in ("_layout", "advance")}
        models = []
        for k in range(splitter.count):
            children = {name: made[k] for name, made in parts.items()}
            terms = cast(Sequence[ElasticTerm], children["terms"])
            children["_layout"] = self._layout.for_terms(terms, cast(Sequence[Force], children["forces"]))
            models.append(with_changes(self, {}, children))
        return models

    def recorded(self, q: Tensor) -> bool:
        """Return whether steps from q (B, n) are recorded: on a GPU, compiled, unless there is a reason not to."""
        if q.device.type != "cuda" or not self.compilation.runs_compiled(q.shape[0], q):
            return False
        return self.unrecorded() is None

    def unrecorded(self) -> str | None:
        """Return why no graph can hold a step of this robot with inertia; None where one can."""
        if self.self_contact is not None or self.obstacles:
            return "contact"
        if any(force.varies for force in self.forces):
            return "forces that change within a step"
        if terms := self.uncompiled_terms():
            return f"derivatives by autograd ({', '.join(terms)})"
        direct = self.solver_name == "auto" or issubclass(linear.SOLVERS[self.solver_name], DirectSolver)
        return None if direct else f"the solver {self.solver_name}, which reads numbers"

    def read_by_equations(self) -> list[nn.Module]:
        """Return the modules that the equations of a step read besides forces."""
        return [self.body, cast(nn.Module, self.terms), self._layout, self.advance]

    def without_forces(self, body: Body, terms: Sequence[ElasticTerm]) -> Model:
        """Return this for a body and terms that differ in their constants only, and without forces; all else shared."""
        layout = with_changes(self._layout.for_terms(terms, []), {}, {"force_scatters": nn.ModuleList()})
        children = {"body": body, "terms": terms, "forces": nn.ModuleList(), "_layout": layout}
        return with_changes(self, {}, cast(dict[str, nn.Module], children))

    def _by_parts(
        self, function: Callable[[Model, State, Control], dict[str, Tensor]], state: State, control: Control
    ) -> dict[str, Tensor]:
        """Return what a function gives for all robots of a state, evaluated some at a time; tensors (B, ..) by name."""
        size = robots_at_a_time(self, state.batch)
        if size == state.batch:
            return function(self, state, control)
        found = [function(*part) for part in self.parts(state, control, size)]
        found[-1] = {name: value[-state.batch % size :] for name, value in found[-1].items()}
        return {name: torch.cat([part[name] for part in found]) for name in found[0]}

    # ---- states ------------------------------------------------------------------------------------------------

    def initial_state(
        self,
        batch: int | None = None,
        q: Tensor | None = None,
        velocity: Tensor | None = None,
        control: Control | None = None,
    ) -> State:
        """Return a state at rest in the rest shape, or at the given q and velocity, each (n,) or (B, n).

        Directors are those at rest, carried to q. The acceleration of the free dofs is what the forces give them there
        (under `control`, if given). The batch defaults to what q or the model's own parameters ask for.

        Where the model has trained constants, the acceleration depends on them: make the state anew for each backward
        pass, or `detach()` it.
        """
        for name, value in (("q", q), ("velocity", velocity)):
            if value is not None and (value.dim() > 2 or value.shape[-1] != self.n_dofs):
                expected = f"({self.n_dofs},) or (B, {self.n_dofs})"
                raise InputError(f"initial_state: {name} has to be {expected}, got {tuple(value.shape)}")
            if value is not None and not bool(torch.isfinite(value).all()):
                raise InputError(f"initial_state: {name} holds numbers that are not finite")
        batch = self._initial_batch(batch, q, velocity)
        state = self._rest_state(batch)
        rest_q = state.q
        if q is not None:
            state = self.moved(state, q.to(rest_q).expand(batch, -1).contiguous())
        if velocity is not None:
            state = state.replace(velocity=velocity.to(rest_q).expand(batch, -1).contiguous())
        control = control or Control()
        self.check_batch(state, control)
        with self.compilation.paused():
            force = self._by_parts(_force_at, state, control)["force"]
        self._refuse_closed_gaps(force)
        moves = self.free & ~self.algebraic
        acceleration = torch.where(moves, force / torch.where(moves, self.body.mass, 1.0), 0.0)
        return state.replace(acceleration=acceleration.contiguous())  # as after a step: compiled code is for one layout

    def _rest_state(self, batch: int) -> State:
        """Return robots at rest in the rest shape; their acceleration is not known yet."""
        rest = torch.cat([self.body.nodes.flatten(), self.body.nodes.new_zeros(self.body.n_angles)])
        rest_q = rest.expand(batch, -1).contiguous()
        state = State(
            q=rest_q,
            velocity=torch.zeros_like(rest_q),
            acceleration=torch.zeros_like(rest_q),
            director=self.directors.expand(batch, -1, -1).contiguous(),
            tangent=self.tangents(rest_q),
            reference_twist=rest_q.new_zeros(batch, len(self.springs)),
            time=rest_q.new_zeros(batch),
        )
        twist = self._reference_twist(Vec3.of(state.tangent), Vec3.of(state.director), None)
        return state.replace(reference_twist=twist)

    def _initial_batch(self, batch: object, q: Tensor | None, velocity: Tensor | None) -> int:
        """Return the number of robots of an initial state."""
        if not (batch is None or (isinstance(batch, int | np.integer) and batch >= 1)):
            raise InputError(f"initial_state: batch has to be a whole number from 1 up, got {batch!r}")
        given = {x.shape[0] for x in (q, velocity) if x is not None and x.dim() == 2} - {1}
        number = int(batch) if isinstance(batch, int | np.integer) else max([*given, self.batch or 1])
        for other in given - {number}:
            raise InputError(f"initial_state: q or velocity is given for {other} robots, asked for are {number}")
        return number

    def _refuse_closed_gaps(self, force: Tensor) -> None:
        """Refuse a start at which a barrier's force (B, n) on a node is infinite."""
        finite = torch.isfinite(force[:, : 3 * self.body.n_nodes])
        if self.needs_feasible_iterates and not bool(finite.all()):
            robot, dof = (~finite).nonzero()[0].tolist()
            raise InputError(
                f"initial_state: robot {robot}, node {dof // 3}: a surface touches it or is in it, and contact by "
                "Barrier needs a gap there from the start; move it away, or take Penalty"
            )

    def tangents(self, q: Tensor) -> Tensor:
        """Return the unit tangents of the framed edges (B, A, 3) at q (B, n)."""
        return self._tangents(q).stacked()

    def _tangents(self, q: Tensor) -> Vec3:
        nodes = q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3)).unbind(-1)
        return Vec3(*(x[:, self._edges[:, 1]] - x[:, self._edges[:, 0]] for x in nodes)).unit()

    def moved(self, state: State, q: Tensor) -> State:
        """Return the state at q (B, n), its frames transported there; all else unchanged."""
        carried = self.compilation.form(Model._carried, q.shape[0], q)
        tangent, director, twist = carried(self, q, state.tangent, state.director, state.reference_twist)
        return state.replace(q=q, director=director, tangent=tangent, reference_twist=twist)

    def _carried(
        self, q: Tensor, tangent: Tensor, director: Tensor, reference_twist: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tangents, directors (B, A, 3) and reference twists (B, S) at q (B, n) for those before."""
        there, before, anchor = self._tangents(q), Vec3.of(tangent), Vec3.of(director)
        moved = anchor.transported(before, there)
        # transport keeps lengths and angles up to rounding; this keeps rounding from adding up over many steps
        moved = (moved - there.times(moved.dot(there))).unit()
        return there.stacked(), moved.stacked(), self._reference_twist(there, moved, reference_twist)

    def moved_by(self, q: Tensor, step: Tensor) -> Tensor:
        """Return q (B, n) moved by a step (B, n), edges keeping the length that it asks for to first order."""
        return self.compilation.form(LengthPreservingMove.forward, q.shape[0], q)(self.advance, q, step)

    def folded(self, state: State, q: Tensor, margin: float = 1e-6) -> Tensor:
        """Return the robots (B,) where an edge turned by 180 degrees since `state` or two edges of a spring fold back.

        `margin` is the least 1 + cosine that counts as not folded: 1e-6 is 0.08 degrees from the fold.
        """
        tangent = self.tangents(q)
        turned = (state.tangent * tangent).sum(-1)
        e, f = (tangent[:, self._spring_edges[:, k]] * self._spring_signs[:, k, None] for k in range(2))
        worst = torch.cat([turned, (e * f).sum(-1), turned.new_ones(turned.shape[0], 1)], dim=1).amin(1)
        return ~(worst + 1 > margin)

    def _reference_twist(self, tangent: Vec3, director: Vec3, previous: Tensor | None) -> Tensor:
        """Return the reference twist (B, S) of the springs, on the branch nearest to `previous`."""
        edges, signs = self._spring_edges, self._spring_signs
        te, tf = (tangent.columns(edges[:, k]).times(signs[:, k]) for k in range(2))
        de, df = (director.columns(edges[:, k]) for k in range(2))
        de = de.transported(te, tf)
        angle = torch.atan2(de.cross(df).dot(tf), de.dot(df))
        if previous is None:
            return angle
        return angle + 2 * torch.pi * torch.round((previous - angle) / (2 * torch.pi))

    # ---- forces ------------------------------------------------------------------------------------------------

    def start_step(
        self,
        state: State,
        control: Control | None = None,
        elapsed: float | None = None,
        pairs: StepPairs | None = None,
    ) -> StepStart:
        """Return what the evaluations of a step from `state` share.

        `elapsed` [s] is the time from the state to where forces are evaluated; without it nothing dissipates. `pairs`
        is what may touch on the way (see `may_touch`); without it, what touches at the state.
        """
        control = control or Control()
        self.check_batch(state, control)
        return self.unchecked_start(state, control, elapsed, pairs)

    def unchecked_start(
        self, state: State, control: Control, elapsed: float | Tensor | None, pairs: StepPairs | None
    ) -> StepStart:
        """Return what `start_step` does, for a state and a control that passed `check_batch`."""
        held = self.held_force(state, control)
        pairs = self.may_touch(state.q, state.q, torch.zeros_like(state.time)) if pairs is None else pairs
        constants = [term.constants(state, control, elapsed) for term in self.terms]
        constants += [load.term_constants(state, control, elapsed) for load in self._stencil_loads()]
        return StepStart(state, control, constants, held, pairs)

    def _stencil_loads(self) -> list[Any]:
        """Return the loads that are summed along with the elastic terms."""
        return [force for force in self.forces if force.varies and force.by_stencils]

    def _varying_forces(self) -> list[Force]:
        """Return the other loads that change with q or velocity."""
        return [force for force in self.forces if force.varies and not force.by_stencils]

    def with_share(self, start: StepStart, share: float) -> StepStart:
        """Return a step's start at which a share of the loads acts that are summed along with the elastic terms."""
        own, loads = start.constants[: len(self.terms)], start.constants[len(self.terms) :]
        scaled = [dataclasses.replace(c, measure=share * c.measure) for c in loads]
        return dataclasses.replace(start, constants=[*own, *scaled])

    def stencil_load(self, start: StepStart, q: Tensor) -> Tensor | float:
        """Return the part (B, n) that loads have in `elastic_force`; 0 where there is none."""
        pairs = zip(self._stencil_loads(), start.constants[len(self.terms) :], strict=True)
        return sum(load.at(q, constants) for load, constants in pairs)

    def held_force(self, state: State, control: Control) -> Tensor:
        """Return the explicit forces and that of the control (B, n)."""
        held = torch.zeros_like(state.q) if control.force is None else control.force.clone()
        for force in self.forces:
            if force.explicit:
                held = held + force(state, control)
        return held

    def elastic_force(self, start: StepStart, q: Tensor) -> Tensor:
        """Return the elastic force (B, n) at q (B, n), with the loads that are sums over stencils."""
        return self._layout.elastic.force(dofs_of(q), start.constants).t()

    def constant_load(self, start: StepStart, time: Tensor) -> Tensor:
        """Return the external forces (B, n) that do not change with q and velocity, at time (B,)."""
        trial = start.state.replace(time=time)
        total = start.held_force
        for force in self.forces:
            if force.constant and not force.explicit:
                total = total + force(trial, start.control)
        return total

    @property
    def varying_loads(self) -> bool:
        """Whether some external force changes with q or velocity, other than those in `elastic_force`."""
        return bool(self._varying_forces())

    @property
    def eager_loads(self) -> bool:
        """Whether some of them run eagerly, whatever else is compiled."""
        return not all(force.compiles and force.closed_form for force in self._varying_forces())

    def varying_load(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the other external forces (B, n) at q, velocity (B, n) and time (B,)."""
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        total = torch.zeros_like(q)
        for force in self._varying_forces():
            total = total + force(trial, start.control)
        return total

    def external_force(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the external force (B, n) at q, velocity (B, n) and time (B,)."""
        constant = self.constant_load(start, time)
        return constant + self.varying_load(start, q, velocity, time) if self.varying_loads else constant

    def internal_force(self, start: StepStart, q: Tensor, velocity: Tensor) -> Tensor:
        """Return the elastic force and that between parts that touch (B, n) at q and velocity (B, n)."""
        force = self.elastic_force(start, q)
        if start.pairs is None or self.self_contact is None:
            return force
        return force + self.self_contact.force(start.pairs.pairs, q, velocity)

    def force(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return internal plus external force (B, n)."""
        return self.internal_force(start, q, velocity) + self.external_force(start, q, velocity, time)

    def force_and_stiffness(
        self,
        start: StepStart,
        q: Tensor,
        velocity: Tensor,
        time: Tensor,
        position_gain: float = 1.0,
        velocity_gain: float | Tensor = 0.0,
        mass_gain: float | Tensor = 0.0,
        load_factor: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the force (B, n) and the values of mass_gain M - position_gain dF/dq - velocity_gain dF/dvelocity.

        See `varying_force_and_stiffness`.
        """
        gains = (position_gain, velocity_gain, mass_gain, load_factor)
        force, values = self.varying_force_and_stiffness(start, q, velocity, time, *gains)
        return force + load_factor * self.constant_load(start, time), values

    def varying_force_and_stiffness(
        self,
        start: StepStart,
        q: Tensor,
        velocity: Tensor,
        time: Tensor,
        position_gain: float,
        velocity_gain: float | Tensor,
        mass_gain: float | Tensor,
        load_factor: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the force but its constant load (B, n), and its derivative with inertia.

        The latter is mass_gain M - position_gain dF/dq - velocity_gain dF/dvelocity.

        The values (nnz, B) stand on the pattern of `solver_for(B, start.pairs)`. Rows and columns of unknowns without
        inertia have other gains (see `layout.MatrixLayout`). External forces and their derivatives are multiplied by
        `load_factor`.
        """
        by_position, by_velocity = self._layout.entry_gains(position_gain, velocity_gain, self.dtype)
        elastic, values = self._layout.elastic.force_and_stiffness(dofs_of(q), start.constants)
        if not (isinstance(by_position, float) and by_position == 1):
            values = by_position * values
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        for force_module, scatters in zip(self.forces, self._layout.force_scatters, strict=True):
            if not force_module.varies or force_module.by_stencils:
                continue
            with torch.no_grad():
                derivatives = force_module.derivatives(trial, start.control)
            for scatter, derivative in zip(scatters, derivatives, strict=True):
                for gain, blocks in zip((by_position, by_velocity), derivative, strict=True):
                    if blocks is not None and not (isinstance(gain, float) and gain == 0):
                        values -= gain * scatter((load_factor * blocks).flatten(1).t().contiguous())
        if not (isinstance(mass_gain, float) and mass_gain == 0):
            self._layout.add_mass(values, mass_gain * self.body.mass[..., self.free_index])
        force = elastic.t()
        if self.varying_loads:
            force = force + load_factor * self.varying_load(start, q, velocity, time)
        if start.pairs is None or self.self_contact is None:
            return force, values
        contact, values = start.pairs.added(self.self_contact, q, velocity, values, position_gain, velocity_gain)
        return force + contact, values

    @property
    def conservative(self) -> bool:
        """Whether all forces that change within a step have a potential."""
        smooth = self.self_contact is None or self.self_contact.symmetric
        return smooth and all(force.conservative for force in self.forces if force.varies)

    def load_potential(self, start: StepStart, q: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the potential (B,) of the loads that change with q, at q."""
        trial = start.state.replace(q=q, velocity=velocity, time=time)
        potential = q.new_zeros(q.shape[0])
        for force in self._varying_forces():
            potential = potential + force.potential(trial, start.control)
        return potential

    def internal_potential(self, start: StepStart, q: Tensor) -> Tensor:
        """Return the potential (B,) of the internal forces at q (B, n): energy and what the step dissipates [J]."""
        transposed = q.t().contiguous()
        total = q.new_zeros(q.shape[0])
        for term, constants in zip(self._layout.elastic.terms, start.constants, strict=True):
            total = total + term.potential(transposed, constants)
        if start.pairs is None or self.self_contact is None:
            return total
        return total + self.self_contact.energy(start.pairs.pairs, q)

    def natural_strains(self, batch: int) -> Control:
        """Return a control (B, ...) that sets the model's own natural strains and rest lengths."""
        control = Control(rest_length=self.body.edge_length.expand(batch, -1))
        if len(self.hinges):
            control = control.replace(natural_hinge_angle=self._natural_hinge_angle().expand(batch, -1))
        if len(self.springs):
            term = self.term("bend_twist")
            kappa1, kappa2, tau = (getattr(term, f"natural_{s}").expand(batch, -1) for s in ("kappa1", "kappa2", "tau"))
            control = control.replace(natural_curvature=torch.stack([kappa1, kappa2], dim=-1), natural_twist=tau)
        return control

    def _natural_hinge_angle(self) -> Tensor:
        """Return the natural angles (.., H): those that the hinge term has, if it has all hinges."""
        terms = [t for t in self.terms if t.name == "hinge"]
        if terms and terms[0].stencil.count == len(self.hinges):
            return terms[0].natural_hinge_angle  # type: ignore[return-value]
        return self.body.hinge_angle

    def energies(self, state: State, control: Control | None = None) -> dict[str, Tensor]:
        """Return the kinetic energy, the elastic energy by part and that of contact, each (B,) [J].

        They can be differentiated by the state, the control and the model's tensors.
        """
        control = control or Control()
        self.check_batch(state, control)
        return self._by_parts(Model._energies, state, control)

    def _energies(self, state: State, control: Control) -> dict[str, Tensor]:
        start = self.start_step(state, control)
        q = state.q.t().contiguous()
        energies = {"kinetic": 0.5 * (self.body.mass * state.velocity**2).sum(1)}
        for term, constants in zip(self._layout.elastic.terms, start.constants, strict=True):
            energies.update(term.energies(q, constants))
        if self.self_contact is not None and start.pairs is not None:
            energies["self_contact"] = self.self_contact.energy(start.pairs.pairs, state.q)
        for obstacle in self.obstacles:
            energies[obstacle.name] = obstacle.potential(state, start.control)
        return energies

    def contact_report(self, state: State) -> Report:
        """Return what contact does at a state (see `contact.report`); constraints have no loads outside of a step."""
        return self._by_parts(Model._contact_report, state, Control())

    def _contact_report(self, state: State, _: Control) -> Report:
        pairs = self.may_touch(state.q, state.q, torch.zeros_like(state.time))
        own = None if pairs is None else pairs.pairs
        return contact_report(self.body, self.obstacles, self.self_contact, state, own, None)

    def strains(self, state: State) -> dict[str, Tensor]:
        """Return the strains of each term by name, (B, stencils): stretch, kappa1, kappa2, tau, ...

        They can be differentiated by the state and the model's tensors.
        """
        start = self.start_step(state)
        q = state.q.t().contiguous()
        strains: dict[str, Tensor] = {}
        for term, constants in zip(self.terms, start.constants[: len(self.terms)], strict=True):
            strains.update(term.strains(q, constants))
        return strains

    # ---- unknowns and their matrix -----------------------------------------------------------------------------

    def spread(self, free_values: Tensor, full: Tensor) -> Tensor:
        """Return `full` (B, n) with its free dofs replaced by `free_values` (B, n_free)."""
        return full.index_copy(1, self.free_index, free_values)

    def residual_weight(self) -> Tensor:
        """Return the weights (n_free,) that make a residual of forces and torques one norm in N.

        Forces count as they are, torques over the mean edge length.
        """
        length = self.body.typical_length()
        twist = self.free_index >= 3 * self.body.n_nodes
        return torch.where(twist, 1 / length, torch.ones_like(length))

    def check_batch(self, state: State, control: Control) -> None:
        """Refuse states and controls that do not belong to this model."""
        if not isinstance(control, Control):
            raise InputError(f"control: expected a Control, got {type(control).__name__}")
        if state.q.shape[1] != self.n_dofs:
            raise InputError(f"State.q: this model has {self.n_dofs} dofs, got {state.q.shape[1]}")
        if self.batch not in (None, state.batch):
            raise InputError(f"this model's parameters are for {self.batch} robots, got a state of {state.batch}")
        control.check(state.batch, self.n_dofs, len(self.springs), self.body.n_edges, len(self.hinges))

    def _check_hooks(self) -> None:
        """Find what forces depend on whose derivatives are not written, and refuse hooks that break what they claim."""
        # obstacles of the library stay out: their paths, and what touches at a trial state, tell nothing
        if all(f.closed_form or f.constant for f in self.forces) and not is_of_user(self):
            return
        robots = self.batch
        state = self._trial_state(min(robots or TRIALS, TRIALS))
        few = leading(self, robots, TRIALS)
        control = few.natural_strains(state.batch).replace(clamped_q=state.q, force=torch.zeros_like(state.q))
        for force in self.forces:
            settle_dependence(force, robots, state, control)
        check_hooks(self.forces, self.terms, robots, state, control)

    def _trial_state(self, batch: int) -> State:
        """Return robots that are bent, stretched, twisted and moving at random, always the same."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(3, batch, self.n_dofs, generator=generator, dtype=torch.float64).to(self.nodes)
        rest = self._rest_state(batch)
        size = 0.1 * self.body.typical_length()
        scale = torch.full_like(noise[0], 0.3)
        scale[:, : 3 * self.body.n_nodes] = size
        q = rest.q + scale * noise[0]
        tangent, director, twist = self._carried(q, rest.tangent, rest.director, rest.reference_twist)
        return rest.replace(
            q=q,
            velocity=noise[1],
            acceleration=noise[2],
            director=director,
            tangent=tangent,
            reference_twist=twist,
            time=rest.time + torch.linspace(0.3, 0.9, batch).to(rest.time),
        )

    def _number_unknowns(self, free: np.ndarray) -> None:
        if not free.any():
            raise InputError("every dof of the robot is clamped: nothing can move")
        self._unknown = np.where(free, np.cumsum(free) - 1, -1)
        springs = self.body.springs
        self.register_buffer("free_index", torch.as_tensor(np.flatnonzero(free)), persistent=False)
        self.register_buffer("free", torch.as_tensor(free), persistent=False)
        self.register_buffer("_edges", torch.as_tensor(self.body.framed_edges), persistent=False)
        self.register_buffer("_spring_edges", torch.as_tensor(springs.edges), persistent=False)
        signs = torch.as_tensor(springs.signs, dtype=self.dtype)
        self.register_buffer("_spring_signs", signs, persistent=False)
        free_nodes = free[: 3 * self.body.n_nodes].reshape(-1, 3)
        self.advance = LengthPreservingMove(self.body.links, free_nodes, self.dtype)
        massless = (self.body.mass == 0).reshape(-1, self.n_dofs)
        self.register_buffer("algebraic", massless.all(0), persistent=False)

    def _lay_out_matrix(self) -> None:
        symmetric = all(f.symmetric for f in self.forces if f.varies)
        symmetric &= self.self_contact is None or self.self_contact.symmetric
        algebraic = self.algebraic.cpu().numpy()
        self._layout = MatrixLayout(
            self.body, self.terms, self.forces, self._unknown, algebraic, symmetric, self.compilation
        )


def _slipping(contact: Obstacle | SelfContact, factor: float) -> Obstacle | SelfContact:
    """Return a contact with the slip velocity of its friction multiplied, if it has any."""
    friction = contact.law.friction
    if friction is None or friction.slip_velocity is None:
        return contact
    eased = with_changes(friction, {"slip_velocity": factor * friction.slip_velocity}, {})
    return with_changes(contact, {}, {"law": with_changes(contact.law, {}, {"friction": eased})})


def _force_at(model: Model, state: State, control: Control) -> dict[str, Tensor]:
    return {"force": model.force(model.start_step(state, control), state.q, state.velocity, state.time)}

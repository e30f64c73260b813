"""Steps in memory that stays where it is, recorded: some tens of calls a step instead of thousands.

On a GPU compiled steps are recorded as CUDA graphs. On a CPU eager steps of few robots are, once some of a kind were
taken, as tapes (`native/tape.py`): what they take is Python, not arithmetic.

A replay works on the memory that was recorded, without running any Python. So everything that a step reads has to be in
one of three groups, or the replay would read what is no longer true:

- *inputs*, copied for each step to the static buffers that the recording reads: state, loads, control, which rows run,
  dt, and all of the model's tensors that may be others in the next step: those that may be given per robot (a part of a
  batch has its own), those that a control sets, and those that `torch.nn.utils.parametrize` makes;
- *captured constants*: the model's other tensors (topology, tables of sums, maps), known by their addresses and shapes
  and kept alive; and the plain numbers in the attributes of its modules and of the integrator. Others are a step of
  another kind (`kinds.py`), with a recording of its own;
- made by the recording itself.

External forces that do not change within a step run as ever and are given as their sum, as they may be any code; on a
CPU they are recorded, too, where all are the library's own. Where some change within a step, it is recorded on a CPU
alone, and if these are the library's own. An elastic term of one's own
that is recorded on a GPU may read its own tensors and plain numbers, nothing else that changes; on a CPU it is not
recorded. Contact with obstacles is recorded on a CPU where it is a force; what the recording cannot tell, whether a
node passed through something, is looked at after it in the few steps in which one may have.

A step is three recordings: the set-up (what stays fixed in the step, first iterate), a round of Newton's method (with
the next matrix or without), and the end (the state after the step). After each round the host reads five flags, on a
GPU the only wait. A round in which some row is not improved leaves everything as it was; from there the search goes on
without recordings, on the same memory. All of that is on the current stream: steps of a model belong to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchdismech.contact.passing import obstacles_suspected
from torchdismech.contact.report import Report
from torchdismech.contact.self_contact import SelfContacts
from torchdismech.errors import Status
from torchdismech.fused import fits, is_own, watched
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.kinds import StepKind, calls_others, odd, varying
from torchdismech.integrate.primal_dual import moved
from torchdismech.integrate.problem import Method, StepProblem
from torchdismech.integrate.step import (
    further_attempts,
    newton_options,
    options_of,
    step_contact,
    step_info,
    step_to,
)
from torchdismech.mechanics import Mechanics
from torchdismech.model import Model
from torchdismech.native.graphs import Recording, Unrecordable, memory_pool, recorded
from torchdismech.native.tape import Tape
from torchdismech.solve import linear
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.solve.newton import Progress, Trial, begun, plain_round, resumed, tried
from torchdismech.solve.search import NewtonOptions, Root
from torchdismech.state import Control, State
from torchdismech.values import Values, evaluated

__all__ = ["RecordedStep", "recorded_step", "takes_tapes", "unrecorded"]

KEPT = 8  # kinds of a model's steps, each with the memory of a step: sizes of batches, kinds of controls, integrators
SEEN = 24  # steps of a kind on a CPU before it is recorded, which takes about as long as these
LARGEST = 60_000  # numbers in q of all robots up to which steps on a CPU are recorded: with more, memory counts
FEW = 4000  # up to which calls are most of a step: trials are recorded, too


def recorded_step(problem: StepProblem) -> tuple[State, StepInfo] | None:
    """Return the states after a step, by its recording, and how it went; None where steps like it are not recorded.

    What a recording does not hold runs as without.
    """
    step = recording_of(problem)
    if step is None:
        return None
    if step.search() and (ended := step.end()) is not None:
        return ended
    with step.values.in_place():
        return step.finished()


def recording_of(problem: StepProblem) -> RecordedStep | None:
    """Return the recording that serves a step, with its set-up done; None where there is none."""
    if problem.state.q.is_cpu and (watched() or not fits(problem.state.q)):
        return None  # somebody looks at what torch does, or transforms it
    kind = _kind_of(problem)
    if kind is None:
        return None
    if kind.recording is None:
        kind.seen += 1
        # what is made in inference mode could not be written to outside of it
        if kind.seen <= kind.wait or kind.refused or torch.is_inference_mode_enabled():
            return None
        try:
            kind.recording = RecordedStep(kind, problem)
        except Unrecordable:
            if problem.state.q.device.type == "cuda":
                raise  # what is recorded there is known to be recordable
            kind.refused = True  # some operation of it reads numbers
            return None
    step: RecordedStep = kind.recording
    step.start(kind.inputs(problem), problem.dt)
    return step


def takes_tapes(model: Model, method: Method, q: Tensor) -> bool:
    """Return whether steps of robots at q (B, n) are recorded as tapes, which is faster than to compile them."""
    with evaluated(model).in_place():
        return _eager_on_a_cpu(model, q) and _recordable(model, method)


def _steps_before(problem: StepProblem) -> int | None:
    """Return how many steps of a kind are taken before they are recorded; None where none ever is."""
    model, q = problem.model, problem.state.q
    if _on_a_gpu(model, q):
        wait = 0
    elif _eager_on_a_cpu(model, q):
        wait = SEEN
    else:
        return None
    return wait if _recordable(model, problem.method) else None


def _recordable(model: Model, method: Method) -> bool:
    return method.scheme.inertial and not odd(method) and unrecorded(model) is None


def _on_a_gpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) are launches of compiled code on a GPU."""
    return q.device.type == "cuda" and model.compilation.runs_compiled(q.shape[0], q)


def _eager_on_a_cpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) are eager on a CPU, by the library's own code, and not too large."""
    eager = q.device.type == "cpu" and q.numel() <= LARGEST and not model.compilation.runs_compiled(q.shape[0], q)
    return eager and all(is_own(module) for owner in (*model.terms, *varying(model)) for module in owner.modules())


def unrecorded(model: Model) -> str | None:
    """Return why no recording can hold a step of these robots with inertia; None where one can."""
    on_cpu, contact = model.device.type == "cpu", model.contact
    if not contact.none and not (on_cpu and not len(contact.self_contacts) and not contact.constrained):
        return "contact" if not on_cpu else "contact of parts of a robot, or by Complementarity"
    if varying(model) and not on_cpu:
        return "forces that change within a step"
    if any(calls_others(module) for force in varying(model) for module in force.modules()):
        return "forces that call a function of the user's"
    if terms := model.mechanics.uncompiled_terms():
        return f"derivatives by autograd ({', '.join(terms)})"
    direct = model.solvers.name == "auto" or issubclass(linear.SOLVERS[model.solvers.name], DirectSolver)
    return None if direct else f"the solver {model.solvers.name}, which reads numbers"


def _kind_of(problem: StepProblem) -> StepKind | None:
    """Return the kind of a step, from those kept with the model; None where no step like it is recorded."""
    kinds: list[StepKind] = problem.model.recordings
    if kinds and kinds[0].fits(problem):
        return kinds[0]
    wait = _steps_before(problem)
    if wait is None:
        return None
    for place, kind in enumerate(kinds[1:], 1):
        if kind.fits(problem):
            kinds.insert(0, kinds.pop(place))  # the one that served last comes first
            return kind
    kinds.insert(0, StepKind(problem, wait))
    del kinds[KEPT:]
    return kinds[0]


class RecordedStep:
    """A step on static buffers.

    Parameters
    ----------
    kind : of the steps.
    problem : the first of them.

    Attributes
    ----------
    values : the static buffers in the places of the model's tensors.
    mechanics : what the recordings evaluate: without the external forces that are given as their sum, if they are.
    pool : where what the recordings make on the way lives.
    """

    def __init__(self, kind: StepKind, problem: StepProblem):
        model = problem.model
        inputs = kind.inputs(problem)
        self._inputs = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs]
        of_dtype: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(inputs):
            of_dtype.setdefault(tensor.dtype, []).append(place)
        self._of_dtype = list(of_dtype.values())
        dt = torch.empty((), dtype=model.dtype, device=model.device)
        static = iter(self._inputs)
        state = problem.state.with_fields(next(static) for _ in problem.state.fields())
        running, self._load = next(static), None if kind.all_forces else next(static)
        control = Control.of({name: next(static) for name in kind.controls(problem.control)})
        self.values = Values({place: next(static) for place in kind.movable_places})
        self._problem = problem.replace(state=state, control=control, running=running, dt=dt, values=self.values)
        alone = SelfContacts([], model.body)
        varies = _Varying(model.body, model.terms, model.forces, alone, model.mechanics.layout)
        self.mechanics = model.mechanics if kind.all_forces else varies
        self.pool = memory_pool(model.device)
        self._record(model.device, inputs, problem.dt)

    def _record(self, device: torch.device, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Record the parts, each on numbers that those before it have made."""
        pool = self.pool
        self._give(inputs, dt)
        with self.values.in_place():
            self._setup: Recording[Any] | Tape[Any] = recorded(self._set_up, device, pool)
            made = self._setup.replay()
            self.equations, self.scale, self._tolerance, self.options, self.at, self._running = made
            self._round = recorded(self._round_with_matrix, device, pool)
            self._last_round = recorded(self._round_without_matrix, device, pool)
            self._end = recorded(self._state_after, device, pool)

    def start(self, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Set a step up."""
        self._give(inputs, dt)
        self._setup.replay()

    def search(self) -> bool:
        """Take rounds of Newton's method; return whether all rows that run have converged."""
        more, with_matrix = True, True
        while more:
            flags = (self._round if with_matrix else self._last_round).replay()
            bad, more, _unconverged, far, lost = flags.tolist()  # the only wait of a round
            if bad or lost:
                return False
            # a round that was expected to be the last and was not is taken once more
            with_matrix = far or not with_matrix
        return True

    def end(self) -> tuple[State, StepInfo] | None:
        """Return the state after the step and how it went, where the search ended well.

        None where something may have been passed through: that is for `finished` to find out.
        """
        (after, status, suspect, contact), at = self._end.replay(), self.at
        if suspect is not None and bool(suspect):
            return None
        # copies, as the next step writes the static buffers
        state = after.with_fields(field.clone() for field in after.fields())
        found = (at.x, at.status, at.iterations, at.norm, self.options.tolerance)
        info = StepInfo.of(Root(*(tensor.clone() for tensor in found)), status.clone(), self.scale.clone())
        return state, dataclasses.replace(info, contact={name: value.clone() for name, value in contact.items()})

    def finished(self) -> tuple[State, StepInfo]:
        """Return the state after the step and how it went, searched for without recordings from where they got to."""
        equations, problem = self.equations, self._problem.replace(running=self._running)
        scale = self.scale.clone()
        tolerance, options = self._tolerance.clone(), self.options.with_tolerance(self.options.tolerance.clone())
        _, *others = problem.method.attempts(equations)
        equations.descending = False
        if problem.state.q.numel() <= FEW and not _on_a_gpu(problem.model, problem.state.q):
            equations.forms = self._forms
        root = resumed(equations, Progress(*(tensor.clone() for tensor in self.at)), options)
        # other ways change what recordings of trials hold
        equations.forms = {name: form for name, form in equations.forms.items() if name is not tried}
        options = newton_options(problem, equations, self.options.weight, tolerance)
        root = further_attempts(equations, root, others, options, problem.running)
        equations.forms = {}
        q = equations.full(root.x)
        info = step_info(equations, root, q, scale, problem.running)
        after, info = step_to(problem, equations, ContactCandidates(problem), q, info)
        info = dataclasses.replace(info, status=self._status(info.status))
        return after.with_fields(field.clone() for field in after.fields()), info

    # ---- inside ------------------------------------------------------------------------------------------------

    @cached_property
    def _forms(self) -> dict[Callable, Callable]:
        """Recordings of what searches call after steps that are not taken whole."""
        forms: dict[Callable, Callable] = {tried: _RecordedTrials(self.equations, self.options, self.at)}
        if self.equations.model.contact.rubs:
            known = self.equations.rubbing.begun(self._problem.state)
            given = [self.at.x, torch.zeros_like(self.at.x), *known]
            forms[moved] = _RecordedCall(partial(moved, self.equations), given)
        return forms

    def _give(self, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Write what a step is given to the static buffers."""
        with torch.no_grad():
            for places in self._of_dtype:  # as torch then takes one launch for many
                torch._foreach_copy_([self._inputs[k] for k in places], [inputs[k] for k in places])
        assert isinstance(self._problem.dt, Tensor)
        self._problem.dt.fill_(dt)

    def _set_up(self) -> tuple[Any, ...]:
        """Return the equations and all that the rounds need."""
        problem = self._problem
        running = problem.running & problem.state.finite()
        equations = problem.equations(mechanics=self.mechanics)
        if self._load is not None:
            equations.hold(self._load)
        weight, scale, x = equations.compiled(StepEquations.setup)(equations, None, True)
        tolerance = problem.method.tolerance(scale)
        options = newton_options(problem, equations, weight, tolerance)
        if problem.model.contact.rubs and problem.method.line_search:
            options = options_of("whole", options)  # the first attempt, see `Integrator.attempts`
        at, noise_tolerance = begun(equations, x, options, running)
        return equations, scale, tolerance, options.with_tolerance(noise_tolerance), _apart(at), running

    def _round_with_matrix(self) -> Tensor:
        return self._taken(with_matrix=True)

    def _round_without_matrix(self) -> Tensor:
        return self._taken(with_matrix=False)

    def _taken(self, with_matrix: bool) -> Tensor:
        """Take a round if it suits all rows, and without a matrix is the last; return its flags."""
        new, flags = plain_round(self.equations, self.at, self.options, with_matrix)
        good = ~flags[0] if with_matrix else ~(flags[0] | flags[2])
        for found, static in zip(new, self.at, strict=True):
            if found is not static:
                torch.where(good, found, static, out=static)
        return flags

    def _state_after(self) -> tuple[State, Tensor, Tensor | None, Report]:
        """Return state and status after the step, whether something may have been passed through, what contact did."""
        converged = self.at.status == int(Status.CONVERGED)  # also of robots that do not run
        accepted = self._running & converged
        equations, q, status = self.equations, self.equations.full(self.at.x), self._status(self.at.status)
        after = equations.compiled(StepEquations.accepted_state)(equations, q, accepted)
        if equations.model.contact.none:
            return after, status, None, {}
        suspect = obstacles_suspected(equations.model.obstacles, self._problem.state, after)
        return after, status, suspect.any(), step_contact(equations, q, converged)

    def _status(self, status: Tensor) -> Tensor:
        """Return the status of the robots, also of those that were not stepped, as their state is not finite."""
        return torch.where(self._problem.running & ~self._running, int(Status.NOT_FINITE), status)


class _Varying(Mechanics):
    """A robot's mechanics but for the external forces that do not change within a step: their sum is an input."""

    def held_force(self, state: State, control: Control) -> Tensor:
        """Return none (B, n)."""
        return torch.zeros_like(state.q)


class _RecordedTrials:
    """What `solve.newton.tried` is, recorded on a CPU: with the matrix there and without.

    Parameters
    ----------
    equations, options : of a recorded step.
    at : an iterate; so many robots and unknowns have all others.
    """

    def __init__(self, equations: StepEquations, options: NewtonOptions, at: Progress):
        none = torch.zeros_like(at.status, dtype=torch.bool)
        static = (at.x, at.norm, torch.zeros_like(at.x), none, at.status, none, options.tolerance)
        rest = (options.weight, options.diagonal, options.line_search)
        self._count = len(static)
        self._calls = {
            with_matrix: _RecordedCall(partial(_tried, equations, (*rest, with_matrix, False)), static)
            for with_matrix in (True, False)
        }

    def __call__(self, equations: StepEquations, *given: Any) -> Trial:
        """Return what a step led to; `given` is as for `tried`, of which only numbers of tensors may differ."""
        return Trial._make(self._calls[given[-2]](equations, *given[: self._count]))


def _tried(equations: StepEquations, rest: tuple, *given: Any) -> Trial:
    return tried(equations, *given, *rest)


class _RecordedCall:
    """A function of tensors, recorded on a CPU.

    Parameters
    ----------
    function : of them, which returns tensors and None.
    given : tensors like all that it is called with.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor | None]], given: Sequence[Tensor]):
        self._given = [tensor.clone() for tensor in given]
        self._tape = recorded(partial(function, *self._given), given[0].device, None)

    def __call__(self, _: StepEquations, *given: Tensor) -> list[Tensor | None]:
        """Return what the function does of these."""
        for own, new in zip(self._given, given, strict=True):
            own.copy_(new)
        return [None if tensor is None else tensor.clone() for tensor in self._tape.replay()]


def _apart(at: Progress) -> Progress:
    """Return tensors in memory of their own, which rounds may write to."""
    seen: set[int] = set()
    own = []
    for tensor in at:
        place = tensor.untyped_storage().data_ptr()
        own.append(tensor.clone() if place in seen else tensor)
        seen.add(place)
    return Progress(*own)

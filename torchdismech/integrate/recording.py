"""Steps in memory that stays where it is, recorded as CUDA graphs: some tens of calls a step instead of thousands.

A graph replays launches on the memory that they were recorded with, without running any Python. So everything that a
step reads has to be in one of three groups, or the replay would read what is no longer true:

- *inputs*, copied for each step to the static buffers that the graphs read: state, loads, control, which rows run, dt,
  and all of the model's tensors that may be others in the next step: those that may be given per robot (a part of a
  batch has its own) and those that `torch.nn.utils.parametrize` makes;
- *captured constants*: the model's other tensors (topology, tables of sums, maps), known by their addresses, shapes and
  dtypes and kept alive; and the plain numbers in the attributes of its modules and of the integrator. Others lead to
  another recording;
- made by the graphs themselves.

External forces run as ever and are given as their sum: they may be any code. An elastic term of one's own that is
recorded may read its own tensors and plain numbers, nothing else that changes.

A step is three graphs: the set-up (what stays fixed in the step, first iterate), a round of Newton's method (with the
next matrix or without), and the end (the state after the step). After each round the host reads five flags, the only
wait. A round in which some row is not improved leaves everything as it was; from there the search goes on without
graphs, on the same memory. All of that is on the current stream: steps of a model belong to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech.contact.self_contact import SelfContacts
from torchdismech.errors import Status
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import Method, StepProblem
from torchdismech.integrate.step import further_attempts, newton_options, step_info
from torchdismech.mechanics import Mechanics, StepStart
from torchdismech.model import Model
from torchdismech.native.graphs import Recording, memory_pool, recorded
from torchdismech.solve import linear
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.solve.newton import Progress, begun, plain_round, resumed
from torchdismech.solve.search import Root
from torchdismech.state import Control, State
from torchdismech.values import Place, Values

__all__ = ["RecordedStep", "recorded_step", "records", "unrecorded"]

KEPT = 8  # recordings of a model, each with the memory of a step: sizes of batches, kinds of controls, integrators
PLAIN = (bool, int, float, str, type(None))


def records(problem: StepProblem) -> bool:
    """Return whether a step is recorded: on a GPU, compiled, with inertia, unless there is a reason not to."""
    if not _on_a_gpu(problem.model, problem.state.q):
        return False
    return problem.method.scheme.inertial and not _odd(problem.method) and unrecorded(problem.model) is None


def _on_a_gpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) are launches of compiled code on a GPU."""
    return q.device.type == "cuda" and model.compilation.runs_compiled(q.shape[0], q)


def unrecorded(model: Model) -> str | None:
    """Return why no graph can hold a step of these robots with inertia; None where one can."""
    if not model.contact.none:
        return "contact"
    if any(force.varies for force in model.forces):
        return "forces that change within a step"
    if terms := model.mechanics.uncompiled_terms():
        return f"derivatives by autograd ({', '.join(terms)})"
    direct = model.solver_name == "auto" or issubclass(linear.SOLVERS[model.solver_name], DirectSolver)
    return None if direct else f"the solver {model.solver_name}, which reads numbers"


def recorded_step(problem: StepProblem) -> tuple[State, StepInfo]:
    """Return the states after a step that graphs hold, and how it went; what they do not hold runs as without."""
    step = recording_of(problem)
    if step.search():
        return step.end()
    with step.values.in_place():
        return step.finished()


def recording_of(problem: StepProblem) -> RecordedStep:
    """Return the recording that serves a step, with its set-up done, from those kept with the model."""
    model, method = problem.model, problem.method
    modules = _read(model)
    # the method's numbers but dt, which is an input, and what is decided before a step is taken
    numbers = [item for item in _numbers(method) if item[0] not in ("dt", "chunk", "max_substeps")]
    inputs = _inputs(problem, modules)
    constants = [*_tensors(model), *(tensor for module in modules for tensor in _captured(module))]
    names = tuple(_read_controls(problem.control))
    key = (
        *(
            type(method),
            method.scheme,
            type(problem.state),
            tuple(numbers),
            model.solver_for(problem.state.batch),
            names,
        ),
        tuple(item for module in modules for item in (type(module), *_numbers(module))),
        tuple((tensor.shape, tensor.dtype) for tensor in inputs),
        tuple((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in constants),
    )
    kept = model.recordings
    step = kept.pop(key, None)
    if step is None:
        while len(kept) >= KEPT:
            del kept[next(iter(kept))]  # the one that served longest ago
        step = RecordedStep(problem, modules, inputs, constants)
    kept[key] = step
    step.start(inputs, problem.dt)
    return step


class RecordedStep:
    """A step on static buffers.

    Parameters
    ----------
    problem : the first step; shapes and dtypes of its tensors are those of all others.
    modules : those of the model that the equations read.
    inputs : what the first step is given.
    constants : what has to stay alive.

    Attributes
    ----------
    values : the static buffers in the places of the model's tensors.
    """

    def __init__(
        self, problem: StepProblem, modules: Sequence[nn.Module], inputs: Sequence[Tensor], constants: Sequence[Tensor]
    ):
        model = problem.model
        self._constants = constants
        self._inputs = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs]
        dt = torch.empty((), dtype=model.dtype, device=model.device)
        static = iter(self._inputs)
        state = problem.state.with_fields(next(static) for _ in problem.state.fields())
        running, self._load = next(static), next(static)
        control = Control.of({name: next(static) for name in _read_controls(problem.control)})
        self.values = Values({place: next(static) for place in _movable_places(modules)})
        self._problem = problem.replace(state=state, control=control, running=running, dt=dt, values=self.values)
        # external forces are given as their sum
        self._mechanics = Mechanics(model.body, model.terms, [], SelfContacts([], model.body), model.mechanics.layout)
        self._record(model.device, inputs, problem.dt)

    def _record(self, device: torch.device, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Record the graphs, each on numbers that those before it have made."""
        pool = memory_pool()
        self._give(inputs, dt)
        with self.values.in_place():
            self._setup: Recording[Any] = recorded(self._set_up, device, pool)
            self.equations, self.scale, self._tolerance, self.options, self.at = self._setup.replay()
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

    def end(self) -> tuple[State, StepInfo]:
        """Return the state after the step and how it went, where the search ended well."""
        after, at = self._end.replay(), self.at
        # copies, as the next step writes the static buffers
        state = after.with_fields(field.clone() for field in after.fields())
        found = (at.x, at.status, at.iterations, at.norm, self.options.tolerance)
        root = Root(*(tensor.clone() for tensor in found))
        return state, StepInfo.of(root, root.status, self.scale.clone())

    def finished(self) -> tuple[State, StepInfo]:
        """Return the state after the step and how it went, searched for without graphs from where they got to."""
        equations, running, scale = self.equations, self._problem.running, self.scale.clone()
        _, *others = self._problem.method.attempts(equations)
        equations.descending = False
        at = Progress(*(tensor.clone() for tensor in self.at))
        root = resumed(equations, at, self.options.with_tolerance(self.options.tolerance.clone()))
        root = further_attempts(equations, root, others, self.options.with_tolerance(self._tolerance), running)
        q = equations.full(root.x)
        info = step_info(equations, root, q, scale, running)
        after = equations.compiled(StepEquations.accepted_state)(equations, q, running & info.converged)
        return after.with_fields(field.clone() for field in after.fields()), info

    # ---- inside ------------------------------------------------------------------------------------------------

    def _give(self, inputs: Sequence[Tensor], dt: float | Tensor) -> None:
        """Write what a step is given to the static buffers."""
        # by dtype, as torch then takes one launch for many
        for dtype in {tensor.dtype for tensor in self._inputs}:
            pairs = [(own, new) for own, new in zip(self._inputs, inputs, strict=True) if own.dtype == dtype]
            torch._foreach_copy_([own for own, _ in pairs], [new.detach() for _, new in pairs])
        assert isinstance(self._problem.dt, Tensor)
        self._problem.dt.fill_(dt)

    def _set_up(self) -> tuple[Any, ...]:
        """Return the equations and all that the rounds need."""
        problem = self._problem
        equations = problem.equations(mechanics=self._mechanics)
        equations.hold(self._load)
        weight, scale, x = equations.compiled(StepEquations.setup)(equations, None, True)
        tolerance = problem.method.tolerance(scale)
        options = newton_options(problem, equations, weight, tolerance)
        at, noise_tolerance = begun(equations, x, options, problem.running)
        return equations, scale, tolerance, options.with_tolerance(noise_tolerance), _apart(at)

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

    def _state_after(self) -> State:
        accepted = self._problem.running & (self.at.status == int(Status.CONVERGED))
        equations = self.equations
        return equations.compiled(StepEquations.accepted_state)(equations, equations.full(self.at.x), accepted)


def _inputs(problem: StepProblem, modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return what a step is given, in the order of the static buffers."""
    controls = _read_controls(problem.control).values()
    movable = [getattr(module, name) for module, name in _movable_places(modules)]
    return [*problem.state.fields(), problem.running, _load(problem), *controls, *movable]


def _read_controls(control: Control) -> dict[str, Tensor]:
    """Return what of a control the equations read; its force is one of the loads."""
    return {name: tensor for name, tensor in control.tensors().items() if name != "force"}


def _load(problem: StepProblem) -> Tensor:
    """Return the external forces (B, n), none of which changes within the step."""
    mechanics, state, control = problem.model.mechanics, problem.state, problem.control
    start = StepStart(state, control, [], mechanics.held_force(state, control))
    assert problem.elapsed is not None
    return mechanics.constant_load(start, state.time + problem.elapsed)


def _apart(at: Progress) -> Progress:
    """Return tensors in memory of their own, which rounds may write to."""
    seen: set[int] = set()
    own = []
    for tensor in at:
        place = tensor.untyped_storage().data_ptr()
        own.append(tensor.clone() if place in seen else tensor)
        seen.add(place)
    return Progress(*own)


def _read(model: Model) -> list[nn.Module]:
    """Return the modules, each once, that the equations without forces read, besides the model itself."""
    found: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        if id(module) not in found:
            found[id(module)] = module
            for child in _children(module).values():
                visit(child)

    for module in (model.body, *model.terms, model.mechanics.layout, model.frames):
        visit(module)
    return list(found.values())


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules in a module; what makes its trained tensors is none of them."""
    return {name: c for name, c in module._modules.items() if c is not None and name != "parametrizations"}


def _trained(module: nn.Module) -> list[str]:
    trained = module._modules.get("parametrizations")
    return [] if trained is None else list(trained._modules)


def _movable_places(modules: Sequence[nn.Module]) -> list[Place]:
    """Return where tensors stand that may be others in the next step."""
    names = ((module, [*getattr(module, "per_robot", ()), *_trained(module)]) for module in modules)
    places = dict.fromkeys((module, name) for module, own in names for name in own)
    return [(module, name) for module, name in places if getattr(module, name) is not None]


def _captured(module: nn.Module) -> Iterator[Tensor]:
    """Return a module's other tensors."""
    movable = getattr(module, "per_robot", ())
    for own in (module._parameters, module._buffers):
        yield from (tensor for name, tensor in own.items() if tensor is not None and name not in movable)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def _numbers(owner: Any) -> list[tuple[str, Any]]:
    """Return the plain numbers among an object's attributes, with their names."""
    return [(name, value) for name, value in vars(owner).items() if isinstance(value, PLAIN)]


def _odd(method: Method) -> bool:
    """Return whether a method holds more than its scheme and plain numbers, which no graph would see change."""
    return not all(isinstance(value, PLAIN) for name, value in vars(method).items() if name != "scheme")

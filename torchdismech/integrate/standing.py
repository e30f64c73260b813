"""Steps in memory that stays where it is, recorded as CUDA graphs: some tens of calls a step instead of thousands.

A graph replays launches on the memory that they were recorded with, without running any Python. So everything that a
step reads has to be in one of three groups, or the replay would read what is no longer true:

- *given* for each step and copied to where the graphs read it: state, loads, control, which rows run, dt, and all of
  the model's tensors that may be others in the next step: those that may be given per robot (a part of a batch has its
  own) and those that `torch.nn.utils.parametrize` makes;
- *settled*: the model's other tensors (topology, tables of sums, maps), known by their addresses, shapes and dtypes and
  kept alive; and the plain numbers in the attributes of its modules and of the integrator. Others lead to another
  recording;
- made by the graphs themselves.

External forces run as ever and are given as their sum: they may be any code. An elastic term of one's own that is
recorded may read its own tensors and plain numbers, nothing else that changes.

A step is three graphs: the opening (what stays fixed in the step, first iterate), a round of Newton's method (with the
next matrix or without), and the end (the state after the step). After each round the host reads five flags, the only
wait. A round in which some row is not improved leaves everything as it was; from there the search goes on without
graphs, on the same memory. All of that is on the current stream: steps of a model belong to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from torchdismech.errors import Status
from torchdismech.integrate.adjoint import merged_after
from torchdismech.integrate.balance import Balance
from torchdismech.model import Model, StepStart
from torchdismech.native.graphs import Recording, memory_pool, recorded
from torchdismech.solve.newton import Progress, Root, begun, plain_round
from torchdismech.split import with_changes
from torchdismech.state import Control, State

if TYPE_CHECKING:
    from torchdismech.integrate.base import Integrator

__all__ = ["StandingStep", "standing_step"]

KEPT = 8  # recordings of a model, each with the memory of a step: sizes of batches, kinds of controls, integrators
PLAIN = (bool, int, float, str, type(None))
FIELDS = tuple(field.name for field in dataclasses.fields(State))
# what of a control the equations read; its force is one of the loads
READ = tuple(field.name for field in dataclasses.fields(Control) if field.name != "force")


def standing_step(
    integrator: Integrator, model: Model, state: State, control: Control, running: Tensor, dt: float
) -> StandingStep | None:
    """Return a recorded step of dt [s] at its opening, from recordings kept with the model; None where none serves.

    None serves without inertia, and with integrators that hold more than plain numbers.
    """
    elapsed, solver = integrator._elapsed(dt), model.solver_for(state.batch)
    if elapsed is None or _odd(integrator):
        return None
    modules = _read(model)
    # the integrator's numbers but dt, which is given, and what is decided before a step is taken
    numbers = [item for item in _numbers(integrator) if item[0] not in ("dt", "chunk", "max_substeps")]
    load = _load(model, state, control, elapsed)
    given = [*(getattr(state, name) for name in FIELDS), running, load]
    names = tuple(name for name in READ if getattr(control, name) is not None)
    given += [getattr(control, name) for name in names]
    given += [tensor for module in modules for tensor in _movable(module).values()]
    settled = [*_tensors(model), *(tensor for module in modules for tensor in _settled(module))]
    key = (
        *(type(integrator), tuple(numbers), solver, names),
        tuple(item for module in modules for item in (type(module), *_numbers(module))),
        tuple((tensor.shape, tensor.dtype) for tensor in given),
        tuple((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in settled),
    )
    kept = model.recordings
    step = kept.pop(key, None)
    if step is None:
        while len(kept) >= KEPT:
            del kept[next(iter(kept))]  # the one that served longest ago
        step = StandingStep(integrator, model, modules, names, given, settled, dt)
    kept[key] = step
    step.start(given, dt)
    return step


class StandingStep:
    """A step whose tensors stand where they are.

    Parameters
    ----------
    modules : those of the model that the equations read.
    names : of the control's tensors that are given.
    given : what the first step is given; its shapes and dtypes are those of all others.
    settled : what has to stay alive.

    Attributes
    ----------
    balance : the equations, on a copy of the model with standing tensors and without forces.
    weight, scale, tolerance : of the residual, see `Balance.opening`.
    noise_tolerance : (B,) the tolerance, not below rounding noise.
    at : how far the search is.
    """

    def __init__(
        self,
        integrator: Integrator,
        model: Model,
        modules: Sequence[nn.Module],
        names: Sequence[str],
        given: Sequence[Tensor],
        settled: Sequence[Tensor],
        dt: float,
    ):
        self._integrator = integrator
        self._settled = settled
        self._given = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in given]
        self._dt = torch.empty((), dtype=model.dtype, device=model.device)
        standing = iter(self._given)
        self._state = State(*(next(standing) for _ in FIELDS))
        self._running, self._load = next(standing), next(standing)
        self._control = Control(**{name: next(standing) for name in names})
        self._model = _standing_model(model, modules, standing)
        self._solver = model.solver_for(self._state.batch)
        self._record(model.device, given, dt)

    def _record(self, device: torch.device, given: Sequence[Tensor], dt: float) -> None:
        """Record the graphs, each on numbers that those before it have made."""
        pool = memory_pool()
        self._give(given, dt)
        self._opening: Recording[Any] = recorded(self._open, device, pool)
        self.balance, self.weight, self.scale, self.tolerance, self.noise_tolerance, self.at = self._opening.replay()
        self._round = recorded(self._round_with_matrix, device, pool)
        self._last_round = recorded(self._round_without_matrix, device, pool)
        self._end = recorded(self._state_after, device, pool)

    def start(self, given: Sequence[Tensor], dt: float) -> None:
        """Open a step."""
        self._give(given, dt)
        self._opening.replay()

    def search(self) -> bool:
        """Take rounds of Newton's method; return whether all rows that run have converged."""
        more, with_matrix = True, True
        while more:
            flags = (self._round if with_matrix else self._last_round).replay()
            bad, more, _unconverged, close, lost = flags.tolist()  # the only wait of a round
            if bad or lost:
                return False
            # a round that was expected to be the last and was not is taken once more
            with_matrix = not (close and with_matrix)
        return True

    def end(self) -> tuple[State, Root, Tensor]:
        """Return the state after the step, where the search ended, and the force scale (B,)."""
        after, at = self._end.replay(), self.at
        # copies, as the next step writes the standing tensors
        state = State(*(getattr(after, name).clone() for name in FIELDS))
        found = (at.x, at.status, at.iterations, at.norm, self.noise_tolerance)
        return state, Root(*(tensor.clone() for tensor in found)), self.scale.clone()

    def progress(self) -> Progress:
        """Return how far the search is, for going on without graphs."""
        return Progress(*(tensor.clone() for tensor in self.at))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _give(self, given: Sequence[Tensor], dt: float) -> None:
        """Write what a step is given to where the graphs read it."""
        # by dtype, as torch then takes one launch for many
        for dtype in {tensor.dtype for tensor in self._given}:
            pairs = [(own, new) for own, new in zip(self._given, given, strict=True) if own.dtype == dtype]
            torch._foreach_copy_([own for own, _ in pairs], [new.detach() for _, new in pairs])
        self._dt.fill_(dt)

    def _open(self) -> tuple[Any, ...]:
        """Return the equations and all that the rounds need."""
        balance = self._integrator.equations(self._model, self._state, self._control, self._dt)
        balance.hold(self._load)
        weight, scale, x = balance.fused(Balance.opening)(balance, None, True)
        integrator = self._integrator
        tolerance = integrator.tolerance(scale)
        given = (tolerance, weight, self._running, integrator.line_search)
        at, noise_tolerance = begun(balance, x, self._solver, *given)
        return balance, weight, scale, tolerance, noise_tolerance, _apart(at)

    def _round_with_matrix(self) -> Tensor:
        return self._taken(with_matrix=True)

    def _round_without_matrix(self) -> Tensor:
        return self._taken(with_matrix=False)

    def _taken(self, with_matrix: bool) -> Tensor:
        """Take a round if it suits all rows, and without a matrix is the last; return its flags."""
        integrator, old = self._integrator, self.at
        rest = (self.noise_tolerance, self.weight, integrator.max_iterations, integrator.line_search, with_matrix)
        new, flags = plain_round(self.balance, old, self._solver, *rest)
        good = ~flags[0] if with_matrix else ~(flags[0] | flags[2])
        for found, standing in zip(new, old, strict=True):
            if found is not standing:
                torch.where(good, found, standing, out=standing)
        return flags

    def _state_after(self) -> State:
        accepted = self._running & (self.at.status == int(Status.CONVERGED))
        q = self.balance.full(self.at.x)
        return self.balance.fused(merged_after)(self.balance, self._integrator._after, q, accepted)


def _load(model: Model, state: State, control: Control, elapsed: float | Tensor) -> Tensor:
    """Return the external forces (B, n), none of which changes within the step."""
    start = StepStart(state, control, [], model.held_force(state, control), None)
    return model.constant_load(start, state.time + elapsed)


def _apart(at: Progress) -> Progress:
    """Return tensors in memory of their own, which rounds may write to."""
    seen: set[int] = set()
    own = []
    for tensor in at:
        place = tensor.untyped_storage().data_ptr()
        own.append(tensor.clone() if place in seen else tensor)
        seen.add(place)
    return Progress(*own)


def _standing_model(model: Model, modules: Sequence[nn.Module], standing: Iterator[Tensor]) -> Model:
    """Return a copy of the model without forces that reads the standing tensors, which come in the modules' order."""
    tensors = {id(module): {name: next(standing) for name in _movable(module)} for module in modules}
    made: dict[int, nn.Module] = {}

    def copied(module: nn.Module) -> Any:
        if id(module) not in made:
            children = {name: copied(child) for name, child in _children(module).items()}
            own = tensors[id(module)]
            trained = {name: own[name] for name in _trained(module)}
            made[id(module)] = with_changes(module, own, children, trained)
        return made[id(module)]

    return model.without_forces(copied(model.body), copied(cast(nn.Module, model.terms)))


def _read(model: Model) -> list[nn.Module]:
    """Return the modules, each once, that the equations without forces read, besides the model itself."""
    found: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        if id(module) not in found:
            found[id(module)] = module
            for child in _children(module).values():
                visit(child)

    for module in model.read_by_equations():
        visit(module)
    return list(found.values())


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules in a module; what makes its trained tensors is none of them."""
    return {name: c for name, c in module._modules.items() if c is not None and name != "parametrizations"}


def _trained(module: nn.Module) -> list[str]:
    trained = module._modules.get("parametrizations")
    return [] if trained is None else list(trained._modules)


def _movable(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors that may be others in the next step."""
    names = dict.fromkeys([*getattr(module, "per_robot", ()), *_trained(module)])
    tensors = {name: getattr(module, name) for name in names}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _settled(module: nn.Module) -> Iterator[Tensor]:
    """Return a module's other tensors."""
    movable = getattr(module, "per_robot", ())
    for own in (module._parameters, module._buffers):
        yield from (tensor for name, tensor in own.items() if tensor is not None and name not in movable)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def _numbers(owner: Any) -> list[tuple[str, Any]]:
    """Return the plain numbers among an object's attributes, with their names."""
    return [(name, value) for name, value in vars(owner).items() if isinstance(value, PLAIN)]


def _odd(integrator: Integrator) -> bool:
    """Return whether an integrator holds more than plain numbers, which no graph would see change."""
    return not all(isinstance(value, PLAIN) for value in vars(integrator).values())

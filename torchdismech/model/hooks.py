"""What is asked of forces and energies that users write when a model is built; `faults` says what is wrong with one.

Newton's method needs of a force its derivative, and of a batch that robots do not know each other. A force that breaks
this would still be summed and stepped: it is found out here, by name, from evaluations at one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm
from torchdismech.errors import InputError, warn
from torchdismech.forces import Force
from torchdismech.forces.dependence import Dependence, Evaluation
from torchdismech.model.faults import (
    LOOK,
    another_dtype,
    asked,
    is_of_user,
    name_of,
    not_deterministic,
    same,
    summed,
    trial_numbers,
    what_is_not_finite,
    what_is_wrong,
)
from torchdismech.robot.state import Control, State, tensor_fields
from torchdismech.values import Place, Values, every_module, leading, with_rows

__all__ = ["TRIALS", "check_hooks", "refuse_misnamed", "settle_dependence", "unchanged_random_numbers"]

TRIALS = 3  # robots of a trial state
REACHES = (0, 1, 2)  # edges that the dependence of a force is looked for; beyond, every dof may depend on every other
SAME, SAME_IN_FLOAT32 = 1e-9, 1e-4  # relative: sums of the same numbers in another order
RATES = (0.0, 1.0, 1e3)  # of strains, at which dissipations are tried [1/s, 1/(m s)]
DENSE = 200  # dofs from which on it is worth a warning that every dof depends on every other


def settle_dependence(force: Force, robots: int | None, state: State, control: Control) -> None:
    """Find what a force without written derivatives depends on; refuse one that cannot be evaluated at a trial state.

    Parameters
    ----------
    robots : number of robots that the model's parameters are given for, if they are.
    state, control : of some trial robots.
    """
    if not force.varies or force.closed_form or force.dependence is not None:
        return
    with leading(force, robots, state.batch):
        _refuse_unevaluable(force, robots, state, control)
        force.dependence = _found_dependence(force, state, control)
    if force.dependence.reach is None and state.q.shape[1] > DENSE:
        warn(
            f"{type(force).__name__}: its force may depend on every dof, so each evaluation of its derivative takes "
            f"{state.q.shape[1]} backward passes, and the matrix of each robot is full; a LocalForce says how far it "
            "reaches, blocks() and derivatives() in closed form are faster still",
            RuntimeWarning,
        )


def check_hooks(
    forces: Sequence[Force],
    terms: Sequence[ElasticTerm],
    robots: int | None,
    state: State,
    control: Control,
    others: Sequence[State],
) -> None:
    """Refuse what users have written where it breaks what it claims at a trial state; see `settle_dependence`.

    Parameters
    ----------
    others : at which what is not finite at the trial state may be, as with walls: robots at rest, then any states.
    """
    for force in forces:
        if is_of_user(force):
            with leading(force, robots, state.batch):
                _refuse_unevaluable(force, robots, state, control)
                _refuse(what_is_wrong([force], [], state, control, _all(state)))
                _refuse_never_finite([force], [], [state, *others], control)
    for term in terms:
        if is_of_user(term):
            with leading(term, robots, state.batch):
                _refuse_odd_term(term, robots, state, control)
                _refuse(what_is_wrong([], [term], state, control, _all(state)))
                _refuse_never_finite([], [term], [state, *others], control)
                _refuse_not_finite_at_rest(term, others[0], control)
                _refuse_stress_without_rates(term, state)


def _refuse(wrong: str | None) -> None:
    if wrong is not None:
        raise InputError(wrong)


def _refuse_never_finite(
    forces: Sequence[Force], terms: Sequence[ElasticTerm], states: Sequence[State], control: Control
) -> None:
    """Refuse what is finite at none of some states, of which the second is at rest."""
    found = None
    for state in states:
        there = control.replace(clamped_q=state.q)
        found = what_is_not_finite(forces, terms, states[1], state, there, _all(state))
        if found is None:
            return
    _refuse(f"{found}, and so at every state that was tried (at rest; bent and moving; far away on all sides); {LOOK}")


def _refuse_not_finite_at_rest(term: ElasticTerm, at_rest: State, control: Control) -> None:
    """Refuse an energy that is not finite where robots begin, or has no finite derivative there: every step would fail.

    A force may be so: it has no direction at rest, or acts elsewhere. What an energy says of no strain is not left out.
    """
    there = control.replace(clamped_q=at_rest.q)
    found = what_is_not_finite([], [term], at_rest, at_rest, there, _all(at_rest))
    if found is not None:
        raise InputError(
            f"{found} at rest, where robots begin: {LOOK}; a root or a norm of strains has no derivative where they "
            "are zero, sqrt(x**2 + eps**2) - eps has one"
        )


def _refuse_stress_without_rates(term: ElasticTerm, state: State) -> None:
    """Refuse a dissipation that has a stress where no strain changes: it would act as a load, without a word."""
    shape = len(term.stencil.strains), term.stencil.count, state.batch
    rates = trial_numbers(state.q.new_empty(shape), 6)
    for part in summed(term.dissipation):
        at_none, *others = (_largest(part.slopes(tuple(size * rates))) for size in RATES)
        if at_none > (SAME if state.q.dtype == torch.float64 else SAME_IN_FLOAT32) * max(others):
            raise InputError(
                f"{type(part).__name__} ({term.name}): expected a dissipation whose slopes are 0 where no strain "
                f"changes, got up to {at_none:.3g}: a density that is linear in the rates acts as a load that never "
                "ends; take one that is least at rates of 0, such as 0.5 * viscosity * rate**2"
            )


def _largest(slopes: list[Tensor]) -> float:
    return max(float(slope.detach().abs().max()) for slope in slopes)


def _all(state: State) -> Tensor:
    return torch.ones_like(state.time, dtype=torch.bool)


def _refuse_unevaluable(force: Force, robots: int | None, state: State, control: Control) -> None:
    """Refuse a force that cannot be evaluated for the robots of a trial state, or not for one of them alone."""

    def value(rows: slice) -> Tensor:
        with with_rows(force, state.batch if robots else None, rows):
            return force(state.rows(rows), control.rows(rows))

    _refuse_odd_batches(_Trial(force, type(force).__name__, value, state, state.q.shape[1], "(B, n)"))


def _refuse_odd_term(term: ElasticTerm, robots: int | None, state: State, control: Control) -> None:
    """Refuse a term that cannot be evaluated for the robots of a trial state, or not for one of them alone."""

    def value(rows: slice) -> Tensor:
        at = state.rows(rows)
        with with_rows(term, state.batch if robots else None, rows):
            return term.densities(at.q.t().contiguous(), term.constants(at, control.rows(rows))).t()

    given = f" An energy is given a tuple of its strains, {', '.join(term.stencil.strains)}, each (stencils, B)."
    what = "(B, stencils) of the densities"
    _refuse_odd_batches(_Trial(term, name_of(term), value, state, term.stencil.count, what, given))


@dataclass(frozen=True)
class _Trial:
    """What a user's module finds at a trial state.

    Attributes
    ----------
    name : of the module in messages.
    value : what it finds of some of the robots.
    count, what : how many numbers that is of each robot, and what it is called.
    given : a sentence on what the module is given.
    """

    module: nn.Module
    name: str
    value: Callable[[slice], Tensor]
    state: State
    count: int
    what: str
    given: str = ""

    @torch.no_grad()
    def of(self, rows: slice) -> Tensor:
        """Return what is found of some robots; refuse what cannot be evaluated, and a wrong shape or dtype."""
        robots = rows.stop - rows.start
        hint = self.given + _hint_of_robots(self.module, self.state.batch)
        try:
            found = self.value(rows).detach()
        except Exception as error:
            if isinstance(error, InputError) and str(error).startswith(self.name):  # it says all itself
                raise InputError(f"{error}.{hint}") from error
            # tensors of other robots make no other errors than these
            why = hint if isinstance(error, RuntimeError | IndexError) else self.given
            of = f"{robots} robot{'s' * (robots > 1)}"
            raise InputError(f"{self.name}: cannot be evaluated for {of}, at a trial state: {error}.{why}") from error
        if tuple(found.shape) != (robots, self.count):
            raise InputError(
                f"{self.name}: expected shape {self.what} = {(robots, self.count)} for {robots} robots, got "
                f"{tuple(found.shape)}.{hint}"
            )
        if found.dtype != self.state.q.dtype:
            raise InputError(another_dtype(self.name, found, self.state.q))
        return found


def _refuse_odd_batches(trial: _Trial) -> None:
    """Refuse what is not a function of each robot alone, at any number of robots; with other weights, too."""
    _refuse(_odd(trial))
    if not _other_weights(trial.module):
        return
    with _with_other_weights(trial.module):
        try:
            wrong = _odd(trial)
        except InputError:  # weights that a module does not have, and cannot be evaluated with, tell nothing of it
            return
    if wrong is not None:
        raise InputError(f"{wrong}. It shows with other weights than those it starts with, as training will find")


def _odd(trial: _Trial) -> str | None:
    """Return what is wrong with what is not a function of each robot alone; None where nothing is."""
    state, batch = trial.state, trial.state.batch
    before = [tensor.clone() for tensor in state.fields()]
    alone = [slice(row, row + 1) for row in sorted({0, batch - 1})]
    among, *own = [trial.of(rows) for rows in (slice(0, batch), *alone)]
    for field, old, new in zip(tensor_fields(state), before, state.fields(), strict=True):
        if not torch.equal(old, new):
            return (
                f"{trial.name}: changes State.{field} in place, which belongs to the step: work on a copy (.clone()), "
                "or without operations in place"
            )
    if not same(trial.of(slice(0, batch)), among):
        return not_deterministic(trial.name)
    close = _rounding(among)
    least = close * max(1.0, float(among.nan_to_num(0, 0, 0).abs().max()))  # what large numbers leave of a difference
    for rows, found in zip(alone, own, strict=True):
        if not bool(torch.isclose(among[rows], found, rtol=close, atol=least, equal_nan=True).all()):
            return (
                f"{trial.name}: a robot alone gives other numbers than the same robot among others (robot {rows.start} "
                f"of {batch}); each is for itself (no mean over the batch; call eval() on a BatchNorm, or take a "
                "LayerNorm), and every robot of a batch counts: x[0] is the first robot alone"
            )
    return None


def refuse_misnamed(module: nn.Module) -> None:
    """Refuse names in `per_robot` that are plain attributes, or that a module does not have."""
    for part in every_module(module):
        names = getattr(part, "per_robot", ())
        if isinstance(names, str):
            raise InputError(
                f"{type(part).__name__}: per_robot is the text {names!r}; write ({names!r},), a tuple of names"
            )
        for name in names:
            if not hasattr(part, name):
                raise InputError(
                    f"{type(part).__name__}: per_robot names {name!r}, which it does not have; it has "
                    f"{', '.join(_own_names(part)) or 'no tensors'}"
                )
            if isinstance(vars(part).get(name), Tensor):
                raise InputError(
                    f"{type(part).__name__}.{name}: named in per_robot, but it is neither a parameter nor a buffer; "
                    "set it by nn.Parameter or register_buffer"
                )


def _own_names(module: nn.Module) -> list[str]:
    """Return what a module calls its own public tensors."""
    return [name for own in (module._parameters, module._buffers) for name in own if not name.startswith("_")]


def _hint_of_robots(module: nn.Module, trials: int) -> str:
    """Return which public tensors of users' modules may be of single robots without being given so."""
    unnamed, flat = [], []
    for part in every_module(module):
        if type(part).__module__.partition(".")[0] in ("torch", "torchdismech"):
            continue
        own = {**vars(part), **part._parameters, **part._buffers}
        known = set(getattr(part, "per_robot", ()))
        for name, value in own.items():
            if not isinstance(value, Tensor) or name.startswith("_"):
                continue
            said = f"{type(part).__name__}.{name} {tuple(value.shape)}"
            if name in known and value.dim() == 1 and len(value) > 1:
                flat.append(f"{said}, which would be {(len(value), 1)}")
            elif name not in known and value.dim() > 1 and value.shape[0] not in (1, trials):
                unnamed.append(said)
    hint = ""
    if any(getattr(part, "runs_users_code", False) for part in every_module(module)):
        hint += (
            " A function of time is asked for any number of robots, each with its own time; fields of single robots "
            "are a Table(times, values (T, B, 3)), or set by Control(values=...)"
        )
    if unnamed:
        hint += (
            " Batches are evaluated by parts: a tensor of single robots (first dimension) has to be a parameter or "
            f"buffer and be named in the class attribute per_robot; there is {', '.join(unnamed)}"
        )
    if flat:
        hint += (
            " A tensor named in per_robot that has a row for each robot is (B, ...), of two dimensions or more; one of "
            f"fewer is the same for all robots; there is {'; '.join(flat)}"
        )
    return hint


def _found_dependence(force: Force, state: State, control: Control) -> Dependence:
    """Return the smallest dependence that covers the force's derivatives, for weights as they are and for others."""
    tried = [_Slopes(evaluation, state, control) for evaluation in (force, _reweighted(force))]
    slopes = [slopes for slopes in tried if slopes.finite]
    for reach in REACHES:
        for torques in (False, True):
            dependence = Dependence(force.body, reach, torques)
            if slopes and all(s.covered_by(dependence) for s in slopes) and _tells(slopes):
                return dependence
    return Dependence(force.body, None)


def _tells(slopes: Sequence[_Slopes]) -> bool:
    """Return whether derivatives that are all zero mean that there is no dependence: autograd has no path, then."""
    return any(s.size() > 0 for s in slopes) or not any(s.recorded for s in slopes)


def _reweighted(force: Force) -> Evaluation:
    """Return the force with other weights: a network whose last layer starts from zero depends on nothing yet."""

    def value(state: State, control: Control) -> Tensor:
        with _with_other_weights(force):
            return force(state, control)

    return value


def _other_weights(module: nn.Module) -> dict[Place, Tensor]:
    """Return numbers near those of a module's trained tensors, always the same, for their places.

    A tensor that stands in two places stays one, and what may not be negative does not become so.
    """
    generator = torch.Generator().manual_seed(1)
    made: dict[int, Tensor] = {}
    found: dict[Place, Tensor] = {}
    for part in every_module(module):
        bounded = {*getattr(part, "not_negative", ()), *getattr(part, "positive", ())}
        for name, weight in part._parameters.items():
            if weight is None or not weight.requires_grad:
                continue
            if id(weight) not in made:
                noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64, device="cpu").to(weight)
                other = weight.detach() + 0.1 * noise
                made[id(weight)] = other.abs() if name in bounded else other
            found[part, name] = made[id(weight)]
    return found


@contextmanager
def _with_other_weights(module: nn.Module) -> Iterator[None]:
    """Let a module have other weights meanwhile; what its evaluations change in it is as before afterwards.

    That is its buffers, such as the running statistics of a BatchNorm, its attributes, and torch's random numbers.
    """
    parts = [part for part in every_module(module) if type(part).__module__.partition(".")[0] != "torchdismech"]
    kept = [(held, dict(held)) for part in parts for held in (vars(part), part._buffers)]
    copies = {id(t): t.clone() for part in parts for t in part._buffers.values() if t is not None}
    with unchanged_random_numbers(module), Values(_other_weights(module)).in_place():
        try:
            for part in parts:
                part._buffers.update({name: copies[id(t)] for name, t in part._buffers.items() if t is not None})
            yield
        finally:
            for held, before in kept:
                held.clear()
                held.update(before)


@contextmanager
def unchanged_random_numbers(module: nn.Module) -> Iterator[None]:
    """Let torch's random numbers go on afterwards as if none had been drawn meanwhile where a module is."""
    tensors = (t for part in every_module(module) for own in (part._parameters, part._buffers) for t in own.values())
    devices = {t.device.index for t in tensors if t is not None and t.device.type == "cuda"}
    with torch.random.fork_rng(sorted(index for index in devices if index is not None)):
        yield


class _Slopes:
    """Sums of a force's derivatives over its rows, with random weights, at a trial state.

    Attributes
    ----------
    recorded : whether autograd has a path from position or velocity to the force.
    """

    def __init__(self, force: Evaluation, state: State, control: Control):
        self.force, self.state, self.control = force, state, control
        self.weights = asked(state, trial_numbers(state.q, 2))
        with torch.enable_grad():
            variables = [state.q.detach().requires_grad_(), state.velocity.detach().requires_grad_()]
            value = force(state.replace(q=variables[0], velocity=variables[1]), control)
            self.recorded = value.requires_grad
            none = (None, None)
            found = torch.autograd.grad(value, variables, self.weights, allow_unused=True) if self.recorded else none
        self.sums = [torch.zeros_like(state.q) if g is None else asked(state, g) for g in found]
        self.finite = bool(torch.isfinite(value).all()) and all(bool(torch.isfinite(s).all()) for s in self.sums)

    def size(self) -> float:
        """Return the largest sum."""
        return max(float(s.abs().max()) for s in self.sums)

    def covered_by(self, dependence: Dependence) -> bool:
        """Return whether the blocks of a dependence have all derivatives."""
        derivatives = dependence.derivatives(self.force, self.state, self.control)
        pairs = zip(dependence.rows_times(self.weights, derivatives), self.sums, strict=True)
        return all(_close(found, expected) for found, expected in pairs)


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= _rounding(expected) * expected.abs().max())


def _rounding(like: Tensor) -> float:
    """Return by how much, relative, sums may differ whose numbers are added in another order."""
    return SAME if like.dtype == torch.float64 else SAME_IN_FLOAT32

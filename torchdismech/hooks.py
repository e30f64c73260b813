"""What is asked of forces and energies that users write: when a model is built, and where a step fails.

Newton's method needs of a force its derivative, and of a batch that robots do not know each other. A force that breaks
this would still be summed and stepped: it is found out here, by name, from evaluations at one state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Energy, Sum
from torchdismech.elastic.term import TermConstants
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.forces.dependence import Dependence, Evaluation, products
from torchdismech.rows import finite_rows
from torchdismech.state import Control, State
from torchdismech.values import every_module, leading

__all__ = ["check_hooks", "is_of_user", "refuse_misnamed", "settle_dependence", "what_is_not_finite", "what_is_wrong"]

TRIALS = 3  # robots of a trial state
REACHES = (0, 1, 2)  # edges that the dependence of a force is looked for; beyond, every dof may depend on every other
DENSE = 200  # dofs from which on it is worth a warning that every dof depends on every other
LOOK = "look in it for divisions by zero, roots and logarithms, and at the tensors it holds"
SAME, SAME_IN_FLOAT32 = 1e-9, 1e-4  # relative: sums of the same numbers in another order


def is_of_user(module: nn.Module) -> bool:
    """Return whether a module, or one in it, is of a class that this library does not bring."""
    return any(type(m).__module__.partition(".")[0] not in ("torch", "torchdismech") for m in every_module(module))


# ---- when a model is built ---------------------------------------------------------------------------------------


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
        warnings.warn(
            f"{type(force).__name__}: its force may depend on every dof, so each evaluation of its derivative takes "
            f"{state.q.shape[1]} backward passes, and the matrix of each robot is full; a LocalForce says how far it "
            "reaches, blocks() and derivatives() in closed form are faster still",
            RuntimeWarning,
            stacklevel=2,
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


def _all(state: State) -> Tensor:
    return torch.ones_like(state.time, dtype=torch.bool)


def _refuse_unevaluable(force: Force, robots: int | None, state: State, control: Control) -> None:
    """Refuse a force that cannot be evaluated for the robots of a trial state, or not for the first of them alone."""

    def value(rows: slice) -> Tensor:
        with leading(force, state.batch if robots else None, rows.stop):
            return force(state.rows(rows), control.rows(rows))

    _refuse_odd_batches(force, type(force).__name__, value, state, tuple(state.q.shape), "(B, n)")


def _refuse_odd_term(term: ElasticTerm, robots: int | None, state: State, control: Control) -> None:
    """Refuse a term that cannot be evaluated for the robots of a trial state, or not for the first of them alone."""

    def value(rows: slice) -> Tensor:
        at = state.rows(rows)
        with leading(term, state.batch if robots else None, rows.stop):
            return term.densities(at.q.t().contiguous(), term.constants(at, control.rows(rows))).t()

    expected = (state.batch, term.stencil.count)
    _refuse_odd_batches(term, _name(term), value, state, expected, "(B, stencils) of the densities")


def _refuse_odd_batches(
    module: nn.Module, name: str, value: Callable[[slice], Tensor], state: State, shape: tuple[int, ...], what: str
) -> None:
    """Refuse what is not a function of each robot alone, at any number of robots."""
    found = []
    for count in (state.batch, 1):
        try:
            with torch.no_grad():
                found.append(value(slice(0, count)).detach())
        except Exception as error:
            raise InputError(
                f"{name}: cannot be evaluated for {count} robot{'s' * (count > 1)}, at a trial state: {error}."
                + _hint_of_robots(module, state.batch)
            ) from error
        if tuple(found[-1].shape) != (count, shape[1]):
            raise InputError(
                f"{name}: expected shape {what} = {(count, shape[1])} for {count} robots, got "
                f"{tuple(found[-1].shape)}." + _hint_of_robots(module, state.batch)
            )
    with torch.no_grad():
        again = value(slice(0, state.batch)).detach()
    if not _same(again, found[0]):
        raise InputError(_not_deterministic(name))
    close = _rounding(found[0])
    if not bool(torch.isclose(found[0][:1], found[1], rtol=close, atol=close, equal_nan=True).all()):
        raise InputError(
            f"{name}: a robot alone gives other numbers than the same robot among others; each is for itself"
        )


def refuse_misnamed(module: nn.Module) -> None:
    """Refuse names in `per_robot` that are plain attributes."""
    for part in every_module(module):
        for name in getattr(part, "per_robot", ()):
            if isinstance(vars(part).get(name), Tensor):
                raise InputError(
                    f"{type(part).__name__}.{name}: named in per_robot, but it is neither a parameter nor a buffer; "
                    "set it by nn.Parameter or register_buffer"
                )


def _hint_of_robots(module: nn.Module, trials: int) -> str:
    """Return which tensors may be of single robots without being named so."""
    names = []
    for part in every_module(module):
        own = {**vars(part), **part._parameters, **part._buffers}
        known = set(getattr(part, "per_robot", ()))
        for name, value in own.items():
            if (
                isinstance(value, Tensor)
                and name not in known
                and value.dim() > 1
                and value.shape[0] not in (1, trials)
            ):
                names.append(f"{type(part).__name__}.{name} {tuple(value.shape)}")
    if not names:
        return ""
    return (
        " Batches are evaluated by parts: a tensor of single robots (first dimension) has to be a parameter or buffer "
        f"and be named in the class attribute per_robot; there is {', '.join(names)}"
    )


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
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, weight in force.named_parameters():
        if weight.requires_grad:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
            weights[name] = weight.detach() + 0.1 * noise
    return lambda state, control: torch.func.functional_call(force, weights, (state, control))


class _Slopes:
    """Sums of a force's derivatives over its rows, with random weights, at a trial state.

    Attributes
    ----------
    recorded : whether autograd has a path from position or velocity to the force.
    """

    def __init__(self, force: Evaluation, state: State, control: Control):
        self.force, self.state, self.control = force, state, control
        self.weights = _asked(state, _random(state.q, 2))
        with torch.enable_grad():
            variables = [state.q.detach().requires_grad_(), state.velocity.detach().requires_grad_()]
            value = force(state.replace(q=variables[0], velocity=variables[1]), control)
            self.recorded = value.requires_grad
            none = (None, None)
            found = torch.autograd.grad(value, variables, self.weights, allow_unused=True) if self.recorded else none
        self.sums = [torch.zeros_like(state.q) if g is None else _asked(state, g) for g in found]
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


# ---- where a step fails ------------------------------------------------------------------------------------------


@torch.no_grad()
def what_is_not_finite(
    forces: Sequence[Force], terms: Sequence[ElasticTerm], before: State, state: State, control: Control, rows: Tensor
) -> str | None:
    """Return which force or energy gives some robots (B,) numbers that are not finite, and where; None where none does.

    Robots whose own positions, velocities or time are not finite are left out, as are stencils whose strains are not.

    Parameters
    ----------
    before, state : where the step begins, and where forces are evaluated.
    """
    rows = rows & finite_rows([state.q, state.velocity, state.time])
    for force in forces:
        if found := _not_finite_force(force, state, control, rows):
            return found
    for term in terms:
        if found := _not_finite_term(term, before, state, control, rows):
            return found
    return None


def _not_finite_force(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return which number of a force, or of its derivatives, is not finite for some robots (B,)."""
    name, value = type(force).__name__, force(state, control)
    if value.shape != state.q.shape:  # which is wrong in another way
        return None
    if bool((off := ~torch.isfinite(value) & rows[:, None]).any()):
        robot, dof = off.nonzero()[0].tolist()
        return f"{name}: its force on {_said_of_dof(state, dof)} is {float(value[robot, dof])}"
    if not force.varies:
        return None
    blocks, derivatives = force.blocks(), force.derivatives(state, control)
    if len(blocks) == len(derivatives):
        slopes = products(blocks, derivatives, torch.ones_like(value))
        for slope, by in zip(slopes, ("position", "velocity"), strict=True):
            if bool((off := ~torch.isfinite(slope) & rows[:, None]).any()):
                dof = int(off.nonzero()[0, 1])
                return f"{name}: its derivative by the {by} of {_said_of_dof(state, dof)} is not finite"
    return None


def _not_finite_term(term: ElasticTerm, before: State, state: State, control: Control, rows: Tensor) -> str | None:
    """Return which number of a term, or of its derivatives, is not finite for some robots (B,)."""
    name, q, constants = _name(term), state.q.t().contiguous(), term.constants(before, control, 1.0)
    sound = torch.isfinite(torch.stack(term.elastic_strains(q, constants))).all(0)
    if is_of_user(term.stencil) and not bool(sound[:, rows].all()):
        return f"{name}: its strains are not finite"
    density, (gradient, packed) = term.densities(q, constants), term.gradient_and_hessian(q, constants)
    if density.shape != sound.shape:  # which is wrong in another way
        return None
    kinds = {"density is": [density], "first derivatives are": gradient}
    for what, values in {**kinds, "second derivatives are": packed}.items():
        off = ~torch.isfinite(torch.stack(values)).all(0) & sound & rows
        if bool(off.any()):
            return f"{name}: at stencil {int(off.nonzero()[0, 0])} its {what} not finite"
    return None


def _said_of_dof(state: State, dof: int) -> str:
    """Return what messages call a dof."""
    first = 3 * state.n_nodes
    if dof < first:
        return f"node {dof // 3} along {'xyz'[dof % 3]}"
    held = dof - first - state.twist.shape[1]
    return f"angle {dof - first}" if held < 0 else f"held tangent {held // 3}"


def what_is_wrong(
    forces: Sequence[Force], terms: Sequence[ElasticTerm], state: State, control: Control, rows: Tensor
) -> str | None:
    """Return which force or energy breaks what it claims at the states of some robots (B,), and how; None where none.

    Looked at: shape, whether the same state gives the same numbers, and derivatives along a random direction against
    differences.
    """
    for force in forces:
        if wrong := _wrong_force(force, state, control, rows):
            return wrong
    for term in terms:
        if wrong := _wrong_term(term, state, control, rows):
            return wrong
    return None


@torch.no_grad()
def _wrong_force(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with a force at the states of some robots (B,); None where nothing is."""
    name = type(force).__name__
    value = force(state, control)
    if value.shape != state.q.shape:
        return f"{name}: expected shape (B, n) = {tuple(state.q.shape)}, got {tuple(value.shape)}"
    if force.explicit:
        return None
    if not _same(force(state, control), value):
        return _not_deterministic(name)
    weights, direction = (_asked(state, _random(state.q, seed)) for seed in (3, 4))
    claimed = (torch.zeros_like(weights),) * 2
    if force.varies:
        blocks, derivatives = force.blocks(), force.derivatives(state, control)
        if len(blocks) != len(derivatives):
            return f"{name}: blocks() has {len(blocks)} places, derivatives() fills {len(derivatives)}"
        claimed = products(blocks, derivatives, weights)
    for by_dof, field in zip(claimed, ("q", "velocity"), strict=True):
        at = getattr(state, field)
        step = torch.finfo(at.dtype).eps ** (1 / 3) * _extent(state, field)
        ahead, behind = (force(state.replace(**{field: at + s * step * direction}), control) for s in (1, -1))
        changes = weights * (ahead - behind) / (2 * step)
        found, expected = (by_dof * direction).sum(1), changes.sum(1)
        far = _wide(at) * step
        wide = weights * (force(state.replace(**{field: at + far * direction}), control) - value) / far
        size = torch.maximum(changes.abs().sum(1), wide.abs().sum(1).nan_to_num(0, 0))
        size = size + (by_dof * direction).abs().sum(1)
        noise = 10 * torch.finfo(at.dtype).eps / step * (weights * value).abs().sum(1)
        off = (found - expected).abs() > _tolerance(at) * size + noise  # not where numbers are not finite
        if bool((off := off & rows).any()):
            robot = int(off.nonzero()[0])
            return _wrong_derivative(force, field, float(found[robot]), float(expected[robot]))
    return _wrong_claim(force, state, control, rows) if force.varies else None


def _wrong_claim(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return a sentence where a force claims a symmetric derivative or a potential, and has another."""
    name = type(force).__name__
    weights, direction = (_asked(state, _random(state.q, seed)) for seed in (3, 4))
    if force.symmetric:
        blocks, derivatives = force.blocks(), force.derivatives(state, control)
        pairs = zip(products(blocks, derivatives, weights), products(blocks, derivatives, direction), strict=True)
        for one, other in pairs:
            if _off((one * direction).sum(1), (other * weights).sum(1), (one * direction).abs().sum(1), rows):
                return (
                    f"{name}: it says symmetric = True, but its derivatives are no symmetric matrices; leave that away"
                )
    if force.conservative:
        step = torch.finfo(state.q.dtype).eps ** (1 / 3) * _extent(state, "q")
        at, ahead, behind, far = (
            force.potential(state.replace(q=state.q + by * step * direction), control)
            for by in (0, 1, -1, _wide(state.q))
        )
        work, wide = (force(state, control) * direction).sum(1), (far - at) / (_wide(state.q) * step)
        if _off(-work, (ahead - behind) / (2 * step), ahead / step, rows, wide):
            return f"{name}: its force is not minus the gradient of its potential()"
    return None


def _wrong_derivative(force: Force, field: str, found: float, expected: float) -> str:
    """Return a sentence about a derivative that is not that of the force."""
    name, by = type(force).__name__, "position" if field == "q" else "velocity"
    numbers = f"along a random direction it is {found:.6g}, differences say {expected:.6g}"
    if force.constant:
        return (
            f"{name}: it says constant = True, but changes with {by}; leave that away, or set explicit=True to hold it "
            "over each step"
        )
    if force.closed_form:
        return (
            f"{name}: its derivatives() by {by} are not those of forward(): {numbers}; "
            "torchdismech.testing.check_force shows more"
        )
    reach = None if force.dependence is None else force.dependence.reach
    farther = f"if it depends on what is more than {reach} edges away, make it a LocalForce of a larger reach; "
    return (
        f"{name}: its derivative by {by} is not that of forward(): {numbers}; {'' if reach is None else farther}"
        "if forward() leaves torch (detach, item, numpy), write blocks() and derivatives(), or set explicit=True"
    )


@torch.no_grad()
def _wrong_term(term: ElasticTerm, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with the energy or the stencil of an elastic term at some states; None where nothing is."""
    name, q = _name(term), state.q.t().contiguous()
    extent, direction = _extent(state, "q"), _random(state.q, 4).t().contiguous()
    before = state.replace(q=state.q + 0.01 * extent * _random(state.q, 5))  # where strains dissipate from
    constants = term.constants(before, control, 1.0)
    expected, strains = (term.stencil.count, state.batch), term.elastic_strains(q, constants)
    for energy in _energies(term):
        if tuple(shape := energy.density(strains).shape) != expected:
            what = f"a density of shape (stencils, B) = {expected}"
            return f"{type(energy).__name__} ({term.name}): expected {what}, got {tuple(shape)}"
    if wrong := _wrong_update(term, q, constants):
        return wrong
    density = term.densities(q, constants)
    if not _same(term.densities(q, constants), density):
        return _not_deterministic(name)
    step = torch.finfo(q.dtype).eps ** (1 / 3) * extent
    ahead, behind, far = (q + by * step * direction for by in (1, -1, _wide(q)))
    along = torch.stack(term.stencil.local(direction))
    gradient, packed = term.gradient_and_hessian(q, constants)
    slopes = torch.stack(gradient)
    energies = [constants.measure * term.densities(at, constants) for at in (ahead, behind, far)]
    change, wide = (energies[0] - energies[1]) / (2 * step), energies[2] - constants.measure * density
    if _off((slopes * along).sum(0), change, constants.measure * density / step, rows, wide / (_wide(q) * step)):
        return f"{name}: its first derivatives are not those of density(); see testing.check_energy, check_stencil"
    turned = torch.zeros_like(slopes)  # the Hessian times the direction
    for entry, (i, j) in zip(packed, term.stencil.pairs, strict=True):
        turned[i] += entry * along[j]
        turned[j] += entry * along[i] * (i != j)
    there = [torch.stack(term.gradient(at, constants)) for at in (ahead, behind, far)]
    change, wide = (there[0] - there[1]) / (2 * step), there[2] - slopes
    if _off(turned, change, slopes / step, rows, wide / (_wide(q) * step)):
        return f"{name}: its second derivatives are not those of its first; see testing.check_energy, check_stencil"
    return None


def _wrong_update(term: ElasticTerm, q: Tensor, constants: TermConstants) -> str | None:
    """Return what is wrong with the internal variables after a step to q (n, B); None where nothing is."""
    if constants.since is None:
        return None
    found = [
        tuple(values.shape) for values in term.updated(term.elastic_strains(q, constants), constants, constants.since)
    ]
    count, expected = sum(len(law.variables) for law in term.laws), (term.stencil.count, q.shape[1])
    if found != [expected] * count:
        return (
            f"{_name(term)}: expected updated() to give {count} internal variables, each of shape (stencils, B) = "
            f"{expected}, got {found}"
        )
    return None


def _off(found: Tensor, expected: Tensor, rounded: Tensor, rows: Tensor, wide: Tensor | float = 0.0) -> bool:
    """Return whether derivatives (.., B) are off differences, which are rounded like `rounded`, in some rows (B,).

    `wide` are differences over a step that is longer by `_wide`.
    """
    noise = 10 * torch.finfo(found.dtype).eps * rounded.abs().amax()
    size = max(float(expected.abs().amax()), float(torch.as_tensor(wide).abs().amax().nan_to_num(0, 0)))
    return bool((((found - expected).abs() > _tolerance(found) * size + noise) & rows).any())


def _same(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers are the same to the bit; NaN is the same as NaN."""
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


def _energies(term: ElasticTerm) -> list[Energy]:
    """Return the energies whose densities a term adds up."""
    parts: list[Energy] = []
    for energy in (term.energy, term.dissipation):
        parts += energy.energies.values() if isinstance(energy, Sum) else [] if energy is None else [energy]  # type: ignore[arg-type]
    return parts


def _name(term: ElasticTerm) -> str:
    """Return what messages call a term: what users wrote of it, if they did."""
    own = [type(part).__name__ for part in (*_energies(term), *term.laws, term.stencil) if is_of_user(part)]
    return f"{', '.join(own) or type(term.energy).__name__} ({term.name})"


def _not_deterministic(name: str) -> str:
    return (
        f"{name}: two evaluations at the same state differ (dropout, random numbers): a step needs a function of the "
        "state; call eval() on it, or draw the numbers before the step"
    )


def _tolerance(like: Tensor) -> float:
    """Return the relative error of differences that is left to strong curvature and kinks nearby."""
    return 1e-4 if like.dtype == torch.float64 else 5e-2


def _wide(like: Tensor) -> float:
    """Return how much longer a step is over which differences are as large as those of ordinary states.

    Where a derivative is zero, as at rest, differences over a short step are all truncation, which falls as its square.
    """
    return 10 * _tolerance(like) ** -0.5


def _extent(state: State, field: str) -> float:
    """Return the scale of trial steps: a tenth of the robots' extent [m] for q, for velocity its size, at least 1."""
    if field == "velocity":
        return max(1.0, float(state.velocity.abs().max()))
    x = state.positions
    return 0.1 * float((x.amax(1) - x.amin(1)).max())


def _random(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _asked(state: State, by_dof: Tensor) -> Tensor:
    """Return numbers (B, n), zero at held tangents: these are never unknowns, so no step asks for derivatives there."""
    unknowns = by_dof.shape[1] - 3 * state.n_held
    return torch.cat([by_dof[:, :unknowns], torch.zeros_like(by_dof[:, unknowns:])], dim=1)

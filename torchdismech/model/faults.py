"""What is wrong with forces and energies that users write, by name, from evaluations at one state.

Looked at when a model is built (`hooks`), where a step fails, and where a backward pass finds a matrix that is not the
derivative of its residual (`integrate.gradients.hooks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Energy, Sum
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.forces import Force
from torchdismech.forces.dependence import products
from torchdismech.robot.state import Control, State
from torchdismech.rows import finite_rows
from torchdismech.values import every_module, tensor_of

__all__ = [
    "LOOK",
    "another_dtype",
    "asked",
    "is_of_user",
    "name_of",
    "not_deterministic",
    "rounding",
    "same",
    "summed",
    "trial_numbers",
    "what_is_not_finite",
    "what_is_wrong",
]

SEE = "see testing.check_energy, check_stencil"
SAME, SAME_IN_FLOAT32 = 1e-9, 1e-4  # relative: sums of the same numbers in another order
LOOK = "look in it for divisions by zero, roots and logarithms, and at the tensors it holds"


def is_of_user(module: nn.Module) -> bool:
    """Return whether a module, or one in it, is of a class that this library does not bring, or calls such code."""
    return any(
        type(m).__module__.partition(".")[0] not in ("torch", "torchdismech") or getattr(m, "runs_users_code", False)
        for m in every_module(module)
    )


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
    name, value = _called(force), force(state, control)
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
    name, q, constants = name_of(term), state.q.t().contiguous(), term.constants(before, control, 1.0)
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
    name = _called(force)
    value = force(state, control)
    if value.shape != state.q.shape:
        return f"{name}: expected shape (B, n) = {tuple(state.q.shape)}, got {tuple(value.shape)}"
    if force.explicit:
        return None
    if not same(force(state, control), value):
        return not_deterministic(name)
    weights, direction = (asked(state, trial_numbers(state.q, seed)) for seed in (3, 4))
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
            jump = (weights * (ahead + behind - 2 * value)).sum(1) / step
            kink = _is_of_kink(found, expected, jump, off) and not force.constant
            wrong = _wrong_derivative(force, field, float(found[robot]), float(expected[robot]))
            return f"{wrong}. But {_of_kink('forward()')}" if kink else wrong
    return _wrong_claim(force, state, control, rows) if force.varies else None


def _wrong_claim(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return a sentence where a force claims a symmetric derivative or a potential, and has another."""
    name = _called(force)
    weights, direction = (asked(state, trial_numbers(state.q, seed)) for seed in (3, 4))
    if force.symmetric:
        blocks, derivatives = force.blocks(), force.derivatives(state, control)
        pairs = zip(products(blocks, derivatives, weights), products(blocks, derivatives, direction), strict=True)
        for one, other in pairs:
            if _off((one * direction).sum(1), (other * weights).sum(1), (one * direction).abs().sum(1), rows).any():
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
        if _off(-work, (ahead - behind) / (2 * step), ahead / step, rows, wide).any():
            return f"{name}: its force is not minus the gradient of its potential()"
    return None


def _wrong_derivative(force: Force, field: str, found: float, expected: float) -> str:
    """Return a sentence about a derivative that is not that of the force."""
    name, by = _called(force), "position" if field == "q" else "velocity"
    numbers = f"along a random direction it is {found:.6g}, differences say {expected:.6g}"
    if force.constant:
        return (
            f"{name}: it says constant = True, but changes with {by}; leave that away, or set explicit=True to hold it "
            "over each step"
        )
    if force.closed_form:
        return (
            f"{name}: {_derivatives_of(force)} by {by} are not those of forward(): {numbers}; "
            "torchdismech.testing.check_force shows more"
        )
    reach = None if force.dependence is None else force.dependence.reach
    farther = f"if it depends on what is more than {reach} edges away, make it a LocalForce of a larger reach; "
    return (
        f"{name}: its derivative by {by} is not that of forward(): {numbers}; {'' if reach is None else farther}"
        "if forward() leaves torch (detach, item, numpy), write blocks() and derivatives(), or set explicit=True"
    )


def _called(force: Force) -> str:
    """Return what messages call a force: an obstacle by its name."""
    return getattr(force, "name_in_messages", type(force).__name__)


def _derivatives_of(force: Force) -> str:
    """Return what messages call derivatives in closed form: an obstacle says whose they are."""
    return getattr(force, "derivatives_in_messages", "its derivatives()")


@torch.no_grad()
def _wrong_term(term: ElasticTerm, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with the energy or the stencil of an elastic term at some states; None where nothing is."""
    name, q = name_of(term), state.q.t().contiguous()
    extent, direction = _extent(state, "q"), trial_numbers(state.q, 4).t().contiguous()
    before = state.replace(q=state.q + 0.01 * extent * trial_numbers(state.q, 5))  # where strains dissipate from
    constants = term.constants(before, control, 1.0)
    expected, strains = (term.stencil.count, state.batch), term.elastic_strains(q, constants)
    for energy in _energies(term):
        part, found = f"{type(energy).__name__} ({term.name})", energy.density(strains)
        if tuple(found.shape) != expected:
            return f"{part}: expected a density of shape (stencils, B) = {expected}, got {tuple(found.shape)}"
        if found.dtype != q.dtype:  # a sum with others would be of their dtype
            return another_dtype(part, found, q)
    if wrong := _wrong_update(term, q, constants):
        return wrong
    density = term.densities(q, constants)
    if not same(term.densities(q, constants), density):
        return not_deterministic(name)
    step = torch.finfo(q.dtype).eps ** (1 / 3) * extent
    ahead, behind, far = (q + by * step * direction for by in (1, -1, _wide(q)))
    along = torch.stack(term.stencil.local(direction))
    gradient, packed = term.gradient_and_hessian(q, constants)
    slopes = torch.stack(gradient)
    energies = [constants.measure * term.densities(at, constants) for at in (ahead, behind, far)]
    here, found, change = constants.measure * density, (slopes * along).sum(0), (energies[0] - energies[1]) / (2 * step)
    wide = (energies[2] - here) / (_wide(q) * step)
    if bool((off := _off(found, change, here / step, rows, wide)).any()):
        kink = _is_of_kink(found, change, (energies[0] + energies[1] - 2 * here) / step, off)
        wrong = f"its first derivatives are not those of density(); {SEE}"
        return f"{name}: {_of_kink('density() or its slope') if kink else wrong}"
    turned = torch.zeros_like(slopes)  # the Hessian times the direction
    for entry, (i, j) in zip(packed, term.stencil.pairs, strict=True):
        turned[i] += entry * along[j]
        turned[j] += entry * along[i] * (i != j)
    there = [torch.stack(term.gradient(at, constants)) for at in (ahead, behind, far)]
    change, wide = (there[0] - there[1]) / (2 * step), (there[2] - slopes) / (_wide(q) * step)
    if bool((off := _off(turned, change, slopes / step, rows, wide)).any()):
        kink = _is_of_kink(turned, change, (there[0] + there[1] - 2 * slopes) / step, off)
        kink = kink or bool((change.abs() > 10 * wide.abs())[off].all())  # slopes that jump: the same over any step
        wrong = f"its second derivatives are not those of its first; {SEE}"
        return f"{name}: {_of_kink('density() or its slope') if kink else wrong}"
    return None


def _wrong_update(term: ElasticTerm, q: Tensor, constants: TermConstants) -> str | None:
    """Return what is wrong with the internal variables after a step to q (n, B); None where nothing is."""
    if constants.elapsed is None:
        return None
    found = [
        tuple(values.shape) for values in term.updated(term.elastic_strains(q, constants), constants, constants.elapsed)
    ]
    count, expected = sum(len(law.variables) for law in term.laws), (term.stencil.count, q.shape[1])
    if found != [expected] * count:
        return (
            f"{name_of(term)}: expected updated() to give {count} internal variables, each of shape (stencils, B) = "
            f"{expected}, got {found}"
        )
    return None


def _off(found: Tensor, expected: Tensor, rounded: Tensor, rows: Tensor, wide: Tensor | float = 0.0) -> Tensor:
    """Return where derivatives (.., B) are off differences, which are rounded like `rounded`, in some rows (B,).

    `wide` are differences over a step that is longer by `_wide`.
    """
    noise = 10 * torch.finfo(found.dtype).eps * rounded.abs().amax()
    size = max(float(expected.abs().amax()), float(tensor_of(wide).abs().amax().nan_to_num(0, 0)))
    return ((found - expected).abs() > _tolerance(found) * size + noise) & rows


def _is_of_kink(found: Tensor, expected: Tensor, jump: Tensor, off: Tensor) -> bool:
    """Return whether derivatives that are off differences lie between those to either side, which differ by `jump`."""
    return bool(((found - expected).abs() <= 0.6 * jump.abs())[off].all())


def _of_kink(function: str) -> str:
    """Return a sentence on what has a kink at a state, as its differences to both sides say."""
    return (
        f"{function} seems to have a kink at this state: differences to its two sides disagree, as of relu or abs at "
        "rest, and steps need a derivative that does not jump; take a smooth function, such as softplus for relu, or "
        "sqrt(x**2 + eps**2) - eps for abs"
    )


def rounding(like: Tensor) -> float:
    """Return by how much, relative, sums may differ whose numbers are added in another order."""
    return SAME if like.dtype == torch.float64 else SAME_IN_FLOAT32


def same(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers are the same to the bit; NaN is the same as NaN."""
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


def _energies(term: ElasticTerm) -> list[Energy]:
    """Return the energies and dissipations whose densities a term adds up."""
    return [*summed(term.energy), *summed(term.dissipation)]


def summed(energy: Energy | None) -> list[Energy]:
    """Return the energies that a sum adds up, also those of sums in it; or the one energy, or none."""
    if isinstance(energy, Sum):
        return [one for part in energy.energies.values() for one in summed(cast(Energy, part))]
    return [] if energy is None else [energy]


def name_of(term: ElasticTerm) -> str:
    """Return what messages call a term: what users wrote of it, if they did."""
    own = [type(part).__name__ for part in (*_energies(term), *term.laws, term.stencil) if is_of_user(part)]
    return f"{', '.join(own) or type(term.energy).__name__} ({term.name})"


def another_dtype(name: str, found: Tensor, expected: Tensor) -> str:
    """Return a sentence on what gives numbers in another dtype than the model's."""
    return (
        f"{name}: expected numbers in {expected.dtype}, as the model's, got {found.dtype}; make its tensors and "
        f"modules so, as by .to({expected.dtype})"
    )


def not_deterministic(name: str) -> str:
    """Return a sentence on what gives other numbers when it is evaluated twice."""
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


def trial_numbers(like: Tensor, seed: int) -> Tensor:
    """Return normally distributed numbers like a tensor, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)


def asked(state: State, by_dof: Tensor) -> Tensor:
    """Return numbers (B, n), zero at held tangents: these are never unknowns, so no step asks for derivatives there."""
    unknowns = by_dof.shape[1] - 3 * state.n_held
    return torch.cat([by_dof[:, :unknowns], torch.zeros_like(by_dof[:, unknowns:])], dim=1)

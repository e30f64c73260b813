"""Finds, by evaluations at one state, which force or energy of a user breaks its own claims, and names it.

It runs when a model is built (`hooks`), where a step fails, and where a backward pass finds a matrix that is not the
derivative of its residual (`integrate.gradients.hooks`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.forces import Force
from torchdismech.forces.dependence import products
from torchdismech.model.differences import (
    differs,
    extent_of,
    is_of_kink,
    kink_sentence,
    same,
    tolerance,
    trial_numbers,
    wide_step_ratio,
    without_held_tangents,
)
from torchdismech.model.user_code import another_dtype, energies_of, force_label, not_deterministic, term_label
from torchdismech.origin import class_name
from torchdismech.robot.state import Control, State

__all__ = ["what_is_wrong"]

SEE = "see testing.check_energy, check_stencil"


def what_is_wrong(parts: Iterable[Force | ElasticTerm], state: State, control: Control, rows: Tensor) -> str | None:
    """Return which force or energy breaks its claims for the robots in `rows` (B,), and how, as text; None if none.

    Checked are the shape, whether the same state gives the same numbers, and derivatives along a random direction
    against finite differences.
    """
    for part in parts:
        if isinstance(part, Force):
            wrong = _wrong_force(part, state, control, rows)
        else:
            wrong = _wrong_term(part, state, control, rows)
        if wrong:
            return wrong
    return None


@torch.no_grad()
def _wrong_force(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with a force for the robots in `rows` (B,), as text; None if nothing is."""
    name = force_label(force)
    value = force(state, control)
    if value.shape != state.q.shape:
        return f"{name}: expected shape (B, n) = {tuple(state.q.shape)}, got {tuple(value.shape)}"
    if force.explicit:
        return None
    if not same(force(state, control), value):
        return not_deterministic(name)
    weights, claimed = without_held_tangents(state, trial_numbers(state.q, 3)), (torch.zeros_like(value),) * 2
    if force.varies:
        blocks, derivatives = force.blocks(), force.derivatives(state, control)
        if len(blocks) != len(derivatives):
            return f"{name}: blocks() has {len(blocks)} places, derivatives() fills {len(derivatives)}"
        claimed = products(blocks, derivatives, weights)
    for by_dof, field in zip(claimed, ("q", "velocity"), strict=True):
        if wrong := _wrong_slope(force, field, value, by_dof, state, control, rows):
            return wrong
    return _wrong_claim(force, state, control, rows) if force.varies else None


def _wrong_slope(
    force: Force, field: str, value: Tensor, by_dof: Tensor, state: State, control: Control, rows: Tensor
) -> str | None:
    """Return a sentence if the derivative by "q" or "velocity" is off differences along a random direction, else None.

    Parameters
    ----------
    value, by_dof : (B, n) the force at the state, and the derivative of the sum of its components with random weights.
    """
    weights, direction = (without_held_tangents(state, trial_numbers(state.q, seed)) for seed in (3, 4))
    at = getattr(state, field)
    step = torch.finfo(at.dtype).eps ** (1 / 3) * extent_of(state, field)
    far = wide_step_ratio(at) * step
    ahead, behind, away = (force(state.replace(**{field: at + by * direction}), control) for by in (step, -step, far))
    changes, wide = weights * (ahead - behind) / (2 * step), weights * (away - value) / far
    slope, expected = (by_dof * direction).sum(1), changes.sum(1)
    size = torch.maximum(changes.abs().sum(1), wide.abs().sum(1).nan_to_num(0, 0))
    size = size + (by_dof * direction).abs().sum(1)
    noise = 10 * torch.finfo(at.dtype).eps / step * (weights * value).abs().sum(1)
    off = ((slope - expected).abs() > tolerance(at) * size + noise) & rows  # False for NaN, which is another fault
    if not bool(off.any()):
        return None
    robot, jump = int(off.nonzero()[0]), (weights * (ahead + behind - 2 * value)).sum(1) / step
    wrong = _wrong_derivative(force, field, float(slope[robot]), float(expected[robot]))
    kink = is_of_kink(slope, expected, jump, off) and not force.constant
    return f"{wrong}. But {kink_sentence('forward()')}" if kink else wrong


def _wrong_claim(force: Force, state: State, control: Control, rows: Tensor) -> str | None:
    """Return a sentence if a force claims a symmetric derivative or a potential that it does not have, else None."""
    name = force_label(force)
    weights, direction = (without_held_tangents(state, trial_numbers(state.q, seed)) for seed in (3, 4))
    if force.symmetric:
        blocks, derivatives = force.blocks(), force.derivatives(state, control)
        pairs = zip(products(blocks, derivatives, weights), products(blocks, derivatives, direction), strict=True)
        for one, other in pairs:
            if differs((one * direction).sum(1), (other * weights).sum(1), (one * direction).abs().sum(1), rows).any():
                return (
                    f"{name}: it says symmetric = True, but its derivatives are no symmetric matrices; leave that away"
                )
    if force.conservative:
        step = torch.finfo(state.q.dtype).eps ** (1 / 3) * extent_of(state, "q")
        at, ahead, behind, far = (
            force.potential(state.replace(q=state.q + by * step * direction), control)
            for by in (0, 1, -1, wide_step_ratio(state.q))
        )
        work, wide = (force(state, control) * direction).sum(1), (far - at) / (wide_step_ratio(state.q) * step)
        if differs(-work, (ahead - behind) / (2 * step), ahead / step, rows, wide).any():
            return f"{name}: its force is not minus the gradient of its potential()"
    return None


def _wrong_derivative(force: Force, field: str, value: float, expected: float) -> str:
    """Return the sentence about a derivative of a force that is off, with the advice that fits the kind of force."""
    name, by = force_label(force), "position" if field == "q" else "velocity"
    numbers = f"along a random direction it is {value:.6g}, differences say {expected:.6g}"
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


def _derivatives_of(force: Force) -> str:
    """Return how messages call a force's derivatives in closed form; an obstacle names its law."""
    return getattr(force, "derivatives_in_messages", "its derivatives()")


@torch.no_grad()
def _wrong_term(term: ElasticTerm, state: State, control: Control, rows: Tensor) -> str | None:
    """Return what is wrong with the energy or stencil of an elastic term at some states, as text, or None."""
    name, q, extent = term_label(term), state.q.t().contiguous(), extent_of(state, "q")
    before = state.replace(q=state.q + 0.01 * extent * trial_numbers(state.q, 5))  # for strain rates of dissipations
    constants = term.constants(before, control, 1.0)
    if wrong := _wrong_density(term, q, constants) or _wrong_update(term, q, constants):
        return wrong
    if not same(*(term.densities(q, constants) for _ in range(2))):
        return not_deterministic(name)
    wrong = _wrong_slopes(term, q, constants, extent, rows) or _wrong_curvature(term, q, constants, extent, rows)
    return None if wrong is None else f"{name}: {wrong}"


def _wrong_density(term: ElasticTerm, q: Tensor, constants: TermConstants) -> str | None:
    """Return what is wrong with the shape or dtype of a density at q (n, B), as text; None if nothing is."""
    strains, expected = term.elastic_strains(q, constants), (term.stencil.count, q.shape[1])
    for energy in energies_of(term):
        part, density = f"{class_name(energy)} ({term.name})", energy.density(strains)
        if tuple(density.shape) != expected:
            return f"{part}: expected a density of shape (stencils, B) = {expected}, got {tuple(density.shape)}"
        if density.dtype != q.dtype:  # a sum with other densities would have theirs, and hide it
            return another_dtype(part, density, q)
    return None


def _wrong_update(term: ElasticTerm, q: Tensor, constants: TermConstants) -> str | None:
    """Return what is wrong with the internal variables after a step to q (n, B), as text; None if nothing is."""
    if constants.elapsed is None:
        return None
    shapes = [
        tuple(values.shape) for values in term.updated(term.elastic_strains(q, constants), constants, constants.elapsed)
    ]
    count, expected = sum(len(law.variables) for law in term.laws), (term.stencil.count, q.shape[1])
    if shapes != [expected] * count:
        return (
            f"{term_label(term)}: expected updated() to give {count} internal variables, each of shape (stencils, B) = "
            f"{expected}, got {shapes}"
        )
    return None


def _wrong_slopes(term: ElasticTerm, q: Tensor, constants: TermConstants, extent: float, rows: Tensor) -> str | None:
    """Return a sentence if the gradient at q (n, B) is off differences of the energy, else None."""
    direction, step, beside = _beside(q, extent)
    slopes, along = torch.stack(term.gradient_and_hessian(q, constants)[0]), torch.stack(term.stencil.local(direction))
    here, ahead, behind, far = (constants.measure * term.densities(at, constants) for at in (q, *beside))
    slope, change = (slopes * along).sum(0), (ahead - behind) / (2 * step)
    wide = (far - here) / (wide_step_ratio(q) * step)
    off = differs(slope, change, here / step, rows, wide)
    if not bool(off.any()):
        return None
    if is_of_kink(slope, change, (ahead + behind - 2 * here) / step, off):
        return kink_sentence("density() or its slope")
    return f"its first derivatives are not those of density(); {SEE}"


def _wrong_curvature(term: ElasticTerm, q: Tensor, constants: TermConstants, extent: float, rows: Tensor) -> str | None:
    """Return a sentence if the Hessian at q (n, B) is off differences of the gradient, else None."""
    direction, step, beside = _beside(q, extent)
    gradient, packed = term.gradient_and_hessian(q, constants)
    slopes, along = torch.stack(gradient), term.stencil.local(direction)
    turned = torch.zeros_like(slopes)  # the Hessian times the direction
    for entry, (i, j) in zip(packed, term.stencil.pairs, strict=True):
        turned[i] += entry * along[j]
        turned[j] += entry * along[i] * (i != j)
    ahead, behind, far = (torch.stack(term.gradient(at, constants)) for at in beside)
    change, wide = (ahead - behind) / (2 * step), (far - slopes) / (wide_step_ratio(q) * step)
    off = differs(turned, change, slopes / step, rows, wide)
    if not bool(off.any()):
        return None
    if bool((change.abs() > 10 * wide.abs())[off].all()):  # slopes jump: their change is the same over any step
        return kink_sentence("density() or its slope")
    if is_of_kink(turned, change, (ahead + behind - 2 * slopes) / step, off):
        # a material with memory may have a kink, where it begins to yield
        return None if term.laws else kink_sentence("density() or its slope")
    return f"its second derivatives are not those of its first; {SEE}"


def _beside(q: Tensor, extent: float) -> tuple[Tensor, float, list[Tensor]]:
    """Return a direction (n, B), a short step, and q moved along it by that step, backwards, and by a wide step."""
    direction, step = trial_numbers(q.t(), 4).t().contiguous(), torch.finfo(q.dtype).eps ** (1 / 3) * extent
    return direction, step, [q + by * step * direction for by in (1, -1, wide_step_ratio(q))]

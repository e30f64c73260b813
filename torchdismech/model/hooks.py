"""Trials of users' forces, energies and contact laws when a model is built; `faults` finds what is wrong with one.

Newton's method needs the right derivative of a force, and each robot of a batch has to be independent of the others. A
force that breaks this would still be summed and stepped; here it is found, by name, from evaluations at a few states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.inelastic import internal_at_rest
from torchdismech.elastic.natural import natural_strains
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.model.dependence import settle_dependence
from torchdismech.model.differences import rounding, trial_numbers
from torchdismech.model.faults import what_is_wrong
from torchdismech.model.initial import rest_state, trial_state
from torchdismech.model.law_trials import refuse_wrong_laws
from torchdismech.model.not_finite import LOOK, what_is_not_finite
from torchdismech.model.odd_batches import refuse_odd_force, refuse_odd_term
from torchdismech.model.other_weights import unchanged_random_numbers, unchanged_statistics
from torchdismech.model.user_code import by_autograd, force_label, holds_users_code, parts_of_users, summed, term_label
from torchdismech.origin import class_name
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import leading

if TYPE_CHECKING:
    from torchdismech.model.checked import CheckedModel

__all__ = ["try_hooks"]

TRIALS = 3  # number of robots in a trial state
RATES = (0.0, 1.0, 1e3)  # strain rates at which dissipations are tried [1/s, 1/(m s)]


def try_hooks(model: CheckedModel) -> None:
    """Set the dependence of forces without written derivatives; refuse users' code that breaks its own claims."""
    forces, terms, robots = [*model.forces], [*model.terms], model.batch
    # obstacles of the library are not tried: their paths, and what they touch at a trial state, tell nothing
    if all(f.closed_form or f.constant for f in forces) and not holds_users_code(model):
        return
    state = trial_state(model.body, model.frames, min(robots or TRIALS, TRIALS))
    state = state.replace(internal=internal_at_rest(terms, state.q))
    with leading(model, robots, TRIALS):
        natural = natural_strains(model.body, terms, state.batch)
        control = natural.replace(clamped_q=state.q, force=torch.zeros_like(state.q))
    at_rest = rest_state(model.body, model.frames, state.batch).replace(internal=state.internal)
    with unchanged_random_numbers(model), unchanged_statistics(model):
        refuse_wrong_laws(forces, [*model.self_contacts], robots)
        for force in forces:
            settle_dependence(force, robots, state, control)
        for part in parts_of_users(forces, terms):
            with leading(part, robots, state.batch):
                _try(part, robots, state, control, [at_rest, *_far_away(model.body, state)])


def _far_away(body: Body, state: State) -> list[State]:
    """Return the state moved by ten times the robot's size into each octant, away from any obstacle at its place."""
    size = 10 * float((body.nodes.amax(0) - body.nodes.amin(0)).max())
    moved = []
    for signs in product((-size, size), repeat=3):
        aside = state.positions + state.q.new_tensor(signs)
        moved.append(state.replace(q=torch.cat([aside.flatten(1), state.q[:, 3 * body.n_nodes :]], dim=1)))
    return moved


def _try(
    part: Force | ElasticTerm, robots: int | None, state: State, control: Control, others: Sequence[State]
) -> None:
    """Refuse a force or an elastic term with users' code that breaks its claims at a trial state.

    Parameters
    ----------
    robots : number of robots that the model's tensors are given for; None: any number.
    state, control : of the trial robots.
    others : more states, the first one at rest. Forces need to be finite at one state alone, as a user's wall may be
        in the way at the others.
    """
    if isinstance(part, Force):
        label = force_label(part)
        refuse_odd_force(part, robots, state, control)
    else:
        label = term_label(part)
        refuse_odd_term(part, robots, state, control)
    with by_autograd(label):
        wrong = what_is_wrong([part], state, control, _all(state))
    if wrong is not None:
        raise InputError(wrong)
    _refuse_never_finite(part, [state, *others], control)
    if isinstance(part, ElasticTerm):
        _refuse_not_finite_at_rest(part, others[0], control)
        _refuse_stress_without_rates(part, state)


def _refuse_never_finite(part: Force | ElasticTerm, states: Sequence[State], control: Control) -> None:
    """Refuse a force or a term that is finite at none of the states, the second of which is at rest."""
    problem = None
    for state in states:
        problem = what_is_not_finite([part], states[1], state, control.replace(clamped_q=state.q), _all(state))
        if problem is None:
            return
    raise InputError(
        f"{problem}, and so at every state that was tried (at rest; bent and moving; far away on all sides); {LOOK}"
    )


def _refuse_not_finite_at_rest(term: ElasticTerm, at_rest: State, control: Control) -> None:
    """Refuse an energy that is not finite at rest, or has no finite derivatives there: every step would fail.

    Forces are not held to that: one may have no direction at rest, or act elsewhere.
    """
    control_there = control.replace(clamped_q=at_rest.q)
    problem = what_is_not_finite([term], at_rest, at_rest, control_there, _all(at_rest))
    if problem is not None:
        raise InputError(
            f"{problem} at rest, where robots begin: {LOOK}; a root or a norm of strains has no derivative where they "
            "are zero, sqrt(x**2 + eps**2) - eps has one"
        )


def _refuse_stress_without_rates(term: ElasticTerm, state: State) -> None:
    """Refuse a dissipation whose stress is not zero where no strain changes: it would silently act as a load."""
    shape = len(term.stencil.strains), term.stencil.count, state.batch
    rates = trial_numbers(state.q.new_empty(shape), 6)
    for part in summed(term.dissipation):
        at_none, *others = (_largest(part.slopes(tuple(size * rates))) for size in RATES)
        if at_none > rounding(state.q) * max(others):
            raise InputError(
                f"{class_name(part)} ({term.name}): expected a dissipation whose slopes are 0 where no strain "
                f"changes, got up to {at_none:.3g}: a density that is linear in the rates acts as a load that never "
                "ends; take one that is least at rates of 0, such as 0.5 * viscosity * rate**2"
            )


def _largest(slopes: list[Tensor]) -> float:
    return max(float(slope.detach().abs().max()) for slope in slopes)


def _all(state: State) -> Tensor:
    return torch.ones_like(state.time, dtype=torch.bool)

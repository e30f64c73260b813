"""Checks of users' forces and energies when a model is built; `faults` finds what is wrong with one.

Newton's method needs the right derivative of a force, and each robot of a batch has to be independent of the others. A
force that breaks this would still be summed and stepped; here it is found, by name, from evaluations at a few states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.elastic import ElasticTerm
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.model.differences import rounding, trial_numbers
from torchdismech.model.faults import what_is_wrong
from torchdismech.model.not_finite import LOOK, what_is_not_finite
from torchdismech.model.odd_batches import refuse_odd_force, refuse_odd_term
from torchdismech.model.user_code import by_autograd, force_label, holds_users_code, summed, term_label
from torchdismech.origin import class_name
from torchdismech.robot.state import Control, State
from torchdismech.values import leading

__all__ = ["check_hooks"]

RATES = (0.0, 1.0, 1e3)  # strain rates at which dissipations are tried [1/s, 1/(m s)]


def check_hooks(
    forces: Sequence[Force],
    terms: Sequence[ElasticTerm],
    robots: int | None,
    state: State,
    control: Control,
    others: Sequence[State],
) -> None:
    """Refuse users' forces and energies that break their claims at a trial state.

    Parameters
    ----------
    robots : number of robots that the model's tensors are given for; None: any number.
    state, control : of the trial robots.
    others : more states, the first one at rest. Forces need to be finite at one state alone, as a user's wall may be
        in the way at the others.
    """
    for force in forces:
        if holds_users_code(force):
            with leading(force, robots, state.batch):
                refuse_odd_force(force, robots, state, control)
                with by_autograd(force_label(force)):
                    _refuse(what_is_wrong([force], [], state, control, _all(state)))
                _refuse_never_finite([force], [], [state, *others], control)
    for term in terms:
        if holds_users_code(term):
            with leading(term, robots, state.batch):
                refuse_odd_term(term, robots, state, control)
                with by_autograd(term_label(term)):
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
    """Refuse forces and energies that are finite at none of the states, the second of which is at rest."""
    problem = None
    for state in states:
        control_there = control.replace(clamped_q=state.q)
        problem = what_is_not_finite(forces, terms, states[1], state, control_there, _all(state))
        if problem is None:
            return
    _refuse(
        f"{problem}, and so at every state that was tried (at rest; bent and moving; far away on all sides); {LOOK}"
    )


def _refuse_not_finite_at_rest(term: ElasticTerm, at_rest: State, control: Control) -> None:
    """Refuse an energy that is not finite at rest, or has no finite derivatives there: every step would fail.

    Forces are not held to that: one may have no direction at rest, or act elsewhere.
    """
    control_there = control.replace(clamped_q=at_rest.q)
    problem = what_is_not_finite([], [term], at_rest, at_rest, control_there, _all(at_rest))
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

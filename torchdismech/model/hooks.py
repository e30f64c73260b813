"""What is asked of forces and energies that users write when a model is built; `faults` says what is wrong with one.

Newton's method needs of a force its derivative, and of a batch that robots do not know each other. A force that breaks
this would still be summed and stepped: it is found out here, by name, from evaluations at one state.
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
from torchdismech.model.odd_batches import refuse_odd_term, refuse_unevaluable
from torchdismech.model.user_code import holds_users_code, summed
from torchdismech.origin import class_name
from torchdismech.robot.state import Control, State
from torchdismech.values import leading

__all__ = ["check_hooks"]

RATES = (0.0, 1.0, 1e3)  # of strains, at which dissipations are tried [1/s, 1/(m s)]


def check_hooks(
    forces: Sequence[Force],
    terms: Sequence[ElasticTerm],
    robots: int | None,
    state: State,
    control: Control,
    others: Sequence[State],
) -> None:
    """Refuse what users have written where it breaks what it claims at a trial state.

    Parameters
    ----------
    others : at which what is not finite at the trial state may be, as with walls: robots at rest, then any states.
    """
    for force in forces:
        if holds_users_code(force):
            with leading(force, robots, state.batch):
                refuse_unevaluable(force, robots, state, control)
                _refuse(what_is_wrong([force], [], state, control, _all(state)))
                _refuse_never_finite([force], [], [state, *others], control)
    for term in terms:
        if holds_users_code(term):
            with leading(term, robots, state.batch):
                refuse_odd_term(term, robots, state, control)
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

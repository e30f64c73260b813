"""Inelastic: material laws with memory, whose stresses depend on internal variables that are part of the state.

Internal variables are numbers for each spring of a term, such as the part of a strain that is not relaxed yet. An
elastic term may have such laws beside its energy. Their variables are in `State.internal`, term by term, law by law; a
step reads them from the state before it and writes them, updated, into the state after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchdismech.elastic.energy import Strain, derivatives_by_autograd, slopes_by_autograd
from torchdismech.robot.state import State

__all__ = [
    "FOREVER",
    "Inelastic",
    "Past",
    "internal_at_rest",
    "internal_count",
    "internal_variables",
    "number_internal",
]

FOREVER = 1e20  # s: the elapsed time for equilibria; finite, so that derivatives by relaxation times are 0, not NaN


@dataclass(frozen=True, eq=False)
class Past:
    """The state of a law at the start of a step, and the time since then; tensors are batch last.

    Attributes
    ----------
    strain : the term's strains at the start of the step, each (S, B), measured as those that the law is evaluated at:
        with this step's natural strains subtracted, and multiplied by P at corners (`Corners`). So strain - past.strain
        is a change of shape, and a change of natural strains (actuation) alone leaves it zero.
    internal : the law's internal variables at the start of the step, each (S, B).
    elapsed : () the time from the start of the step to where stresses are evaluated [s]: 0 at the state itself,
        `FOREVER` in equilibria.
    """

    strain: Strain
    internal: tuple[Tensor, ...]
    elapsed: Tensor


def number_internal(terms: Sequence[Any]) -> None:
    """Set `first_internal` of all elastic terms: where their internal variables begin in `State.internal`."""
    for k, term in enumerate(terms):
        term.first_internal = internal_count(terms[:k])


def internal_count(terms: Iterable[Any]) -> int:
    """Return the number M of internal variables per robot of elastic terms."""
    return sum(term.stencil.count * len(law.variables) for term in terms for law in term.laws)


def internal_at_rest(terms: Iterable[Any], like: Tensor) -> Tensor | None:
    """Return the internal variables (B, M) of robots at rest, which are zero; None without inelastic laws.

    Parameters
    ----------
    like : (B, ..) a tensor that gives B, dtype and device.
    """
    count = internal_count(terms)
    return like.new_zeros(len(like), count) if count else None


def internal_variables(terms: Iterable[Any], state: State) -> dict[str, Tensor]:
    """Return the internal variables of a state, each (B, S), by "term.law.variable"."""
    return {
        f"{term.name}.{name}.{variable}": value.t()
        for term in terms
        if term.inelastic
        for (name, law), values in zip(term.inelastic.items(), term.internal(state), strict=True)
        for variable, value in zip(law.variables, values, strict=True)
    }


class Inelastic(nn.Module):
    """A material law with memory.

    In a step it has a potential psi(strain, past) [J per unit of the term's measure] whose derivatives by the strains
    are the stresses, so that the matrix of a step stays symmetric. `updated` returns the internal variables after the
    step; in initial states they are 0. A subclass defines `variables`, `density`, `updated` and `stored`; derivatives
    then come from autograd. One with derivatives in closed form sets `closed_form` and overrides `derivatives`, which
    is faster and can be compiled. `records` is as for `Energy`.
    """

    closed_form = False
    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of parameters that a step refuses below zero
    positive: tuple[str, ...] = ()  # names of those that may not be zero, either, where a control sets them
    variables: tuple[str, ...] = ()  # names of the internal variables

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return psi (S, B) at the strains, each (S, B), up to a part that does not depend on them."""
        raise TypeError(f"{type(self).__name__} has to define density(strain, past)")

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return the internal variables, each (S, B), after a step that ends at these strains, each (S, B)."""
        raise TypeError(f"{type(self).__name__} has to define updated(strain, past)")

    def stored(self, internal: tuple[Tensor, ...]) -> Tensor:
        """Return the recoverable energy (S, B) that the law stores [J per unit of the term's measure], for reports."""
        raise TypeError(f"{type(self).__name__} has to define stored(internal)")

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Raise an error if the law does not fit a term with these strains and names of linear stiffnesses."""

    def slopes(self, strain: Strain, past: Past) -> list[Tensor]:
        """Return the stresses, first derivatives of psi, each (S, B); differentiable where autograd is enabled."""
        if self.closed_form:
            return self.derivatives(strain, past)[0]
        others = (*past.strain, *past.internal, *self.parameters())
        return slopes_by_autograd(lambda at: self.density(at, past), strain, others)

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the first derivatives of psi by the strains, and the matrix of second ones; None stands for zero."""
        return derivatives_by_autograd(lambda at: self.density(at, past), strain)

"""Materials that remember: parts of a term's stress that depend on internal variables, which a state carries.

Internal variables are numbers of each spring, such as the strain of a spring that friction holds. An elastic term is
given laws of this kind beside its energy. Their variables stand in `State.internal`, term by term, law by law; a step
takes them from the state before it and leaves them, updated, in the state after it.
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

FOREVER = 1e20  # s, after which equilibria are looked for: finite, so that derivatives by relaxation times are 0


@dataclass(frozen=True)
class Past:
    """What a law knows of the time before, batch last.

    Attributes
    ----------
    strain : the term's strains at the start of the step, each (S, B), as the law is given them: less the natural ones
        of this step, and at corners P times that (`Corners`). So differences to them are changes of shape, which
        actuation by natural strains is not.
    internal : the law's internal variables there, each (S, B).
    elapsed : () the time from there to where stresses are evaluated [s]: 0 at the state itself, `FOREVER` in
        equilibria.
    """

    strain: Strain
    internal: tuple[Tensor, ...]
    elapsed: Tensor


def number_internal(terms: Sequence[Any]) -> None:
    """Say to elastic terms where their internal variables begin in `State.internal`."""
    for k, term in enumerate(terms):
        term.first_internal = internal_count(terms[:k])


def internal_count(terms: Iterable[Any]) -> int:
    """Return how many internal variables M the materials of elastic terms have."""
    return sum(term.stencil.count * len(law.variables) for term in terms for law in term.laws)


def internal_at_rest(terms: Iterable[Any], like: Tensor) -> Tensor | None:
    """Return the internal variables (B, M) of robots at rest; None where no material remembers.

    Parameters
    ----------
    like : (B, ..) a tensor of the same robots.
    """
    count = internal_count(terms)
    return like.new_zeros(len(like), count) if count else None


def internal_variables(terms: Iterable[Any], state: State) -> dict[str, Tensor]:
    """Return the internal variables of a state, (B, S) each, by the names of term, law and variable."""
    return {
        f"{term.name}.{name}.{variable}": value.t()
        for term in terms
        if term.inelastic
        for (name, law), values in zip(term.inelastic.items(), term.internal(state), strict=True)
        for variable, value in zip(law.variables, values, strict=True)
    }


class Inelastic(nn.Module):
    """A law of a material that remembers.

    In a step it has the potential psi(strain, past) [J per unit of the term's measure]: its slopes by the strains are
    the stresses, so that the matrix of a step stays symmetric. `updated` says what the internal variables are after it;
    they are 0 in initial states. A subclass writes `variables`, `density`, `updated` and `stored`; derivatives then
    come from autograd. One that knows them in closed form sets `closed_form` and overrides `derivatives`, which is
    faster and compiles. `records` is as of `Energy`.
    """

    closed_form = False
    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of parameters that a step refuses below zero
    positive: tuple[str, ...] = ()  # names of those that it refuses at zero, too, where a control sets them
    variables: tuple[str, ...] = ()  # names of the internal variables

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return psi (S, B) at the strains, each (S, B); what does not change with them may be left out."""
        raise TypeError(f"{type(self).__name__} has to define density(strain, past)")

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return the internal variables, each (S, B), once the strains have become these."""
        raise TypeError(f"{type(self).__name__} has to define updated(strain, past)")

    def stored(self, internal: tuple[Tensor, ...]) -> Tensor:
        """Return the energy (S, B) that can be had back [J per unit of the term's measure], for reports."""
        raise TypeError(f"{type(self).__name__} has to define stored(internal)")

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Refuse a term of these strains, whose energy has these stiffnesses, where the law is not for it."""

    def slopes(self, strain: Strain, past: Past) -> list[Tensor]:
        """Return the stresses: the first derivatives of psi. Where autograd records, they can be differentiated."""
        if self.closed_form:
            return self.derivatives(strain, past)[0]
        others = (*past.strain, *past.internal, *self.parameters())
        return slopes_by_autograd(lambda at: self.density(at, past), strain, others)

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the first derivatives and the matrix of second derivatives of psi; None stands for zero."""
        return derivatives_by_autograd(lambda at: self.density(at, past), strain)

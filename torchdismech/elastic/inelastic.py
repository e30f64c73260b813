"""Materials that remember: parts of a term's stress that depend on internal variables, which a state carries.

Internal variables are numbers of each spring, such as the strain of a spring that friction holds. An elastic term is
given laws of this kind beside its energy. Their variables stand in `State.internal`, term by term, law by law; a step
takes them from the state before it and leaves them, updated, in the state after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdismech.elastic.energy import Strain, batch_last, derivatives_by_autograd, slopes_by_autograd
from torchdismech.errors import InputError
from torchdismech.state import State

__all__ = ["FOREVER", "Dahl", "Inelastic", "Maxwell", "Past", "internal_at_rest", "internal_variables", "numbered"]

FOREVER = 1e20  # s, after which equilibria are looked for: finite, so that derivatives by relaxation times are 0


@dataclass(frozen=True)
class Past:
    """What a law knows of the time before, batch last.

    Attributes
    ----------
    strain : the term's strains at the start of the step, each (S, B), as the law is given them.
    internal : the law's internal variables there, each (S, B).
    elapsed : () the time from there to where stresses are evaluated [s]: 0 at the state itself, `FOREVER` in
        equilibria.
    """

    strain: Strain
    internal: tuple[Tensor, ...]
    elapsed: Tensor


def numbered(terms: Iterable[Any]) -> int:
    """Say to elastic terms where their internal variables begin in `State.internal`; return how many there are."""
    first = 0
    for term in terms:
        term.first_internal = first
        first += term.stencil.count * sum(len(law.variables) for law in term.laws)
    return first


def internal_at_rest(terms: Iterable[Any], like: Tensor) -> Tensor | None:
    """Return the internal variables (B, M) of robots at rest; None where no material remembers.

    Parameters
    ----------
    like : (B, ..) a tensor of the same robots.
    """
    count = sum(term.stencil.count * len(law.variables) for term in terms for law in term.laws)
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
    they are 0 at rest. A subclass writes `variables`, `density`, `updated` and `stored`; derivatives then come from
    autograd. One that knows them in closed form sets `closed_form` and overrides `derivatives`, which is faster and
    compiles.
    """

    closed_form = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of parameters that a step refuses below zero
    variables: tuple[str, ...] = ()  # names of the internal variables

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return psi (S, B) at the strains, each (S, B); it may be off by what does not change with them."""
        raise TypeError(f"{type(self).__name__} has to define density(strain, past)")

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return the internal variables, each (S, B), once the strains have become these."""
        raise TypeError(f"{type(self).__name__} has to define updated(strain, past)")

    def stored(self, internal: tuple[Tensor, ...]) -> Tensor:
        """Return the energy (S, B) that can be had back [J per unit of the term's measure], for reports."""
        raise TypeError(f"{type(self).__name__} has to define stored(internal)")

    def refuse_unlike(self, strains: int) -> None:
        """Refuse a term of so many strains, where the law is not for it."""

    def slopes(self, strain: Strain, past: Past) -> list[Tensor]:
        """Return the stresses: the first derivatives of psi. Where autograd records, they can be differentiated."""
        if self.closed_form:
            return self.derivatives(strain, past)[0]
        others = (*past.strain, *past.internal, *self.parameters())
        return slopes_by_autograd(lambda at: self.density(at, past), strain, others)

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the first derivatives and the matrix of second derivatives of psi; None stands for zero."""
        return derivatives_by_autograd(lambda at: self.density(at, past), strain)


class _PerStrain(Inelastic):
    """A law with one internal variable z_i for each strain, a strain itself, and the stress stiffness_i z_i.

    A subclass says how z_i follows from the strains, each for itself.

    Parameters
    ----------
    stiffness : one number or tensor per strain of the term, in its order and named as constants shall be; each
        broadcasts against (B, S).
    """

    closed_form = True

    def __init__(self, stiffness: Mapping[str, Any]):
        super().__init__()
        self.variables = self.per_robot = self.not_negative = tuple(stiffness)
        for name, value in stiffness.items():
            self._constant(name, value)

    def refuse_unlike(self, strains: int) -> None:
        """Refuse a term that has more or fewer strains than stiffnesses are given for."""
        if strains != len(self.variables):
            raise InputError(
                f"{type(self).__name__}: expected a stiffness for each of the term's {strains} strains, got "
                f"{', '.join(self.variables)}; 0 is none"
            )

    def _constant(self, name: str, value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
        if not bool((tensor >= 0).all()):
            raise InputError(f"{type(self).__name__}: {name}: expected 0 or more, got {float(tensor.min()):g}")
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return the integral of the stresses over the strains since the start of the step."""
        works = [self._work(k, now - before, past) for k, (now, before) in self._moves(strain, past)]
        return sum(works[1:], start=works[0])

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the stresses stiffness_i z_i, and the diagonal of their derivatives."""
        first, second = [], []
        for k, (now, before) in self._moves(strain, past):
            z, slope = self._variable(k, now - before, past)
            stiffness = self._stiffness(k)
            first.append(stiffness * z)
            second.append([stiffness * slope if j == k else None for j in range(len(strain))])
        return first, second

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return z_i, each (S, B)."""
        return tuple(self._variable(k, now - before, past)[0] for k, (now, before) in self._moves(strain, past))

    def stored(self, internal: tuple[Tensor, ...]) -> Tensor:
        """Return sum_i stiffness_i z_i^2 / 2."""
        energies = [0.5 * self._stiffness(k) * z * z for k, z in enumerate(internal)]
        return sum(energies[1:], start=energies[0])

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Return z_k after the strain has changed by so much, and its derivative by the strain, each (S, B)."""
        raise NotImplementedError

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        """Return stiffness_k times the integral of z_k over the change of the strain, (S, B)."""
        raise NotImplementedError

    def _stiffness(self, k: int) -> Tensor:
        return batch_last(getattr(self, self.variables[k]))

    def _moves(self, strain: Strain, past: Past) -> Any:
        """Return the strains and those at the start of the step, numbered."""
        return enumerate(zip(strain, past.strain, strict=True))


class Dahl(_PerStrain):
    r"""Hysteresis by Dahl's law of friction: dz/de = 1 - z / limit where the strain e grows, 1 + z / limit elsewhere.

    The stress stiffness * z begins as that of a spring, and approaches stiffness * limit as fibres, strands or layers
    slide. It does not depend on the velocity. Each strain is for itself: round rods that bend to changing sides slide
    a little less early along their sections' axes than between them. P. R. Dahl, A solid friction model, 1968.

    Parameters
    ----------
    stiffness : before anything slides, by name, for each strain of the term (0 for none): of rods EA [N]; EI1, EI2, GJ
        [N m^2]. Each broadcasts against (B, S).
    limit : the strain of such a spring under the stress that the law approaches: of stretch [1], of bending and
        twisting [1/m]. By the names of `stiffness`; one number is for all.
    """

    def __init__(self, stiffness: Mapping[str, Any], limit: Any):
        super().__init__(stiffness)
        limits = limit if isinstance(limit, Mapping) else dict.fromkeys(stiffness, limit)
        if limits.keys() != stiffness.keys():
            raise InputError(f"Dahl: limit: expected {', '.join(stiffness)}, got {', '.join(limits) or 'nothing'}")
        for name, value in limits.items():
            own = value.clone() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
            if not bool((own > 0).all()):
                raise InputError(f"Dahl: limit of {name}: expected more than 0, got {float(own.min()):g}")
            self._constant(f"{name}_limit", own)
        self.per_robot = self.not_negative = (*self.variables, *(f"{name}_limit" for name in self.variables))

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        limit, way, left = self._sliding(k, change)
        z = past.internal[k]
        return way * limit + (z - way * limit) * left, (1 - way * z / limit) * left

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        limit, way, left = self._sliding(k, change)
        held = (way * past.internal[k] - limit) * (1 - left)
        return self._stiffness(k) * limit * (torch.abs(change) + held)

    def _sliding(self, k: int, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the limit, the sign of the change, and what is left of the way to the limit."""
        limit = batch_last(getattr(self, f"{self.variables[k]}_limit"))
        one = torch.ones_like(change)
        way = torch.where(change > 0, one, torch.where(change < 0, -one, torch.zeros_like(change)))
        return limit, way, torch.exp(-torch.abs(change) / limit)


class Maxwell(_PerStrain):
    r"""Relaxation by a spring and a dashpot in series: dz/dt = de/dt - z / relaxation_time.

    The stress stiffness * z follows fast changes as that of a spring, and is gone after some relaxation times: at rest
    the term's own energy is all there is. Several of these with other times make a Prony series. Strains change evenly
    within a step, for which z is exact. In `Static` all has relaxed.

    Parameters
    ----------
    stiffness : of the spring, by name, for each strain of the term (0 for none): of rods EA [N]; EI1, EI2, GJ [N m^2].
        Each broadcasts against (B, S).
    relaxation_time : of the dashpot over the spring [s]; broadcasts against (B, S).
    """

    def __init__(self, stiffness: Mapping[str, Any], relaxation_time: Any):
        super().__init__(stiffness)
        own = torch.as_tensor(relaxation_time, dtype=torch.float64).clone()
        if not bool((own > 0).all()):
            raise InputError(f"Maxwell: relaxation_time: expected more than 0, got {float(own.min()):g}")
        self._constant("relaxation_time", own)
        self.per_robot = self.not_negative = (*self.variables, "relaxation_time")

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        kept, followed = self._relaxed(past)
        return kept * past.internal[k] + followed * change, followed

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        kept, followed = self._relaxed(past)
        return self._stiffness(k) * change * (kept * past.internal[k] + 0.5 * followed * change)

    def _relaxed(self, past: Past) -> tuple[Tensor, Tensor]:
        """Return what is kept of z over the time, and how much of an even change of the strain it follows."""
        times = past.elapsed / batch_last(cast(Tensor, self.relaxation_time))
        kept = torch.exp(-times)
        small = times < 1e-4  # where the difference below loses digits, three terms of its series are exact
        safe = torch.where(small, 1.0, times)
        return kept, torch.where(small, 1 - times / 2 + times * times / 6, (1 - kept) / safe)

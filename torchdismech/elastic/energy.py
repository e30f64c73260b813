"""Elastic materials: energy densities as functions of strains, with their derivatives.

Strains arrive as a tuple of tensors `(S, B)` in physical units (stretch: 1; curvature and twist: 1/m), with natural
strains already subtracted; a density is in J per unit of the stencil's measure (rods: J/m).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdismech.autograd import AutogradOn, slopes_by
from torchdismech.errors import InputError, refuse_trained, shown
from torchdismech.values import numbers, refuse_no_robots, untrained

__all__ = [
    "OWN",
    "Energy",
    "LinearElastic",
    "Strain",
    "Sum",
    "add_constant",
    "add_stiffness",
    "batch_last",
    "derivatives_by_autograd",
    "known_sum",
    "refuse_no_names",
    "refuse_other_stiffnesses",
    "slopes_by_autograd",
]

Strain = tuple[Tensor, ...]
OWN = "linear"  # name in a `Sum` of the term's own energy, to which others are added


def batch_last(parameter: Tensor) -> Tensor:
    """Return a parameter that broadcasts against (B, S), transposed to broadcast against (S, B)."""
    if parameter.dim() == 0:
        return parameter
    return parameter.unsqueeze(-1) if parameter.dim() == 1 else parameter.t()


class Energy(nn.Module):
    """An elastic energy density psi(strain).

    A subclass has to define `density` only: derivatives then come from autograd. One with derivatives in closed form
    sets `closed_form` and overrides `derivatives`, which is faster and can be compiled. One whose results depend on
    nothing that changes but strains, parameters and registered tensors may set `records = True` (see `forces.Force`):
    then steps can be recorded on a CPU, which take a tenth of the time for one robot.
    """

    closed_form = False
    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of parameters that a step refuses below zero
    of_strains: tuple[str, ...] = ()  # names of the only strains that it is made for; () if any will do

    def density(self, strain: Strain) -> Tensor:
        """Return psi (S, B) [J per unit of measure] of the strains, each (S, B)."""
        raise TypeError(f"{type(self).__name__} has to define density(strain)")

    def slopes(self, strain: Strain) -> list[Tensor]:
        """Return the derivatives of psi by the strains, each (S, B); differentiable where autograd is enabled."""
        if self.closed_form:
            return self.derivatives(strain)[0]
        return slopes_by_autograd(self.density, strain, self.parameters())

    def derivatives(self, strain: Strain) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the first derivatives and the matrix of second derivatives of psi; None stands for zero.

        The default differentiates `density` twice by autograd; its results cannot be differentiated further.
        """
        return derivatives_by_autograd(self.density, strain)

    def parts(self, strain: Strain) -> dict[str, Tensor]:
        """Return psi split into named parts (S, B), for reports; {} if it is reported as a whole."""
        return {}

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Raise an error if this energy does not fit a term with these strains and names of linear stiffnesses."""
        if self.of_strains and tuple(strains) != self.of_strains:
            raise InputError(
                f"{type(self).__name__}: expected a term of the strains {', '.join(self.of_strains)}, got one of "
                f"{', '.join(strains)}"
            )


class LinearElastic(Energy):
    """psi = sum_i stiffness_i strain_i^2 / 2.

    Parameters
    ----------
    stiffness : one number or tensor per strain, by the name of the constant; each broadcasts against (B, S).
        Rods: EA [N] for stretch; EI1, EI2, GJ [N m^2] for bending and twisting. The order, not the name, assigns them
        to the strains; a term whose own stiffnesses have the same names refuses them in another order.
    parts : which strains make up each reported part, e.g. {"bend": (0, 1), "twist": (2,)}.

    Raises
    ------
    InputError
        A stiffness is negative, infinite, or no number.
    """

    closed_form = True

    def __init__(self, stiffness: Mapping[str, Any], parts: Mapping[str, Sequence[int]] | None = None):
        super().__init__()
        refuse_no_names(type(self).__name__, stiffness)
        self.names = self.per_robot = self.not_negative = tuple(stiffness)
        self.part_indices = dict(parts or {})
        for name, value in stiffness.items():
            add_stiffness(self, name, value)
        for part, indices in self.part_indices.items():
            if not isinstance(indices, Iterable) or not {*indices} <= {*range(len(self.names))}:
                last = len(self.names) - 1
                raise InputError(f"LinearElastic: parts: {part}: expected indices from 0 to {last}, got {indices}")

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Refuse a term with another number of strains, or with the same stiffnesses in another order."""
        names = [name.removeprefix("viscous_") for name in self.names]
        refuse_other_stiffnesses("LinearElastic", names, strains, stiffnesses)

    def density(self, strain: Strain) -> Tensor:
        """Return sum_i k_i strain_i^2 / 2."""
        return sum(0.5 * k * s * s for k, s in zip(self._stiffness(), strain, strict=True))  # type: ignore[return-value]

    def derivatives(self, strain: Strain) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return k_i strain_i and the diagonal k_i."""
        stiffness = self._stiffness()
        first = [k * s for k, s in zip(stiffness, strain, strict=True)]
        second = [[k if i == j else None for j in range(len(strain))] for i, k in enumerate(stiffness)]
        return first, second

    def parts(self, strain: Strain) -> dict[str, Tensor]:
        """Return the densities (S, B) of the parts named at construction."""
        stiffness = self._stiffness()
        return {
            name: sum(0.5 * stiffness[i] * strain[i] ** 2 for i in indices)  # type: ignore[misc]
            for name, indices in self.part_indices.items()
        }

    def _stiffness(self) -> list[Tensor]:
        return [batch_last(getattr(self, name)) for name in self.names]


class Sum(Energy):
    """The sum of energies on the same strains, e.g. a linear material and a learned residual.

    Parameters
    ----------
    energies : by name; reports use the name for an energy that is not split into parts.
    """

    def __init__(self, energies: Mapping[str, Energy]):
        super().__init__()
        named = isinstance(energies, Mapping | nn.ModuleDict) and len(energies)
        if not named or not all(isinstance(energy, Energy) for energy in energies.values()):
            raise InputError(f"Sum: expected energies by name, such as {{'own': law, ..}}, got {shown(energies)}")
        try:
            self.energies = nn.ModuleDict(energies)
        except (KeyError, TypeError) as error:
            raise InputError(f"Sum: no energy can have this name: {error}") from error

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        """Whether the derivatives of all its energies are in closed form."""
        return all(e.closed_form for e in self._all())

    def add(self, name: str, energy: Energy) -> None:
        """Add one more energy under a new name."""
        if name in self.energies:
            raise InputError(f"energy: there is a part {name!r} already; choose another name")
        self.energies[name] = energy

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Refuse a term that one of its energies does not fit."""
        for energy in self._all():
            energy.refuse_unlike(strains, stiffnesses)

    def _all(self) -> list[Energy]:
        return cast(list[Energy], list(self.energies.values()))

    def density(self, strain: Strain) -> Tensor:
        """Return the sum of the densities."""
        densities = [e.density(strain) for e in self._all()]
        return sum(densities[1:], start=densities[0])

    def slopes(self, strain: Strain) -> list[Tensor]:
        """Return the sums of the first derivatives."""
        slopes = (e.slopes(strain) for e in self._all())
        return [sum(same[1:], start=same[0]) for same in zip(*slopes, strict=True)]

    def derivatives(self, strain: Strain) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the sums of the derivatives."""
        first, second = zip(*(e.derivatives(strain) for e in self._all()), strict=True)
        slopes = [sum(same[1:], start=same[0]) for same in zip(*first, strict=True)]
        k = len(strain)
        return slopes, [[known_sum([matrix[i][j] for matrix in second]) for j in range(k)] for i in range(k)]

    def parts(self, strain: Strain) -> dict[str, Tensor]:
        """Return the parts of all energies; an energy without parts is one part under its name."""
        parts: dict[str, Tensor] = {}
        for name, energy in zip(self.energies, self._all(), strict=True):
            for part, density in (energy.parts(strain) or {name: energy.density(strain)}).items():
                if part in parts:
                    raise InputError(f"energy: two parts of a sum are called {part!r}; give one another name")
                parts[part] = density
        return parts


def add_constant(law: nn.Module, name: str, value: Any) -> Tensor:
    """Register a copy of a number or tensor as a constant of an energy or law, and return it."""
    kind = type(law).__name__
    if hasattr(law, name) or not name.isidentifier():
        raise InputError(f"{kind}: {name!r} cannot be the name of a stiffness; choose another name")
    refuse_trained(value, f"{kind}.{name}")
    tensor = numbers(value, f"{kind}.{name}").clone()
    refuse_no_robots(tensor, f"{kind}.{name}")
    if tensor.dim() > 2:
        raise InputError(f"{kind}.{name}: expected a number, or shape (S,) or (B, S), got {tuple(tensor.shape)}")
    law.register_parameter(name, untrained(tensor))
    return tensor


def add_stiffness(law: nn.Module, name: str, value: Any) -> None:
    """Register a copy of a finite number or tensor from 0 on as a constant of an energy or law; refuse others."""
    stiffness = add_constant(law, name, value)
    wrong = stiffness[~((stiffness >= 0) & (stiffness < torch.inf))]  # NaN, too
    if len(wrong):
        raise InputError(f"{type(law).__name__}.{name}: expected 0 or more, and finite, got {float(wrong[0]):g}")


def refuse_no_names(kind: str, stiffness: object) -> None:
    """Refuse stiffnesses that are no mapping from names, or an empty one."""
    if not isinstance(stiffness, Mapping) or not stiffness or not all(isinstance(name, str) for name in stiffness):
        raise InputError(
            f"{kind}: stiffness: expected one of each strain by name, such as {{'EA': 100.0}} of stretch, got "
            f"{shown(stiffness)}"
        )


def refuse_other_stiffnesses(
    kind: str, given: Sequence[str], strains: Sequence[str], stiffnesses: Sequence[str]
) -> None:
    """Refuse stiffnesses that are not one per strain of a term, or not in the order of the term's own stiffnesses.

    Parameters
    ----------
    kind : name of the energy or law that has them, for messages.
    given : names of its stiffnesses.
    strains, stiffnesses : names of the term's strains, and of the stiffnesses of its own linear energy, () without one.
    """
    names = ", ".join(given)
    if len(strains) != len(given):
        raise InputError(
            f"{kind}: expected a stiffness for each of the term's {len(strains)} strains ({', '.join(strains)}), "
            f"got {names}; 0 is none"
        )
    if set(stiffnesses) == set(given) and list(stiffnesses) != list(given):
        raise InputError(f"{kind}: expected stiffnesses in the order {', '.join(stiffnesses)}, got {names}")


def known_sum(entries: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the entries, where None stands for zero."""
    terms = [e for e in entries if e is not None]
    return sum(terms[1:], start=terms[0]) if terms else None


def slopes_by_autograd(density: Callable[[Strain], Tensor], strain: Strain, others: Iterable[Tensor]) -> list[Tensor]:
    """Return the first derivatives of a density by the strains, each (S, B).

    If autograd is enabled, and the strains or `others` (tensors that the density depends on, too) require gradients,
    they can be differentiated further.
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (*strain, *others))
    with AutogradOn():
        variables = [s if recorded and s.requires_grad else s.detach().requires_grad_() for s in strain]
        slopes = slopes_by(variables, density(tuple(variables)), create_graph=recorded)
    return slopes if recorded else [s.detach() for s in slopes]


def derivatives_by_autograd(
    density: Callable[[Strain], Tensor], strain: Strain
) -> tuple[list[Tensor], list[list[Tensor | None]]]:
    """Return the first derivatives of a density by the strains, and the matrix of second derivatives, each (S, B).

    Stencils do not share strains, so the derivative of the sum over all stencils is the derivative of each.
    """
    with AutogradOn():
        variables = [s.detach().requires_grad_() for s in strain]
        first = slopes_by(variables, density(tuple(variables)), create_graph=True)
        second: list[list[Tensor | None]] = [[*slopes_by(variables, g, create_graph=False)] for g in first]
    return [g.detach() for g in first], second

"""The library's laws with memory: internal friction (`Dahl`), plasticity (`Plastic`), relaxation (`Maxwell`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdismech.elastic.energy import (
    Strain,
    add_constant,
    add_stiffness,
    batch_last,
    refuse_no_names,
    refuse_other_stiffnesses,
)
from torchdismech.elastic.inelastic import Inelastic, Past
from torchdismech.errors import InputError

__all__ = ["Dahl", "Maxwell", "Plastic"]


class _Springs(Inelastic):
    """A law with stresses stiffness_i z_i, where z_i, the internal variables, are strains of springs, one per strain.

    A subclass defines how the z_i follow from the strains.

    Parameters
    ----------
    stiffness : one number or tensor per strain of the term, in its order, by the names of the constants; each
        broadcasts against (B, S).
    """

    closed_form = True

    def __init__(self, stiffness: Mapping[str, Any]):
        super().__init__()
        refuse_no_names(type(self).__name__, stiffness)
        self._names = self.per_robot = self.not_negative = tuple(stiffness)
        self.variables = tuple(f"{name}_strain" for name in stiffness)
        for name, value in stiffness.items():
            add_stiffness(self, name, value)

    def refuse_unlike(self, strains: Sequence[str], stiffnesses: Sequence[str]) -> None:
        """Refuse a term with another number of strains, or with the same stiffnesses in another order."""
        refuse_other_stiffnesses(type(self).__name__, self._names, strains, stiffnesses)

    def stored(self, internal: tuple[Tensor, ...]) -> Tensor:
        """Return sum_i stiffness_i z_i^2 / 2."""
        energies = [0.5 * self._stiffness(k) * z * z for k, z in enumerate(internal)]
        return sum(energies[1:], start=energies[0])

    def _limits(self, limit: Any) -> None:
        """Register the limits of the springs' strains: a mapping by names of the stiffnesses, or one value for all."""
        kind = type(self).__name__
        limits = limit if isinstance(limit, Mapping) else dict.fromkeys(self._names, limit)
        if set(limits) != set(self._names):
            raise InputError(f"{kind}: limit: expected {', '.join(self._names)}, got {', '.join(limits) or 'nothing'}")
        for name, value in limits.items():
            limit_of_one = add_constant(self, f"{name}_limit", value)
            if not bool((limit_of_one > 0).all()):
                raise InputError(f"{kind}: limit of {name}: expected more than 0, got {float(limit_of_one.min()):g}")
        self.positive = tuple(f"{name}_limit" for name in self._names)
        self.per_robot = self.not_negative = (*self._names, *self.positive)

    def _stiffness(self, k: int) -> Tensor:
        return batch_last(getattr(self, self._names[k]))

    def _limit(self, k: int) -> Tensor:
        return batch_last(getattr(self, f"{self._names[k]}_limit"))


class _PerStrain(_Springs):
    """A law in which each z_i depends on its own strain alone. A subclass defines `_variable` and `_work`."""

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return the integral of the stresses over the strains since the start of the step."""
        works = [self._work(k, change, past) for k, change in _changes(strain, past)]
        return sum(works[1:], start=works[0])

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the stresses stiffness_i z_i, and the diagonal of their derivatives."""
        first, second = [], []
        for k, change in _changes(strain, past):
            z, slope = self._variable(k, change, past)
            first.append(self._stiffness(k) * z)
            second.append([self._stiffness(k) * slope if j == k else None for j in range(len(strain))])
        return first, second

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return the z_i after the step, each (S, B)."""
        return tuple(self._variable(k, change, past)[0] for k, change in _changes(strain, past))

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Return z_k after the strain has changed by `change`, and its derivative by the strain, each (S, B)."""
        raise NotImplementedError

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        """Return stiffness_k times the integral of z_k over the change of the strain, (S, B)."""
        raise NotImplementedError


def _changes(strain: Strain, past: Past) -> Iterator[tuple[int, Tensor]]:
    """Yield for each strain its index and its change (S, B) since the start of the step."""
    for k, (now, before) in enumerate(zip(strain, past.strain, strict=True)):
        yield k, now - before


class Dahl(_PerStrain):
    r"""Hysteresis by Dahl's law of friction: dz/de = 1 - z / limit where the strain e grows, 1 + z / limit elsewhere.

    The stress stiffness * z begins as that of a spring, and approaches stiffness * limit as fibres, strands or layers
    slide. It does not depend on the velocity. Each strain has its own friction: a round rod that is bent about an axis
    between those of its section resists by up to a factor sqrt(2) more (with `Plastic` it does not). P. R. Dahl, A
    solid friction model, 1968.

    Parameters
    ----------
    stiffness : initial stiffness, before anything slides, by name, one for each strain of the term (0 for none): of
        rods EA [N]; EI1, EI2, GJ [N m^2]. Each broadcasts against (B, S).
    limit : the value that z approaches: of stretch [1], of bending and twisting [1/m]. By the names of `stiffness`, or
        one number for all.
    """

    def __init__(self, stiffness: Mapping[str, Any], limit: Any):
        super().__init__(stiffness)
        self._limits(limit)

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        limit, way, gone = self._sliding(k, change)
        z = past.internal[k]
        # Where the strain has not changed yet, z has a kink: the slope is the mean of both sides, as autograd gives it.
        slope = (1 + gone) * (1 - torch.where(change == 0, torch.zeros_like(change), way) * z / limit)
        return z * torch.exp(-torch.abs(change) / limit) - way * limit * gone, slope

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        limit, way, gone = self._sliding(k, change)
        size = way * change / limit
        series = size * size * (0.5 - size / 6 * (1 - size / 4 * (1 - size / 5 * (1 - size / 6 * (1 - size / 7)))))
        spring = torch.where(size < 0.1, series, size + gone)  # size + gone loses its digits where size is small
        return self._stiffness(k) * limit * (limit * spring - way * past.internal[k] * gone)

    def _sliding(self, k: int, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the limit, the sign of the change (+1 for no change), and exp(-|change| / limit) - 1."""
        limit, one = self._limit(k), torch.ones_like(change)
        way = torch.where(change < 0, -one, one)
        return limit, way, torch.expm1(-way * change / limit)


class Plastic(_Springs):
    r"""Perfect plasticity: springs that yield where their strains z reach a limit, and keep their plastic strain.

    The stress of the term's own energy is added; it then acts as linear kinematic hardening. Strains that yield
    together have one yield surface, sum_i stiffness_i z_i^2 = stiffness limit^2 of the first of them, and yield along
    its normal: a round rod bends alike in all directions. The stress minimises the work in a step (radial return).

    Parameters
    ----------
    stiffness : elastic stiffness, by name, one for each strain of the term (0 for none): of rods EA [N]; EI1, EI2, GJ
        [N m^2]. Each broadcasts against (B, S).
    limit : the elastic strain z at which a spring yields: of stretch [1], of bending and twisting [1/m]. By the names
        of `stiffness`, or one number for all.
    together : names of the stiffnesses whose strains yield together, at the limit of the first; each other strain
        yields on its own.
    """

    def __init__(self, stiffness: Mapping[str, Any], limit: Any, together: Sequence[str] = ()):
        super().__init__(stiffness)
        self._limits(limit)
        if isinstance(together, str) or not isinstance(together, Iterable):
            kind = "the text " * isinstance(together, str)
            raise InputError(f"Plastic: together: expected a list of names, got {kind}{together!r}")
        if unknown := [name for name in together if name not in self._names]:
            raise InputError(f"Plastic: together: expected some of {', '.join(self._names)}, got {unknown[0]!r}")
        if len({*together}) < len(together):
            raise InputError(f"Plastic: together: expected each name once, got {', '.join(together)}")
        groups = [tuple(together)] * bool(together) + [(name,) for name in self._names if name not in together]
        self.groups = [tuple(self._names.index(name) for name in group) for group in groups]

    def density(self, strain: Strain, past: Past) -> Tensor:
        """Return the elastic energy of the springs plus the energy that yielding dissipates in the step, (S, B)."""
        trial, total = self._trial(strain, past), torch.zeros_like(strain[0])
        for group in self.groups:
            square, bound, share = self._yielding(group, trial)
            work = bound / torch.where(share > 0, share, 1.0)  # the share is 0 only where the bound is
            total = total + torch.where(share < 1, work - 0.5 * bound, 0.5 * square)
        return total

    def derivatives(self, strain: Strain, past: Past) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the stresses stiffness_i z_i, and their derivatives, which couple strains that yield together."""
        trial, count = self._trial(strain, past), len(strain)
        first: list[Any] = [None] * count
        second: list[list[Tensor | None]] = [[None] * count for _ in range(count)]
        for group in self.groups:
            square, _, share = self._yielding(group, trial)
            stress = {k: self._stiffness(k) * trial[k] for k in group}
            along = torch.where(share < 1, share / torch.where(share < 1, square, 1.0), 0.0)
            for k in group:
                first[k] = share * stress[k]
                for j in group:
                    own = share * self._stiffness(k) if j == k else 0.0
                    second[k][j] = own - along * stress[k] * stress[j]
        return first, second

    def updated(self, strain: Strain, past: Past) -> tuple[Tensor, ...]:
        """Return the z_i after the step, each (S, B): the trial strains, scaled back to the yield surface."""
        strains: list[Any] = self._trial(strain, past)
        for group in self.groups:
            _, _, share = self._yielding(group, strains)
            for k in group:
                strains[k] = share * strains[k]
        return tuple(strains)

    def _trial(self, strain: Strain, past: Past) -> list[Tensor]:
        """Return the trial strains of the springs, as if nothing yielded, each (S, B)."""
        return [past.internal[k] + change for k, change in _changes(strain, past)]

    def _yielding(self, group: tuple[int, ...], trial: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return sum_i stiffness_i z_i^2 (S, B) of a group, its bound, and the factor that scales z back to that."""
        squares = [self._stiffness(k) * trial[k] * trial[k] for k in group]
        square = sum(squares[1:], start=squares[0])
        bound = self._stiffness(group[0]) * self._limit(group[0]) * self._limit(group[0])
        beyond = square > bound
        # where nothing yields the root is taken of 1, so that its derivative is finite
        return square, bound, torch.sqrt(torch.where(beyond, bound / torch.where(beyond, square, 1.0), 1.0))


class Maxwell(_PerStrain):
    r"""Relaxation by a spring and a dashpot in series: dz/dt = de/dt - z / relaxation_time.

    The stress stiffness * z follows fast changes as that of a spring, and decays within some relaxation times: at rest
    only the stress of the term's own energy remains. Several such laws with different times make a Prony series. z is
    exact for strains that change linearly in time within a step. In `Static` all stress has relaxed.

    Parameters
    ----------
    stiffness : of the spring, by name, one for each strain of the term (0 for none): of rods EA [N]; EI1, EI2, GJ
        [N m^2]. Each broadcasts against (B, S).
    relaxation_time : viscosity of the dashpot over stiffness of the spring [s]; broadcasts against (B, S).
    """

    def __init__(self, stiffness: Mapping[str, Any], relaxation_time: Any):
        super().__init__(stiffness)
        own = add_constant(self, "relaxation_time", relaxation_time)
        if not bool((own > 0).all()):
            raise InputError(f"Maxwell: relaxation_time: expected more than 0, got {float(own.min()):g}")
        self.per_robot = self.not_negative = (*self._names, "relaxation_time")
        self.positive = ("relaxation_time",)

    def _variable(self, k: int, change: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        kept, followed = self._relaxed(past)
        return kept * past.internal[k] + followed * change, followed

    def _work(self, k: int, change: Tensor, past: Past) -> Tensor:
        kept, followed = self._relaxed(past)
        return self._stiffness(k) * change * (kept * past.internal[k] + 0.5 * followed * change)

    def _relaxed(self, past: Past) -> tuple[Tensor, Tensor]:
        """Return the factors of z at the start and of the strain's change in z at the end, for a linear change."""
        times = past.elapsed / batch_last(cast(Tensor, self.relaxation_time))
        some = times > 0
        followed = torch.where(some, -torch.expm1(-times) / torch.where(some, times, 1.0), 1.0)
        return torch.exp(-times), followed

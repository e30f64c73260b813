"""ElasticTerm: a stencil with an energy, dissipation and inelastic laws; its energies, gradients and Hessians."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdismech.elastic.corners import Corners, Entries
from torchdismech.elastic.energy import OWN, Energy, LinearElastic, Strain, batch_last, known_sum
from torchdismech.elastic.inelastic import FOREVER, Inelastic, Past
from torchdismech.elastic.stencil import Derivatives, Natural, Stencil
from torchdismech.elastic.term_constants import PresentRate, StrainRate, TermConstants
from torchdismech.errors import InputError
from torchdismech.robot.state import Control, State

__all__ = ["ElasticTerm", "number_equal"]


Strains = Callable[[Tensor, TermConstants], tuple[Tensor, ...]]  # (q (n, B), constants) -> strains, each (S, B)


class ElasticTerm(nn.Module):
    r"""E = sum over stencils of measure * psi((strain - natural) / scale).

    With a `dissipation` D(rate) [W per unit of measure], power is dissipated at the strain rates d(strain / scale)/dt.
    In a step of length dt from strain_0 it adds measure * dt * D((strain - strain_0) / (scale * dt)) to the potential:
    its derivative by the strain is the viscous stress dD/d(rate), and the matrix of the step stays symmetric.
    Integrators of second order use another time and another strain_0, so that the rate is of second order, too
    (`StrainRate`).

    With `corners`, energy, dissipation and inelastic laws are functions of P (strain - natural) / scale and its rates.
    Strains in reports and natural strains in controls are without P.

    Parameters
    ----------
    name : of the term, in reports and among the model's constants.
    stencil, energy : geometry and material.
    measure : the length, area, ... of each spring by which densities are multiplied; broadcasts against (B, S). None:
        the stencil's rest length, which a control may change.
    scale : divisor that turns a stencil's strain into that of the energy, e.g. the Voronoi length for curvatures; None
        means 1.
    natural : the natural strains, one tensor (broadcasting against (B, S)) per strain, or None for zero.
    controlled : controlled(control, natural) returns the natural strains that a `Control` sets, and `natural` where it
        sets none; None if controls do not set them.
    dissipation : D as an `Energy` of the rates, convex with its minimum at zero; None for no damping.
    corners : the matrices P; None if all are the identity.

    Attributes
    ----------
    stiffnesses : names of the stiffnesses of the `LinearElastic` energy that the term was made with, one for each
        strain; () for other energies.
    inelastic : laws with memory, by name, whose stresses are added to those of the energy (see `add_inelastic`).
    first_internal : where the internal variables of these laws begin in `State.internal`; the model sets it.
    """

    measure: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        name: str,
        stencil: Stencil,
        energy: Energy,
        measure: Tensor | None,
        scale: Tensor | None = None,
        natural: tuple[Tensor | None, ...] | None = None,
        controlled: Callable[[Control, Natural], Natural] | None = None,
        dissipation: Energy | None = None,
        corners: Corners | None = None,
    ):
        super().__init__()
        self.name = name
        self.inelastic = nn.ModuleDict()
        self.first_internal = 0
        self.stencil = stencil
        self.energy = energy
        self.stiffnesses = energy.names if isinstance(energy, LinearElastic) else ()
        self.dissipation = dissipation
        self.corners = corners
        self.controlled = controlled
        self.register_buffer("measure", measure)
        self.register_buffer("scale", scale)
        natural = natural or (None,) * len(stencil.strains)
        for strain, value in zip(stencil.strains, natural, strict=True):
            self.register_buffer(f"natural_{strain}", value)
        for law in (energy, dissipation):
            if law is not None:
                self.refuse_unlike(law)

    @property
    def per_robot(self) -> tuple[str, ...]:
        """Names of the term's own tensors that may have a leading robot dimension."""
        return ("measure", "scale", *(f"natural_{s}" for s in self.stencil.strains))

    @property
    def closed_form(self) -> bool:
        """Whether all derivatives are in closed form, none by autograd."""
        parts = (self.stencil, self.energy, self.dissipation, *self.inelastic.values())
        return all(part.closed_form for part in parts if part is not None)

    def add_inelastic(self, name: str, law: Inelastic) -> None:
        """Add a material law with memory; refuse one that does not fit the strains and stiffnesses of this term."""
        self.refuse_unlike(law)
        self.inelastic[name] = law

    def refuse_unlike(self, law: Energy | Inelastic) -> None:
        """Refuse an energy, a dissipation or a law that does not fit the strains and stiffnesses of this term."""
        law.refuse_unlike(self.stencil.strains, self.stiffnesses)

    @property
    def laws(self) -> list[Inelastic]:
        """The inelastic laws, in their order."""
        return cast(list[Inelastic], list(self.inelastic.values()))

    # ---- evaluation --------------------------------------------------------------------------------------------

    def constants(
        self,
        state: State,
        control: Control,
        elapsed: float | Tensor | None = None,
        equilibrium: bool = False,
        strains: Strains | None = None,
        rate: StrainRate | PresentRate | None = None,
    ) -> TermConstants:
        """Return the constants of the term for a step that starts at `state`.

        Parameters
        ----------
        elapsed : time [s] from the start of the step to where forces are evaluated; None: nothing dissipates, unless
            `rate` is a `PresentRate`.
        equilibrium : whether an equilibrium is sought, for which laws with relaxation have relaxed entirely.
        strains : function that evaluates `elastic_strains`, e.g. by compiled code; by default the method itself.
        rate : how strain rates are measured; None: as the difference from the strains at `state`, over `elapsed`.
        """
        natural: Natural = [getattr(self, f"natural_{s}") for s in self.stencil.strains]
        if self.controlled is not None:
            natural = self.controlled(control, natural)
        stencil = self.stencil.constants(state, control)
        constants = TermConstants(
            tuple(None if n is None else batch_last(n).contiguous() for n in natural),
            stencil[0] if self.measure is None else batch_last(self.measure).contiguous(),
            None if self.scale is None else batch_last(self.scale).contiguous(),
            stencil,
        )
        strains = self.elastic_strains if strains is None else strains
        if self.inelastic:
            constants.before = strains(state.q.t().contiguous(), constants)
        if isinstance(rate, PresentRate):
            if self.dissipation is not None:
                constants.rate_from = self._strains_before(state, constants, rate.time)
                constants.rate_time = state.q.new_tensor(rate.time)
        elif self.dissipation is not None and elapsed is not None:
            rate = StrainRate(elapsed, (1.0,), (state.q,)) if rate is None else rate
            strains_before = [strains(q.t().contiguous(), constants) for q in rate.points]
            constants.rate_from, constants.rate_time = _weighted(rate.weights, strains_before), rate.time
        if self.inelastic:
            constants.internal = self.internal(state)
            law_time = FOREVER if equilibrium else 0.0 if elapsed is None else elapsed
            constants.elapsed = law_time if isinstance(law_time, Tensor) else state.q.new_full((), law_time)
        return constants

    def _strains_before(self, state: State, constants: TermConstants, time: float) -> tuple[Tensor, ...]:
        """Return the elastic strains, each (S, B), extrapolated to `time` [s] before a state by their rates there."""
        strains, first, _ = self._derivatives(state.q.t().contiguous(), constants)
        moving, strains_then = self.stencil.local(state.velocity.t().contiguous()), []
        for strain, slopes in zip(self.scaled(strains, constants), first, strict=True):
            rate = sum((slope * part for slope, part in zip(slopes, moving, strict=True)), torch.zeros_like(strain))
            strains_then.append(strain - time * (rate if constants.scale is None else rate / constants.scale))
        return tuple(strains_then)

    def internal(self, state: State) -> tuple[tuple[Tensor, ...], ...]:
        """Return the internal variables of each inelastic law at a state, each (S, B)."""
        if state.internal is None:
            raise InputError(
                f"State.internal: {self.name} remembers, and this state has no internal variables; take one from "
                "model.initial_state()"
            )
        counts = [len(law.variables) for law in self.laws]
        of_term = state.internal.narrow(1, self.first_internal, sum(counts) * self.stencil.count)
        rows = iter(of_term.t().contiguous().unflatten(0, (-1, self.stencil.count)).unbind())
        return tuple(tuple(next(rows) for _ in range(count)) for count in counts)

    def updated(self, strain: tuple[Tensor, ...], constants: TermConstants, elapsed: Tensor) -> list[Tensor]:
        """Return the internal variables of all inelastic laws, each (S, B), after a step to elastic strains (S, B).

        Parameters
        ----------
        elapsed : () duration of the whole step [s], while that in `constants` may end where forces are evaluated.
        """
        variables: list[Tensor] = []
        law_strain = self._with_corners(strain)
        for law, past in zip(self.laws, self._pasts(constants), strict=True):
            variables += law.updated(law_strain, dataclasses.replace(past, elapsed=elapsed))
        return variables

    def _pasts(self, constants: TermConstants) -> list[Past]:
        """Return for each inelastic law its `Past`: strains, internal variables and elapsed time of the step."""
        if not constants.internal:
            return []
        assert constants.before is not None and constants.elapsed is not None
        before = self._with_corners(constants.before)
        return [Past(before, internal, constants.elapsed) for internal in constants.internal]

    def parts(self, q: Tensor, constants: TermConstants) -> dict[str, Tensor]:
        """Return the energy of each spring, split into parts by name, each (S, B) [J].

        The parts of inelastic laws are those that their internal variables in `constants` store, whatever q is.
        """
        law_strain = self._with_corners(self.elastic_strains(q, constants))
        parts = self.energy.parts(law_strain) or {OWN: self.energy.density(law_strain)}
        parts = {self._reported(name): density for name, density in parts.items()}
        for (name, law), internal in zip(self.inelastic.items(), constants.internal, strict=True):
            parts[f"{self.name}.{name}"] = cast(Inelastic, law).stored(internal)
        return {name: constants.measure * density for name, density in parts.items()}

    @torch.no_grad()
    def part_names(self, like: Tensor) -> list[str]:
        """Return the names of `parts`, found by evaluating unstrained springs; `like` gives dtype and device."""
        unstrained = (like.new_zeros(self.stencil.count, 1),) * len(self.stencil.strains)
        names = map(self._reported, self.energy.parts(unstrained) or [OWN])
        return [*names, *(f"{self.name}.{name}" for name in self.inelastic)]

    def _reported(self, part: str) -> str:
        """Return the name in reports of a part of the energy; the term's own energy has the name of the term."""
        return self.name if part == OWN else part

    def potential(self, q: Tensor, constants: TermConstants) -> Tensor:
        """Return the potential (B,) of the term's force [J]: elastic energy plus the potential of dissipation."""
        return (constants.measure * self.densities(q, constants)).sum(0)

    def densities(self, q: Tensor, constants: TermConstants) -> Tensor:
        """Return the potential of each spring per unit of measure, with dissipation and inelastic laws, (S, B)."""
        strain = self.elastic_strains(q, constants)
        law_strain = self._with_corners(strain)
        density = self.energy.density(law_strain)
        if constants.rate_time is not None:
            rate = self._with_corners(_rate(strain, constants))
            density = density + constants.rate_time * self.dissipation.density(rate)  # type: ignore[union-attr]
        for law, past in zip(self.laws, self._pasts(constants), strict=True):
            density = density + law.density(law_strain, past)
        return density

    def strains(self, q: Tensor, constants: TermConstants) -> tuple[Tensor, ...]:
        """Return the stencil's strains, each (S, B), neither scaled nor less the natural strains."""
        return self.stencil.strain(self.stencil.local(q), *constants.stencil)

    def _derivatives(self, q: Tensor, constants: TermConstants) -> Derivatives:
        """Return the stencil's strains and their derivatives, in the plane if the robots lie in one."""
        local = self.stencil.local(q)
        if constants.plane is None:
            return self.stencil.derivatives(local, *constants.stencil)
        return self.stencil.derivatives_in_plane(constants.plane, local, *constants.stencil)

    def scaled(self, strains: Sequence[Tensor], constants: TermConstants) -> tuple[Tensor, ...]:
        """Return the elastic strains (strain - natural) / scale, each (S, B), from strains of the stencil."""
        elastic = []
        for strain, natural in zip(strains, constants.natural, strict=True):
            value = strain if natural is None else strain - natural
            elastic.append(value if constants.scale is None else value / constants.scale)
        return tuple(elastic)

    def _with_corners(self, strain: Strain) -> Strain:
        """Return elastic strains, or rates, as energies and laws are given them: times P if there are corners."""
        return strain if self.corners is None else self.corners.strains(strain)

    def _stresses(self, strain: Strain, constants: TermConstants) -> list[Tensor]:
        """Return the derivatives of `densities` by the elastic strains, each (S, B)."""
        law_strain = self._with_corners(strain)
        stresses = self._slopes(self.energy.slopes(law_strain))
        if constants.rate_time is not None:
            rate = self._with_corners(_rate(strain, constants))
            viscous = self._slopes(self.dissipation.slopes(rate))  # type: ignore[union-attr]
            stresses = _added(stresses, viscous)
        for law, past in zip(self.laws, self._pasts(constants), strict=True):
            stresses = _added(stresses, self._slopes(law.slopes(law_strain, past)))
        return stresses

    def _stresses_and_stiffness(self, strain: Strain, constants: TermConstants) -> tuple[list[Tensor], Entries]:
        """Return the first and second derivatives of `densities` by the elastic strains, each (S, B)."""
        law_strain, time = self._with_corners(strain), constants.rate_time
        stresses, stiffness = self._by_strains(*self.energy.derivatives(law_strain))
        if time is not None:
            rate = self._with_corners(_rate(strain, constants))
            viscous, by_rate = self._by_strains(*self.dissipation.derivatives(rate))  # type: ignore[union-attr]
            stresses = _added(stresses, viscous)
            stiffness = _sums(stiffness, [[None if r is None else r / time for r in row] for row in by_rate])
        for law, past in zip(self.laws, self._pasts(constants), strict=True):
            own_stresses, own_stiffness = self._by_strains(*law.derivatives(law_strain, past))
            stresses, stiffness = _added(stresses, own_stresses), _sums(stiffness, own_stiffness)
        return stresses, stiffness

    def _slopes(self, slopes: list[Tensor]) -> list[Tensor]:
        """Return derivatives by the elastic strains, each (S, B), from those by P strain."""
        return slopes if self.corners is None else self.corners.slopes(slopes)

    def _by_strains(self, slopes: list[Tensor], curvatures: Entries) -> tuple[list[Tensor], Entries]:
        """Return first and second derivatives by the elastic strains, from those by P strain."""
        if self.corners is None:
            return slopes, curvatures
        return self.corners.slopes(slopes), self.corners.stiffness(curvatures)

    def elastic_strains(self, q: Tensor, constants: TermConstants) -> tuple[Tensor, ...]:
        """Return the elastic strains (strain - natural) / scale at q (n, B), each (S, B), without corner matrices."""
        return self.scaled(self.strains(q, constants), constants)

    def gradient(self, q: Tensor, constants: TermConstants) -> list[Tensor]:
        """Return the gradient of `potential` by the k local variables at q (n, B), each (S, B)."""
        strains, first, _ = self._derivatives(q, constants)
        stresses = self._stresses(self.scaled(strains, constants), constants)
        factor = constants.measure if constants.scale is None else constants.measure / constants.scale
        return _combined(first, [factor * stress for stress in stresses])

    def gradient_and_hessian(
        self, q: Tensor, constants: TermConstants, wanted: Sequence[int] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return gradient and Hessian of `potential` by local variables at q (n, B), lists of tensors (S, B).

        The Hessian is in the order of `stencil.pairs`. Where autograd is enabled, the gradient can be differentiated
        further; the Hessian cannot.

        Parameters
        ----------
        wanted : indices of the pairs to compute; None for all.
        """
        strains, first, second = self._derivatives(q, constants)
        stresses, stiffness = self._stresses_and_stiffness(self.scaled(strains, constants), constants)
        factor = constants.measure if constants.scale is None else constants.measure / constants.scale
        slopes = [factor * stress for stress in stresses]
        gradient = _combined(first, slopes)
        with torch.no_grad():
            factor = factor if constants.scale is None else factor / constants.scale
            # For each strain i with any second derivative of psi: d strain_i / d variable_a, and
            # row[a] = sum_j psi_ij d strain_j / d variable_a.
            rows = [
                (f, _combined(first, [None if c is None else factor * c for c in row]))
                for f, row in zip(first, stiffness, strict=True)
                if any(c is not None for c in row)
            ]
            from_strains, pairs, hessian = second(*slopes), self.stencil.pairs, []
            for k in range(len(pairs)) if wanted is None else wanted:
                a, b = pairs[k]
                hessian.append(sum((f[a] * row[b] for f, row in rows), start=from_strains[k]))
        return gradient, hessian


def number_equal(terms: Iterable[Any]) -> None:
    """Number the names of terms that repeat the name of an earlier one: "magnetic", "magnetic2"."""
    counts: dict[str, int] = {}
    for term in terms:
        counts[term.name] = counts.get(term.name, 0) + 1
        if counts[term.name] > 1:
            term.name = f"{term.name}{counts[term.name]}"


def _rate(strain: tuple[Tensor, ...], constants: TermConstants) -> tuple[Tensor, ...]:
    """Return the rates of elastic strains, each (S, B), as the difference quotient that the constants define."""
    assert constants.rate_from is not None and constants.rate_time is not None
    return tuple((now - then) / constants.rate_time for now, then in zip(strain, constants.rate_from, strict=True))


def _weighted(weights: Sequence[float], strains: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the weighted sum of strains over several q, for each strain."""
    if len(strains) == 1:
        return strains[0]
    return tuple(
        sum(w * s for w, s in zip(weights, of_strain, strict=True)) for of_strain in zip(*strains, strict=True)
    )


def _added(one: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _sums(one: Entries, other: Entries) -> Entries:
    """Return the sum of two matrices of tensors, in which None stands for zero."""
    return [[known_sum(pair) for pair in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


def _combined(first: list[list[Tensor]], weights) -> list[Tensor]:
    """Return sum_i weights_i d strain_i / d variable_a for each variable a; a weight None stands for zero."""
    combined = []
    for a in range(len(first[0])):
        parts = [w * f[a] for w, f in zip(weights, first, strict=True) if w is not None]
        combined.append(sum(parts[1:], start=parts[0]) if parts else torch.zeros_like(first[0][a]))
    return cast(list[Tensor], combined)

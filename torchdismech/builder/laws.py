"""Energies, dissipations, inelastic laws and terms that users add to a robot."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from torchdismech.builder.given import (
    TERMS,
    check_density,
    check_module,
    check_part,
    check_term,
    refuse_unlike_term,
)
from torchdismech.builder.planar import stiffnesses_in
from torchdismech.elastic import ElasticTerm, Energy, Inelastic, Sum
from torchdismech.elastic.energy import OWN
from torchdismech.errors import InputError

__all__ = ["Laws"]

RESIDUAL = "residual"  # an energy that is added without a name


class Laws:
    """What users add to the elastic terms of a robot, checked as it comes; the methods of a builder describe it.

    Parameters
    ----------
    refuse_out_of_plane : refuses stiffnesses that a planar robot does not feel, by the method that was given them and
        by their names.

    Attributes
    ----------
    terms : of the user's own.
    """

    def __init__(self, refuse_out_of_plane: Callable[[str, list[str]], None]) -> None:
        self._refuse_out_of_plane = refuse_out_of_plane
        self.terms: list[ElasticTerm] = []
        self._replacements: dict[str, Energy] = {}
        self._energies: list[tuple[str, str | None, Energy]] = []
        self._dissipations: list[tuple[str, Energy]] = []
        self._inelastic: list[tuple[str, str, Inelastic]] = []

    def add_term(self, term: ElasticTerm) -> None:
        """Take a term, whose name no other has."""
        check_module("add_term", term, ElasticTerm, "an elastic.ElasticTerm")
        if term.name in {*TERMS, *(t.name for t in self.terms)}:
            raise InputError(f"add_term: there is an elastic term named {term.name!r} already; choose another name")
        self.terms.append(term)

    def add_energy(self, name: str, energy: Energy, part: str | None) -> None:
        """Take an energy that is added to that of the term `name`, by the name `part`."""
        check_term("add_energy", name)
        check_density("add_energy", energy)
        if part is not None:
            check_part("add_energy", part)
        if part == OWN:
            raise InputError(f"add_energy: {OWN!r} is the name of the term's own energy; choose another name")
        self._energies.append((name, part, energy))

    def replace_energy(self, name: str, energy: Energy) -> None:
        """Take an energy in place of that of the term `name`."""
        check_term("replace_energy", name)
        check_density("replace_energy", energy)
        if name in self._replacements:
            raise InputError(f"replace_energy: the energy of {name} is replaced already; add the second by add_energy")
        self._replacements[name] = energy

    def add_dissipation(self, name: str, dissipation: Energy) -> None:
        """Take a dissipation of the term `name`."""
        check_term("add_dissipation", name)
        check_density("add_dissipation", dissipation)
        if name == "bend_twist":
            self._refuse_out_of_plane("add_dissipation: ", stiffnesses_in(dissipation))
        self._dissipations.append((name, dissipation))

    def add_inelastic(self, name: str, law: Inelastic, part: str | None) -> None:
        """Take an inelastic law of the term `name`, by the name `part`, which no other of that term has."""
        check_term("add_inelastic", name)
        check_module("add_inelastic", law, Inelastic, "a law (elastic.Inelastic)")
        if name == "bend_twist":
            self._refuse_out_of_plane("add_inelastic: ", stiffnesses_in(law))
        part = type(law).__name__.lower() if part is None else part
        check_part("add_inelastic", part)
        if any((name, part) == (of, taken) for of, taken, _ in self._inelastic):
            raise InputError(f"add_inelastic: {name} has a law called {part!r} already; choose another name")
        self._inelastic.append((name, part, law))

    def modules(self) -> list[nn.Module]:
        """Return all that was given, terms last."""
        energies = [*self._replacements.values(), *(energy for *_, energy in self._energies)]
        dissipations = (dissipation for _, dissipation in self._dissipations)
        inelastic = (law for *_, law in self._inelastic)
        return [*energies, *dissipations, *inelastic, *self.terms]

    def put_into(self, terms: dict[str, ElasticTerm]) -> None:
        """Give each of a robot's terms, by their names, the energies, dissipations and inelastic laws for it."""
        added = [*self._energies, *self._dissipations, *self._inelastic]
        for name in {*self._replacements, *(n for n, *_ in added)} - set(terms):
            raise InputError(f"this robot has no term {name!r}; it has: {', '.join(terms)}")
        self._put_energies_into(terms)
        for k, (name, dissipation) in enumerate(self._dissipations):
            refuse_unlike_term(dissipation, terms[name])
            present = terms[name].dissipation
            if present is not None:
                dissipation = Sum({f"present{k}": present, f"added{k}": dissipation})
            terms[name].dissipation = dissipation
        for name, part, law in self._inelastic:
            terms[name].add_inelastic(part, law)

    def _put_energies_into(self, terms: dict[str, ElasticTerm]) -> None:
        """Replace the terms' energies first, then add to them."""
        for name, energy in self._replacements.items():
            refuse_unlike_term(energy, terms[name])
            terms[name].energy = energy
        alone = [part in (None, RESIDUAL) for _, part, _ in self._energies].count(True) == 1
        for name, part, energy in self._energies:
            refuse_unlike_term(energy, terms[name])
            own, part = terms[name].energy, part or (RESIDUAL if alone else f"{name}_{RESIDUAL}")
            if isinstance(own, Sum):
                own.add(part, energy)
            else:
                terms[name].energy = Sum({OWN: own, part: energy})

"""Laws: collects the energies, dissipations, inelastic laws and terms that users add to a robot, and installs them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from torchdismech.builder.argument_checks import (
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

RESIDUAL = "residual"  # name of an energy that is added without one


class Laws:
    """The user's additions to the elastic terms of a robot; each is checked when it is added.

    Its methods do the work of the methods of `RobotBuilder` with the same names, which describe the arguments.

    Parameters
    ----------
    refuse_out_of_plane : refuse_out_of_plane(method, names) refuses stiffnesses that have no effect on a planar robot;
        `method`, the one that they were given to, is for the message.

    Attributes
    ----------
    terms : the user's own elastic terms.
    """

    def __init__(self, refuse_out_of_plane: Callable[[str, list[str]], None]) -> None:
        self._refuse_out_of_plane = refuse_out_of_plane
        self.terms: list[ElasticTerm] = []
        self._replacements: dict[str, Energy] = {}
        self._energies: list[tuple[str, str | None, Energy]] = []
        self._dissipations: list[tuple[str, Energy]] = []
        self._inelastic: list[tuple[str, str, Inelastic]] = []

    def add_term(self, term: ElasticTerm) -> None:
        """Store a term; refuse one with a name that is taken."""
        check_module("add_term", term, ElasticTerm, "an elastic.ElasticTerm")
        if term.name in {*TERMS, *(t.name for t in self.terms)}:
            raise InputError(f"add_term: there is an elastic term named {term.name!r} already; choose another name")
        self.terms.append(term)

    def add_energy(self, name: str, energy: Energy, part: str | None) -> None:
        """Store an energy to be added to that of the term `name`, under the name `part`."""
        check_term("add_energy", name)
        check_density("add_energy", energy)
        if part is not None:
            check_part("add_energy", part)
        if part == OWN:
            raise InputError(f"add_energy: {OWN!r} is the name of the term's own energy; choose another name")
        self._energies.append((name, part, energy))

    def replace_energy(self, name: str, energy: Energy) -> None:
        """Store an energy to replace that of the term `name`."""
        check_term("replace_energy", name)
        check_density("replace_energy", energy)
        if name in self._replacements:
            raise InputError(f"replace_energy: the energy of {name} is replaced already; add the second by add_energy")
        self._replacements[name] = energy

    def add_dissipation(self, name: str, dissipation: Energy) -> None:
        """Store a dissipation to be added to the term `name`."""
        check_term("add_dissipation", name)
        check_density("add_dissipation", dissipation)
        if name == "bend_twist":
            self._refuse_out_of_plane("add_dissipation: ", stiffnesses_in(dissipation))
        self._dissipations.append((name, dissipation))

    def add_inelastic(self, name: str, law: Inelastic, part: str | None) -> None:
        """Store an inelastic law for the term `name`, under the name `part`; refuse one that this term has already."""
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
        """Return all modules that were added, terms last."""
        energies = [*self._replacements.values(), *(energy for *_, energy in self._energies)]
        dissipations = (dissipation for _, dissipation in self._dissipations)
        inelastic = (law for *_, law in self._inelastic)
        return [*energies, *dissipations, *inelastic, *self.terms]

    def put_into(self, terms: dict[str, ElasticTerm]) -> None:
        """Install the stored energies, dissipations and inelastic laws in a robot's terms, given by their names."""
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
        """Install the replaced energies first, then the added ones, so that an addition survives a replacement."""
        for name, energy in self._replacements.items():
            refuse_unlike_term(energy, terms[name])
            terms[name].energy = energy
        alone = [part in (None, RESIDUAL) for _, part, _ in self._energies].count(True) == 1
        for name, part, energy in self._energies:
            refuse_unlike_term(energy, terms[name])
            present, part = terms[name].energy, part or (RESIDUAL if alone else f"{name}_{RESIDUAL}")
            # a Sum that was given stays as it is, for another call after a refusal
            parts = [*present.energies.items()] if type(present) is Sum else [(OWN, present)]
            whole = Sum(dict(parts))  # type: ignore[arg-type]
            whole.add(part, energy)
            terms[name].energy = whole

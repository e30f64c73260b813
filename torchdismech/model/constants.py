"""The constants of a robot by name, which an optimiser may train and a control may set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torchdismech.contact import Obstacle
from torchdismech.contact.law import ConstraintLaw, ContactLaw
from torchdismech.elastic import Corners, ElasticTerm, Energy, Inelastic, LinearElastic, Stencil, Sum
from torchdismech.errors import InputError
from torchdismech.forces.base import Force
from torchdismech.magnetics.force import Magnetised
from torchdismech.origin import class_name
from torchdismech.values import Place

__all__ = [
    "constants",
    "constants_in",
    "constants_of_contact",
    "constants_of_obstacles",
    "named_forces",
    "raise_unlike_batches",
]

CONTACT_RADII = ("edge_contact_radius", "face_contact_radius")  # no constants: contact reads them once, at the start


@torch.no_grad()
def constants(model: Any) -> dict[str, Place]:
    """Return the constants of a model by name, each as (module, attribute).

    Elastic terms: "bend_twist.EI1", "bend_twist.natural_kappa1", "stretch.rest_length", dissipation
    "bend_twist.viscous_EI1", "midedge.viscous_stiffness", laws of materials with memory "bend_twist.dahl.EI1"; forces:
    "Gravity.acceleration", with a number for the second of a kind ("Viscous2.viscosity"), of a magnetic field
    "Magnetic.field.amplitude"; the body: "mass" and sizes, "edge_length", "edge_radius", "node_volume", ..., which only
    loads read, such as drag and buoyancy.

    Contact, by the obstacle's name: of its law "floor.stiffness", "floor.tolerance", "floor.friction" (the
    coefficient), "floor.static_friction", "floor.forward_friction", "floor.backward_friction", "floor.slip_velocity",
    "floor.release"; of its shape "floor.point", "ball.radius", ..., and "ball.shape.stiffness" where the law has the
    same name, too; where a `Path` moves it, "ball.displacements". Then "self_contact.stiffness", ..., or with several
    contacts between parts by their names. Contact radii are not among them: contact reads them once, when the model is
    made.

    Raises
    ------
    InputError
        The name of an obstacle or a contact makes two names of constants equal.
    """
    places: dict[str, Place] = {name: (model.body, name) for name in model.body.per_robot if name not in CONTACT_RADII}
    for term in model.terms:
        for strain in term.stencil.strains:
            places[f"{term.name}.natural_{strain}"] = (term, f"natural_{strain}")
        for label, part, name in constants_in(term):
            if isinstance(part, (Stencil, Energy, Inelastic, Corners)) and name in part.per_robot:
                places[label] = (part, name)
    for label, force in named_forces(model):
        places.update({f"{label}.{name}": (force, name) for name in force.per_robot})
        if isinstance(force, Magnetised):
            places.update({f"{label}.field.{name}": (force.field, name) for name in force.field.per_robot})
    of_contact = constants_of_contact(model)
    if twice := sorted(places.keys() & of_contact.keys()):
        raise InputError(f"two constants are called {twice[0]!r}; give the obstacle or contact another name")
    return {name: (m, a) for name, (m, a) in (places | of_contact).items() if getattr(m, a) is not None}


def named_forces(model: Any) -> Iterator[tuple[str, Force]]:
    """Yield (beginning of its constants' names, force) for each force of a model, without obstacles."""
    kinds: dict[str, int] = {}
    for force in model.forces:
        if not isinstance(force, Obstacle):
            kind = class_name(force)
            kinds[kind] = kinds.get(kind, 0) + 1
            yield kind if kinds[kind] == 1 else f"{kind}{kinds[kind]}", force


def constants_in(term: ElasticTerm) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (name, module, attribute) for the constants of an elastic term.

    A dissipation's constants would often be called as those of the energy: they begin with "viscous_". A name that
    still occurs twice, as with a material's relaxation time and `add_dissipation`, gets a number.
    """
    viscous = set() if term.dissipation is None else {id(part) for part in term.dissipation.modules()}
    used: set[str] = set()
    for beginning, part in _parts_of(term):
        for attribute in dict.fromkeys((*getattr(part, "per_robot", ()), *getattr(part, "not_negative", ()))):
            names = [attribute]
            if id(part) in viscous:  # a `LinearElastic` keeps its names, which its user has chosen, if they are free
                prefixed = f"viscous_{attribute.removeprefix('viscous_')}"
                names = [*names, prefixed] if isinstance(part, LinearElastic) else [prefixed]
            names += [f"{names[-1]}_{k}" for k in range(2, len(used) + 3)]
            label = next(f"{beginning}.{name}" for name in names if f"{beginning}.{name}" not in used)
            used.add(label)
            yield label, part, attribute


def _parts_of(term: ElasticTerm) -> Iterator[tuple[str, nn.Module]]:
    """Yield (beginning of its constants' names, module) for the modules in an elastic term that have constants."""
    laws = {id(part) for part in term.inelastic.modules()}
    own = (part for part in term.modules() if id(part) not in laws and part is not term and not isinstance(part, Sum))
    yield from ((term.name, part) for part in own)
    for name, law in term.inelastic.items():
        yield from ((f"{term.name}.{name}", part) for part in law.modules())


def constants_of_contact(model: Any) -> dict[str, Place]:
    """Return the constants of obstacles and of contact between parts by name, including those that are None."""
    places = constants_of_obstacles(model.obstacles)
    for contact in model.self_contacts:
        places |= {f"{contact.name}.{name}": owner for name, owner in _of_law(contact.law).items()}
    return places


def constants_of_obstacles(obstacles: Iterable[Obstacle]) -> dict[str, Place]:
    """Return the constants of obstacles by name, including those that are None; names are as in `constants`."""
    places: dict[str, Place] = {}
    for obstacle in obstacles:
        law = _of_law(obstacle.law)
        places |= {f"{obstacle.name}.{name}": owner for name, owner in law.items()}
        for name in obstacle.shape.per_robot:
            label = f"shape.{name}" if name in law else name
            places[f"{obstacle.name}.{label}"] = (obstacle.shape, name)
        if obstacle.path is not None:
            is_taken = f"{obstacle.name}.displacements" in places  # where a user's shape has a tensor of that name
            places[f"{obstacle.name}.{'path.' * is_taken}displacements"] = (obstacle.path, "displacements")
    return places


def _of_law(law: ContactLaw | ConstraintLaw) -> dict[str, Place]:
    """Return the constants of a law by name, but no constraint's tolerance, which only says how well it is solved."""
    places: dict[str, Place] = {}
    if isinstance(law, ContactLaw):
        places = {name: (law.response, name) for name in law.response.per_robot}
    if law.friction is not None:
        places |= {"friction": (law.friction, "coefficient"), "static_friction": (law.friction, "static")}
        places |= {f"{way}_friction": (law.friction, f"{way}_coefficient") for way in ("forward", "backward")}
        places |= {name: (law.friction, name) for name in ("slip_velocity", "release")}
    return places


def raise_unlike_batches(sizes: Mapping[int, Place], constants: Mapping[str, Place]) -> None:
    """Raise the error that constants are given for different numbers of robots, naming one constant for each number.

    Parameters
    ----------
    sizes : the numbers of robots, with a place that has it for each.
    constants : of the model by name, to name the places.
    """
    names = {(id(module), name): label for label, (module, name) in constants.items()}
    texts = [
        f"{names.get((id(module), name), f'{class_name(module)}.{name}')} for {count}"
        for count, (module, name) in sorted(sizes.items())
    ]
    raise InputError(
        f"the model's parameters are given for different numbers of robots: {', '.join(texts)}; give each "
        "for as many, or one number for all"
    )

"""Checks of arguments of `RobotBuilder`: names, parts, choices, devices, energy densities, odd units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from torchdismech.builder.elements import refuse_lost
from torchdismech.elastic import ElasticTerm, Energy
from torchdismech.errors import InputError, check_choice, name_in_files, refuse_other_kind, warn
from torchdismech.forces import Force, Gravity
from torchdismech.robot.materials import Material
from torchdismech.values import tensor_of

__all__ = [
    "TERMS",
    "check_density",
    "check_device",
    "check_module",
    "check_name",
    "check_part",
    "check_term",
    "refuse_lost_stiffness",
    "refuse_unlike_term",
    "warn_of_two_weights",
    "warn_of_units",
]

TERMS = ("stretch", "bend_twist", "membrane", "hinge", "midedge")  # names of the elastic terms that the builder makes

SOFTEST = 1e3  # Pa: gels and brain are as soft
LIGHTEST, HEAVIEST = 10.0, 1e5  # kg/m^3: aerogels apart, foams are 20; platinum is 2e4


def warn_of_units(materials: Iterable[tuple[Material, bool]]) -> None:
    """Warn of the first material whose density or modulus looks as if given in other units.

    Parameters
    ----------
    materials : each with whether its modulus is used: not so where all stiffnesses are given explicitly.
    """
    warnings = (warning for material, modulus in materials for warning in _odd_units(material, modulus))
    if warning := next(warnings, None):
        warn(f"material: {warning}; or, if that is meant, warnings.filterwarnings('ignore', 'material: ')")


def warn_of_two_weights(forces: Iterable[Force]) -> None:
    """Warn where a robot has more than one force `Gravity`."""
    weights = [force.acceleration.detach() for force in forces if type(force) is Gravity]
    if len(weights) > 1:
        same = all(weight.shape == weights[0].shape and weight.equal(weights[0]) for weight in weights)
        warn(
            f"add_force: {len(weights)} forces Gravity act on the robot{', alike' * same}, and add up: leave one out, "
            "or add their accelerations; or, if that is meant, warnings.filterwarnings('ignore', 'add_force: ')"
        )


def _odd_units(material: Material, modulus: bool) -> Iterator[str]:
    youngs, density = (tensor_of(value) for value in (material.youngs, material.density))
    if modulus and bool((youngs < SOFTEST).any()):
        yield (
            f"Young's modulus is {float(youngs.min()):.4g} Pa, softer than any gel ({SOFTEST:g} Pa): give it in Pa, "
            "1 MPa is 1e6"
        )
    for odd, than in (
        (density.min(), f"less than {LIGHTEST:g}" if bool((density < LIGHTEST).any()) else ""),
        (density.max(), f"more than {HEAVIEST:g}" if bool((density > HEAVIEST).any()) else ""),
    ):
        if than:
            yield f"a density of {float(odd):.4g} kg/m^3 is {than}: give it in kg/m^3, water has 1000"


def refuse_lost_stiffness(term: ElasticTerm, dtype: torch.dtype) -> None:
    """Refuse stiffnesses of a term that overflow or underflow in the model's dtype."""
    for name, value in term.energy.named_parameters():
        if name != "poisson":
            refuse_lost(value, f"{term.name}.{name}", "take dtype=torch.float64, or other sizes", dtype)


def refuse_unlike_term(energy: Energy, term: ElasticTerm) -> None:
    """Refuse an energy or a dissipation that is made for other strains or stiffnesses than those of the term."""
    try:
        term.refuse_unlike(energy)
    except InputError as error:
        springs = term.name == "membrane" and len(term.stencil.strains) == 1
        hint = (
            '; this membrane is made of springs: add_shell(membrane="continuum") has triangles that stretch' * springs
        )
        raise InputError(f"{term.name}: {error}{hint}") from error


def check_device(device: object) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    try:
        torch.empty(0, device="cpu" if device is None else device)  # type: ignore[call-overload]
    except (AssertionError, RuntimeError, TypeError) as error:
        there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise InputError(f"device: expected one that is there ({', '.join(there)}), got {device!r}") from error


def check_density(method: str, density: object) -> None:
    """Refuse an argument of the builder's `method` that is no density of energy or power."""
    check_module(method, density, Energy, "a density (elastic.Energy, from which those of your own derive)")


def check_module(method: str, module: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Refuse an argument of `method` that is of another kind, or whose class does not call nn.Module.__init__."""
    refuse_other_kind(method, module, kind, expected)
    if "_modules" not in vars(module):  # torch.nn.Module.__init__ sets this attribute
        name = type(module).__name__
        raise InputError(f"{method}: {name}.__init__ has to call super().__init__() before it does anything else")


def check_name(name: str | None) -> None:
    """Refuse a label of a rod or shell that files cannot have for a name; None stands for no label."""
    if name is not None:
        name_in_files(name, "name")


def check_part(method: str, part: str) -> None:
    """Refuse an argument of `method` that cannot be a name of an energy or law in a `torch.nn.ModuleDict`."""
    if not (isinstance(part, str) and part.isidentifier()) or hasattr(nn.ModuleDict, part):
        raise InputError(f"{method}: {part!r} cannot be the name of a part; choose one of letters, digits and _")


def check_term(method: str, name: str) -> None:
    """Refuse an argument of `method` that is not the name of a term which the builder makes (`TERMS`)."""
    check_choice(f"{method}: name", name, TERMS)

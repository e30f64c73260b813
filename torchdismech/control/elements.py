"""The elements that have strains (rod edges, bend-twist springs, hinges), and which of these strains can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchdismech.errors import InputError, refuse_other_kind, shown
from torchdismech.geometry.checks import Indices, distinct_indices
from torchdismech.model import Model

__all__ = ["ALIASES", "ELEMENTS", "UNITS", "can_change", "chosen_elements", "element_counts", "without_aliases"]

UNITS = {"stretch": "1", "kappa1": "1/m", "kappa2": "1/m", "twist": "rad/m", "hinge_angle": "rad"}
ALIASES = {"curvature": ("kappa1", "kappa2")}
ELEMENTS = {
    "stretch": "rod edges",
    "kappa1": "springs",
    "kappa2": "springs",
    "twist": "springs",
    "hinge_angle": "hinges",
}


def without_aliases(fields: Sequence[str], elements: Mapping[str, Indices]) -> dict[str, Indices | None]:
    """Return the fields with aliases replaced, each with the requested elements, or None for all."""
    known = (*UNITS, *ALIASES)
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise InputError(f"fields: expected a list of names, also of one alone, got {shown(fields)}")
    refuse_other_kind("elements", elements, Mapping, 'indices by field, such as {"stretch": [0, 1]}')
    for field in (*fields, *elements):
        if field not in known:
            raise InputError(f"fields: expected some of {', '.join(known)}, got {field!r}")
    if lost := [field for field in elements if field not in fields]:
        raise InputError(f"elements: {lost[0]!r} is not among the fields {', '.join(fields)}")
    chosen: dict[str, Indices | None] = {}
    for field in fields:
        for name in ALIASES.get(field, (field,)):
            if name in chosen:
                raise InputError(f"fields: {name} is there twice, in {', '.join(fields)}")
            chosen[name] = elements.get(field)
    return chosen


def element_counts(model: Model) -> dict[str, int]:
    """Return the number of elements of each kind of a robot."""
    return {kind: len(nodes) for kind, nodes in _nodes_of_elements(model).items()}


def _nodes_of_elements(model: Model) -> dict[str, np.ndarray]:
    """Return the nodes of the elements of each kind: (E, 2), (S, 3), (H, 4)."""
    return {"rod edges": model.rod_edges, "springs": model.springs, "hinges": model.hinges}


def chosen_elements(model: Model, name: str, index: Indices | None, fields: Sequence[str]) -> np.ndarray:
    """Return the indices of a field's elements, by default all that can change; refuse unknown ones.

    Requested ones whose strain cannot change are refused if `fields` names the field, and left out if only an alias.
    """
    kind = ELEMENTS[name]
    count = element_counts(model)[kind]
    if not count:
        raise InputError(f"fields: {name} is of {kind}, and the robot has none")
    if name == "twist" and model.planar:
        raise InputError("fields: twist: a planar robot does not twist; leave it out, or build with planar=False")
    changes = can_change(model, name)
    if index is None:
        return np.flatnonzero(changes)
    chosen = np.sort(distinct_indices(index, count, f"elements: {name}: {kind}"))
    for k in chosen:
        if not changes[k] and name in fields:
            raise InputError(f"elements: {name} of {_named(model, name, int(k))} cannot change: leave it out")
    return chosen[changes[chosen]]


def _named(model: Model, name: str, k: int) -> str:
    """Return the name of an element in messages, with the reason why its strain cannot change."""
    nodes = _nodes_of_elements(model)[ELEMENTS[name]][k].tolist()
    kind = {"rod edges": "edge", "springs": "spring", "hinges": "hinge"}[ELEMENTS[name]]
    clamped = not model.free[: 3 * model.body.n_nodes].reshape(-1, 3)[nodes].any()
    why = "which are all clamped" if clamped else "which is out of the robot's plane"
    return f"{kind} {k} of nodes {', '.join(map(str, nodes))}, {why},"


def can_change(model: Model, name: str) -> np.ndarray:
    """Return the elements whose strain can change, bool (count,): some dof that it depends on is free.

    In a planar robot no twist changes, and only the curvature in the plane does.
    """
    nodes = _nodes_of_elements(model)[ELEMENTS[name]]
    free = model.free.cpu().numpy()
    n = 3 * model.body.n_nodes
    changes = free[:n].reshape(-1, 3)[nodes].any((1, 2))
    if ELEMENTS[name] == "springs":
        edges = model.body.springs.edges[: len(nodes)]
        changes |= free[n:][edges].any(1)
        if model.in_plane is not None:
            of_curvatures = model.in_plane.curvatures[: len(nodes), int(name == "kappa2")].cpu().numpy()
            changes &= name != "twist" and of_curvatures
    return changes

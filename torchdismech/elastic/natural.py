"""The natural strains that a robot's elastic terms have, in the shapes of the fields of `Control` that set them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torchdismech.elastic.membrane import MembraneStencil
from torchdismech.elastic.shell import HingeStencil, MidEdgeStencil
from torchdismech.elastic.term import ElasticTerm
from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control

__all__ = ["continuum_triangles", "natural_strain", "natural_strains", "refuse_curvatures_without_angles"]

ROUNDING = 1e-6  # of angles [rad], also in float32


def natural_strains(body: Body, terms: Sequence[ElasticTerm], batch: int) -> Control:
    """Return a control for `batch` robots that sets the natural strains and rest lengths that the terms have anyway."""
    own = {field: natural_strain(field, body, terms, batch) for field in OF_FIELDS}
    return Control.of({field: strain for field, strain in own.items() if strain is not None})


def natural_strain(field: str, body: Body, terms: Sequence[ElasticTerm], batch: int) -> Tensor | None:
    """Return one field (B, ...) of `natural_strains`; None if the robot has no elements of this kind."""
    return OF_FIELDS[field](body, {term.name: term for term in terms}, batch)


def continuum_triangles(terms: Iterable[ElasticTerm]) -> int:
    """Return the number of triangles with a continuum membrane: all of a robot's triangles, or 0."""
    return sum(term.stencil.count for term in terms if isinstance(term.stencil, MembraneStencil))


def refuse_curvatures_without_angles(body: Body, terms: Sequence[ElasticTerm]) -> None:
    """Refuse natural curvatures of triangles that differ from those of the hinge angles as built, such as trained ones.

    A control that sets natural hinge angles would overwrite them.
    """
    for term in terms:
        if not isinstance(term.stencil, MidEdgeStencil):
            continue
        most = ROUNDING * term.stencil.shape.abs().amax()
        for name, built in zip(term.stencil.strains, term.stencil.natural_at(body.hinge_angle[None]), strict=True):
            if bool(((getattr(term, f"natural_{name}") - built).abs() > most).any()):
                raise InputError(
                    f"natural angles of hinges: midedge.natural_{name} was changed, and angles would take its place: "
                    "leave the natural curvatures of triangles as built"
                )


def _rest_length(body: Body, named: Mapping[str, ElasticTerm], batch: int) -> Tensor:
    """Return the rest lengths (B, E) of rod edges [m]."""
    own: Tensor = named["stretch"].stencil.rest_length if body.n_edges else body.edge_length  # type: ignore[assignment]
    return own.expand(batch, body.n_edges)


def _hinge_angle(body: Body, named: Mapping[str, ElasticTerm], batch: int) -> Tensor | None:
    """Return the natural angles (B, H) [rad] of all hinges: of the hinge term, if it has this hinge, else as built."""
    if not len(body.surface.hinges):
        return None
    term, angle = named.get("hinge"), body.hinge_angle
    if term is not None:
        assert isinstance(term.stencil, HingeStencil)
        own: Tensor = term.natural_hinge_angle  # type: ignore[assignment]
        angle = angle.expand(*own.shape[:-1], -1).index_copy(-1, term.stencil.numbers, own)
    return angle.expand(batch, -1)


def _membrane_strain(body: Body, named: Mapping[str, ElasticTerm], batch: int) -> Tensor | None:
    """Return the natural Green strains (B, F, 3) of triangles with continuum membranes."""
    if not continuum_triangles(named.values()):
        return None
    membrane = named["membrane"]
    return torch.stack([_own(membrane, name, batch) for name in membrane.stencil.strains], dim=-1)


def _curvature(body: Body, named: Mapping[str, ElasticTerm], batch: int) -> Tensor | None:
    """Return the natural kappa1 and kappa2 (B, S, 2) of the springs between edges."""
    if not (count := body.n_springs):
        return None
    return torch.stack([_own(named["bend_twist"], name, batch)[:, :count] for name in ("kappa1", "kappa2")], dim=-1)


def _twist(body: Body, named: Mapping[str, ElasticTerm], batch: int) -> Tensor | None:
    """Return the natural twist (B, S) [rad] of the springs between edges."""
    return _own(named["bend_twist"], "tau", batch)[:, : body.n_springs] if body.n_springs else None


def _own(term: ElasticTerm, name: str, batch: int) -> Tensor:
    """Return a term's natural strain `name`, (B, S)."""
    own: Tensor = getattr(term, f"natural_{name}")
    return own.expand(batch, -1)


OF_FIELDS: dict[str, Callable[[Body, Mapping[str, ElasticTerm], int], Tensor | None]] = {
    "rest_length": _rest_length,
    "natural_hinge_angle": _hinge_angle,
    "natural_membrane_strain": _membrane_strain,
    "natural_curvature": _curvature,
    "natural_twist": _twist,
}

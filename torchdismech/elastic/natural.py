"""The natural strains of a robot's elastic terms, as a control sets them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.elastic.membrane import MembraneStencil
from torchdismech.elastic.shell import HingeStencil, MidEdgeStencil
from torchdismech.elastic.term import ElasticTerm
from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control

__all__ = ["continuum_triangles", "natural_strains", "refuse_curvatures_without_angles"]

ROUNDING = 1e-6  # of angles [rad], also in float32


def natural_strains(body: Body, terms: Sequence[ElasticTerm], batch: int) -> Control:
    """Return a control (B, ...) that sets the terms' own natural strains and the rods' rest lengths."""
    named = {term.name: term for term in terms}
    found = {"rest_length": _rest_length(body, named).expand(batch, body.n_edges)}
    if len(body.surface.hinges):
        found["natural_hinge_angle"] = _hinge_angle(body, named).expand(batch, -1)
    if continuum_triangles(terms):
        found["natural_membrane_strain"] = torch.stack(_own(named["membrane"], batch), dim=-1)
    if body.n_springs:
        kappa1, kappa2, tau = (value[:, : body.n_springs] for value in _own(named["bend_twist"], batch))
        found |= {"natural_curvature": torch.stack([kappa1, kappa2], dim=-1), "natural_twist": tau}
    return Control.of(found)


def continuum_triangles(terms: Sequence[ElasticTerm]) -> int:
    """Return how many triangles stretch as a continuum: all of a robot's or none."""
    return sum(term.stencil.count for term in terms if isinstance(term.stencil, MembraneStencil))


def refuse_curvatures_without_angles(body: Body, terms: Sequence[ElasticTerm]) -> None:
    """Refuse natural curvatures of triangles that are not those of the natural angles, such as trained ones.

    Angles that a control sets would take their place.
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


def _own(term: ElasticTerm, batch: int) -> list[Tensor]:
    """Return a term's natural strains, each (B, S)."""
    return [getattr(term, f"natural_{name}").expand(batch, -1) for name in term.stencil.strains]


def _rest_length(body: Body, named: dict[str, ElasticTerm]) -> Tensor:
    """Return the rest lengths (.., E) of rod edges: those at which rods are not stretched."""
    if not body.n_edges:
        return body.edge_length
    return named["stretch"].stencil.rest_length  # type: ignore[return-value]


def _hinge_angle(body: Body, named: dict[str, ElasticTerm]) -> Tensor:
    """Return the natural angles (.., H): those that the hinge term has, of other hinges those as built."""
    term = named.get("hinge")
    if term is None:
        return body.hinge_angle
    assert isinstance(term.stencil, HingeStencil)
    own: Tensor = term.natural_hinge_angle  # type: ignore[assignment]
    return body.hinge_angle.expand(*own.shape[:-1], -1).index_copy(-1, term.stencil.numbers, own)

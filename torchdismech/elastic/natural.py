"""The natural strains of a robot's elastic terms, as a control sets them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.elastic.membrane import MembraneStencil
from torchdismech.elastic.term import ElasticTerm
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control

__all__ = ["continuum_triangles", "natural_strains"]


def natural_strains(body: Body, terms: Sequence[ElasticTerm], batch: int) -> Control:
    """Return a control (B, ...) that sets the terms' own natural strains and the rods' rest lengths."""
    named = {term.name: term for term in terms}
    control = Control(rest_length=_rest_length(body, named).expand(batch, body.n_edges))
    if len(body.surface.hinges):
        control = control.replace(natural_hinge_angle=_hinge_angle(body, named).expand(batch, -1))
    if continuum_triangles(terms):
        control = control.replace(natural_membrane_strain=torch.stack(_own(named["membrane"], batch), dim=-1))
    if body.n_springs:
        kappa1, kappa2, tau = (value[:, : body.n_springs] for value in _own(named["bend_twist"], batch))
        control = control.replace(natural_curvature=torch.stack([kappa1, kappa2], dim=-1), natural_twist=tau)
    return control


def continuum_triangles(terms: Sequence[ElasticTerm]) -> int:
    """Return how many triangles stretch as a continuum: all of a robot's or none."""
    return sum(term.stencil.count for term in terms if isinstance(term.stencil, MembraneStencil))


def _own(term: ElasticTerm, batch: int) -> list[Tensor]:
    """Return a term's natural strains, each (B, S)."""
    return [getattr(term, f"natural_{name}").expand(batch, -1) for name in term.stencil.strains]


def _rest_length(body: Body, named: dict[str, ElasticTerm]) -> Tensor:
    """Return the rest lengths (.., E) of rod edges: those at which rods are not stretched."""
    if not body.n_edges:
        return body.edge_length
    return named["stretch"].stencil.rest_length  # type: ignore[return-value]


def _hinge_angle(body: Body, named: dict[str, ElasticTerm]) -> Tensor:
    """Return the natural angles (.., H): those that the hinge term has, if it has all hinges."""
    term = named.get("hinge")
    if term is not None and term.stencil.count == len(body.surface.hinges):
        return term.natural_hinge_angle  # type: ignore[return-value]
    return body.hinge_angle

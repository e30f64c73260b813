"""Builds the elastic terms of shells: "membrane", and bending by "hinge" or "midedge"."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import viscous
from torchdismech.builder.shells import Shells
from torchdismech.elastic import (
    ElasticTerm,
    HingeStencil,
    LinearElastic,
    MembraneStencil,
    MidEdgeStencil,
    Plate,
    StretchStencil,
    StVenantKirchhoff,
)
from torchdismech.elastic.membrane import rest_metric
from torchdismech.elastic.shell import shape_matrix
from torchdismech.robot.body import Body

__all__ = ["bending_terms", "membrane_terms"]


def membrane_terms(body: Body, shells: Shells) -> list[ElasticTerm]:
    """Return a list with the membrane term, of triangles or of their edges; empty for a robot without shells."""
    if not shells.groups:
        return []
    if shells.groups[0].membrane == "continuum":
        return [_continuum_term(body, shells)]
    edges = np.arange(len(body.surface.edges))
    stencil = StretchStencil(body.surface.edges, body.shell_edge_length.clone(), "membrane_stretch", controlled=False)
    stiffness = {"membrane": shells.on_edges("membrane", edges) * body.shell_edge_length}
    dissipation = viscous(stiffness, shells.on_edges("relaxation", edges))
    return [ElasticTerm("membrane", stencil, LinearElastic(stiffness), measure=None, dissipation=dissipation)]


def _continuum_term(body: Body, shells: Shells) -> ElasticTerm:
    constants = {name: shells.constant(name).clone() for name in ("membrane", "poisson", "relaxation")}
    stencil = MembraneStencil(body.triangles, rest_metric(body.nodes, body.triangles))
    relaxation = constants["relaxation"]
    viscosity = StVenantKirchhoff(constants["membrane"] * relaxation, constants["poisson"].clone())
    return ElasticTerm(
        "membrane",
        stencil,
        StVenantKirchhoff(constants["membrane"], constants["poisson"]),
        measure=body.face_area.clone(),
        natural=tuple(body.nodes.new_zeros(len(body.triangles)) for _ in range(3)),
        controlled=stencil.natural_of,
        dissipation=viscosity if bool((relaxation > 0).any()) else None,
    )


def bending_terms(body: Body, shells: Shells) -> list[ElasticTerm]:
    """Return the bending terms of hinges and of triangles with mid-edge normals, as far as the robot has them."""
    terms = []
    surface = body.surface
    hinged = np.flatnonzero(shells.by_hinges[surface.hinge_triangles[:, 0]])
    if len(hinged):
        terms.append(_hinge_term(shells, body, hinged))
    faces = np.flatnonzero(~shells.by_hinges)
    if len(faces):
        terms.append(_mid_edge_term(shells, body, faces))
    return terms


def _hinge_term(shells: Shells, body: Body, hinged: np.ndarray) -> ElasticTerm:
    surface = shells.surface
    edges = surface.hinge_edges[hinged]
    stiffness = {"hinge": shells.on_edges("bending", edges).clone()}
    stencil = HingeStencil(surface.hinges[hinged], hinged)
    return ElasticTerm(
        "hinge",
        stencil,
        LinearElastic(stiffness),
        measure=body.nodes.new_ones(()),
        natural=(body.hinge_angle[hinged].clone(),),
        controlled=stencil.natural_of,
        dissipation=viscous(stiffness, shells.on_edges("relaxation", edges)),
    )


def _mid_edge_term(shells: Shells, body: Body, faces: np.ndarray) -> ElasticTerm:
    surface = shells.surface
    carried = shells.normal_edges()
    place = np.zeros(len(surface.edges), dtype=np.int64)
    place[carried] = np.arange(len(carried)) + len(body.rod_edges) + len(body.joint_edges)
    hinges = surface.hinge_of_sides()[faces]
    angles = torch.nn.functional.pad(body.hinge_angle, (0, 1))  # index -1, a side without hinge, gives angle 0
    stencil = MidEdgeStencil(
        surface.triangles[faces],
        place[surface.sides[faces]],
        surface.signs[faces],
        3 * body.n_nodes,
        shape_matrix(body.nodes, surface.triangles[faces], angles[hinges]),
        hinges,
    )
    constants = {n: _of_faces(shells.constant(n), faces) for n in ("bending", "poisson", "relaxation")}
    natural = stencil.natural_at(body.hinge_angle[None])
    relaxation = constants["relaxation"]
    damped = bool((relaxation > 0).any())
    return ElasticTerm(
        "midedge",
        stencil,
        Plate(constants["bending"], constants["poisson"]),
        measure=shells.face_area[faces],
        natural=tuple(b.squeeze(0).clone() for b in natural),
        controlled=stencil.natural_of,
        dissipation=Plate(constants["bending"] * relaxation, constants["poisson"].clone()) if damped else None,
    )


def _of_faces(constant: Tensor, faces: np.ndarray) -> Tensor:
    return constant.clone() if constant.dim() == 0 or constant.shape[-1] == 1 else constant[..., faces]

"""What shells bring to a robot: masses, mid-edge normals, membrane stretching, bending by hinges or normals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import at_nodes, broadcastable, joined, refuse_lost, viscous
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
from torchdismech.errors import InputError, refuse_other_kind, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.geometry.frames import unit
from torchdismech.geometry.mesh_checks import check_mesh
from torchdismech.geometry.shells import hinge_angles
from torchdismech.geometry.surface import Surface, edge_normals, find_surface
from torchdismech.robot.body import Body
from torchdismech.robot.materials import Material, Number, positive, refuse_unlike_shapes

__all__ = [
    "BENDING",
    "MEMBRANE",
    "USUAL_MEMBRANE",
    "ShellGroup",
    "Shells",
    "bending_terms",
    "face_constants",
    "membrane_terms",
    "natural_hinge_angles",
    "normal_directors",
]

BENDING = ("hinge", "midedge")
MEMBRANE = ("springs", "continuum")
USUAL_MEMBRANE = {"midedge": "continuum", "hinge": "springs"}  # of each bending, where nothing is said
FOLDED = 1e-6  # length of the sum of two unit normals at an edge, below which its triangles lie on one another
HINGES = (
    "shell: bending 'hinge' depends on the mesh, by tens of per cent, and does not come to plate theory on finer ones; "
    "'midedge' does; one row of held nodes is a hinge itself, two rows clamp a side (docs/shells.md)"
)


@dataclass
class ShellGroup:
    """Triangles that were added together."""

    triangles: np.ndarray
    constants: dict[str, Tensor]  # per triangle: density, thickness, membrane, bending, poisson, relaxation
    membrane: str
    bending: str
    natural: str
    name: str | None


class Shells:
    """All triangles of a robot with their constants."""

    def __init__(self, groups: list[ShellGroup], nodes: Tensor):
        self.groups = groups
        triangles = np.concatenate([np.zeros((0, 3), dtype=np.int64), *(g.triangles for g in groups)])
        if groups:
            checked = check_mesh(nodes.numpy(), triangles, where="shell", allow_unused=True)
            triangles = checked.triangles
            for repair in checked.repairs:
                warn(f"shell: {repair}")
        self.surface: Surface = find_surface(triangles)
        counts = [len(g.triangles) for g in groups]
        names = groups[0].constants if groups else ()
        self.constants = {name: joined([g.constants[name] for g in groups], counts) for name in names}
        self.by_hinges = np.repeat([g.bending == "hinge" for g in groups], counts).astype(bool)  # (F,)
        self.flat = np.repeat([g.natural == "flat" for g in groups], counts).astype(bool)  # (F,)
        self._refuse_mixed_edges()
        self._refuse_mixed_membranes()
        if bool(self.by_hinges[self.surface.hinge_triangles].any()):
            warn(HINGES)
        edges, x = self.surface.edges, nodes[self.surface.triangles]
        if groups:
            thick, across = float(self.constant("thickness").max()), float((x.amax((0, 1)) - x.amin((0, 1))).max())
            if thick > across:
                warn(f"shell: a thickness of {thick:.4g} m is more than it is across, {across:.4g} m: give sizes in m")
            if across > LARGE:
                warn(
                    f"shell: it is {across:.4g} m across. If nodes are in millimetres give them in m (in a scene: "
                    "[robot] scale = 1e-3)"
                )
        self.edge_length = torch.linalg.vector_norm(nodes[edges[:, 1]] - nodes[edges[:, 0]], dim=-1)
        area = torch.linalg.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])
        self.face_area = 0.5 * torch.linalg.vector_norm(area, dim=-1)

    def _refuse_mixed_edges(self) -> None:
        pairs = self.surface.hinge_triangles
        mixed = np.flatnonzero(self.by_hinges[pairs[:, 0]] != self.by_hinges[pairs[:, 1]])
        if len(mixed):
            start, end = self.surface.hinges[mixed[0], :2].tolist()
            raise InputError(
                f"shell: bending is 'hinge' on one side of the edge ({start}, {end}) and 'midedge' on the other; "
                "shells that share edges need the same bending"
            )

    def _refuse_mixed_membranes(self) -> None:
        kinds = {group.membrane for group in self.groups}
        if len(kinds) > 1:
            raise InputError(
                "shell: membrane is 'springs' in one shell of the robot and 'continuum' in another; a robot's shells "
                "stretch by one of them: say which in each add_shell (by default that is 'continuum' with bending "
                "'midedge' and 'springs' with 'hinge')"
            )

    def constant(self, name: str) -> Tensor:
        """Return a constant of the triangles; an empty tensor where there are no shells."""
        return self.constants[name] if self.groups else self.face_area.new_zeros(0)

    def on_edges(self, name: str, edges: np.ndarray) -> Tensor:
        """Return the mean of a constant over the triangles at each of some edges, () or (.., k)."""
        value = self.constant(name)
        if value.dim() == 0 or value.shape[-1] == 1:
            return value
        sides, n_edges = self.surface.sides, len(self.surface.edges)
        total = at_nodes(value, sides, n_edges)
        count = at_nodes(torch.ones_like(self.face_area), sides, n_edges)
        return (total / count)[..., edges]

    def volume(self) -> Tensor:
        """Return the volume of each triangle (.., F) [m^3]."""
        return self.constant("thickness") * self.face_area

    def node_mass(self, n_nodes: int) -> Tensor:
        """Return the mass (.., N) that the shells give to nodes [kg]."""
        return at_nodes(self.constant("density") * self.volume() / 3, self.surface.triangles, n_nodes)

    def node_length(self, n_nodes: int) -> Tensor:
        """Return (N,): the node's share of the area over the square root of the whole area [m]; see `Body`."""
        share = at_nodes(self.face_area / 3, self.surface.triangles, n_nodes)
        return share / self.face_area.sum().sqrt() if self.groups else share

    def normal_edges(self) -> np.ndarray:
        """Return the indices of the edges that carry a mid-edge normal."""
        return np.unique(self.surface.sides[~self.by_hinges])


def face_constants(
    thickness: Number, material: Material, stiffness: Mapping[str, Number], membrane: str, bending: str, count: int
) -> dict[str, Tensor]:
    """Return the constants of triangles, each () or (.., F) or (B, 1).

    `membrane` is the stiffness [N/m] that an edge has per rest length, or half the modulus of plane stress times
    thickness; `bending` is k_hinge [N m] or k_mid [N m].
    """
    refuse_other_kind("material", material, Material, "a Material")
    unknown = set(stiffness) - {"membrane", "bending"}
    if unknown:
        raise InputError(f"stiffness: expected any of membrane, bending, got {', '.join(sorted(unknown))}")
    refuse_unlike_shapes((material,), stiffness, thickness=thickness)
    m, h = material.constants(), positive(thickness, "thickness")
    constants = {"thickness": h, "density": m["density"], "relaxation": m["relaxation"], "poisson": m["poisson"]}
    cubed, plane = m["youngs"] * h**3, 1 - m["poisson"] ** 2
    derived = {
        "membrane": m["youngs"] * h * (0.5 * math.sqrt(3) if membrane == "springs" else 0.5 / plane),
        "bending": cubed / (6 * math.sqrt(3)) if bending == "hinge" else cubed / (24 * plane),
    }
    for name, value in derived.items():
        constants[name] = positive(stiffness[name], f"stiffness.{name}") if name in stiffness else value
        refuse_lost(constants[name], f"shell: stiffness.{name}", "give thickness in m, Young's modulus in Pa")
    return broadcastable(constants, count, "triangles")


def normal_directors(shells: Shells, nodes: Tensor) -> Tensor:
    """Return the mid-edge normals at rest (M, 3): the mean of the normals of the triangles at each edge."""
    surface, edges = shells.surface, shells.normal_edges()
    total = edge_normals(surface, nodes)[edges]
    folded = torch.linalg.vector_norm(total, dim=-1) < FOLDED
    if bool(folded.any()):
        start, end = surface.edges[edges[int(folded.nonzero()[0])]].tolist()
        raise InputError(f"shell: the triangles at the edge ({start}, {end}) lie on one another: move a node")
    tangent = unit(nodes[surface.edges[edges, 1]] - nodes[surface.edges[edges, 0]])
    return unit(total - tangent * (total * tangent).sum(-1, keepdim=True))


# ---- elastic terms -----------------------------------------------------------------------------------------------


def membrane_terms(body: Body, shells: Shells) -> list[ElasticTerm]:
    """Return the stretching of the triangles or of their edges, or none for a robot without shells."""
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
    """Return the bending of hinges and of triangles with mid-edge normals, as far as there are any."""
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
    angles = torch.nn.functional.pad(body.hinge_angle, (0, 1))  # what -1 points at: flat
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
        natural=tuple(b.squeeze(0) for b in natural),
        controlled=stencil.natural_of,
        dissipation=Plate(constants["bending"] * relaxation, constants["poisson"].clone()) if damped else None,
    )


def _of_faces(constant: Tensor, faces: np.ndarray) -> Tensor:
    return constant.clone() if constant.dim() == 0 or constant.shape[-1] == 1 else constant[..., faces]


def natural_hinge_angles(shells: Shells, nodes: Tensor) -> Tensor:
    """Return the angles (H,) of the hinges at rest: those of the shape as built; zero between flat triangles."""
    flat = torch.as_tensor(shells.flat[shells.surface.hinge_triangles].all(1), device="cpu")
    return torch.where(flat, 0.0, hinge_angles(nodes, shells.surface.hinges))

"""Shells of a robot under construction: constants of triangles, masses, mid-edge normals, hinge angles at rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import at_nodes, broadcastable, joined, refuse_lost, robots_of
from torchdismech.errors import InputError, refuse_other_kind, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.geometry.frames import unit
from torchdismech.geometry.mesh_checks import check_mesh
from torchdismech.geometry.shells import hinge_angles
from torchdismech.geometry.surface import Surface, edge_normals, find_surface
from torchdismech.robot.materials import Material, Number, positive, refuse_unlike_shapes

__all__ = [
    "BENDING",
    "MEMBRANE",
    "USUAL_MEMBRANE",
    "ShellGroup",
    "Shells",
    "face_constants",
    "natural_hinge_angles",
    "normal_directors",
]

BENDING = ("hinge", "midedge")
MEMBRANE = ("springs", "continuum")
USUAL_MEMBRANE = {"midedge": "continuum", "hinge": "springs"}  # default membrane for each kind of bending
FOLDED = 1e-6  # length of the sum of two unit normals at an edge, below which its triangles lie on one another
HINGES = (
    "shell: bending 'hinge' depends on the mesh, by tens of per cent, and does not come to plate theory on finer ones; "
    "'midedge' does; one row of held nodes is a hinge itself, two rows clamp a side (docs/shells.md)"
)


@dataclass
class ShellGroup:
    """The triangles of one call of `add_shell`, with its arguments."""

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
        robots_of(self.constants.values())
        self.by_hinges = np.repeat([g.bending == "hinge" for g in groups], counts).astype(bool)  # (F,)
        self.flat = np.repeat([g.natural == "flat" for g in groups], counts).astype(bool)  # (F,)
        self._refuse_mixed_edges()
        self._refuse_mixed_membranes()
        if bool(self.by_hinges[self.surface.hinge_triangles].any()):
            warn(HINGES)
        edges, x = self.surface.edges, nodes[self.surface.triangles]
        if groups:
            self._warn_of_sizes(float((x.amax((0, 1)) - x.amin((0, 1))).max()))
        self.edge_length = torch.linalg.vector_norm(nodes[edges[:, 1]] - nodes[edges[:, 0]], dim=-1)
        area = torch.linalg.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])
        self.face_area = 0.5 * torch.linalg.vector_norm(area, dim=-1)

    def _warn_of_sizes(self, across: float) -> None:
        """Warn where thickness or extent `across` [m] look as if given in other units."""
        thick = float(self.constant("thickness").max())
        if thick > across:
            warn(f"shell: a thickness of {thick:.4g} m is more than it is across, {across:.4g} m: give sizes in m")
        if across > LARGE:
            warn(
                f"shell: it is {across:.4g} m across. If nodes are in millimetres give them in m (in a scene: "
                "[robot] scale = 1e-3)"
            )

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
        """Return a constant of the triangles, () or (.., F) or (B, 1); an empty tensor where there are no shells."""
        return self.constants[name] if self.groups else self.face_area.new_zeros(0)

    def on_edges(self, name: str, edges: np.ndarray) -> Tensor:
        """Return a constant at some edges (k,), the mean over the triangles at each edge, () or (.., k) or (B, 1)."""
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
        """Return the lumped mass (.., N) of the shells at nodes [kg]: a third of each triangle's at each corner."""
        return at_nodes(self.constant("density") * self.volume() / 3, self.surface.triangles, n_nodes)

    def node_length(self, n_nodes: int) -> Tensor:
        """Return each node's share of the area over the square root of the whole area, (N,) [m]; see `Body`."""
        share = at_nodes(self.face_area / 3, self.surface.triangles, n_nodes)
        return share / self.face_area.sum().sqrt() if self.groups else share

    def normal_edges(self) -> np.ndarray:
        """Return the indices (M,) of the edges that carry a mid-edge normal: those of triangles that bend by them."""
        return np.unique(self.surface.sides[~self.by_hinges])


def face_constants(
    thickness: Number, material: Material, stiffness: Mapping[str, Number], membrane: str, bending: str, count: int
) -> dict[str, Tensor]:
    """Return the constants of `count` triangles, each () or (.., F) or (B, 1).

    Among them "membrane" is the stiffness of an edge per rest length ("springs"), or half the plane-stress modulus
    times thickness ("continuum") [N/m]; "bending" is k_hinge or k_mid [N m].
    """
    refuse_other_kind("material", material, Material, "a Material")
    refuse_other_kind("stiffness", stiffness, Mapping, 'numbers by name, such as {"bending": 1.0}')
    unknown = set(stiffness) - {"membrane", "bending"}
    if unknown:
        raise InputError(f"stiffness: expected any of membrane, bending, got {', '.join(sorted(map(str, unknown)))}")
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
    """Return the mid-edge normals at rest (M, 3): for each edge the normalised mean of its triangles' normals."""
    surface, edges = shells.surface, shells.normal_edges()
    total = edge_normals(surface, nodes)[edges]
    folded = torch.linalg.vector_norm(total, dim=-1) < FOLDED
    if bool(folded.any()):
        start, end = surface.edges[edges[int(folded.nonzero()[0])]].tolist()
        raise InputError(f"shell: the triangles at the edge ({start}, {end}) lie on one another: move a node")
    tangent = unit(nodes[surface.edges[edges, 1]] - nodes[surface.edges[edges, 0]])
    return unit(total - tangent * (total * tangent).sum(-1, keepdim=True))


def natural_hinge_angles(shells: Shells, nodes: Tensor) -> Tensor:
    """Return the angles of all hinges at rest (H,) [rad]: as built, or zero between two triangles added as "flat"."""
    flat = torch.as_tensor(shells.flat[shells.surface.hinge_triangles].all(1), device="cpu")
    return torch.where(flat, 0.0, hinge_angles(nodes, shells.surface.hinges))

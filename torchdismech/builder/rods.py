"""Rod edges of a robot under construction: constants, sections, masses, directors, joint edges with shells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import at_nodes, broadcastable, joined, per_element, refuse_lost, robots_of
from torchdismech.errors import InputError, refuse_other_kind, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.geometry.frames import first_director, transported, unit
from torchdismech.geometry.topology import NO_PAIRS, Rod
from torchdismech.robot.body import Sections
from torchdismech.robot.materials import Circle, Material, Number, Rectangle, positive, refuse_unlike_shapes
from torchdismech.robot.plane import OUT_OF_PLANE
from torchdismech.values import tensor_of

__all__ = [
    "RodGroup",
    "Rods",
    "any_directors",
    "edge_constants",
    "joint_edges",
    "rod_directors",
]

ASKEW = 1e-6  # tolerance on a given director: of its length against 1, and of its component along the edge against 0


@dataclass
class RodGroup:
    """The edges of one call of `add_rods`, with its arguments."""

    edges: np.ndarray
    constants: dict[str, Tensor]  # per edge: density, area, ..., EA, EI1, EI2, GJ
    round: bool  # whether sections are circles, not rectangles
    natural: str
    directors: np.ndarray | None
    name: str | None
    whole: Hashable  # equal in calls that count as one (see `add_rods`)


class Rods:
    """All rod edges of a robot with their constants."""

    def __init__(self, groups: list[RodGroup], nodes: Tensor):
        self.groups = groups
        self.edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(g.edges for g in groups)])
        counts = [len(g.edges) for g in groups]
        names = groups[0].constants if groups else ()
        self.constants = {name: joined([g.constants[name] for g in groups], counts) for name in names}
        robots_of(self.constants.values())
        self.length = torch.linalg.vector_norm(nodes[self.edges[:, 1]] - nodes[self.edges[:, 0]], dim=-1)
        thick, long = (float(x.max()) if groups else 0.0 for x in (self.constant("radius"), self.length.sum()))
        if thick > long:
            warn(f"rods: a radius of {thick:.4g} m is more than all of them are long, {long:.4g} m: give sizes in m")
        extent = float(np.ptp(nodes[self.edges].reshape(-1, 3).numpy(), axis=0).max()) if groups else 0.0
        if extent > LARGE:
            warn(
                f"rods: they are {extent:.4g} m across. If nodes are in millimetres give them in m (in a scene: "
                "[robot] scale = 1e-3)"
            )

    def constant(self, name: str) -> Tensor:
        """Return a constant of the edges, () or (.., E) or (B, 1); an empty tensor where there are no rods."""
        return self.constants[name] if self.groups else self.length.new_zeros(0)

    def going_on(self) -> np.ndarray:
        """Return the pairs of edges (k, 2) that follow each other in calls, by `whole`, whose edges are one line."""
        numbers: dict[Hashable, list[int]] = {}
        first = 0
        for group in self.groups:
            numbers.setdefault(group.whole, []).extend(range(first, first + len(group.edges)))
            first += len(group.edges)
        pairs = [np.array(own)[_along_line(self.edges[own])] for own in numbers.values()]
        return np.concatenate([NO_PAIRS, *pairs])

    def volume(self) -> Tensor:
        """Return the volume of each edge (.., E) [m^3]."""
        return self.constant("area") * self.length

    def sections(self) -> Sections:
        """Return the sections of the edges, for drawing."""
        sizes = {name: per_element(self.constant(name), len(self.edges)) for name in ("height", "width")}
        circles = np.repeat([group.round for group in self.groups], [len(group.edges) for group in self.groups])
        arrays = {name: size.detach().cpu().numpy() for name, size in sizes.items()}
        return Sections(**arrays, round=circles.astype(bool))

    def radii_in_flow(self, directors: Tensor, planar: bool) -> tuple[Tensor, np.ndarray]:
        """Return half the width (.., E) of edges that cross flow meets [m], and for which edges it is known (E,) bool.

        For a rectangle it depends on the direction of flow. A planar robot moves in the x-z plane, so the flow meets
        the side along y. Where neither side is along y, or the robot moves in space, the width is unknown, and half of
        the smaller side is returned.

        Parameters
        ----------
        directors : d1 (E, 3), along the sections' height.
        """
        circles = self.sections().round
        height, width, radius = (per_element(self.constant(n), len(self.edges)) for n in ("height", "width", "radius"))
        if not planar:
            return radius, circles
        height_meets = torch.linalg.vector_norm(directors[:, [0, 2]], dim=-1) < OUT_OF_PLANE
        known = height_meets | (directors[:, 1].abs() < OUT_OF_PLANE)
        half = 0.5 * torch.where(height_meets, height, width)
        return torch.where(known, half, radius), circles | known.numpy()

    def node_mass(self, n_nodes: int) -> Tensor:
        """Return the lumped mass (.., N) of the rods at nodes [kg]: half of each edge's at either end."""
        return at_nodes(0.5 * self.constant("density") * self.volume(), self.edges, n_nodes)

    def twist_mass(self) -> Tensor:
        """Return the moment of inertia (.., E) of the edges about their axes [kg m^2]."""
        mass = self.constant("density") * self.constant("polar") * self.length
        return mass.expand(*mass.shape[:-1], len(self.edges))

    def naturally_straight(self, edges: np.ndarray) -> np.ndarray:
        """Return a mask (S,) of the pairs of edges (S, 2) of which both were added as naturally straight."""
        of_calls = [*(group.natural == "straight" for group in self.groups), False]  # the last is of all joint edges
        straight = np.repeat(of_calls, [*(len(group.edges) for group in self.groups), 1])
        return straight[np.minimum(edges, len(self.edges))].all(1)

    def of_different_calls(self, edges: np.ndarray) -> np.ndarray:
        """Return a mask (S,) of the pairs of edges (S, 2) whose calls differ in `whole`; joint edges are one call."""
        wholes = {whole: k for k, whole in enumerate(dict.fromkeys(group.whole for group in self.groups))}
        calls = [*(wholes[group.whole] for group in self.groups), len(wholes)]
        call = np.repeat(calls, [*(len(group.edges) for group in self.groups), 1])
        first, second = call[np.minimum(edges, len(self.edges))].T
        return first != second


def edge_constants(
    section: Circle | Rectangle,
    material: Material,
    stiffness: Mapping[str, Number],
    contact_radius: Number | None,
    count: int,
) -> dict[str, Tensor]:
    """Return the constants of `count` edges from section, material and given stiffnesses, () or (.., E) or (B, 1)."""
    refuse_other_kind("section", section, (Circle, Rectangle), "a Circle or a Rectangle")
    refuse_other_kind("material", material, Material, "a Material")
    refuse_other_kind("stiffness", stiffness, Mapping, 'numbers by name, such as {"EA": 1.0}')
    refuse_unlike_shapes((section, material), stiffness, contact_radius=contact_radius)
    s, m = section.constants(), material.constants()
    unknown = set(stiffness) - {"EA", "EI1", "EI2", "GJ"}
    if unknown:
        raise InputError(f"stiffness: expected any of EA, EI1, EI2, GJ, got {', '.join(sorted(map(str, unknown)))}")
    contact = s["radius"] if contact_radius is None else positive(contact_radius, "contact_radius")
    constants = {**s, "density": m["density"], "relaxation": m["relaxation"], "contact_radius": contact}
    derived = {
        "EA": m["youngs"] * s["area"],
        "EI1": m["youngs"] * s["I1"],
        "EI2": m["youngs"] * s["I2"],
        "GJ": m["shear"] * s["J"],
    }
    for name, value in derived.items():
        constants[name] = positive(stiffness[name], f"stiffness.{name}") if name in stiffness else value
    whole = str(section) if len(str(section)) < 80 else type(section).__name__
    for name in ("area", "I1", "I2", "J", "polar", *derived):
        refuse_lost(constants[name], f"{whole}: {name}", "give sizes in m, Young's modulus in Pa")
    return broadcastable(constants, count, "edges")


# ---- frames and joints -------------------------------------------------------------------------------------------


def rod_directors(groups: list[RodGroup], rods: list[Rod], nodes: Tensor) -> Tensor:
    """Return the directors d1 (E, 3): as given, else transported from the edge before along the rod.

    The first edge of a rod has that of `first_director`, if none is given.
    """
    directors = nodes.new_zeros(sum(len(g.edges) for g in groups), 3)
    has_directors = np.repeat([g.directors is not None for g in groups], [len(g.edges) for g in groups]).astype(bool)
    offset = 0
    for added in groups:
        if added.directors is not None:
            directors[offset : offset + len(added.edges)] = _normal_directors(added, nodes, first=offset)
        offset += len(added.edges)
    for rod in rods:
        tangent = unit(nodes[rod.nodes[1:]] - nodes[rod.nodes[:-1]])
        d = first_director(tangent[0])
        for k, edge in enumerate(rod.edges):
            d = transported(d, tangent[k - 1], tangent[k]) if k else d
            if has_directors[edge]:
                d = directors[edge]
            directors[edge] = d
    return directors


def _along_line(edges: np.ndarray) -> np.ndarray:
    """Return the pairs (k, 2) of each edge (m, 2) and the next one; none unless they are one line or ring, in order."""
    numbers = np.arange(len(edges))
    pairs = np.stack([numbers, np.roll(numbers, -1)], axis=1)  # the last is of the end and the beginning
    same = edges[:, :, None] == edges[pairs[:, 1], None, :]  # (m, ends of an edge, ends of the next)
    meets, left_at, next_entered_at = same.any((1, 2)), same.any(2).argmax(1), same.any(1).argmax(1)
    goes_on = meets & (left_at[pairs[:, 1]] != next_entered_at)  # from an edge into the next one, and out of it
    if len(edges) < 2 or not meets[:-1].all() or not goes_on[:-2].all():
        return NO_PAIRS
    return pairs if goes_on[-2:].all() else pairs[:-1]


def any_directors(nodes: Tensor, edges: np.ndarray) -> Tensor:
    """Return an arbitrary director (J, 3) for each joint edge.

    Which one does not matter: springs with a rod edge align the frame with the rod's, and springs between joint edges
    have equal EI1 and EI2 (`bend_twist_terms`).
    """
    return first_director(unit(nodes[edges[:, 1]] - nodes[edges[:, 0]]))


def _normal_directors(added: RodGroup, nodes: Tensor, first: int) -> Tensor:
    """Return a group's given directors (m, 3), made exactly normal to their edges; refuse those that are off.

    `first` is the index of the group's first edge in the robot, for messages.
    """
    given = tensor_of(added.directors)
    tangent = unit(nodes[added.edges[:, 1]] - nodes[added.edges[:, 0]])
    slope, length = (given * tangent).sum(-1), given.norm(dim=-1)
    wrong = ~((slope.abs() < ASKEW) & ((length - 1).abs() < ASKEW))
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        raise InputError(
            f"directors: expected unit vectors normal to their edges (to {ASKEW:g}), got {given[k].tolist()} at rod "
            f"edge {first + k}, of length {length[k].item():g} and with {slope[k].item():g} along the edge"
        )
    return unit(given - tangent * (given * tangent).sum(-1, keepdim=True))


def joint_edges(
    rod_edges: np.ndarray, triangles: np.ndarray, shell_edges: np.ndarray, sides: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the joint edges, by which shells hold rods, and weights that give them constants of the rods.

    Joint edges are the sides of all triangles that have a node of a rod, except sides along a rod edge.

    Returns
    -------
    edges (J, 2), weights (J, E): a constant of a joint edge is the mean of that of the rod edges that meet its
    triangles.
    """
    at_rod = np.isin(triangles, rod_edges)  # (F, 3) whether a corner is a node of a rod
    faces_at_rods = np.flatnonzero(at_rod.any(1))
    pairs = {tuple(sorted(edge)) for edge in rod_edges.tolist()}
    meets: dict[int, set[int]] = {}
    for face in faces_at_rods:
        rods = np.flatnonzero(np.isin(rod_edges, triangles[face][at_rod[face]]).any(1)).tolist()
        for side in sides[face].tolist():
            if tuple(sorted(shell_edges[side].tolist())) not in pairs:
                meets.setdefault(side, set()).update(rods)
    joint_sides = sorted(meets)
    weights = np.zeros((len(joint_sides), len(rod_edges)))
    for row, side in enumerate(joint_sides):
        weights[row, list(meets[side])] = 1 / len(meets[side])
    return shell_edges[joint_sides].reshape(-1, 2), weights

"""What rods bring to a robot: masses, directors, stretching, bending and twisting, joints with shells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.corners import corner_matrices
from torchdismech.builder.elements import at_nodes, broadcastable, joined, per_element, refuse_lost, robot_dimension
from torchdismech.elastic import BendTwistStencil, CornerElastic, ElasticTerm, LinearElastic, StretchStencil
from torchdismech.errors import InputError, refuse_other_kind, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.geometry.frames import REST_BRANCH, first_director, transported, unit
from torchdismech.geometry.rods import BendTwist
from torchdismech.geometry.topology import Held, Rod, Springs
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body, Sections
from torchdismech.robot.materials import Circle, Material, Number, Rectangle, positive, refuse_unlike_shapes
from torchdismech.robot.plane import OUT_OF_PLANE

__all__ = [
    "any_directors",
    "RodGroup",
    "Rods",
    "bend_twist_terms",
    "edge_constants",
    "joint_edges",
    "refuse_twice",
    "rod_directors",
    "stretch_terms",
    "viscous",
]

ASKEW = 1e-6  # by which a given director's length may differ from 1, and its part along the edge from 0


@dataclass
class RodGroup:
    """Edges that were added together."""

    edges: np.ndarray
    constants: dict[str, Tensor]  # per edge: density, area, ..., EA, EI1, EI2, GJ
    round: bool  # circles, not rectangles
    natural: str
    directors: np.ndarray | None
    name: str | None


class Rods:
    """All rod edges of a robot with their constants."""

    def __init__(self, groups: list[RodGroup], nodes: Tensor):
        self.groups = groups
        self.edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(g.edges for g in groups)])
        counts = [len(g.edges) for g in groups]
        names = groups[0].constants if groups else ()
        self.constants = {name: joined([g.constants[name] for g in groups], counts) for name in names}
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
        """Return a constant of the edges; an empty tensor where there are no rods."""
        return self.constants[name] if self.groups else self.length.new_zeros(0)

    def volume(self) -> Tensor:
        """Return the volume of each edge (.., E) [m^3]."""
        return self.constant("area") * self.length

    def sections(self) -> Sections:
        """Return the sections of the edges, as they are seen."""
        sizes = {name: per_element(self.constant(name), len(self.edges)) for name in ("height", "width")}
        circles = np.repeat([group.round for group in self.groups], [len(group.edges) for group in self.groups])
        arrays = {name: size.detach().cpu().numpy() for name, size in sizes.items()}
        return Sections(**arrays, round=circles.astype(bool))

    def radii_in_flow(self, directors: Tensor, planar: bool) -> tuple[Tensor, np.ndarray]:
        """Return half of the width (.., E) that flow across the edges meets [m], and of which edges that is known (E,).

        Of a rectangle it depends on the direction of the motion in space. A planar robot moves across y, so flow meets
        the side along y; where neither side is, it is not known, and half of the smaller side is returned.

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
        """Return the mass (.., N) that the rods give to nodes [kg]."""
        return at_nodes(0.5 * self.constant("density") * self.volume(), self.edges, n_nodes)

    def twist_mass(self) -> Tensor:
        """Return the moment of inertia (.., E) of the edges about their axes [kg m^2]."""
        mass = self.constant("density") * self.constant("polar") * self.length
        return mass.expand(*mass.shape[:-1], len(self.edges))

    def naturally_straight(self, edges: np.ndarray) -> np.ndarray:
        """Return for pairs of edges (S, 2) whether both were added as naturally straight."""
        straight = np.zeros(len(self.edges) + 1, dtype=bool)  # the last one stands for joint edges
        offset = 0
        for group in self.groups:
            straight[offset : offset + len(group.edges)] = group.natural == "straight"
            offset += len(group.edges)
        return straight[np.minimum(edges, len(self.edges))].all(1)


def edge_constants(
    section: Circle | Rectangle,
    material: Material,
    stiffness: dict[str, Number],
    contact_radius: Number | None,
    count: int,
) -> dict[str, Tensor]:
    """Return section, material and stiffness constants, each () or (.., E) or (B, 1)."""
    refuse_other_kind("section", section, (Circle, Rectangle), "a Circle or a Rectangle")
    refuse_other_kind("material", material, Material, "a Material")
    refuse_unlike_shapes((section, material), stiffness, contact_radius=contact_radius)
    s, m = section.constants(), material.constants()
    unknown = set(stiffness) - {"EA", "EI1", "EI2", "GJ"}
    if unknown:
        raise InputError(f"stiffness: expected any of EA, EI1, EI2, GJ, got {', '.join(sorted(unknown))}")
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
    """Return d1 (E, 3): on each rod's first edge as `first_director`, then carried along; or as given."""
    directors = nodes.new_zeros(sum(len(g.edges) for g in groups), 3)
    for rod in rods:
        tangent = unit(nodes[rod.nodes[1:]] - nodes[rod.nodes[:-1]])
        d = first_director(tangent[0])
        for k, edge in enumerate(rod.edges):
            d = transported(d, tangent[k - 1], tangent[k]) if k else d
            directors[edge] = d
    offset = 0
    for added in groups:
        if added.directors is not None:
            directors[offset : offset + len(added.edges)] = _normal_directors(added, nodes)
        offset += len(added.edges)
    return directors


def any_directors(nodes: Tensor, edges: np.ndarray) -> Tensor:
    """Return a director (J, 3) for each joint edge: which one does not matter.

    Springs with a rod's edge turn the frame to the rod's; others bend alike in all directions (`bend_twist_terms`).
    """
    return first_director(unit(nodes[edges[:, 1]] - nodes[edges[:, 0]]))


def _normal_directors(added: RodGroup, nodes: Tensor) -> Tensor:
    given = torch.as_tensor(added.directors)
    tangent = unit(nodes[added.edges[:, 1]] - nodes[added.edges[:, 0]])
    slope, length = (given * tangent).sum(-1), given.norm(dim=-1)
    wrong = ~((slope.abs() < ASKEW) & ((length - 1).abs() < ASKEW))
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        raise InputError(
            f"directors: expected unit vectors normal to their edges (to {ASKEW:g}), got {given[k].tolist()} at edge "
            f"{k}, of length {length[k].item():g} and with {slope[k].item():g} along the edge"
        )
    return unit(given - tangent * (given * tangent).sum(-1, keepdim=True))


def joint_edges(
    rod_edges: np.ndarray, triangles: np.ndarray, shell_edges: np.ndarray, sides: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sides of the triangles at which rods end or pass, and which rod edges each of them joins.

    Every triangle with a node of a rod brings its sides, except those along a rod edge.

    Returns
    -------
    edges (J, 2), weights (J, E) that average a constant of the rod edges that meet each joint edge's triangles.
    """
    at_rod = np.isin(triangles, rod_edges)  # (F, 3) corners that are nodes of rods
    touching = np.flatnonzero(at_rod.any(1))
    pairs = {tuple(sorted(edge)) for edge in rod_edges.tolist()}
    meets: dict[int, set[int]] = {}
    for face in touching:
        rods = np.flatnonzero(np.isin(rod_edges, triangles[face][at_rod[face]]).any(1)).tolist()
        for side in sides[face].tolist():
            if tuple(sorted(shell_edges[side].tolist())) not in pairs:
                meets.setdefault(side, set()).update(rods)
    found = sorted(meets)
    weights = np.zeros((len(found), len(rod_edges)))
    for row, side in enumerate(found):
        weights[row, list(meets[side])] = 1 / len(meets[side])
    return shell_edges[found].reshape(-1, 2), weights


# ---- elastic terms -----------------------------------------------------------------------------------------------


def stretch_terms(body: Body, rods: Rods) -> list[ElasticTerm]:
    """Return the stretch term, or none for a robot without rods."""
    if not rods.groups:
        return []
    stencil = StretchStencil(body.rod_edges, body.edge_length.clone())
    energy = LinearElastic({"EA": rods.constant("EA").clone()})
    dissipation = viscous({"EA": rods.constant("EA")}, rods.constant("relaxation"))
    return [ElasticTerm("stretch", stencil, energy, measure=None, dissipation=dissipation)]


def bend_twist_terms(
    body: Body,
    rods: Rods,
    directors: Tensor,
    joint_weights: np.ndarray,
    stiffened: Sequence[tuple[np.ndarray, dict[str, Tensor]]],
    averaged: bool,
    gregory: bool,
) -> list[ElasticTerm]:
    """Return the bend-twist term, or none for a robot without springs.

    A joint edge bends and twists as the mean of the rod edges at its triangles; a pair of joint edges bends alike in
    all directions, as their frames have none of their own. `stiffened` springs, given by their nodes (k, 3), have
    stiffnesses of their own. `averaged` says how curvature is measured, see `BendTwistStencil`, `gregory` how energy is
    added up at clamps, see `RobotBuilder`.
    """
    springs = body.springs
    replaced = [(_places(springs, nodes), values) for nodes, values in stiffened]
    if not len(springs.nodes):
        return []
    first_dofs = (3 * body.n_nodes, body.first_held)
    stencil = BendTwistStencil(springs.nodes, springs.edges, springs.signs, *first_dofs, averaged)
    length = _edge_lengths(body)
    inside, lengths = _halves_of_cells(springs, length)
    voronoi = lengths.mean(-1)
    bent = voronoi + torch.as_tensor(_end_corrections(springs, body.held, length.numpy())) if gregory else voronoi
    stencil.voronoi = voronoi
    stencil.follows, stencil.share = _followed(springs, body.held, voronoi)
    weights = torch.as_tensor(joint_weights)
    between_joints = torch.as_tensor((inside >= len(body.rod_edges)).all(1))
    constants = straight = _stiffnesses(rods, weights, inside, lengths, between_joints)
    for index, values in replaced:
        own = {name: _replaced(constants[name], index, value, len(voronoi)) for name, value in values.items()}
        constants = constants | own
    relaxation = _mean(_with_joints(rods.constant("relaxation"), weights), inside, lengths)
    stencil.alignment = torch.where(torch.as_tensor(springs.carried), 0.0, _built(body, stencil, directors).tau[:, 0])
    spring = _built(body, stencil, directors)
    natural = tuple(strain[:, 0].clone() for strain in (spring.kappa1, spring.kappa2, spring.tau))
    keep = torch.as_tensor(~(rods.naturally_straight(inside) & springs.along_rod))
    corners = None
    if not averaged:  # the papers have none of it
        plain = ~keep
        plain[[k for index, _ in replaced for k in index]] = True  # they have stiffnesses of their own
        halves = _of_halves(rods, weights, inside)
        corners = corner_matrices(spring, stencil.alignment, springs, lengths, halves, straight, plain)
    parts: dict[str, Sequence[int]] = {"bend": (0, 1), "twist": (2,)}
    return [
        ElasticTerm(
            "bend_twist",
            stencil,
            LinearElastic(constants, parts) if corners is None else CornerElastic(constants, parts, corners),
            measure=bent,
            scale=bent,
            natural=tuple(torch.where(keep, n, torch.zeros_like(n)) for n in natural),
            controlled=stencil.natural_of,
            dissipation=viscous(constants, relaxation, corners),
        )
    ]


def _edge_lengths(body: Body) -> Tensor:
    """Return the lengths (E + J,) of rod edges and joint edges [m]."""
    edges = np.concatenate([body.rod_edges, body.joint_edges])
    return torch.linalg.vector_norm(body.nodes[edges[:, 1]] - body.nodes[edges[:, 0]], dim=-1)


def _halves_of_cells(springs: Springs, length: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return the edges (S, 2) of springs, at a held tangent the same edge twice, and their lengths (S, 2) [m].

    A held tangent stands in place of an edge, and has no length.
    """
    held = springs.nodes[:, ::2] < 0
    inside = np.where(held, springs.edges[:, ::-1], springs.edges)
    return inside, torch.where(torch.as_tensor(held), 0.0, length[inside])


def _stiffnesses(
    rods: Rods, joint_weights: Tensor, inside: np.ndarray, lengths: Tensor, between_joints: Tensor
) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ of the springs, which are half of one edge and half of the other in series.

    Parameters
    ----------
    joint_weights : (J, E) how joint edges average the constants of the rods.
    inside : (S, 2) the edges of each spring; at a held tangent the same edge twice.
    lengths : (S, 2) of these [m], zero for the held tangent.
    between_joints : (S,) which springs are between two joint edges.
    """
    of_edges = {name: _with_joints(rods.constant(name), joint_weights) for name in ("EI1", "EI2", "GJ")}
    constants = {name: _in_series(stiffness, inside, lengths) for name, stiffness in of_edges.items()}
    return constants | _alike_at(between_joints, constants["EI1"], constants["EI2"])


def _of_halves(rods: Rods, joint_weights: Tensor, inside: np.ndarray) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ (.., S, 2) of both edges of the springs; joint edges bend alike in all directions.

    Parameters
    ----------
    joint_weights : (J, E) how joint edges average the constants of the rods.
    inside : (S, 2) the edges of each spring; at a held tangent the same edge twice.
    """
    found = {}
    for name in ("EI1", "EI2", "GJ"):
        stiffness = _with_joints(rods.constant(name), joint_weights)
        found[name] = per_element(stiffness, len(rods.edges) + len(joint_weights))[..., inside]
    return found | _alike_at(torch.as_tensor(inside >= len(rods.edges)), found["EI1"], found["EI2"])


def _end_corrections(springs: Springs, held: Held, length: np.ndarray) -> np.ndarray:
    """Return over how much more than its Voronoi length each spring (S,) bends by Gregory's rule [m].

    Voronoi lengths add up the energy of a rod by the trapezoidal rule. What that is off by comes from the slope of the
    density at its ends (Euler and Maclaurin); with a twelfth of the edge from the spring of a clamp that holds its
    direction to the next one along the rod that is gone. Between two clamps of one edge it cancels.

    Parameters
    ----------
    length : (E + J,) of the edges.
    """
    first, correction = len(springs.nodes) - len(held.nodes), np.zeros(len(springs.nodes))
    for k, edge in enumerate(held.edges.tolist(), start=first):
        beside = np.flatnonzero((springs.edges == edge).any(1) & springs.along_rod)
        beside = beside[beside != k]
        if len(beside):
            correction[k] -= length[edge] / 12
            correction[beside] += length[edge] / 12
    return correction


def _followed(springs: Springs, held: Held, voronoi: Tensor) -> tuple[Tensor, Tensor]:
    """Return which spring each spring of a held tangent follows (H,), and its share of each strain (H, 3)."""
    count = len(springs.nodes) - len(held.nodes)
    follows, share = np.zeros(len(held.nodes), dtype=np.int64), np.zeros((len(held.nodes), 3))
    for k, edge in enumerate(held.edges.tolist()):
        spring, side = np.nonzero((springs.edges[:count] == edge) & springs.along_rod[:count, None])
        if len(spring):
            follows[k] = spring[0]
            way = springs.signs[spring[0], side[0]]  # the second curvature changes its sign with the direction
            share[k] = np.array([1, way, 1]) * float(voronoi[count + k] / voronoi[spring[0]])
    return torch.as_tensor(follows), torch.as_tensor(share)


def refuse_twice(earlier: Sequence[tuple[np.ndarray, dict[str, Tensor]]], nodes: np.ndarray, names: set[str]) -> None:
    """Refuse springs, by their nodes (k, 3), that are there twice, or have one of these stiffnesses from `earlier`."""
    taken = {_either_way(triple) for given, values in earlier if names & set(values) for triple in given.tolist()}
    for triple in nodes.tolist():
        if _either_way(triple) in taken:
            raise InputError(
                f"set_spring_stiffness: expected each spring once, got {triple} twice with "
                f"{' and '.join(sorted(names))}"
            )
        taken.add(_either_way(triple))


def _either_way(triple: list[int]) -> tuple[int, ...]:
    """Return the nodes of a spring in the one of both directions that stands for it."""
    return tuple(min(triple, triple[::-1]))


def _places(springs: Springs, nodes: np.ndarray) -> np.ndarray:
    """Return the numbers (k,) of the springs with these nodes (k, 3), in either direction; refuse what is none."""
    known = {tuple(triple): k for k, triple in enumerate(springs.nodes.tolist())}
    known |= {triple[::-1]: k for triple, k in known.items()}
    index = []
    for triple in nodes.tolist():
        if tuple(triple) not in known:
            raise InputError(
                f"set_spring_stiffness: there is no spring of nodes {triple}: expected a node and two that edges join "
                "it with, in the middle that node"
            )
        index.append(known[tuple(triple)])
    return np.array(index)


def _replaced(constant: Tensor, index: np.ndarray, value: Tensor, count: int) -> Tensor:
    """Return a constant of `count` springs with other values at some of them."""
    robots = {n for tensor in (constant, value) for n in robot_dimension(tensor)}
    if len(robots - {1}) > 1:
        raise InputError(f"parameters are given for different numbers of robots: {sorted(robots)}")
    whole = constant.expand(*([max(robots)] if robots else []), count).clone()
    whole[..., index] = value.to(whole)
    return whole


def viscous(stiffness: dict[str, Tensor], relaxation: Tensor, corners: Tensor | None = None) -> LinearElastic | None:
    """Return the Kelvin-Voigt dissipation: relaxation time [s] x stiffness; None where there is none."""
    if not bool((relaxation > 0).any()):
        return None
    damping = {f"viscous_{name}": value * relaxation for name, value in stiffness.items()}
    return LinearElastic(damping) if corners is None else CornerElastic(damping, None, corners)


def _with_joints(per_edge: Tensor, weights: Tensor) -> Tensor:
    """Return a constant of the rod edges continued to the joint edges (J) by their weights (J, E)."""
    if not len(weights) or per_edge.dim() == 0 or per_edge.shape[-1] == 1:
        return per_edge
    return torch.cat([per_edge, per_edge @ weights.t()], dim=-1)


def _mean(per_edge: Tensor, edges: np.ndarray, lengths: Tensor) -> Tensor:
    """Return the mean of the two edges' values in each spring, weighted by their halves of its Voronoi cell."""
    if per_edge.dim() == 0 or per_edge.shape[-1] == 1:
        return per_edge.clone()
    return (per_edge[..., edges] * lengths).sum(-1) / lengths.sum(-1)


def _in_series(stiffness: Tensor, edges: np.ndarray, lengths: Tensor) -> Tensor:
    """Return the stiffness of springs from that of edges: both halves of a Voronoi cell carry the same moment.

    So their bends add up, each its length times moment over stiffness. A mean of the stiffnesses, which says that both
    halves bend alike, makes a rod whose section changes too stiff, by an error of first order in the edges' length.
    """
    if stiffness.dim() == 0 or stiffness.shape[-1] == 1:
        return stiffness.clone()
    return lengths.sum(-1) / (lengths / stiffness[..., edges]).sum(-1)


def _alike_at(springs: Tensor, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """Return EI1 and EI2 with their mean at some springs (S,), or halves of them, whose frames have no direction."""
    if torch.equal(first, second) or not bool(springs.any()):
        return {}
    mean = 0.5 * (first + second)
    return {name: torch.where(springs, mean, stiffness) for name, stiffness in (("EI1", first), ("EI2", second))}


def _built(body: Body, stencil: BendTwistStencil, directors: Tensor) -> BendTwist:
    """Return the springs of the shape as built, each number (S, 1)."""
    nodes = body.nodes
    edges = torch.as_tensor(body.framed_edges)
    # as the model does at rest, to the last bit: then no force is left there
    along = torch.cat([nodes[edges[:, 1]] - nodes[edges[:, 0]], body.held_tangents])
    tangent = Vec3.of(along).unit().stacked()
    q = body.rest_q[:, None]
    signs = torch.as_tensor(body.springs.signs, dtype=nodes.dtype)
    vectors = []
    for field, sign in ((tangent, True), (directors.to(nodes.dtype), False)):
        for k in range(2):
            v = field[body.springs.edges[:, k]]
            vectors.append((v * signs[:, k, None] if sign else v).t().unsqueeze(-1))
    start_e, start_f, director_e, director_f = vectors
    near = nodes.new_full((len(signs), 1), REST_BRANCH)
    local = stencil.local(q)
    alignment = stencil.alignment.to(nodes.dtype).unsqueeze(-1)
    return stencil.spring(local, start_e, start_f, director_e, director_f, near, alignment)

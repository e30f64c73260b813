"""`Body`, a robot without its forces: topology of nodes, rods, shells and springs, with masses and rest sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.geometry.frames import unit
from torchdismech.geometry.graphs import connected_parts
from torchdismech.geometry.surface import Surface
from torchdismech.geometry.topology import Held, Rod, Springs
from torchdismech.rows import totals, weighted_norms

__all__ = ["Body", "Clamp", "OnBody", "PartNames", "Sections", "concatenated_sizes"]


@dataclass(frozen=True)
class Clamp:
    """The nodes, angles and directions that one clamp holds.

    Attributes
    ----------
    nodes : (k,) indices of its nodes.
    placed : those that it holds in some direction: all, or none if it holds twist or tangents alone.
    framed : indices of the framed edges whose angles it holds.
    held : indices of the held tangents of this clamp (directions in which it holds rods).
    """

    nodes: np.ndarray
    placed: np.ndarray
    framed: np.ndarray
    held: np.ndarray


class Clamped(nn.Module):
    """Everything that the clamps of a robot hold, each once; what several clamps hold belongs to the last of them.

    Parameters
    ----------
    clamps : in their order.
    nodes, points : (N, 3) rest positions of the nodes and (C, 3) of the clamps' points [m].
    tangents, directors, held : of the framed edges (A, 3) and the held tangents (H, 3) at rest.

    Attributes
    ----------
    counts : numbers of held nodes, held framed edges, and held tangents.
    framed : indices of the held framed edges.
    at_rest : (V, 3) vectors that turn with the clamps, at rest: from the clamps' points to the nodes, then the tangents
        and the directors of the framed edges, then the held tangents.
    clamp : (V,) the number of the clamp that each of these vectors turns with.
    dofs : indices in q of the nodes' coordinates, the edges' angles and the held tangents' components.
    """

    framed: Tensor
    at_rest: Tensor
    clamp: Tensor
    dofs: Tensor

    def __init__(
        self, clamps: Sequence[Clamp], nodes: Tensor, points: Tensor, tangents: Tensor, directors: Tensor, held: Tensor
    ):
        super().__init__()
        node, of_node = _held_last(clamp.placed for clamp in clamps)
        edge, of_edge = _held_last(clamp.framed for clamp in clamps)
        end, of_end = _held_last(clamp.held for clamp in clamps)
        self.counts = len(node), len(edge), len(end)
        first_held, axes = 3 * len(nodes) + len(directors), torch.arange(3, device="cpu")
        buffers = {
            "framed": edge,
            "at_rest": torch.cat([nodes[node] - points[of_node], tangents[edge], directors[edge], held[end]]),
            "clamp": torch.cat([of_node, of_edge, of_edge, of_end]),
            "dofs": torch.cat(
                [
                    (3 * node[:, None] + axes).flatten(),
                    3 * len(nodes) + edge,
                    (first_held + 3 * end[:, None] + axes).flatten(),
                ]
            ),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)


def _held_last(held: Iterable[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return the indices that clamps hold, each once, and for each the number of the last clamp that holds it."""
    last = {int(index): number for number, indices in enumerate(held) for index in indices}
    index, clamp = (
        torch.tensor([*numbers], dtype=torch.long, device="cpu") for numbers in (last.keys(), last.values())
    )
    return index, clamp


@dataclass(frozen=True)
class PartNames:
    """User-given names of rod edges and triangles, by which contact laws can be set for some parts alone.

    Attributes
    ----------
    names : in the order in which they were first given, those of rods before those of shells alone.
    edges, triangles : (E,) and (F,) the index in `names` of each element, -1 without a name.
    """

    names: tuple[str, ...]
    edges: np.ndarray
    triangles: np.ndarray


@dataclass(frozen=True)
class Sections:
    """The cross-sections of rods, for figures and movies.

    Attributes
    ----------
    height, width : (E,) or (B, E) sizes along the first and second director [m].
    round : (E,) bool, whether a section is a circle rather than a rectangle.
    """

    height: np.ndarray
    width: np.ndarray
    round: np.ndarray


class Body(nn.Module):
    """Topology (fixed) and sizes (buffers; each may carry a leading robot dimension).

    Attributes
    ----------
    nodes : (N, 3) rest positions [m].
    rod_edges : (E, 2) node indices, as given.
    joint_edges : (J, 2) sides of triangles at which rods end: they carry a twist angle, but no mass of their own.
    normal_edges : (M, 2) sides of triangles that carry a mid-edge normal (no mass either).
    clamp_points : (C, 3) the mean of each clamp's nodes at rest [m].
    held : the nodes and rod edges at which clamps hold a rod's direction.
    clamps : one `Clamp` for each, in their order.
    rods : maximal chains of rod edges.
    springs : bend-twist springs between rod edges and joint edges, then those between held tangents and rod edges.
    surface : the triangles, their edges and hinges.
    part_names : names that users gave to rod edges and triangles.
    sections : of the rod edges.
    radius_known : (E,) bool, whether flow across a rod edge sees the width 2 `edge_radius` however the robot moves; not
        so for rectangles in space, which may turn about their axes.
    mass : (..., n) lumped mass of each dof [kg; kg m^2 for twist angles; 0 for angles without inertia].
    directors : (A, 3) reference directors of the framed edges at rest.
    held_tangents : (H, 3) directions in which rods are held at rest.
    link_share : (..., 2 (E + M)) the fraction of a node's lumped mass by which consistent masses couple the two ends of
        a link, for the first ends of `links`, then the second ones (see `Inertia`); one zero () for lumped masses.
    edge_inertia : (..., E) moment of inertia, about axes across the edge, of bodies that are fixed to rod edges
        [kg m^2] (see `Inertia`); None without such bodies.
    edge_length : (..., E) rest lengths of the rod edges [m].
    edge_area : (..., E) areas of their sections [m^2].
    edge_radius : (..., E) half of the width that flow across the edges sees [m]: the radius of a circle; for a
        rectangle of a planar robot with a side along y half of that side, for other rectangles half of the smaller one.
    edge_contact_radius : (..., E) radius of the capsules that stand for rod edges in contact [m].
    shell_edge_length : (..., M) rest lengths of the triangles' edges [m].
    face_area : (..., F) rest areas of the triangles [m^2].
    face_contact_radius : (..., F) half the shell's thickness [m].
    hinge_angle : (..., H) angles of the hinges at rest [rad].
    node_length : (..., N) length that belongs to each node [m]: half of each rod edge; of a shell, the node's share of
        its area over the square root of the shell's area, so that viscous drag does not depend on the mesh.
    node_volume : (..., N) volume of material that belongs to each node [m^3].
    """

    per_robot = (
        "mass",
        "link_share",
        "edge_inertia",
        "edge_length",
        "edge_area",
        "edge_radius",
        "edge_contact_radius",
        "shell_edge_length",
        "face_area",
        "face_contact_radius",
        "hinge_angle",
        "node_length",
        "node_volume",
    )
    not_negative = ("mass", "link_share", "edge_inertia", "edge_length", "edge_area", "shell_edge_length", "face_area")
    nodes: Tensor
    clamp_points: Tensor
    directors: Tensor
    held_tangents: Tensor
    mass: Tensor
    link_share: Tensor
    edge_inertia: Tensor | None
    edge_length: Tensor
    edge_area: Tensor
    edge_radius: Tensor
    edge_contact_radius: Tensor
    shell_edge_length: Tensor
    face_area: Tensor
    face_contact_radius: Tensor
    hinge_angle: Tensor
    node_length: Tensor
    node_volume: Tensor

    def __init__(
        self,
        *,
        nodes: Tensor,
        rod_edges: np.ndarray,
        joint_edges: np.ndarray,
        normal_edges: np.ndarray,
        rods: list[Rod],
        springs: Springs,
        surface: Surface,
        held: Held,
        clamps: Sequence[Clamp],
        part_names: PartNames,
        sections: Sections,
        radius_known: np.ndarray,
        directors: Tensor,
        held_tangents: Tensor,
        **sizes: Tensor | None,
    ):
        super().__init__()
        self.rod_edges = rod_edges
        self.joint_edges = joint_edges
        self.normal_edges = normal_edges
        self.rods = rods
        self.springs = springs
        self.surface = surface
        self.held, self.clamps = held, tuple(clamps)
        self.part_names, self.sections, self.radius_known = part_names, sections, radius_known
        self.register_buffer("nodes", nodes)
        self.register_buffer("directors", directors)
        self.register_buffer("held_tangents", held_tangents)
        means = [nodes[clamp.nodes].mean(0) for clamp in clamps]
        points = torch.stack(means) if means else nodes.new_zeros(0, 3)
        self.register_buffer("clamp_points", points, persistent=False)
        along = torch.cat([nodes[self.framed_edges[:, 1]] - nodes[self.framed_edges[:, 0]], held_tangents])
        self.clamped = Clamped(self.clamps, nodes, points, unit(along), directors, held_tangents)
        for name in self.per_robot:
            self.register_buffer(name, sizes[name])

    @property
    def n_nodes(self) -> int:
        """Number of nodes N."""
        return self.nodes.shape[0]

    @property
    def n_edges(self) -> int:
        """Number of rod edges E."""
        return len(self.rod_edges)

    @property
    def triangles(self) -> np.ndarray:
        """Triangles (F, 3), node indices, counter-clockwise seen from the outside."""
        return self.surface.triangles

    @property
    def framed_edges(self) -> np.ndarray:
        """Edges that carry a frame and an angle (A - H, 2): rod edges, joint edges, edges with a mid-edge normal.

        Behind them, held tangents have a frame and an angle each, too.
        """
        return np.concatenate([self.rod_edges, self.joint_edges, self.normal_edges])

    @property
    def links(self) -> np.ndarray:
        """All pairs of nodes that an edge joins (E + M, 2): rod edges, then edges of triangles."""
        return np.concatenate([self.rod_edges, self.surface.edges])

    @property
    def couples_nodes(self) -> bool:
        """Whether the mass matrix couples neighbouring nodes: for consistent masses, or bodies fixed to rod edges."""
        return self.edge_inertia is not None or bool((self.link_share != 0).any())

    @cached_property
    def part_of_node(self) -> np.ndarray:
        """Number (N,) of the connected part that each node belongs to; no edge joins two parts."""
        return connected_parts(self.n_nodes, self.links)

    def parts(self) -> int:
        """Return the number of connected parts of the robot."""
        return int(self.part_of_node.max()) + 1

    def said_of_part(self, number: int) -> str:
        """Return the name of a connected part for messages: its number, users' names in it, and its number of nodes."""
        nodes = np.flatnonzero(self.part_of_node == number)
        named = self.part_names
        own = np.isin(self.rod_edges[:, 0], nodes), np.isin(self.triangles[:, 0], nodes)
        numbers = {*named.edges[own[0]].tolist(), *named.triangles[own[1]].tolist()} - {-1}
        names = [repr(named.names[k]) for k in sorted(numbers)]
        return f"part{number} ({', '.join([*names, f'{len(nodes)} nodes from {nodes[0]} on'])})"

    @property
    def n_angles(self) -> int:
        """Number of angles A, one for each framed edge."""
        return self.directors.shape[0]  # the size of a tensor, as torch.compile cannot read NumPy arrays

    @property
    def n_held(self) -> int:
        """Number of held tangents H."""
        return self.held_tangents.shape[0]

    @property
    def first_held(self) -> int:
        """Index in q of the first component of the first held tangent."""
        return 3 * self.n_nodes + self.n_angles

    @property
    def n_dofs(self) -> int:
        """Number of dofs n = 3 N + A + 3 H."""
        return self.first_held + 3 * self.n_held

    @property
    def rest_q(self) -> Tensor:
        """The q (n,) of the rest shape."""
        return torch.cat([self.nodes.flatten(), self.nodes.new_zeros(self.n_angles), self.held_tangents.flatten()])

    def q_of(self, positions: Tensor, angles: Tensor | None = None) -> Tensor:
        """Return the q (B, n) of positions (B, N, 3) and angles (B, A), by default 0, with held tangents as at rest."""
        batch = len(positions)
        angles = positions.new_zeros(batch, self.n_angles) if angles is None else angles
        return torch.cat([positions.flatten(1), angles, self.held_tangents.flatten().expand(batch, -1)], dim=1)

    @property
    def n_springs(self) -> int:
        """Number of bend-twist springs between edges S, without those of held tangents."""
        return len(self.springs.nodes) - self.n_held

    def control_shapes(self, batch: int, continuum_triangles: int) -> dict[str, tuple[int, ...]]:
        """Return the expected shapes of the fields of `Control` for so many robots."""
        return {
            "natural_curvature": (batch, self.n_springs, 2),
            "natural_twist": (batch, self.n_springs),
            "natural_hinge_angle": (batch, len(self.surface.hinges)),
            "natural_membrane_strain": (batch, continuum_triangles, 3),
            "rest_length": (batch, self.n_edges),
            "clamped_q": (batch, self.n_dofs),
            "pose": (batch, len(self.clamps), 7),
            "force": (batch, self.n_dofs),
        }

    def on_nodes(self, force: Tensor) -> Tensor:
        """Return nodal forces (B, N, 3) as a generalised force (B, n), with zeros for angles and held tangents."""
        return torch.cat([force.flatten(1), force.new_zeros(force.shape[0], self.n_dofs - 3 * self.n_nodes)], dim=1)

    def node_mass(self) -> Tensor:
        """Return the mass of each node (..., N) [kg]."""
        return self.mass[..., : 3 * self.n_nodes : 3]

    def node_contact_radius(self) -> Tensor:
        """Return the largest contact radius (..., N) [m] of the rod edges and triangles at each node."""
        rods = _largest(self.edge_contact_radius, self.rod_edges, self.n_nodes)
        return torch.maximum(rods, _largest(self.face_contact_radius, self.triangles, self.n_nodes))

    def smallest_contact_radius(self) -> Tensor:
        """Return the smallest contact radius () of any rod edge or triangle [m]."""
        return torch.cat([self.edge_contact_radius.flatten(), self.face_contact_radius.flatten()]).min()

    def side_contact_radius(self) -> Tensor:
        """Return the largest contact radius (..., M) of the triangles at each of their edges [m]."""
        return _largest(self.face_contact_radius, self.surface.sides, len(self.surface.edges))

    def extent(self) -> Tensor:
        """Return how large the robot is () [m]: twice the distance of the farthest node from the mean of all, at rest.

        Unlike the diagonal of a box along the axes, this is the same however the robot is turned.
        """
        middle = totals(self.nodes.t()) / self.n_nodes
        return 2 * weighted_norms(self.nodes - middle, torch.ones_like(middle)).amax()

    def typical_length(self) -> Tensor:
        """Return the mean rest length () of all edges [m]."""
        lengths = torch.cat([self.edge_length.flatten(), self.shell_edge_length.flatten()])
        return totals(lengths.unsqueeze(0))[0] / lengths.numel()  # takes half the time of `mean`


class OnBody(nn.Module):
    """A module that acts on a robot: its parameters, and what is saved of it and loaded into it, are its own.

    Those of the robot are the model's to train and to save. So what one robot has learned goes into a module that
    belongs to another robot, or to none yet, and modules that hold it, such as an `nn.ModuleList`, have what it has.
    """

    body: Body

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield this module and those in it, as `nn.Module.named_modules` does, without the robot at any depth.

        So `parameters()`, `buffers()` and what torch derives from them leave the robot out, too.
        """
        memo = set() if memo is None else memo
        hidden = {self.body}.difference(memo) if hasattr(self, "body") else set()
        memo.update(hidden)
        try:
            yield from super().named_modules(memo, prefix, remove_duplicate)
        finally:
            memo.difference_update(hidden)  # also where the caller stops early, as its memo may serve it further

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules in this one, as `nn.Module.named_children` does, without the robot.

        So `to`, `float`, `train`, `eval` and `apply` leave the robot as it is.
        """
        return ((name, child) for name, child in super().named_children() if child is not self._modules.get("body"))

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the module's own numbers, as `nn.Module.state_dict` does, without those of the robot."""
        numbers = super().state_dict(*args, prefix=prefix, **kwargs)
        for name in _starting(numbers, f"{prefix}body."):
            del numbers[name]
        return numbers

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the module's own numbers; the robot keeps its own, also where earlier versions saved those, too."""
        for name in _starting(state_dict, f"{prefix}body."):
            del state_dict[name]
        if hasattr(self, "body"):
            state_dict |= self.body.state_dict(prefix=f"{prefix}body.", keep_vars=True)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _starting(names: Iterable[str], beginning: str) -> list[str]:
    return [name for name in names if name.startswith(beginning)]


def concatenated_sizes(*parts: Tensor) -> Tensor:
    """Return sizes (..., n_k) concatenated to (..., sum n_k), after broadcasting their leading robot dimensions."""
    leading = max((part.shape[:-1] for part in parts), key=lambda shape: (len(shape), *shape))
    return torch.cat([part.expand(*leading, part.shape[-1]) for part in parts], dim=-1)


def _largest(values: Tensor, elements: np.ndarray, count: int) -> Tensor:
    """Return the largest value (..., M) of the elements (M, k) at each place, (..., count); 0 where there is none."""
    index = torch.as_tensor(elements, device=values.device).flatten()
    spread = values.unsqueeze(-1).expand(*values.shape, elements.shape[1]).flatten(-2)
    result = values.new_zeros(*values.shape[:-1], count)
    return result.scatter_reduce(-1, index.expand(*values.shape[:-1], -1), spread, "amax")

"""Masses and moments of inertia of a robot's dofs, and the masses by which consistent masses couple nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import at_nodes, joined, refuse_lost, robots_of
from torchdismech.builder.rods import Rods
from torchdismech.builder.shells import Shells

__all__ = ["EdgeInertia", "edge_inertia", "link_share", "lumped_mass"]


@dataclass(frozen=True)
class EdgeInertia:
    """Moments of inertia of an object that is fixed to each of some rod edges (`RobotBuilder.add_inertia`).

    Attributes
    ----------
    edges : indices of the rod edges.
    across : moment of inertia about axes across an edge, () or (B, 1) [kg m^2].
    along : about the edge itself, likewise; None for none.
    """

    edges: np.ndarray
    across: Tensor
    along: Tensor | None


def lumped_mass(
    rods: Rods,
    shells: Shells,
    added: Sequence[tuple[np.ndarray, Tensor]],
    fixed: Sequence[EdgeInertia],
    count: int,
    massless_dofs: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the lumped mass (.., n) of every dof [kg, for angles kg m^2].

    Parameters
    ----------
    added : pairs of node indices and the mass () or (B, 1) that is added to each of these nodes [kg].
    fixed : inertias that are fixed to rod edges.
    count : number of nodes.
    massless_dofs : number of dofs without mass, which come last: angles of joint edges, of mid-edge normals and of held
        tangents, and the components of held tangents.
    dtype : of the model; masses that it cannot represent are refused.
    """
    of_nodes = [rods.node_mass(count), shells.node_mass(count), *(_on(nodes, mass, count) for nodes, mass in added)]
    along = ((own.edges, own.along) for own in fixed if own.along is not None)
    of_edges = [rods.twist_mass(), *(_on(edges, inertia, len(rods.edges)) for edges, inertia in along)]
    lead = robots_of([*of_nodes, *of_edges])
    node_mass, twist_mass = sum(of_nodes[1:], of_nodes[0]), sum(of_edges[1:], of_edges[0])
    refuse_lost(node_mass, "robot: the mass of a node", "give sizes in m, density in kg/m^3", dtype)
    refuse_lost(twist_mass, "robot: the inertia of an edge", "give sizes in m, density in kg/m^3", dtype)
    massless = node_mass.new_zeros(*lead, massless_dofs)
    parts = [node_mass.repeat_interleave(3, dim=-1), twist_mass]
    return torch.cat([*(p.expand(*lead, p.shape[-1]) for p in parts), massless], dim=-1)


def link_share(rods: Rods, shells: Shells, mass: Tensor) -> Tensor:
    """Return `Body.link_share` (.., 2 (E + M)): by how much mass each link couples its nodes, for consistent masses.

    Links are the rod edges, then the edges of triangles. The coupling mass of each is given as a share of the lumped
    mass at its first node, for all links, then at its second node.

    Parameters
    ----------
    mass : lumped mass (.., n) of every dof.
    """
    of_rods = rods.constant("density") * rods.volume() / 6
    of_faces = shells.constant("density") * shells.volume() / 12
    of_sides = at_nodes(of_faces, shells.surface.sides, len(shells.surface.edges))
    links = joined([of_rods, of_sides], [len(rods.edges), len(shells.surface.edges)])
    ends = torch.as_tensor(np.concatenate([rods.edges, shells.surface.edges]).T.reshape(-1), device="cpu")
    return torch.cat([links, links], dim=-1) / mass[..., 3 * ends]


def edge_inertia(fixed: Sequence[EdgeInertia], count: int) -> Tensor | None:
    """Return the moment of inertia across each of `count` rod edges of fixed objects (.., E) [kg m^2]; None without."""
    if not fixed:
        return None
    shares = [_on(own.edges, own.across, count) for own in fixed]
    robots_of(shares)
    return sum(shares[1:], shares[0])


def _on(index: np.ndarray, number: Tensor, count: int) -> Tensor:
    """Return a tensor (.., count) with a number () or (B, 1) at the places `index`, and zero elsewhere."""
    share = torch.zeros(count, dtype=number.dtype, device="cpu")
    share[torch.as_tensor(index, device="cpu")] = 1.0
    return number * share

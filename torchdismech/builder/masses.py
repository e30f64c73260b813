"""The masses of a robot's dofs, and what consistent masses couple nodes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.elements import at_nodes, refuse_lost, robot_dimension
from torchdismech.builder.rods import Rods
from torchdismech.builder.shells import Shells

__all__ = ["EdgeInertia", "edge_inertia", "link_share", "lumped_mass"]


@dataclass(frozen=True)
class EdgeInertia:
    """Moments of inertia of what is fixed to each of some edges of rods.

    Attributes
    ----------
    edges : their numbers.
    across, along : about axes across an edge, and about the edge, () or (B, 1) [kg m^2]; None where that is nothing.
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
    """Return the lumped mass (.., n) of every dof; joint edges, mid-edge normals and held tangents have none.

    Parameters
    ----------
    added : nodes, and the mass () or (B, 1) on each of them [kg].
    fixed : what is fixed to edges.
    count : number of nodes.
    massless_dofs : number of dofs without mass, which come last.
    """
    node_mass = rods.node_mass(count) + shells.node_mass(count)
    for index, mass in added:
        node_mass = node_mass + _on(index, mass, count)
    twist_mass = rods.twist_mass()
    for own in fixed:
        if own.along is not None:
            twist_mass = twist_mass + _on(own.edges, own.along, len(rods.edges))
    refuse_lost(node_mass, "robot: the mass of a node", "give sizes in m, density in kg/m^3", dtype)
    refuse_lost(twist_mass, "robot: the inertia of an edge", "give sizes in m, density in kg/m^3", dtype)
    lead = robot_dimension(node_mass) or robot_dimension(twist_mass)
    massless = node_mass.new_zeros(*lead, massless_dofs)
    parts = [node_mass.repeat_interleave(3, dim=-1), twist_mass]
    return torch.cat([*(p.expand(*lead, p.shape[-1]) for p in parts), massless], dim=-1)


def link_share(rods: Rods, shells: Shells, mass: Tensor) -> Tensor:
    """Return the shares (.., 2 (E + M)) of the mass at either end that links couple nodes by, see `Inertia`.

    Parameters
    ----------
    mass : lumped mass (.., n) of every dof.
    """
    of_rods = rods.constant("density") * rods.volume() / 6
    of_faces = shells.constant("density") * shells.volume() / 12
    of_sides = at_nodes(of_faces, shells.surface.sides, len(shells.surface.edges))
    counts = (len(rods.edges), len(shells.surface.edges))
    parts = (of_rods.expand(*of_rods.shape[:-1], counts[0]), of_sides)
    lead = robot_dimension(of_rods) or robot_dimension(of_sides)
    links = torch.cat([part.expand(*lead, n) for part, n in zip(parts, counts, strict=True)], dim=-1)
    ends = torch.as_tensor(np.concatenate([rods.edges, shells.surface.edges]).T.reshape(-1), device="cpu")
    return torch.cat([links, links], dim=-1) / mass[..., 3 * ends]


def edge_inertia(fixed: Sequence[EdgeInertia], count: int) -> Tensor | None:
    """Return the moment of inertia (.., E) about axes across `count` edges of what is fixed to them, if anything is."""
    if not fixed:
        return None
    return sum(
        (_on(own.edges, own.across, count) for own in fixed), torch.zeros(count, dtype=torch.float64, device="cpu")
    )


def _on(index: np.ndarray, number: Tensor, count: int) -> Tensor:
    """Return a number () or (B, 1) at each of some of `count` places, zero at the others (.., count)."""
    share = torch.zeros(count, dtype=number.dtype, device="cpu")
    share[torch.as_tensor(index, device="cpu")] = 1.0
    return number * share

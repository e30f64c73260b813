"""Builds the `Body` of a robot, its topology, masses and rest sizes, from rods, shells, clamps and added masses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.clamps import (
    ClampedNodes,
    clamped_parts,
    held_at_rest,
    held_by,
    held_frames,
    warn_of_directions_at_rest,
    with_held_springs,
)
from torchdismech.builder.elements import at_nodes, named, per_element
from torchdismech.builder.masses import EdgeInertia, edge_inertia, link_share, lumped_mass
from torchdismech.builder.rods import Rods, any_directors, joint_edges, rod_directors
from torchdismech.builder.shells import Shells, natural_hinge_angles, normal_directors
from torchdismech.geometry.checks import check_every_node_used, check_folds, check_rods
from torchdismech.geometry.topology import NO_PAIRS, Held, Rod, Springs, find_joint_springs, find_rods, find_springs
from torchdismech.robot.body import Body, PartNames

__all__ = ["BuiltBody", "built_body"]


@dataclass(frozen=True)
class BuiltBody:
    """The body of a robot, with data that its elastic terms are built from and that the body does not keep.

    Attributes
    ----------
    joint_weights : (J, E) by which the constants of joint edges are means of those of the rod edges.
    directors : (A, 3) of the framed edges at rest, in float64 also where the body is converted to another dtype.
    """

    body: Body
    joint_weights: Tensor
    directors: Tensor


def built_body(
    points: np.ndarray,
    rods: Rods,
    shells: Shells,
    clamps: Sequence[ClampedNodes],
    masses: Sequence[tuple[np.ndarray, Tensor]],
    fixed: Sequence[EdgeInertia],
    stiff: bool,
    consistent: bool,
    planar: bool,
    dtype: torch.dtype,
) -> BuiltBody:
    """Return the body in float64.

    Parameters
    ----------
    points : nodes (N, 3) [m].
    masses : pairs of node indices and the mass that is added to each of these nodes [kg].
    fixed : inertias that are fixed to rod edges.
    stiff : whether edges resist bending and twisting against each other where rods branch or meet shells.
    consistent : use consistent masses (motion linear along edges and in triangles) instead of lumped ones.
    planar : restrict the robot to the x-z plane.
    dtype : of the model; masses that it cannot represent are refused.
    """
    nodes, surface = torch.tensor(points, device="cpu"), shells.surface  # a copy, as each model has its own numbers
    _refuse_loose_nodes(points, rods, shells)
    chains = find_rods(len(points), rods.edges, NO_PAIRS if stiff else rods.going_on())
    joints, weights, springs = _joined(len(points), rods, shells, chains, stiff)
    check_folds(points, springs.nodes, where="robot")
    carried = surface.edges[shells.normal_edges()]
    framed = np.concatenate([rods.edges, joints, carried])
    held = held_by(clamps, rods.edges)
    along_rods = rod_directors(rods.groups, chains, nodes)
    held_tangents, at_clamps = held_frames(held, clamps, rods.edges, along_rods, nodes)
    _warn_of_idle_directions(rods, held, clamps, held_tangents, springs, nodes)
    directors = torch.cat([along_rods, any_directors(nodes, joints), normal_directors(shells, nodes), at_clamps])
    radius, radius_known = rods.radii_in_flow(along_rods, planar)
    massless = len(joints) + len(carried) + 4 * len(held.nodes)
    mass = lumped_mass(rods, shells, masses, fixed, len(points), massless, dtype)
    body = Body(
        nodes=nodes,
        rod_edges=rods.edges,
        joint_edges=joints,
        normal_edges=carried,
        rods=chains,
        springs=with_held_springs(springs, held, rods.edges, len(framed)),
        surface=surface,
        held=held,
        clamps=clamped_parts(clamps, framed, held),
        part_names=_part_names(rods, shells),
        sections=rods.sections(),
        radius_known=radius_known,
        directors=directors,
        held_tangents=held_tangents,
        mass=mass,
        link_share=link_share(rods, shells, mass) if consistent else nodes.new_zeros(()),
        edge_inertia=edge_inertia(fixed, len(rods.edges)),
        edge_radius=radius,
        **_sizes(rods, shells, nodes),
    )
    return BuiltBody(body, torch.as_tensor(weights, device="cpu"), directors)


def _refuse_loose_nodes(points: np.ndarray, rods: Rods, shells: Shells) -> None:
    """Refuse rod edges that are invalid once all nodes (N, 3) are known, and nodes that no rod or shell uses."""
    check_rods(points, rods.edges, where="robot")
    every = np.concatenate([rods.edges.reshape(-1), shells.surface.triangles.reshape(-1)])
    check_every_node_used(len(points), every, where="robot")


def _warn_of_idle_directions(
    rods: Rods, held: Held, clamps: Sequence[ClampedNodes], held_tangents: Tensor, springs: Springs, nodes: Tensor
) -> None:
    """Warn of clamp directions off their edges that do not bend the rod, as they are part of the rest shape."""
    unchecked = rods.naturally_straight(held.edges[:, None]) | held_at_rest(held, clamps)
    warn_of_directions_at_rest(held, unchecked, held_tangents, rods.edges, springs, nodes)


def _sizes(rods: Rods, shells: Shells, nodes: Tensor) -> dict[str, Tensor]:
    """Return lengths, areas, contact radii, angles and volumes of elements at rest, by their names in `Body`."""
    count, triangles = len(nodes), shells.surface.triangles
    volume = at_nodes(0.5 * rods.volume(), rods.edges, count) + at_nodes(shells.volume() / 3, triangles, count)
    of_rods = {name: per_element(rods.constant(name), len(rods.edges)) for name in ("area", "contact_radius")}
    return {
        **{f"edge_{name}": values for name, values in of_rods.items()},
        "edge_length": rods.length,
        "shell_edge_length": shells.edge_length,
        "face_area": shells.face_area,
        "face_contact_radius": per_element(0.5 * shells.constant("thickness"), len(triangles)),
        "hinge_angle": natural_hinge_angles(shells, nodes),
        "node_length": at_nodes(0.5 * rods.length, rods.edges, count) + shells.node_length(count),
        "node_volume": volume,
    }


def _part_names(rods: Rods, shells: Shells) -> PartNames:
    names_of_groups = [group.name for group in rods.groups], [group.name for group in shells.groups]
    names = tuple(dict.fromkeys(name for of_kind in names_of_groups for name in of_kind if name is not None))
    counts = [len(group.edges) for group in rods.groups], [len(group.triangles) for group in shells.groups]
    return PartNames(names, *(named(*of_kind, names) for of_kind in zip(names_of_groups, counts, strict=True)))


def _joined(
    n_nodes: int, rods: Rods, shells: Shells, chains: list[Rod], stiff: bool
) -> tuple[np.ndarray, np.ndarray, Springs]:
    """Return the joint edges (J, 2), their weights (J, E) over rod edges, and all springs.

    Without `stiff` joints there are no joint edges, and springs along rods only.
    """
    springs = find_springs(n_nodes, rods.edges, chains)
    if not stiff:
        return NO_PAIRS, np.zeros((0, len(rods.edges))), springs.selected(springs.along_rod)
    surface = shells.surface
    edges, weights = joint_edges(rods.edges, surface.triangles, surface.edges, surface.sides)
    network = np.concatenate([rods.edges, edges])
    return edges, weights, springs.joined(find_joint_springs(n_nodes, network, len(rods.edges)))

"""Corner matrices P, which correct the stiffness of springs at corners of rods and at nodes of several edges.

A spring stands for the two halves of its Voronoi cell, one of each edge. Where the edges meet at an angle phi at rest,
each half bends and twists about its own axes. Also, the strains measure a small rotation between the edges differently
than along a straight rod: the curvature 2 tan(phi / 2) has the derivative 1 / cos(phi / 2)^2. Stiffness times strain
squared would make a right angle four times as stiff in its plane as its two halves are.

With P, a small rotation takes the energy of both halves in series. Let omega be the rotation of the leaving edge
against the entering one, M the derivative of the strains, so that their change is M omega, and C the sum of the
compliances of both halves. The energy omega^T C^-1 omega / 2 is written as (P strain)^T D (P strain) / (2 length), with
the stiffnesses D = diag(EI1, EI2, GJ) of a straight spring. P is the identity along a straight rod.

Edges that different calls added may have material frames that are turned against each other about their common line.
There, too, each half is stiff about the axes of its own edge, so the directors of a round rod that continues a flat one
do not matter.

At a node of more than two edges there is a spring between each two. Think of every half as fixed to one point by a
stiffness K, the inverse of its compliance. With that point eliminated, halves i and j are coupled by the stiffness
K_i (sum of all K)^-1 K_j; for two edges alone that is (C_i + C_j)^-1. So a branch that carries nothing leaves a rod as
soft as it was. The unsymmetric part of this matrix is dropped; it is zero where edges meet at right angles, or where
each half has the same stiffness about all axes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.rods import BendTwist
from torchdismech.geometry.topology import Springs
from torchdismech.geometry.vec3 import Vec3

__all__ = ["corner_matrices"]

STRAIGHT = 1e-9  # a P whose entries differ from the identity by no more is that of a straight spring, but for rounding
ALIKE = 1e-12  # axes of two halves whose components differ by no more are the same, but for rounding
NAMES = ("EI1", "EI2", "GJ")


def corner_matrices(
    spring: BendTwist,
    alignment: Tensor,
    springs: Springs,
    lengths: Tensor,
    of_edges: dict[str, Tensor],
    of_springs: dict[str, Tensor],
    keep_identity: Tensor,
    between_calls: Tensor,
) -> Tensor | None:
    """Return the corner matrices P (.., S, 3, 3) of all springs; None where each of them is the identity.

    Parameters
    ----------
    spring : strains and frames at rest, each number (S, 1).
    alignment : (S,) angles by which the frames of the leaving edges are turned back in `spring` [rad].
    springs : nodes and edges of the springs.
    lengths : (S, 2) of their edges [m], zero for a held tangent.
    of_edges, of_springs : EI1, EI2 and GJ [N m^2] of the edges (.., S, 2), and of straight springs (.., S) or ().
    keep_identity : (S,) bool, springs that keep the identity in any case.
    between_calls : (S,) bool, springs between edges that different calls added. Where the frames of such edges are
        turned against each other, each half is stiff about the axes of its own edge. Within one call such a turn is a
        twist of the rod, spread over both halves, which are stiff about the axes half-way.
    """
    # the angle between the frame in which curvature is measured and the frame of either edge
    half = torch.where(between_calls, 0.5 * spring.tau[:, 0], 0.0)
    turns = -half, half + alignment
    axes, several = _axes(spring, turns), _at_nodes_of_several(springs)
    bent = ((axes[:, 0] - axes[:, 1]).abs() > ALIKE).flatten(1).any(1) | several | (turns[0] != 0) | (turns[1] != 0)
    chosen = bent.nonzero().squeeze(1)  # for the others P is the identity, whatever their stiffnesses
    if not len(chosen):
        return None
    lengths = lengths[chosen]
    of_edges = {name: x.to(lengths)[..., chosen, :] for name, x in of_edges.items()}
    straight_stiffness = [
        of_springs[name].to(lengths).expand(*of_springs[name].shape[:-1], len(bent))[..., chosen] for name in NAMES
    ]
    halves = _of_halves(axes[chosen], lengths, of_edges)
    stiffness = _of_pairs(halves, lengths > 0, springs.selected(bent.numpy()), several[chosen])
    by_strain = torch.linalg.inv(_strains_of_turns(spring)[chosen])
    stiffness = by_strain.transpose(1, 2) @ stiffness @ by_strain * lengths.mean(-1)[:, None, None]
    root = torch.stack([x.expand(stiffness.shape[:-2]) for x in straight_stiffness], -1).sqrt()
    values, vectors = torch.linalg.eigh(stiffness / (root[..., :, None] * root[..., None, :]))
    square_root = vectors * values.clamp_min(0.0).sqrt()[..., None, :] @ vectors.transpose(-1, -2)
    matrices = square_root * (root[..., None, :] / root[..., :, None])
    straight = torch.eye(3, dtype=matrices.dtype, device="cpu")
    unlike = ((matrices - straight).abs() > STRAIGHT).flatten(-2).any(-1)
    unlike = unlike.reshape(-1, len(chosen)).any(0) & ~keep_identity[chosen]
    if not bool(unlike.any()):
        return None
    all_matrices = straight.repeat(*matrices.shape[:-3], len(bent), 1, 1)
    return all_matrices.index_copy(-3, chosen[unlike], matrices[..., unlike, :, :])


def _axes(spring: BendTwist, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return unit vectors (S, 2, 3, 3): for both halves of each spring the axes about which EI1, EI2 and GJ act.

    Parameters
    ----------
    turns : (S,) for either half, the angle about its tangent from the frame of curvature to these axes [rad].
    """
    frames = (spring.m1e, spring.m2e, spring.e.t), (spring.m1f, spring.m2f, spring.f.t)
    halves = []
    for (m1, m2, tangent), turn in zip(frames, turns, strict=True):
        cos, sin = torch.cos(turn)[:, None], torch.sin(turn)[:, None]
        axes = m2.times(cos) - m1.times(sin), m1.times(cos) + m2.times(sin), tangent
        halves.append(torch.stack([axis.stacked().reshape(-1, 3) for axis in axes], 1))
    return torch.stack(halves, 1)


def _at_nodes_of_several(springs: Springs) -> Tensor:
    """Return a mask (S,) of the springs one of whose edges has another spring at the same node."""
    halves = np.stack([np.repeat(springs.nodes[:, 1], 2), springs.edges.ravel()], axis=1)
    _, half, count = np.unique(halves, axis=0, return_inverse=True, return_counts=True)
    return torch.as_tensor((count[half.reshape(-1, 2)] > 1).any(1), device="cpu")


def _of_halves(axes: Tensor, lengths: Tensor, of_edges: dict[str, Tensor]) -> Tensor:
    """Return the rotational stiffness K (.., S, 2, 3, 3) of both halves of each spring [N m]; 1 for held tangents.

    Parameters
    ----------
    axes : (S, 2, 3, 3), see `_axes`.
    """
    stiffness = torch.zeros((), dtype=lengths.dtype, device="cpu")
    for axis, name in zip(axes.unbind(2), NAMES, strict=True):
        about_axis = 2 * of_edges[name] / lengths
        stiffness = stiffness + about_axis[..., None, None] * (axis[..., :, None] * axis[..., None, :])
    return torch.where(lengths[..., None, None] > 0, stiffness, torch.eye(3, dtype=lengths.dtype, device="cpu"))


def _of_pairs(halves: Tensor, exists: Tensor, springs: Springs, several: Tensor) -> Tensor:
    """Return the stiffness (.., S, 3, 3) by which both halves (.., S, 2, 3, 3) of each spring are coupled [N m].

    Parameters
    ----------
    exists : (S, 2) which halves exist: a held tangent has none, it holds the other half fast.
    springs, several : the springs, and which (S,) share their centre node with other springs.
    """
    entering, leaving = halves.unbind(-3)
    total, centres = entering + leaving, springs.nodes[:, 1]  # at a node of one spring, these are all halves
    if bool(several.any()):
        pairs = np.stack([np.repeat(centres, 2), springs.edges.ravel()], -1)
        _, first = np.unique(pairs[exists.flatten().numpy()], axis=0, return_index=True)
        first = np.flatnonzero(exists.flatten().numpy())[first]
        at_node = total.new_zeros(*total.shape[:-3], int(centres.max()) + 1, 3, 3)
        at_node.index_add_(-3, torch.as_tensor(pairs[first, 0], device="cpu"), halves.flatten(-4, -3)[..., first, :, :])
        total = torch.where(several[:, None, None], at_node[..., centres, :, :], total)
    coupling = entering @ torch.linalg.inv(total) @ leaving
    coupling = 0.5 * (coupling + coupling.transpose(-1, -2))
    for k, other in ((0, leaving), (1, entering)):
        coupling = torch.where(exists[:, k, None, None], coupling, other)
    return coupling


def _strains_of_turns(spring: BendTwist) -> Tensor:
    """Return the derivatives M (S, 3, 3) of the strains by a rotation of the leaving edge against the entering one.

    The leaving edge turns by half of the rotation, the entering edge backwards by the other half.
    """
    rows = []
    for first in spring.first():
        turned = []
        for edge, by_edge, by_theta in ((spring.e, first[:3], first[6]), (spring.f, first[3:6], first[7])):
            turned.append(edge.t.times(1 / edge.inverse).cross(Vec3(*by_edge)) + edge.t.times(by_theta))
        rows.append((turned[1] - turned[0]).times(0.5).stacked().reshape(-1, 3))
    return torch.stack(rows, -2)

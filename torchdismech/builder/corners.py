"""Corners that are built into rods, and nodes where several edges meet: what they do to the stiffness of springs.

A spring stands for the two halves of its cell, one of each edge. Where edges meet at an angle at rest, these halves
bend and twist about axes of their own, and the strains count a small turn between the edges otherwise than along a
straight rod: the curvature 2 tan(phi / 2) grows with 1 / cos(phi / 2)^2. Stiffness times strain squared would make a
right angle four times as stiff in its plane as its halves are.

Here small turns cost what the halves cost in series. Let omega be the turn of the leaving edge against the entering
one, strains = M omega, and C the sum of the compliances of both halves. Then the energy is omega^T C^-1 omega / 2, or
(P strain)^T D (P strain) / (2 length) with the stiffnesses D = diag(EI1, EI2, GJ) of a straight spring and a matrix P
that is 1 there.

Edges that different calls added may have frames that are turned against each other about one line, and their halves are
stiff about axes of their own there, too: so the directors of a round rod that goes on from a flat one do not matter.

At a node of more than two edges there is a spring between each two. Let every half be held to one point by the inverse
K of its compliance. Without that point, two of them are held to each other by K_i (sum of all K)^-1 K_j, of two edges
alone (C_i + C_j)^-1. So what branches off, and carries nothing, leaves a rod as soft as it was. The part of this matrix
that is not symmetric is left out; there is none where edges meet at right angles, or all are alike in all directions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.rods import BendTwist
from torchdismech.geometry.topology import Springs
from torchdismech.geometry.vec3 import Vec3

__all__ = ["corner_matrices"]

STRAIGHT = 1e-9  # P of a straight spring is one; what differs by less is rounding
ALIKE = 1e-12  # axes of two halves that differ by less are the same, but for rounding
NAMES = ("EI1", "EI2", "GJ")


def corner_matrices(
    spring: BendTwist,
    alignment: Tensor,
    springs: Springs,
    lengths: Tensor,
    of_edges: dict[str, Tensor],
    of_springs: dict[str, Tensor],
    plain: Tensor,
    between_calls: Tensor,
) -> Tensor | None:
    """Return P (.., S, 3, 3) of springs; None where all of them are those of straight rods.

    Parameters
    ----------
    spring : at rest, each of its numbers (S, 1).
    alignment : (S,) by which the frames of the leaving edges are turned back in it [rad].
    springs : their nodes and edges.
    lengths : (S, 2) of the edges [m], zero for a held tangent.
    of_edges, of_springs : EI1, EI2 and GJ [N m^2] of the edges (.., S, 2), and of straight springs (.., S) or ().
    plain : (S,) springs to which none of this applies.
    between_calls : (S,) springs between edges that different calls added. Their halves keep the axes of their own edges
        where these are turned against each other; of one call the twist is one of the rod, that goes on within halves.
    """
    half = torch.where(between_calls, 0.5 * spring.tau[:, 0], 0.0)  # by which frames of curvature are turned from edges
    turns = -half, half + alignment
    axes, several = _axes(spring, turns), _at_nodes_of_several(springs)
    bent = ((axes[:, 0] - axes[:, 1]).abs() > ALIKE).flatten(1).any(1) | several | (turns[0] != 0) | (turns[1] != 0)
    chosen = bent.nonzero().squeeze(1)  # the others are those of straight rods, of any stiffness
    if not len(chosen):
        return None
    lengths = lengths[chosen]
    of_edges = {name: x.to(lengths)[..., chosen, :] for name, x in of_edges.items()}
    own = [of_springs[name].to(lengths).expand(*of_springs[name].shape[:-1], len(bent))[..., chosen] for name in NAMES]
    halves = _of_halves(axes[chosen], lengths, of_edges)
    stiffness = _of_pairs(halves, lengths > 0, springs.selected(bent.numpy()), several[chosen])
    by_strain = torch.linalg.inv(_strains_of_turns(spring)[chosen])
    stiffness = by_strain.transpose(1, 2) @ stiffness @ by_strain * lengths.mean(-1)[:, None, None]
    root = torch.stack([x.expand(stiffness.shape[:-2]) for x in own], -1).sqrt()
    values, vectors = torch.linalg.eigh(stiffness / (root[..., :, None] * root[..., None, :]))
    square_root = vectors * values.clamp_min(0.0).sqrt()[..., None, :] @ vectors.transpose(-1, -2)
    found = square_root * (root[..., None, :] / root[..., :, None])
    straight = torch.eye(3, dtype=found.dtype, device="cpu")
    unlike = ((found - straight).abs() > STRAIGHT).flatten(-2).any(-1)
    unlike = unlike.reshape(-1, len(chosen)).any(0) & ~plain[chosen]
    if not bool(unlike.any()):
        return None
    of_all = straight.repeat(*found.shape[:-3], len(bent), 1, 1)
    return of_all.index_copy(-3, chosen[unlike], found[..., unlike, :, :])


def _axes(spring: BendTwist, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return the axes (S, 2, 3, 3) about which both halves of springs have their EI1, EI2 and GJ.

    Parameters
    ----------
    turns : (S,) of either half, from the frame of curvature to these axes [rad].
    """
    frames = (spring.m1e, spring.m2e, spring.e.t), (spring.m1f, spring.m2f, spring.f.t)
    halves = []
    for (m1, m2, tangent), turn in zip(frames, turns, strict=True):
        cos, sin = torch.cos(turn)[:, None], torch.sin(turn)[:, None]
        axes = m2.times(cos) - m1.times(sin), m1.times(cos) + m2.times(sin), tangent
        halves.append(torch.stack([axis.stacked().reshape(-1, 3) for axis in axes], 1))
    return torch.stack(halves, 1)


def _at_nodes_of_several(springs: Springs) -> Tensor:
    """Return which springs (S,) are at a node of several."""
    centres = springs.nodes[:, 1]
    return torch.as_tensor(np.bincount(centres)[centres] > 1, device="cpu")


def _of_halves(axes: Tensor, lengths: Tensor, of_edges: dict[str, Tensor]) -> Tensor:
    """Return by which stiffness (.., S, 2, 3, 3) both halves of springs resist turns [N m]; one for held tangents.

    Parameters
    ----------
    axes : (S, 2, 3, 3) see `_axes`.
    """
    own = torch.zeros((), dtype=lengths.dtype, device="cpu")
    for axis, name in zip(axes.unbind(2), NAMES, strict=True):
        resists = 2 * of_edges[name] / lengths
        own = own + resists[..., None, None] * (axis[..., :, None] * axis[..., None, :])
    return torch.where(lengths[..., None, None] > 0, own, torch.eye(3, dtype=lengths.dtype, device="cpu"))


def _of_pairs(halves: Tensor, there: Tensor, springs: Springs, several: Tensor) -> Tensor:
    """Return by which stiffness (.., S, 3, 3) the halves (.., S, 2, 3, 3) of springs are held to each other [N m].

    Parameters
    ----------
    there : (S, 2) which halves there are: a held tangent has none, and holds the other one.
    springs, several : the springs, and which (S,) are at a node of several.
    """
    entering, leaving = halves.unbind(-3)
    total, centres = entering + leaving, springs.nodes[:, 1]  # of two edges: in the frames of their one spring
    if bool(several.any()):
        pairs = np.stack([np.repeat(centres, 2), springs.edges.ravel()], -1)
        _, first = np.unique(pairs[there.flatten().numpy()], axis=0, return_index=True)
        first = np.flatnonzero(there.flatten().numpy())[first]
        at_node = total.new_zeros(*total.shape[:-3], int(centres.max()) + 1, 3, 3)
        at_node.index_add_(-3, torch.as_tensor(pairs[first, 0], device="cpu"), halves.flatten(-4, -3)[..., first, :, :])
        total = torch.where(several[:, None, None], at_node[..., centres, :, :], total)
    held = entering @ torch.linalg.inv(total) @ leaving
    held = 0.5 * (held + held.transpose(-1, -2))
    for k, other in ((0, leaving), (1, entering)):
        held = torch.where(there[:, k, None, None], held, other)
    return held


def _strains_of_turns(spring: BendTwist) -> Tensor:
    """Return the derivatives (S, 3, 3) of the strains by a turn of the leaving edge against the entering one.

    Half of the turn is that of one edge, half, backwards, that of the other.
    """
    rows = []
    for first in spring.first():
        turned = []
        for edge, by_edge, by_theta in ((spring.e, first[:3], first[6]), (spring.f, first[3:6], first[7])):
            turned.append(edge.t.times(1 / edge.inverse).cross(Vec3(*by_edge)) + edge.t.times(by_theta))
        rows.append((turned[1] - turned[0]).times(0.5).stacked().reshape(-1, 3))
    return torch.stack(rows, -2)

"""Builds the elastic terms of rods: "stretch" of edges, "bend_twist" of springs (also at joints with shells)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.body import BuiltBody
from torchdismech.builder.corners import corner_matrices
from torchdismech.builder.elements import per_element, viscous
from torchdismech.builder.rods import Rods
from torchdismech.builder.spring_stiffness import SpringStiffness, with_values_at
from torchdismech.elastic import BendTwistStencil, Corners, ElasticTerm, LinearElastic, StretchStencil
from torchdismech.geometry.frames import REST_BRANCH
from torchdismech.geometry.rods import BendTwist
from torchdismech.geometry.topology import Held, Springs
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body

__all__ = ["bend_twist_terms", "rod_corners", "stretch_terms"]


def stretch_terms(body: Body, rods: Rods) -> list[ElasticTerm]:
    """Return a list with the stretch term of all rod edges, empty for a robot without rods."""
    if not rods.groups:
        return []
    stencil = StretchStencil(body.rod_edges, body.edge_length.clone())
    energy = LinearElastic({"EA": rods.constant("EA").clone()})
    dissipation = viscous({"EA": rods.constant("EA")}, rods.constant("relaxation"))
    return [ElasticTerm("stretch", stencil, energy, measure=None, dissipation=dissipation)]


def bend_twist_terms(
    built: BuiltBody,
    rods: Rods,
    set_stiffnesses: Sequence[SpringStiffness],
    corners: Tensor | None,
    averaged: bool,
    gregory: bool,
) -> list[ElasticTerm]:
    """Return a list with the bend-twist term of all springs, empty for a robot without springs.

    A joint edge has the mean stiffness of the rod edges that meet its triangles. A spring between two joint edges has
    the same stiffness about all axes across them, as the directors of joint edges are arbitrary.

    Parameters
    ----------
    set_stiffnesses : stiffnesses that replace those which follow from the springs' edges (`set_spring_stiffness`).
    corners : the corner matrices P of `rod_corners`, or None.
    averaged : measure curvature as in the papers, see `BendTwistStencil`.
    gregory : integrate the energy at clamps by Gregory's rule, see `RobotBuilder`.
    """
    body, weights = built.body, built.joint_weights
    springs = body.springs
    # before the return below: `numbers` refuses triples of nodes that are no spring, also for robots without springs
    replaced = [(own.numbers(springs), own.values) for own in set_stiffnesses]
    if not len(springs.nodes):
        return []
    edge_length = _edge_lengths(body)
    cells = _cells(springs, edge_length)
    voronoi = cells[1].mean(-1)
    stencil = _bend_twist_stencil(body, voronoi, built.directors, averaged)
    rest = _springs_as_built(body, stencil, built.directors)
    stiffness = _stiffnesses(rods, weights, *cells)
    for index, values in replaced:
        for name, value in values.items():
            stiffness[name] = with_values_at(stiffness[name], index, value, len(voronoi))
    straight = torch.as_tensor(rods.naturally_straight(cells[0]) & springs.along_rod, device="cpu")
    relaxation = _mean(_with_joints(rods.constant("relaxation"), weights), *cells)
    measure = voronoi
    if gregory:
        measure = voronoi + torch.as_tensor(_end_corrections(springs, body.held, edge_length.numpy()), device="cpu")
    natural = (strain[:, 0].clone() for strain in (rest.kappa1, rest.kappa2, rest.tau))
    parts: dict[str, Sequence[int]] = {"bend": (0, 1), "twist": (2,)}
    return [
        ElasticTerm(
            "bend_twist",
            stencil,
            LinearElastic(stiffness, parts),
            measure=measure,
            scale=measure.clone(),  # its own memory, as safetensors refuses tensors that share some
            natural=tuple(torch.where(straight, torch.zeros_like(strain), strain) for strain in natural),
            controlled=stencil.natural_of,
            dissipation=viscous(stiffness, relaxation),
            corners=None if corners is None else Corners(corners),
        )
    ]


def rod_corners(
    built: BuiltBody,
    rods: Rods,
    set_stiffnesses: Sequence[SpringStiffness],
    averaged: bool,
) -> Tensor | None:
    """Return the corner matrix P of each spring, (.., S, 3, 3), the identity along straight rods.

    P multiplies the strains before the energy sees them, so that edges which meet at an angle at rest are as stiff as
    their halves in series (`corners.py` derives it). None where all springs are straight, or `averaged`.

    Parameters
    ----------
    built : in float64, as straight rods whose nodes are rounded to float32 would count as slightly bent.
    set_stiffnesses, averaged : as for `bend_twist_terms`; springs with stiffnesses of their own keep the identity.
    """
    body, weights = built.body, built.joint_weights
    springs = body.springs
    if averaged or not len(springs.nodes):  # `averaged` reproduces the papers, which have no corner matrices
        return None
    edges, lengths = _cells(springs, _edge_lengths(body))
    stencil = _bend_twist_stencil(body, lengths.mean(-1), built.directors, averaged)
    keep_identity = torch.as_tensor(rods.naturally_straight(edges) & springs.along_rod, device="cpu")
    keep_identity[[k for own in set_stiffnesses for k in own.numbers(springs)]] = True
    return corner_matrices(
        _springs_as_built(body, stencil, built.directors),
        stencil.alignment,
        springs,
        lengths,
        _stiffnesses_of_edges(rods, weights, edges),
        _stiffnesses(rods, weights, edges, lengths),
        keep_identity,
        torch.as_tensor(rods.of_different_calls(edges), device="cpu"),
    )


def _bend_twist_stencil(body: Body, voronoi: Tensor, directors: Tensor, averaged: bool) -> BendTwistStencil:
    """Return the stencil of all springs.

    Where the frames of a spring's two edges are not carried from one to the other, its `alignment` is the angle between
    them as built, so that the twist there is zero at rest.
    """
    springs = body.springs
    first_dofs = (3 * body.n_nodes, body.first_held)
    stencil = BendTwistStencil(springs.nodes, springs.edges, springs.signs, *first_dofs, averaged)
    stencil.voronoi = voronoi
    stencil.follows, stencil.share = _followed(springs, body.held, voronoi)
    turned = _springs_as_built(body, stencil, directors).tau[:, 0]
    stencil.alignment = torch.where(torch.as_tensor(springs.carried, device="cpu"), 0.0, turned)
    return stencil


def _edge_lengths(body: Body) -> Tensor:
    """Return the lengths (E + J,) of rod edges and joint edges [m]."""
    edges = np.concatenate([body.rod_edges, body.joint_edges])
    return torch.linalg.vector_norm(body.nodes[edges[:, 1]] - body.nodes[edges[:, 0]], dim=-1)


def _cells(springs: Springs, edge_length: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return the two edges (S, 2) of each spring, half of which is its Voronoi cell, and their lengths (S, 2) [m].

    A held tangent takes the place of an edge, and has no length: there the spring's other edge is returned in its
    place, with length 0.
    """
    held = springs.nodes[:, ::2] < 0
    edges = np.where(held, springs.edges[:, ::-1], springs.edges)
    return edges, torch.where(torch.as_tensor(held, device="cpu"), 0.0, edge_length[edges])


def _stiffnesses(rods: Rods, joint_weights: Tensor, edges: np.ndarray, lengths: Tensor) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ of the springs [N m^2]: the halves of their two edges in series.

    Parameters
    ----------
    joint_weights : (J, E) by which the constants of joint edges are means of those of the rod edges.
    edges, lengths : of the springs, see `_cells`.
    """
    of_edges = {name: _with_joints(rods.constant(name), joint_weights) for name in ("EI1", "EI2", "GJ")}
    stiffness = {name: _in_series(value, edges, lengths) for name, value in of_edges.items()}
    between_joints = torch.as_tensor((edges >= len(rods.edges)).all(1), device="cpu")
    return stiffness | _alike_at(between_joints, stiffness["EI1"], stiffness["EI2"])


def _stiffnesses_of_edges(rods: Rods, joint_weights: Tensor, edges: np.ndarray) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ (.., S, 2) of both edges of each spring [N m^2]; joint edges have equal EI1 and EI2.

    Parameters
    ----------
    joint_weights : (J, E) by which the constants of joint edges are means of those of the rod edges.
    edges : of the springs, see `_cells`.
    """
    stiffnesses = {}
    for name in ("EI1", "EI2", "GJ"):
        stiffness = _with_joints(rods.constant(name), joint_weights)
        stiffnesses[name] = per_element(stiffness, len(rods.edges) + len(joint_weights))[..., edges]
    return stiffnesses | _alike_at(
        torch.as_tensor(edges >= len(rods.edges), device="cpu"), stiffnesses["EI1"], stiffnesses["EI2"]
    )


def _end_corrections(springs: Springs, held: Held, length: np.ndarray) -> np.ndarray:
    """Return what Gregory's rule adds to each spring's Voronoi length, over which its energy is integrated, (S,) [m].

    With Voronoi lengths the energy of a rod is integrated by the trapezoidal rule, whose error comes from the slope of
    the energy density at the rod's ends (Euler and Maclaurin). At a clamp that holds a direction, moving a twelfth of
    the edge's length from the clamp's spring to the next spring along the rod cancels that error. On an edge that is
    held at both nodes the two corrections cancel each other.

    Parameters
    ----------
    length : (E + J,) of the edges [m].
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
    """Return `follows` (H,) and `share` (H, 3) of `BendTwistStencil`, by which controls act on springs of clamps.

    The spring of a held tangent follows the next spring along its rod: of each natural strain that a control sets there
    it takes a share, by the ratio of their Voronoi lengths; zero where the edge has no other spring along the rod.
    """
    count = len(springs.nodes) - len(held.nodes)
    follows, share = np.zeros(len(held.nodes), dtype=np.int64), np.zeros((len(held.nodes), 3))
    for k, edge in enumerate(held.edges.tolist()):
        spring, side = np.nonzero((springs.edges[:count] == edge) & springs.along_rod[:count, None])
        if len(spring):
            follows[k] = spring[0]
            # +1 or -1: kappa2 changes its sign with the direction in which the edge is walked, kappa1 and tau do not
            way = springs.signs[spring[0], side[0]]
            share[k] = np.array([1, way, 1]) * float(voronoi[count + k] / voronoi[spring[0]])
    return torch.as_tensor(follows, device="cpu"), torch.as_tensor(share, device="cpu")


def _with_joints(per_edge: Tensor, weights: Tensor) -> Tensor:
    """Return a constant of the rod edges (.., E) extended to the joint edges, (.., E + J), by their weights (J, E)."""
    if not len(weights) or per_edge.dim() == 0 or per_edge.shape[-1] == 1:
        return per_edge
    return torch.cat([per_edge, per_edge @ weights.t()], dim=-1)


def _mean(per_edge: Tensor, edges: np.ndarray, lengths: Tensor) -> Tensor:
    """Return the mean (.., S) of a constant of edges over both edges of each spring, weighted by their lengths."""
    if per_edge.dim() == 0 or per_edge.shape[-1] == 1:
        return per_edge.clone()
    return (per_edge[..., edges] * lengths).sum(-1) / lengths.sum(-1)


def _in_series(stiffness: Tensor, edges: np.ndarray, lengths: Tensor) -> Tensor:
    """Return the stiffness (.., S) of springs from that of edges: the two halves of a Voronoi cell in series.

    Both halves carry the same moment, so their rotations, length times moment over stiffness, add up. The mean of the
    two stiffnesses would assume equal curvature in both halves; it makes a rod whose section changes too stiff, by an
    error of first order in the edges' length.
    """
    if stiffness.dim() == 0 or stiffness.shape[-1] == 1:
        return stiffness.clone()
    return lengths.sum(-1) / (lengths / stiffness[..., edges]).sum(-1)


def _alike_at(springs: Tensor, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """Return EI1 and EI2 with both replaced by their mean where the mask `springs` holds; {} if that changes nothing.

    The mask (S,), or (S, 2) for each half of a spring, marks joint edges, whose directors are arbitrary.
    """
    if torch.equal(first, second) or not bool(springs.any()):
        return {}
    mean = 0.5 * (first + second)
    return {name: torch.where(springs, mean, stiffness) for name, stiffness in (("EI1", first), ("EI2", second))}


def _springs_as_built(body: Body, stencil: BendTwistStencil, directors: Tensor) -> BendTwist:
    """Return strains and frames of all springs in the shape as built, each number (S, 1)."""
    nodes = body.nodes
    edges = torch.as_tensor(body.framed_edges, device="cpu")
    # The same operations as the model's at rest, so that both agree to the last bit and no force is left at rest.
    along = torch.cat([nodes[edges[:, 1]] - nodes[edges[:, 0]], body.held_tangents])
    tangent = Vec3.of(along).unit().stacked()
    q = body.rest_q[:, None]
    signs = torch.as_tensor(body.springs.signs, dtype=nodes.dtype, device="cpu")
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

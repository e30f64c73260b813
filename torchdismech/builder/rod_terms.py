"""Elastic terms of rods: stretching, and bending and twisting, also of joints with shells."""

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
    """Return the stretch term, or none for a robot without rods."""
    if not rods.groups:
        return []
    stencil = StretchStencil(body.rod_edges, body.edge_length.clone())
    energy = LinearElastic({"EA": rods.constant("EA").clone()})
    dissipation = viscous({"EA": rods.constant("EA")}, rods.constant("relaxation"))
    return [ElasticTerm("stretch", stencil, energy, measure=None, dissipation=dissipation)]


def bend_twist_terms(
    built: BuiltBody,
    rods: Rods,
    given: Sequence[SpringStiffness],
    corners: Tensor | None,
    averaged: bool,
    gregory: bool,
) -> list[ElasticTerm]:
    """Return the bend-twist term, or none for a robot without springs.

    A joint edge bends and twists as the mean of the rod edges at its triangles; a pair of joint edges bends alike in
    all directions, as their frames have none of their own.

    Parameters
    ----------
    given : springs whose stiffnesses do not follow from their edges.
    corners : what they do to springs, see `rod_corners`.
    averaged : how curvature is measured, see `BendTwistStencil`.
    gregory : whether energy is added up at clamps by Gregory's rule, see `RobotBuilder`.
    """
    body, weights = built.body, built.joint_weights
    springs = body.springs
    replaced = [(own.numbers(springs), own.values) for own in given]  # refuses what is no spring, also where none is
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
            scale=measure,
            natural=tuple(torch.where(straight, torch.zeros_like(strain), strain) for strain in natural),
            controlled=stencil.natural_of,
            dissipation=viscous(stiffness, relaxation),
            corners=None if corners is None else Corners(corners),
        )
    ]


def rod_corners(
    built: BuiltBody,
    rods: Rods,
    given: Sequence[SpringStiffness],
    averaged: bool,
) -> Tensor | None:
    """Return what corners do to the strains of springs (.., S, 3, 3), see `corners.py`; None where there are none.

    Parameters
    ----------
    built : in float64: rounded to single precision, each straight rod would have corners.
    given, averaged : as for `bend_twist_terms`.
    """
    body, weights = built.body, built.joint_weights
    springs = body.springs
    if averaged or not len(springs.nodes):  # the papers have none of it
        return None
    edges, lengths = _cells(springs, _edge_lengths(body))
    stencil = _bend_twist_stencil(body, lengths.mean(-1), built.directors, averaged)
    plain = torch.as_tensor(rods.naturally_straight(edges) & springs.along_rod, device="cpu")
    plain[[k for own in given for k in own.numbers(springs)]] = True
    return corner_matrices(
        _springs_as_built(body, stencil, built.directors),
        stencil.alignment,
        springs,
        lengths,
        _stiffnesses_of_edges(rods, weights, edges),
        _stiffnesses(rods, weights, edges, lengths),
        plain,
        torch.as_tensor(rods.of_different_calls(edges), device="cpu"),
    )


def _bend_twist_stencil(body: Body, voronoi: Tensor, directors: Tensor, averaged: bool) -> BendTwistStencil:
    """Return the stencil of all springs, with the angles by which frames that do not follow each other are turned."""
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
    """Return the edges (S, 2) of which springs have a half each in their Voronoi cells, and their lengths (S, 2) [m].

    A held tangent stands in place of an edge and has no length: the spring has the same edge twice there.
    """
    held = springs.nodes[:, ::2] < 0
    edges = np.where(held, springs.edges[:, ::-1], springs.edges)
    return edges, torch.where(torch.as_tensor(held, device="cpu"), 0.0, edge_length[edges])


def _stiffnesses(rods: Rods, joint_weights: Tensor, edges: np.ndarray, lengths: Tensor) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ of the springs, which are half of one edge and half of the other in series.

    Parameters
    ----------
    joint_weights : (J, E) how joint edges average the constants of the rods.
    edges, lengths : of the springs, see `_cells`.
    """
    of_edges = {name: _with_joints(rods.constant(name), joint_weights) for name in ("EI1", "EI2", "GJ")}
    stiffness = {name: _in_series(value, edges, lengths) for name, value in of_edges.items()}
    between_joints = torch.as_tensor((edges >= len(rods.edges)).all(1), device="cpu")
    return stiffness | _alike_at(between_joints, stiffness["EI1"], stiffness["EI2"])


def _stiffnesses_of_edges(rods: Rods, joint_weights: Tensor, edges: np.ndarray) -> dict[str, Tensor]:
    """Return EI1, EI2 and GJ (.., S, 2) of both edges of the springs; joint edges bend alike in all directions.

    Parameters
    ----------
    joint_weights : (J, E) how joint edges average the constants of the rods.
    edges : of the springs, see `_cells`.
    """
    found = {}
    for name in ("EI1", "EI2", "GJ"):
        stiffness = _with_joints(rods.constant(name), joint_weights)
        found[name] = per_element(stiffness, len(rods.edges) + len(joint_weights))[..., edges]
    return found | _alike_at(torch.as_tensor(edges >= len(rods.edges), device="cpu"), found["EI1"], found["EI2"])


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
    return torch.as_tensor(follows, device="cpu"), torch.as_tensor(share, device="cpu")


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


def _springs_as_built(body: Body, stencil: BendTwistStencil, directors: Tensor) -> BendTwist:
    """Return the springs of the shape as built, each number (S, 1)."""
    nodes = body.nodes
    edges = torch.as_tensor(body.framed_edges, device="cpu")
    # as the model does at rest, to the last bit: then no force is left there
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

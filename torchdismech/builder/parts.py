"""Warnings of `RobotBuilder.finalize`: parts that intersect without being joined, and obstacles that are too thin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact import Obstacle
from torchdismech.contact.pairs.broad_phase import overlapping
from torchdismech.contact.pairs.pair_loops import Kernel, vectors
from torchdismech.contact.passing import noticed_width
from torchdismech.errors import warn
from torchdismech.geometry.distances import closest_on_triangle, closest_segments
from torchdismech.robot.body import Body

__all__ = ["warn_of_passing", "warn_of_thin_obstacles"]

# The spacing of contact points that a warning advises: an obstacle dips in between two points by at most DIP times the
# contact radius, and the spacing is at most 1 / DIVISIONS of the obstacle's width.
DIP = 0.1
DIVISIONS = 8


@torch.no_grad()
def warn_of_passing(body: Body, join_distance: float) -> None:
    """Warn of the first two parts found whose distance is below the smaller contact radius, though no edge joins them.

    Most often a joint was forgotten. Parts that rest on each other are farther apart, so they cause no warning.
    """
    if body.parts() == 1:
        return
    edges = torch.as_tensor(body.links, device="cpu")
    points, triangles = torch.arange(body.n_nodes, device="cpu")[:, None], torch.as_tensor(body.triangles, device="cpu")
    thick = _radii_of_links(body)
    sizes = _least(body.node_contact_radius()), _least(body.face_contact_radius)
    for kernel, first, second, radii in (
        (closest_segments, edges, edges, (thick, thick)),
        (closest_on_triangle, points, triangles, sizes),
    ):
        nodes = _passing(body, kernel, first, second, *radii)
        if nodes is not None:
            one, other = (body.said_of_part(body.part_of_node[node]) for node in nodes)
            one_place = f"one place (nodes closer than join_distance, {join_distance:g} m, are one)"
            warn(
                f"robot: {one} and {other} go through each other near nodes {nodes[0]} and {nodes[1]} and are not "
                f"joined: give both a node at {one_place}, "
                "or, if that is meant, warnings.filterwarnings('ignore', 'robot: .* not joined')"
            )
            return


@torch.no_grad()
def warn_of_thin_obstacles(body: Body, obstacles: Sequence[Obstacle]) -> None:
    """Warn where an obstacle is so thin that it may pass between two neighbouring contact points of a robot."""
    links, radii = torch.as_tensor(body.links, device="cpu"), _radii_of_links(body).cpu()
    lengths = torch.linalg.vector_norm(body.nodes[links[:, 0]] - body.nodes[links[:, 1]], dim=1).cpu()
    for obstacle in obstacles:
        touching = obstacle.touches.cpu()[links].all(1)
        if obstacle.shape.endless or not bool(touching.any()):
            continue
        apart = lengths[touching].clamp(max=math.inf if obstacle.spacing is None else obstacle.spacing)
        too_far = apart - noticed_width(obstacle, radii[touching])
        worst = int(too_far.argmax())
        if too_far[worst] > 0:
            radius = float(radii[touching][worst])
            width = float(obstacle.shape.width.min()) + 2 * radius
            round_to = float(obstacle.shape.sharpest.min())
            # on an edge it dips by spacing^2 / (8 (R + radius)), in a triangle by a third more (docs/contact.md)
            spacing = min(width / DIVISIONS, math.sqrt(6 * DIP * radius * (round_to + radius)))
            stiff = "" if obstacle.constrained else "; the stiffness of what touches at once adds up over points"
            warn(
                f"obstacle {obstacle.name!r} is {width:.2g} m wide, the robot's surface included, and the points that "
                f"touch it are up to {apart[worst]:.2g} m apart: it passes between two. Give "
                f"Obstacle(spacing=...), such as {spacing:.2g}, by which it dips in between points by a tenth of their "
                f"radius at most{stiff}. Or take shorter edges (docs/contact.md)"
            )


def _passing(
    body: Body, kernel: Kernel, first: Tensor, second: Tensor, radius: Tensor, other: Tensor
) -> tuple[int, int] | None:
    """Return a node of each of the two parts that are nearest to each other, if they pass through; else None.

    Parameters
    ----------
    first, second : node indices (M, k) of the primitives: edges and edges, or points and triangles.
    radius, other : (M,) contact radii of `first` and `second` [m].
    """
    boxes, others = (_boxes(body.nodes[nodes], r) for nodes, r in ((first, radius), (second, other)))
    _, i, j = overlapping(*boxes) if first is second else overlapping(*boxes, *others)
    part = torch.as_tensor(body.part_of_node, device="cpu")
    apart = part[first[i, 0]] != part[second[j, 0]]
    i, j = i[apart], j[apart]
    corners = vectors(body.nodes[torch.cat([first[i], second[j]], dim=1)].flatten(1).t())
    distance = kernel(*corners).squared_distance(corners).sqrt()
    near = (distance < torch.minimum(radius[i], other[j])).nonzero().flatten()
    if not len(near):
        return None
    k = near[distance[near].argmin()]
    return int(first[i[k], 0]), int(second[j[k], 0])


def _radii_of_links(body: Body) -> Tensor:
    """Return the contact radii (S,) of edges and of triangles' sides [m], in each the least of the robots'."""
    return torch.cat([_least(body.edge_contact_radius), _least(body.side_contact_radius())])


def _boxes(corners: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return lower and upper corners (1, M, 3) of boxes about primitives (M, k, 3), with half a radius to spare."""
    more = 0.5 * radius[:, None]
    return (corners.amin(1) - more)[None], (corners.amax(1) + more)[None]


def _least(radius: Tensor) -> Tensor:
    """Return the smallest value over all robots of each of the radii (.., M), (M,)."""
    return radius if radius.dim() == 1 else radius.amin(0)

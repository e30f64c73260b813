"""Parts that go through each other although no edge joins them, most often as a joint was forgotten; thin obstacles."""

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

DIP = 0.1  # of the contact radius, that an obstacle may get in between two points by the spacing that is advised
DIVISIONS = 8  # of what is thin, by the spacing that a warning names


@torch.no_grad()
def warn_of_passing(body: Body, join_distance: float) -> None:
    """Warn once where two parts come nearer to each other than the thinner of them is thick, and are not joined.

    Parts that lie on each other stay farther apart, and so does what is thrown, so that these are not warned of.
    """
    if body.parts() == 1:
        return
    edges = torch.as_tensor(body.links, device="cpu")
    points, triangles = torch.arange(body.n_nodes, device="cpu")[:, None], torch.as_tensor(body.triangles, device="cpu")
    thick = torch.cat([_least(body.edge_contact_radius), _least(body.side_contact_radius())])
    sizes = _least(body.node_contact_radius()), _least(body.face_contact_radius)
    for kernel, first, second, radii in (
        (closest_segments, edges, edges, (thick, thick)),
        (closest_on_triangle, points, triangles, sizes),
    ):
        found = _passing(body, kernel, first, second, *radii)
        if found is not None:
            one, other = (body.said_of_part(body.part_of_node[node]) for node in found)
            one_place = f"one place (nodes closer than join_distance, {join_distance:g} m, are one)"
            warn(
                f"robot: {one} and {other} go through each other near nodes {found[0]} and {found[1]} and are not "
                f"joined: give both a node at {one_place}, "
                "or, if that is meant, warnings.filterwarnings('ignore', 'robot: .* not joined')"
            )
            return


@torch.no_grad()
def warn_of_thin_obstacles(obstacles: Sequence[Obstacle]) -> None:
    """Warn where an obstacle may get between two points of a robot that touch it."""
    for obstacle in obstacles:
        radius = float(obstacle.points.radius.min())
        width = float(obstacle.shape.width.min()) + 2 * radius
        if not obstacle.shape.endless and obstacle.points.largest_spacing > noticed_width(obstacle, radius):
            round_to = float(obstacle.shape.sharpest.min())
            # on an edge it dips by spacing^2 / (8 (R + radius)), in a triangle by a third more (docs/contact.md)
            spacing = min(width / DIVISIONS, math.sqrt(6 * DIP * radius * (round_to + radius)))
            stiff = "" if obstacle.constrained else "; the stiffness of what touches at once adds up over points"
            warn(
                f"obstacle {obstacle.name!r} is {width:.2g} m wide, the robot's surface included, and the points that "
                f"touch it are up to {obstacle.points.largest_spacing:.2g} m apart: it passes between two. Give "
                f"Obstacle(spacing=...), such as {spacing:.2g}, by which it dips in between points by a tenth of their "
                f"radius at most{stiff}. Or take shorter edges (docs/contact.md)"
            )


def _passing(
    body: Body, kernel: Kernel, first: Tensor, second: Tensor, radius: Tensor, other: Tensor
) -> tuple[int, int] | None:
    """Return a node of each of two parts that go through each other; None where none do.

    Parameters
    ----------
    first, second : nodes of edges and edges, or of points and triangles.
    radius, other : of their surfaces [m].
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


def _boxes(corners: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return boxes (1, M, 3) about primitives with corners (M, k, 3), half their radius wider on each side."""
    more = 0.5 * radius[:, None]
    return (corners.amin(1) - more)[None], (corners.amax(1) + more)[None]


def _least(radius: Tensor) -> Tensor:
    """Return the least that radii (.., M) are in any robot, (M,)."""
    return radius if radius.dim() == 1 else radius.amin(0)

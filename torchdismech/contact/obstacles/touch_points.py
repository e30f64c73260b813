"""Points of a robot that touch obstacles, and its surface there.

These are its nodes and, with a spacing, points on edges and in triangles.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.forces.dependence import Block
from torchdismech.robot.body import Body, concatenated_sizes

__all__ = ["Surface", "TouchPoints"]

MAX_POINTS = 1_000_000  # on all edges, or in all triangles, of a robot
ROUNDING = 1e-6  # relative, enough for float32: an edge of exactly two spacings is divided into two parts


class TouchPoints(nn.Module):
    """The P points of a robot for contact with an obstacle: all nodes, then points on edges, then points in triangles.

    A point between nodes is a weighted mean of the nodes of its edge or triangle, with constant weights. Nodes that do
    not touch the obstacle are among the points, too; `Obstacle` gives them a large gap.

    Parameters
    ----------
    body : of the robot.
    touches : (N,) bool, which nodes touch; edges and triangles get points if all of their nodes touch.
    spacing : largest distance at rest between neighbouring points on an edge, or on a line of a triangle's grid [m];
        None: nodes alone.

    Attributes
    ----------
    radius : (..., P) radius of the ball about each point [m]: the contact radius of its edge or triangle, or the
        largest one of all that meet at a node.
    nodes, weights : (P, 3) nodes of each point and their weights; unused places have node 0 and weight 0.
    """

    per_robot = ("radius",)
    radius: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, body: Body, touches: np.ndarray, spacing: float | None):
        super().__init__()
        self.n_nodes = body.n_nodes
        radii, elements, weights = [body.node_contact_radius()], [], []
        if spacing is not None:
            links, of_links = _unique_links(
                body.links, concatenated_sizes(body.edge_contact_radius, body.side_contact_radius())
            )
            kinds = (links, of_links, _on_edges), (body.triangles, body.face_contact_radius, _in_triangles)
            for corners, radius, divided in kinds:
                chosen = np.flatnonzero(touches[corners].all(axis=1))
                shares = divided(_divisions(body, corners[chosen], spacing))
                if len(chosen) and len(shares):
                    elements.append(corners[chosen])
                    weights.append(shares)
                    radii.append(radius[..., torch.as_tensor(chosen, device="cpu")].repeat_interleave(len(shares), -1))
        self._between = nn.ModuleList(_Between(e, w) for e, w in zip(elements, weights, strict=True))
        self.register_buffer("radius", concatenated_sizes(*radii), persistent=False)
        weights_at_nodes = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, device="cpu").expand(body.n_nodes, 3)
        at_nodes = torch.nn.functional.pad(torch.arange(body.n_nodes, device="cpu")[:, None], (0, 2))
        self.register_buffer("nodes", torch.cat([at_nodes, *(part.nodes() for part in self.between)]), persistent=False)
        self.register_buffer(
            "weights", torch.cat([weights_at_nodes, *(part.shares() for part in self.between)]), persistent=False
        )

    @property
    def between(self) -> list[_Between]:
        """The points between nodes: one object for those on edges, one for those in triangles, where there are any."""
        return list(self._between)  # type: ignore[arg-type]

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes that a point lies at or between: 1, 2 or 3."""
        return max((part.elements.shape[1] for part in self.between), default=1)

    @property
    def count(self) -> int:
        """Number of points P."""
        return len(self.nodes)

    def of(self, x: Tensor) -> Tensor:
        """Return positions or velocities (B, P, 3) of the points from those of the nodes (B, N, 3)."""
        return torch.cat([x, *(part.of(x) for part in self.between)], dim=1) if self.between else x

    def onto_nodes(self, force: Tensor) -> Tensor:
        """Return the forces (B, N, 3) on the nodes that are equivalent to forces (B, P, 3) on the points."""
        total, *between = force.split([self.n_nodes, *(part.count for part in self.between)], dim=1)
        for part, part_force in zip(self.between, between, strict=True):
            total = total.index_add(1, part.elements.flatten(), part.onto_corners(part_force).flatten(1, 2))
        return total

    def nodes_of(self, chosen: Tensor) -> Tensor:
        """Return the nodes (B, N) bool at or between which some `chosen` point (B, P) lies."""
        share = chosen[:, :, None].to(self.weights.dtype) * self.weights
        on = share.new_zeros(len(chosen), self.n_nodes).index_add(1, self.nodes.flatten(), share.flatten(1))
        return on > 0

    def point_name(self, point: int) -> str:
        """Return how messages call a point, by the numbers of its nodes."""
        nodes = self.nodes[point][self.weights[point] > 0].tolist()
        return f"node {nodes[0]}" if len(nodes) == 1 else f"point between nodes {', '.join(map(str, nodes))}"

    def blocks(self) -> list[Block]:
        """Return the dofs of the blocks of derivatives: of each node, then of each edge and triangle with points."""
        node_dofs = 3 * np.arange(self.n_nodes)[:, None] + np.arange(3)
        return [Block(node_dofs, node_dofs), *(part.block() for part in self.between)]

    def derivatives(self, of_points: Tensor) -> list[Tensor]:
        """Return the derivatives (B, S, 3 k, 3 k) for each of `blocks`, from those of each point (B, P, 3, 3).

        k is the number of nodes of an element, 1 for nodes themselves.
        """
        of_nodes, *between = of_points.split([self.n_nodes, *(part.count for part in self.between)], dim=1)
        return [of_nodes, *(part.derivatives(values) for part, values in zip(self.between, between, strict=True))]


class Surface(NamedTuple):
    """Position and motion of a robot's surface relative to an obstacle, at its P points.

    Attributes
    ----------
    gap : (B, P) [m].
    normal : (B, P, 3) unit vectors towards the robot.
    curvature : (B, P, 3, 3) derivative of the normal by the points' positions [1/m].
    velocity : (B, P, 3) of the robot's surface relative to the obstacle [m/s].
    axis : (B, P, 3) axes of rods at the start of the step, see `RodTangents`; None where friction does not need them.
    lever : (B, P, 3) derivative of the surface's velocity by the rod's spin [m]; None where rods do not roll.
    """

    gap: Tensor
    normal: Tensor
    curvature: Tensor
    velocity: Tensor
    axis: Tensor | None
    lever: Tensor | None


class _Between(nn.Module):
    """m points in each of S elements, edges or triangles with k corners; the points of an element are consecutive.

    Parameters
    ----------
    elements : (S, k) node indices of the corners.
    weights : (m, k) of the corners for each point, the same in all elements.
    """

    elements: Tensor
    weights: Tensor

    def __init__(self, elements: np.ndarray, weights: np.ndarray):
        super().__init__()
        self.register_buffer("elements", torch.as_tensor(elements, device="cpu"), persistent=False)
        self.register_buffer("weights", torch.as_tensor(weights, device="cpu"), persistent=False)

    @property
    def count(self) -> int:
        """Number of points, S m."""
        return len(self.elements) * len(self.weights)

    def nodes(self) -> Tensor:
        """Return the nodes (S m, 3) of the points; edges have node 0 in the third place."""
        padded = torch.nn.functional.pad(self.elements, (0, 3 - self.elements.shape[1]))
        return padded.repeat_interleave(len(self.weights), 0)

    def shares(self) -> Tensor:
        """Return the weights (S m, 3) of `nodes`; edges have 0 in the third place."""
        return torch.nn.functional.pad(self.weights, (0, 3 - self.weights.shape[1])).repeat(len(self.elements), 1)

    def of(self, x: Tensor) -> Tensor:
        """Return vectors (B, S m, 3) at the points from vectors (B, N, 3) at the nodes."""
        return (self.weights @ x[:, self.elements]).flatten(1, 2)

    def onto_corners(self, force: Tensor) -> Tensor:
        """Return the forces (B, S, k, 3) on the corners that are equivalent to forces (B, S m, 3) on the points."""
        return self.weights.mT @ force.unflatten(1, (-1, len(self.weights)))

    def block(self) -> Block:
        """Return the dofs (S, 3 k) of each element as the rows and columns of a block."""
        dofs = (3 * self.elements.cpu().numpy()[:, :, None] + np.arange(3)).reshape(len(self.elements), -1)
        return Block(dofs, dofs)

    def derivatives(self, of_points: Tensor) -> Tensor:
        """Return the derivatives (B, S, 3 k, 3 k) of the corners' forces, from those of each point (B, S m, 3, 3)."""
        m, k = self.weights.shape
        products = (self.weights[:, :, None] * self.weights[:, None, :]).reshape(m, k * k)
        summed = products.mT @ of_points.flatten(2).unflatten(1, (-1, m))  # (B, S, k k, 9)
        return summed.unflatten(3, (3, 3)).unflatten(2, (k, k)).transpose(3, 4).flatten(4, 5).flatten(2, 3)


def _longest_side(body: Body, corners: np.ndarray) -> float:
    """Return the length of the longest edge, or side of triangles, (S, k) at rest [m]; 0 without any."""
    if not len(corners):
        return 0.0
    ends = body.nodes.detach().cpu().numpy()[corners]
    return float(np.linalg.norm(ends - np.roll(ends, 1, axis=-2), axis=-1).max())


def _divisions(body: Body, corners: np.ndarray, spacing: float) -> int:
    """Return the number of equal parts into which the longest of these edges or sides of triangles (S, k) is divided.

    All others are divided likewise.
    """
    longest = _longest_side(body, corners)
    divisions = max(1, math.ceil(longest / spacing * (1 - ROUNDING)))
    inside = divisions - 1 if corners.shape[1] == 2 else (divisions - 1) * (divisions - 2) // 2
    if len(corners) * inside > MAX_POINTS:
        raise InputError(
            f"Obstacle.spacing: {spacing:g} m makes {len(corners) * inside} points of edges or triangles up to "
            f"{longest:g} m long, more than {MAX_POINTS}; take a larger one, or touch with some `nodes` only"
        )
    return divisions


def _on_edges(divisions: int) -> np.ndarray:
    """Return the weights (m, 2) of the points that divide an edge into equal parts, without its ends."""
    share = np.arange(1, divisions) / divisions
    return np.stack([1 - share, share], axis=1)


def _in_triangles(divisions: int) -> np.ndarray:
    """Return the weights (m, 3) of the points of a regular grid that lie inside of a triangle, not on its sides."""
    i, j = (x.flatten() for x in np.meshgrid(np.arange(1, divisions), np.arange(1, divisions), indexing="ij"))
    inside = i + j < divisions
    return np.stack([i, j, divisions - i - j], axis=1)[inside] / divisions


def _unique_links(links: np.ndarray, radius: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return each link (L, 2) once with its largest radius (..., L): a rod's edge may be a side of a shell, too."""
    unique, index = np.unique(np.sort(links, axis=1), axis=0, return_inverse=True)
    places = torch.as_tensor(index.reshape(-1), device=radius.device).expand(radius.shape)
    largest = radius.new_zeros(*radius.shape[:-1], len(unique)).scatter_reduce(-1, places, radius, "amax")
    return unique, largest

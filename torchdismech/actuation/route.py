"""Routes as users give them: points at nodes, on edges, in space; and which nodes and frames carry each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, any_of, check_choice, real_number
from torchdismech.geometry.checks import Indices, checked_indices, refuse_trained_shape
from torchdismech.robot.body import Body
from torchdismech.values import numbers

__all__ = ["AtNodes", "Carriers", "Fixed", "OnEdges", "RestFrames"]

FRAMES = ("world", "material")
CANCELLED = 1e-6  # a mean of unit vectors shorter than this has no direction


@dataclass(frozen=True)
class AtNodes:
    """Points that are fixed to the sections of rods at their nodes, or to nodes of shells.

    The frame of a section is the mean of those of the rod edges at the node; where a clamp holds the rod in a direction
    it is that of the clamp. Its tangent points along the rod (`Body.rods`), also where edges are stored the other way
    round. Nodes of shells have no frame, so that their points are the nodes themselves.

    Parameters
    ----------
    nodes : indices of nodes, in the order of the route.
    offset : from the node to its point, of the robot as built: (3,), (k, 3), (B, 1, 3) or (B, k, 3) [m].
    frame : the axes of `offset`: "world", or "material" for the directors m1, m2 and the tangent of the section.
    """

    nodes: Indices
    offset: Any = (0.0, 0.0, 0.0)
    frame: str = "world"

    def __post_init__(self) -> None:
        check_choice("AtNodes.frame", self.frame, FRAMES)

    def carriers(self, body: Body) -> list[Carriers]:
        """Return the nodes and framed edges that carry each point."""
        index = checked_indices(self.nodes, body.n_nodes, "AtNodes.nodes").tolist()
        return [Carriers({node: 1.0}, _frames_at(body, node)) for node in index]


@dataclass(frozen=True)
class OnEdges:
    """Points that are fixed to the sections of rods along their edges.

    Between points on neighbouring edges a tendon cuts the corner at the node, so along a rod of curvature kappa its
    lever arm is too long by kappa l^2 / 4, with l the length of edges. Points at nodes have no such error.

    Parameters
    ----------
    edges : indices of rod edges, in the order of the route (see `Model.rod_edges`).
    offset : from the point of the edge, of the robot as built: (3,), (k, 3), (B, 1, 3) or (B, k, 3) [m].
    at : where along each edge, from 0 at its first node to 1 at its second.
    frame : the axes of `offset`: "world", or "material" for the directors m1, m2 and the tangent of the edge.
    """

    edges: Indices
    offset: Any = (0.0, 0.0, 0.0)
    at: float = 0.5
    frame: str = "world"

    def __post_init__(self) -> None:
        check_choice("OnEdges.frame", self.frame, FRAMES)
        if not 0 <= real_number(self.at, "OnEdges.at", "0 to 1") <= 1:
            raise InputError(f"OnEdges.at: expected 0 to 1, got {self.at}")

    def carriers(self, body: Body) -> list[Carriers]:
        """Return the nodes and framed edges that carry each point."""
        index = checked_indices(self.edges, body.n_edges, "OnEdges.edges").tolist()
        ends = [(edge, *map(int, body.rod_edges[edge])) for edge in index]
        return [Carriers({start: 1 - self.at, end: self.at}, [edge]) for edge, start, end in ends]


@dataclass(frozen=True)
class Fixed:
    """Points that are fixed in space, such as where a motor outside of the robot pulls.

    Parameters
    ----------
    positions : (3,), (k, 3) or (B, k, 3) [m].
    """

    positions: Any

    def __len__(self) -> int:
        shape = numbers(self.positions, "Fixed: positions").shape
        return shape[-2] if len(shape) > 1 else 1

    @property
    def offset(self) -> Any:
        """The positions, as offsets from the origin."""
        return self.positions

    frame = "world"

    def carriers(self, body: Body) -> list[Carriers]:
        """Return empty carriers: no part of the robot carries these points."""
        return [Carriers({}, []) for _ in range(len(self))]


@dataclass(frozen=True)
class Carriers:
    """What carries a point of a route: nodes with weights, and framed edges that turn its offset, in equal parts."""

    nodes: dict[int, float] = field(default_factory=dict)
    frames: list[int] = field(default_factory=list)


class RestFrames:
    """The frames (t, m1, m2) of all framed edges of a robot as built, (A, 3, 3)."""

    def __init__(self, body: Body):
        start, end = body.framed_edges.T
        edges = torch.cat([body.nodes[end] - body.nodes[start], body.held_tangents])
        t = edges / torch.linalg.vector_norm(edges, dim=-1, keepdim=True)
        self.axes = torch.stack([t, body.directors, torch.linalg.cross(t, body.directors)], dim=1)
        signs = torch.ones(len(start), dtype=t.dtype, device="cpu")
        for rod in body.rods:
            signs[torch.as_tensor(rod.edges, device="cpu")] = torch.as_tensor(rod.signs, dtype=t.dtype, device="cpu")
        signs = torch.cat([signs, signs[torch.as_tensor(body.held.edges, device="cpu")]])
        # m1 is the same in both directions, m2 = t x m1 is not
        self._along_rods = torch.stack([signs, torch.ones_like(signs), signs], dim=1).unsqueeze(-1)

    def offsets(self, part: AtNodes | OnEdges | Fixed, carriers: Sequence[Carriers]) -> Tensor:
        """Return the offsets (B or 1, k, 3) of a part of a route, in axes of the world [m]."""
        name, count = type(part).__name__, len(carriers)
        refuse_trained_shape(part.offset, f"{name}: offset")
        offset = numbers(part.offset, f"{name}: offset").to(torch.float64)
        if offset.shape[-1:] != (3,) or offset.dim() > 3 or (offset.dim() > 1 and offset.shape[-2] not in (1, count)):
            shapes = any_of("(3,)", f"({count}, 3)", "(B, 1, 3)", f"(B, {count}, 3)")
            raise InputError(f"{name}: expected offsets of shape {shapes}, got {tuple(offset.shape)}")
        if not bool(torch.isfinite(offset).all()):
            raise InputError(f"{name}: offsets have to be finite, got {offset.tolist()}")
        offsets = offset.reshape((1,) * (3 - offset.dim()) + tuple(offset.shape)).expand(-1, count, 3).clone()
        for k, point in enumerate(carriers):
            if not isinstance(part, Fixed) and not point.frames and bool((offsets[:, k] != 0).any()):
                raise InputError(
                    f"{name}: no rod passes node {next(iter(point.nodes))}, so no frame carries an offset there; "
                    "leave the offset out"
                )
            if part.frame == "material":
                offsets[:, k] = self._in_world(offsets[:, k], point, isinstance(part, AtNodes))
        return offsets

    def _in_world(self, offset: Tensor, point: Carriers, along_rods: bool) -> Tensor:
        """Return in axes of the world an offset (B, 3) that is given along m1, m2 and t of a section.

        These are directed along the rods with `along_rods`, else along the edge as it is stored.
        """
        axes = self.axes * self._along_rods if along_rods else self.axes
        mean = axes[point.frames].mean(0).to(offset)
        size = torch.linalg.vector_norm(mean, dim=-1, keepdim=True)
        if bool((size < CANCELLED).any()):
            raise InputError(
                f"AtNodes: frame: at node {next(iter(point.nodes))} rods meet whose tangents or directors cancel each "
                "other, so that they have no mean; give the offset there in the axes of the world"
            )
        t, m1, m2 = mean / size
        return offset @ torch.stack([m1, m2, t])


def _frames_at(body: Body, node: int) -> list[int]:
    """Return the framed edges whose mean is the section's frame at a node: held tangents if any, else its rod edges."""
    held = np.flatnonzero(body.held.nodes == node)
    if len(held):
        return (len(body.framed_edges) + held).tolist()
    return np.flatnonzero((body.rod_edges == node).any(1)).tolist()

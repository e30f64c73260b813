"""Where the markers of a recording sit on a robot, and the frame that they were recorded in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from torchdismech import InputError, Model, State
from torchdismech.geometry.frames import rotated, unit
from torchdismech.geometry.quaternions import rotation_matrix
from torchdismech.robot.state import Control
from training.config.scene import Marker, Markers
from training.robots.poses import quaternion

__all__ = ["MarkerTable"]


class MarkerTable(nn.Module):
    """Markers at nodes, on edges and triangles, fixed to clamps; and the pose of the scene in the recordings' frame.

    Attributes
    ----------
    position, rotation : (3,) or (B, 3), position [m] of the scene's origin and rotation vector [rad] of its axes in the
        recordings' frame.
    weight : (M, N) weights of the nodes in each marker's position, before its offset.
    """

    position: Tensor
    rotation: Tensor
    weight: Tensor

    def __init__(self, markers: Markers, model: Model):
        super().__init__()
        count = len(model.nodes)
        points = markers.points or [Marker(node=k) for k in (markers.nodes or range(count))]
        for k, point in enumerate(points):
            _refuse_outside(f"markers.{'nodes' if markers.nodes else 'points'}.{k}", point, model)
        self.register_buffer("weight", torch.stack([_weights(p, model) for p in points]).to(model.nodes))
        self.register_buffer("position", model.nodes.new_tensor(markers.position), persistent=False)
        self.register_buffer("rotation", model.nodes.new_tensor(markers.rotation), persistent=False)
        self._offsets = [(k, p) for k, p in enumerate(points) if p.offset is not None and any(p.offset)]
        self._model = (model,)

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def node_of(self) -> list[int | None]:
        """The node that each marker sits at; None where it sits elsewhere, or stands off by an offset."""
        single, off = self.weight.max(1), {k for k, _ in self._offsets}
        pairs = zip(single.values.tolist(), single.indices.tolist(), strict=True)
        return [int(n) if w == 1 and k not in off else None for k, (w, n) in enumerate(pairs)]

    @property
    def have_offsets(self) -> bool:
        """Whether some markers have an offset from the point that they are fixed to."""
        return bool(self._offsets)

    def offsets(self, after: State, control: Control) -> Mapping[str, Tensor]:
        """Return the vectors to markers from the points that they are fixed to, (B, M, 3) [m], under "offset"."""
        found = after.q.new_zeros(after.batch, len(self), 3)
        parts = {k: self._offset(point, after, control) for k, point in self._offsets}
        rows = [parts.get(k, found[:, k]) for k in range(len(self))]
        return {"offset": torch.stack(rows, dim=1)}

    def places(self, nodes: Tensor, offset: Tensor | None) -> Tensor:
        """Return the markers (B, ..., M, 3) in the recordings' frame for nodes (B, ..., N, 3) in the scene's."""
        places = torch.einsum("mn,...nc->...mc", self.weight, nodes)
        return self.recorded(places if offset is None else places + offset)

    def recorded(self, x: Tensor) -> Tensor:
        """Return points (B, ..., M, 3) of the scene in the recordings' frame."""
        turn, origin = self._pose(x)
        return x @ turn.mT + origin

    def in_scene(self, x: Tensor) -> Tensor:
        """Return points (B, ..., M, 3) of the recordings in the scene's frame."""
        turn, origin = self._pose(x)
        return (x - origin) @ turn

    def _pose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotation matrix (3, 3) and origin (3,) of the scene, or those of each robot, to broadcast with `x`."""
        turn, between = rotation_matrix(quaternion(self.rotation)), [1] * (x.dim() - 3)
        origin = self.position
        turn = turn if turn.dim() == 2 else turn.view(-1, *between, 3, 3)
        return turn, origin if origin.dim() == 1 else origin.view(-1, *between, 1, 3)

    def _offset(self, point: Marker, after: State, control: Control) -> Tensor:
        """Return the vector (B, 3) [m] to a marker from the point that it is fixed to."""
        model, offset = self._model[0], after.q.new_tensor(point.offset)
        if point.edge is not None:
            tangent = after.tangent[:, point.edge]
            first = rotated(after.director[:, point.edge], tangent, after.twist[:, point.edge])
            axes = torch.stack([tangent, first, torch.linalg.cross(tangent, first)], dim=-1)
            return axes @ offset
        if point.triangle is not None:
            a, b, c = after.positions[:, model.triangles[point.triangle].tolist()].unbind(1)
            return unit(torch.linalg.cross(b - a, c - a)) * offset[2]
        if control.pose is None:
            return offset.expand(after.batch, 3)
        turn = control.pose[:, point.clamp, 3:]
        return rotation_matrix(turn / torch.linalg.vector_norm(turn, dim=-1, keepdim=True)) @ offset


def _weights(point: Marker, model: Model) -> Tensor:
    """Return the weights (N,) of the nodes in a marker's position."""
    weight = torch.zeros(len(model.nodes), dtype=torch.float64, device="cpu")
    if point.node is not None:
        weight[point.node] = 1
    elif point.edge is not None:
        start, end = model.rod_edges[point.edge].tolist()
        weight[start], weight[end] = 1 - point.at, point.at
    elif point.triangle is not None:
        weight[model.triangles[point.triangle].tolist()] = torch.tensor(
            point.weights, dtype=torch.float64, device="cpu"
        )
    else:
        nodes = model.body.clamps[point.clamp or 0].nodes.tolist()
        weight[nodes] = 1 / len(nodes)
    return weight


def _refuse_outside(key: str, point: Marker, model: Model) -> None:
    """Refuse a marker on a node, edge, triangle or clamp that the robot does not have."""
    there = {
        "node": len(model.nodes),
        "edge": len(model.rod_edges),
        "triangle": len(model.triangles),
        "clamp": len(model.body.clamps),
    }
    for kind, count in there.items():
        index = getattr(point, kind)
        if index is not None and index >= count:
            expected = f"expected 0 to {count - 1}" if count else "the robot has none"
            raise InputError(f"{key}.{kind}: a marker outside of the robot: {expected}, got {index}")

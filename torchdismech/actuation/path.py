"""Paths: the points of a route where a robot is, and their derivatives by its dofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.actuation.route import Carriers
from torchdismech.body import Body
from torchdismech.geometry.sections import Sections
from torchdismech.state import State

__all__ = ["Path", "PointsAt"]


class Path(nn.Module):
    """What carries the K points of a route, each a function of its own m dofs.

    A point is a mean of nodes, which is linear, and its offset, which the frames of C pairs of a point and a framed
    edge turn.

    Attributes
    ----------
    dofs : (K, m) of each point; where it has fewer, the first is repeated, with derivatives of zero.
    segment_dofs : (M, s) of each segment, likewise.
    union : the dofs (D,) of all points.
    """

    dofs: Tensor
    segment_dofs: Tensor
    _starts: Tensor  # (M, 1, s) where a segment's dofs stand among those of its first point; m where they do not
    _ends: Tensor  # of its second point
    _place: Tensor  # (K, m) of each dof in the union
    _linear: Tensor  # (K, 3, m) from the dofs to the mean of the nodes
    _in_space: Tensor  # (K, 1) bool, points that nothing carries
    _point: Tensor  # (C,) point of each pair
    _framed: Tensor  # (C,) its framed edge
    _weight: Tensor  # (C,)
    _into: Tensor  # (C, 4, m) from the point's dofs to the edge and its angle
    _axes: Tensor  # (C, 3, 3) frames (t, m1, m2) at rest

    def __init__(self, body: Body, points: Sequence[Carriers], axes: Tensor):
        super().__init__()
        self._first_angle = 3 * body.n_nodes
        own = [_dofs_of(body, point) for point in points]
        width = max(len(dofs) for dofs in own)
        dofs = _padded(own, width)
        linear = np.zeros((len(points), 3, width))
        pairs: list[tuple[int, int, float, np.ndarray]] = []
        for k, point in enumerate(points):
            place = {dof: i for i, dof in enumerate(own[k])}
            for node, weight in point.nodes.items():
                linear[k, range(3), [place[3 * node + axis] for axis in range(3)]] += weight
            for framed in point.frames:
                into = np.zeros((4, width))
                for row, dof, sign in _edge_and_angle(body, framed):
                    into[row, place[dof]] += sign
                pairs.append((k, framed, 1 / len(point.frames), into))
        index = {"dofs": dofs, "_point": np.array([k for k, *_ in pairs], dtype=np.int64)}
        index["_framed"] = np.array([framed for _, framed, *_ in pairs], dtype=np.int64)
        numbers = {"_linear": linear, "_weight": np.array([weight for *_, weight, _ in pairs])}
        numbers["_into"] = np.array([into for *_, into in pairs]).reshape(-1, 4, width)
        for name, value in index.items():
            self.register_buffer(name, torch.as_tensor(value), persistent=False)
        for name, value in numbers.items():
            self.register_buffer(name, torch.as_tensor(value).to(body.nodes), persistent=False)
        self.register_buffer("_axes", axes[self._framed], persistent=False)
        of_segments = [sorted({*own[k], *own[k + 1]}) or [int(dofs[k, 0])] for k in range(len(points) - 1)]
        padded = _padded(of_segments, max(map(len, of_segments)))
        self.register_buffer("segment_dofs", torch.as_tensor(padded), persistent=False)
        for name, ends in (("_starts", own[:-1]), ("_ends", own[1:])):
            among = torch.as_tensor(_places(padded.shape, of_segments, ends, width))
            self.register_buffer(name, among[:, None], persistent=False)
        self.union = np.unique(dofs)
        self.register_buffer("_place", torch.as_tensor(np.searchsorted(self.union, dofs)), persistent=False)
        bare = np.array([not point.nodes for point in points])[:, None]
        self.register_buffer("_in_space", torch.as_tensor(bare), persistent=False)

    def at(self, state: State, offset: Tensor) -> PointsAt:
        """Return the points at a state for offsets (B or 1, K, 3), in axes of the world of the robot as built."""
        mean = (self._linear @ state.q[:, self.dofs].unsqueeze(-1)).squeeze(-1)
        tangent, director = state.tangent[:, self._framed], state.director[:, self._framed]
        variables = (self._into @ state.q[:, self.dofs[self._point]].unsqueeze(-1)).squeeze(-1)
        components = (self._axes @ offset[:, self._point].unsqueeze(-1)).squeeze(-1)
        sections = Sections.of(variables[..., :3], variables[..., 3], tangent, director)
        carried = sections.carried(components)
        turned = self._weight.unsqueeze(-1) * carried
        points = (mean + torch.where(self._in_space, offset, 0.0)).index_add(1, self._point, turned)
        return PointsAt(self, points, sections, carried)

    def at_rest(self, body: Body, offset: Tensor) -> Tensor:
        """Return the points (B or 1, K, 3) of the robot as built."""
        return (self._linear @ body.rest_q[self.dofs].unsqueeze(-1)).squeeze(-1) + offset

    def stretch(self, per_point: Tensor) -> Tensor:
        """Return rows by the points' own dofs (B, K, r, m) as differences along segments (B, M, r, s) by theirs."""
        padded = torch.cat([per_point, torch.zeros_like(per_point[..., :1])], dim=-1)
        shape = (len(per_point), -1, per_point.shape[2], -1)
        ends = padded[:, 1:].gather(-1, self._ends.expand(shape))
        return ends - padded[:, :-1].gather(-1, self._starts.expand(shape))

    def spread(self, per_point: Tensor) -> Tensor:
        """Return rows by the points' own dofs (B, K, r, m) as rows (B, K, r, D) by the `union` of all."""
        shape = (*per_point.shape[:-1], len(self.union))
        index = self._place.unsqueeze(1).expand_as(per_point)
        return per_point.new_zeros(shape).scatter_add(-1, index, per_point)


@dataclass(frozen=True)
class PointsAt:
    """The points (B, K, 3) of a path at a state [m], and the offsets (B, C, 3) that sections carry to them."""

    path: Path
    points: Tensor
    sections: Sections
    carried: Tensor

    def generalised(self, force: Tensor) -> Tensor:
        """Return the forces (B, K, 3) on the points as forces (B, K, m) on their dofs."""
        return (self.jacobian().mT @ force.unsqueeze(-1)).squeeze(-1)

    def jacobian(self) -> Tensor:
        """Return the derivatives (B, K, 3, m) of the points by their dofs."""
        path, sections, carried = self.path, self.sections, self.carried
        turning = torch.cat([sections.by_edge(carried), sections.by_angle(carried).unsqueeze(-1)], dim=-1)
        turned = path._weight.view(-1, 1, 1) * (turning @ path._into)
        return path._linear.expand(len(turned), -1, -1, -1).index_add(1, path._point, turned)

    def second(self, force: Tensor) -> Tensor:
        """Return the second derivatives (B, K, m, m) of sum_a force_a point_a, for forces (B, K, 3)."""
        path, into = self.path, self.path._into
        on_frames = path._weight.unsqueeze(-1) * force[:, path._point]
        bent = into.mT @ self.sections.second(self.carried, on_frames) @ into
        whole = bent.new_zeros(len(bent), *path.dofs.shape, path.dofs.shape[1])
        return whole.index_add(1, path._point, bent)

    def velocity(self, state: State) -> Tensor:
        """Return the velocities (B, K, 3) of the points [m/s]."""
        return (self.jacobian() @ state.velocity[:, self.path.dofs].unsqueeze(-1)).squeeze(-1)

    def velocity_by_position(self, state: State) -> Tensor:
        """Return the derivatives (B, K, 3, m) of the velocities by positions and angles."""
        path, carried = self.path, self.carried
        axes = torch.eye(3, dtype=carried.dtype, device=carried.device).view(3, 1, 1, 3).expand(3, *carried.shape)
        bent = self.sections.second(carried, axes)  # (3, B, C, 4, 4)
        moving = path._into @ state.velocity[:, path.dofs[path._point]].unsqueeze(-1)  # (B, C, 4, 1)
        rows = (bent @ moving).squeeze(-1).permute(1, 2, 0, 3) @ path._into
        turned = path._weight.view(-1, 1, 1) * rows
        whole = turned.new_zeros(len(turned), *path._linear.shape)
        return whole.index_add(1, path._point, turned)


def _edge_and_angle(body: Body, framed: int) -> list[tuple[int, int, float]]:
    """Return of what dofs, with what signs, the vector (rows 0 to 2) and the angle (row 3) of a framed edge consist."""
    angle = (3, 3 * body.n_nodes + framed, 1.0)
    held = framed - len(body.framed_edges)
    if held >= 0:
        return [*((axis, body.first_held + 3 * held + axis, 1.0) for axis in range(3)), angle]
    start, end = map(int, body.framed_edges[framed])
    vector = [(axis, 3 * node + axis, sign) for node, sign in ((end, 1.0), (start, -1.0)) for axis in range(3)]
    return [*vector, angle]


def _dofs_of(body: Body, point: Carriers) -> list[int]:
    """Return the dofs that a point depends on."""
    dofs = [3 * node + axis for node in point.nodes for axis in range(3)]
    dofs += [dof for framed in point.frames for _, dof, _ in _edge_and_angle(body, framed)]
    return list(dict.fromkeys(dofs))


def _padded(own: list[list[int]], width: int) -> np.ndarray:
    """Return the points' dofs (K, width); those without any repeat a dof of the nearest point that has some."""
    having = [k for k, dofs in enumerate(own) if dofs]
    filled = [dofs or own[min(having, key=lambda other: abs(other - k))][:1] for k, dofs in enumerate(own)]
    return np.array([dofs + dofs[:1] * (width - len(dofs)) for dofs in filled], dtype=np.int64)


def _places(shape: tuple[int, ...], of_segments: list[list[int]], points: list[list[int]], nowhere: int) -> np.ndarray:
    """Return where the dofs of segments stand (M, s) among those of one of their points, or `nowhere`."""
    places = np.full(shape, nowhere)
    for row, dofs, own in zip(places, of_segments, points, strict=True):
        row[: len(dofs)] = [own.index(dof) if dof in own else nowhere for dof in dofs]
    return places

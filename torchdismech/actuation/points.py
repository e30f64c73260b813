"""The points of routes: how nodes and frames carry them, where they are, and their derivatives by the dofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.actuation.route import Carriers
from torchdismech.actuation.tension import Paths
from torchdismech.geometry.material_frames import MaterialFrames, outer
from torchdismech.robot.body import Body
from torchdismech.robot.state import State

__all__ = ["PointsAt", "RoutePoints"]


class RoutePoints(nn.Module):
    """The K points of routes as functions of the dofs; each depends on at most m of them.

    A point is a weighted mean of nodes, linear in the dofs, plus an offset that is fixed in the material frames of
    framed edges and turns with them. There are C pairs of a point and a framed edge that carries its offset; a point
    with several such edges has the mean of their offsets.

    Attributes
    ----------
    dofs : (K, m) dofs of each point; where it has fewer, its first is repeated, with derivatives of zero.
    edge_dofs : (F, 7) dofs of the framed edges that carry points: start, end and angle.
    segment_dofs : (U, s) dofs of the segments, filled up as `dofs`; segments with the same dofs share a row.
    union : the dofs (D,) of all points.
    """

    dofs: Tensor
    edge_dofs: Tensor
    segment_dofs: Tensor
    union: Tensor
    _same_as: Tensor  # (M,) row of each segment in segment_dofs
    _starts: Tensor  # (M, 1, s) columns of a segment's dofs among those of its first point; m for dofs it lacks
    _ends: Tensor  # likewise, of its second point
    _place: Tensor  # (K, m) index of each dof in the union
    _linear: Tensor  # (K, 3, m) matrices from the dofs to the mean of the nodes
    _in_space: Tensor  # (K, 1) bool, points fixed in space, which no node carries
    _point: Tensor  # (C,) point of each pair
    _framed: Tensor  # (F,) the framed edges of all pairs
    _edge_of: Tensor  # (C,) index of each pair's edge in `_framed`
    _into_edge: Tensor  # (F, 4, 7) matrices from `edge_dofs` to edge vector and angle
    _weight: Tensor  # (C,) share of each pair in its point, 1 / number of the point's pairs
    _into: Tensor  # (C, 4, m) matrices from the point's dofs to edge vector and angle
    _axes: Tensor  # (C, 3, 3) frames (t, m1, m2) at rest

    def __init__(self, body: Body, points: Sequence[Carriers], paths: Paths, axes: Tensor):
        super().__init__()
        self.paths = paths
        dofs_of_points = [_dofs_of(body, point) for point in points]
        dofs = _padded(dofs_of_points)
        pairs = [(k, framed) for k, point in enumerate(points) for framed in point.frames]
        point_of, carrying = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        framed, edge_of = np.unique(carrying, return_inverse=True)
        edge_dofs, into_edge = _of_edges(body, framed)
        union = np.unique(dofs)
        bare = np.array([not point.nodes for point in points])[:, None]
        index = {"dofs": dofs, "edge_dofs": edge_dofs, "union": union, "_place": np.searchsorted(union, dofs)}
        index |= {"_point": point_of, "_framed": framed, "_edge_of": edge_of.reshape(-1), "_in_space": bare}
        index |= _segment_buffers(dofs_of_points, dofs, paths)
        shares = [1 / len(points[k].frames) for k, _ in pairs]
        numbers = {
            "_weight": np.array(shares),
            "_linear": _means(points, dofs_of_points, dofs.shape[1]),
            "_into_edge": into_edge,
        }
        numbers["_into"] = _into_edges(body, pairs, dofs_of_points, dofs.shape[1])
        for name, value in index.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu"), persistent=False)
        for name, value in numbers.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu").to(body.nodes), persistent=False)
        self.register_buffer("_axes", axes[carrying], persistent=False)

    def at(self, state: State, offset: Tensor) -> PointsAt:
        """Return the points at a state for offsets (B or 1, K, 3), in axes of the world of the robot as built."""
        mean = (self._linear @ state.q[:, self.dofs].unsqueeze(-1)).squeeze(-1)
        variables = (self._into_edge @ state.q[:, self.edge_dofs].unsqueeze(-1)).squeeze(-1)
        anchors = state.tangent[:, self._framed], state.director[:, self._framed]
        frames = MaterialFrames.of(variables[..., :3], variables[..., 3], *anchors)
        components = (self._axes @ offset[:, self._point].unsqueeze(-1)).squeeze(-1)
        carried = frames.taken(self._edge_of).carried(components)
        points = (mean + torch.where(self._in_space, offset, 0.0)).index_add(
            1, self._point, self._weight.unsqueeze(-1) * carried
        )
        return PointsAt(self, points, frames, carried)

    def at_rest(self, body: Body, offset: Tensor) -> Tensor:
        """Return the points (B or 1, K, 3) of the robot as built."""
        return (self._linear @ body.rest_q[self.dofs].unsqueeze(-1)).squeeze(-1) + offset

    def segment_jacobian(self, per_point: Tensor) -> Tensor:
        """Return the derivatives (B, M, r, s) of end minus start of each segment by the segment's dofs.

        `per_point` (B, K, r, m) has those of r numbers at each point by the point's own dofs.
        """
        padded = torch.cat([per_point, torch.zeros_like(per_point[..., :1])], dim=-1)
        shape = (len(per_point), -1, per_point.shape[2], -1)
        ends = padded[:, self.paths.ends].gather(-1, self._ends.expand(shape))
        return ends - padded[:, self.paths.starts].gather(-1, self._starts.expand(shape))

    def shared_sums(self, blocks: Tensor) -> Tensor:
        """Return the sums (B, U, s, s) of the blocks (B, M, s, s) of segments that share their dofs."""
        shape = (len(blocks), *self.segment_dofs.shape, blocks.shape[-1])
        return blocks.new_zeros(shape).index_add(1, self._same_as, blocks)

    def differences(self, per_point: Tensor) -> Tensor:
        """Return the differences (B, M, ..), end minus start of each segment, of values at the points (B, K, ..)."""
        return per_point[:, self.paths.ends] - per_point[:, self.paths.starts]

    def to_union(self, per_point: Tensor) -> Tensor:
        """Return rows by the points' own dofs (B, K, r, m), such as a Jacobian, by the `union` (B, K, r, D)."""
        shape = (*per_point.shape[:-1], self.union.shape[0])
        index = self._place.unsqueeze(1).expand_as(per_point)
        return per_point.new_zeros(shape).scatter_add(-1, index, per_point)


@dataclass(frozen=True)
class PointsAt:
    """Points of routes at a state (B, K, 3) [m], with the frames (B, F) and the offsets (B, C, 3) that they carry."""

    route_points: RoutePoints
    points: Tensor
    frames: MaterialFrames
    carried: Tensor

    def generalised(self, force: Tensor, q: Tensor) -> Tensor:
        """Return the generalised force (B, n) on q of forces (B, K, 3) on the points [N]."""
        route_points = self.route_points
        direct = (route_points._linear.mT @ force.unsqueeze(-1)).squeeze(-1)
        by_edge, by_angle = self.frames.slopes(self._products(force))
        turning = torch.cat([by_edge, by_angle.unsqueeze(-1)], dim=-1).unsqueeze(-1)
        total = torch.zeros_like(q).index_add(1, route_points.dofs.flatten(), direct.flatten(1))
        return total.index_add(1, route_points.edge_dofs.flatten(), (route_points._into_edge.mT @ turning).flatten(1))

    def second(self, force: Tensor) -> Tensor:
        """Return the second derivatives (B, F, 7, 7) of sum_a force_a . point_a by `edge_dofs`, force (B, K, 3)."""
        into = self.route_points._into_edge
        return into.mT @ self.frames.second(self._products(force)) @ into

    def jacobian(self) -> Tensor:
        """Return the derivatives (B, K, 3, m) of the points by their dofs."""
        route_points, carried = self.route_points, self.carried
        frames = self.frames.taken(route_points._edge_of)
        by_variables = torch.cat([frames.by_edge(carried), frames.by_angle(carried).unsqueeze(-1)], dim=-1)
        by_pair = route_points._weight.view(-1, 1, 1) * (by_variables @ route_points._into)
        return route_points._linear.expand(len(by_pair), -1, -1, -1).index_add(1, route_points._point, by_pair)

    def velocity(self, state: State) -> Tensor:
        """Return the velocities (B, K, 3) of the points [m/s]."""
        route_points, frames = self.route_points, self.frames
        mean = (route_points._linear @ state.velocity[:, route_points.dofs].unsqueeze(-1)).squeeze(-1)
        speed = (route_points._into_edge @ state.velocity[:, route_points.edge_dofs].unsqueeze(-1)).squeeze(-1)
        edge_velocity, rate = speed[..., :3], speed[..., 3:] + (frames.turn * speed[..., :3]).sum(-1, keepdim=True)
        spin = torch.linalg.cross(frames.t, edge_velocity) / frames.length + rate * frames.t
        offset_velocity = torch.linalg.cross(spin[:, route_points._edge_of], self.carried)
        return mean.index_add(1, route_points._point, route_points._weight.unsqueeze(-1) * offset_velocity)

    def velocity_by_position(self, state: State) -> Tensor:
        """Return the derivatives (B, K, 3, m) of the points' velocities by positions and angles."""
        route_points, carried = self.route_points, self.carried
        axes = torch.eye(3, dtype=carried.dtype, device=carried.device).view(3, 1, 1, 1, 3)
        bent = self.frames.taken(route_points._edge_of).second(carried.unsqueeze(-1) * axes)  # (3, B, C, 4, 4)
        moving = (route_points._into_edge @ state.velocity[:, route_points.edge_dofs].unsqueeze(-1))[
            :, route_points._edge_of
        ]
        rows = (bent @ moving).squeeze(-1).permute(1, 2, 0, 3) @ route_points._into
        by_pair = route_points._weight.view(-1, 1, 1) * rows
        zeros = by_pair.new_zeros(len(by_pair), *route_points._linear.shape)
        return zeros.index_add(1, route_points._point, by_pair)

    def _products(self, force: Tensor) -> Tensor:
        """Return per frame the sum (B, F, 3, 3) of the dyads offset (x) force over its points, for forces (B, K, 3)."""
        route_points = self.route_points
        dyads = outer(self.carried, route_points._weight.unsqueeze(-1) * force[:, route_points._point])
        return dyads.new_zeros(len(dyads), route_points._framed.shape[0], 3, 3).index_add(
            1, route_points._edge_of, dyads
        )


def _edge_and_angle(body: Body, framed: int) -> list[tuple[int, int, float]]:
    """Return (row, dof, sign) of all terms of a framed edge's vector (rows 0 to 2) and angle (row 3)."""
    angle = (3, 3 * body.n_nodes + framed, 1.0)
    held = framed - len(body.framed_edges)
    if held >= 0:
        return [*((axis, body.first_held + 3 * held + axis, 1.0) for axis in range(3)), angle]
    start, end = map(int, body.framed_edges[framed])
    vector = [(axis, 3 * node + axis, sign) for node, sign in ((end, 1.0), (start, -1.0)) for axis in range(3)]
    return [*vector, angle]


def _of_edges(body: Body, framed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the dofs (F, 7) of framed edges, and the matrices (F, 4, 7) from these to edge vector and angle."""
    dofs, into = np.zeros((len(framed), 7), dtype=np.int64), np.zeros((len(framed), 4, 7))
    for k, edge in enumerate(framed.tolist()):
        terms = _edge_and_angle(body, edge)
        places = dict.fromkeys(dof for _, dof, _ in terms)
        dofs[k] = (list(places) * 2)[:7]  # held tangents have four dofs, which are repeated
        for row, dof, sign in terms:
            into[k, row, list(places).index(dof)] += sign
    return dofs, into


def _dofs_of(body: Body, point: Carriers) -> list[int]:
    """Return the dofs that a point depends on."""
    dofs = [3 * node + axis for node in point.nodes for axis in range(3)]
    dofs += [dof for framed in point.frames for _, dof, _ in _edge_and_angle(body, framed)]
    return list(dict.fromkeys(dofs))


def _means(points: Sequence[Carriers], dofs_of_points: list[list[int]], width: int) -> np.ndarray:
    """Return the matrices (K, 3, width) from the points' dofs to the weighted means of their nodes."""
    means = np.zeros((len(points), 3, width))
    for mean, point, dofs in zip(means, points, dofs_of_points, strict=True):
        for node, weight in point.nodes.items():
            for axis in range(3):
                mean[axis, dofs.index(3 * node + axis)] += weight
    return means


def _into_edges(body: Body, pairs: list[tuple[int, int]], dofs_of_points: list[list[int]], width: int) -> np.ndarray:
    """Return for each pair the matrix (C, 4, width) from the dofs of its point to edge vector and angle."""
    into = np.zeros((len(pairs), 4, width))
    for matrix, (k, framed) in zip(into, pairs, strict=True):
        for row, dof, sign in _edge_and_angle(body, framed):
            matrix[row, dofs_of_points[k].index(dof)] += sign
    return into


def _segment_buffers(dofs_of_points: list[list[int]], dofs: np.ndarray, paths: Paths) -> dict[str, np.ndarray]:
    """Return the index buffers of the segments: `segment_dofs`, `_same_as`, `_starts` and `_ends`."""
    ends = list(zip(paths.starts.tolist(), paths.ends.tolist(), strict=True))
    dofs_of_segments = [sorted({*dofs_of_points[i], *dofs_of_points[j]}) or [int(dofs[i, 0])] for i, j in ends]
    padded = _padded(dofs_of_segments)
    unique, same_as = np.unique(padded, axis=0, return_inverse=True)
    places = {
        name: _places(padded.shape, dofs_of_segments, [dofs_of_points[pair[end]] for pair in ends], dofs.shape[1])[
            :, None
        ]
        for end, name in enumerate(("_starts", "_ends"))
    }
    return {"segment_dofs": unique, "_same_as": same_as.reshape(-1), **places}


def _padded(lists: list[list[int]]) -> np.ndarray:
    """Return lists of dofs filled up to equal length (K, width); an empty one gets a dof of the nearest other."""
    width = max(map(len, lists))
    not_empty = [k for k, dofs in enumerate(lists) if dofs]
    filled = [dofs or lists[min(not_empty, key=lambda other: abs(other - k))][:1] for k, dofs in enumerate(lists)]
    return np.array([dofs + dofs[:1] * (width - len(dofs)) for dofs in filled], dtype=np.int64)


def _places(
    shape: tuple[int, ...], dofs_of_segments: list[list[int]], dofs_of_points: list[list[int]], nowhere: int
) -> np.ndarray:
    """Return the index (M, s) of the segments' dofs among those of one of their points; `nowhere` for dofs it lacks."""
    places = np.full(shape, nowhere)
    for row, dofs, point_dofs in zip(places, dofs_of_segments, dofs_of_points, strict=True):
        row[: len(dofs)] = [point_dofs.index(dof) if dof in point_dofs else nowhere for dof in dofs]
    return places

"""The points of routes: how nodes and frames carry them, where they are, and their derivatives by the dofs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.actuation import formulas
from torchdismech.actuation.route import Carriers
from torchdismech.actuation.tension import Paths, Segments
from torchdismech.forces.elements import dofs_of_nodes
from torchdismech.robot.body import Body
from torchdismech.robot.state import State

__all__ = ["PointsAt", "RoutePoints"]


class RoutePoints(nn.Module):
    """The K points of routes as functions of the dofs.

    A point is a weighted mean of nodes, linear in the dofs, plus an offset that is fixed in the material frames of
    framed edges and turns with them. There are C pairs of a point and a framed edge that carries its offset; a point
    with several such edges has the mean of their offsets.

    Each segment has up to s dofs; where it has fewer, its first is repeated, with derivatives of zero. A *column* is
    the derivative of a segment by one of its dofs, first of all segments by their first dofs, and so on.

    Attributes
    ----------
    edge_dofs : (F, 7) dofs of the F framed edges that carry points: start, end and angle.
    segment_dofs : (U, s) dofs of the segments; segments with the same dofs share a row.
    union : (D,) dofs of all segments.
    """

    edge_dofs: Tensor
    segment_dofs: Tensor
    union: Tensor
    _edge_ends: Tensor  # (2, 3, F) dofs of start and end of the framed edges
    _edge_angle: Tensor  # (F,) dofs of their angles
    _has_start: Tensor  # (F, 1) 0 for held tangents, which are dofs themselves, else 1
    _framed: Tensor  # (F,) numbers of the framed edges in the robot
    _nodes: Tensor  # (N, 3, K) dofs of the nodes that carry each point; where it has fewer, with weights of zero
    _weights: Tensor  # (N, K, 1)
    _is_fixed: Tensor  # (K, 1) 1 for points fixed in space, which no node carries
    _pairs: Tensor  # (E, K) the pairs of each point; where it has fewer, with shares of zero
    _shares: Tensor  # (E, K, 1)
    _point: Tensor  # (C,) point of each pair
    _edge: Tensor  # (C,) framed edge of each pair, among the F
    _share: Tensor  # (C, 1) share of each pair in its point
    _axes: Tensor  # (3, 3, C, 1) frames (t, m1, m2) at rest
    _segment: Tensor  # (s M,) segment of each column
    _linear: Tensor  # (3, s M, 1) the part of each column through nodes
    _slots: Tensor  # (R, s M) rows, among derivatives of pairs by four variables, that belong to each column
    _signs: Tensor  # (R, s M, 1) their factors
    _in_union: Tensor  # (s M,) place of each column in a matrix of the segments (M) by the union (D)
    _same_as: Tensor  # (M,) row of each segment in segment_dofs

    def __init__(self, body: Body, points: Sequence[Carriers], paths: Paths, axes: Tensor):
        super().__init__()
        self.paths = paths
        pairs = [(k, framed) for k, point in enumerate(points) for framed in point.frames]
        point_of, carrying = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        framed, edge_of = np.unique(carrying, return_inverse=True)
        edge_dofs, has_start = _dofs_of_edges(body, framed)
        share = [1 / len(points[k].frames) for k, _ in pairs]
        index = {"edge_dofs": edge_dofs, "_edge_ends": edge_dofs[:, :6].T.reshape(2, 3, -1)}
        index |= {"_edge_angle": edge_dofs[:, 6], "_framed": framed, "_point": point_of, "_edge": edge_of.reshape(-1)}
        values = {"_has_start": has_start[:, None], "_share": np.array(share)[:, None]}
        values["_is_fixed"] = np.array([not point.nodes for point in points])[:, None]
        nodes, values["_weights"] = _padded([list(point.nodes.items()) for point in points])
        index["_nodes"] = dofs_of_nodes(*nodes).numpy()
        of_points = [[(c, share[c]) for c, (k, _) in enumerate(pairs) if k == point] for point in range(len(points))]
        index["_pairs"], values["_shares"] = _padded(of_points)
        columns = [
            _columns_of_segment(start, end, points, of_points, edge_dofs[edge_of], has_start[edge_of])
            for start, end in zip(paths.starts.tolist(), paths.ends.tolist(), strict=True)
        ]
        column_index, column_values = _column_tables(columns, len(pairs))
        index, values = index | column_index, values | column_values
        for name, value in index.items():
            self.register_buffer(name, torch.as_tensor(value.copy(), device="cpu"), persistent=False)
        for name, value in values.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu").to(body.nodes), persistent=False)
        self.register_buffer("_axes", axes[carrying].permute(1, 2, 0).unsqueeze(-1).contiguous(), persistent=False)

    def at(self, state: State, offset: Tensor) -> PointsAt:
        """Return the points at a state for offsets (B or 1, K, 3), in axes of the world of the robot as built."""
        q, offset = state.q.t().contiguous(), offset.permute(2, 1, 0)  # robots contiguous, for vector instructions
        anchors = state.tangent.permute(2, 1, 0), state.director.permute(2, 1, 0)
        edges = self._edge_ends, self._edge_angle, self._has_start
        frames = formulas.FRAMES(len(self._framed), q, *edges, self._framed, *anchors)
        pair = frames, self._edge, self._axes, offset, self._point
        carried = formulas.CARRIED(len(self._point), *pair)
        fixed = offset, self._is_fixed
        position = formulas.POINTS(len(self._is_fixed), q, *self._carriers(carried), *fixed)
        return PointsAt(self, state, position, pair)

    def at_rest(self, body: Body, offset: Tensor) -> Tensor:
        """Return the points (3, K, B or 1) of the robot as built."""
        nodes = (body.rest_q[self._nodes] * self._weights.mT).sum(0)
        return nodes.unsqueeze(-1) + offset.permute(2, 1, 0)

    def velocity(self, velocity: Tensor, rates: Tensor) -> Tensor:
        """Return the velocities (3, K, B) of the points [m/s], for rates (3, C, B) of the carried offsets."""
        return formulas.POINTS(len(self._is_fixed), velocity, *self._carriers(rates))

    def shared_sums(self, blocks: Tensor) -> Tensor:
        """Return the sums (.., U, B) of blocks (.., M, B) of segments that share their dofs."""
        return blocks.new_zeros(len(blocks), len(self.segment_dofs), blocks.shape[-1]).index_add(
            1, self._same_as, blocks
        )

    def by_union(self, columns: Tensor) -> Tensor:
        """Return numbers of columns (k, s M, B) as matrices (k, M, D, B) of the segments by the union of their dofs."""
        shape = len(self.paths.starts), len(self.union)
        empty = columns.new_zeros(len(columns), shape[0] * shape[1], columns.shape[-1])
        return empty.index_add(1, self._in_union, columns).unflatten(1, shape)

    def _carriers(self, carried: Tensor) -> tuple[Tensor, ...]:
        return self._nodes, self._weights, carried, self._pairs, self._shares


@dataclass(frozen=True)
class PointsAt:
    """Points of routes at a state.

    Attributes
    ----------
    position : (3, K, B) [m].
    pair : the arguments of formulas of pairs, see `formulas`.
    """

    route_points: RoutePoints
    state: State
    position: Tensor
    pair: tuple[Tensor, ...]

    def velocity(self) -> Tensor:
        """Return the velocities (3, K, B) of the points [m/s]."""
        velocity = self.state.velocity.t().contiguous()
        rates = formulas.MOTION(len(self.route_points._point), velocity, *self._edges_of_pairs(), *self.pair)
        return self.route_points.velocity(velocity, rates)

    def generalised(self, force: Tensor) -> Tensor:
        """Return the generalised force (B, n) on q of forces (3, K, B) on the points [N]."""
        tables = self.route_points
        torques = formulas.SLOPES(len(tables._point), force, tables._has_start[tables._edge], tables._share, *self.pair)
        direct = tables._weights.unsqueeze(1) * force
        total = force.new_zeros(self.state.q.shape[1], force.shape[-1])
        total = total.index_add(0, tables._nodes.flatten(), direct.flatten(0, 2))
        return total.index_add(0, tables.edge_dofs[tables._edge].t().flatten(), torques.flatten(0, 1)).t()

    def by_frames(self, force: Tensor) -> tuple[Tensor, Tensor]:
        """Return what changes as frames turn.

        Parameters
        ----------
        force : (3, K, B) on the points.

        Returns
        -------
        The derivatives (3, 4 C, B) of the carried offsets by edge vectors and angles, and the second derivatives
        (49, F, B) of sum_a force_a . point_a by `edge_dofs`.
        """
        tables = self.route_points
        found = formulas.PAIR_DERIVATIVES(len(tables._point), force, tables._share, *self.pair)
        second = found.new_zeros(10, len(tables._framed), found.shape[-1]).index_add(1, tables._edge, found[12:])
        return _by_component(found[:12]), formulas.FRAME_BLOCKS(len(tables._framed), second, tables._has_start)

    def columns(self, segments: Segments, by_variables: Tensor) -> Tensor:
        """Return (4, s M, B): the columns, and the derivatives of the segments' lengths by the same dofs."""
        tables = self.route_points
        return formulas.COLUMNS(len(tables._segment), segments.direction, *self._of_columns(by_variables))

    def columns_with_rates(self, segments: Segments, rates: Tensor, by_variables: Tensor) -> Tensor:
        """Return (7, s M, B): those of `columns`, and derivatives of three more numbers by the same dofs.

        These are the rate of the segment's length, and the cosines of the angles to the segments before and after,
        where these keep their directions.
        """
        tables, velocity = self.route_points, self.state.velocity.t().contiguous()
        bent = formulas.BENT(len(tables._point), velocity, *self._edges_of_pairs(), *self.pair)
        neighbours = segments.paths.neighbours[:, tables._segment]
        arguments = segments.length, rates, neighbours, _by_component(bent)
        columns = segments.direction, *self._of_columns(by_variables)
        return formulas.COLUMNS_WITH_RATES(len(tables._segment), *arguments, *columns)

    def _edges_of_pairs(self) -> tuple[Tensor, ...]:
        tables = self.route_points
        ends, angle = tables._edge_ends[..., tables._edge], tables._edge_angle[tables._edge]
        return ends, angle, tables._has_start[tables._edge]

    def _of_columns(self, by_variables: Tensor) -> tuple[Tensor, ...]:
        tables = self.route_points
        return tables._segment, tables._linear, tables._slots, tables._signs, by_variables


def _by_component(of_pairs: Tensor) -> Tensor:
    """Return derivatives (3 x 4, C, B) as (3, 4 C, B): by component, variable and pair."""
    return of_pairs.unflatten(0, (3, 4)).flatten(1, 2)


def _dofs_of_edges(body: Body, framed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the dofs (F, 7) of framed edges: start, end, angle; and whether they have a start (F,), 1 or 0.

    Held tangents have none: their ends are their dofs, which are repeated as starts.
    """
    held = framed - len(body.framed_edges)
    has_start = held < 0
    ends = np.where(has_start[:, None], np.asarray(body.framed_edges)[np.where(has_start, framed, 0)].reshape(-1, 2), 0)
    dofs = 3 * ends[:, :, None] + np.arange(3)
    dofs[~has_start] = (body.first_held + 3 * held[~has_start, None] + np.arange(3))[:, None]
    return np.hstack([dofs.reshape(-1, 6), 3 * body.n_nodes + framed[:, None]]), has_start.astype(float)


def _padded(lists: list[list[tuple[int, float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return lists of (index, weight) filled up to one length with weights of zero: (width, K) and (width, K, 1)."""
    width = max(map(len, lists))
    index, weights = np.zeros((width, len(lists)), dtype=np.int64), np.zeros((width, len(lists), 1))
    for k, entries in enumerate(lists):
        for row, (number, weight) in enumerate(entries):
            index[row, k], weights[row, k] = number, weight
    return index, weights


@dataclass
class _Column:
    """The derivative of a segment by one dof: its part through nodes, and (pair, variable, factor) through frames."""

    linear: np.ndarray
    through_frames: list[tuple[int, int, float]]


def _columns_of_segment(
    start: int,
    end: int,
    points: Sequence[Carriers],
    of_points: list[list[tuple[int, float]]],
    pair_dofs: np.ndarray,
    has_start: np.ndarray,
) -> dict[int, _Column]:
    """Return the columns of a segment between two points by their dofs, in ascending order.

    Parameters
    ----------
    of_points : for each point its pairs, with their shares.
    pair_dofs, has_start : (C, 7) and (C,) of the edges of all pairs.
    """
    columns: dict[int, _Column] = defaultdict(lambda: _Column(np.zeros(3), []))
    for point, sign in ((end, 1.0), (start, -1.0)):
        for node, weight in points[point].nodes.items():
            for axis in range(3):
                columns[3 * node + axis].linear[axis] += sign * weight
        for pair, share in of_points[point]:
            first, last, angle = np.split(pair_dofs[pair], [3, 6])
            for axis in range(3):
                columns[int(last[axis])].through_frames.append((pair, axis, sign * share))
                if has_start[pair]:
                    columns[int(first[axis])].through_frames.append((pair, axis, -sign * share))
            columns[int(angle[0])].through_frames.append((pair, 3, sign * share))
    return dict(sorted(columns.items()))


def _column_tables(
    columns: list[dict[int, _Column]], pairs: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the tables of all columns: indices, and values."""
    width, count = max(map(len, columns)), len(columns)
    any_dof = next(dof for c in columns for dof in c)  # for segments between points that are fixed in space
    dofs = np.array([[*c, *[next(iter(c), any_dof)] * (width - len(c))] for c in columns], dtype=np.int64)
    unique, same_as = np.unique(dofs, axis=0, return_inverse=True)
    union = np.unique(dofs)
    nothing = _Column(np.zeros(3), [])
    flat = [([*c.values()] + [nothing] * width)[k] for k in range(width) for c in columns]  # first dofs first
    slots, signs = _padded(
        [[(variable * pairs + pair, sign) for pair, variable, sign in c.through_frames] for c in flat]
    )
    index = {"segment_dofs": unique, "_same_as": same_as.reshape(-1), "union": union, "_slots": slots}
    index["_segment"] = np.tile(np.arange(count), width)
    index["_in_union"] = (np.searchsorted(union, dofs) + len(union) * np.arange(count)[:, None]).T.reshape(-1)
    return index, {"_linear": np.stack([c.linear for c in flat], axis=1)[..., None], "_signs": signs}

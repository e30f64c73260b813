"""Forces by tensions along paths through a robot: what tendons and chambers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.actuation import formulas
from torchdismech.actuation.points import PointsAt, RoutePoints
from torchdismech.actuation.route import AtNodes, Carriers, Fixed, OnEdges, RestFrames
from torchdismech.actuation.tension import Paths, Segments
from torchdismech.errors import InputError, warn
from torchdismech.forces.base import Force, number
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import blocks_of, refuse_other_count
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import untrained

__all__ = ["Coupling", "Route", "RoutedForce", "by_route", "extent_of", "per_route"]

Route = AtNodes | OnEdges | Fixed
TOUCHING = 1e-9  # points nearer to each other than this part of the path's length are refused as one point


def extent_of(body: Body) -> float:
    """Return the diagonal of the box around a robot as built [m]."""
    return float((body.nodes.amax(0) - body.nodes.amin(0)).norm())


class RoutedForce(Force):
    """Tensions in the straight segments between the points of routes.

    A segment pulls its two points together, and so the sections that carry them. A subclass gives the tensions and,
    where they depend on other segments, how.

    Parameters
    ----------
    routes : T routes, each a part or a list of parts in their order.

    Attributes
    ----------
    offset : (B or 1, K, 3) offsets of all points, route after route, from the nodes or edges that carry them, in the
        axes of the world, of the robot as built; for points fixed in space, the points themselves [m].
    """

    per_robot: tuple[str, ...] = ("offset",)
    compiles = True
    offset: Tensor
    route_points: RoutePoints
    paths: Paths

    def __init__(self, routes: Sequence[Route | Sequence[Route]]):
        super().__init__()
        if not isinstance(routes, Sequence):
            raise InputError(
                f"{type(self).__name__}: expected a list of routes, also of one alone, got {type(routes).__name__}"
            )
        self.routes = [list(route) if isinstance(route, Sequence) else [route] for route in routes]
        for part in (part for route in self.routes for part in route):
            if not isinstance(part, Route):
                raise InputError(
                    f"{type(self).__name__}: expected a list of routes of AtNodes, OnEdges or Fixed, got "
                    f"{type(part).__name__}"
                )
        if not self.routes:
            raise InputError(f"{type(self).__name__}: expected a list of routes, got none")

    def bind(self, body: Body) -> None:
        """Find what carries the points; refuse segments without length, and routes that do not touch the robot."""
        super().bind(body)
        frames = RestFrames(body)
        points: list[Carriers] = []
        offsets: list[Tensor] = []
        counts = []
        for k, route in enumerate(self.routes):
            carriers = [part.carriers(body) for part in route]
            of_route = [point for part in carriers for point in part]
            self._check_points(k, of_route)
            offsets += [
                frames.offsets(part, carriers_of_part) for part, carriers_of_part in zip(route, carriers, strict=True)
            ]
            points += of_route
            counts.append(len(of_route))
        robots = max(len(part) for part in offsets)
        offset = torch.cat([part.expand(robots, -1, -1) for part in offsets], dim=1)
        self._warn_of_millimetres(offset[:, [bool(point.nodes) for point in points]], body)
        self.offset = untrained(offset.to(body.nodes))
        self.paths = Paths(counts, body.nodes)
        self.route_points = RoutePoints(body, points, self.paths, frames.axes)
        rest = self.rest_segments()
        short = rest.length <= TOUCHING * rest.total[self.paths.path_of]
        if bool(short.any()):
            m = int(short.any(1).nonzero()[0])
            k = int(self.paths.path_of[m])
            first = int(self.paths.starts[m]) - sum(counts[:k])
            problem = f"points {first} and {first + 1} are one point; leave one of them out"
            raise InputError(f"{type(self).__name__}, route {k}: {problem}")

    def _warn_of_millimetres(self, carried: Tensor, body: Body) -> None:
        """Warn of points that are carried farther from their nodes or edges than the robot is large."""
        offset, extent = float(carried.norm(dim=-1).max()), extent_of(body)
        if offset > extent:
            warn(
                f"{type(self).__name__}: an offset of {offset:.4g} m is more than the robot is large, {extent:.4g} m: "
                "give offsets in m"
            )

    def _check_points(self, k: int, points: Sequence[Carriers]) -> None:
        """Refuse routes of fewer than two points, and routes without a point on the robot."""
        if len(points) < 2:
            raise InputError(f"{type(self).__name__}, route {k}: expected two points or more, got {len(points)}")
        if not any(point.nodes for point in points):
            raise InputError(
                f"{type(self).__name__}, route {k}: every point is fixed in space, so that it acts on nothing of the "
                "robot"
            )

    def rest_segments(self) -> Segments:
        """Return the segments of the robot as built."""
        return Segments.between(self.paths, self.route_points.at_rest(self.body, self.offset))

    def points(self, state: State) -> Tensor:
        """Return the points (B, K, 3) of the routes at a state [m], route after route.

        With the offsets that a control sets, call it within `with model.holding(state, control):`.
        """
        return self._at(state).position.permute(2, 1, 0)

    def lengths(self, state: State) -> Tensor:
        """Return the lengths (B, T) of the paths at a state [m]."""
        return self.segments(state).total.t()

    def segments(self, state: State) -> Segments:
        """Return the segments at a state."""
        return Segments.between(self.paths, self._at(state).position)

    # ---- for subclasses to define ------------------------------------------------------------------------------

    @property
    def coupled(self) -> bool:
        """Whether the tension in a segment changes with other segments."""
        return False

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (M, B) in the segments [N]; `rates` of the segments (3, M, B) [m/s] come where `rubs`."""
        raise TypeError(f"{type(self).__name__} has to define tension_in(segments, rates)")

    def coupling(self, segments: Segments, rates: Tensor | None, columns: Tensor) -> Coupling:
        """Return how coupled tensions change with the dofs of all segments.

        Parameters
        ----------
        columns : (1 or 4, M, B, D) derivatives by D dofs of the segments' lengths, and where `rubs` of the three
            numbers of `PointsAt.columns_with_rates`.
        """
        raise TypeError(f"{type(self).__name__} has to define coupling(segments, rates, columns)")

    @property
    def rubs(self) -> bool:
        """Whether tensions change with the rates of the segments."""
        return False

    # ---- the force ---------------------------------------------------------------------------------------------

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        return self._evaluated(state).force

    def blocks(self) -> list[Block]:
        """Return blocks of each framed edge, of each segment and, where tensions are coupled, one of all dofs."""
        dofs, pairs = self.route_points.edge_dofs.cpu().numpy(), self.route_points.segment_dofs.cpu().numpy()
        union = self.route_points.union.cpu().numpy()[None]
        coupling = [Block(union, union)] if self.coupled else []
        return [Block(dofs, dofs), Block(pairs, pairs), *coupling]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the force's derivatives, block by block: by positions and angles, with friction also by velocities."""
        return self._derivatives(self._evaluated(state))

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force and its derivatives, which are evaluated together."""
        if torch.is_grad_enabled():
            return super().with_derivatives(state, control)
        found = self._evaluated(state)
        return found.force, self._derivatives(found)

    def _evaluated(self, state: State) -> _Evaluated:
        at = self._at(state)
        segments = Segments.between(self.paths, at.position)
        rates = segments.rates(at.velocity()) if self.rubs else None
        tension = self.tension_in(segments, rates)
        pulls = segments.on_points(tension)
        return _Evaluated(at, segments, rates, tension, pulls, at.generalised(pulls))

    def _derivatives(self, found: _Evaluated) -> Derivatives:
        points, segments = self.route_points, found.segments
        by_variables, of_frames = found.at.by_frames(found.pulls)
        if found.rates is None:
            columns = found.at.columns(segments, by_variables)
        else:
            columns = found.at.columns_with_rates(segments, found.rates, by_variables)
        width = points.segment_dofs.shape[1]
        of_segments = formulas.SEGMENT_BLOCKS(
            len(self.paths.starts), found.tension, segments.length, columns[:4].unflatten(1, (width, -1))
        )
        blocks: Derivatives = [
            (blocks_of(of_frames, 7), None),
            (blocks_of(points.shared_sums(of_segments), width), None),
        ]
        if self.coupled:
            by_union = points.by_union(columns[3:]).permute(0, 1, 3, 2)
            blocks.append(self.coupling(segments, found.rates, by_union).derivatives())
        return blocks

    def _at(self, state: State) -> PointsAt:
        return self.route_points.at(state, self.offset)


class _Evaluated(NamedTuple):
    """A force at a state: its points, segments and their rates, tensions (M, B), and forces (3, K, B) on the points."""

    at: PointsAt
    segments: Segments
    rates: Tensor | None
    tension: Tensor
    pulls: Tensor
    force: Tensor


class Coupling(NamedTuple):
    """How tensions change with the dofs of all segments, as a sum of P terms: a pull with a tension of its own each.

    Attributes
    ----------
    pull : (P, B, D) derivatives of a length by dofs: minus the generalised force of a tension of one.
    by_q, by_velocity : (P, B, D) derivatives of the tension by positions and angles, and by velocities; None for zero.
    """

    pull: Tensor
    by_q: Tensor
    by_velocity: Tensor | None

    def derivatives(self) -> tuple[Tensor, Tensor | None]:
        """Return the force's derivatives (B, 1, D, D) by positions and angles, and by velocities."""
        return self._force_by(self.by_q), None if self.by_velocity is None else self._force_by(self.by_velocity)

    def _force_by(self, tension_by: Tensor) -> Tensor:
        pull, change = (x.transpose(0, 1).contiguous() for x in (self.pull, tension_by))
        return -(pull.mT @ change).unsqueeze(1)


def per_route(value, what: str, count: int) -> Tensor:
    """Return a parameter of routes as a tensor: (), for each route (T,), or for each robot (B, 1) or (B, T)."""
    tensor = number(value, what)
    refuse_other_count(tensor, what, count, "routes")
    return tensor


def by_route(constant: Tensor, count: int) -> Tensor:
    """Return a constant of `per_route` by routes and robots, (T, 1 or B)."""
    return torch.atleast_2d(constant).t().expand(count, -1)
